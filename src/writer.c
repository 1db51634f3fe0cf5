/* writer.c: streams a container: header, metadata, payload, trailer.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kvc.h"

#include <string.h>

#include "alloc.h"
#include "blake3.h"
#include "canonical.h"
#include "info.h"
#include "manifest.h"
#include "metadata.h"
#include "root.h"
#include "sink.h"
#include "status.h"
#include "strides.h"
#include "tiles.h"

#include "ban.h"

/* A custom sink gets the payload in pieces of this size, each hashed by all threads before. */
#define ORDERED_WINDOW_BYTES (UINT64_C(8) << 20)

/* The progress callback is called about once for this many bytes. */
#define PROGRESS_BYTES (UINT64_C(4) << 20)

/* The first growth of the list of chunk values, which is sized by the bytes that really came. */
#define FIRST_ROW_VALUES 256

enum state { WRITING, FAILED, FINISHED };

struct kvc_writer {
    const struct kvc_allocator *allocator; /* NULL, or &own_allocator */
    struct kvc_allocator own_allocator;
    struct kvc_work work;
    struct kvci_sink sink;
    bool sink_open;
    bool has_key;
    uint8_t key[KVCI_DIGEST];
    bool align_given;
    uint8_t align_log2;
    bool unknown_bytes; /* an opaque payload whose length is found out */
    enum state state;

    uint8_t *text; /* canonical metadata */
    size_t text_bytes;
    struct kvci_metadata metadata;
    struct kvci_geometry geometry;
    uint64_t payload_offset;

    uint8_t *row; /* chunk values of all tensors that have two chunks or more */
    uint64_t row_values;
    uint64_t row_capacity;
    uint64_t tensor_row; /* index of the current tensor's first value */
    uint8_t *digests;

    uint32_t tensor;      /* the current one */
    uint64_t tensor_done; /* bytes of it that are hashed and written */
    uint64_t taken_bytes; /* payload bytes in all, those in `chunk` included */
    uint8_t *chunk;       /* the beginning of a chunk whose rest has not come yet */
    size_t chunk_bytes;
    uint64_t reported_bytes;   /* of the last progress call that this file made itself */
    struct kvci_footer footer; /* when finished */
};

static enum kvc_status take_options(struct kvc_writer *writer,
                                    const struct kvc_writer_options *options,
                                    struct kvc_error *error)
{
    static const struct {
        uint32_t bytes;
        uint8_t log2;
    } aligns[] = {{0, 0}, {1, 0}, {64, KVCI_ALIGN_LOG2_2}, {4096, 12}};
    if (options->size != sizeof(*options)) {
        return kvci_fail(error, KVC_E_OPTION, KVC_NO_OFFSET,
                         "kvc_writer_options.size is %zu, expected %zu: use "
                         "KVC_WRITER_OPTIONS_INIT",
                         options->size, sizeof(*options));
    }
    size_t at = 0;
    while (at < 4 && aligns[at].bytes != options->align_bytes) {
        at++;
    }
    if (at == 4) {
        return kvci_fail(error, KVC_E_OPTION, KVC_NO_OFFSET,
                         "align_bytes is %u, expected 1, 64 or 4096", options->align_bytes);
    }
    if ((unsigned)options->durability > KVC_DURABILITY_NONE) {
        return kvci_fail(error, KVC_E_OPTION, KVC_NO_OFFSET,
                         "durability is %u, expected 0 (full), 1 (file) or 2 (none)",
                         (unsigned)options->durability);
    }
    writer->align_log2 = aligns[at].log2;
    writer->align_given = options->align_bytes != 0;
    writer->work = options->work;
    if (options->key != NULL) {
        writer->has_key = true;
        memcpy(writer->key, options->key, sizeof(writer->key));
    }
    return kvci_tiles_check(&writer->work, error);
}

