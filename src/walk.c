/* walk.c: takes a manifest's members one by one, and refuses them with their paths; pure.
 * SPDX-License-Identifier: Apache-2.0 */
#include "walk.h"

#include <stdio.h>
#include <string.h>

#include "status.h"

#include "ban.h"

#define NAME_BYTES 48

void kvci_walk_start(struct kvci_walk *walk, const struct kvci_metadata *metadata, uint64_t offset,
                     struct kvc_error *error)
{
    struct kvci_span span = metadata->spans[KVCI_MEMBER_TENSOR_MANIFEST];
    walk->metadata = metadata;
    walk->offset = offset + span.offset;
    walk->array = NULL;
    walk->index = 0;
    walk->part = NULL;
    walk->error = error;
    kvci_json_init(&walk->scan, metadata->text + span.offset, span.bytes, KVCI_JSON_STRICT,
                   UINT64_MAX);
}

static void write_path(const struct kvci_walk *walk, const char *field,
                       char ret_path[KVCI_PATH_BYTES])
{
    char record[NAME_BYTES] = "";
    const char *part = walk->part != NULL ? walk->part : "";
    if (walk->array != NULL) {
        (void)snprintf(record, sizeof(record), ".%s[%u]", walk->array, walk->index);
    }
    (void)snprintf(ret_path, KVCI_PATH_BYTES, "tensor_manifest%s%s%s%s%s", record,
                   part[0] == '\0' ? "" : ".", part, field[0] == '\0' ? "" : ".", field);
}

enum kvc_status kvci_walk_refuse(const struct kvci_walk *walk, enum kvc_status status,
                                 const char *field, const char *expected,
                                 const struct kvci_json_token *token)
{
    char path[KVCI_PATH_BYTES];
    write_path(walk, field, path);
    return kvci_metadata_refuse(walk->error, status, walk->offset, path, expected, token);
}

enum kvc_status kvci_walk_refuse_number(const struct kvci_walk *walk, enum kvc_status status,
                                        const char *field, uint64_t expected,
                                        const struct kvci_json_token *token)
{
    char text[NAME_BYTES];
    (void)snprintf(text, sizeof(text), "%llu", (unsigned long long)expected);
    return kvci_walk_refuse(walk, status, field, text, token);
}

enum kvc_status kvci_walk_refuse_as(const struct kvci_walk *walk, enum kvc_status status,
                                    const char *field, const struct kvci_json_token *at,
                                    const char *is, const char *expected)
{
    char path[KVCI_PATH_BYTES];
    write_path(walk, field, path);
    (void)kvci_fail(walk->error, status, walk->offset + at->offset,
                    "metadata member %s %s, expected %s", path, is, expected);
    kvci_error_field(walk->error, path, strlen(path));
    kvci_error_expected(walk->error, "%s", expected);
    kvci_error_found(walk->error, "%s", is);
    return status;
}

enum kvc_status kvci_walk_refuse_count(const struct kvci_walk *walk, enum kvc_status status,
                                       const char *field, const struct kvci_json_token *at,
                                       uint64_t found, uint64_t expected, const char *what,
                                       const char *why)
{
    char is[KVCI_PATH_BYTES];
    char wanted[KVCI_PATH_BYTES];
    (void)snprintf(is, sizeof(is), "has %s%llu %s", found > expected ? "more than " : "",
                   (unsigned long long)(found > expected ? expected : found), what);
    (void)snprintf(wanted, sizeof(wanted), "%llu%s", (unsigned long long)expected, why);
    return kvci_walk_refuse_as(walk, status, field, at, is, wanted);
}

enum kvc_status kvci_walk_next(struct kvci_walk *walk, struct kvci_json_token *ret_token)
{
    if (kvci_json_next(&walk->scan, ret_token)) {
        return KVC_OK;
    }
    return kvci_fail(walk->error, KVC_E_JSON, walk->offset + walk->scan.problem_offset,
                     "the metadata are not canonical JSON: %s", walk->scan.problem);
}

static bool key_known(const struct kvci_json_token *key, const struct kvci_fields *fields)
{
    for (int i = 0; i < fields->count; i++) {
        if (kvci_json_equals(key->text, key->bytes, fields->names[i])) {
            return true;
        }
    }
    return false;
}

