/* tensor_table.c: the tensors of manifest version 2; pure.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tensor_table.h"

#include <stdio.h>
#include <string.h>

#include "checked.h"
#include "packing.h"

#include "ban.h"

#define TEXT_BYTES 160
#define MOST_AXIS_BYTES 32
#define NO_AXIS UINT32_MAX

enum { AXES, DTYPE, INDEX, LAYER, NAME, NBYTES, OFFSET, PACKING, ROLE, SHAPE, TENSOR_FIELDS };

static const char *const tensor_names[TENSOR_FIELDS] = {
    "axes", "dtype", "index", "layer", "name", "nbytes", "offset", "packing", "role", "shape",
};
static const struct kvci_fields tensor_fields = {tensor_names, TENSOR_FIELDS};

/* A record whose members were judged by themselves, with the tokens that a refusal shows. */
struct record {
    struct kvci_place place;
    enum kvci_role role;
    const struct kvci_dtype *dtype;
    uint32_t axis_count;
    uint32_t rank;
    struct kvci_packing packing;
    struct kvci_json_token values[TENSOR_FIELDS];
    struct kvci_json_token axes[KVCI_MAX_RANK];
    struct kvci_json_token shape[KVCI_MAX_RANK];
};

/* A packed tensor, whose scales and zero points come behind it. */
struct packed {
    uint32_t index;
    struct kvci_packing packing;
};

/* What the walk carries from record to record. Records are in the order of layers, so that facts
 * are kept for one layer only. */
struct judge {
    struct kvci_walk *walk;
    const struct kvci_layer_table *table;
    struct kvci_geometry *geometry;
    struct kvci_place last; /* the record before */
    bool any;               /* there was one */
    uint32_t layer;         /* the first layer that is not finished */
    uint32_t seen;          /* roles that it has as tensors */
    bool has_bytes;
    struct packed packed[2]; /* of keys and of values */
};

static const enum kvci_role packed_roles[2] = {KVCI_ROLE_PACKED_KEY, KVCI_ROLE_PACKED_VALUE};

/* ---- A record by itself -------------------------------------------------------------------- */

static bool is_axis(const struct kvci_json_token *token)
{
    bool fine = token->type == KVCI_JSON_STRING && token->bytes >= 1 &&
                token->bytes <= MOST_AXIS_BYTES && token->text[0] >= 'a' && token->text[0] <= 'z';
    for (size_t i = 0; fine && i < token->bytes; i++) {
        uint8_t c = token->text[i];
        fine = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
    }
    return fine;
}

static uint32_t find_axis(const struct record *record, const uint8_t *name, size_t bytes)
{
    for (uint32_t i = 0; i < record->axis_count && i < KVCI_MAX_RANK; i++) {
        if (record->axes[i].bytes == bytes && memcmp(record->axes[i].text, name, bytes) == 0) {
            return i;
        }
    }
    return NO_AXIS;
}

/* More axes than a shape can have are counted; they will not fit it. */
static enum kvc_status take_axes(struct kvci_walk *walk, struct record *record)
{
    struct kvci_json_token token;
    char path[TEXT_BYTES];
    struct kvci_json_token *array = &record->values[AXES];
    enum kvc_status status = kvci_walk_next(walk, array);
    if (status == KVC_OK && array->type != KVCI_JSON_ARRAY) {
        return kvci_walk_refuse(walk, KVC_E_SCHEMA, "axes", "an array of names", array);
    }
    while (status == KVC_OK) {
        status = kvci_walk_next(walk, &token);
        if (status != KVC_OK || token.type == KVCI_JSON_ARRAY_END) {
            break;
        }
        bool fine = is_axis(&token);
        if (!fine || find_axis(record, token.text, token.bytes) != NO_AXIS) {
            (void)snprintf(path, sizeof(path), "axes[%u]", record->axis_count);
            return kvci_walk_refuse(walk, KVC_E_SCHEMA, path,
                                    fine ? "a name that no other axis has"
                                         : "a name of 1 to 32 of a-z, 0-9 and _, a letter first",
                                    &token);
        }
        if (record->axis_count < KVCI_MAX_RANK) {
            record->axes[record->axis_count] = token;
        }
        record->axis_count++;
    }
    return status;
}