/* Takes any spelling of the metadata and keeps the one that is stored. */
static enum kvc_status take_metadata(struct kvc_writer *writer, const char *metadata,
                                     size_t metadata_bytes, struct kvc_error *error)
{
    const char *problem = NULL;
    size_t problem_offset = 0;
    uint64_t max_values =
        KVCI_BASE_JSON_VALUES + (uint64_t)KVCI_JSON_VALUES_PER_TENSOR * KVCI_MAX_TENSOR_COUNT;
    enum kvci_canonical_result result =
        kvci_canonical_write(metadata, metadata_bytes, max_values, writer->allocator, &writer->text,
                             &writer->text_bytes, &problem, &problem_offset);
    if (result == KVCI_CANONICAL_NO_MEMORY) {
        return kvci_fail_memory(error, metadata_bytes);
    }
    if (result == KVCI_CANONICAL_REFUSED) {
        return kvci_fail(error, KVC_E_JSON, problem_offset,
                         "the metadata are not JSON that can be stored: %s at byte %zu", problem,
                         problem_offset);
    }
    uint8_t *normal = NULL;
    size_t normal_bytes = 0;
    if (!kvci_strides_normalize(writer->text, writer->text_bytes, writer->allocator, &normal,
                                &normal_bytes)) {
        return kvci_fail_memory(error, writer->text_bytes);
    }
    if (normal != NULL) {
        kvci_free(writer->allocator, writer->text);
        writer->text = normal;
        writer->text_bytes = normal_bytes;
    }
    if (writer->text_bytes > KVCI_MAX_METADATA_BYTES) {
        return kvci_fail(error, KVC_E_STRUCTURE, KVC_NO_OFFSET,
                         "the metadata take %zu bytes, at most 16777216 are allowed",
                         writer->text_bytes);
    }
    return KVC_OK;
}

/* Tensors for which the metadata ask. Those of version 2 are counted, and at most as many as a file
 * can have. */
static uint32_t count_tensors(const struct kvci_metadata *metadata)
{
    switch (metadata->manifest_version) {
    case 0:
        return 0;
    case 1:
        return 2 * metadata->layers;
    default:
        return metadata->tensor_records;
    }
}

static enum kvc_status load_geometry(struct kvc_writer *writer, uint64_t opaque_bytes,
                                     struct kvc_error *error)
{
    const uint32_t count = count_tensors(&writer->metadata);
    kvci_geometry_free(&writer->geometry, writer->allocator);
    return kvci_manifest_load(&writer->metadata, 0, UINT32_C(1) << writer->align_log2, opaque_bytes,
                              count > 0 ? count : 1, writer->allocator, &writer->geometry, error);
}

/* The limit on JSON values depends on the number of tensors, which only a first parse tells. */
static enum kvc_status judge_metadata(struct kvc_writer *writer, uint64_t opaque_bytes,
                                      struct kvc_error *error)
{
    enum kvc_status status =
        kvci_metadata_parse(writer->text, writer->text_bytes, 0, KVCI_VERSION_MINOR,
                            KVCI_MAX_TENSOR_COUNT, &writer->metadata, error);
    if (status == KVC_OK) {
        status = kvci_metadata_parse(writer->text, writer->text_bytes, 0, KVCI_VERSION_MINOR,
                                     count_tensors(&writer->metadata), &writer->metadata, error);
    }
    if (status != KVC_OK) {
        return status;
    }
    writer->unknown_bytes =
        !writer->metadata.present[KVCI_MEMBER_TENSOR_MANIFEST] && opaque_bytes == KVC_UNKNOWN_BYTES;
    if (opaque_bytes == 0 && !writer->metadata.present[KVCI_MEMBER_TENSOR_MANIFEST]) {
        return kvci_fail(error, KVC_E_LENGTH, KVC_NO_OFFSET,
                         "payload_bytes is 0: a payload has at least one byte");
    }
    if (writer->metadata.manifest_version == 2 && !writer->align_given) {
        writer->align_log2 = KVCI_ALIGN_LOG2_2;
    }
    /* A length that is not known yet is judged as the smallest one here, and again at the end. */
    return load_geometry(writer, writer->unknown_bytes ? 1 : opaque_bytes, error);
}

