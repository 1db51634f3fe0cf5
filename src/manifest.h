/* manifest.h: the tensor manifest, of version 1 and in general; pure.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCI_MANIFEST_H
#define KVCI_MANIFEST_H

#include "geometry.h"
#include "header.h"
#include "metadata.h"
#include "tensor_table.h"

/* Judges the manifest of parsed metadata, record by record, and computes the geometry, which
 * kvci_geometry_free takes back. `align_bytes` is 1, 64 or 4096; `opaque_bytes` the payload's
 * length when there is no manifest; `tensor_count` the number of tensors to make room for, at
 * least 1. `offset` is where the metadata begin in the file. */
enum kvc_status kvci_manifest_load(const struct kvci_metadata *metadata, uint64_t offset,
                                   uint32_t align_bytes, uint64_t opaque_bytes,
                                   uint32_t tensor_count, const struct kvc_allocator *allocator,
                                   struct kvci_geometry *ret_geometry, struct kvc_error *error);

/* Returns the incompatible feature bits that a file with these metadata has. */
uint64_t kvci_manifest_features(const struct kvci_metadata *metadata);

/* Holds metadata and geometry against a header. A geometry that has more tensors than there was
 * room for does not agree, so that afterwards every tensor has its place. */
enum kvc_status kvci_manifest_agrees(const struct kvci_metadata *metadata,
                                     const struct kvci_geometry *geometry,
                                     const struct kvci_header *header, struct kvc_error *error);

/* Tells what a tensor's elements are. */
void kvci_manifest_tensor(const struct kvci_metadata *metadata,
                          const struct kvci_geometry *geometry, uint32_t index,
                          struct kvci_form *ret_form);

#endif