static enum kvc_status take_layer(struct kvci_walk *walk, struct record *record)
{
    struct kvci_json_token *token = &record->values[LAYER];
    enum kvc_status status = kvci_walk_next(walk, token);
    if (status != KVC_OK) {
        return status;
    }
    if (token->type != KVCI_JSON_NULL && (token->type != KVCI_JSON_INTEGER || token->integer < 0)) {
        return kvci_walk_refuse(walk, KVC_E_SCHEMA, "layer", "an index into layers, or null",
                                token);
    }
    /* A larger index than any is refused as the largest one is. */
    record->place.layer = token->type == KVCI_JSON_NULL   ? KVC_NO_LAYER
                          : token->integer < KVC_NO_LAYER ? (uint32_t)token->integer
                                                          : KVC_NO_LAYER - 1;
    return KVC_OK;
}

static enum kvc_status take_role(struct kvci_walk *walk, struct record *record)
{
    struct kvci_json_token *token = &record->values[ROLE];
    enum kvc_status status = kvci_walk_next(walk, token);
    if (status != KVC_OK) {
        return status;
    }
    if (token->type != KVCI_JSON_STRING ||
        !kvci_role_find(token->text, token->bytes, &record->role)) {
        return kvci_walk_refuse(walk, KVC_E_SCHEMA, "role", "a role from the table of roles",
                                token);
    }
    record->place.role = (uint8_t)record->role;
    return KVC_OK;
}

static enum kvc_status take_value(struct kvci_walk *walk, int field, struct record *record)
{
    struct kvci_json_token *token = &record->values[field];
    enum kvc_status status = KVC_OK;
    switch (field) {
    case AXES:
        return take_axes(walk, record);
    case DTYPE:
        return kvci_dtype_take(walk, &record->dtype, token);
    case INDEX:
        status = kvci_walk_integer(walk, "index", 0, UINT8_MAX, token);
        record->place.index = (uint8_t)token->integer;
        return status;
    case LAYER:
        return take_layer(walk, record);
    case NAME:
        status = kvci_walk_next(walk, token);
        return status != KVC_OK || token->type == KVCI_JSON_STRING
                   ? status
                   : kvci_walk_refuse(walk, KVC_E_SCHEMA, "name", "a string", token);
    case NBYTES:
        return kvci_walk_integer(walk, "nbytes", 0, KVCI_MAX_INTEGER, token);
    case OFFSET:
        return kvci_walk_integer(walk, "offset", 0, KVCI_MAX_INTEGER, token);
    case PACKING:
        return kvci_packing_take(walk, &record->packing);
    case ROLE:
        return take_role(walk, record);
    default:
        return kvci_shape_take(walk, record->shape, &record->rank);
    }
}

/* ---- A record against its layer ------------------------------------------------------------ */

/* The roles of the cache have no layer; others have one that knows the role. */
static enum kvc_status judge_layer(const struct judge *judge, const struct record *record)
{
    const struct kvci_walk *walk = judge->walk;
    const struct kvci_layer_table *table = judge->table;
    const uint32_t layer = record->place.layer;
    char expected[TEXT_BYTES];
    if (kvci_role_is_of_cache(record->role) != (layer == KVC_NO_LAYER)) {
        return kvci_walk_refuse(walk, KVC_E_GEOMETRY, "layer",
                                layer == KVC_NO_LAYER ? "the layer that the role belongs to"
                                                      : "null: the role belongs to the cache",
                                &record->values[LAYER]);
    }
    if (record->place.index != 0 && !kvci_role_has_index(record->role)) {
        return kvci_walk_refuse_number(walk, KVC_E_GEOMETRY, "index", 0, &record->values[INDEX]);
    }
    if (layer == KVC_NO_LAYER) {
        return KVC_OK;
    }
    if (layer >= table->count) {
        (void)snprintf(expected, sizeof(expected), "at most %u, the last of layers",
                       table->count - 1);
        return kvci_walk_refuse(walk, KVC_E_GEOMETRY, "layer", expected, &record->values[LAYER]);
    }
    const enum kvci_kind kind = (enum kvci_kind)table->layers[layer].kind;
    if ((kvci_kind_roles(kind) & KVCI_ROLE_BIT(record->role)) == 0) {
        (void)snprintf(expected, sizeof(expected), "a role of the kind \"%s\"",
                       kvci_kind_name(kind));
        return kvci_walk_refuse(walk, KVC_E_GEOMETRY, "role", expected, &record->values[ROLE]);
    }
    return KVC_OK;
}