static struct kvci_header make_header(const struct kvc_writer *writer)
{
    const struct kvci_geometry *geometry = &writer->geometry;
    struct kvci_header header = {
        .version_major = KVCI_VERSION_MAJOR,
        .version_minor = (uint16_t)writer->metadata.lowest_minor,
        .incompat = kvci_manifest_features(&writer->metadata),
        .file_bytes = geometry->file_bytes,
        .metadata_bytes = writer->text_bytes,
        .payload_span = geometry->payload_span,
        .tensor_count = geometry->manifest_version == 0 ? 0 : geometry->tensor_count,
        .align_log2 = writer->align_log2,
    };
    return header;
}

static enum kvc_status write_header(struct kvc_writer *writer, struct kvc_error *error)
{
    uint8_t block[KVCI_HEADER_BYTES];
    const struct kvci_header header = make_header(writer);
    kvci_header_encode(&header, block);
    return kvci_sink_write(&writer->sink, block, sizeof(block), 0, error);
}

static enum kvc_status begin_file(struct kvc_writer *writer, struct kvc_error *error)
{
    enum kvc_status status = KVC_OK;
    if (!writer->unknown_bytes) {
        status = kvci_sink_reserve(&writer->sink, writer->geometry.file_bytes, error);
        if (status == KVC_OK) {
            status = write_header(writer, error);
        }
    }
    if (status == KVC_OK) {
        status = kvci_sink_write(&writer->sink, writer->text, writer->text_bytes, KVCI_HEADER_BYTES,
                                 error);
    }
    return status;
}

static uint64_t tensor_bytes(const struct kvc_writer *writer)
{
    return writer->geometry.places[writer->tensor].bytes;
}

/* Tensors of no bytes are finished before they are begun. */
static void skip_empty(struct kvc_writer *writer)
{
    while (writer->tensor < writer->geometry.tensor_count && tensor_bytes(writer) == 0) {
        kvci_blake3_hash(NULL, 0, writer->digests + (size_t)writer->tensor * KVCI_DIGEST);
        writer->tensor++;
    }
}

/* Everything that does not touch the sink; the writer is freed on failure. */
static enum kvc_status prepare(const char *metadata, size_t metadata_bytes,
                               const struct kvc_writer_options *options,
                               struct kvc_writer **ret_writer, struct kvc_error *error)
{
    struct kvc_writer_options defaults = KVC_WRITER_OPTIONS_INIT;
    if (metadata == NULL || ret_writer == NULL) {
        return kvci_fail(error, KVC_E_USAGE, KVC_NO_OFFSET,
                         "metadata and ret_writer must not be NULL");
    }
    options = options != NULL ? options : &defaults;
    const struct kvc_allocator *allocator =
        options->size == sizeof(*options) ? options->allocator : NULL;
    if (kvci_alloc_check(allocator) != KVC_OK) {
        return kvci_fail(error, KVC_E_OPTION, KVC_NO_OFFSET,
                         "an allocator needs both of its functions, allocate and release");
    }
    struct kvc_writer *writer = kvci_alloc(allocator, sizeof(*writer));
    if (writer == NULL) {
        return kvci_fail_memory(error, sizeof(*writer));
    }
    if (allocator != NULL) {
        writer->own_allocator = *allocator;
        writer->allocator = &writer->own_allocator;
    }
    enum kvc_status status = take_options(writer, options, error);
    if (status == KVC_OK) {
        status = take_metadata(writer, metadata, metadata_bytes, error);
    }
    if (status == KVC_OK) {
        status = judge_metadata(writer, options->payload_bytes, error);
    }
    if (status == KVC_OK) {
        size_t digests_bytes = (size_t)writer->geometry.tensor_count * KVCI_DIGEST;
        const struct kvci_header header = make_header(writer);
        struct kvci_places places = {0};
        (void)kvci_header_places(&header, &places);
        writer->payload_offset = places.payload_offset;
        writer->digests = kvci_alloc(writer->allocator, digests_bytes);
        writer->chunk = kvci_alloc(writer->allocator, KVCI_CHUNK_BYTES);
        if (writer->digests == NULL || writer->chunk == NULL) {
            status = kvci_fail_memory(error, digests_bytes + KVCI_CHUNK_BYTES);
        } else {
            skip_empty(writer);
        }
    }
    if (status != KVC_OK) {
        kvc_writer_free(writer);
        return status;
    }
    *ret_writer = writer;
    return KVC_OK;
}

