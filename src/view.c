/* view.c: hands out pieces of a private mapping, proven in place.
 * SPDX-License-Identifier: Apache-2.0 */
#include "alloc.h"
#include "reader.h"
#include "status.h"
#include "tiles.h"

#include "ban.h"

/* One mapping of the whole file, shared by a reader and its views. */
struct kvci_mapping {
    atomic_size_t references;
    struct kvc_allocator allocator;
    bool has_allocator;
    bool owned; /* made by mmap, and not the caller's memory */
    uint8_t *base;
    uint64_t bytes;
};

struct kvc_view {
    struct kvci_mapping *mapping;
    uint8_t *data;
    uint64_t bytes;
};

static const struct kvc_allocator *allocator_of(const struct kvci_mapping *mapping)
{
    return mapping->has_allocator ? &mapping->allocator : NULL;
}

void kvci_mapping_free(struct kvci_mapping *mapping)
{
    if (mapping == NULL || atomic_fetch_sub(&mapping->references, 1) != 1) {
        return;
    }
    if (mapping->owned) {
        kvci_source_unmap(mapping->base, mapping->bytes);
    }
    struct kvc_allocator copy = mapping->allocator;
    kvci_free(mapping->has_allocator ? &copy : NULL, mapping);
}

static enum kvc_status make_mapping(const struct kvc_reader *reader,
                                    struct kvci_mapping **ret_mapping, struct kvc_error *error)
{
    void *base = NULL;
    bool owned = false;
    struct kvci_mapping *mapping = kvci_alloc(reader->allocator, sizeof(*mapping));
    if (mapping == NULL) {
        return kvci_fail_memory(error, sizeof(*mapping));
    }
    enum kvc_status status = kvci_source_map(&reader->source, &base, &owned, error);
    if (status != KVC_OK) {
        kvci_free(reader->allocator, mapping);
        return status;
    }
    atomic_init(&mapping->references, 1);
    mapping->has_allocator = reader->allocator != NULL;
    mapping->allocator = reader->own_allocator;
    mapping->owned = owned;
    mapping->base = base;
    mapping->bytes = reader->source.file_bytes;
    *ret_mapping = mapping;
    return KVC_OK;
}

/* The reader is const for its callers, and its mapping appears once, whoever comes first. */
static enum kvc_status get_mapping(const struct kvc_reader *reader,
                                   struct kvci_mapping **ret_mapping, struct kvc_error *error)
{
    _Atomic(struct kvci_mapping *) *slot = (_Atomic(struct kvci_mapping *) *)&reader->mapping;
    struct kvci_mapping *mapping = atomic_load(slot);
    if (mapping == NULL) {
        struct kvci_mapping *made = NULL;
        enum kvc_status status = make_mapping(reader, &made, error);
        if (status != KVC_OK) {
            return status;
        }
        if (atomic_compare_exchange_strong(slot, &mapping, made)) {
            mapping = made;
        } else {
            kvci_mapping_free(made);
        }
    }
    *ret_mapping = mapping;
    return KVC_OK;
}

static enum kvc_status get_bits(const struct kvc_reader *reader, const struct kvci_tensor *tensor,
                                _Atomic uint8_t **ret_bits, struct kvc_error *error)
{
    struct kvci_proof *proof = &reader->proofs[tensor->index];
    _Atomic uint8_t *bits = atomic_load(&proof->chunks);
    if (bits == NULL) {
        size_t bytes = (size_t)((tensor->chunks + 7) / 8) * sizeof(*bits);
        _Atomic uint8_t *made = kvci_alloc(reader->allocator, bytes);
        if (made == NULL) {
            return kvci_fail_memory(error, bytes);
        }
        if (atomic_compare_exchange_strong(&proof->chunks, &bits, made)) {
            bits = made;
        } else {
            kvci_free(reader->allocator, (void *)made);
        }
    }
    *ret_bits = bits;
    return KVC_OK;
}

