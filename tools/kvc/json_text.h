/* json_text.h: finds its way in JSON that the library has already judged.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVC_JSON_TEXT_H
#define KVC_JSON_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* A piece of JSON text, not terminated. */
struct json_piece {
    const char *text;
    size_t bytes;
};

/* Walks over the members of an object, or the items of an array, in canonical spelling. */
struct json_members {
    const char *at;
    const char *end;
};

/* Starts with the first member; what is no object has none. */
void json_members_start(struct json_members *members, struct json_piece object);

/* Returns false after the last member. The name is a JSON string with its quotes. */
bool json_members_next(struct json_members *members, struct json_piece *ret_name,
                       struct json_piece *ret_value);

/* Walks over the items of an array in canonical spelling; what is no array has none. */
void json_items_start(struct json_members *items, struct json_piece array);
bool json_items_next(struct json_members *items, struct json_piece *ret_item);

/* Says whether two pieces have the same spelling. */
bool json_same(struct json_piece a, struct json_piece b);

/* Finds a member of an object in canonical spelling by its name. */
bool json_find(struct json_piece object, const char *name, size_t name_bytes,
               struct json_piece *ret_value);

/* Decodes a string in canonical spelling into `ret_text`, which has room for `string.bytes`, and
 * returns the decoded bytes. */
size_t json_decode(struct json_piece string, char *ret_text);

/* Says whether a text of any origin holds exactly one JSON value, judged by its brackets, quotes
 * and separators only: enough to embed it as a value and leave the rest to the library. */
bool json_is_one_value(struct json_piece text);

#endif