static enum kvc_status begin(struct kvc_writer *writer, struct kvc_writer **ret_writer,
                             struct kvc_error *error)
{
    writer->sink_open = true;
    enum kvc_status status = begin_file(writer, error);
    if (status != KVC_OK) {
        kvc_writer_free(writer);
        return status;
    }
    *ret_writer = writer;
    return KVC_OK;
}

enum kvc_status kvc_writer_create_path(const char *path, const char *metadata,
                                       size_t metadata_bytes,
                                       const struct kvc_writer_options *options,
                                       struct kvc_writer **ret_writer, struct kvc_error *error)
{
    struct kvc_writer *writer = NULL;
    if (path == NULL) {
        return kvci_fail(error, KVC_E_USAGE, KVC_NO_OFFSET, "path must not be NULL");
    }
    if (ret_writer == NULL) {
        return kvci_fail(error, KVC_E_USAGE, KVC_NO_OFFSET, "ret_writer must not be NULL");
    }
    enum kvc_status status = prepare(metadata, metadata_bytes, options, &writer, error);
    if (status != KVC_OK) {
        return status;
    }
    enum kvc_durability durability = options != NULL ? options->durability : KVC_DURABILITY_FULL;
    status = kvci_sink_open_path(path, durability, writer->allocator, &writer->sink, error);
    if (status != KVC_OK) {
        kvc_writer_free(writer);
        return status;
    }
    return begin(writer, ret_writer, error);
}

enum kvc_status kvc_writer_create_sink(const struct kvc_sink *sink, const char *metadata,
                                       size_t metadata_bytes,
                                       const struct kvc_writer_options *options,
                                       struct kvc_writer **ret_writer, struct kvc_error *error)
{
    struct kvc_writer *writer = NULL;
    if (sink == NULL || sink->size != sizeof(*sink) || sink->write == NULL) {
        return kvci_fail(error, sink == NULL ? KVC_E_USAGE : KVC_E_OPTION, KVC_NO_OFFSET,
                         "sink must point to a struct made with KVC_SINK_INIT and have a write "
                         "function");
    }
    if (ret_writer == NULL) {
        return kvci_fail(error, KVC_E_USAGE, KVC_NO_OFFSET, "ret_writer must not be NULL");
    }
    enum kvc_status status = prepare(metadata, metadata_bytes, options, &writer, error);
    if (status == KVC_OK && writer->unknown_bytes) {
        status = kvci_fail(error, KVC_E_OPTION, KVC_NO_OFFSET,
                           "a sink is written from front to back, so payload_bytes must be known");
        kvc_writer_free(writer);
    }
    if (status != KVC_OK) {
        return status;
    }
    kvci_sink_open_custom(sink, &writer->sink);
    return begin(writer, ret_writer, error);
}

const char *kvc_writer_metadata(const struct kvc_writer *writer, uint64_t *ret_bytes)
{
    if (writer == NULL) {
        return NULL;
    }
    if (ret_bytes != NULL) {
        *ret_bytes = writer->text_bytes;
    }
    return (const char *)writer->text;
}

static uint64_t tensor_offset(const struct kvc_writer *writer)
{
    return writer->payload_offset + writer->geometry.places[writer->tensor].position;
}

