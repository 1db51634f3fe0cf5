/* frame.c: reads and proves everything of a container but the payload.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "alloc.h"
#include "bytes.h"
#include "reader.h"
#include "root.h"
#include "status.h"

#include "ban.h"

static enum kvc_status judge_limits(const struct kvci_header *header,
                                    const struct kvc_reader_options *options,
                                    struct kvc_error *error)
{
    const struct {
        const char *field;
        uint64_t found;
        uint64_t limit;
    } limits[] = {
        {"file_bytes", header->file_bytes, options->max_file_bytes},
        {"metadata_bytes", header->metadata_bytes, options->max_metadata_bytes},
        {"tensor_count", header->tensor_count, options->max_tensor_count},
    };
    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
        if (limits[i].limit != 0 && limits[i].found > limits[i].limit) {
            (void)kvci_fail(error, KVC_E_LIMIT, KVC_NO_OFFSET,
                            "%s is %llu, more than the limit of %llu that the caller set",
                            limits[i].field, (unsigned long long)limits[i].found,
                            (unsigned long long)limits[i].limit);
            kvci_error_field(error, limits[i].field, strlen(limits[i].field));
            kvci_error_expected(error, "at most %llu", (unsigned long long)limits[i].limit);
            kvci_error_found(error, "%llu", (unsigned long long)limits[i].found);
            return KVC_E_LIMIT;
        }
    }
    return KVC_OK;
}

static enum kvc_status judge_size(uint64_t declared, uint64_t found, struct kvc_error *error)
{
    enum kvc_status status = KVC_OK;
    if (found < declared) {
        status = kvci_fail(error, KVC_E_TRUNCATED, found,
                           "the file is cut: it has %llu bytes of %llu; copy or save it again",
                           (unsigned long long)found, (unsigned long long)declared);
    } else if (found > declared) {
        status = kvci_fail(error, KVC_E_TRAILING, declared,
                           "the file goes on for %llu byte%s behind its end: it has %llu, its "
                           "header says %llu; cut it there, or copy it again",
                           (unsigned long long)(found - declared), found - declared == 1 ? "" : "s",
                           (unsigned long long)found, (unsigned long long)declared);
    }
    if (status != KVC_OK) {
        kvci_error_field(error, "file_bytes", 10);
        kvci_error_expected(error, "%llu", (unsigned long long)declared);
        kvci_error_found(error, "%llu", (unsigned long long)found);
    }
    return status;
}

/* Padding is at most 4,095 bytes, and read to the stack. */
static enum kvc_status judge_padding(const struct kvci_source *source, uint64_t from, uint64_t to,
                                     const char *what, struct kvc_error *error)
{
    uint8_t padding[KVCI_PAYLOAD_ALIGN];
    size_t bytes = (size_t)(to - from);
    enum kvc_status status = kvci_source_read(source, padding, bytes, from, error);
    if (status != KVC_OK) {
        return status;
    }
    size_t at = kvci_first_nonzero(padding, bytes);
    if (at == bytes) {
        return KVC_OK;
    }
    (void)kvci_fail(error, KVC_E_PADDING, from + at,
                    "the padding %s is damaged: byte %llu is %u, expected 0", what,
                    (unsigned long long)(from + at), (unsigned)padding[at]);
    kvci_error_expected(error, "0");
    kvci_error_found(error, "%u", (unsigned)padding[at]);
    return KVC_E_PADDING;
}

static enum kvc_status differing_roots(enum kvc_status status, const char *meaning,
                                       const uint8_t *expected, const uint8_t *found,
                                       uint64_t offset, struct kvc_error *error)
{
    char expected_text[KVC_ROOT_TEXT_BYTES];
    char found_text[KVC_ROOT_TEXT_BYTES];
    kvc_root_format(expected, expected_text);
    kvc_root_format(found, found_text);
    (void)kvci_fail(error, status, offset, "%s: expected %s, found %s", meaning, expected_text,
                    found_text);
    kvci_error_field(error, "root", 4);
    kvci_error_expected(error, "%s", expected_text);
    kvci_error_found(error, "%s", found_text);
    return status;
}

