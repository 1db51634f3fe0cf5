/* json_out.h: writes JSON on one line, in ASCII wherever a terminal could be hurt.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVC_JSON_OUT_H
#define KVC_JSON_OUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "json_text.h"

/* JSON being written. Values and members follow each other; commas come by themselves. */
struct json_out {
    FILE *stream;
    bool comma; /* the next key or value needs one before it */
};

void json_start(struct json_out *out, FILE *stream);

/* Write `{`, `}`, `[` or `]`. */
void json_open(struct json_out *out, char bracket);
void json_close(struct json_out *out, char bracket);

void json_key(struct json_out *out, const char *name);

/* Text of any origin. Bytes that are not UTF-8 become U+FFFD. */
void json_string(struct json_out *out, const char *text, size_t bytes);
void json_text(struct json_out *out, const char *text);

void json_number(struct json_out *out, uint64_t number);
void json_bool(struct json_out *out, bool value);
void json_null(struct json_out *out);

/* A value that is JSON already. Its spelling is kept, except that characters which are unsafe on a
 * terminal become \u escapes. */
void json_raw(struct json_out *out, struct json_piece value);

/* Ends the line. */
void json_end(struct json_out *out);

#endif
