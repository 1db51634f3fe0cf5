/* json.h: a scanner for JSON text that allocates nothing, does not recurse, and can insist on the
 * canonical spelling.
 * SPDX-License-Identifier: Apache-2.0
 *
 * The strict mode accepts exactly one spelling of each value: no white space, keys strictly
 * ascending by code point (so that no key can occur twice), each character of a string spelled in
 * one way, integers without `-0` and leading zeros, floats in their shortest form. The other mode
 * accepts every spelling of RFC 8259; canonical.c turns it into the canonical one and finds keys
 * that occur twice. Both modes refuse U+0000, lone surrogates, invalid UTF-8, a byte order mark,
 * integers outside -(2^53 - 1) ... 2^53 - 1, floats that are not finite, and text that is nested
 * too deep or holds too many values. */
#ifndef KVCI_JSON_H
#define KVCI_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kvci_json_type {
    KVCI_JSON_END,
    KVCI_JSON_OBJECT,
    KVCI_JSON_OBJECT_END,
    KVCI_JSON_ARRAY,
    KVCI_JSON_ARRAY_END,
    KVCI_JSON_KEY,
    KVCI_JSON_STRING,
    KVCI_JSON_INTEGER,
    KVCI_JSON_FLOAT,
    KVCI_JSON_TRUE,
    KVCI_JSON_FALSE,
    KVCI_JSON_NULL
};

enum kvci_json_mode {
    KVCI_JSON_STRICT, /* the canonical spelling only */
    KVCI_JSON_ANY     /* any spelling of RFC 8259; keys may come in any order, and twice */
};

/* How deep objects and arrays may be nested. The top value is depth 1; scalars add none. */
#define KVCI_JSON_MAX_DEPTH 16

/* The largest integer, 2^53 - 1; the smallest is its negative. */
#define KVCI_JSON_MAX_INTEGER INT64_C(9007199254740991)

/* One token. Commas, colons and white space are not reported. */
struct kvci_json_token {
    size_t offset;       /* of its first byte; for keys and strings, of the opening quote */
    const uint8_t *text; /* keys and strings: the raw spelling between the quotes; numbers: from the
                            sign to the last digit; others: all of the token */
    size_t bytes;        /* of `text` */
    int64_t integer;     /* the value of an integer, else 0 */
    enum kvci_json_type type;
    unsigned depth; /* of a value, counting the containers it lies in, plus one; a key has the
                            depth of its value, an end that of its beginning, END has 0 */
};

/* The state of a scan. Callers read `values`, `problem` and `problem_offset`. */
struct kvci_json {
    const uint8_t *text;
    size_t bytes;
    size_t at;
    enum kvci_json_mode mode;
    unsigned state;
    unsigned depth;      /* of the innermost container that is open; 0 outside */
    uint32_t object_set; /* bit `d` is set when the open container of depth `d` is an object */
    uint64_t max_values;
    uint64_t values;       /* values begun so far: scalars, objects and arrays, not keys */
    const char *problem;   /* what is wrong, in words without a full stop; NULL while all is well */
    size_t problem_offset; /* where */
    struct {
        const uint8_t *text; /* the last key of the open object of this depth, NULL for none */
        size_t bytes;
    } last_keys[KVCI_JSON_MAX_DEPTH + 1];
};

/* Begins a scan of one value. The text is borrowed and may be NULL when `bytes` is 0. */
void kvci_json_init(struct kvci_json *scan, const void *text, size_t bytes,
                    enum kvci_json_mode mode, uint64_t max_values);

/* Takes the next token. After the top value come END tokens for ever. Returns false, now and at
 * every later call, once something is wrong; `problem` then says what. */
bool kvci_json_next(struct kvci_json *scan, struct kvci_json_token *ret_token);

/* Passes over the rest of the value whose first token, `first`, was just taken; scalars have no
 * rest. Gives the offset behind the value. Returns false when something in it is wrong. */
bool kvci_json_skip(struct kvci_json *scan, const struct kvci_json_token *first,
                    size_t *ret_end_offset);

/* The functions below take raw spellings, as keys and strings have them in their tokens. */

/* Compares two by the code points that they mean: below, equal to or above 0. */
int kvci_json_compare(const uint8_t *a, size_t a_bytes, const uint8_t *b, size_t b_bytes);

/* Tells whether a raw spelling means a plain C string in UTF-8. */
bool kvci_json_equals(const uint8_t *text, size_t bytes, const char *literal);

/* Writes what a raw spelling means in UTF-8, at most `bytes` bytes, and returns how many. */
size_t kvci_json_decode(const uint8_t *text, size_t bytes, uint8_t *out);

/* Returns what kvci_json_decode would return. */
size_t kvci_json_decoded_bytes(const uint8_t *text, size_t bytes);

/* Reads the escape, or the pair of surrogate escapes, at the backslash `at`, with `left` bytes up
 * to the end of the text. Returns the bytes that it takes, or 0 when it means no character. */
size_t kvci_json_escape(const uint8_t *at, size_t left, uint32_t *ret_point);

#endif
