/* geometry.c: where the tensors of a payload lie, and which one a tile or a name means; pure.
 * SPDX-License-Identifier: Apache-2.0 */
#include "geometry.h"

#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "checked.h"
#include "header.h"

#include "ban.h"

#define CROSS "cross."
#define SELF "layer."

bool kvci_geometry_allocate(struct kvci_geometry *geometry, const struct kvc_allocator *allocator,
                            uint32_t count)
{
    geometry->places = kvci_alloc(allocator, count * sizeof(*geometry->places));
    geometry->place_capacity = geometry->places != NULL ? count : 0;
    return geometry->places != NULL;
}

void kvci_geometry_free(struct kvci_geometry *geometry, const struct kvc_allocator *allocator)
{
    kvci_free(allocator, geometry->places);
    memset(geometry, 0, sizeof(*geometry));
}

uint64_t kvci_place_chunks(const struct kvci_place *place)
{
    return place->bytes / KVCI_CHUNK_BYTES + (place->bytes % KVCI_CHUNK_BYTES != 0 ? 1 : 0);
}

uint64_t kvci_place_tiles(const struct kvci_place *place)
{
    return (kvci_place_chunks(place) + KVCI_TILE_CHUNKS - 1) / KVCI_TILE_CHUNKS;
}

/* All sums stay below the limit on a file's bytes, so that the smaller ones cannot overflow. */
bool kvci_geometry_add(struct kvci_geometry *geometry, const struct kvci_place *tensor)
{
    struct kvci_place place = *tensor;
    uint64_t bytes = 0;
    uint64_t span = geometry->payload_span;
    place.offset = geometry->payload_bytes;
    place.position = span;
    place.first_value = geometry->row_values;
    place.first_tile = geometry->tile_count;
    if (place.bytes > 0) {
        if (!kvci_add(geometry->payload_bytes, place.bytes, &bytes) ||
            !kvci_round_up(span, geometry->align_bytes, &place.position) ||
            !kvci_add(place.position, place.bytes, &span) || span > KVCI_MAX_FILE_BYTES) {
            return false;
        }
        uint64_t chunks = kvci_place_chunks(&place);
        geometry->payload_bytes = bytes;
        geometry->payload_span = span;
        geometry->chunk_count += chunks;
        geometry->row_values += chunks < 2 ? 0 : chunks;
        geometry->tile_count += kvci_place_tiles(&place);
    }
    if (geometry->tensor_count < geometry->place_capacity) {
        geometry->places[geometry->tensor_count] = place;
    }
    geometry->tensor_count++;
    return true;
}

bool kvci_geometry_finish(struct kvci_geometry *geometry, size_t metadata_bytes)
{
    struct kvci_header header = {.metadata_bytes = metadata_bytes,
                                 .payload_span = geometry->payload_span,
                                 .tensor_count = geometry->tensor_count,
                                 .file_bytes = KVCI_MAX_FILE_BYTES};
    struct kvci_places places;
    if (!kvci_header_places(&header, &places)) {
        return false;
    }
    geometry->file_bytes = places.trailer_offset + KVCI_DIGEST * geometry->row_values +
                           KVCI_DIGEST * places.digest_count + KVCI_FOOTER_BYTES;
    return geometry->file_bytes <= KVCI_MAX_FILE_BYTES;
}

/* The payload ends with its last tensor, so that there is no gap behind that one. */
uint64_t kvci_geometry_gap(const struct kvci_geometry *geometry, uint32_t index)
{
    const struct kvci_place *place = &geometry->places[index];
    uint64_t end = place->position + place->bytes;
    uint64_t next = 0;
    if (place->bytes == 0 || !kvci_round_up(end, geometry->align_bytes, &next)) {
        return 0;
    }
    return (next < geometry->payload_span ? next : geometry->payload_span) - end;
}

/* Number of a tensor's first piece. */
static uint64_t first_piece(const struct kvci_geometry *geometry, uint32_t index, uint64_t extra)
{
    return geometry->places[index].first_tile + extra * index;
}

/* The last tensor whose pieces begin here or before. Of tensors that begin at the same piece, all
 * but the last have none. Where all tensors are of one size, the first guess is right. */
