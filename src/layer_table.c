/* layer_table.c: the layers of manifest version 2; pure.
 * SPDX-License-Identifier: Apache-2.0 */
#include "layer_table.h"

#include <stdio.h>

#include "ban.h"

#define ALIAS_BITS 4
#define ALIAS_MASK UINT64_C(15)
#define TEXT_BYTES 160

static_assert(KVCI_ROLE_COUNT <= ALIAS_MASK && KVCI_ROLE_COUNT * ALIAS_BITS <= 64,
              "the aliases of a layer fit 64 bits");

enum {
    ALIASES,
    CACHE,
    CLASS,
    FLAGS,
    KIND,
    LAYER,
    POSITIONS_SEEN,
    STATE,
    STORED_TOKENS,
    WINDOW,
    LAYER_FIELDS
};

static const char *const layer_names[LAYER_FIELDS] = {
    "aliases", "cache",          "class", "flags",         "kind",
    "layer",   "positions_seen", "state", "stored_tokens", "window",
};
static const struct kvci_fields layer_fields = {layer_names, LAYER_FIELDS};

static const char *const states[] = {
    [KVCI_LAYER_UNINITIALIZED] = "uninitialized",
    [KVCI_LAYER_EMPTY] = "empty",
    [KVCI_LAYER_FILLED] = "filled",
};
#define STATES (sizeof(states) / sizeof(states[0]))

/* A record whose members were judged by themselves, with the tokens that a refusal shows. */
struct record {
    struct kvci_layer layer;
    bool cross;
    struct kvci_json_token values[LAYER_FIELDS];
};

bool kvci_layer_alias(const struct kvci_layer *layer, enum kvci_role role, enum kvci_role *ret_same)
{
    unsigned bits = (unsigned)(layer->aliases >> (ALIAS_BITS * role) & ALIAS_MASK);
    if (bits == 0) {
        return false;
    }
    *ret_same = (enum kvci_role)(bits - 1);
    return true;
}

static enum kvc_status take_alias(struct kvci_walk *walk, const struct kvci_json_token *key,
                                  uint64_t *aliases)
{
    static const char expected[] = "a role from the table of roles";
    struct kvci_json_token token;
    enum kvci_role from = KVCI_ROLE_KEY;
    enum kvci_role to = KVCI_ROLE_KEY;
    if (!kvci_role_find(key->text, key->bytes, &from)) {
        return kvci_walk_refuse(walk, KVC_E_SCHEMA, "aliases", expected, key);
    }
    enum kvc_status status = kvci_walk_next(walk, &token);
    if (status != KVC_OK) {
        return status;
    }
    if (token.type != KVCI_JSON_STRING || !kvci_role_find(token.text, token.bytes, &to)) {
        walk->part = "aliases";
        status = kvci_walk_refuse(walk, KVC_E_SCHEMA, kvci_role_name(from), expected, &token);
        walk->part = NULL;
        return status;
    }
    *aliases |= (uint64_t)(to + 1) << (ALIAS_BITS * from);
    return KVC_OK;
}

static enum kvc_status take_aliases(struct kvci_walk *walk, struct record *record)
{
    struct kvci_json_token *object = &record->values[ALIASES];
    struct kvci_json_token token;
    enum kvc_status status = kvci_walk_next(walk, object);
    if (status == KVC_OK && object->type != KVCI_JSON_OBJECT) {
        return kvci_walk_refuse(walk, KVC_E_SCHEMA, "aliases", "an object", object);
    }
    while (status == KVC_OK) {
        status = kvci_walk_next(walk, &token);
        if (status != KVC_OK || token.type != KVCI_JSON_KEY) {
            break;
        }
        status = take_alias(walk, &token, &record->layer.aliases);
    }
    return status;
}

