/* fuzz_container.c: any bytes as a container; what is accepted must read back, by every way.
 * SPDX-License-Identifier: Apache-2.0
 *
 * The first byte of an input says how it is used:
 *   0x89, the first byte of a container: the input is a file, as it is
 *   an even byte: a file follows, of which header check, root and footer are made right
 *   an odd byte: a byte for alignment and tag, two for the length of the metadata, the metadata
 *       and the payload follow, from which a file with right digests is made
 * So that hashes, which a fuzzer cannot guess, do not keep it from what lies behind them. */
#include "blake3.h"
#include "bytes.h"
#include "header.h"
#include "kvc.h"
#include "manifest.h"
#include "metadata.h"
#include "root.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_BYTE 0x89
#define MAX_TENSORS_TRIED 8
#define MAX_BUILT_BYTES (1 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* A defect ends the process in every build, so that it is not lost with assertions off. */
static void check(bool fine, const char *what)
{
    if (!fine) {
        (void)fprintf(stderr, "fuzz_container: %s\n", what);
        abort();
    }
}

static bool is_utf8(const char *text)
{
    const uint8_t *at = (const uint8_t *)text;
    while (*at != 0) {
        unsigned more = *at < 0x80 ? 0 : *at >= 0xF0 ? 3 : *at >= 0xE0 ? 2 : *at >= 0xC2 ? 1 : 9;
        if (more == 9) {
            return false;
        }
        at++;
        for (; more > 0; more--, at++) {
            if ((*at & 0xC0) != 0x80) {
                return false;
            }
        }
    }
    return true;
}

static void check_error(const struct kvc_error *error, enum kvc_status status, size_t bytes)
{
    check(error->status == status, "the error has another status than the call");
    check(error->message[0] != '\0', "a refusal without a message");
    check(error->offset == KVC_NO_OFFSET || error->offset <= bytes, "an offset behind the file");
    check(is_utf8(error->message) && is_utf8(error->field), "an error that is no UTF-8");
    check(is_utf8(error->expected) && is_utf8(error->found), "an error that is no UTF-8");
}

struct image {
    const uint8_t *data;
    size_t bytes;
};

static int read_image(void *context, void *buffer, size_t bytes, uint64_t offset)
{
    const struct image *image = context;
    check(offset <= image->bytes && bytes <= image->bytes - offset, "a read outside the file");
    memcpy(buffer, image->data + offset, bytes);
    return 0;
}

/* A custom source is judged like memory. */
static void check_source(const struct image *image, enum kvc_status wanted)
{
    struct kvc_source source = KVC_SOURCE_INIT;
    struct kvc_reader *reader = NULL;
    struct image copy = *image;
    source.context = &copy;
    source.file_bytes = image->bytes;
    source.read_at = read_image;
    enum kvc_status status = kvc_reader_open_source(&source, NULL, &reader, NULL);
    check(status == wanted, "a source is judged otherwise than memory");
    kvc_reader_free(reader);
}

/* Reads and maps a tensor; of a verified file, it must be what the payload holds there. */
static void try_tensor(const struct kvc_reader *reader, uint32_t index, const uint8_t *payload)
{
    struct kvc_tensor tensor = KVC_TENSOR_INIT;
    struct kvc_work work = KVC_WORK_INIT;
    struct kvc_view *view = NULL;
    uint64_t view_bytes = 0;
    uint32_t found = UINT32_MAX;
    work.threads = 1;
    check(kvc_reader_tensor(reader, index, &tensor, NULL) == KVC_OK, "a tensor without facts");
    check(kvc_reader_find(reader, tensor.name, strlen(tensor.name), &found, NULL) == KVC_OK &&
              found == index,
          "a tensor is not found by its name");
    uint8_t *buffer = malloc((size_t)tensor.tensor_bytes + 1);
    check(buffer != NULL, "no memory");
    uint64_t start = tensor.tensor_bytes / 3;
    uint64_t bytes = tensor.tensor_bytes - start;
    enum kvc_status read = kvc_reader_read(reader, index, start, bytes, &work, buffer, NULL);
    enum kvc_status map = kvc_reader_map(reader, index, &work, &view, NULL);
    check((map == KVC_OK) == (view != NULL), "a view without success");
    if (map == KVC_OK) {
        const uint8_t *mapped = kvc_view_data(view, &view_bytes);
        check(read == KVC_OK && view_bytes == tensor.tensor_bytes, "a map that cannot be read");
        check(memcmp(mapped + start, buffer, (size_t)bytes) == 0, "a map that reads differently");
    }
    if (payload != NULL) {
        check(map == KVC_OK, "a verified tensor is not mapped");
        check(memcmp(buffer, payload + tensor.offset + start, (size_t)bytes) == 0,
              "a tensor is not where the payload has it");
        uint8_t digest[KVCI_DIGEST];
        kvci_blake3_hash(payload + tensor.offset, (size_t)tensor.tensor_bytes, digest);
        check(memcmp(digest, tensor.digest, sizeof(digest)) == 0, "a verified tensor's digest");
    }
    kvc_view_free(view);
    free(buffer);
}

