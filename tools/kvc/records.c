/* records.c: names the members in which records of manifest version 2 differ.
 * SPDX-License-Identifier: Apache-2.0 */
#include "records.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "safe_text.h"

#define VALUE_COLUMNS 120

bool records_load(struct json_piece metadata, uint32_t count, struct records *ret_records)
{
    struct json_piece manifest;
    struct json_piece tensors;
    struct json_members items;
    *ret_records = (struct records){NULL, 0};
    ret_records->pieces = calloc(count > 0 ? count : 1, sizeof(*ret_records->pieces));
    if (ret_records->pieces == NULL) {
        return false;
    }
    if (json_find(metadata, "tensor_manifest", strlen("tensor_manifest"), &manifest) &&
        json_find(manifest, "tensors", strlen("tensors"), &tensors)) {
        json_items_start(&items, tensors);
        while (ret_records->count < count &&
               json_items_next(&items, &ret_records->pieces[ret_records->count])) {
            ret_records->count++;
        }
    }
    return true;
}

static void put_both(struct json_piece a, struct json_piece b)
{
    (void)put_safe(stdout, a.text, a.bytes, VALUE_COLUMNS);
    (void)fputs(" in A, ", stdout);
    (void)put_safe(stdout, b.text, b.bytes, VALUE_COLUMNS);
    (void)fputs(" in B\n", stdout);
}

/* Records of one table have the same members, in the same order. */
static void compare_records(const char *path, uint32_t index, struct json_piece a,
                            struct json_piece b)
{
    struct json_members members_a;
    struct json_members members_b;
    struct json_piece name;
    struct json_piece value_a;
    struct json_piece value_b;
    json_members_start(&members_a, a);
    json_members_start(&members_b, b);
    while (json_members_next(&members_a, &name, &value_a) &&
           json_members_next(&members_b, &name, &value_b)) {
        if (!json_same(value_a, value_b)) {
            (void)printf("field %s[%" PRIu32 "].%.*s: ", path, index, (int)name.bytes - 2,
                         name.text + 1);
            put_both(value_a, value_b);
        }
    }
}

static void put_alone(const char *path, uint32_t index, char side, struct json_piece record)
{
    (void)printf("field %s[%" PRIu32 "]: only in %c: ", path, index, side);
    (void)put_safe(stdout, record.text, record.bytes, VALUE_COLUMNS);
    (void)fputc('\n', stdout);
}

void records_compare(const char *path, struct json_piece a, struct json_piece b)
{
    struct json_members items_a;
    struct json_members items_b;
    struct json_piece record_a;
    struct json_piece record_b;
    json_items_start(&items_a, a);
    json_items_start(&items_b, b);
    for (uint32_t i = 0;; i++) {
        bool in_a = json_items_next(&items_a, &record_a);
        bool in_b = json_items_next(&items_b, &record_b);
        if (!in_a && !in_b) {
            break;
        }
        if (in_a && in_b) {
            compare_records(path, i, record_a, record_b);
        } else {
            put_alone(path, i, in_a ? 'A' : 'B', in_a ? record_a : record_b);
        }
    }
}

bool records_differ(const struct records *a, uint32_t index_a, const struct records *b,
                    uint32_t index_b, const char *tensor)
{
    static const char *const names[] = {"axes", "packing"};
    bool differ = false;
    if (index_a >= a->count || index_b >= b->count) {
        return false;
    }
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct json_piece value_a;
        struct json_piece value_b;
        size_t bytes = strlen(names[i]);
        if (json_find(a->pieces[index_a], names[i], bytes, &value_a) &&
            json_find(b->pieces[index_b], names[i], bytes, &value_b) &&
            !json_same(value_a, value_b)) {
            differ = true;
            (void)printf("tensor %s: %s ", tensor, names[i]);
            put_both(value_a, value_b);
        }
    }
    return differ;
}
