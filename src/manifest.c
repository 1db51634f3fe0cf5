/* manifest.c: the tensor manifest, and the geometry of the payload; pure.
 * SPDX-License-Identifier: Apache-2.0 */
#include "manifest.h"

#include <stdio.h>
#include <string.h>

#include "checked.h"
#include "status.h"

#include "ban.h"

#define PATH_BYTES 96

/* What a walk through the manifest carries from step to step. Places in tokens count from the
 * manifest's first byte. */
struct walk {
    struct kvci_json scan;
    const struct kvci_metadata *metadata;
    struct kvci_geometry *geometry;
    uint64_t offset;
    uint32_t index; /* of the record, while inside one */
    bool in_record;
    struct kvc_error *error;
};

enum { DTYPE, KIND, LAYER, NAME, NBYTES, OFFSET, SHAPE, STRIDES, RECORD_FIELDS };

static const char *const record_fields[RECORD_FIELDS] = {
    "dtype", "kind", "layer", "name", "nbytes", "offset", "shape", "strides",
};

enum { ATTENTION_TYPE, BATCH_SIZE, BYTE_ORDER, CACHE_CLASS, TENSORS, VERSION, MANIFEST_FIELDS };

static const char *const manifest_fields[MANIFEST_FIELDS] = {
    "attention_type", "batch_size", "byte_order", "cache_class", "tensors", "version",
};

static void write_path(const struct walk *walk, const char *field, char ret_path[PATH_BYTES])
{
    const char *dot = field[0] == '\0' ? "" : ".";
    if (walk->in_record) {
        (void)snprintf(ret_path, PATH_BYTES, "tensor_manifest.tensors[%u]%s%s", walk->index, dot,
                       field);
    } else {
        (void)snprintf(ret_path, PATH_BYTES, "tensor_manifest%s%s", dot, field);
    }
}

static enum kvc_status refuse(const struct walk *walk, enum kvc_status status, const char *field,
                              const char *expected, const struct kvci_json_token *token)
{
    char path[PATH_BYTES];
    write_path(walk, field, path);
    return kvci_metadata_refuse(walk->error, status, walk->offset, path, expected, token);
}

/* Refuses what no single token shows. `is` is what the member is or has: "is missing". */
static enum kvc_status refuse_as(const struct walk *walk, enum kvc_status status, const char *field,
                                 const struct kvci_json_token *at, const char *is,
                                 const char *expected)
{
    char path[PATH_BYTES];
    write_path(walk, field, path);
    (void)kvci_fail(walk->error, status, walk->offset + at->offset,
                    "metadata member %s %s, expected %s", path, is, expected);
    kvci_error_field(walk->error, path, strlen(path));
    kvci_error_expected(walk->error, "%s", expected);
    kvci_error_found(walk->error, "%s", is);
    return status;
}

/* Refuses an object or array that has another number of things in it than it must. */
static enum kvc_status refuse_count(const struct walk *walk, enum kvc_status status,
                                    const char *field, const struct kvci_json_token *at,
                                    uint64_t found, uint64_t expected, const char *what,
                                    const char *why)
{
    char is[PATH_BYTES];
    char wanted[PATH_BYTES];
    (void)snprintf(is, sizeof(is), "has %s%llu %s", found > expected ? "more than " : "",
                   (unsigned long long)(found > expected ? expected : found), what);
    (void)snprintf(wanted, sizeof(wanted), "%llu%s", (unsigned long long)expected, why);
    return refuse_as(walk, status, field, at, is, wanted);
}

static bool next(struct walk *walk, struct kvci_json_token *ret_token)
{
    return kvci_json_next(&walk->scan, ret_token);
}

/* The spelling was judged before, so the scanner can only fail on a defect of this library. */
static enum kvc_status refuse_scan(const struct walk *walk)
{
    return kvci_fail(walk->error, KVC_E_JSON, walk->offset + walk->scan.problem_offset,
                     "the metadata are not canonical JSON: %s", walk->scan.problem);
}

static bool key_known(const struct kvci_json_token *key, const char *const *fields, int count)
{
    for (int i = 0; i < count; i++) {
        if (kvci_json_equals(key->text, key->bytes, fields[i])) {
            return true;
        }
    }
    return false;
}

