/* roles.c: the kinds of layers that manifest version 2 knows, and the roles that tensors have.
 * SPDX-License-Identifier: Apache-2.0 */
#include "roles.h"

#include <string.h>

#include "ban.h"

#define ATTENTION (KVCI_ROLE_BIT(KVCI_ROLE_KEY) | KVCI_ROLE_BIT(KVCI_ROLE_VALUE))
#define INDEXED (ATTENTION | KVCI_ROLE_BIT(KVCI_ROLE_INDEXER_KEY))
#define LINEAR (KVCI_ROLE_BIT(KVCI_ROLE_CONV_STATE) | KVCI_ROLE_BIT(KVCI_ROLE_RECURRENT_STATE))
#define HYBRID (ATTENTION | LINEAR)
#define PACKED (KVCI_ROLE_BIT(KVCI_ROLE_PACKED_KEY) | KVCI_ROLE_BIT(KVCI_ROLE_PACKED_VALUE))
#define QUANTIZED                                                                                  \
    (ATTENTION | PACKED | KVCI_ROLE_BIT(KVCI_ROLE_KEY_SCALE) | KVCI_ROLE_BIT(KVCI_ROLE_KEY_ZERO) | \
     KVCI_ROLE_BIT(KVCI_ROLE_VALUE_SCALE) | KVCI_ROLE_BIT(KVCI_ROLE_VALUE_ZERO))

static const char *const roles[KVCI_ROLE_COUNT] = {
    [KVCI_ROLE_KEY] = "key",
    [KVCI_ROLE_VALUE] = "value",
    [KVCI_ROLE_INDEXER_KEY] = "indexer_key",
    [KVCI_ROLE_CONV_STATE] = "conv_state",
    [KVCI_ROLE_RECURRENT_STATE] = "recurrent_state",
    [KVCI_ROLE_PACKED_KEY] = "packed_key",
    [KVCI_ROLE_KEY_SCALE] = "key_scale",
    [KVCI_ROLE_KEY_ZERO] = "key_zero",
    [KVCI_ROLE_PACKED_VALUE] = "packed_value",
    [KVCI_ROLE_VALUE_SCALE] = "value_scale",
    [KVCI_ROLE_VALUE_ZERO] = "value_zero",
    [KVCI_ROLE_TOKEN_IDS] = "token_ids",
    [KVCI_ROLE_ATTENTION_MASK] = "attention_mask",
};

static const struct {
    const char *name;
    bool window;
    uint32_t roles;
    uint32_t required;
} kinds[KVCI_KIND_COUNT] = {
    [KVCI_KIND_FULL] = {"full", false, ATTENTION, ATTENTION},
    [KVCI_KIND_SLIDING] = {"sliding", true, ATTENTION, ATTENTION},
    [KVCI_KIND_CHUNKED] = {"chunked", true, ATTENTION, ATTENTION},
    [KVCI_KIND_STATIC] = {"static", false, ATTENTION, ATTENTION},
    [KVCI_KIND_STATIC_SLIDING] = {"static_sliding", true, ATTENTION, ATTENTION},
    [KVCI_KIND_INDEXED] = {"indexed", false, INDEXED, ATTENTION},
    [KVCI_KIND_STATIC_INDEXED] = {"static_indexed", false, INDEXED, ATTENTION},
    [KVCI_KIND_LINEAR] = {"linear", false, LINEAR, 0},
    [KVCI_KIND_LINEAR_FULL] = {"linear_full", false, HYBRID, ATTENTION},
    [KVCI_KIND_LINEAR_STATIC] = {"linear_static", false, HYBRID, ATTENTION},
    [KVCI_KIND_LINEAR_SLIDING] = {"linear_sliding", true, HYBRID, ATTENTION},
    [KVCI_KIND_LINEAR_STATIC_SLIDING] = {"linear_static_sliding", true, HYBRID, ATTENTION},
    [KVCI_KIND_QUANTIZED] = {"quantized", false, QUANTIZED, PACKED},
};

static bool is_name(const uint8_t *text, size_t bytes, const char *name)
{
    return strlen(name) == bytes && memcmp(text, name, bytes) == 0;
}

const char *kvci_role_name(enum kvci_role role)
{
    return roles[role];
}

bool kvci_role_find(const uint8_t *text, size_t bytes, enum kvci_role *ret_role)
{
    for (unsigned i = 0; i < KVCI_ROLE_COUNT; i++) {
        if (is_name(text, bytes, roles[i])) {
            *ret_role = (enum kvci_role)i;
            return true;
        }
    }
    return false;
}

bool kvci_role_has_index(enum kvci_role role)
{
    return role == KVCI_ROLE_CONV_STATE || role == KVCI_ROLE_RECURRENT_STATE;
}

bool kvci_role_is_of_cache(enum kvci_role role)
{
    return role == KVCI_ROLE_TOKEN_IDS || role == KVCI_ROLE_ATTENTION_MASK;
}

bool kvci_role_is_packed(enum kvci_role role)
{
    return role == KVCI_ROLE_PACKED_KEY || role == KVCI_ROLE_PACKED_VALUE;
}

const char *kvci_kind_name(enum kvci_kind kind)
{
    return kinds[kind].name;
}

bool kvci_kind_find(const uint8_t *text, size_t bytes, enum kvci_kind *ret_kind)
{
    for (unsigned i = 0; i < KVCI_KIND_COUNT; i++) {
        if (is_name(text, bytes, kinds[i].name)) {
            *ret_kind = (enum kvci_kind)i;
            return true;
        }
    }
    return false;
}

bool kvci_kind_has_window(enum kvci_kind kind)
{
    return kinds[kind].window;
}

uint32_t kvci_kind_roles(enum kvci_kind kind)
{
    return kinds[kind].roles;
}

uint32_t kvci_kind_required(enum kvci_kind kind)
{
    return kinds[kind].required;
}
