/* reader.h: an open container, and what the files that hand out its bytes share.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCI_READER_H
#define KVCI_READER_H

#include "header.h"
#include "manifest.h"
#include "metadata.h"
#include "source.h"

#include <stdatomic.h>
#include <stdbool.h>

/* What is proven about one tensor so far. Both arrays appear once and never change place. */
struct kvci_proof {
    _Atomic(uint8_t *) row;            /* the tensor's chunk values, proven by its digest */
    _Atomic(_Atomic uint8_t *) chunks; /* one bit for each chunk proven in the mapping */
    _Atomic(uint8_t *) bad_digest;     /* what a bad row gave: it is not read for each tile */
    atomic_bool gap;                   /* the gap behind the tensor is proven in the mapping */
};

/* Everything before and after the payload, in private memory and proven. */
struct kvci_frame {
    struct kvci_header header;
    struct kvci_places places;
    struct kvci_footer footer;
    uint8_t *metadata_text;
    uint8_t *digests; /* 32 bytes for each tensor */
};

struct kvci_mapping;

struct kvc_reader {
    const struct kvc_allocator *allocator; /* NULL, or &own_allocator */
    struct kvc_allocator own_allocator;
    struct kvci_source source;
    struct kvci_frame frame;
    struct kvci_metadata metadata;
    struct kvci_geometry geometry;
    struct kvci_proof *proofs;
    _Atomic(struct kvci_mapping *) mapping;
    bool tag_checked;
};

/* Reads header, metadata, digests and footer, and proves them; frees what it made on failure. */
enum kvc_status kvci_frame_load(const struct kvci_source *source,
                                const struct kvc_allocator *allocator,
                                const struct kvc_reader_options *options,
                                struct kvci_frame *ret_frame, struct kvc_error *error);

void kvci_frame_free(struct kvci_frame *frame, const struct kvc_allocator *allocator);

/* One tensor's numbers. */
struct kvci_tensor {
    uint32_t index;
    uint64_t file_offset;
    uint64_t row_offset; /* in the file, of its chunk values */
    uint64_t bytes;
    uint64_t chunks;
    uint64_t gap_bytes; /* zeros up to the next tensor */
    const uint8_t *digest;
};

struct kvci_tensor kvci_reader_tensor(const struct kvc_reader *reader, uint32_t index);

/* Gives the tensor's proven chunk values; NULL for a tensor of one chunk, which has none. */
enum kvc_status kvci_reader_row(const struct kvc_reader *reader, const struct kvci_tensor *tensor,
                                const uint8_t **ret_row, struct kvc_error *error);

/* Holds `count` neighbouring chunks, at most a tile's, beginning with number `first`, against the
 * row. `data` are their bytes. */
enum kvc_status kvci_reader_check_chunks(const struct kvc_reader *reader,
                                         const struct kvci_tensor *tensor, const uint8_t *row,
                                         uint64_t first, uint64_t count, const uint8_t *data,
                                         struct kvc_error *error);

/* Holds the zeros behind a tensor against what they must be. */
enum kvc_status kvci_reader_check_gap(const struct kvci_tensor *tensor, const uint8_t *gap,
                                      struct kvc_error *error);

/* Bytes of `count` chunks beginning with number `first`; the tensor's last chunk may be short. */
uint64_t kvci_chunk_run_bytes(const struct kvci_tensor *tensor, uint64_t first, uint64_t count);

/* Tiles of the whole payload: each tensor has its own, and its last one takes the gap along. A
 * tensor of no bytes has none. */
struct kvci_tile {
    struct kvci_tensor tensor;
    uint64_t first_chunk;
    uint64_t chunk_count;
    bool last;
};

struct kvci_tile kvci_reader_tile(const struct kvc_reader *reader, uint64_t tile);

/* Writes the tensor's name as it stands in messages. */
void kvci_reader_name_tensor(const struct kvc_reader *reader, uint32_t index, char ret_text[64]);

void kvci_mapping_free(struct kvci_mapping *mapping);

/* Checks an index that a caller gave. */
enum kvc_status kvci_reader_check_index(const struct kvc_reader *reader, uint32_t index,
                                        struct kvc_error *error);

#endif