static enum kvc_status refuse_unknown(const struct walk *walk, const struct kvci_json_token *key)
{
    char name[PATH_BYTES / 2];
    kvci_copy_text(name, sizeof(name), (const char *)key->text, key->bytes);
    return refuse_as(walk, KVC_E_SCHEMA, name, key, "is not known to manifest version 1",
                     "it to be absent");
}

/* Takes the key that must come next. Members are in ascending order, so that another known key
 * means that this one is missing. */
static enum kvc_status take_key(struct walk *walk, const char *const *fields, int count, int wanted)
{
    struct kvci_json_token token;
    if (!next(walk, &token)) {
        return refuse_scan(walk);
    }
    if (token.type == KVCI_JSON_KEY && kvci_json_equals(token.text, token.bytes, fields[wanted])) {
        return KVC_OK;
    }
    if (token.type == KVCI_JSON_KEY && !key_known(&token, fields, count)) {
        return refuse_unknown(walk, &token);
    }
    return refuse_as(walk, KVC_E_SCHEMA, fields[wanted], &token, "is missing", "it to be there");
}

static enum kvc_status take_end(struct walk *walk)
{
    struct kvci_json_token token;
    if (!next(walk, &token)) {
        return refuse_scan(walk);
    }
    return token.type == KVCI_JSON_KEY ? refuse_unknown(walk, &token) : KVC_OK;
}

/* Tells whether a string could stand in some manifest, if not in this place. */
typedef bool (*text_fn)(const struct kvci_json_token *token);

static bool is_text(const struct kvci_json_token *token)
{
    (void)token;
    return true;
}

static bool is_kind(const struct kvci_json_token *token)
{
    return kvci_json_equals(token->text, token->bytes, "key") ||
           kvci_json_equals(token->text, token->bytes, "value");
}

static bool is_dtype(const struct kvci_json_token *token)
{
    return kvci_dtype_find(token->text, token->bytes) != NULL;
}

/* A string that must be `wanted` here. What `possible` allows only contradicts the geometry;
 * without it any other string is wrong in every manifest. */
static enum kvc_status take_text(struct walk *walk, const char *field, text_fn possible,
                                 const char *wanted)
{
    struct kvci_json_token token;
    char expected[PATH_BYTES];
    if (!next(walk, &token)) {
        return refuse_scan(walk);
    }
    (void)snprintf(expected, sizeof(expected), "\"%s\"", wanted);
    if (token.type != KVCI_JSON_STRING) {
        return refuse(walk, KVC_E_SCHEMA, field, expected, &token);
    }
    if (!kvci_json_equals(token.text, token.bytes, wanted)) {
        bool contradicts = possible != NULL && possible(&token);
        return refuse(walk, contradicts ? KVC_E_GEOMETRY : KVC_E_SCHEMA, field, expected, &token);
    }
    return KVC_OK;
}

/* A number below `least` or above `most` is wrong in every manifest; another one but `wanted` only
 * contradicts this file's geometry. */
static enum kvc_status judge_number(const struct walk *walk, const struct kvci_json_token *token,
                                    const char *field, int64_t least, int64_t most, uint64_t wanted)
{
    char expected[PATH_BYTES];
    (void)snprintf(expected, sizeof(expected), "%llu", (unsigned long long)wanted);
    if (token->type != KVCI_JSON_INTEGER || token->integer < least || token->integer > most) {
        return refuse(walk, KVC_E_SCHEMA, field, expected, token);
    }
    if ((uint64_t)token->integer != wanted) {
        return refuse(walk, KVC_E_GEOMETRY, field, expected, token);
    }
    return KVC_OK;
}

static enum kvc_status take_number(struct walk *walk, const char *field, int64_t least,
                                   int64_t most, uint64_t wanted)
{
    struct kvci_json_token token;
    if (!next(walk, &token)) {
        return refuse_scan(walk);
    }
    return judge_number(walk, &token, field, least, most, wanted);
}

static enum kvc_status take_numbers(struct walk *walk, int field, const uint64_t *wanted)
{
    struct kvci_json_token token;
    char path[PATH_BYTES / 2];
    if (!next(walk, &token)) {
        return refuse_scan(walk);
    }
    if (token.type != KVCI_JSON_ARRAY) {
        return refuse(walk, KVC_E_SCHEMA, record_fields[field], "an array of 4 integers", &token);
    }
    const struct kvci_json_token array = token;
    for (unsigned i = 0;; i++) {
        if (!next(walk, &token)) {
            return refuse_scan(walk);
        }
        bool end = token.type == KVCI_JSON_ARRAY_END;
        if (end && i == KVCI_RANK) {
            return KVC_OK;
        }
        if (end || i == KVCI_RANK) {
            return refuse_count(walk, KVC_E_SCHEMA, record_fields[field], &array, end ? i : i + 1,
                                KVCI_RANK, "elements", "");
        }
        (void)snprintf(path, sizeof(path), "%s[%u]", record_fields[field], i);
        enum kvc_status status = judge_number(walk, &token, path, 1, KVCI_MAX_INTEGER, wanted[i]);
        if (status != KVC_OK) {
            return status;
        }
    }
}

