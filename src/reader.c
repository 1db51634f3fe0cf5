/* reader.c: opens a container and answers what is in it.
 * SPDX-License-Identifier: Apache-2.0 */
#include "reader.h"

#include <string.h>

#include "alloc.h"
#include "blake3.h"
#include "info.h"
#include "status.h"

#include "ban.h"

static enum kvc_status take_options(const struct kvc_reader_options *options,
                                    struct kvc_reader_options *ret_options, struct kvc_error *error)
{
    struct kvc_reader_options defaults = KVC_READER_OPTIONS_INIT;
    *ret_options = defaults;
    if (options == NULL) {
        return KVC_OK;
    }
    if (options->size != sizeof(*options)) {
        return kvci_fail(error, KVC_E_OPTION, KVC_NO_OFFSET,
                         "kvc_reader_options.size is %zu, expected %zu: use "
                         "KVC_READER_OPTIONS_INIT",
                         options->size, sizeof(*options));
    }
    if (kvci_alloc_check(options->allocator) != KVC_OK) {
        return kvci_fail(error, KVC_E_OPTION, KVC_NO_OFFSET,
                         "an allocator needs both of its functions, allocate and release");
    }
    *ret_options = *options;
    return KVC_OK;
}

/* A tensor of no bytes is never read, so that its digest is held against its bytes here. */
static enum kvc_status judge_empty(const struct kvc_reader *reader, struct kvc_error *error)
{
    uint8_t digest[KVCI_DIGEST];
    char name[KVCI_NAME_BYTES];
    kvci_blake3_hash(NULL, 0, digest);
    for (uint32_t i = 0; i < reader->geometry.tensor_count; i++) {
        const uint8_t *found = reader->frame.digests + (size_t)i * KVCI_DIGEST;
        if (reader->geometry.places[i].bytes > 0 || memcmp(found, digest, sizeof(digest)) == 0) {
            continue;
        }
        uint64_t offset = reader->frame.places.digests_offset + (uint64_t)i * KVCI_DIGEST;
        kvci_geometry_name(&reader->geometry, &reader->geometry.places[i], name);
        (void)kvci_fail(error, KVC_E_CHUNK, offset,
                        "tensor %s has no bytes, but its digest at byte %llu is not that of no "
                        "bytes",
                        name, (unsigned long long)offset);
        kvci_error_field(error, name, strlen(name));
        return KVC_E_CHUNK;
    }
    return KVC_OK;
}

static enum kvc_status parse(struct kvc_reader *reader, struct kvc_error *error)
{
    const struct kvci_header *header = &reader->frame.header;
    const uint32_t count = header->tensor_count > 0 ? header->tensor_count : 1;
    enum kvc_status status = kvci_metadata_parse(
        reader->frame.metadata_text, (size_t)header->metadata_bytes, KVCI_HEADER_BYTES,
        header->version_minor, header->tensor_count, &reader->metadata, error);
    if (status == KVC_OK) {
        status = kvci_manifest_load(&reader->metadata, KVCI_HEADER_BYTES,
                                    UINT32_C(1) << header->align_log2, header->payload_span, count,
                                    reader->allocator, &reader->geometry, error);
    }
    if (status == KVC_OK) {
        status = kvci_manifest_agrees(&reader->metadata, &reader->geometry, header, error);
    }
    return status == KVC_OK ? judge_empty(reader, error) : status;
}

/* Takes the source over: it is closed when this fails. */
static enum kvc_status open_source(struct kvci_source *source,
                                   const struct kvc_reader_options *options,
                                   struct kvc_reader **ret_reader, struct kvc_error *error)
{
    struct kvc_reader *reader = kvci_alloc(options->allocator, sizeof(*reader));
    if (reader == NULL) {
        kvci_source_close(source);
        return kvci_fail_memory(error, sizeof(*reader));
    }
    reader->source = *source;
    if (options->allocator != NULL) {
        reader->own_allocator = *options->allocator;
        reader->allocator = &reader->own_allocator;
    }
    enum kvc_status status =
        kvci_frame_load(&reader->source, reader->allocator, options, &reader->frame, error);
    if (status == KVC_OK) {
        reader->tag_checked = options->key != NULL;
        status = parse(reader, error);
    }
    if (status == KVC_OK) {
        size_t bytes = reader->geometry.tensor_count * sizeof(*reader->proofs);
        reader->proofs = kvci_alloc(reader->allocator, bytes);
        status = reader->proofs != NULL ? KVC_OK : kvci_fail_memory(error, bytes);
    }
    if (status == KVC_OK && options->expected_identity != NULL) {
        status = kvc_reader_identity(reader, options->expected_identity,
                                     options->expected_identity_bytes, options->on_difference,
                                     options->difference_context, error);
    }
    if (status != KVC_OK) {
        kvc_reader_free(reader);
        return status;
    }
    *ret_reader = reader;
    return KVC_OK;
}

