/* records.h: names the members in which records of manifest version 2 differ.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVC_RECORDS_H
#define KVC_RECORDS_H

#include <stdbool.h>
#include <stdint.h>

#include "json_text.h"

/* The tensor records of a manifest by index; no pieces for other manifests than version 2. */
struct records {
    struct json_piece *pieces;
    uint32_t count;
};

/* Finds the records of tensors in the metadata. False when there is no memory; the caller frees
 * `ret_records->pieces`. */
bool records_load(struct json_piece metadata, uint32_t count, struct records *ret_records);

/* Compares two arrays of records, item by item and member by member, and prints a line for each
 * difference; `path` is that of the array. */
void records_compare(const char *path, struct json_piece a, struct json_piece b);

/* Compares two tensors of the same name in what neither their form nor their bytes show, and prints
 * a line for each difference. Returns whether there was one. */
bool records_differ(const struct records *a, uint32_t index_a, const struct records *b,
                    uint32_t index_b, const char *tensor);

#endif