static void use_reader(const struct kvc_reader *reader, const struct image *image)
{
    struct kvc_info info = KVC_INFO_INIT;
    struct kvc_error error = KVC_ERROR_INIT;
    struct kvc_work work = KVC_WORK_INIT;
    uint64_t text_bytes = 0;
    work.threads = 1;
    check(kvc_reader_info(reader, &info, NULL) == KVC_OK, "no facts");
    check(info.file_bytes == image->bytes, "a wrong size");
    check(info.payload_offset + info.payload_span <= image->bytes, "a payload outside the file");
    check(info.payload_bytes <= info.payload_span, "more tensors than payload");
    const char *text = kvc_reader_metadata(reader, &text_bytes);
    check(kvc_reader_identity(reader, text, (size_t)text_bytes, NULL, NULL, NULL) == KVC_OK,
          "metadata that differ from themselves");
    enum kvc_status status = kvc_reader_verify(reader, &work, NULL, NULL, &error);
    uint8_t *payload = malloc((size_t)info.payload_bytes);
    check(payload != NULL, "no memory");
    enum kvc_status read =
        kvc_reader_read_payload(reader, &work, payload, info.payload_bytes, NULL);
    if (status != KVC_OK) {
        check_error(&error, status, image->bytes);
        check(status == KVC_E_ROW || status == KVC_E_CHUNK || status == KVC_E_PADDING,
              "an open file that fails otherwise than by a digest");
    }
    check(read == KVC_OK || status != KVC_OK, "a verified payload cannot be read");
    uint32_t count = info.tensor_count > 0 ? info.tensor_count : 1;
    for (uint32_t i = 0; i < count && i < MAX_TENSORS_TRIED; i++) {
        try_tensor(reader, i, status == KVC_OK ? payload : NULL);
    }
    free(payload);
}

static enum kvc_status judge(const uint8_t *data, size_t bytes)
{
    const struct image image = {data, bytes};
    struct kvc_error error = KVC_ERROR_INIT;
    struct kvc_reader *reader = NULL;
    enum kvc_status status = kvc_reader_open_memory(data, bytes, NULL, &reader, &error);
    check((status == KVC_OK) == (reader != NULL), "a reader without success");
    check_source(&image, status);
    if (status == KVC_OK) {
        use_reader(reader, &image);
    } else {
        check_error(&error, status, bytes);
        check((unsigned)status >= KVC_E_FOREIGN, "memory is refused like an environment");
    }
    kvc_reader_free(reader);
    return status;
}

/* The check of a header or footer is the beginning of the hash of what lies before it. */
static void sign(uint8_t *block, size_t check_offset)
{
    uint8_t digest[KVCI_DIGEST];
    kvci_blake3_hash(block, check_offset, digest);
    memcpy(block + check_offset, digest, KVCI_CHECK_BYTES);
}

/* Makes header check, root and footer right; everything else is as the input has it. */
static void judge_signed(const uint8_t *data, size_t bytes)
{
    struct kvci_header header = {0};
    struct kvci_places places = {0};
    uint8_t *copy = malloc(bytes + 1);
    check(copy != NULL, "no memory");
    memcpy(copy, data, bytes);
    if (bytes >= KVCI_HEADER_BYTES + KVCI_FOOTER_BYTES) {
        uint8_t *footer = copy + bytes - KVCI_FOOTER_BYTES;
        sign(copy, KVCI_HEADER_CHECK);
        header.file_bytes = bytes;
        header.metadata_bytes = kvci_load64(copy + KVCI_HEADER_METADATA_BYTES);
        header.payload_span = kvci_load64(copy + KVCI_HEADER_PAYLOAD_SPAN);
        header.tensor_count = kvci_load32(copy + KVCI_HEADER_TENSOR_COUNT);
        if (kvci_header_places(&header, &places)) {
            kvci_root_compute(copy + KVCI_HEADER_BYTES, header.metadata_bytes,
                              copy + places.digests_offset, places.digest_count, footer);
        }
        sign(footer, KVCI_FOOTER_CHECK);
    }
    (void)judge(copy, bytes);
    free(copy);
}

/* Hashes the payload as the geometry has it. */
static void hash_payload(uint8_t *file, const struct kvci_places *places,
                         const struct kvci_geometry *geometry)
{
    uint8_t *row = file + places->trailer_offset;
    for (uint32_t i = 0; i < geometry->tensor_count; i++) {
        const struct kvci_place *place = &geometry->places[i];
        const uint8_t *tensor = file + places->payload_offset + place->position;
        uint64_t bytes = place->bytes;
        kvci_blake3_hash(tensor, (size_t)bytes, file + places->digests_offset + i * KVCI_DIGEST);
        for (uint64_t at = 0; bytes > KVCI_CHUNK_BYTES && at < bytes; at += KVCI_CHUNK_BYTES) {
            uint64_t chunk = bytes - at < KVCI_CHUNK_BYTES ? bytes - at : KVCI_CHUNK_BYTES;
            kvci_blake3_subtree(tensor + at, (size_t)chunk, at / KVCI_CHUNK_BYTES, row);
            row += KVCI_DIGEST;
        }
    }
}

