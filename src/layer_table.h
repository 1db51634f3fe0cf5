/* layer_table.h: the layers of manifest version 2; pure.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCI_LAYER_TABLE_H
#define KVCI_LAYER_TABLE_H

#include "roles.h"
#include "walk.h"

enum kvci_layer_state { KVCI_LAYER_UNINITIALIZED, KVCI_LAYER_EMPTY, KVCI_LAYER_FILLED };

/* What its tensors are held against. */
struct kvci_layer {
    uint64_t aliases; /* four bits for each role: 0, or 1 more than the role that it is the same as
                       */
    uint32_t record;  /* where the record begins in the manifest */
    uint32_t stored_tokens;
    uint8_t kind;  /* enum kvci_kind */
    uint8_t state; /* enum kvci_layer_state */
};

struct kvci_layer_table {
    struct kvci_layer *layers; /* handed in */
    uint32_t capacity;
    uint32_t count;
    uint32_t self_count; /* those of the cross cache follow */
};

/* Takes the array of layer records, of which the key was taken, and judges it. */
enum kvc_status kvci_layer_table_take(struct kvci_walk *walk, struct kvci_layer_table *table);

/* Tells whether one role of the layer is the same tensor as another. */
bool kvci_layer_alias(const struct kvci_layer *layer, enum kvci_role role,
                      enum kvci_role *ret_same);

#endif