/* Makes room for `count` more chunk values. */
static enum kvc_status reserve_row(struct kvc_writer *writer, uint64_t count,
                                   struct kvc_error *error)
{
    uint64_t needed = writer->row_values + count;
    if (needed <= writer->row_capacity) {
        return KVC_OK;
    }
    uint64_t capacity = writer->row_capacity > 0 ? writer->row_capacity : FIRST_ROW_VALUES;
    while (capacity < needed) {
        capacity *= 2;
    }
    uint8_t *row =
        kvci_alloc_grow(writer->allocator, writer->row, (size_t)(writer->row_values * KVCI_DIGEST),
                        (size_t)(capacity * KVCI_DIGEST));
    if (row == NULL) {
        return kvci_fail_memory(error, capacity * KVCI_DIGEST);
    }
    writer->row = row;
    writer->row_capacity = capacity;
    return KVC_OK;
}

/* Chunks of one tensor, hashed and written by several threads. */
struct run {
    struct kvc_writer *writer;
    const uint8_t *data;
    uint64_t bytes;
    uint64_t first_chunk;
    uint64_t file_offset;
    uint8_t *values;
};

static enum kvc_status run_tile(void *context, uint64_t tile, uint8_t *scratch,
                                struct kvc_error *error)
{
    const struct run *run = context;
    const uint64_t tile_bytes = KVCI_TILE_CHUNKS * KVCI_CHUNK_BYTES;
    uint64_t start = tile * tile_bytes;
    uint64_t end = run->bytes - start < tile_bytes ? run->bytes : start + tile_bytes;
    (void)scratch;
    uint64_t chunk = tile * KVCI_TILE_CHUNKS;
    kvci_blake3_subtrees(run->data + start, (size_t)(end - start), run->first_chunk + chunk,
                         run->values + chunk * KVCI_DIGEST);
    if (!kvci_sink_is_random(&run->writer->sink)) {
        return KVC_OK;
    }
    return kvci_sink_write(&run->writer->sink, run->data + start, end - start,
                           run->file_offset + start, error);
}

/* Hashes and writes whole chunks of the current tensor; only the tensor's last may be short. */
static enum kvc_status write_chunks(struct kvc_writer *writer, const uint8_t *data, uint64_t bytes,
                                    uint64_t before_bytes, struct kvc_error *error)
{
    uint64_t chunks = (bytes + KVCI_CHUNK_BYTES - 1) / KVCI_CHUNK_BYTES;
    enum kvc_status status = reserve_row(writer, chunks, error);
    if (status != KVC_OK) {
        return status;
    }
    struct run run = {
        .writer = writer,
        .data = data,
        .bytes = bytes,
        .first_chunk = writer->tensor_done / KVCI_CHUNK_BYTES,
        .file_offset = tensor_offset(writer) + writer->tensor_done,
        .values = writer->row + writer->row_values * KVCI_DIGEST,
    };
    struct kvci_tiles tiles = {
        .work = &writer->work,
        .allocator = writer->allocator,
        .tile_count = (chunks + KVCI_TILE_CHUNKS - 1) / KVCI_TILE_CHUNKS,
        .total_bytes = bytes,
        .before_bytes = before_bytes,
        .progress_bytes =
            writer->unknown_bytes ? before_bytes + bytes : writer->geometry.payload_bytes,
        .tile = run_tile,
        .context = &run,
    };
    status = kvci_tiles_run(&tiles, error);
    if (status == KVC_OK && !kvci_sink_is_random(&writer->sink)) {
        status = kvci_sink_write(&writer->sink, data, bytes, run.file_offset, error);
    }
    writer->row_values += chunks;
    writer->tensor_done += bytes;
    return status;
}

/* Runs of chunks report by themselves; this is for what is written without one. */
static enum kvc_status report_progress(struct kvc_writer *writer, uint64_t done_bytes,
                                       struct kvc_error *error)
{
    const struct kvc_work *work = &writer->work;
    writer->reported_bytes = done_bytes;
    if (work->progress != NULL &&
        work->progress(work->progress_context, done_bytes, writer->geometry.payload_bytes) != 0) {
        return kvci_fail(error, KVC_E_CANCELLED, KVC_NO_OFFSET,
                         "cancelled by the progress callback");
    }
    return KVC_OK;
}