static enum kvc_status judge_order(const struct judge *judge, const struct record *record)
{
    const struct kvci_place *last = &judge->last;
    const struct kvci_place *place = &record->place;
    int field = INDEX;
    bool after = place->index > last->index;
    if (place->layer != last->layer) {
        field = LAYER;
        after = place->layer > last->layer;
    } else if (place->role != last->role) {
        field = ROLE;
        after = place->role > last->role;
    } else if (!kvci_role_has_index(record->role)) {
        field = ROLE;
    }
    if (!judge->any || after) {
        return KVC_OK;
    }
    return kvci_walk_refuse(judge->walk, KVC_E_GEOMETRY, tensor_names[field],
                            "one that comes after that of the record before",
                            &record->values[field]);
}

static enum kvc_status judge_name(const struct judge *judge, const struct record *record)
{
    const struct kvci_json_token *token = &record->values[NAME];
    char name[KVCI_NAME_BYTES];
    char expected[TEXT_BYTES];
    kvci_geometry_name(judge->geometry, &record->place, name);
    if (kvci_json_equals(token->text, token->bytes, name)) {
        return KVC_OK;
    }
    (void)snprintf(expected, sizeof(expected), "\"%s\"", name);
    return kvci_walk_refuse(judge->walk, KVC_E_GEOMETRY, "name", expected, token);
}

/* A length of 0 makes the product 0, whatever the others are. */
static bool multiply(const struct record *record, uint64_t *ret_bytes)
{
    uint64_t bytes = record->dtype->item_bytes;
    for (uint32_t i = 0; i < record->rank; i++) {
        if (record->shape[i].integer == 0) {
            *ret_bytes = 0;
            return true;
        }
    }
    for (uint32_t i = 0; i < record->rank; i++) {
        if (!kvci_mul(bytes, (uint64_t)record->shape[i].integer, &bytes)) {
            return false;
        }
    }
    *ret_bytes = bytes;
    return bytes <= KVCI_MAX_FILE_BYTES;
}

static enum kvc_status judge_size(const struct judge *judge, struct record *record)
{
    const struct kvci_walk *walk = judge->walk;
    const uint64_t offset = judge->geometry->payload_bytes;
    if (!multiply(record, &record->place.bytes)) {
        return kvci_walk_refuse_as(walk, KVC_E_GEOMETRY, "shape", &record->values[SHAPE],
                                   "gives a product that is too large",
                                   "at most 9007199254740991 bytes");
    }
    if ((uint64_t)record->values[NBYTES].integer != record->place.bytes) {
        return kvci_walk_refuse_number(walk, KVC_E_GEOMETRY, "nbytes", record->place.bytes,
                                       &record->values[NBYTES]);
    }
    if ((uint64_t)record->values[OFFSET].integer != offset) {
        return kvci_walk_refuse_number(walk, KVC_E_GEOMETRY, "offset", offset,
                                       &record->values[OFFSET]);
    }
    return KVC_OK;
}

/* ---- Axes ---------------------------------------------------------------------------------- */

static enum kvc_status refuse_length(const struct judge *judge, const struct record *record,
                                     uint32_t axis, const char *limit, uint64_t expected,
                                     const char *why)
{
    char path[TEXT_BYTES];
    char text[TEXT_BYTES];
    (void)snprintf(path, sizeof(path), "shape[%u]", axis);
    (void)snprintf(text, sizeof(text), "%s%llu, %s", limit, (unsigned long long)expected, why);
    return kvci_walk_refuse(judge->walk, KVC_E_GEOMETRY, path, text, &record->shape[axis]);
}

/* Keys and values of a layer hold its tokens along one axis; of a quantised layer, those that are
 * not quantised yet. */
static enum kvc_status judge_sequence(const struct judge *judge, const struct record *record)
{
    const uint32_t axis = find_axis(record, (const uint8_t *)"sequence", 8);
    if (record->place.layer == KVC_NO_LAYER || record->role > KVCI_ROLE_VALUE) {
        return KVC_OK;
    }
    const struct kvci_layer *layer = &judge->table->layers[record->place.layer];
    if (layer->kind == KVCI_KIND_QUANTIZED) {
        if (axis != NO_AXIS && record->shape[axis].integer > (int64_t)layer->stored_tokens) {
            return refuse_length(judge, record, axis, "at most ", layer->stored_tokens,
                                 "the stored_tokens of the layer");
        }
        return KVC_OK;
    }
    if (layer->state != KVCI_LAYER_FILLED) {
        return KVC_OK;
    }
    if (axis == NO_AXIS) {
        return kvci_walk_refuse_as(judge->walk, KVC_E_GEOMETRY, "axes", &record->values[AXES],
                                   "has no axis sequence",
                                   "one in keys and values of a layer that is filled");
    }
    if (record->shape[axis].integer != (int64_t)layer->stored_tokens) {
        return refuse_length(judge, record, axis, "", layer->stored_tokens,
                             "the stored_tokens of the layer");
    }
    return KVC_OK;
}

