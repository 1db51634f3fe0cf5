/* roles.h: the kinds of layers that manifest version 2 knows, and the roles that tensors have.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCI_ROLES_H
#define KVCI_ROLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* In the order of FORMAT.md, which is that of the tensors of a layer. */
enum kvci_role {
    KVCI_ROLE_KEY,
    KVCI_ROLE_VALUE,
    KVCI_ROLE_INDEXER_KEY,
    KVCI_ROLE_CONV_STATE,
    KVCI_ROLE_RECURRENT_STATE,
    KVCI_ROLE_PACKED_KEY,
    KVCI_ROLE_KEY_SCALE,
    KVCI_ROLE_KEY_ZERO,
    KVCI_ROLE_PACKED_VALUE,
    KVCI_ROLE_VALUE_SCALE,
    KVCI_ROLE_VALUE_ZERO,
    KVCI_ROLE_TOKEN_IDS,
    KVCI_ROLE_ATTENTION_MASK,
    KVCI_ROLE_COUNT
};

#define KVCI_ROLE_BIT(role) (UINT32_C(1) << (role))

enum kvci_kind {
    KVCI_KIND_FULL,
    KVCI_KIND_SLIDING,
    KVCI_KIND_CHUNKED,
    KVCI_KIND_STATIC,
    KVCI_KIND_STATIC_SLIDING,
    KVCI_KIND_INDEXED,
    KVCI_KIND_STATIC_INDEXED,
    KVCI_KIND_LINEAR,
    KVCI_KIND_LINEAR_FULL,
    KVCI_KIND_LINEAR_STATIC,
    KVCI_KIND_LINEAR_SLIDING,
    KVCI_KIND_LINEAR_STATIC_SLIDING,
    KVCI_KIND_QUANTIZED,
    KVCI_KIND_COUNT
};

/* The functions that find take the raw spelling of a JSON string: no name here has an escape. */

const char *kvci_role_name(enum kvci_role role);
bool kvci_role_find(const uint8_t *text, size_t bytes, enum kvci_role *ret_role);

/* Tells whether a layer may have several tensors of this role, which an index tells apart. */
bool kvci_role_has_index(enum kvci_role role);

/* Tells whether the role belongs to the cache and not to a layer. */
bool kvci_role_is_of_cache(enum kvci_role role);

/* Tells whether the tensor holds quantised elements, so that its record has `packing`. The tensors
 * of its scales and of its zero points are the two roles behind it. */
bool kvci_role_is_packed(enum kvci_role role);

const char *kvci_kind_name(enum kvci_kind kind);
bool kvci_kind_find(const uint8_t *text, size_t bytes, enum kvci_kind *ret_kind);
bool kvci_kind_has_window(enum kvci_kind kind);

/* The roles that a layer of this kind may have, and those that it must have when it is filled. */
uint32_t kvci_kind_roles(enum kvci_kind kind);
uint32_t kvci_kind_required(enum kvci_kind kind);

#endif
