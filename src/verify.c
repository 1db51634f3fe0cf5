/* verify.c: reads a whole container and proves every byte of it.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "reader.h"
#include "status.h"
#include "tiles.h"

#include "ban.h"

struct verifying {
    const struct kvc_reader *reader;
    kvc_failure_fn on_failure;
    void *failure_context;
};

/* The work on a tensor: its tiles, then the gap behind it, then its row. Each is looked at even
 * when one before it is damaged. */
#define STEPS_AFTER_TILES 2

static enum kvc_status verify_tile(const struct kvc_reader *reader, uint64_t number,
                                   uint8_t *scratch, struct kvc_error *error)
{
    const struct kvci_tile tile = kvci_reader_tile(reader, number);
    const uint8_t *row = NULL;
    uint64_t bytes = kvci_chunk_run_bytes(&tile.tensor, tile.first_chunk, tile.chunk_count);
    uint64_t offset = tile.tensor.file_offset + tile.first_chunk * KVCI_CHUNK_BYTES;
    enum kvc_status status = kvci_reader_row(reader, &tile.tensor, &row, error);
    if (status == KVC_OK) {
        status = kvci_source_read(&reader->source, scratch, bytes, offset, error);
    }
    if (status == KVC_OK) {
        status = kvci_reader_check_chunks(reader, &tile.tensor, row, tile.first_chunk,
                                          tile.chunk_count, scratch, error);
    }
    return status;
}

static enum kvc_status verify_gap(const struct kvc_reader *reader, uint32_t index, uint8_t *scratch,
                                  struct kvc_error *error)
{
    const struct kvci_tensor tensor = kvci_reader_tensor(reader, index);
    if (tensor.gap_bytes == 0) {
        return KVC_OK;
    }
    enum kvc_status status = kvci_source_read(&reader->source, scratch, tensor.gap_bytes,
                                              tensor.file_offset + tensor.bytes, error);
    return status == KVC_OK ? kvci_reader_check_gap(&tensor, scratch, error) : status;
}

static int report(void *context, uint64_t step, const struct kvc_error *failure)
{
    const struct verifying *verifying = context;
    (void)step;
    return verifying->on_failure(verifying->failure_context, failure);
}

static uint64_t tensor_of(void *context, uint64_t step)
{
    const struct verifying *verifying = context;
    return kvci_geometry_search(&verifying->reader->geometry, step, STEPS_AFTER_TILES);
}

/* The frame was proven when the file was opened; this proves that the file still holds it. */
static enum kvc_status verify_frame(const struct kvc_reader *reader, struct kvc_error *error)
{
    struct kvc_reader_options options = KVC_READER_OPTIONS_INIT;
    struct kvci_frame frame;
    options.expected_root = reader->frame.footer.root;
    enum kvc_status status =
        kvci_frame_load(&reader->source, reader->allocator, &options, &frame, error);
    if (status == KVC_OK) {
        kvci_frame_free(&frame, reader->allocator);
    }
    return status;
}

/* A row that was proven earlier is compared with the bytes that the file holds now. */
static enum kvc_status verify_row(const struct kvc_reader *reader, uint32_t index, uint8_t *scratch,
                                  struct kvc_error *error)
{
    const struct kvci_tensor tensor = kvci_reader_tensor(reader, index);
    const uint8_t *row = NULL;
    enum kvc_status status = kvci_reader_row(reader, &tensor, &row, error);
    uint64_t bytes = row != NULL ? tensor.chunks * KVCI_DIGEST : 0;
    uint64_t offset = tensor.row_offset;
    for (uint64_t at = 0; status == KVC_OK && at < bytes; at += KVCI_CHUNK_BYTES) {
        uint64_t piece = bytes - at < KVCI_CHUNK_BYTES ? bytes - at : KVCI_CHUNK_BYTES;
        status = kvci_source_read(&reader->source, scratch, piece, offset + at, error);
        if (status == KVC_OK && memcmp(scratch, row + at, (size_t)piece) != 0) {
            char name[64];
            kvci_reader_name_tensor(reader, index, name);
            status = kvci_fail(error, KVC_E_ROW, offset + at,
                               "the chunk values of %s at byte %llu changed since the file was "
                               "opened; restore the file from a good copy",
                               name, (unsigned long long)(offset + at));
            kvci_geometry_name(&reader->geometry, &reader->geometry.places[index], name);
            kvci_error_field(error, name, strlen(name));
        }
    }
    return status;
}

static enum kvc_status verify_step(void *context, uint64_t number, uint8_t *scratch,
                                   struct kvc_error *error)
{
    const struct verifying *verifying = context;
    const uint32_t tensor = (uint32_t)tensor_of(context, number);
    const struct kvci_place *place = &verifying->reader->geometry.places[tensor];
    const uint64_t tiles = kvci_place_tiles(place);
    const uint64_t step = number - place->first_tile - STEPS_AFTER_TILES * (uint64_t)tensor;
    if (step < tiles) {
        return verify_tile(verifying->reader, place->first_tile + step, scratch, error);
    }
    return step == tiles ? verify_gap(verifying->reader, tensor, scratch, error)
                         : verify_row(verifying->reader, tensor, scratch, error);
}

enum kvc_status kvc_reader_verify(const struct kvc_reader *reader, const struct kvc_work *work,
                                  kvc_failure_fn on_failure, void *failure_context,
                                  struct kvc_error *error)
{
    if (reader == NULL) {
        return kvci_fail(error, KVC_E_USAGE, KVC_NO_OFFSET, "reader must not be NULL");
    }
    struct kvc_error own_error = KVC_ERROR_INIT;
    error = error != NULL ? error : &own_error;
    enum kvc_status status = kvci_tiles_check(work, error);
    if (status != KVC_OK) {
        return status;
    }
    status = verify_frame(reader, error);
    if (status != KVC_OK) {
        if (on_failure != NULL) {
            (void)on_failure(failure_context, error);
        }
        return status;
    }
    struct verifying verifying = {
        .reader = reader,
        .on_failure = on_failure,
        .failure_context = failure_context,
    };
    struct kvci_tiles steps = {
        .work = work,
        .allocator = reader->allocator,
        .tile_count = reader->geometry.tile_count +
                      STEPS_AFTER_TILES * (uint64_t)reader->geometry.tensor_count,
        .total_bytes = reader->geometry.payload_bytes,
        .scratch_bytes = KVCI_TILE_CHUNKS * KVCI_CHUNK_BYTES,
        .tile = verify_step,
        .context = &verifying,
        .on_failure = on_failure != NULL ? report : NULL,
        .group = tensor_of,
    };
    kvci_source_sequential(&reader->source);
    return kvci_tiles_run(&steps, error);
}
