/* proof.c: holds payload bytes against the digests of the frame, chunk by chunk.
 * SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "blake3.h"
#include "bytes.h"
#include "reader.h"
#include "status.h"
#include "tiles.h"

#include "ban.h"

#define TENSOR_TEXT_BYTES 64

struct kvci_tensor kvci_reader_tensor(const struct kvc_reader *reader, uint32_t index)
{
    const struct kvci_place *place = &reader->geometry.places[index];
    const struct kvci_places *places = &reader->frame.places;
    struct kvci_tensor tensor = {
        .index = index,
        .file_offset = places->payload_offset + place->position,
        .row_offset = places->trailer_offset + KVCI_DIGEST * place->first_value,
        .bytes = place->bytes,
        .chunks = kvci_place_chunks(place),
        .gap_bytes = kvci_geometry_gap(&reader->geometry, index),
        .digest = reader->frame.digests + (size_t)index * KVCI_DIGEST,
    };
    return tensor;
}

void kvci_reader_name_tensor(const struct kvc_reader *reader, uint32_t index, char ret_text[64])
{
    char name[KVCI_NAME_BYTES];
    kvci_geometry_name(&reader->geometry, &reader->geometry.places[index], name);
    if (name[0] == '\0') {
        (void)snprintf(ret_text, TENSOR_TEXT_BYTES, "the opaque payload");
    } else {
        (void)snprintf(ret_text, TENSOR_TEXT_BYTES, "tensor %s", name);
    }
}

static void set_field(const struct kvc_reader *reader, uint32_t index, struct kvc_error *error)
{
    char name[KVCI_NAME_BYTES];
    kvci_geometry_name(&reader->geometry, &reader->geometry.places[index], name);
    kvci_error_field(error, name, strlen(name));
}

static void set_digests(struct kvc_error *error, const uint8_t *expected, const uint8_t *found)
{
    char expected_text[2 * KVCI_DIGEST + 1];
    char found_text[2 * KVCI_DIGEST + 1];
    kvci_hex(expected, KVCI_DIGEST, expected_text);
    kvci_hex(found, KVCI_DIGEST, found_text);
    kvci_error_expected(error, "%s", expected_text);
    kvci_error_found(error, "%s", found_text);
}

static enum kvc_status refuse_row(const struct kvc_reader *reader, const struct kvci_tensor *tensor,
                                  uint64_t offset, const uint8_t *found, struct kvc_error *error)
{
    char name[TENSOR_TEXT_BYTES];
    kvci_reader_name_tensor(reader, tensor->index, name);
    (void)kvci_fail(error, KVC_E_ROW, offset,
                    "the chunk values of %s at byte %llu are damaged: they do not combine to its "
                    "digest; restore the file from a good copy",
                    name, (unsigned long long)offset);
    set_field(reader, tensor->index, error);
    set_digests(error, tensor->digest, found);
    return KVC_E_ROW;
}

/* Reads the row into private memory before it is proven, so that nobody can change it after. */
static enum kvc_status load_row(const struct kvc_reader *reader, const struct kvci_tensor *tensor,
                                uint8_t **ret_row, struct kvc_error *error)
{
    uint64_t bytes = KVCI_DIGEST * tensor->chunks;
    uint64_t offset = tensor->row_offset;
    struct kvci_proof *proof = &reader->proofs[tensor->index];
    uint8_t *bad_digest = atomic_load(&proof->bad_digest);
    if (bad_digest != NULL) {
        return refuse_row(reader, tensor, offset, bad_digest, error);
    }
    uint8_t *row = kvci_alloc(reader->allocator, (size_t)bytes);
    if (row == NULL) {
        return kvci_fail_memory(error, bytes);
    }
    uint8_t digest[KVCI_DIGEST];
    enum kvc_status status = kvci_source_read(&reader->source, row, bytes, offset, error);
    if (status == KVC_OK) {
        kvci_blake3_combine(row, (size_t)tensor->chunks, digest);
        if (memcmp(digest, tensor->digest, sizeof(digest)) != 0) {
            status = refuse_row(reader, tensor, offset, digest, error);
            memcpy(row, digest, sizeof(digest));
            if (atomic_compare_exchange_strong(&proof->bad_digest, &bad_digest, row)) {
                return status;
            }
        }
    }
    if (status != KVC_OK) {
        kvci_free(reader->allocator, row);
        return status;
    }
    *ret_row = row;
    return KVC_OK;
}