static enum kvc_status judge_axes(const struct judge *judge, const struct record *record)
{
    const struct kvci_walk *walk = judge->walk;
    const uint32_t batch = find_axis(record, (const uint8_t *)"batch", 5);
    const uint32_t sequence = find_axis(record, (const uint8_t *)"sequence", 8);
    const uint32_t batch_size = judge->geometry->batch_size;
    if (record->axis_count != record->rank) {
        return kvci_walk_refuse_count(walk, KVC_E_GEOMETRY, "axes", &record->values[AXES],
                                      record->axis_count, record->rank, "names",
                                      ", one for each dimension");
    }
    if (batch != NO_AXIS && record->shape[batch].integer != (int64_t)batch_size) {
        return refuse_length(judge, record, batch, "", batch_size, "the batch_size");
    }
    if (kvci_role_is_of_cache(record->role)) {
        if (record->rank != 2 || batch != 0 || sequence != 1) {
            return kvci_walk_refuse_as(walk, KVC_E_GEOMETRY, "axes", &record->values[AXES],
                                       "has others", "\"batch\" and \"sequence\" for this role");
        }
        if (!kvci_dtype_is_countable(record->dtype)) {
            return kvci_walk_refuse(walk, KVC_E_GEOMETRY, "dtype",
                                    "an integer type or bool for this role",
                                    &record->values[DTYPE]);
        }
    }
    return judge_sequence(judge, record);
}

/* ---- A layer as a whole -------------------------------------------------------------------- */

/* Refuses a layer, of which no tensor is at hand. */
static enum kvc_status refuse_layer(const struct judge *judge, const char *part, const char *field,
                                    const char *is, const char *expected)
{
    struct kvci_walk walk = *judge->walk;
    const struct kvci_json_token at = {.offset = judge->table->layers[judge->layer].record};
    walk.array = "layers";
    walk.index = judge->layer;
    walk.part = part;
    return kvci_walk_refuse_as(&walk, KVC_E_GEOMETRY, field, &at, is, expected);
}

/* Packed elements without their scales are noise, and scales without them too. */
static enum kvc_status finish_packed(const struct judge *judge, const struct packed *packed,
                                     enum kvci_role role)
{
    const bool scale = (judge->seen & KVCI_ROLE_BIT(role + 1)) != 0;
    const bool zero = (judge->seen & KVCI_ROLE_BIT(role + 2)) != 0;
    char expected[TEXT_BYTES];
    if ((judge->seen & KVCI_ROLE_BIT(role)) == 0) {
        if (!scale && !zero) {
            return KVC_OK;
        }
        (void)snprintf(expected, sizeof(expected), "a tensor %s beside it", kvci_role_name(role));
        return refuse_layer(judge, NULL, "", scale ? "has a scale" : "has a zero", expected);
    }
    struct kvci_walk walk = *judge->walk;
    walk.array = "tensors";
    walk.index = packed->index;
    walk.part = "packing";
    if (!scale) {
        return kvci_walk_refuse(&walk, KVC_E_GEOMETRY, "scale", "a tensor of the same layer",
                                &packed->packing.scale_token);
    }
    if (zero != packed->packing.zero) {
        (void)snprintf(expected, sizeof(expected), "\"%s\", which is there",
                       kvci_role_name(role + 2));
        return kvci_walk_refuse(&walk, KVC_E_GEOMETRY, "zero",
                                zero ? expected : "a tensor of the same layer, or null",
                                &packed->packing.zero_token);
    }
    return KVC_OK;
}

static enum kvc_status finish_aliases(const struct judge *judge, const struct kvci_layer *layer,
                                      uint32_t *ret_roles)
{
    for (unsigned i = 0; i < KVCI_ROLE_COUNT; i++) {
        enum kvci_role same = KVCI_ROLE_KEY;
        if (!kvci_layer_alias(layer, (enum kvci_role)i, &same)) {
            continue;
        }
        if ((judge->seen & KVCI_ROLE_BIT(i)) != 0) {
            return refuse_layer(judge, "aliases", kvci_role_name((enum kvci_role)i),
                                "has a tensor of its own", "an alias or a tensor");
        }
        if ((judge->seen & KVCI_ROLE_BIT(same)) == 0) {
            return refuse_layer(judge, "aliases", kvci_role_name((enum kvci_role)i),
                                "means a role that has no tensor", "one that has a tensor");
        }
        *ret_roles |= KVCI_ROLE_BIT(i);
    }
    return KVC_OK;
}

