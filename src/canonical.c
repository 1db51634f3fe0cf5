/* canonical.c: rewrites JSON in any spelling as the canonical one.
 * SPDX-License-Identifier: Apache-2.0
 *
 * The output is written in the order of the input. When an object ends whose members are not in
 * order, its part of the output is copied aside and written again in order. Only the members of
 * objects that are still open are remembered, and arrays cost nothing, so that memory stays within
 * a small multiple of the input. A byte is moved once for each object it lies in, at most. */
#include "canonical.h"

#include "alloc.h"
#include "checked.h"
#include "decimal.h"
#include "json.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

#include "ban.h"

/* One member of an object that is still open: where its key and its value lie in the output. */
struct member {
    size_t at;        /* of the opening quote of its key */
    size_t end;       /* behind its value */
    size_t key_bytes; /* between the quotes */
    size_t offset;    /* of its key in the input */
};

/* An object or array that is still open. */
struct level {
    size_t first_member; /* index of an object's first member */
    bool object;
    bool empty;
    bool sorted; /* the members so far are in strictly ascending order */
};

struct canonical {
    const struct kvc_allocator *allocator;
    struct kvci_json scan;
    uint8_t *out;
    size_t out_bytes;
    size_t out_room;
    uint8_t *aside;
    size_t aside_room;
    struct member *members;
    size_t member_count;
    size_t member_room;
    struct level levels[KVCI_JSON_MAX_DEPTH + 1];
    enum kvci_canonical_result result;
    const char *problem;
    size_t problem_offset;
};

static bool out_of_memory(struct canonical *canonical)
{
    canonical->result = KVCI_CANONICAL_NO_MEMORY;
    return false;
}

static bool refuse(struct canonical *canonical, const char *problem, size_t offset)
{
    canonical->result = KVCI_CANONICAL_REFUSED;
    canonical->problem = problem;
    canonical->problem_offset = offset;
    return false;
}

/* ---- Output -------------------------------------------------------------------------------- */

/* Makes room for `bytes` more bytes of output. */
static bool reserve(struct canonical *canonical, size_t bytes)
{
    uint64_t needed = 0;
    if (bytes <= canonical->out_room - canonical->out_bytes) {
        return true;
    }
    if (!kvci_add(canonical->out_bytes, bytes, &needed) || needed > SIZE_MAX / 2) {
        return out_of_memory(canonical);
    }
    size_t room = (size_t)needed + canonical->out_room / 2;
    uint8_t *moved =
        kvci_alloc_grow(canonical->allocator, canonical->out, canonical->out_bytes, room);
    if (moved == NULL) {
        return out_of_memory(canonical);
    }
    canonical->out = moved;
    canonical->out_room = room;
    return true;
}

static bool put(struct canonical *canonical, const void *text, size_t bytes)
{
    if (!reserve(canonical, bytes)) {
        return false;
    }
    memcpy(canonical->out + canonical->out_bytes, text, bytes);
    canonical->out_bytes += bytes;
    return true;
}

static bool put_byte(struct canonical *canonical, char byte)
{
    return put(canonical, &byte, 1);
}

/* Writes the canonical spelling of the character `point`, which an escape means. Returns its
 * length, which is never more than the escape's. */
