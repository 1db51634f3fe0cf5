/* geometry.h: where the tensors of a payload lie, and which one a tile or a name means; pure.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCI_GEOMETRY_H
#define KVCI_GEOMETRY_H

#include "kvc.h"
#include "layout.h"
#include "roles.h"

#include <stdbool.h>

/* Room for the longest name, "layer.32767.recurrent_state.255", and its final zero. */
#define KVCI_NAME_BYTES 32

/* Chunks of a tile, the piece of work of a thread: four of them, which are hashed and copied, stay
 * in a core's second-level cache. */
#define KVCI_TILE_CHUNKS 4

/* One stored tensor. Numbers of chunk values and tiles count over the whole payload. A tensor of no
 * bytes has no chunks and no tiles, and its position is where the tensor before it ends. */
struct kvci_place {
    uint64_t offset;   /* in the logical payload */
    uint64_t position; /* in the file, from the payload's first byte */
    uint64_t bytes;
    uint64_t first_value; /* of its row, among the stored chunk values */
    uint64_t first_tile;
    uint32_t layer;  /* index of its layer, KVC_NO_LAYER where it has none */
    uint32_t record; /* version 2: where its record begins in the metadata */
    uint8_t role;    /* enum kvci_role */
    uint8_t index;   /* which state of that role */
};

/* The payload as its manifest has it. An opaque payload is a single tensor. */
struct kvci_geometry {
    uint32_t manifest_version; /* 0: no manifest, an opaque payload */
    uint32_t batch_size;
    uint32_t self_layers; /* layers from here on are those of the cross cache */
    uint32_t align_bytes;
    uint32_t tensor_count; /* stored tensors, at least 1 */
    uint64_t payload_bytes;
    uint64_t payload_span;
    uint64_t chunk_count;
    uint64_t row_values; /* stored chunk values in all */
    uint64_t tile_count;
    uint64_t file_bytes;
    struct kvci_place *places; /* one for each tensor, in file order */
    uint32_t place_capacity;   /* tensors beyond it are counted and not kept */
};

/* Makes room for `count` tensors in an empty geometry; false when there is no memory. */
bool kvci_geometry_allocate(struct kvci_geometry *geometry, const struct kvc_allocator *allocator,
                            uint32_t count);

void kvci_geometry_free(struct kvci_geometry *geometry, const struct kvc_allocator *allocator);

/* Adds the tensor that comes next. Of `tensor`, its bytes and what is known of its record are
 * taken; its places are computed. False when the payload would be too large for a file. */
bool kvci_geometry_add(struct kvci_geometry *geometry, const struct kvci_place *tensor);

/* Adds what the trailer needs, when all tensors are there; false when the file would be too large.
 */
bool kvci_geometry_finish(struct kvci_geometry *geometry, size_t metadata_bytes);

uint64_t kvci_place_chunks(const struct kvci_place *place);
uint64_t kvci_place_tiles(const struct kvci_place *place);

/* Bytes between a tensor and the next one that has bytes. */
uint64_t kvci_geometry_gap(const struct kvci_geometry *geometry, uint32_t index);

/* Returns the tensor in which a piece of work lies, when each tensor has its tiles and then
 * `extra` pieces more. */
uint32_t kvci_geometry_search(const struct kvci_geometry *geometry, uint64_t piece, uint64_t extra);

/* Writes the name of a tensor, terminated: "layer.3.key", or "" for an opaque payload. */
void kvci_geometry_name(const struct kvci_geometry *geometry, const struct kvci_place *place,
                        char ret_name[KVCI_NAME_BYTES]);

/* Finds a tensor by its name; false when there is none. */
bool kvci_geometry_find(const struct kvci_geometry *geometry, const char *name, size_t name_bytes,
                        uint32_t *ret_index);

#endif
