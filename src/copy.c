/* copy.c: reads payload bytes into the caller's buffer and proves them there.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "reader.h"
#include "status.h"
#include "tiles.h"

#include "ban.h"

/* One read of bytes [start, end) of a tensor. Its tiles are cut on the chunk grid. */
struct range {
    const struct kvc_reader *reader;
    struct kvci_tensor tensor;
    const uint8_t *row;
    uint64_t start;
    uint64_t end;
    uint8_t *buffer;
};

/* Reads whole chunks through the thread's scratch and copies the part that was asked for. */
static enum kvc_status copy_part(const struct range *range, uint64_t chunk, uint8_t *scratch,
                                 struct kvc_error *error)
{
    uint64_t chunk_start = chunk * KVCI_CHUNK_BYTES;
    uint64_t bytes = kvci_chunk_run_bytes(&range->tensor, chunk, 1);
    enum kvc_status status = kvci_source_read(&range->reader->source, scratch, bytes,
                                              range->tensor.file_offset + chunk_start, error);
    if (status == KVC_OK) {
        status = kvci_reader_check_chunks(range->reader, &range->tensor, range->row, chunk, 1,
                                          scratch, error);
    }
    if (status != KVC_OK) {
        return status;
    }
    uint64_t from = range->start > chunk_start ? range->start : chunk_start;
    uint64_t to = range->end < chunk_start + bytes ? range->end : chunk_start + bytes;
    memcpy(range->buffer + (from - range->start), scratch + (from - chunk_start),
           (size_t)(to - from));
    return KVC_OK;
}

/* Reads whole chunks straight to where they belong, and proves them there. */
static enum kvc_status copy_whole(const struct range *range, uint64_t first, uint64_t count,
                                  struct kvc_error *error)
{
    uint64_t start = first * KVCI_CHUNK_BYTES;
    uint64_t bytes = kvci_chunk_run_bytes(&range->tensor, first, count);
    uint8_t *to = range->buffer + (start - range->start);
    enum kvc_status status = kvci_source_read(&range->reader->source, to, bytes,
                                              range->tensor.file_offset + start, error);
    if (status == KVC_OK) {
        status = kvci_reader_check_chunks(range->reader, &range->tensor, range->row, first, count,
                                          to, error);
    }
    return status;
}

static bool is_whole(const struct range *range, uint64_t chunk)
{
    uint64_t start = chunk * KVCI_CHUNK_BYTES;
    return range->start <= start &&
           range->end >= start + kvci_chunk_run_bytes(&range->tensor, chunk, 1);
}

static enum kvc_status copy_tile(void *context, uint64_t tile, uint8_t *scratch,
                                 struct kvc_error *error)
{
    const struct range *range = context;
    uint64_t first = range->start / KVCI_CHUNK_BYTES + tile * KVCI_TILE_CHUNKS;
    uint64_t end = (range->end - 1) / KVCI_CHUNK_BYTES + 1;
    end = end < first + KVCI_TILE_CHUNKS ? end : first + KVCI_TILE_CHUNKS;
    for (uint64_t chunk = first; chunk < end;) {
        uint64_t run = chunk;
        while (run < end && is_whole(range, run)) {
            run++;
        }
        enum kvc_status status = run > chunk ? copy_whole(range, chunk, run - chunk, error)
                                             : copy_part(range, chunk, scratch, error);
        if (status != KVC_OK) {
            return status;
        }
        chunk = run > chunk ? run : chunk + 1;
    }
    return KVC_OK;
}