static enum kvc_status take_cache(struct kvci_walk *walk, struct record *record)
{
    struct kvci_json_token *token = &record->values[CACHE];
    enum kvc_status status = kvci_walk_next(walk, token);
    if (status != KVC_OK) {
        return status;
    }
    bool string = token->type == KVCI_JSON_STRING;
    record->cross = string && kvci_json_equals(token->text, token->bytes, "cross");
    if (!record->cross && !(string && kvci_json_equals(token->text, token->bytes, "self"))) {
        return kvci_walk_refuse(walk, KVC_E_SCHEMA, "cache", "\"self\" or \"cross\"", token);
    }
    return KVC_OK;
}

static enum kvc_status take_kind(struct kvci_walk *walk, struct record *record)
{
    struct kvci_json_token *token = &record->values[KIND];
    enum kvci_kind kind = KVCI_KIND_FULL;
    enum kvc_status status = kvci_walk_next(walk, token);
    if (status != KVC_OK) {
        return status;
    }
    if (token->type != KVCI_JSON_STRING || !kvci_kind_find(token->text, token->bytes, &kind)) {
        return kvci_walk_refuse(walk, KVC_E_SCHEMA, "kind", "a kind from the table of kinds",
                                token);
    }
    record->layer.kind = (uint8_t)kind;
    return KVC_OK;
}

static enum kvc_status take_state(struct kvci_walk *walk, struct record *record)
{
    struct kvci_json_token *token = &record->values[STATE];
    enum kvc_status status = kvci_walk_next(walk, token);
    for (unsigned i = 0; status == KVC_OK && token->type == KVCI_JSON_STRING && i < STATES; i++) {
        if (kvci_json_equals(token->text, token->bytes, states[i])) {
            record->layer.state = (uint8_t)i;
            return KVC_OK;
        }
    }
    return status != KVC_OK ? status
                            : kvci_walk_refuse(walk, KVC_E_SCHEMA, "state",
                                               "\"uninitialized\", \"empty\" or \"filled\"", token);
}

static enum kvc_status take_window(struct kvci_walk *walk, struct record *record)
{
    struct kvci_json_token *token = &record->values[WINDOW];
    enum kvc_status status = kvci_walk_next(walk, token);
    if (status != KVC_OK || token->type == KVCI_JSON_NULL) {
        return status;
    }
    if (token->type != KVCI_JSON_INTEGER || token->integer < 1 ||
        token->integer > KVCI_MAX_SEQUENCE_LENGTH) {
        return kvci_walk_refuse(walk, KVC_E_SCHEMA, "window",
                                "an integer from 1 to 2147483647, or null", token);
    }
    return KVC_OK;
}

static enum kvc_status take_value(struct kvci_walk *walk, int field, struct record *record)
{
    struct kvci_json_token *token = &record->values[field];
    enum kvc_status status = KVC_OK;
    switch (field) {
    case ALIASES:
        return take_aliases(walk, record);
    case CACHE:
        return take_cache(walk, record);
    case CLASS:
        return kvci_walk_string(walk, "class", KVCI_MAX_CLASS_BYTES, token);
    case FLAGS:
        return kvci_walk_any_object(walk, "flags");
    case KIND:
        return take_kind(walk, record);
    case LAYER:
        return kvci_walk_integer(walk, "layer", 0, KVCI_MAX_DIMENSION - 1, token);
    case POSITIONS_SEEN:
        return kvci_walk_integer(walk, "positions_seen", 0, KVCI_MAX_SEQUENCE_LENGTH, token);
    case STATE:
        return take_state(walk, record);
    case STORED_TOKENS:
        status = kvci_walk_integer(walk, "stored_tokens", 0, KVCI_MAX_SEQUENCE_LENGTH, token);
        record->layer.stored_tokens = (uint32_t)token->integer;
        return status;
    default:
        return take_window(walk, record);
    }
}