static enum kvc_status null_argument(struct kvc_error *error, const char *name)
{
    return kvci_fail(error, KVC_E_USAGE, KVC_NO_OFFSET, "%s must not be NULL", name);
}

enum kvc_status kvc_reader_open_path(const char *path, const struct kvc_reader_options *options,
                                     struct kvc_reader **ret_reader, struct kvc_error *error)
{
    struct kvc_reader_options taken;
    struct kvci_source source;
    if (path == NULL || ret_reader == NULL) {
        return null_argument(error, path == NULL ? "path" : "ret_reader");
    }
    enum kvc_status status = take_options(options, &taken, error);
    if (status == KVC_OK) {
        status = kvci_source_open_path(path, &source, error);
    }
    return status == KVC_OK ? open_source(&source, &taken, ret_reader, error) : status;
}

enum kvc_status kvc_reader_open_fd(int fd, const struct kvc_reader_options *options,
                                   struct kvc_reader **ret_reader, struct kvc_error *error)
{
    struct kvc_reader_options taken;
    struct kvci_source source;
    if (ret_reader == NULL) {
        return null_argument(error, "ret_reader");
    }
    enum kvc_status status = take_options(options, &taken, error);
    if (status == KVC_OK) {
        status = kvci_source_open_fd(fd, &source, error);
    }
    return status == KVC_OK ? open_source(&source, &taken, ret_reader, error) : status;
}

enum kvc_status kvc_reader_open_memory(const void *data, uint64_t data_bytes,
                                       const struct kvc_reader_options *options,
                                       struct kvc_reader **ret_reader, struct kvc_error *error)
{
    struct kvc_reader_options taken;
    struct kvci_source source;
    if (data == NULL || ret_reader == NULL) {
        return null_argument(error, data == NULL ? "data" : "ret_reader");
    }
    enum kvc_status status = take_options(options, &taken, error);
    if (status != KVC_OK) {
        return status;
    }
    kvci_source_open_memory(data, data_bytes, &source);
    return open_source(&source, &taken, ret_reader, error);
}

enum kvc_status kvc_reader_open_source(const struct kvc_source *source,
                                       const struct kvc_reader_options *options,
                                       struct kvc_reader **ret_reader, struct kvc_error *error)
{
    struct kvc_reader_options taken;
    struct kvci_source own;
    if (source == NULL || ret_reader == NULL) {
        return null_argument(error, source == NULL ? "source" : "ret_reader");
    }
    if (source->size != sizeof(*source)) {
        return kvci_fail(error, KVC_E_OPTION, KVC_NO_OFFSET,
                         "kvc_source.size is %zu, expected %zu: use KVC_SOURCE_INIT", source->size,
                         sizeof(*source));
    }
    if (source->read_at == NULL) {
        return null_argument(error, "kvc_source.read_at");
    }
    enum kvc_status status = take_options(options, &taken, error);
    if (status != KVC_OK) {
        if (source->close != NULL) {
            source->close(source->context);
        }
        return status;
    }
    kvci_source_open_custom(source, &own);
    return open_source(&own, &taken, ret_reader, error);
}

void kvc_reader_free(struct kvc_reader *reader)
{
    if (reader == NULL) {
        return;
    }
    /* The allocator lives inside the block that is freed last. */
    struct kvc_allocator copy = reader->own_allocator;
    const struct kvc_allocator *allocator = reader->allocator != NULL ? &copy : NULL;
    kvci_source_close(&reader->source);
    kvci_mapping_free(atomic_load(&reader->mapping));
    for (uint32_t i = 0; reader->proofs != NULL && i < reader->geometry.tensor_count; i++) {
        kvci_free(allocator, atomic_load(&reader->proofs[i].row));
        kvci_free(allocator, (void *)atomic_load(&reader->proofs[i].chunks));
        kvci_free(allocator, atomic_load(&reader->proofs[i].bad_digest));
    }
    kvci_free(allocator, reader->proofs);
    kvci_geometry_free(&reader->geometry, allocator);
    kvci_frame_free(&reader->frame, allocator);
    kvci_free(allocator, reader);
}

enum kvc_status kvc_reader_info(const struct kvc_reader *reader, struct kvc_info *ret_info,
                                struct kvc_error *error)
{
    if (reader == NULL || ret_info == NULL) {
        return null_argument(error, reader == NULL ? "reader" : "ret_info");
    }
    return kvci_info_fill(&reader->frame.header, &reader->frame.footer, &reader->metadata,
                          &reader->geometry, reader->tag_checked, ret_info, error);
}