static enum kvc_status take_record_value(struct walk *walk, int field)
{
    const struct kvci_geometry *geometry = walk->geometry;
    const bool is_key = walk->index % 2 == 0;
    uint64_t strides[KVCI_RANK];
    char name[KVCI_NAME_BYTES];
    switch (field) {
    case DTYPE:
        return take_text(walk, "dtype", is_dtype, walk->metadata->dtype->name);
    case KIND:
        return take_text(walk, "kind", is_kind, is_key ? "key" : "value");
    case LAYER:
        return take_number(walk, "layer", 0, KVCI_MAX_DIMENSION - 1, walk->index / 2);
    case NAME:
        kvci_manifest_name(geometry, walk->index, name);
        return take_text(walk, "name", is_text, name);
    case NBYTES:
        return take_number(walk, "nbytes", 1, KVCI_MAX_INTEGER, geometry->tensor_bytes);
    case OFFSET:
        return take_number(walk, "offset", 0, KVCI_MAX_INTEGER,
                           walk->index * geometry->tensor_bytes);
    case SHAPE:
        return take_numbers(walk, SHAPE, geometry->shape);
    default:
        strides[3] = walk->metadata->dtype->item_bytes;
        for (unsigned i = 3; i > 0; i--) {
            strides[i - 1] = strides[i] * geometry->shape[i];
        }
        return take_numbers(walk, STRIDES, strides);
    }
}

static enum kvc_status take_record(struct walk *walk, const struct kvci_json_token *first)
{
    if (first->type != KVCI_JSON_OBJECT) {
        return refuse(walk, KVC_E_SCHEMA, "", "an object", first);
    }
    for (int field = 0; field < RECORD_FIELDS; field++) {
        enum kvc_status status = take_key(walk, record_fields, RECORD_FIELDS, field);
        if (status == KVC_OK) {
            status = take_record_value(walk, field);
        }
        if (status != KVC_OK) {
            return status;
        }
    }
    return take_end(walk);
}

static enum kvc_status take_tensors(struct walk *walk)
{
    struct kvci_json_token token;
    struct kvci_json_token array;
    uint32_t expected_count = walk->geometry->tensor_count;
    if (!next(walk, &array)) {
        return refuse_scan(walk);
    }
    if (array.type != KVCI_JSON_ARRAY) {
        return refuse(walk, KVC_E_SCHEMA, "tensors", "an array of records", &array);
    }
    uint32_t count = 0;
    for (;;) {
        if (!next(walk, &token)) {
            return refuse_scan(walk);
        }
        if (token.type == KVCI_JSON_ARRAY_END) {
            break;
        }
        if (count == expected_count) {
            return refuse_count(walk, KVC_E_GEOMETRY, "tensors", &array, (uint64_t)count + 1,
                                expected_count, "records", ", two for each of the layers");
        }
        walk->in_record = true;
        walk->index = count;
        enum kvc_status status = take_record(walk, &token);
        walk->in_record = false;
        if (status != KVC_OK) {
            return status;
        }
        count++;
    }
    if (count != expected_count) {
        return refuse_count(walk, KVC_E_GEOMETRY, "tensors", &array, count, expected_count,
                            "records", ", two for each of the layers");
    }
    return KVC_OK;
}