/* Where the record stands in the table: the layers of self, then those of cross, each from 0. */
static enum kvc_status judge_place(const struct kvci_walk *walk, const struct record *record,
                                   const struct kvci_layer_table *table)
{
    const bool cross_began = table->count > table->self_count;
    if (!record->cross && cross_began) {
        return kvci_walk_refuse(walk, KVC_E_GEOMETRY, "cache",
                                "\"cross\", as the record before it has", &record->values[CACHE]);
    }
    if (record->cross && table->self_count == 0) {
        return kvci_walk_refuse(walk, KVC_E_GEOMETRY, "cache",
                                "\"self\": there is at least one layer of it",
                                &record->values[CACHE]);
    }
    uint32_t number = record->cross ? table->count - table->self_count : table->count;
    if (record->values[LAYER].integer != number) {
        return kvci_walk_refuse_number(walk, KVC_E_GEOMETRY, "layer", number,
                                       &record->values[LAYER]);
    }
    return KVC_OK;
}

/* Which of a layer's numbers must be 0, by its kind and state, and what a window must be. */
static enum kvc_status judge_numbers(const struct kvci_walk *walk, const struct record *record)
{
    const struct kvci_json_token *values = record->values;
    const enum kvci_kind kind = (enum kvci_kind)record->layer.kind;
    const bool window = values[WINDOW].type == KVCI_JSON_INTEGER;
    if (window != kvci_kind_has_window(kind)) {
        return kvci_walk_refuse(walk, KVC_E_GEOMETRY, "window",
                                window ? "null: the kind of the layer has no window"
                                       : "an integer: the kind of the layer has a window",
                                &values[WINDOW]);
    }
    if (record->layer.state == KVCI_LAYER_UNINITIALIZED && values[POSITIONS_SEEN].integer != 0) {
        return kvci_walk_refuse(walk, KVC_E_GEOMETRY, "positions_seen",
                                "0 for an uninitialized layer", &values[POSITIONS_SEEN]);
    }
    if (values[STORED_TOKENS].integer != 0 &&
        (record->layer.state != KVCI_LAYER_FILLED || kind == KVCI_KIND_LINEAR)) {
        return kvci_walk_refuse(walk, KVC_E_GEOMETRY, "stored_tokens",
                                kind == KVCI_KIND_LINEAR ? "0 for a linear layer"
                                                         : "0 for a layer that is not filled",
                                &values[STORED_TOKENS]);
    }
    if (values[STORED_TOKENS].integer > values[POSITIONS_SEEN].integer) {
        return kvci_walk_refuse(walk, KVC_E_GEOMETRY, "stored_tokens",
                                "at most positions_seen, the tokens that went through the layer",
                                &values[STORED_TOKENS]);
    }
    return KVC_OK;
}

/* Only what the record itself shows: whether the tensors are there, the tensors tell. */
static enum kvc_status judge_aliases(struct kvci_walk *walk, const struct record *record)
{
    const uint32_t allowed = kvci_kind_roles((enum kvci_kind)record->layer.kind);
    const struct kvci_json_token *object = &record->values[ALIASES];
    if (record->layer.aliases != 0 && record->layer.state != KVCI_LAYER_FILLED) {
        return kvci_walk_refuse_as(walk, KVC_E_GEOMETRY, "aliases", object, "is not empty",
                                   "no aliases in a layer that is not filled");
    }
    for (unsigned i = 0; i < KVCI_ROLE_COUNT; i++) {
        const enum kvci_role from = (enum kvci_role)i;
        enum kvci_role to = KVCI_ROLE_KEY;
        if (!kvci_layer_alias(&record->layer, from, &to)) {
            continue;
        }
        if ((allowed & KVCI_ROLE_BIT(from)) == 0 || (allowed & KVCI_ROLE_BIT(to)) == 0 ||
            kvci_role_has_index(from) || kvci_role_has_index(to)) {
            char is[TEXT_BYTES];
            (void)snprintf(is, sizeof(is), "is \"%s\"", kvci_role_name(to));
            walk->part = "aliases";
            enum kvc_status status = kvci_walk_refuse_as(
                walk, KVC_E_GEOMETRY, kvci_role_name(from), object, is,
                "two roles that the kind of the layer allows and that take no state index");
            walk->part = NULL;
            return status;
        }
    }
    return KVC_OK;
}