static bool is_proven(const _Atomic uint8_t *bits, uint64_t chunk)
{
    unsigned byte = atomic_load_explicit(&bits[chunk / 8], memory_order_acquire);
    return (byte >> chunk % 8 & 1) != 0;
}

/* Another thread may have proven the chunks meanwhile and its caller have written into them. Then
 * they do not match any more, and that is no damage. */
static bool all_proven(const _Atomic uint8_t *bits, uint64_t first, uint64_t end)
{
    while (first < end && is_proven(bits, first)) {
        first++;
    }
    return first == end;
}

struct proving {
    const struct kvc_reader *reader;
    const uint8_t *base;
    uint64_t first_tile;
    bool with_gaps;
};

/* Reads one byte of each chunk, so that its pages are there before it is hashed: the kernel maps
 * the sixteen pages around a missing one (Linux, fault_around_bytes), which is a chunk; and what a
 * lane kernel asks for ahead of its use is not fetched where a page is missing. */
static void touch(const uint8_t *data, uint64_t bytes)
{
    const volatile uint8_t *at = data;
    for (uint64_t i = 0; i < bytes; i += KVCI_CHUNK_BYTES) {
        (void)at[i];
    }
}

/* Runs of chunks that are not proven yet are proven; what is proven stays so for this reader. */
static enum kvc_status prove_tile(void *context, uint64_t number, uint8_t *scratch,
                                  struct kvc_error *error)
{
    const struct proving *proving = context;
    const struct kvci_tile tile = kvci_reader_tile(proving->reader, proving->first_tile + number);
    const uint8_t *data = proving->base + tile.tensor.file_offset;
    const uint8_t *row = NULL;
    _Atomic uint8_t *bits = NULL;
    (void)scratch;
    enum kvc_status status = kvci_reader_row(proving->reader, &tile.tensor, &row, error);
    if (status == KVC_OK) {
        status = get_bits(proving->reader, &tile.tensor, &bits, error);
    }
    const uint64_t end = tile.first_chunk + tile.chunk_count;
    for (uint64_t chunk = tile.first_chunk; status == KVC_OK && chunk < end;) {
        uint64_t run = chunk;
        while (run < end && !is_proven(bits, run)) {
            run++;
        }
        if (run > chunk) {
            touch(data + chunk * KVCI_CHUNK_BYTES,
                  kvci_chunk_run_bytes(&tile.tensor, chunk, run - chunk));
            status = kvci_reader_check_chunks(proving->reader, &tile.tensor, row, chunk,
                                              run - chunk, data + chunk * KVCI_CHUNK_BYTES, error);
            if (status == KVC_E_CHUNK && all_proven(bits, chunk, run)) {
                status = KVC_OK;
            }
        }
        for (; status == KVC_OK && chunk < run; chunk++) {
            (void)atomic_fetch_or(&bits[chunk / 8], (uint8_t)(1u << chunk % 8));
        }
        chunk = run < end ? run + 1 : end;
    }
    /* The caller may write into a gap that was handed out, so each is proven once too. */
    atomic_bool *gap = &proving->reader->proofs[tile.tensor.index].gap;
    if (status == KVC_OK && proving->with_gaps && tile.last && !atomic_load(gap)) {
        status = kvci_reader_check_gap(&tile.tensor, data + tile.tensor.bytes, error);
        atomic_store(gap, status == KVC_OK);
    }
    return status;
}

static enum kvc_status make_view(struct kvci_mapping *mapping, uint64_t offset, uint64_t bytes,
                                 struct kvc_view **ret_view, struct kvc_error *error)
{
    struct kvc_view *view = kvci_alloc(allocator_of(mapping), sizeof(*view));
    if (view == NULL) {
        return kvci_fail_memory(error, sizeof(*view));
    }
    (void)atomic_fetch_add(&mapping->references, 1);
    view->mapping = mapping;
    view->data = mapping->base + offset;
    view->bytes = bytes;
    *ret_view = view;
    return KVC_OK;
}