static enum kvc_status judge_root(const struct kvci_frame *frame,
                                  const struct kvc_reader_options *options, struct kvc_error *error)
{
    uint8_t root[KVCI_DIGEST];
    uint8_t tag[KVCI_DIGEST];
    kvci_root_compute(frame->metadata_text, frame->header.metadata_bytes, frame->digests,
                      frame->places.digest_count, root);
    if (!kvci_root_equal(root, frame->footer.root)) {
        return differing_roots(KVC_E_ROOT,
                               "the metadata or the tensor digests are damaged: they do not give "
                               "the root in the footer",
                               frame->footer.root, root, frame->places.footer_offset, error);
    }
    if (options->expected_root != NULL && !kvci_root_equal(options->expected_root, root)) {
        return differing_roots(KVC_E_EXPECTED_ROOT, "this is not the file that was wanted",
                               options->expected_root, root, frame->places.footer_offset, error);
    }
    if (options->key == NULL) {
        return KVC_OK;
    }
    if (!frame->footer.has_tag) {
        return kvci_fail(error, KVC_E_NO_TAG, frame->places.footer_offset + KVCI_FOOTER_TAG,
                         "a key was given, but the file carries no tag: nothing shows who made it");
    }
    kvci_root_tag(root, options->key, tag);
    if (!kvci_root_equal(tag, frame->footer.tag)) {
        return kvci_fail(error, KVC_E_TAG, frame->places.footer_offset + KVCI_FOOTER_TAG,
                         "the tag was not made with this key: another key, or another maker");
    }
    return KVC_OK;
}

static enum kvc_status read_block(const struct kvci_source *source,
                                  const struct kvc_allocator *allocator, uint64_t bytes,
                                  uint64_t offset, uint8_t **ret_block, struct kvc_error *error)
{
    *ret_block = kvci_alloc(allocator, (size_t)bytes);
    if (*ret_block == NULL) {
        return kvci_fail_memory(error, bytes);
    }
    return kvci_source_read(source, *ret_block, bytes, offset, error);
}

static enum kvc_status load_ends(const struct kvci_source *source,
                                 const struct kvc_reader_options *options, struct kvci_frame *frame,
                                 struct kvc_error *error)
{
    uint8_t block[KVCI_HEADER_BYTES];
    uint64_t head_bytes =
        source->file_bytes < KVCI_HEADER_BYTES ? source->file_bytes : KVCI_HEADER_BYTES;
    enum kvc_status status = kvci_source_read(source, block, head_bytes, 0, error);
    if (status == KVC_OK) {
        status =
            kvci_header_decode(block, (size_t)head_bytes, &frame->header, &frame->places, error);
    }
    if (status == KVC_OK) {
        status = judge_size(frame->header.file_bytes, source->file_bytes, error);
    }
    if (status == KVC_OK) {
        status = judge_limits(&frame->header, options, error);
    }
    if (status == KVC_OK) {
        status =
            kvci_source_read(source, block, KVCI_FOOTER_BYTES, frame->places.footer_offset, error);
    }
    if (status == KVC_OK) {
        status = kvci_footer_decode(block, frame->places.footer_offset, frame->header.file_bytes,
                                    &frame->footer, error);
    }
    return status;
}

enum kvc_status kvci_frame_load(const struct kvci_source *source,
                                const struct kvc_allocator *allocator,
                                const struct kvc_reader_options *options,
                                struct kvci_frame *ret_frame, struct kvc_error *error)
{
    struct kvci_frame frame = {0};
    const struct kvci_places *places = &frame.places;
    enum kvc_status status = load_ends(source, options, &frame, error);
    if (status == KVC_OK) {
        status = read_block(source, allocator, frame.header.metadata_bytes, KVCI_HEADER_BYTES,
                            &frame.metadata_text, error);
    }
    if (status == KVC_OK) {
        status = judge_padding(source, KVCI_HEADER_BYTES + frame.header.metadata_bytes,
                               places->payload_offset, "before the payload", error);
    }
    if (status == KVC_OK) {
        status = judge_padding(source, places->payload_offset + frame.header.payload_span,
                               places->trailer_offset, "behind the payload", error);
    }
    if (status == KVC_OK) {
        status = read_block(source, allocator, KVCI_DIGEST * places->digest_count,
                            places->digests_offset, &frame.digests, error);
    }
    if (status == KVC_OK) {
        status = judge_root(&frame, options, error);
    }
    if (status != KVC_OK) {
        kvci_frame_free(&frame, allocator);
        return status;
    }
    *ret_frame = frame;
    return KVC_OK;
}

void kvci_frame_free(struct kvci_frame *frame, const struct kvc_allocator *allocator)
{
    kvci_free(allocator, frame->metadata_text);
    kvci_free(allocator, frame->digests);
    frame->metadata_text = NULL;
    frame->digests = NULL;
}