/* All tensors have the shape that the top level gives, so one product serves for all. */
static enum kvc_status compute_sizes(struct walk *walk, uint32_t align_bytes,
                                     const struct kvci_json_token *at)
{
    struct kvci_geometry *geometry = walk->geometry;
    const struct kvci_metadata *metadata = walk->metadata;
    uint64_t bytes = metadata->dtype->item_bytes;
    geometry->tensor_count = 2 * metadata->layers;
    geometry->shape[0] = geometry->batch_size;
    geometry->shape[1] = metadata->kv_heads;
    geometry->shape[2] = metadata->sequence_length;
    geometry->shape[3] = metadata->head_dim;
    bool fits = true;
    for (unsigned i = 0; i < KVCI_RANK; i++) {
        fits = fits && kvci_mul(bytes, geometry->shape[i], &bytes);
    }
    geometry->tensor_bytes = bytes;
    fits = fits && kvci_round_up(bytes, align_bytes, &geometry->stride_bytes) &&
           kvci_mul(geometry->stride_bytes, geometry->tensor_count, &geometry->payload_span) &&
           geometry->payload_span <= KVCI_MAX_FILE_BYTES;
    if (!fits) {
        return refuse(walk, KVC_E_GEOMETRY, "batch_size",
                      "sizes whose payload fits a file of 9007199254740991 bytes", at);
    }
    geometry->payload_span -= geometry->stride_bytes - bytes;
    geometry->payload_bytes = bytes * geometry->tensor_count;
    return KVC_OK;
}

static enum kvc_status take_batch_size(struct walk *walk, uint32_t align_bytes)
{
    struct kvci_json_token token;
    if (!next(walk, &token)) {
        return refuse_scan(walk);
    }
    if (token.type != KVCI_JSON_INTEGER || token.integer < 1 ||
        token.integer > KVCI_MAX_BATCH_SIZE) {
        return refuse(walk, KVC_E_SCHEMA, "batch_size", "an integer from 1 to 2147483647", &token);
    }
    walk->geometry->batch_size = (uint32_t)token.integer;
    return compute_sizes(walk, align_bytes, &token);
}

static void start_walk(struct walk *walk)
{
    struct kvci_span span = walk->metadata->spans[KVCI_MEMBER_TENSOR_MANIFEST];
    kvci_json_init(&walk->scan, walk->metadata->text + span.offset, span.bytes, KVCI_JSON_STRICT,
                   UINT64_MAX);
}

static enum kvc_status take_manifest(struct walk *walk, uint32_t align_bytes)
{
    struct kvci_json_token token;
    enum kvc_status status = KVC_OK;
    start_walk(walk);
    if (!next(walk, &token)) {
        return refuse_scan(walk);
    }
    for (int field = 0; field < MANIFEST_FIELDS && status == KVC_OK; field++) {
        status = take_key(walk, manifest_fields, MANIFEST_FIELDS, field);
        if (status != KVC_OK) {
            break;
        }
        switch (field) {
        case ATTENTION_TYPE:
            status = take_text(walk, "attention_type", NULL, "causal");
            break;
        case BATCH_SIZE:
            status = take_batch_size(walk, align_bytes);
            break;
        case BYTE_ORDER:
            status = take_text(walk, "byte_order", NULL, "little");
            break;
        case CACHE_CLASS:
            status = take_text(walk, "cache_class", NULL, "dynamic");
            break;
        case TENSORS:
            status = take_tensors(walk);
            break;
        default:
            status = take_number(walk, "version", 1, 1, 1);
            break;
        }
    }
    return status == KVC_OK ? take_end(walk) : status;
}

/* Adds what the trailer needs; false when the file would be too large. */
static bool compute_file_bytes(struct kvci_geometry *geometry, size_t metadata_bytes)
{
    const uint64_t chunks = geometry->chunks_per_tensor;
    struct kvci_header header = {.metadata_bytes = metadata_bytes,
                                 .payload_span = geometry->payload_span,
                                 .tensor_count = geometry->tensor_count,
                                 .file_bytes = KVCI_MAX_FILE_BYTES};
    struct kvci_places places;
    geometry->row_values = chunks < 2 ? 0 : chunks * geometry->tensor_count;
    if (!kvci_header_places(&header, &places)) {
        return false;
    }
    geometry->file_bytes = places.trailer_offset + KVCI_DIGEST * geometry->row_values +
                           KVCI_DIGEST * places.digest_count + KVCI_FOOTER_BYTES;
    return geometry->file_bytes <= KVCI_MAX_FILE_BYTES;
}

static void opaque_geometry(uint64_t bytes, struct kvci_geometry *ret_geometry)
{
    ret_geometry->tensor_count = 1;
    ret_geometry->shape[0] = bytes;
    ret_geometry->tensor_bytes = bytes;
    ret_geometry->stride_bytes = bytes;
    ret_geometry->payload_bytes = bytes;
    ret_geometry->payload_span = bytes;
}