/* Whether all this was proven before, so that threads would have nothing to do. */
static bool tiles_proven(const struct proving *proving, uint64_t tile_count)
{
    for (uint64_t i = 0; i < tile_count; i++) {
        const struct kvci_tile tile = kvci_reader_tile(proving->reader, proving->first_tile + i);
        const struct kvci_proof *proof = &proving->reader->proofs[tile.tensor.index];
        const _Atomic uint8_t *bits = atomic_load(&proof->chunks);
        if (bits == NULL ||
            !all_proven(bits, tile.first_chunk, tile.first_chunk + tile.chunk_count)) {
            return false;
        }
    }
    return true;
}

static enum kvc_status prove(const struct kvc_reader *reader, const struct kvc_work *work,
                             struct proving *proving, uint64_t tile_count, uint64_t bytes,
                             struct kvci_mapping **ret_mapping, struct kvc_error *error)
{
    enum kvc_status status = kvci_tiles_check(work, error);
    if (status == KVC_OK) {
        status = get_mapping(reader, ret_mapping, error);
    }
    if (status != KVC_OK) {
        return status;
    }
    proving->base = (*ret_mapping)->base;
    struct kvc_work alone = work != NULL ? *work : (struct kvc_work)KVC_WORK_INIT;
    if (tiles_proven(proving, tile_count)) {
        alone.threads = 1;
    }
    struct kvci_tiles tiles = {
        .work = &alone,
        .allocator = reader->allocator,
        .tile_count = tile_count,
        .total_bytes = bytes,
        .tile = prove_tile,
        .context = proving,
    };
    return kvci_tiles_run(&tiles, error);
}

enum kvc_status kvc_reader_map(const struct kvc_reader *reader, uint32_t index,
                               const struct kvc_work *work, struct kvc_view **ret_view,
                               struct kvc_error *error)
{
    enum kvc_status status = kvci_reader_check_index(reader, index, error);
    if (status != KVC_OK) {
        return status;
    }
    if (ret_view == NULL) {
        return kvci_fail(error, KVC_E_USAGE, KVC_NO_OFFSET, "ret_view must not be NULL");
    }
    const struct kvci_tensor tensor = kvci_reader_tensor(reader, index);
    struct kvci_mapping *mapping = NULL;
    const struct kvci_place *place = &reader->geometry.places[index];
    uint64_t tiles = kvci_place_tiles(place);
    struct proving proving = {.reader = reader, .first_tile = place->first_tile};
    status = prove(reader, work, &proving, tiles, tensor.bytes, &mapping, error);
    if (status != KVC_OK) {
        return status;
    }
    return make_view(mapping, tensor.file_offset, tensor.bytes, ret_view, error);
}

enum kvc_status kvc_reader_map_payload(const struct kvc_reader *reader, const struct kvc_work *work,
                                       struct kvc_view **ret_view, struct kvc_error *error)
{
    if (reader == NULL || ret_view == NULL) {
        return kvci_fail(error, KVC_E_USAGE, KVC_NO_OFFSET, "reader and ret_view must not be NULL");
    }
    struct kvci_mapping *mapping = NULL;
    struct proving proving = {.reader = reader, .with_gaps = true};
    enum kvc_status status = prove(reader, work, &proving, reader->geometry.tile_count,
                                   reader->geometry.payload_bytes, &mapping, error);
    if (status != KVC_OK) {
        return status;
    }
    return make_view(mapping, reader->frame.places.payload_offset, reader->geometry.payload_span,
                     ret_view, error);
}

void *kvc_view_data(const struct kvc_view *view, uint64_t *ret_bytes)
{
    if (view == NULL) {
        return NULL;
    }
    if (ret_bytes != NULL) {
        *ret_bytes = view->bytes;
    }
    return view->data;
}

void kvc_view_free(struct kvc_view *view)
{
    if (view == NULL) {
        return;
    }
    struct kvci_mapping *mapping = view->mapping;
    kvci_free(allocator_of(mapping), view);
    kvci_mapping_free(mapping);
}
