/* strides.c: puts row-major strides where a dimension of size 1 has another one; pure.
 * SPDX-License-Identifier: Apache-2.0 */
#include "strides.h"

#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "checked.h"
#include "dtype.h"
#include "json.h"
#include "layout.h"

#include "ban.h"

#define NUMBER_BYTES 24

/* The walk sees one record at a time: "dtype" and "shape" come before "strides" in canonical order.
 * `out` is NULL while the walk only counts how many bytes the new text needs. */
struct walk {
    struct kvci_json scan;
    const uint8_t *text;
    size_t copied; /* bytes of the old text already in the new one */
    uint8_t *out;
    size_t out_bytes;
    bool changed;
    uint64_t item_bytes;
    uint64_t shape[KVCI_RANK];
    unsigned rank;
};

static void emit(struct walk *walk, const void *bytes, size_t count)
{
    if (walk->out != NULL) {
        memcpy(walk->out + walk->out_bytes, bytes, count);
    }
    walk->out_bytes += count;
}

static void replace_number(struct walk *walk, const struct kvci_json_token *old, uint64_t value)
{
    char digits[NUMBER_BYTES];
    int count = snprintf(digits, sizeof(digits), "%llu", (unsigned long long)value);
    emit(walk, walk->text + walk->copied, old->offset - walk->copied);
    emit(walk, digits, (size_t)count);
    walk->copied = old->offset + old->bytes;
    walk->changed = true;
}

static void take_dtype(struct walk *walk)
{
    struct kvci_json_token token;
    size_t end = 0;
    if (!kvci_json_next(&walk->scan, &token) || !kvci_json_skip(&walk->scan, &token, &end)) {
        return;
    }
    const struct kvci_dtype *dtype =
        token.type == KVCI_JSON_STRING ? kvci_dtype_find(token.text, token.bytes) : NULL;
    walk->item_bytes = dtype != NULL ? dtype->item_bytes : 0;
}

static void take_shape(struct walk *walk)
{
    struct kvci_json_token token;
    size_t end = 0;
    if (!kvci_json_next(&walk->scan, &token) || token.type != KVCI_JSON_ARRAY) {
        return;
    }
    while (kvci_json_next(&walk->scan, &token) && token.type != KVCI_JSON_ARRAY_END) {
        bool size = token.type == KVCI_JSON_INTEGER && token.integer > 0;
        if (!kvci_json_skip(&walk->scan, &token, &end)) {
            return;
        }
        if (walk->rank < KVCI_RANK) {
            walk->shape[walk->rank] = size ? (uint64_t)token.integer : 0;
        }
        walk->rank++;
    }
}

/* The row-major stride of a dimension; false when a product overflows. */
static bool row_major(const struct walk *walk, unsigned dimension, uint64_t *ret_stride)
{
    uint64_t stride = walk->item_bytes;
    for (unsigned i = dimension + 1; i < KVCI_RANK; i++) {
        if (!kvci_mul(stride, walk->shape[i], &stride)) {
            return false;
        }
    }
    *ret_stride = stride;
    return true;
}

static void take_strides(struct walk *walk)
{
    struct kvci_json_token token;
    size_t end = 0;
    if (!kvci_json_next(&walk->scan, &token) || token.type != KVCI_JSON_ARRAY) {
        return;
    }
    unsigned dimension = 0;
    bool known = walk->rank == KVCI_RANK && walk->item_bytes != 0;
    while (kvci_json_next(&walk->scan, &token) && token.type != KVCI_JSON_ARRAY_END) {
        uint64_t stride = 0;
        if (known && dimension < KVCI_RANK && token.type == KVCI_JSON_INTEGER &&
            walk->shape[dimension] == 1 && row_major(walk, dimension, &stride) &&
            (token.integer < 0 || (uint64_t)token.integer != stride)) {
            replace_number(walk, &token, stride);
        }
        if (!kvci_json_skip(&walk->scan, &token, &end)) {
            return;
        }
        dimension++;
    }
}

/* Members that have another type than the schema asks for are left for the schema to refuse. */
static void take_record(struct walk *walk)
{
    struct kvci_json_token token;
    size_t end = 0;
    walk->item_bytes = 0;
    walk->rank = 0;
    while (kvci_json_next(&walk->scan, &token) && token.type == KVCI_JSON_KEY) {
        if (kvci_json_equals(token.text, token.bytes, "dtype")) {
            take_dtype(walk);
        } else if (kvci_json_equals(token.text, token.bytes, "shape")) {
            take_shape(walk);
        } else if (kvci_json_equals(token.text, token.bytes, "strides")) {
            take_strides(walk);
        } else if (!kvci_json_next(&walk->scan, &token) ||
                   !kvci_json_skip(&walk->scan, &token, &end)) {
            return;
        }
    }
}

/* Enters the value of a member of the object that the scanner is in; other members are skipped.
 * False when there is none of that name and type. */
static bool enter(struct kvci_json *scan, const char *name, enum kvci_json_type type)
{
    struct kvci_json_token token;
    size_t end = 0;
    while (kvci_json_next(scan, &token) && token.type == KVCI_JSON_KEY) {
        bool wanted = kvci_json_equals(token.text, token.bytes, name);
        if (!kvci_json_next(scan, &token)) {
            return false;
        }
        if (wanted) {
            return token.type == type;
        }
        if (!kvci_json_skip(scan, &token, &end)) {
            return false;
        }
    }
    return false;
}

static void walk_text(struct walk *walk, const uint8_t *text, size_t bytes)
{
    struct kvci_json_token token;
    size_t end = 0;
    walk->text = text;
    kvci_json_init(&walk->scan, text, bytes, KVCI_JSON_STRICT, UINT64_MAX);
    if (!kvci_json_next(&walk->scan, &token) || token.type != KVCI_JSON_OBJECT ||
        !enter(&walk->scan, "tensor_manifest", KVCI_JSON_OBJECT) ||
        !enter(&walk->scan, "tensors", KVCI_JSON_ARRAY)) {
        return;
    }
    while (kvci_json_next(&walk->scan, &token) && token.type != KVCI_JSON_ARRAY_END &&
           token.type != KVCI_JSON_END) {
        if (token.type == KVCI_JSON_OBJECT) {
            take_record(walk);
        } else if (!kvci_json_skip(&walk->scan, &token, &end)) {
            break;
        }
    }
    emit(walk, text + walk->copied, bytes - walk->copied);
}

bool kvci_strides_normalize(const uint8_t *text, size_t bytes,
                            const struct kvc_allocator *allocator, uint8_t **ret_text,
                            size_t *ret_bytes)
{
    struct walk count = {0};
    *ret_text = NULL;
    walk_text(&count, text, bytes);
    if (!count.changed) {
        return true;
    }
    struct walk copy = {0};
    copy.out = kvci_alloc(allocator, count.out_bytes);
    if (copy.out == NULL) {
        return false;
    }
    walk_text(&copy, text, bytes);
    *ret_text = copy.out;
    *ret_bytes = copy.out_bytes;
    return true;
}