/* A tensor of one chunk has no stored chunk value: its digest is the plain hash. */
static enum kvc_status write_single(struct kvc_writer *writer, const uint8_t *data, uint64_t bytes,
                                    uint64_t before_bytes, struct kvc_error *error)
{
    kvci_blake3_hash(data, (size_t)bytes, writer->digests + writer->tensor * KVCI_DIGEST);
    writer->tensor_done += bytes;
    enum kvc_status status =
        kvci_sink_write(&writer->sink, data, bytes, tensor_offset(writer), error);
    if (status == KVC_OK && before_bytes + bytes >= writer->reported_bytes + PROGRESS_BYTES) {
        status = report_progress(writer, before_bytes + bytes, error);
    }
    return status;
}

static void next_tensor(struct kvc_writer *writer)
{
    uint64_t chunks = writer->row_values - writer->tensor_row;
    if (chunks > 0) {
        kvci_blake3_combine(writer->row + writer->tensor_row * KVCI_DIGEST, (size_t)chunks,
                            writer->digests + writer->tensor * KVCI_DIGEST);
    }
    writer->tensor++;
    writer->tensor_done = 0;
    writer->tensor_row = writer->row_values;
    skip_empty(writer);
}

static bool is_single(const struct kvc_writer *writer)
{
    return !writer->unknown_bytes &&
           kvci_place_chunks(&writer->geometry.places[writer->tensor]) == 1;
}

/* Bytes of the current tensor that are neither written nor kept in `chunk`. While the length is
 * not known there is no end to them. */
static uint64_t tensor_left(const struct kvc_writer *writer)
{
    if (writer->unknown_bytes) {
        return KVCI_MAX_FILE_BYTES - writer->tensor_done - writer->chunk_bytes;
    }
    return tensor_bytes(writer) - writer->tensor_done - writer->chunk_bytes;
}

/* Writes `data`, which are whole chunks or end the tensor. */
static enum kvc_status write_whole(struct kvc_writer *writer, const uint8_t *data, uint64_t bytes,
                                   uint64_t before_bytes, struct kvc_error *error)
{
    enum kvc_status status = is_single(writer)
                                 ? write_single(writer, data, bytes, before_bytes, error)
                                 : write_chunks(writer, data, bytes, before_bytes, error);
    if (status == KVC_OK && !writer->unknown_bytes && writer->tensor_done == tensor_bytes(writer)) {
        next_tensor(writer);
    }
    return status;
}

/* Fills the kept chunk. It is written when it ends its tensor, or when more comes behind it: of a
 * payload of unknown length the last chunk is not known to be the last before that. */
static enum kvc_status fill_chunk(struct kvc_writer *writer, const uint8_t *data, uint64_t bytes,
                                  uint64_t *ret_used, struct kvc_error *error)
{
    enum kvc_status status = KVC_OK;
    if (writer->chunk_bytes == KVCI_CHUNK_BYTES) {
        writer->chunk_bytes = 0;
        status = write_whole(writer, writer->chunk, KVCI_CHUNK_BYTES, writer->tensor_done, error);
        *ret_used = 0;
        return status;
    }
    uint64_t left = tensor_left(writer);
    uint64_t room = KVCI_CHUNK_BYTES - writer->chunk_bytes;
    uint64_t used = bytes < room ? bytes : room;
    used = used < left ? used : left;
    memcpy(writer->chunk + writer->chunk_bytes, data, (size_t)used);
    writer->chunk_bytes += (size_t)used;
    *ret_used = used;
    bool ends = used == left;
    if (ends || (writer->chunk_bytes == KVCI_CHUNK_BYTES && !writer->unknown_bytes)) {
        uint64_t kept = writer->chunk_bytes;
        writer->chunk_bytes = 0;
        status = write_whole(writer, writer->chunk, kept, writer->taken_bytes + used - kept, error);
    }
    return status;
}

/* How many of `bytes` bytes can be hashed where they are: whole chunks, or all up to the tensor's
 * end. Of an unknown length at least one byte is kept back. */
