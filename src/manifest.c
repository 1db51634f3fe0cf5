/* manifest.c: the tensor manifest, of version 1 and in general; pure.
 * SPDX-License-Identifier: Apache-2.0 */
#include "manifest.h"

#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "checked.h"
#include "manifest2.h"
#include "status.h"
#include "walk.h"

#include "ban.h"

#define TEXT_BYTES 96

/* What a walk through a manifest of version 1 needs. All of its tensors are of one size. */
struct judge {
    struct kvci_walk walk;
    struct kvci_geometry *geometry;
    uint64_t shape[KVCI_RANK];
    uint64_t tensor_bytes;
    uint32_t tensor_count;
};

enum { DTYPE, KIND, LAYER, NAME, NBYTES, OFFSET, SHAPE, STRIDES, RECORD_FIELDS };

static const char *const record_names[RECORD_FIELDS] = {
    "dtype", "kind", "layer", "name", "nbytes", "offset", "shape", "strides",
};
static const struct kvci_fields record_fields = {record_names, RECORD_FIELDS};

enum { ATTENTION_TYPE, BATCH_SIZE, BYTE_ORDER, CACHE_CLASS, TENSORS, VERSION, MANIFEST_FIELDS };

static const char *const manifest_names[MANIFEST_FIELDS] = {
    "attention_type", "batch_size", "byte_order", "cache_class", "tensors", "version",
};
static const struct kvci_fields manifest_fields = {manifest_names, MANIFEST_FIELDS};

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
    const struct kvci_dtype *dtype = kvci_dtype_find(token->text, token->bytes);
    return dtype != NULL && dtype->version_1;
}

/* A string that must be `wanted` here. What `possible` allows only contradicts the geometry. */
static enum kvc_status take_text(struct judge *judge, const char *field, text_fn possible,
                                 const char *wanted)
{
    struct kvci_json_token token;
    char expected[TEXT_BYTES];
    enum kvc_status status = kvci_walk_next(&judge->walk, &token);
    if (status != KVC_OK) {
        return status;
    }
    const bool string = token.type == KVCI_JSON_STRING;
    if (string && kvci_json_equals(token.text, token.bytes, wanted)) {
        return KVC_OK;
    }
    (void)snprintf(expected, sizeof(expected), "\"%s\"", wanted);
    return kvci_walk_refuse(&judge->walk,
                            string && possible(&token) ? KVC_E_GEOMETRY : KVC_E_SCHEMA, field,
                            expected, &token);
}

/* A number below `least` or above `most` is wrong in every manifest; another one but `wanted` only
 * contradicts this file's geometry. */
static enum kvc_status judge_number(const struct judge *judge, const struct kvci_json_token *token,
                                    const char *field, int64_t least, int64_t most, uint64_t wanted)
{
    if (token->type != KVCI_JSON_INTEGER || token->integer < least || token->integer > most) {
        return kvci_walk_refuse_number(&judge->walk, KVC_E_SCHEMA, field, wanted, token);
    }
    if ((uint64_t)token->integer != wanted) {
        return kvci_walk_refuse_number(&judge->walk, KVC_E_GEOMETRY, field, wanted, token);
    }
    return KVC_OK;
}

static enum kvc_status take_number(struct judge *judge, const char *field, int64_t least,
                                   int64_t most, uint64_t wanted)
{
    struct kvci_json_token token;
    enum kvc_status status = kvci_walk_next(&judge->walk, &token);
    return status == KVC_OK ? judge_number(judge, &token, field, least, most, wanted) : status;
}