/* A layer that is filled has something to hold, and all that its kind needs. `roles` are those that
 * it has as tensors or aliases; quantised elements are no aliases. */
static enum kvc_status finish_filled(const struct judge *judge, const struct kvci_layer *layer,
                                     uint32_t roles)
{
    const uint32_t required = kvci_kind_required((enum kvci_kind)layer->kind);
    const bool quantized = layer->kind == KVCI_KIND_QUANTIZED;
    const uint32_t missing = required & ~(quantized ? judge->seen : roles);
    char is[TEXT_BYTES];
    if (!judge->has_bytes) {
        return refuse_layer(judge, NULL, "state", "is \"filled\"",
                            "another state: no tensor of the layer has bytes");
    }
    for (unsigned i = 0; i < KVCI_ROLE_COUNT; i++) {
        if ((missing & KVCI_ROLE_BIT(i)) != 0) {
            (void)snprintf(is, sizeof(is), "has no %s", kvci_role_name((enum kvci_role)i));
            return refuse_layer(judge, NULL, "", is,
                                quantized ? "it as a tensor" : "it as a tensor or as an alias");
        }
    }
    return KVC_OK;
}

/* Judges what only the whole of a layer's tensors shows, and goes on to the next layer. */
static enum kvc_status finish_layer(struct judge *judge)
{
    const struct kvci_layer *layer = &judge->table->layers[judge->layer];
    uint32_t roles = judge->seen;
    enum kvc_status status = finish_aliases(judge, layer, &roles);
    for (unsigned i = 0; i < 2 && status == KVC_OK; i++) {
        status = finish_packed(judge, &judge->packed[i], packed_roles[i]);
    }
    if (status == KVC_OK && layer->state == KVCI_LAYER_FILLED) {
        status = finish_filled(judge, layer, roles);
    }
    if (status != KVC_OK) {
        return status;
    }
    judge->layer++;
    judge->seen = 0;
    judge->has_bytes = false;
    return KVC_OK;
}

static enum kvc_status finish_layers(struct judge *judge, uint32_t end)
{
    enum kvc_status status = KVC_OK;
    while (status == KVC_OK && judge->layer < end && judge->layer < judge->table->count) {
        status = finish_layer(judge);
    }
    return status;
}

/* ---- The table ----------------------------------------------------------------------------- */

/* Holds the tensor against the state of its layer, and notes it there. */
static enum kvc_status note_tensor(struct judge *judge, const struct record *record)
{
    if (record->place.layer == KVC_NO_LAYER) {
        return KVC_OK;
    }
    const struct kvci_layer *layer = &judge->table->layers[record->place.layer];
    if (layer->state == KVCI_LAYER_UNINITIALIZED) {
        return kvci_walk_refuse(judge->walk, KVC_E_GEOMETRY, "layer",
                                "another layer: this one is not initialized",
                                &record->values[LAYER]);
    }
    if (layer->state == KVCI_LAYER_EMPTY && record->place.bytes > 0) {
        return kvci_walk_refuse(judge->walk, KVC_E_GEOMETRY, "nbytes", "0: the layer is empty",
                                &record->values[NBYTES]);
    }
    judge->seen |= KVCI_ROLE_BIT(record->role);
    judge->has_bytes = judge->has_bytes || record->place.bytes > 0;
    for (unsigned i = 0; i < 2; i++) {
        if (record->role == packed_roles[i]) {
            judge->packed[i].index = judge->walk->index;
            judge->packed[i].packing = record->packing;
        }
    }
    return KVC_OK;
}

static enum kvc_status judge_relations(struct judge *judge, struct record *record)
{
    enum kvc_status status = judge_layer(judge, record);
    if (status == KVC_OK) {
        status = judge_order(judge, record);
    }
    if (status == KVC_OK) {
        status = finish_layers(judge, record->place.layer);
    }
    if (status == KVC_OK) {
        status = judge_name(judge, record);
    }
    if (status == KVC_OK) {
        status = judge_size(judge, record);
    }
    if (status == KVC_OK) {
        status = judge_axes(judge, record);
    }
    if (status == KVC_OK) {
        status = kvci_packing_judge(judge->walk, &record->packing, record->role);
    }
    return status == KVC_OK ? note_tensor(judge, record) : status;
}