static uint64_t direct_bytes(const struct kvc_writer *writer, uint64_t bytes)
{
    uint64_t left = tensor_left(writer);
    if (writer->chunk_bytes > 0) {
        return 0;
    }
    if (writer->unknown_bytes) {
        bytes -= 1;
    } else if (bytes >= left) {
        bytes = left;
    }
    if (writer->unknown_bytes || bytes < left) {
        bytes -= bytes % KVCI_CHUNK_BYTES;
    }
    if (!kvci_sink_is_random(&writer->sink) && bytes > ORDERED_WINDOW_BYTES) {
        bytes = ORDERED_WINDOW_BYTES;
    }
    return bytes;
}

static enum kvc_status refuse_length(const struct kvc_writer *writer, uint64_t found,
                                     const char *what, struct kvc_error *error)
{
    (void)kvci_fail(error, KVC_E_LENGTH, KVC_NO_OFFSET,
                    "the payload is too %s: the metadata say %llu bytes, %llu %s given", what,
                    (unsigned long long)writer->geometry.payload_bytes, (unsigned long long)found,
                    found == 1 ? "was" : "were");
    kvci_error_expected(error, "%llu", (unsigned long long)writer->geometry.payload_bytes);
    kvci_error_found(error, "%llu", (unsigned long long)found);
    return KVC_E_LENGTH;
}

static enum kvc_status judge_state(const struct kvc_writer *writer, struct kvc_error *error)
{
    if (writer == NULL) {
        return kvci_fail(error, KVC_E_USAGE, KVC_NO_OFFSET, "writer must not be NULL");
    }
    if (writer->state != WRITING) {
        return kvci_fail(error, KVC_E_USAGE, KVC_NO_OFFSET, "the writer %s and can only be freed",
                         writer->state == FAILED ? "failed" : "is finished");
    }
    return KVC_OK;
}

static enum kvc_status write_pieces(struct kvc_writer *writer, const uint8_t *data, uint64_t bytes,
                                    struct kvc_error *error)
{
    enum kvc_status status = KVC_OK;
    while (status == KVC_OK && bytes > 0) {
        uint64_t used = direct_bytes(writer, bytes);
        if (used > 0) {
            status = write_whole(writer, data, used, writer->taken_bytes, error);
        } else {
            status = fill_chunk(writer, data, bytes, &used, error);
        }
        data += used;
        bytes -= used;
        writer->taken_bytes += used;
    }
    return status;
}

enum kvc_status kvc_writer_write(struct kvc_writer *writer, const void *data, uint64_t bytes,
                                 struct kvc_error *error)
{
    enum kvc_status status = judge_state(writer, error);
    if (status != KVC_OK || bytes == 0) {
        return status;
    }
    if (data == NULL) {
        return kvci_fail(error, KVC_E_USAGE, KVC_NO_OFFSET, "data must not be NULL");
    }
    uint64_t room = (writer->unknown_bytes ? KVCI_MAX_FILE_BYTES : writer->geometry.payload_bytes) -
                    writer->taken_bytes;
    if (bytes > room) {
        writer->state = FAILED;
        return refuse_length(writer, writer->taken_bytes + bytes, "long", error);
    }
    status = write_pieces(writer, data, bytes, error);
    if (status != KVC_OK) {
        writer->state = FAILED;
    }
    return status;
}

/* Ends a payload whose length is known only now. */
static enum kvc_status end_unknown(struct kvc_writer *writer, struct kvc_error *error)
{
    uint64_t kept = writer->chunk_bytes;
    if (writer->taken_bytes == 0) {
        return kvci_fail(error, KVC_E_LENGTH, KVC_NO_OFFSET,
                         "no payload was given: a payload has at least one byte");
    }
    enum kvc_status status = load_geometry(writer, writer->taken_bytes, error);
    writer->unknown_bytes = false;
    writer->chunk_bytes = 0;
    if (status == KVC_OK) {
        status = write_whole(writer, writer->chunk, kept, writer->taken_bytes - kept, error);
    }
    return status == KVC_OK ? write_header(writer, error) : status;
}