/* Chunk values that a file of this header may need at most. */
static uint64_t most_rows(const struct kvci_header *header)
{
    uint64_t count = header->tensor_count > 0 ? header->tensor_count : 1;
    uint64_t chunks = (header->payload_span / count + KVCI_CHUNK_BYTES - 1) / KVCI_CHUNK_BYTES;
    return chunks > 1 ? count * chunks : 0;
}

/* Chunk values of tensors that are not all of one size. */
static uint64_t count_rows(const struct kvci_geometry *geometry)
{
    uint64_t rows = 0;
    for (uint32_t i = 0; i < geometry->tensor_count && i < geometry->place_capacity; i++) {
        uint64_t chunks = (geometry->places[i].bytes + KVCI_CHUNK_BYTES - 1) / KVCI_CHUNK_BYTES;
        rows += chunks > 1 ? chunks : 0;
    }
    return rows;
}

/* Judges the parts by themselves; false when they are refused. The header gets the bits that the
 * metadata need. */
static bool load_parts(const uint8_t *text, struct kvci_header *header,
                       struct kvci_metadata *metadata, struct kvci_geometry *ret_geometry)
{
    const uint32_t count = header->tensor_count > 0 ? header->tensor_count : 1;
    if (kvci_metadata_parse(text, (size_t)header->metadata_bytes, 0, KVCI_VERSION_MINOR,
                            header->tensor_count, metadata, NULL) != KVC_OK) {
        return false;
    }
    header->incompat = kvci_manifest_features(metadata);
    return kvci_manifest_load(metadata, 0, UINT32_C(1) << header->align_log2, header->payload_span,
                              count, NULL, ret_geometry, NULL) == KVC_OK;
}

/* Makes a file from metadata and payload; when both fit together it must be accepted. */
static void judge_built(const uint8_t *data, size_t bytes)
{
    static const uint8_t aligns[] = {0, 6, 12, 0};
    struct kvci_header header = {.version_major = KVCI_VERSION_MAJOR,
                                 .version_minor = KVCI_VERSION_MINOR};
    struct kvci_places places = {0};
    struct kvci_footer footer = {0};
    struct kvci_metadata metadata;
    struct kvci_geometry geometry = {0};
    if (bytes < 6) {
        return;
    }
    size_t text_bytes = kvci_load16(data + 1);
    text_bytes = text_bytes < bytes - 5 ? text_bytes : bytes - 5;
    header.align_log2 = aligns[data[0] & 3];
    header.tensor_count = kvci_load16(data + 3) & 0xFFF;
    header.metadata_bytes = text_bytes;
    header.payload_span = bytes - 5 - text_bytes;
    if (header.metadata_bytes == 0 || header.payload_span == 0) {
        return;
    }
    header.file_bytes = MAX_BUILT_BYTES;
    bool fits = load_parts(data + 5, &header, &metadata, &geometry);
    uint64_t rows = geometry.manifest_version == 2 ? count_rows(&geometry) : most_rows(&header);
    if (!kvci_header_places(&header, &places)) {
        kvci_geometry_free(&geometry, NULL);
        return;
    }
    header.file_bytes =
        places.trailer_offset + KVCI_DIGEST * (rows + places.digest_count) + KVCI_FOOTER_BYTES;
    check(kvci_header_places(&header, &places), "a small file has no places");
    uint8_t *file = calloc(1, (size_t)header.file_bytes);
    check(file != NULL, "no memory");
    kvci_header_encode(&header, file);
    memcpy(file + KVCI_HEADER_BYTES, data + 5, text_bytes);
    memcpy(file + places.payload_offset, data + 5 + text_bytes, (size_t)header.payload_span);
    fits = fits && kvci_manifest_agrees(&metadata, &geometry, &header, NULL) == KVC_OK;
    if (fits) {
        hash_payload(file, &places, &geometry);
    }
    kvci_geometry_free(&geometry, NULL);
    kvci_root_compute(file + KVCI_HEADER_BYTES, text_bytes, file + places.digests_offset,
                      places.digest_count, footer.root);
    footer.file_bytes = header.file_bytes;
    memset(footer.tag, data[0] >> 2, sizeof(footer.tag));
    kvci_footer_encode(&footer, file + places.footer_offset);
    check((judge(file, (size_t)header.file_bytes) == KVC_OK) == fits,
          "a file is judged otherwise than its parts");
    free(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes == 0 || data[0] == FIRST_BYTE) {
        (void)judge(data, bytes);
    } else if (data[0] % 2 == 0) {
        judge_signed(data + 1, bytes - 1);
    } else {
        judge_built(data + 1, bytes - 1);
    }
    return 0;
}
