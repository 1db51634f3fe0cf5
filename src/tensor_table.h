/* tensor_table.h: the tensors of manifest version 2; pure.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCI_TENSOR_TABLE_H
#define KVCI_TENSOR_TABLE_H

#include "geometry.h"
#include "layer_table.h"

/* What a tensor's elements are. */
struct kvci_form {
    const struct kvci_dtype *dtype;
    uint32_t rank;
    uint64_t shape[KVCI_MAX_RANK];
};

/* Takes the array of tensor records, of which the key was taken, holds it against the layers, and
 * adds each tensor to the geometry. */
enum kvc_status kvci_tensor_table_take(struct kvci_walk *walk, const struct kvci_layer_table *table,
                                       struct kvci_geometry *geometry);

/* Reads the form from a record that was judged before. */
void kvci_tensor_table_form(const struct kvci_metadata *metadata, const struct kvci_place *place,
                            struct kvci_form *ret_form);

#endif