static enum kvc_status write_trailer(struct kvc_writer *writer, struct kvc_error *error)
{
    struct kvci_footer *footer = &writer->footer;
    const struct kvci_header header = make_header(writer);
    struct kvci_places places = {0};
    uint8_t block[KVCI_FOOTER_BYTES];
    (void)kvci_header_places(&header, &places);
    kvci_root_compute(writer->text, writer->text_bytes, writer->digests, places.digest_count,
                      footer->root);
    if (writer->has_key) {
        kvci_root_tag(footer->root, writer->key, footer->tag);
        kvci_wipe(writer->key, sizeof(writer->key));
    }
    footer->has_tag = writer->has_key;
    footer->file_bytes = header.file_bytes;
    kvci_footer_encode(footer, block);
    enum kvc_status status = KVC_OK;
    if (writer->row_values > 0) {
        status = kvci_sink_write(&writer->sink, writer->row, writer->row_values * KVCI_DIGEST,
                                 places.trailer_offset, error);
    }
    if (status == KVC_OK) {
        status = kvci_sink_write(&writer->sink, writer->digests, places.digest_count * KVCI_DIGEST,
                                 places.digests_offset, error);
    }
    if (status == KVC_OK) {
        status = kvci_sink_write(&writer->sink, block, sizeof(block), places.footer_offset, error);
    }
    return status;
}

enum kvc_status kvc_writer_finish(struct kvc_writer *writer, uint8_t ret_root[KVC_DIGEST_BYTES],
                                  struct kvc_error *error)
{
    enum kvc_status status = judge_state(writer, error);
    if (status != KVC_OK) {
        return status;
    }
    writer->state = FAILED;
    if (writer->unknown_bytes) {
        status = end_unknown(writer, error);
    } else if (writer->taken_bytes < writer->geometry.payload_bytes) {
        status = refuse_length(writer, writer->taken_bytes, "short", error);
    }
    if (status == KVC_OK) {
        status = write_trailer(writer, error);
    }
    if (status == KVC_OK) {
        status = report_progress(writer, writer->taken_bytes, error);
    }
    if (status == KVC_OK) {
        status = kvci_sink_finish(&writer->sink, error);
    }
    if (status != KVC_OK) {
        return status;
    }
    writer->state = FINISHED;
    if (ret_root != NULL) {
        memcpy(ret_root, writer->footer.root, sizeof(writer->footer.root));
    }
    return KVC_OK;
}

enum kvc_status kvc_writer_info(const struct kvc_writer *writer, struct kvc_info *ret_info,
                                struct kvc_error *error)
{
    if (writer == NULL || ret_info == NULL) {
        return kvci_fail(error, KVC_E_USAGE, KVC_NO_OFFSET, "writer and ret_info must not be NULL");
    }
    if (writer->state != FINISHED) {
        return kvci_fail(error, KVC_E_USAGE, KVC_NO_OFFSET,
                         "the writer is not finished, so there is no file yet");
    }
    const struct kvci_header header = make_header(writer);
    return kvci_info_fill(&header, &writer->footer, &writer->metadata, &writer->geometry,
                          writer->has_key, ret_info, error);
}

void kvc_writer_free(struct kvc_writer *writer)
{
    if (writer == NULL) {
        return;
    }
    /* The allocator lives inside the block that is freed last. */
    struct kvc_allocator copy = writer->own_allocator;
    const struct kvc_allocator *allocator = writer->allocator != NULL ? &copy : NULL;
    if (writer->sink_open) {
        kvci_sink_close(&writer->sink, allocator);
    }
    kvci_wipe(writer->key, sizeof(writer->key));
    kvci_geometry_free(&writer->geometry, allocator);
    kvci_free(allocator, writer->text);
    kvci_free(allocator, writer->row);
    kvci_free(allocator, writer->digests);
    kvci_free(allocator, writer->chunk);
    kvci_free(allocator, writer);
}