static enum kvc_status take_numbers(struct judge *judge, int field, const uint64_t *wanted)
{
    struct kvci_json_token array;
    struct kvci_json_token token;
    const char *name = record_names[field];
    char path[TEXT_BYTES / 2];
    enum kvc_status status = kvci_walk_next(&judge->walk, &array);
    if (status == KVC_OK && array.type != KVCI_JSON_ARRAY) {
        return kvci_walk_refuse(&judge->walk, KVC_E_SCHEMA, name, "an array of 4 integers", &array);
    }
    for (unsigned i = 0; status == KVC_OK; i++) {
        status = kvci_walk_next(&judge->walk, &token);
        if (status != KVC_OK) {
            break;
        }
        bool end = token.type == KVCI_JSON_ARRAY_END;
        if (end && i == KVCI_RANK) {
            break;
        }
        if (end || i == KVCI_RANK) {
            return kvci_walk_refuse_count(&judge->walk, KVC_E_SCHEMA, name, &array, end ? i : i + 1,
                                          KVCI_RANK, "elements", "");
        }
        if (token.type != KVCI_JSON_INTEGER || (uint64_t)token.integer != wanted[i]) {
            (void)snprintf(path, sizeof(path), "%s[%u]", name, i);
            return judge_number(judge, &token, path, 1, KVCI_MAX_INTEGER, wanted[i]);
        }
    }
    return status;
}

/* Keys and values take turns. */
static struct kvci_place place_of(const struct judge *judge, uint32_t index)
{
    return (struct kvci_place){
        .bytes = judge->tensor_bytes,
        .layer = index / 2,
        .role = index % 2 == 0 ? KVCI_ROLE_KEY : KVCI_ROLE_VALUE,
    };
}

static enum kvc_status take_record_value(struct judge *judge, int field)
{
    const uint32_t index = judge->walk.index;
    uint64_t strides[KVCI_RANK];
    const struct kvci_place place = place_of(judge, index);
    char name[KVCI_NAME_BYTES];
    switch (field) {
    case DTYPE:
        return take_text(judge, "dtype", is_dtype, judge->walk.metadata->dtype->name);
    case KIND:
        return take_text(judge, "kind", is_kind, kvci_role_name((enum kvci_role)place.role));
    case LAYER:
        return take_number(judge, "layer", 0, KVCI_MAX_DIMENSION - 1, place.layer);
    case NAME:
        kvci_geometry_name(judge->geometry, &place, name);
        return take_text(judge, "name", is_text, name);
    case NBYTES:
        return take_number(judge, "nbytes", 1, KVCI_MAX_INTEGER, judge->tensor_bytes);
    case OFFSET:
        return take_number(judge, "offset", 0, KVCI_MAX_INTEGER, index * judge->tensor_bytes);
    case SHAPE:
        return take_numbers(judge, SHAPE, judge->shape);
    default:
        strides[3] = judge->walk.metadata->dtype->item_bytes;
        for (unsigned i = 3; i > 0; i--) {
            strides[i - 1] = strides[i] * judge->shape[i];
        }
        return take_numbers(judge, STRIDES, strides);
    }
}

static enum kvc_status take_record(struct judge *judge, const struct kvci_json_token *first)
{
    if (first->type != KVCI_JSON_OBJECT) {
        return kvci_walk_refuse(&judge->walk, KVC_E_SCHEMA, "", "an object", first);
    }
    for (int field = 0; field < RECORD_FIELDS; field++) {
        enum kvc_status status = kvci_walk_key(&judge->walk, &record_fields, field);
        if (status == KVC_OK) {
            status = take_record_value(judge, field);
        }
        if (status != KVC_OK) {
            return status;
        }
    }
    return kvci_walk_end(&judge->walk);
}

static enum kvc_status take_tensors(struct judge *judge)
{
    struct kvci_walk *walk = &judge->walk;
    struct kvci_json_token token;
    struct kvci_json_token array;
    const uint32_t expected = judge->tensor_count;
    enum kvc_status status = kvci_walk_next(walk, &array);
    if (status == KVC_OK && array.type != KVCI_JSON_ARRAY) {
        return kvci_walk_refuse(walk, KVC_E_SCHEMA, "tensors", "an array of records", &array);
    }
    uint32_t count = 0;
    for (; status == KVC_OK; count++) {
        status = kvci_walk_next(walk, &token);
        if (status != KVC_OK || token.type == KVCI_JSON_ARRAY_END) {
            break;
        }
        if (count == expected) {
            return kvci_walk_refuse_count(walk, KVC_E_GEOMETRY, "tensors", &array,
                                          (uint64_t)count + 1, expected, "records",
                                          ", two for each of the layers");
        }
        walk->array = "tensors";
        walk->index = count;
        status = take_record(judge, &token);
        walk->array = NULL;
    }
    if (status == KVC_OK && count != expected) {
        return kvci_walk_refuse_count(walk, KVC_E_GEOMETRY, "tensors", &array, count, expected,
                                      "records", ", two for each of the layers");
    }
    return status;
}