static size_t spell(uint32_t point, const uint8_t *escape, size_t escape_bytes, uint8_t *out)
{
    static const char letters[128] = {
        ['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n',  ['\f'] = 'f',
        ['\r'] = 'r', ['"'] = '"',  ['\\'] = '\\',
    };
    if (point < 128 && letters[point] != 0) {
        out[0] = '\\';
        out[1] = (uint8_t)letters[point];
        return 2;
    }
    if (point < 0x20) {
        static const char digits[] = "0123456789abcdef";
        const char spelled[6] = {'\\', 'u', '0', '0', digits[point >> 4], digits[point & 15]};
        memcpy(out, spelled, sizeof(spelled));
        return sizeof(spelled);
    }
    return kvci_json_decode(escape, escape_bytes, out);
}

/* Writes a string with its quotes. The scanner has judged it, so that only the escapes may have
 * another spelling. */
static bool put_string(struct canonical *canonical, const struct kvci_json_token *token)
{
    const uint8_t *text = token->text;
    size_t bytes = token->bytes;
    if (bytes > SIZE_MAX - 2 || !reserve(canonical, bytes + 2)) {
        return false;
    }
    uint8_t *out = canonical->out + canonical->out_bytes;
    *out++ = '"';
    size_t at = 0;
    while (at < bytes) {
        const uint8_t *backslash = memchr(text + at, '\\', bytes - at);
        size_t run = backslash != NULL ? (size_t)(backslash - (text + at)) : bytes - at;
        memcpy(out, text + at, run);
        out += run;
        at += run;
        if (at < bytes) {
            uint32_t point = 0;
            size_t taken = kvci_json_escape(text + at, bytes - at, &point);
            assert(taken > 0);
            out += spell(point, text + at, taken, out);
            at += taken;
        }
    }
    *out++ = '"';
    canonical->out_bytes = (size_t)(out - canonical->out);
    return true;
}

static bool put_integer(struct canonical *canonical, int64_t value)
{
    char text[24];
    size_t at = sizeof(text);
    uint64_t rest = value < 0 ? (uint64_t)-value : (uint64_t)value;
    do {
        text[--at] = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest > 0);
    if (value < 0) {
        text[--at] = '-';
    }
    return put(canonical, text + at, sizeof(text) - at);
}

static bool put_float(struct canonical *canonical, const struct kvci_json_token *token)
{
    char text[KVCI_DECIMAL_BYTES];
    if (kvci_decimal_canonical(token->text, token->bytes)) {
        return put(canonical, token->text, token->bytes);
    }
    double value = kvci_decimal_value(token->text, token->bytes);
    size_t bytes = kvci_decimal_format(value, text);
    /* Negative zero has no spelling of its own; also a number may be too small for a double. */
    size_t sign = bytes == 4 && memcmp(text, "-0.0", 4) == 0;
    return put(canonical, text + sign, bytes - sign);
}

/* ---- Objects ------------------------------------------------------------------------------- */

static int compare_keys(const struct canonical *canonical, const struct member *a,
                        const struct member *b)
{
    return kvci_json_compare(canonical->out + a->at + 1, a->key_bytes, canonical->out + b->at + 1,
                             b->key_bytes);
}

/* Orders two members of an object by their keys, and equal keys by their place in the input. */
static bool comes_before(const struct canonical *canonical, const struct member *a,
                         const struct member *b)
{
    int order = compare_keys(canonical, a, b);
    return order < 0 || (order == 0 && a->offset < b->offset);
}

/* Lets the member at `root` sink until those below it in the heap come before it. */
static void sift_down(const struct canonical *canonical, struct member *members, size_t root,
                      size_t count)
{
    struct member sinking = members[root];
    for (;;) {
        size_t child = 2 * root + 1;
        if (child >= count) {
            break;
        }
        if (child + 1 < count && comes_before(canonical, &members[child], &members[child + 1])) {
            child++;
        }
        if (comes_before(canonical, &members[child], &sinking)) {
            break;
        }
        members[root] = members[child];
        root = child;
    }
    members[root] = sinking;
}

/* A heap sort: in place, and no order of keys makes it slow. */
static void sort_members(const struct canonical *canonical, struct member *members, size_t count)
{
    for (size_t root = count / 2; root > 0; root--) {
        sift_down(canonical, members, root - 1, count);
    }
    for (size_t last = count; last > 1; last--) {
        struct member largest = members[0];
        members[0] = members[last - 1];
        members[last - 1] = largest;
        sift_down(canonical, members, 0, last - 1);
    }
}

/* Writes the members of the innermost object again, in the order of their keys. */
static bool reorder(struct canonical *canonical, struct member *members, size_t count)
{
    size_t start = members[0].at;
    size_t bytes = canonical->out_bytes - start;
    sort_members(canonical, members, count);
    for (size_t i = 1; i < count; i++) {
        if (compare_keys(canonical, &members[i - 1], &members[i]) == 0) {
            return refuse(canonical, "an object has the same key twice", members[i].offset);
        }
    }
    if (bytes > canonical->aside_room) {
        kvci_free(canonical->allocator, canonical->aside);
        /* Objects further out are larger: this is the room for all of them, mostly. */
        canonical->aside_room = canonical->out_bytes;
        canonical->aside = kvci_alloc(canonical->allocator, canonical->aside_room);
        if (canonical->aside == NULL) {
            canonical->aside_room = 0;
            return out_of_memory(canonical);
        }
    }
    memcpy(canonical->aside, canonical->out + start, bytes);
    uint8_t *out = canonical->out + start;
    for (size_t i = 0; i < count; i++) {
        size_t member_bytes = members[i].end - members[i].at;
        if (i > 0) {
            *out++ = ',';
        }
        memcpy(out, canonical->aside + (members[i].at - start), member_bytes);
        out += member_bytes;
    }
    assert(out == canonical->out + canonical->out_bytes);
    return true;
}

static bool put_key(struct canonical *canonical, const struct kvci_json_token *token)
{
    struct level *level = &canonical->levels[token->depth - 1];
    if (canonical->member_count == canonical->member_room) {
        size_t room = canonical->member_room + canonical->member_room / 2 + 32;
        if (room > SIZE_MAX / sizeof(struct member)) {
            return out_of_memory(canonical);
        }
        struct member *moved =
            kvci_alloc_grow(canonical->allocator, canonical->members,
                            canonical->member_count * sizeof(*moved), room * sizeof(*moved));
        if (moved == NULL) {
            return out_of_memory(canonical);
        }
        canonical->members = moved;
        canonical->member_room = room;
    }
    if (!level->empty && !put_byte(canonical, ',')) {
        return false;
    }
    struct member *member = &canonical->members[canonical->member_count];
    member->at = canonical->out_bytes;
    member->offset = token->offset;
    if (!put_string(canonical, token)) {
        return false;
    }
    member->key_bytes = canonical->out_bytes - member->at - 2;
    if (!level->empty && compare_keys(canonical, member - 1, member) >= 0) {
        level->sorted = false;
    }
    level->empty = false;
    canonical->member_count++;
    return put_byte(canonical, ':');
}

/* ---- Values -------------------------------------------------------------------------------- */

static bool put_open(struct canonical *canonical, const struct kvci_json_token *token)
{
    bool object = token->type == KVCI_JSON_OBJECT;
    canonical->levels[token->depth] = (struct level){
        .first_member = canonical->member_count, .object = object, .empty = true, .sorted = true};
    return put_byte(canonical, object ? '{' : '[');
}

static bool put_close(struct canonical *canonical, const struct kvci_json_token *token)
{
    struct level *level = &canonical->levels[token->depth];
    size_t count = canonical->member_count - level->first_member;
    if (level->object && !level->sorted &&
        !reorder(canonical, canonical->members + level->first_member, count)) {
        return false;
    }
    canonical->member_count = level->first_member;
    return put_byte(canonical, level->object ? '}' : ']');
}

static bool put_token(struct canonical *canonical, const struct kvci_json_token *token)
{
    switch (token->type) {
    case KVCI_JSON_OBJECT:
    case KVCI_JSON_ARRAY:
        return put_open(canonical, token);
    case KVCI_JSON_OBJECT_END:
    case KVCI_JSON_ARRAY_END:
        return put_close(canonical, token);
    case KVCI_JSON_KEY:
        return put_key(canonical, token);
    case KVCI_JSON_STRING:
        return put_string(canonical, token);
    case KVCI_JSON_INTEGER:
        return put_integer(canonical, token->integer);
    case KVCI_JSON_FLOAT:
        return put_float(canonical, token);
    default:
        return put(canonical, token->text, token->bytes);
    }
}

static bool write_all(struct canonical *canonical)
{
    struct kvci_json_token token;
    for (;;) {
        if (!kvci_json_next(&canonical->scan, &token)) {
            return refuse(canonical, canonical->scan.problem, canonical->scan.problem_offset);
        }
        if (token.type == KVCI_JSON_END) {
            return true;
        }
        bool end = token.type == KVCI_JSON_OBJECT_END || token.type == KVCI_JSON_ARRAY_END;
        bool begins = !end && token.type != KVCI_JSON_KEY;
        /* The levels begin at 1; level 0 holds the top value alone. */
        struct level *outer = &canonical->levels[token.depth - 1];
        if (begins && token.depth > 1 && !outer->object) {
            if (!outer->empty && !put_byte(canonical, ',')) {
                return false;
            }
            outer->empty = false;
        }
        if (!put_token(canonical, &token)) {
            return false;
        }
        bool ends = token.type != KVCI_JSON_OBJECT && token.type != KVCI_JSON_ARRAY &&
                    token.type != KVCI_JSON_KEY;
        if (ends && token.depth > 1 && outer->object) {
            canonical->members[canonical->member_count - 1].end = canonical->out_bytes;
        }
    }
}

enum kvci_canonical_result kvci_canonical_write(const void *text, size_t bytes, uint64_t max_values,
                                                const struct kvc_allocator *allocator,
                                                uint8_t **ret_text, size_t *ret_bytes,
                                                const char **ret_problem,
                                                size_t *ret_problem_offset)
{
    struct canonical canonical = {.allocator = allocator, .result = KVCI_CANONICAL_OK};
    kvci_json_init(&canonical.scan, text, bytes, KVCI_JSON_ANY, max_values);
    if (reserve(&canonical, bytes) && write_all(&canonical)) {
        *ret_text = canonical.out;
        *ret_bytes = canonical.out_bytes;
        canonical.out = NULL;
    } else if (canonical.result == KVCI_CANONICAL_REFUSED) {
        *ret_problem = canonical.problem;
        *ret_problem_offset = canonical.problem_offset;
    }
    kvci_free(allocator, canonical.out);
    kvci_free(allocator, canonical.aside);
    kvci_free(allocator, canonical.members);
    return canonical.result;
}
