/* packing.c: how a tensor of manifest version 2 holds quantised elements; pure.
 * SPDX-License-Identifier: Apache-2.0 */
#include "packing.h"

#include <stdio.h>

#include "ban.h"

#define TEXT_BYTES 64

enum { AXIS, BITS, CODEC, DTYPE, GROUP_SIZE, SCALE, SHAPE, ZERO, PACKING_FIELDS };

static const char *const packing_names[PACKING_FIELDS] = {
    "axis", "bits", "codec", "dtype", "group_size", "scale", "shape", "zero",
};
static const struct kvci_fields packing_fields = {packing_names, PACKING_FIELDS};

enum kvc_status kvci_dtype_take(struct kvci_walk *walk, const struct kvci_dtype **ret_dtype,
                                struct kvci_json_token *ret_token)
{
    enum kvc_status status = kvci_walk_next(walk, ret_token);
    if (status != KVC_OK) {
        return status;
    }
    *ret_dtype = ret_token->type == KVCI_JSON_STRING
                     ? kvci_dtype_find(ret_token->text, ret_token->bytes)
                     : NULL;
    return *ret_dtype != NULL
               ? KVC_OK
               : kvci_walk_refuse(walk, KVC_E_SCHEMA, "dtype", KVCI_DTYPE_NAMES, ret_token);
}

enum kvc_status kvci_shape_take(struct kvci_walk *walk, struct kvci_json_token *ret_tokens,
                                uint32_t *ret_rank)
{
    struct kvci_json_token array;
    struct kvci_json_token token;
    char path[TEXT_BYTES];
    enum kvc_status status = kvci_walk_next(walk, &array);
    if (status == KVC_OK && array.type != KVCI_JSON_ARRAY) {
        return kvci_walk_refuse(walk, KVC_E_SCHEMA, "shape", "an array of 0 to 8 integers", &array);
    }
    for (uint32_t i = 0; status == KVC_OK; i++) {
        status = kvci_walk_next(walk, &token);
        if (status != KVC_OK || token.type == KVCI_JSON_ARRAY_END) {
            *ret_rank = i;
            break;
        }
        if (i == KVCI_MAX_RANK) {
            return kvci_walk_refuse_as(walk, KVC_E_SCHEMA, "shape", &array,
                                       "has more than 8 elements", "0 to 8");
        }
        if (token.type != KVCI_JSON_INTEGER || token.integer < 0) {
            (void)snprintf(path, sizeof(path), "shape[%u]", i);
            return kvci_walk_refuse(walk, KVC_E_SCHEMA, path, "an integer of at least 0", &token);
        }
        if (ret_tokens != NULL) {
            ret_tokens[i] = token;
        }
    }
    return status;
}

static enum kvc_status take_group_size(struct kvci_walk *walk)
{
    struct kvci_json_token token;
    enum kvc_status status = kvci_walk_next(walk, &token);
    if (status != KVC_OK || token.type == KVCI_JSON_NULL) {
        return status;
    }
    if (token.type != KVCI_JSON_INTEGER || token.integer < 1 || token.integer > INT32_MAX) {
        return kvci_walk_refuse(walk, KVC_E_SCHEMA, "group_size",
                                "an integer from 1 to 2147483647, or null", &token);
    }
    return KVC_OK;
}

/* Takes the role of a tensor of scales, or with `nullable` of zero points. */
static enum kvc_status take_role(struct kvci_walk *walk, const char *field, bool nullable,
                                 enum kvci_role *ret_role, struct kvci_json_token *ret_token)
{
    const enum kvci_role roles[2] = {nullable ? KVCI_ROLE_KEY_ZERO : KVCI_ROLE_KEY_SCALE,
                                     nullable ? KVCI_ROLE_VALUE_ZERO : KVCI_ROLE_VALUE_SCALE};
    enum kvc_status status = kvci_walk_next(walk, ret_token);
    if (status != KVC_OK || (nullable && ret_token->type == KVCI_JSON_NULL)) {
        return status;
    }
    if (ret_token->type != KVCI_JSON_STRING ||
        !kvci_role_find(ret_token->text, ret_token->bytes, ret_role) ||
        (*ret_role != roles[0] && *ret_role != roles[1])) {
        return kvci_walk_refuse(walk, KVC_E_SCHEMA, field,
                                nullable ? "\"key_zero\", \"value_zero\" or null"
                                         : "\"key_scale\" or \"value_scale\"",
                                ret_token);
    }
    return KVC_OK;
}