enum kvc_status kvci_reader_row(const struct kvc_reader *reader, const struct kvci_tensor *tensor,
                                const uint8_t **ret_row, struct kvc_error *error)
{
    if (tensor->chunks < 2) {
        *ret_row = NULL;
        return KVC_OK;
    }
    struct kvci_proof *proof = &reader->proofs[tensor->index];
    uint8_t *row = atomic_load_explicit(&proof->row, memory_order_acquire);
    if (row == NULL) {
        uint8_t *loaded = NULL;
        enum kvc_status status = load_row(reader, tensor, &loaded, error);
        if (status != KVC_OK) {
            return status;
        }
        /* Another thread may have been first; then its row, which is the same, is used. */
        if (atomic_compare_exchange_strong(&proof->row, &row, loaded)) {
            row = loaded;
        } else {
            kvci_free(reader->allocator, loaded);
        }
    }
    *ret_row = row;
    return KVC_OK;
}

uint64_t kvci_chunk_run_bytes(const struct kvci_tensor *tensor, uint64_t first, uint64_t count)
{
    uint64_t start = first * KVCI_CHUNK_BYTES;
    uint64_t bytes = count * KVCI_CHUNK_BYTES;
    return bytes < tensor->bytes - start ? bytes : tensor->bytes - start;
}

static enum kvc_status refuse_chunk(const struct kvc_reader *reader,
                                    const struct kvci_tensor *tensor, uint64_t chunk,
                                    const uint8_t *expected, const uint8_t *found,
                                    struct kvc_error *error)
{
    char name[TENSOR_TEXT_BYTES];
    uint64_t start = chunk * KVCI_CHUNK_BYTES;
    uint64_t bytes = kvci_chunk_run_bytes(tensor, chunk, 1);
    kvci_reader_name_tensor(reader, tensor->index, name);
    (void)kvci_fail(error, KVC_E_CHUNK, tensor->file_offset + start,
                    "%s is damaged: its bytes %llu to %llu (file bytes %llu to %llu) do not match "
                    "their digest; restore the file from a good copy or compute the cache again",
                    name, (unsigned long long)start, (unsigned long long)(start + bytes - 1),
                    (unsigned long long)(tensor->file_offset + start),
                    (unsigned long long)(tensor->file_offset + start + bytes - 1));
    set_field(reader, tensor->index, error);
    set_digests(error, expected, found);
    return KVC_E_CHUNK;
}

/* Neighbouring chunks are hashed in one call, whose lanes they share. */
enum kvc_status kvci_reader_check_chunks(const struct kvc_reader *reader,
                                         const struct kvci_tensor *tensor, const uint8_t *row,
                                         uint64_t first, uint64_t count, const uint8_t *data,
                                         struct kvc_error *error)
{
    uint8_t values[KVCI_TILE_CHUNKS * KVCI_DIGEST];
    const uint8_t *expected = row != NULL ? row + first * KVCI_DIGEST : tensor->digest;
    size_t bytes = (size_t)kvci_chunk_run_bytes(tensor, first, count);
    assert(count <= KVCI_TILE_CHUNKS);
    if (row == NULL) {
        kvci_blake3_hash(data, bytes, values);
    } else {
        kvci_blake3_subtrees(data, bytes, first, values);
    }
    for (uint64_t i = 0; i < count; i++) {
        const uint8_t *value = values + i * KVCI_DIGEST;
        if (memcmp(value, expected + i * KVCI_DIGEST, KVCI_DIGEST) != 0) {
            return refuse_chunk(reader, tensor, first + i, expected + i * KVCI_DIGEST, value,
                                error);
        }
    }
    return KVC_OK;
}

enum kvc_status kvci_reader_check_gap(const struct kvci_tensor *tensor, const uint8_t *gap,
                                      struct kvc_error *error)
{
    size_t at = kvci_first_nonzero(gap, (size_t)tensor->gap_bytes);
    if (at == tensor->gap_bytes) {
        return KVC_OK;
    }
    uint64_t offset = tensor->file_offset + tensor->bytes + at;
    (void)kvci_fail(error, KVC_E_PADDING, offset,
                    "the gap between two tensors is damaged: byte %llu is %u, expected 0",
                    (unsigned long long)offset, (unsigned)gap[at]);
    kvci_error_expected(error, "0");
    kvci_error_found(error, "%u", (unsigned)gap[at]);
    return KVC_E_PADDING;
}

struct kvci_tile kvci_reader_tile(const struct kvc_reader *reader, uint64_t tile)
{
    uint32_t index = kvci_geometry_search(&reader->geometry, tile, 0);
    struct kvci_tile result;
    result.tensor = kvci_reader_tensor(reader, index);
    result.first_chunk = (tile - reader->geometry.places[index].first_tile) * KVCI_TILE_CHUNKS;
    uint64_t left = result.tensor.chunks - result.first_chunk;
    result.chunk_count = left < KVCI_TILE_CHUNKS ? left : KVCI_TILE_CHUNKS;
    result.last = left <= KVCI_TILE_CHUNKS;
    return result;
}