uint32_t kvci_geometry_search(const struct kvci_geometry *geometry, uint64_t piece, uint64_t extra)
{
    uint32_t low = 0;
    uint32_t high = geometry->tensor_count;
    const uint64_t each = geometry->tile_count / high + extra;
    const uint64_t guess = each > 0 ? piece / each : high;
    if (guess < high && first_piece(geometry, (uint32_t)guess, extra) <= piece) {
        low = (uint32_t)guess;
        if (low + 1 < high && first_piece(geometry, low + 1, extra) > piece) {
            high = low + 1;
        }
    }
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (first_piece(geometry, middle, extra) <= piece) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Names are written for each tensor at every opening, where snprintf would cost more than the rest
 * of the manifest. */
static size_t put_text(char *at, const char *text)
{
    size_t bytes = strlen(text);
    memcpy(at, text, bytes);
    return bytes;
}

static size_t put_number(char *at, uint32_t number)
{
    size_t digits = 1;
    for (uint32_t rest = number; rest >= 10; rest /= 10) {
        digits++;
    }
    for (size_t i = digits; i > 0; i--) {
        at[i - 1] = (char)('0' + number % 10);
        number /= 10;
    }
    return digits;
}

void kvci_geometry_name(const struct kvci_geometry *geometry, const struct kvci_place *place,
                        char ret_name[KVCI_NAME_BYTES])
{
    const enum kvci_role role = (enum kvci_role)place->role;
    size_t at = 0;
    if (geometry->manifest_version != 0) {
        if (place->layer != KVC_NO_LAYER) {
            const bool cross = place->layer >= geometry->self_layers;
            at += put_text(ret_name, cross ? CROSS : SELF);
            at += put_number(ret_name + at, place->layer - (cross ? geometry->self_layers : 0));
            ret_name[at++] = '.';
        }
        at += put_text(ret_name + at, kvci_role_name(role));
        if (kvci_role_has_index(role)) {
            ret_name[at++] = '.';
            at += put_number(ret_name + at, place->index);
        }
    }
    ret_name[at] = '\0';
}

/* Reads decimal digits, and stops where the number is beyond all that a name can have. */
static uint32_t read_number(const char *name, size_t name_bytes, size_t *at)
{
    uint32_t number = 0;
    while (*at < name_bytes && name[*at] >= '0' && name[*at] <= '9' &&
           number < KVCI_MAX_DIMENSION) {
        number = 10 * number + (uint32_t)(name[*at] - '0');
        (*at)++;
    }
    return number;
}

/* Reads what a name means, in any spelling of its numbers; false when it can be no name. */
static bool read_name(const struct kvci_geometry *geometry, const char *name, size_t name_bytes,
                      struct kvci_place *ret_place)
{
    enum kvci_role role = KVCI_ROLE_KEY;
    size_t at = strlen(SELF);
    bool cross = name_bytes > at && memcmp(name, CROSS, at) == 0;
    ret_place->layer = KVC_NO_LAYER;
    if (cross || (name_bytes > at && memcmp(name, SELF, at) == 0)) {
        ret_place->layer = read_number(name, name_bytes, &at) + (cross ? geometry->self_layers : 0);
        at++;
    } else {
        at = 0;
    }
    size_t end = at;
    while (end < name_bytes && name[end] != '.') {
        end++;
    }
    if (at > name_bytes || !kvci_role_find((const uint8_t *)name + at, end - at, &role)) {
        return false;
    }
    end++;
    ret_place->role = (uint8_t)role;
    ret_place->index = (uint8_t)read_number(name, name_bytes, &end);
    return true;
}

static bool is_before(const struct kvci_place *a, const struct kvci_place *b)
{
    if (a->layer != b->layer) {
        return a->layer < b->layer;
    }
    return a->role != b->role ? a->role < b->role : a->index < b->index;
}

bool kvci_geometry_find(const struct kvci_geometry *geometry, const char *name, size_t name_bytes,
                        uint32_t *ret_index)
{
    char candidate[KVCI_NAME_BYTES];
    struct kvci_place wanted = {0};
    uint32_t low = 0;
    uint32_t high = geometry->manifest_version == 0 ? 0 : geometry->tensor_count;
    if (high > 0 && !read_name(geometry, name, name_bytes, &wanted)) {
        return false;
    }
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (is_before(&geometry->places[middle], &wanted)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low >= geometry->tensor_count) {
        return false;
    }
    /* The name of what was found is spelled out and compared, so that only one spelling counts. */
    kvci_geometry_name(geometry, &geometry->places[low], candidate);
    if (strlen(candidate) != name_bytes || memcmp(candidate, name, name_bytes) != 0) {
        return false;
    }
    *ret_index = low;
    return true;
}