/* All tensors have the shape that the top level gives, so one product serves for all. */
static enum kvc_status compute_sizes(struct judge *judge, const struct kvci_json_token *at)
{
    const struct kvci_metadata *metadata = judge->walk.metadata;
    uint64_t bytes = metadata->dtype->item_bytes;
    uint64_t span = 0;
    judge->tensor_count = 2 * metadata->layers;
    judge->shape[0] = judge->geometry->batch_size;
    judge->shape[1] = metadata->kv_heads;
    judge->shape[2] = metadata->sequence_length;
    judge->shape[3] = metadata->head_dim;
    bool fits = true;
    for (unsigned i = 0; i < KVCI_RANK; i++) {
        fits = fits && kvci_mul(bytes, judge->shape[i], &bytes);
    }
    judge->tensor_bytes = bytes;
    fits = fits && kvci_round_up(bytes, judge->geometry->align_bytes, &span) &&
           kvci_mul(span, judge->tensor_count, &span) && span <= KVCI_MAX_FILE_BYTES;
    if (!fits) {
        return kvci_walk_refuse(&judge->walk, KVC_E_GEOMETRY, "batch_size",
                                "sizes whose payload fits a file of 9007199254740991 bytes", at);
    }
    return KVC_OK;
}

static enum kvc_status take_batch_size(struct judge *judge)
{
    struct kvci_json_token token;
    enum kvc_status status =
        kvci_walk_integer(&judge->walk, "batch_size", 1, KVCI_MAX_BATCH_SIZE, &token);
    if (status != KVC_OK) {
        return status;
    }
    judge->geometry->batch_size = (uint32_t)token.integer;
    return compute_sizes(judge, &token);
}

static enum kvc_status take_manifest(struct judge *judge)
{
    struct kvci_json_token token;
    enum kvc_status status = kvci_walk_next(&judge->walk, &token);
    for (int field = 0; field < MANIFEST_FIELDS && status == KVC_OK; field++) {
        status = kvci_walk_key(&judge->walk, &manifest_fields, field);
        if (status != KVC_OK) {
            break;
        }
        switch (field) {
        case ATTENTION_TYPE:
            status = kvci_walk_text(&judge->walk, "attention_type", "causal");
            break;
        case BATCH_SIZE:
            status = take_batch_size(judge);
            break;
        case BYTE_ORDER:
            status = kvci_walk_text(&judge->walk, "byte_order", "little");
            break;
        case CACHE_CLASS:
            status = kvci_walk_text(&judge->walk, "cache_class", "dynamic");
            break;
        case TENSORS:
            status = take_tensors(judge);
            break;
        default:
            status = take_number(judge, "version", 1, 1, 1);
            break;
        }
    }
    return status == KVC_OK ? kvci_walk_end(&judge->walk) : status;
}

static enum kvc_status parse_version_1(const struct kvci_metadata *metadata, uint64_t offset,
                                       struct kvci_geometry *geometry, struct kvc_error *error)
{
    struct judge judge = {.geometry = geometry};
    geometry->self_layers = metadata->layers;
    kvci_walk_start(&judge.walk, metadata, offset, error);
    enum kvc_status status = take_manifest(&judge);
    /* The sizes were checked, so that every tensor fits. */
    for (uint32_t i = 0; status == KVC_OK && i < judge.tensor_count; i++) {
        const struct kvci_place place = place_of(&judge, i);
        (void)kvci_geometry_add(geometry, &place);
    }
    return status;
}

