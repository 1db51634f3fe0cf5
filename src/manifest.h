/* manifest.h: the tensor manifest, and the geometry of the payload; pure.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCI_MANIFEST_H
#define KVCI_MANIFEST_H

#include "header.h"
#include "metadata.h"

#define KVCI_NAME_BYTES 32

/* Where the payload's tensors lie. Manifest version 1 gives all of them one size, so that a
 * tensor's place is computed and no table is kept. An opaque payload is a single tensor. */
struct kvci_geometry {
    uint32_t manifest_version; /* 0: no manifest, an opaque payload */
    uint32_t batch_size;
    uint32_t tensor_count; /* stored tensors, at least 1 */
    uint64_t shape[KVCI_RANK];
    uint64_t tensor_bytes;
    uint64_t stride_bytes; /* from one tensor to the next, the gap included */
    uint64_t payload_bytes;
    uint64_t payload_span;
    uint64_t chunks_per_tensor;
    uint64_t row_values; /* stored chunk values in all */
    uint64_t file_bytes;
};

/* Judges the manifest of parsed metadata, record by record, and computes the geometry.
 * `align_bytes` is 1, 64 or 4096; `opaque_bytes` the payload's length when there is no manifest.
 * `offset` is where the metadata begin in the file. */
enum kvc_status kvci_manifest_parse(const struct kvci_metadata *metadata, uint64_t offset,
                                    uint32_t align_bytes, uint64_t opaque_bytes,
                                    struct kvci_geometry *ret_geometry, struct kvc_error *error);

/* Holds the geometry against a header. */
enum kvc_status kvci_manifest_agrees(const struct kvci_geometry *geometry,
                                     const struct kvci_header *header, struct kvc_error *error);

/* Writes the name of tensor `index`, terminated: "layer.3.key", or "" for an opaque payload. */
void kvci_manifest_name(const struct kvci_geometry *geometry, uint32_t index,
                        char ret_name[KVCI_NAME_BYTES]);

/* Finds a tensor by its name; false when there is none. */
bool kvci_manifest_find(const struct kvci_geometry *geometry, const char *name, size_t name_bytes,
                        uint32_t *ret_index);

#endif
