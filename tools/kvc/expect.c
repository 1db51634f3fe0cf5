/* expect.c: the demands of --expect and their comparison with a file.
 * SPDX-License-Identifier: Apache-2.0 */
#include "expect.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json_out.h"
#include "json_text.h"
#include "report.h"
#include "safe_text.h"

/* The library reads 16 levels, and the value is one of them. */
#define MOST_LEVELS 15

static bool is_utf8(const char *text)
{
    size_t bytes = strlen(text);
    for (size_t at = 0; at < bytes;) {
        uint32_t point = 0;
        size_t length = utf8_decode(text + at, bytes - at, &point);
        if (length == 0) {
            return false;
        }
        at += length;
    }
    return true;
}

int expectation_parse(struct expectation *expectation, const char *command, const char *text)
{
    const char *equals = strchr(text, '=');
    if (equals == NULL || equals == text) {
        return usage_error(command, "--expect %.200s: expected field=value, as in rope_theta=10000",
                           text);
    }
    if (!is_utf8(text)) {
        return usage_error(command, "--expect %.200s is not UTF-8", text);
    }
    size_t levels = 1;
    for (const char *at = text; at < equals; at++) {
        bool starts = at == text || at[-1] == '.';
        if (*at == '.' && (starts || at + 1 == equals)) {
            return usage_error(command, "--expect %.200s: a part of the path is empty", text);
        }
        levels += *at == '.';
    }
    if (levels > MOST_LEVELS) {
        return usage_error(command, "--expect %.200s: the path has more than %d parts", text,
                           MOST_LEVELS);
    }
    *expectation = (struct expectation){text, (size_t)(equals - text), equals + 1};
    return CODE_GOOD;
}

/* Finds the next member of the path in an object. A name may have dots itself, so that the longest
 * one that exists is taken, and the part before the first dot where none does. Returns the bytes
 * of the name; `ret_value` is empty where there is no such member. */
static size_t next_name(struct json_piece object, const char *path, size_t path_bytes,
                        struct json_piece *ret_value)
{
    size_t first = path_bytes;
    for (size_t length = path_bytes; length > 0; length--) {
        if (length < path_bytes && path[length] != '.') {
            continue;
        }
        if (json_find(object, path, length, ret_value)) {
            return length;
        }
        first = length;
    }
    *ret_value = (struct json_piece){"", 0};
    return first;
}

/* Writes `{"user":{"tenant":` and returns the value that the file has there. */
static struct json_piece write_path(struct json_out *out, const struct expectation *expectation,
                                    struct json_piece metadata, size_t *ret_levels)
{
    struct json_piece value = metadata;
    const char *path = expectation->field;
    size_t left = expectation->field_bytes;
    *ret_levels = 0;
    while (left > 0) {
        size_t length = next_name(value, path, left, &value);
        json_open(out, '{');
        json_string(out, path, length);
        (void)fputc(':', out->stream);
        out->comma = false;
        size_t taken = length < left ? length + 1 : length;
        path += taken;
        left -= taken;
        (*ret_levels)++;
    }
    return value;
}

static enum kvc_status no_memory(struct kvc_error *error)
{
    static const char message[] = "no memory for the comparison with --expect";
    error->status = KVC_E_NO_MEMORY;
    memcpy(error->message, message, sizeof(message));
    return KVC_E_NO_MEMORY;
}

/* Passes differences on. */
struct relay {
    const struct expectation *expectation;
    kvc_difference_fn on_difference;
    void *context;
    const char *value; /* the value of the demand, as JSON */
    size_t value_bytes;
    bool failed;
};

/* Where a part of the path is absent, the library names that part. The whole path and the value say
 * more: they are what stands on the command line. */
static void relay_difference(void *context, const char *field, const char *expected,
                             size_t expected_bytes, const char *found, size_t found_bytes)
{
    struct relay *relay = context;
    const struct expectation *expectation = relay->expectation;
    if (found != NULL || strlen(field) >= expectation->field_bytes) {
        relay->on_difference(relay->context, field, expected, expected_bytes, found, found_bytes);
        return;
    }
    char *path = strndup(expectation->field, expectation->field_bytes);
    if (path == NULL) {
        relay->failed = true;
        return;
    }
    relay->on_difference(relay->context, path, relay->value, relay->value_bytes, NULL, 0);
    free(path);
}

/* Writes the demand as a JSON object, and says where in it the value stands. */
static void write_demand(FILE *stream, const struct expectation *expectation, bool force_text,
                         struct json_piece metadata, size_t ret_value[2])
{
    struct json_out out;
    size_t levels = 0;
    json_start(&out, stream);
    struct json_piece found = write_path(&out, expectation, metadata, &levels);
    struct json_piece value = {expectation->value, strlen(expectation->value)};
    ret_value[0] = (size_t)ftell(stream);
    if (force_text || (found.bytes > 0 && found.text[0] == '"') || !json_is_one_value(value)) {
        json_string(&out, value.text, value.bytes);
    } else {
        (void)fwrite(value.text, 1, value.bytes, stream);
    }
    ret_value[1] = (size_t)ftell(stream) - ret_value[0];
    for (size_t i = 0; i < levels; i++) {
        json_close(&out, '}');
    }
}

static enum kvc_status check(const struct expectation *expectation, bool force_text,
                             const struct kvc_reader *reader, kvc_difference_fn on_difference,
                             void *context, struct kvc_error *error)
{
    char *json = NULL;
    size_t json_bytes = 0;
    size_t value[2] = {0, 0};
    uint64_t metadata_bytes = 0;
    FILE *stream = open_memstream(&json, &json_bytes);
    if (stream == NULL) {
        return no_memory(error);
    }
    struct json_piece metadata = {kvc_reader_metadata(reader, &metadata_bytes), 0};
    metadata.bytes = (size_t)metadata_bytes;
    write_demand(stream, expectation, force_text, metadata, value);
    enum kvc_status status = KVC_OK;
    if (fclose(stream) != 0) {
        status = no_memory(error);
    } else {
        struct relay relay = {expectation,     on_difference, context,
                              json + value[0], value[1],      false};
        status = kvc_reader_identity(reader, json, json_bytes, relay_difference, &relay, error);
        status = relay.failed ? no_memory(error) : status;
    }
    free(json);
    return status;
}

enum kvc_status expectation_check(const struct expectation *expectation,
                                  const struct kvc_reader *reader, kvc_difference_fn on_difference,
                                  void *context, struct kvc_error *error)
{
    enum kvc_status status = check(expectation, false, reader, on_difference, context, error);
    if (status == KVC_E_JSON || status == KVC_E_SCHEMA) {
        /* `--expect dtype=f16` has no quotes where the file has no string to compare with. */
        status = check(expectation, true, reader, on_difference, context, error);
    }
    return status;
}