enum kvc_status kvci_manifest_parse(const struct kvci_metadata *metadata, uint64_t offset,
                                    uint32_t align_bytes, uint64_t opaque_bytes,
                                    struct kvci_geometry *ret_geometry, struct kvc_error *error)
{
    struct kvci_span span = metadata->spans[KVCI_MEMBER_TENSOR_MANIFEST];
    struct walk walk = {.metadata = metadata,
                        .geometry = ret_geometry,
                        .offset = offset + span.offset,
                        .error = error};
    memset(ret_geometry, 0, sizeof(*ret_geometry));
    if (!metadata->present[KVCI_MEMBER_TENSOR_MANIFEST]) {
        opaque_geometry(opaque_bytes, ret_geometry);
    } else {
        ret_geometry->manifest_version = 1;
        enum kvc_status status = take_manifest(&walk, align_bytes);
        if (status != KVC_OK) {
            return status;
        }
    }
    ret_geometry->chunks_per_tensor = ret_geometry->tensor_bytes / KVCI_CHUNK_BYTES +
                                      (ret_geometry->tensor_bytes % KVCI_CHUNK_BYTES != 0 ? 1 : 0);
    if (!compute_file_bytes(ret_geometry, metadata->bytes)) {
        return kvci_fail(error, KVC_E_GEOMETRY, KVC_NO_OFFSET,
                         "a payload of %llu bytes does not fit a file of at most 9007199254740991 "
                         "bytes",
                         (unsigned long long)ret_geometry->payload_bytes);
    }
    return KVC_OK;
}

static enum kvc_status disagree(struct kvc_error *error, const char *field, uint64_t offset,
                                uint64_t expected, uint64_t found)
{
    (void)kvci_fail(error, KVC_E_GEOMETRY, offset,
                    "header field %s at byte %llu is %llu, but the metadata need %llu", field,
                    (unsigned long long)offset, (unsigned long long)found,
                    (unsigned long long)expected);
    kvci_error_field(error, field, strlen(field));
    kvci_error_expected(error, "%llu", (unsigned long long)expected);
    kvci_error_found(error, "%llu", (unsigned long long)found);
    return KVC_E_GEOMETRY;
}

enum kvc_status kvci_manifest_agrees(const struct kvci_geometry *geometry,
                                     const struct kvci_header *header, struct kvc_error *error)
{
    uint32_t count = geometry->manifest_version == 0 ? 0 : geometry->tensor_count;
    if (header->tensor_count != count) {
        return disagree(error, "tensor_count", KVCI_HEADER_TENSOR_COUNT, count,
                        header->tensor_count);
    }
    if (header->payload_span != geometry->payload_span) {
        return disagree(error, "payload_span", KVCI_HEADER_PAYLOAD_SPAN, geometry->payload_span,
                        header->payload_span);
    }
    if (header->file_bytes != geometry->file_bytes) {
        return disagree(error, "file_bytes", KVCI_HEADER_FILE_BYTES, geometry->file_bytes,
                        header->file_bytes);
    }
    return KVC_OK;
}

void kvci_manifest_name(const struct kvci_geometry *geometry, uint32_t index,
                        char ret_name[KVCI_NAME_BYTES])
{
    ret_name[0] = '\0';
    if (geometry->manifest_version != 0) {
        (void)snprintf(ret_name, KVCI_NAME_BYTES, "layer.%u.%s", index / 2,
                       index % 2 == 0 ? "key" : "value");
    }
}

bool kvci_manifest_find(const struct kvci_geometry *geometry, const char *name, size_t name_bytes,
                        uint32_t *ret_index)
{
    char candidate[KVCI_NAME_BYTES];
    uint64_t layer = 0;
    size_t at = strlen("layer.");
    while (at < name_bytes && name[at] >= '0' && name[at] <= '9' && layer < KVCI_MAX_DIMENSION) {
        layer = 10 * layer + (uint64_t)(name[at] - '0');
        at++;
    }
    /* Both tensors of the layer are spelled out and compared, so that only one spelling counts. */
    for (uint64_t index = 2 * layer; index < 2 * layer + 2; index++) {
        if (index < geometry->tensor_count) {
            kvci_manifest_name(geometry, (uint32_t)index, candidate);
            if (strlen(candidate) == name_bytes && memcmp(candidate, name, name_bytes) == 0) {
                *ret_index = (uint32_t)index;
                return true;
            }
        }
    }
    return false;
}