static enum kvc_status take_value(struct kvci_walk *walk, int field, struct kvci_packing *packing)
{
    struct kvci_json_token token;
    const struct kvci_dtype *dtype = NULL;
    uint32_t rank = 0;
    enum kvc_status status = KVC_OK;
    switch (field) {
    case AXIS:
        return kvci_walk_integer(walk, "axis", -1, KVCI_MAX_RANK - 1, &token);
    case BITS:
        return kvci_walk_integer(walk, "bits", 1, 8, &token);
    case CODEC:
        return kvci_walk_string(walk, "codec", KVCI_MAX_CODEC_BYTES, &token);
    case DTYPE:
        return kvci_dtype_take(walk, &dtype, &token);
    case GROUP_SIZE:
        return take_group_size(walk);
    case SCALE:
        return take_role(walk, "scale", false, &packing->scale_role, &packing->scale_token);
    case SHAPE:
        return kvci_shape_take(walk, NULL, &rank);
    default:
        status = take_role(walk, "zero", true, &packing->zero_role, &packing->zero_token);
        packing->zero = packing->zero_token.type != KVCI_JSON_NULL;
        return status;
    }
}

enum kvc_status kvci_packing_take(struct kvci_walk *walk, struct kvci_packing *ret_packing)
{
    enum kvc_status status = kvci_walk_next(walk, &ret_packing->token);
    ret_packing->there = false;
    if (status != KVC_OK || ret_packing->token.type == KVCI_JSON_NULL) {
        return status;
    }
    if (ret_packing->token.type != KVCI_JSON_OBJECT) {
        return kvci_walk_refuse(walk, KVC_E_SCHEMA, "packing", "an object or null",
                                &ret_packing->token);
    }
    ret_packing->there = true;
    walk->part = "packing";
    for (int field = 0; status == KVC_OK && field < PACKING_FIELDS; field++) {
        status = kvci_walk_key(walk, &packing_fields, field);
        if (status == KVC_OK) {
            status = take_value(walk, field, ret_packing);
        }
    }
    if (status == KVC_OK) {
        status = kvci_walk_end(walk);
    }
    walk->part = NULL;
    return status;
}

enum kvc_status kvci_packing_judge(struct kvci_walk *walk, const struct kvci_packing *packing,
                                   enum kvci_role role)
{
    char expected[TEXT_BYTES];
    const bool packed = kvci_role_is_packed(role);
    if (packed != packing->there) {
        return kvci_walk_refuse(walk, KVC_E_GEOMETRY, "packing",
                                packed ? "an object: the elements of this role are packed"
                                       : "null: the elements of this role are not packed",
                                &packing->token);
    }
    if (!packed) {
        return KVC_OK;
    }
    enum kvc_status status = KVC_OK;
    walk->part = "packing";
    if (packing->scale_role != role + 1) {
        (void)snprintf(expected, sizeof(expected), "\"%s\"", kvci_role_name(role + 1));
        status = kvci_walk_refuse(walk, KVC_E_GEOMETRY, "scale", expected, &packing->scale_token);
    } else if (packing->zero && packing->zero_role != role + 2) {
        (void)snprintf(expected, sizeof(expected), "\"%s\" or null", kvci_role_name(role + 2));
        status = kvci_walk_refuse(walk, KVC_E_GEOMETRY, "zero", expected, &packing->zero_token);
    }
    walk->part = NULL;
    return status;
}