static enum kvc_status take_layer(struct kvci_walk *walk, const struct kvci_json_token *first,
                                  struct kvci_layer_table *table, int64_t *positions_seen)
{
    struct record record = {.layer = {.record = (uint32_t)first->offset}};
    enum kvc_status status = KVC_OK;
    if (first->type != KVCI_JSON_OBJECT) {
        return kvci_walk_refuse(walk, KVC_E_SCHEMA, "", "an object", first);
    }
    for (int field = 0; status == KVC_OK && field < LAYER_FIELDS; field++) {
        status = kvci_walk_key(walk, &layer_fields, field);
        if (status == KVC_OK) {
            status = take_value(walk, field, &record);
        }
    }
    if (status == KVC_OK) {
        status = kvci_walk_end(walk);
    }
    if (status == KVC_OK) {
        status = judge_place(walk, &record, table);
    }
    if (status == KVC_OK) {
        status = judge_numbers(walk, &record);
    }
    if (status == KVC_OK) {
        status = judge_aliases(walk, &record);
    }
    /* The numbers of the layers end before there could be more of them than there is room for. */
    if (status == KVC_OK && table->count < table->capacity) {
        int64_t seen = record.values[POSITIONS_SEEN].integer;
        *positions_seen = record.cross || seen < *positions_seen ? *positions_seen : seen;
        table->layers[table->count] = record.layer;
        table->count++;
        table->self_count += !record.cross;
    }
    return status;
}

/* The table's numbers stand at the top level too. */
static enum kvc_status judge_table(const struct kvci_walk *walk,
                                   const struct kvci_layer_table *table,
                                   const struct kvci_json_token *array, int64_t positions_seen)
{
    const struct kvci_metadata *metadata = walk->metadata;
    char is[TEXT_BYTES];
    char expected[TEXT_BYTES];
    if (table->self_count != metadata->layers) {
        return kvci_walk_refuse_count(walk, KVC_E_GEOMETRY, "layers", array, table->self_count,
                                      metadata->layers, "records of the cache \"self\"",
                                      ", as the top-level layers says");
    }
    if ((uint64_t)positions_seen != metadata->sequence_length) {
        (void)snprintf(is, sizeof(is), "has %lld as its largest positions_seen",
                       (long long)positions_seen);
        (void)snprintf(expected, sizeof(expected), "%llu, the top-level sequence_length",
                       (unsigned long long)metadata->sequence_length);
        return kvci_walk_refuse_as(walk, KVC_E_GEOMETRY, "layers", array, is, expected);
    }
    return KVC_OK;
}

enum kvc_status kvci_layer_table_take(struct kvci_walk *walk, struct kvci_layer_table *table)
{
    struct kvci_json_token array;
    struct kvci_json_token token;
    int64_t positions_seen = 0;
    enum kvc_status status = kvci_walk_next(walk, &array);
    if (status == KVC_OK && array.type != KVCI_JSON_ARRAY) {
        return kvci_walk_refuse(walk, KVC_E_SCHEMA, "layers", "an array of records", &array);
    }
    for (uint32_t i = 0; status == KVC_OK; i++) {
        status = kvci_walk_next(walk, &token);
        if (status != KVC_OK || token.type == KVCI_JSON_ARRAY_END) {
            break;
        }
        walk->array = "layers";
        walk->index = i;
        status = take_layer(walk, &token, table, &positions_seen);
        walk->array = NULL;
    }
    if (status == KVC_OK && table->count == 0) {
        return kvci_walk_refuse_as(walk, KVC_E_SCHEMA, "layers", &array, "has no records",
                                   "at least one");
    }
    return status == KVC_OK ? judge_table(walk, table, &array, positions_seen) : status;
}