/* Judges the manifest, if there is one, and adds all tensors to the geometry. */
static enum kvc_status parse(const struct kvci_metadata *metadata, uint64_t offset,
                             uint64_t opaque_bytes, struct kvci_layer *layers,
                             struct kvci_geometry *geometry, struct kvc_error *error)
{
    enum kvc_status status = KVC_OK;
    const struct kvci_place opaque = {.bytes = opaque_bytes, .layer = KVC_NO_LAYER};
    bool fits = true;
    switch (metadata->manifest_version) {
    case 0:
        fits = kvci_geometry_add(geometry, &opaque);
        break;
    case 1:
        status = parse_version_1(metadata, offset, geometry, error);
        break;
    default:
        status = kvci_manifest2_parse(metadata, offset, layers, geometry, error);
        break;
    }
    if (status == KVC_OK && !(fits && kvci_geometry_finish(geometry, metadata->bytes))) {
        return kvci_fail(error, KVC_E_GEOMETRY, KVC_NO_OFFSET,
                         "a payload of %llu bytes does not fit a file of at most 9007199254740991 "
                         "bytes",
                         (unsigned long long)(fits ? geometry->payload_bytes : opaque_bytes));
    }
    return status;
}

enum kvc_status kvci_manifest_load(const struct kvci_metadata *metadata, uint64_t offset,
                                   uint32_t align_bytes, uint64_t opaque_bytes,
                                   uint32_t tensor_count, const struct kvc_allocator *allocator,
                                   struct kvci_geometry *ret_geometry, struct kvc_error *error)
{
    struct kvci_geometry geometry = {.manifest_version = metadata->manifest_version,
                                     .align_bytes = align_bytes};
    size_t layers_bytes = metadata->layer_records * sizeof(struct kvci_layer);
    struct kvci_layer *layers = kvci_alloc(allocator, layers_bytes);
    enum kvc_status status = KVC_OK;
    if (layers == NULL || !kvci_geometry_allocate(&geometry, allocator, tensor_count)) {
        status = kvci_fail_memory(error, layers_bytes + tensor_count * sizeof(*geometry.places));
    }
    if (status == KVC_OK) {
        status = parse(metadata, offset, opaque_bytes, layers, &geometry, error);
    }
    kvci_free(allocator, layers);
    if (status != KVC_OK) {
        kvci_geometry_free(&geometry, allocator);
        return status;
    }
    *ret_geometry = geometry;
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

uint64_t kvci_manifest_features(const struct kvci_metadata *metadata)
{
    return (metadata->manifest_version == 2 ? KVCI_INCOMPAT_MANIFEST_2 : 0) |
           (metadata->present[KVCI_MEMBER_PARENT_ROOT] ? KVCI_INCOMPAT_SEGMENT : 0);
}

enum kvc_status kvci_manifest_agrees(const struct kvci_metadata *metadata,
                                     const struct kvci_geometry *geometry,
                                     const struct kvci_header *header, struct kvc_error *error)
{
    uint32_t count = geometry->manifest_version == 0 ? 0 : geometry->tensor_count;
    uint64_t features = kvci_manifest_features(metadata);
    if (header->incompat != features) {
        return disagree(error, "incompat", KVCI_HEADER_INCOMPAT, features, header->incompat);
    }
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

void kvci_manifest_tensor(const struct kvci_metadata *metadata,
                          const struct kvci_geometry *geometry, uint32_t index,
                          struct kvci_form *ret_form)
{
    const struct kvci_place *place = &geometry->places[index];
    struct kvci_form form = {.dtype = metadata->dtype, .rank = KVCI_RANK};
    if (geometry->manifest_version == 2) {
        kvci_tensor_table_form(metadata, place, ret_form);
        return;
    }
    if (geometry->manifest_version == 0) {
        form.dtype = kvci_dtype_find((const uint8_t *)"u8", 2);
        form.rank = 1;
        form.shape[0] = place->bytes;
    } else {
        form.shape[0] = geometry->batch_size;
        form.shape[1] = metadata->kv_heads;
        form.shape[2] = metadata->sequence_length;
        form.shape[3] = metadata->head_dim;
    }
    *ret_form = form;
}