static enum kvc_status take_record(struct judge *judge, const struct kvci_json_token *first)
{
    struct kvci_walk *walk = judge->walk;
    struct record record = {0};
    enum kvc_status status = KVC_OK;
    if (first->type != KVCI_JSON_OBJECT) {
        return kvci_walk_refuse(walk, KVC_E_SCHEMA, "", "an object", first);
    }
    record.place = (struct kvci_place){
        .record =
            (uint32_t)(walk->metadata->spans[KVCI_MEMBER_TENSOR_MANIFEST].offset + first->offset)};
    for (int field = 0; status == KVC_OK && field < TENSOR_FIELDS; field++) {
        status = kvci_walk_key(walk, &tensor_fields, field);
        if (status == KVC_OK) {
            status = take_value(walk, field, &record);
        }
    }
    if (status == KVC_OK) {
        status = kvci_walk_end(walk);
    }
    if (status == KVC_OK) {
        status = judge_relations(judge, &record);
    }
    if (status == KVC_OK && !kvci_geometry_add(judge->geometry, &record.place)) {
        status = kvci_walk_refuse(walk, KVC_E_GEOMETRY, "nbytes",
                                  "sizes whose sum fits a file of 9007199254740991 bytes",
                                  &record.values[NBYTES]);
    }
    judge->last = record.place;
    judge->any = true;
    return status;
}

enum kvc_status kvci_tensor_table_take(struct kvci_walk *walk, const struct kvci_layer_table *table,
                                       struct kvci_geometry *geometry)
{
    struct judge judge = {.walk = walk, .table = table, .geometry = geometry};
    struct kvci_json_token array;
    struct kvci_json_token token;
    enum kvc_status status = kvci_walk_next(walk, &array);
    if (status == KVC_OK && array.type != KVCI_JSON_ARRAY) {
        return kvci_walk_refuse(walk, KVC_E_SCHEMA, "tensors", "an array of records", &array);
    }
    while (status == KVC_OK) {
        status = kvci_walk_next(walk, &token);
        if (status != KVC_OK || token.type == KVCI_JSON_ARRAY_END) {
            break;
        }
        if (geometry->tensor_count == KVCI_MAX_TENSOR_COUNT) {
            return kvci_walk_refuse_count(walk, KVC_E_GEOMETRY, "tensors", &array,
                                          KVCI_MAX_TENSOR_COUNT + 1, KVCI_MAX_TENSOR_COUNT,
                                          "records", " at most");
        }
        walk->array = "tensors";
        walk->index = geometry->tensor_count;
        status = take_record(&judge, &token);
        walk->array = NULL;
    }
    if (status == KVC_OK && !judge.any) {
        return kvci_walk_refuse_as(walk, KVC_E_SCHEMA, "tensors", &array, "has no records",
                                   "at least one");
    }
    if (status == KVC_OK) {
        status = finish_layers(&judge, UINT32_MAX);
    }
    if (status == KVC_OK && geometry->payload_bytes == 0) {
        return kvci_walk_refuse_as(walk, KVC_E_GEOMETRY, "tensors", &array, "has no bytes",
                                   "a tensor that has bytes");
    }
    return status;
}

void kvci_tensor_table_form(const struct kvci_metadata *metadata, const struct kvci_place *place,
                            struct kvci_form *ret_form)
{
    struct kvci_walk walk;
    struct kvci_json_token token;
    struct kvci_json_token shape[KVCI_MAX_RANK] = {0};
    struct kvci_form form = {0};
    size_t end = 0;
    kvci_walk_start(&walk, metadata, 0, NULL);
    kvci_json_init(&walk.scan, metadata->text + place->record, metadata->bytes - place->record,
                   KVCI_JSON_STRICT, UINT64_MAX);
    bool fine = kvci_json_next(&walk.scan, &token);
    while (fine && kvci_json_next(&walk.scan, &token) && token.type == KVCI_JSON_KEY) {
        if (kvci_json_equals(token.text, token.bytes, "dtype")) {
            fine = kvci_dtype_take(&walk, &form.dtype, &token) == KVC_OK;
        } else if (kvci_json_equals(token.text, token.bytes, "shape")) {
            fine = kvci_shape_take(&walk, shape, &form.rank) == KVC_OK;
        } else {
            fine = kvci_json_next(&walk.scan, &token) && kvci_json_skip(&walk.scan, &token, &end);
        }
    }
    for (uint32_t i = 0; i < form.rank; i++) {
        form.shape[i] = (uint64_t)shape[i].integer;
    }
    *ret_form = form;
}