enum kvc_status kvc_reader_read(const struct kvc_reader *reader, uint32_t index, uint64_t start,
                                uint64_t bytes, const struct kvc_work *work, void *buffer,
                                struct kvc_error *error)
{
    enum kvc_status status = kvci_reader_check_index(reader, index, error);
    if (status == KVC_OK) {
        status = kvci_tiles_check(work, error);
    }
    if (status != KVC_OK) {
        return status;
    }
    if (buffer == NULL && bytes > 0) {
        return kvci_fail(error, KVC_E_USAGE, KVC_NO_OFFSET, "buffer must not be NULL");
    }
    struct range range = {.reader = reader,
                          .tensor = kvci_reader_tensor(reader, index),
                          .start = start,
                          .end = start + bytes,
                          .buffer = buffer};
    if (start > range.tensor.bytes || bytes > range.tensor.bytes - start) {
        return kvci_fail(error, KVC_E_RANGE, KVC_NO_OFFSET,
                         "%llu bytes from byte %llu are not all inside the tensor: it has %llu",
                         (unsigned long long)bytes, (unsigned long long)start,
                         (unsigned long long)range.tensor.bytes);
    }
    if (bytes == 0) {
        return KVC_OK;
    }
    uint64_t chunks = (range.end - 1) / KVCI_CHUNK_BYTES + 1 - start / KVCI_CHUNK_BYTES;
    struct kvci_tiles tiles = {
        .work = work,
        .allocator = reader->allocator,
        .tile_count = (chunks + KVCI_TILE_CHUNKS - 1) / KVCI_TILE_CHUNKS,
        .total_bytes = bytes,
        .scratch_bytes = KVCI_CHUNK_BYTES,
        .tile = copy_tile,
        .context = &range,
    };
    status = kvci_reader_row(reader, &range.tensor, &range.row, error);
    if (status == KVC_OK) {
        status = kvci_tiles_run(&tiles, error);
    }
    if (status != KVC_OK) {
        /* Bytes that are not proven must not reach the caller. */
        memset(buffer, 0, (size_t)bytes);
    }
    return status;
}

struct payload {
    const struct kvc_reader *reader;
    uint8_t *buffer;
};

static enum kvc_status copy_payload_tile(void *context, uint64_t number, uint8_t *scratch,
                                         struct kvc_error *error)
{
    const struct payload *payload = context;
    const struct kvci_tile tile = kvci_reader_tile(payload->reader, number);
    const struct kvci_place *place = &payload->reader->geometry.places[tile.tensor.index];
    struct range range = {.reader = payload->reader,
                          .tensor = tile.tensor,
                          .start = 0,
                          .end = tile.tensor.bytes,
                          .buffer = payload->buffer + place->offset};
    enum kvc_status status = kvci_reader_row(payload->reader, &range.tensor, &range.row, error);
    if (status == KVC_OK) {
        status = copy_whole(&range, tile.first_chunk, tile.chunk_count, error);
    }
    if (status == KVC_OK && tile.last && tile.tensor.gap_bytes > 0) {
        status = kvci_source_read(&payload->reader->source, scratch, tile.tensor.gap_bytes,
                                  tile.tensor.file_offset + tile.tensor.bytes, error);
        if (status == KVC_OK) {
            status = kvci_reader_check_gap(&tile.tensor, scratch, error);
        }
    }
    return status;
}

enum kvc_status kvc_reader_read_payload(const struct kvc_reader *reader,
                                        const struct kvc_work *work, void *buffer,
                                        uint64_t buffer_bytes, struct kvc_error *error)
{
    if (reader == NULL || buffer == NULL) {
        return kvci_fail(error, KVC_E_USAGE, KVC_NO_OFFSET, "reader and buffer must not be NULL");
    }
    enum kvc_status status = kvci_tiles_check(work, error);
    if (status != KVC_OK) {
        return status;
    }
    uint64_t needed = reader->geometry.payload_bytes;
    if (buffer_bytes < needed) {
        return kvci_fail(error, KVC_E_RANGE, KVC_NO_OFFSET,
                         "the buffer has %llu bytes, the payload needs %llu",
                         (unsigned long long)buffer_bytes, (unsigned long long)needed);
    }
    struct payload payload = {reader, buffer};
    struct kvci_tiles tiles = {
        .work = work,
        .allocator = reader->allocator,
        .tile_count = reader->geometry.tile_count,
        .total_bytes = needed,
        .scratch_bytes = KVCI_PAYLOAD_ALIGN,
        .tile = copy_payload_tile,
        .context = &payload,
    };
    kvci_source_sequential(&reader->source);
    status = kvci_tiles_run(&tiles, error);
    if (status != KVC_OK) {
        memset(buffer, 0, (size_t)needed);
    }
    return status;
}
