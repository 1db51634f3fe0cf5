/* manifest2.h: the tensor manifest of version 2, tables of layers and tensors; pure.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCI_MANIFEST2_H
#define KVCI_MANIFEST2_H

#include "geometry.h"
#include "layer_table.h"
#include "metadata.h"

/* Judges the manifest of parsed metadata, and adds its tensors to the geometry. `layers` has room
 * for `metadata->layer_records` layers. */
enum kvc_status kvci_manifest2_parse(const struct kvci_metadata *metadata, uint64_t offset,
                                     struct kvci_layer *layers, struct kvci_geometry *geometry,
                                     struct kvc_error *error);

#endif
