/* manifest2.c: the tensor manifest of version 2, tables of layers and tensors; pure.
 * SPDX-License-Identifier: Apache-2.0 */
#include "manifest2.h"

#include "tensor_table.h"

#include "ban.h"

enum {
    BATCH_SIZE,
    BYTE_ORDER,
    CACHE_CLASS,
    FRAMEWORK,
    INFO,
    LAYERS,
    STATE_SCHEMA,
    TENSORS,
    VERSION,
    WRAPPER,
    MANIFEST_FIELDS
};

static const char *const manifest_names[MANIFEST_FIELDS] = {
    "batch_size", "byte_order",   "cache_class", "framework", "info",
    "layers",     "state_schema", "tensors",     "version",   "wrapper",
};
static const struct kvci_fields manifest_fields = {manifest_names, MANIFEST_FIELDS};

static const char *const framework_names[] = {"name", "version"};
static const struct kvci_fields framework_fields = {framework_names, 2};

static enum kvc_status take_framework(struct kvci_walk *walk)
{
    struct kvci_json_token token;
    enum kvc_status status = kvci_walk_next(walk, &token);
    if (status == KVC_OK && token.type != KVCI_JSON_OBJECT) {
        return kvci_walk_refuse(walk, KVC_E_SCHEMA, "framework", "an object", &token);
    }
    walk->part = "framework";
    for (int field = 0; status == KVC_OK && field < framework_fields.count; field++) {
        status = kvci_walk_key(walk, &framework_fields, field);
        if (status == KVC_OK) {
            status =
                kvci_walk_string(walk, framework_names[field], KVCI_MAX_FRAMEWORK_BYTES, &token);
        }
    }
    if (status == KVC_OK) {
        status = kvci_walk_end(walk);
    }
    walk->part = NULL;
    return status;
}

/* Layers of a cross cache belong to an encoder. */
static enum kvc_status take_wrapper(struct kvci_walk *walk, const struct kvci_layer_table *table)
{
    struct kvci_json_token token;
    enum kvc_status status = kvci_walk_next(walk, &token);
    if (status != KVC_OK) {
        return status;
    }
    const bool string = token.type == KVCI_JSON_STRING;
    if (string && kvci_json_equals(token.text, token.bytes, "encoder_decoder")) {
        return KVC_OK;
    }
    if (!string || !kvci_json_equals(token.text, token.bytes, "none")) {
        return kvci_walk_refuse(walk, KVC_E_SCHEMA, "wrapper", "\"none\" or \"encoder_decoder\"",
                                &token);
    }
    if (table->count > table->self_count) {
        return kvci_walk_refuse(walk, KVC_E_GEOMETRY, "wrapper",
                                "\"encoder_decoder\", because layers have the cache \"cross\"",
                                &token);
    }
    return KVC_OK;
}

static enum kvc_status take_value(struct kvci_walk *walk, int field, struct kvci_layer_table *table,
                                  struct kvci_geometry *geometry)
{
    struct kvci_json_token token = {0};
    enum kvc_status status = KVC_OK;
    switch (field) {
    case BATCH_SIZE:
        status = kvci_walk_integer(walk, "batch_size", 1, KVCI_MAX_BATCH_SIZE, &token);
        geometry->batch_size = (uint32_t)token.integer;
        return status;
    case BYTE_ORDER:
        return kvci_walk_text(walk, "byte_order", "little");
    case CACHE_CLASS:
        return kvci_walk_string(walk, "cache_class", KVCI_MAX_CLASS_BYTES, &token);
    case FRAMEWORK:
        return take_framework(walk);
    case INFO:
        return kvci_walk_any_object(walk, "info");
    case LAYERS:
        status = kvci_layer_table_take(walk, table);
        geometry->self_layers = table->self_count;
        return status;
    case STATE_SCHEMA:
        return kvci_walk_string(walk, "state_schema", KVCI_MAX_STATE_SCHEMA_BYTES, &token);
    case TENSORS:
        return kvci_tensor_table_take(walk, table, geometry);
    case VERSION:
        return kvci_walk_integer(walk, "version", 2, 2, &token);
    default:
        return take_wrapper(walk, table);
    }
}

enum kvc_status kvci_manifest2_parse(const struct kvci_metadata *metadata, uint64_t offset,
                                     struct kvci_layer *layers, struct kvci_geometry *geometry,
                                     struct kvc_error *error)
{
    struct kvci_walk walk;
    struct kvci_json_token token;
    struct kvci_layer_table table = {.layers = layers, .capacity = metadata->layer_records};
    kvci_walk_start(&walk, metadata, offset, error);
    enum kvc_status status = kvci_walk_next(&walk, &token);
    for (int field = 0; status == KVC_OK && field < MANIFEST_FIELDS; field++) {
        status = kvci_walk_key(&walk, &manifest_fields, field);
        if (status == KVC_OK) {
            status = take_value(&walk, field, &table, geometry);
        }
    }
    return status == KVC_OK ? kvci_walk_end(&walk) : status;
}