const char *kvc_reader_metadata(const struct kvc_reader *reader, uint64_t *ret_bytes)
{
    if (reader == NULL) {
        return NULL;
    }
    if (ret_bytes != NULL) {
        *ret_bytes = reader->frame.header.metadata_bytes;
    }
    return (const char *)reader->frame.metadata_text;
}

enum kvc_status kvc_reader_field(const struct kvc_reader *reader, const char *name,
                                 const char **ret_json, uint64_t *ret_bytes,
                                 struct kvc_error *error)
{
    struct kvci_span span;
    if (reader == NULL || name == NULL || ret_json == NULL || ret_bytes == NULL) {
        return null_argument(error, "reader, name, ret_json and ret_bytes");
    }
    if (!kvci_metadata_find(&reader->metadata, name, &span)) {
        (void)kvci_fail(error, KVC_E_NOT_FOUND, KVC_NO_OFFSET,
                        "the metadata have no member \"%.*s\"", kvci_shown(name, strlen(name)),
                        name);
        kvci_error_field(error, name, strlen(name));
        return KVC_E_NOT_FOUND;
    }
    *ret_json = (const char *)reader->metadata.text + span.offset;
    *ret_bytes = span.bytes;
    return KVC_OK;
}

enum kvc_status kvci_reader_check_index(const struct kvc_reader *reader, uint32_t index,
                                        struct kvc_error *error)
{
    if (reader == NULL) {
        return null_argument(error, "reader");
    }
    if (index >= reader->geometry.tensor_count) {
        return kvci_fail(error, KVC_E_RANGE, KVC_NO_OFFSET,
                         "there is no tensor %u: the file has %u, counted from 0", index,
                         reader->geometry.tensor_count);
    }
    return KVC_OK;
}

enum kvc_status kvc_reader_tensor(const struct kvc_reader *reader, uint32_t index,
                                  struct kvc_tensor *ret_tensor, struct kvc_error *error)
{
    enum kvc_status status = kvci_reader_check_index(reader, index, error);
    if (status != KVC_OK) {
        return status;
    }
    if (ret_tensor == NULL || ret_tensor->size != sizeof(*ret_tensor)) {
        return kvci_fail(error, KVC_E_OPTION, KVC_NO_OFFSET,
                         "ret_tensor must point to a struct made with KVC_TENSOR_INIT");
    }
    const struct kvci_geometry *geometry = &reader->geometry;
    const struct kvci_place *place = &geometry->places[index];
    const struct kvci_tensor tensor = kvci_reader_tensor(reader, index);
    const bool opaque = geometry->manifest_version == 0;
    struct kvci_form form = {0};
    kvci_manifest_tensor(&reader->metadata, geometry, index, &form);
    struct kvc_tensor result = {
        .size = sizeof(result),
        .dtype = form.dtype->name,
        .kind = opaque ? "" : kvci_role_name((enum kvci_role)place->role),
        .layer = opaque ? 0 : place->layer,
        .rank = form.rank,
        .offset = place->offset,
        .file_offset = tensor.file_offset,
        .tensor_bytes = tensor.bytes,
        .chunk_count = tensor.chunks,
    };
    kvci_geometry_name(geometry, place, result.name);
    memcpy(result.shape, form.shape, sizeof(form.shape));
    memcpy(result.digest, tensor.digest, sizeof(result.digest));
    *ret_tensor = result;
    return KVC_OK;
}

enum kvc_status kvc_reader_find(const struct kvc_reader *reader, const char *name,
                                size_t name_bytes, uint32_t *ret_index, struct kvc_error *error)
{
    if (reader == NULL || name == NULL || ret_index == NULL) {
        return null_argument(error, "reader, name and ret_index");
    }
    if (!kvci_geometry_find(&reader->geometry, name, name_bytes, ret_index)) {
        (void)kvci_fail(error, KVC_E_NOT_FOUND, KVC_NO_OFFSET, "there is no tensor \"%.*s\": %s",
                        kvci_shown(name, name_bytes), name,
                        reader->geometry.manifest_version == 0
                            ? "the payload is opaque and has the empty name"
                        : reader->geometry.manifest_version == 1
                            ? "names are layer.0.key, layer.0.value, layer.1.key, ..."
                            : "names are like layer.0.key, cross.0.value, layer.1.conv_state.0, "
                              "token_ids");
        kvci_error_field(error, name, name_bytes);
        return KVC_E_NOT_FOUND;
    }
    return KVC_OK;
}
