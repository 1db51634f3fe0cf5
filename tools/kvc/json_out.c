/* json_out.c: writes JSON on one line, in ASCII wherever a terminal could be hurt.
 * SPDX-License-Identifier: Apache-2.0 */
#include "json_out.h"

#include <inttypes.h>
#include <string.h>

#include "safe_text.h"

void json_start(struct json_out *out, FILE *stream)
{
    out->stream = stream;
    out->comma = false;
}

static void before_value(struct json_out *out)
{
    if (out->comma) {
        (void)fputc(',', out->stream);
    }
    out->comma = true;
}

void json_open(struct json_out *out, char bracket)
{
    before_value(out);
    (void)fputc(bracket, out->stream);
    out->comma = false;
}

void json_close(struct json_out *out, char bracket)
{
    (void)fputc(bracket, out->stream);
    out->comma = true;
}

static void put_escape(FILE *stream, uint32_t point)
{
    if (point >= 0x10000) {
        (void)fprintf(stream, "\\u%04" PRIx32 "\\u%04" PRIx32,
                      (uint32_t)(0xD800 + ((point - 0x10000) >> 10)),
                      (uint32_t)(0xDC00 + ((point - 0x10000) & 0x3FF)));
    } else {
        (void)fprintf(stream, "\\u%04" PRIx32, point);
    }
}

static void put_string(FILE *stream, const char *text, size_t bytes)
{
    (void)fputc('"', stream);
    for (size_t at = 0; at < bytes;) {
        uint32_t point = 0;
        size_t length = utf8_decode(text + at, bytes - at, &point);
        if (length == 0) {
            (void)fputs("\\ufffd", stream);
            length = 1;
        } else if (point == '"' || point == '\\') {
            (void)fprintf(stream, "\\%c", (char)point);
        } else if (unsafe_point(point)) {
            put_escape(stream, point);
        } else {
            (void)fwrite(text + at, 1, length, stream);
        }
        at += length;
    }
    (void)fputc('"', stream);
}

void json_key(struct json_out *out, const char *name)
{
    before_value(out);
    put_string(out->stream, name, strlen(name));
    (void)fputc(':', out->stream);
    out->comma = false;
}

void json_string(struct json_out *out, const char *text, size_t bytes)
{
    before_value(out);
    put_string(out->stream, text, bytes);
}

void json_text(struct json_out *out, const char *text)
{
    json_string(out, text, strlen(text));
}

void json_number(struct json_out *out, uint64_t number)
{
    before_value(out);
    (void)fprintf(out->stream, "%" PRIu64, number);
}

void json_bool(struct json_out *out, bool value)
{
    before_value(out);
    (void)fputs(value ? "true" : "false", out->stream);
}

void json_null(struct json_out *out)
{
    before_value(out);
    (void)fputs("null", out->stream);
}

void json_raw(struct json_out *out, struct json_piece value)
{
    before_value(out);
    for (size_t at = 0; at < value.bytes;) {
        uint32_t point = 0;
        size_t length = utf8_decode(value.text + at, value.bytes - at, &point);
        if (length == 0) {
            (void)fputs("\\ufffd", out->stream);
            length = 1;
        } else if (point < 0x20) {
            /* White space between tokens: a line end would break the line in two. */
            (void)fputc(' ', out->stream);
        } else if (unsafe_point(point)) {
            put_escape(out->stream, point);
        } else {
            (void)fwrite(value.text + at, 1, length, out->stream);
        }
        at += length;
    }
}

void json_end(struct json_out *out)
{
    (void)fputc('\n', out->stream);
    out->comma = false;
}