static enum kvc_status refuse_unknown(const struct kvci_walk *walk,
                                      const struct kvci_json_token *key)
{
    char name[NAME_BYTES];
    const bool second = walk->metadata->manifest_version == 2;
    kvci_copy_text(name, sizeof(name), (const char *)key->text, key->bytes);
    return kvci_walk_refuse_as(walk, KVC_E_SCHEMA, name, key,
                               second ? "is not known to manifest version 2"
                                      : "is not known to manifest version 1",
                               "it to be absent");
}

/* Members are in ascending order, so that another known key means that this one is missing. */
enum kvc_status kvci_walk_key(struct kvci_walk *walk, const struct kvci_fields *fields, int wanted)
{
    struct kvci_json_token token;
    const char *name = fields->names[wanted];
    enum kvc_status status = kvci_walk_next(walk, &token);
    if (status != KVC_OK) {
        return status;
    }
    if (token.type == KVCI_JSON_KEY && kvci_json_equals(token.text, token.bytes, name)) {
        return KVC_OK;
    }
    if (token.type == KVCI_JSON_KEY && !key_known(&token, fields)) {
        return refuse_unknown(walk, &token);
    }
    return kvci_walk_refuse_as(walk, KVC_E_SCHEMA, name, &token, "is missing", "it to be there");
}

enum kvc_status kvci_walk_end(struct kvci_walk *walk)
{
    struct kvci_json_token token;
    enum kvc_status status = kvci_walk_next(walk, &token);
    if (status != KVC_OK) {
        return status;
    }
    return token.type == KVCI_JSON_KEY ? refuse_unknown(walk, &token) : KVC_OK;
}

enum kvc_status kvci_walk_any_object(struct kvci_walk *walk, const char *field)
{
    struct kvci_json_token first;
    struct kvci_json_token token;
    enum kvc_status status = kvci_walk_next(walk, &first);
    if (status == KVC_OK && first.type != KVCI_JSON_OBJECT) {
        return kvci_walk_refuse(walk, KVC_E_SCHEMA, field, "an object", &first);
    }
    do {
        status = status == KVC_OK ? kvci_walk_next(walk, &token) : status;
    } while (status == KVC_OK && token.depth != first.depth);
    return status;
}

enum kvc_status kvci_walk_string(struct kvci_walk *walk, const char *field, unsigned most,
                                 struct kvci_json_token *ret_token)
{
    char expected[NAME_BYTES];
    enum kvc_status status = kvci_walk_next(walk, ret_token);
    if (status != KVC_OK) {
        return status;
    }
    size_t bytes = ret_token->type == KVCI_JSON_STRING
                       ? kvci_json_decoded_bytes(ret_token->text, ret_token->bytes)
                       : 0;
    if (bytes < 1 || bytes > most) {
        (void)snprintf(expected, sizeof(expected), "a string of 1 to %u bytes", most);
        return kvci_walk_refuse(walk, KVC_E_SCHEMA, field, expected, ret_token);
    }
    return KVC_OK;
}

enum kvc_status kvci_walk_text(struct kvci_walk *walk, const char *field, const char *wanted)
{
    struct kvci_json_token token;
    char expected[NAME_BYTES];
    enum kvc_status status = kvci_walk_next(walk, &token);
    if (status != KVC_OK) {
        return status;
    }
    if (token.type != KVCI_JSON_STRING || !kvci_json_equals(token.text, token.bytes, wanted)) {
        (void)snprintf(expected, sizeof(expected), "\"%s\"", wanted);
        return kvci_walk_refuse(walk, KVC_E_SCHEMA, field, expected, &token);
    }
    return KVC_OK;
}

enum kvc_status kvci_walk_integer(struct kvci_walk *walk, const char *field, int64_t least,
                                  int64_t most, struct kvci_json_token *ret_token)
{
    char expected[2 * NAME_BYTES];
    enum kvc_status status = kvci_walk_next(walk, ret_token);
    if (status != KVC_OK) {
        return status;
    }
    if (ret_token->type != KVCI_JSON_INTEGER || ret_token->integer < least ||
        ret_token->integer > most) {
        (void)snprintf(expected, sizeof(expected), "an integer from %lld to %lld", (long long)least,
                       (long long)most);
        return kvci_walk_refuse(walk, KVC_E_SCHEMA, field, expected, ret_token);
    }
    return KVC_OK;
}
