/* json_text.c: finds its way in JSON that the library has already judged.
 * SPDX-License-Identifier: Apache-2.0 */
#include "json_text.h"

#include <string.h>

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Both return the place after what they skip, or NULL where the text ends too early. */
static const char *skip_string(const char *at, const char *end)
{
    for (at++; at < end; at++) {
        if (*at == '\\') {
            at++;
        } else if (*at == '"') {
            return at + 1;
        }
    }
    return NULL;
}

/* Brackets are counted, not matched: that a `[` is closed by a `]` is the library's business. */
static const char *skip_value(const char *at, const char *end)
{
    size_t depth = 0;
    while (at < end) {
        char c = *at;
        if (c == '"') {
            at = skip_string(at, end);
            if (at == NULL) {
                return NULL;
            }
        } else if (c == '{' || c == '[') {
            depth++;
            at++;
            continue;
        } else if (c == '}' || c == ']') {
            if (depth == 0) {
                return NULL;
            }
            depth--;
            at++;
        } else if (c == ',' || c == ':' || is_space(c)) {
            if (depth == 0) {
                return NULL;
            }
            at++;
            continue;
        } else {
            while (at < end && !is_space(*at) && strchr("{}[],:\"", *at) == NULL) {
                at++;
            }
        }
        if (depth == 0) {
            return at;
        }
    }
    return NULL;
}

void json_members_start(struct json_members *members, struct json_piece object)
{
    members->at = object.text;
    members->end = object.text;
    if (object.bytes > 2 && object.text[0] == '{') {
        members->at = object.text + 1;
        members->end = object.text + object.bytes - 1;
    }
}

bool json_members_next(struct json_members *members, struct json_piece *ret_name,
                       struct json_piece *ret_value)
{
    if (members->at >= members->end) {
        return false;
    }
    const char *name_end = skip_string(members->at, members->end);
    if (name_end == NULL || name_end >= members->end) {
        return false;
    }
    const char *value = name_end + 1;
    const char *value_end = skip_value(value, members->end);
    if (value_end == NULL) {
        return false;
    }
    *ret_name = (struct json_piece){members->at, (size_t)(name_end - members->at)};
    *ret_value = (struct json_piece){value, (size_t)(value_end - value)};
    members->at = value_end < members->end ? value_end + 1 : value_end;
    return true;
}

void json_items_start(struct json_members *items, struct json_piece array)
{
    items->at = array.text;
    items->end = array.text;
    if (array.bytes > 2 && array.text[0] == '[') {
        items->at = array.text + 1;
        items->end = array.text + array.bytes - 1;
    }
}

bool json_items_next(struct json_members *items, struct json_piece *ret_item)
{
    if (items->at >= items->end) {
        return false;
    }
    const char *item_end = skip_value(items->at, items->end);
    if (item_end == NULL) {
        return false;
    }
    *ret_item = (struct json_piece){items->at, (size_t)(item_end - items->at)};
    items->at = item_end < items->end ? item_end + 1 : item_end;
    return true;
}

bool json_same(struct json_piece a, struct json_piece b)
{
    return a.bytes == b.bytes && memcmp(a.text, b.text, a.bytes) == 0;
}

static unsigned hex_digit(char c)
{
    return (unsigned)(c <= '9' ? c - '0' : c - 'a' + 10);
}

/* Decodes the unit at `at`; canonical escapes stand for one byte each. Returns its bytes. */
static size_t decode_unit(const char *at, char *ret_byte)
{
    static const char letters[] = "btnfr";
    static const char controls[] = "\b\t\n\f\r";
    if (at[0] != '\\') {
        *ret_byte = at[0];
        return 1;
    }
    if (at[1] == 'u') {
        *ret_byte = (char)(hex_digit(at[4]) * 16 + hex_digit(at[5]));
        return 6;
    }
    const char *letter = strchr(letters, at[1]);
    if (letter == NULL) {
        *ret_byte = at[1];
    } else {
        *ret_byte = controls[letter - letters];
    }
    return 2;
}

size_t json_decode(struct json_piece string, char *ret_text)
{
    size_t length = 0;
    for (size_t at = 1; at + 1 < string.bytes;) {
        at += decode_unit(string.text + at, &ret_text[length]);
        length++;
    }
    return length;
}

static bool same_name(struct json_piece string, const char *name, size_t name_bytes)
{
    size_t length = 0;
    for (size_t at = 1; at + 1 < string.bytes; length++) {
        char byte = 0;
        at += decode_unit(string.text + at, &byte);
        if (length == name_bytes || name[length] != byte) {
            return false;
        }
    }
    return length == name_bytes;
}

bool json_find(struct json_piece object, const char *name, size_t name_bytes,
               struct json_piece *ret_value)
{
    struct json_members members;
    struct json_piece found;
    json_members_start(&members, object);
    while (json_members_next(&members, &found, ret_value)) {
        if (same_name(found, name, name_bytes)) {
            return true;
        }
    }
    return false;
}

bool json_is_one_value(struct json_piece text)
{
    const char *at = text.text;
    const char *end = text.text + text.bytes;
    while (at < end && is_space(*at)) {
        at++;
    }
    if (at == end) {
        return false;
    }
    at = skip_value(at, end);
    while (at != NULL && at < end && is_space(*at)) {
        at++;
    }
    return at == end;
}
