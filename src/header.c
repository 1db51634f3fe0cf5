/* header.c: the header and the footer of a container, bytes to struct and back; pure.
 * SPDX-License-Identifier: Apache-2.0 */
#include "header.h"

#include <string.h>

#include "blake3.h"
#include "bytes.h"
#include "checked.h"
#include "foreign.h"
#include "status.h"

#include "ban.h"

static const uint8_t magic[KVCI_MAGIC_BYTES] = KVCI_MAGIC;

/* The first eight bytes of the BLAKE3 digest of what comes before the check. */
static void check_value(const uint8_t *data, size_t bytes, uint8_t ret_check[KVCI_CHECK_BYTES])
{
    uint8_t digest[KVCI_DIGEST];
    kvci_blake3_hash(data, bytes, digest);
    memcpy(ret_check, digest, KVCI_CHECK_BYTES);
}

void kvci_header_encode(const struct kvci_header *header, uint8_t ret_bytes[KVCI_HEADER_BYTES])
{
    memset(ret_bytes, 0, KVCI_HEADER_BYTES);
    memcpy(ret_bytes, magic, sizeof(magic));
    kvci_store16(ret_bytes + KVCI_HEADER_VERSION_MAJOR, header->version_major);
    kvci_store16(ret_bytes + KVCI_HEADER_VERSION_MINOR, header->version_minor);
    kvci_store32(ret_bytes + KVCI_HEADER_HEADER_BYTES, KVCI_HEADER_BYTES);
    kvci_store64(ret_bytes + KVCI_HEADER_INCOMPAT, header->incompat);
    kvci_store64(ret_bytes + KVCI_HEADER_RO_COMPAT, header->ro_compat);
    kvci_store64(ret_bytes + KVCI_HEADER_COMPAT, header->compat);
    kvci_store64(ret_bytes + KVCI_HEADER_FILE_BYTES, header->file_bytes);
    kvci_store64(ret_bytes + KVCI_HEADER_METADATA_BYTES, header->metadata_bytes);
    kvci_store64(ret_bytes + KVCI_HEADER_PAYLOAD_SPAN, header->payload_span);
    kvci_store32(ret_bytes + KVCI_HEADER_TENSOR_COUNT, header->tensor_count);
    ret_bytes[KVCI_HEADER_DIGEST_ALG] = KVCI_DIGEST_ALG_BLAKE3;
    ret_bytes[KVCI_HEADER_CHUNK_LOG2] = KVCI_CHUNK_LOG2;
    ret_bytes[KVCI_HEADER_ALIGN_LOG2] = header->align_log2;
    check_value(ret_bytes, KVCI_HEADER_CHECK, ret_bytes + KVCI_HEADER_CHECK);
}

bool kvci_header_places(const struct kvci_header *header, struct kvci_places *ret_places)
{
    struct kvci_places places = {0};
    uint64_t end = 0;
    places.digest_count = header->tensor_count > 0 ? header->tensor_count : 1;
    if (!kvci_add(KVCI_HEADER_BYTES, header->metadata_bytes, &end) ||
        !kvci_round_up(end, KVCI_PAYLOAD_ALIGN, &places.payload_offset) ||
        !kvci_add(places.payload_offset, header->payload_span, &end) ||
        !kvci_round_up(end, KVCI_TRAILER_ALIGN, &places.trailer_offset) ||
        !kvci_add(places.trailer_offset, KVCI_DIGEST * places.digest_count, &end) ||
        !kvci_add(end, KVCI_FOOTER_BYTES, &end)) {
        return false;
    }
    if (header->file_bytes > KVCI_MAX_FILE_BYTES || end > header->file_bytes) {
        return false;
    }
    places.footer_offset = header->file_bytes - KVCI_FOOTER_BYTES;
    places.digests_offset = places.footer_offset - KVCI_DIGEST * places.digest_count;
    *ret_places = places;
    return true;
}

/* Says which numbered field is wrong; every refusal of a header field has this form. */
static enum kvc_status refuse_field(struct kvc_error *error, enum kvc_status status,
                                    const char *field, uint64_t offset, uint64_t found,
                                    const char *expected, const char *advice)
{
    (void)kvci_fail(error, status, offset, "header field %s at byte %llu is %llu, expected %s%s",
                    field, (unsigned long long)offset, (unsigned long long)found, expected, advice);
    kvci_error_field(error, field, strlen(field));
    kvci_error_expected(error, "%s", expected);
    kvci_error_found(error, "%llu", (unsigned long long)found);
    return status;
}

static enum kvc_status judge_magic(const uint8_t *head, size_t head_bytes, struct kvc_error *error)
{
    if (head_bytes == 0) {
        return kvci_fail(error, KVC_E_EMPTY, 0, "the file is empty: it has 0 bytes");
    }
    size_t compared = head_bytes < KVCI_MAGIC_BYTES ? head_bytes : KVCI_MAGIC_BYTES;
    if (memcmp(head, magic, compared) != 0) {
        return kvci_foreign(head, head_bytes, error);
    }
    if (head_bytes < KVCI_HEADER_BYTES) {
        (void)kvci_fail(error, KVC_E_TRUNCATED, head_bytes,
                        "the file is cut inside its header: it has %zu bytes, a header has %d; "
                        "copy or save it again",
                        head_bytes, KVCI_HEADER_BYTES);
        kvci_error_expected(error, "%d", KVCI_HEADER_BYTES);
        kvci_error_found(error, "%zu", head_bytes);
        return KVC_E_TRUNCATED;
    }
    return KVC_OK;
}

static enum kvc_status judge_check(const uint8_t *head, struct kvc_error *error)
{
    uint8_t check[KVCI_CHECK_BYTES];
    check_value(head, KVCI_HEADER_CHECK, check);
    if (memcmp(check, head + KVCI_HEADER_CHECK, sizeof(check)) == 0) {
        return KVC_OK;
    }
    char expected[2 * KVCI_CHECK_BYTES + 1];
    char found[2 * KVCI_CHECK_BYTES + 1];
    kvci_hex(check, sizeof(check), expected);
    kvci_hex(head + KVCI_HEADER_CHECK, sizeof(check), found);
    (void)kvci_fail(error, KVC_E_HEADER_CHECK, KVCI_HEADER_CHECK,
                    "the header is damaged: its bytes 0 to 119 give the check %s, byte 120 holds "
                    "%s; restore the file from a good copy",
                    expected, found);
    kvci_error_field(error, "header_check", 12);
    kvci_error_expected(error, "%s", expected);
    kvci_error_found(error, "%s", found);
    return KVC_E_HEADER_CHECK;
}

static const char *feature_name(uint64_t bit)
{
    switch (bit) {
    case KVCI_INCOMPAT_MANIFEST_2:
        return "tensor manifest version 2";
    case KVCI_INCOMPAT_SEGMENT:
        return "a segment that continues a parent file";
    case KVCI_INCOMPAT_CHUNK_CODEC:
        return "encoded chunks";
    case KVCI_INCOMPAT_TAIL_HEADER:
        return "sizes at the end of the file";
    case KVCI_INCOMPAT_ENCRYPTED:
        return "encryption";
    default:
        return "a feature without a name here";
    }
}

static enum kvc_status judge_features(const struct kvci_header *header, const uint8_t *head,
                                      struct kvc_error *error)
{
    if (header->version_major != KVCI_VERSION_MAJOR) {
        return refuse_field(error, KVC_E_VERSION, "version_major", KVCI_HEADER_VERSION_MAJOR,
                            header->version_major, "1",
                            "; the file needs another version of this library");
    }
    uint64_t unknown = header->incompat & ~KVCI_INCOMPAT_KNOWN;
    if (unknown != 0) {
        uint64_t lowest = unknown & (~unknown + 1);
        unsigned bit = 0;
        while (lowest >> bit != 1) {
            bit++;
        }
        (void)kvci_fail(error, KVC_E_FEATURE, KVCI_HEADER_INCOMPAT,
                        "the file uses incompat bit %u (%s), which this version cannot read; use a "
                        "newer version of this library",
                        bit, feature_name(lowest));
        kvci_error_field(error, "incompat", 8);
        kvci_error_expected(error, "%llu", (unsigned long long)KVCI_INCOMPAT_KNOWN);
        kvci_error_found(error, "%llu", (unsigned long long)header->incompat);
        return KVC_E_FEATURE;
    }
    static const char newer[] = "; the file needs a newer version of this library";
    if (head[KVCI_HEADER_DIGEST_ALG] != KVCI_DIGEST_ALG_BLAKE3) {
        return refuse_field(error, KVC_E_FEATURE, "digest_alg", KVCI_HEADER_DIGEST_ALG,
                            head[KVCI_HEADER_DIGEST_ALG], "1 (BLAKE3-256)", newer);
    }
    if (head[KVCI_HEADER_CHUNK_LOG2] != KVCI_CHUNK_LOG2) {
        return refuse_field(error, KVC_E_FEATURE, "chunk_log2", KVCI_HEADER_CHUNK_LOG2,
                            head[KVCI_HEADER_CHUNK_LOG2], "16", newer);
    }
    if (header->align_log2 != 0 && header->align_log2 != 6 && header->align_log2 != 12) {
        return refuse_field(error, KVC_E_FEATURE, "align_log2", KVCI_HEADER_ALIGN_LOG2,
                            header->align_log2, "0, 6 or 12", newer);
    }
    return KVC_OK;
}

static enum kvc_status judge_structure(const struct kvci_header *header, const uint8_t *head,
                                       struct kvci_places *ret_places, struct kvc_error *error)
{
    uint32_t header_bytes = kvci_load32(head + KVCI_HEADER_HEADER_BYTES);
    if (header_bytes != KVCI_HEADER_BYTES) {
        return refuse_field(error, KVC_E_STRUCTURE, "header_bytes", KVCI_HEADER_HEADER_BYTES,
                            header_bytes, "128", "");
    }
    size_t reserved_bytes = KVCI_HEADER_CHECK - KVCI_HEADER_RESERVED;
    size_t at = kvci_first_nonzero(head + KVCI_HEADER_RESERVED, reserved_bytes);
    if (at != reserved_bytes) {
        at += KVCI_HEADER_RESERVED;
        return refuse_field(error, KVC_E_STRUCTURE, "reserved", at, head[at], "0", "");
    }
    if (header->metadata_bytes < KVCI_MIN_METADATA_BYTES ||
        header->metadata_bytes > KVCI_MAX_METADATA_BYTES) {
        return refuse_field(error, KVC_E_STRUCTURE, "metadata_bytes", KVCI_HEADER_METADATA_BYTES,
                            header->metadata_bytes, "2 to 16777216", "");
    }
    if (header->payload_span < 1) {
        return refuse_field(error, KVC_E_STRUCTURE, "payload_span", KVCI_HEADER_PAYLOAD_SPAN,
                            header->payload_span, "at least 1", "");
    }
    if (header->tensor_count > KVCI_MAX_TENSOR_COUNT) {
        return refuse_field(error, KVC_E_STRUCTURE, "tensor_count", KVCI_HEADER_TENSOR_COUNT,
                            header->tensor_count, "0 to 65536", "");
    }
    if (!kvci_header_places(header, ret_places)) {
        return refuse_field(error, KVC_E_STRUCTURE, "file_bytes", KVCI_HEADER_FILE_BYTES,
                            header->file_bytes,
                            "room for metadata_bytes, payload_span and tensor_count, and at most "
                            "9007199254740991",
                            "");
    }
    return KVC_OK;
}

enum kvc_status kvci_header_decode(const uint8_t *head, size_t head_bytes,
                                   struct kvci_header *ret_header, struct kvci_places *ret_places,
                                   struct kvc_error *error)
{
    enum kvc_status status = judge_magic(head, head_bytes, error);
    if (status == KVC_OK) {
        status = judge_check(head, error);
    }
    if (status != KVC_OK) {
        return status;
    }
    struct kvci_header header = {
        .version_major = kvci_load16(head + KVCI_HEADER_VERSION_MAJOR),
        .version_minor = kvci_load16(head + KVCI_HEADER_VERSION_MINOR),
        .incompat = kvci_load64(head + KVCI_HEADER_INCOMPAT),
        .ro_compat = kvci_load64(head + KVCI_HEADER_RO_COMPAT),
        .compat = kvci_load64(head + KVCI_HEADER_COMPAT),
        .file_bytes = kvci_load64(head + KVCI_HEADER_FILE_BYTES),
        .metadata_bytes = kvci_load64(head + KVCI_HEADER_METADATA_BYTES),
        .payload_span = kvci_load64(head + KVCI_HEADER_PAYLOAD_SPAN),
        .tensor_count = kvci_load32(head + KVCI_HEADER_TENSOR_COUNT),
        .align_log2 = head[KVCI_HEADER_ALIGN_LOG2],
    };
    status = judge_features(&header, head, error);
    if (status == KVC_OK) {
        status = judge_structure(&header, head, ret_places, error);
    }
    if (status == KVC_OK) {
        *ret_header = header;
    }
    return status;
}

static void end_magic(uint8_t ret_bytes[KVCI_MAGIC_BYTES])
{
    for (size_t i = 0; i < KVCI_MAGIC_BYTES; i++) {
        ret_bytes[i] = magic[KVCI_MAGIC_BYTES - 1 - i];
    }
}

void kvci_footer_encode(const struct kvci_footer *footer, uint8_t ret_bytes[KVCI_FOOTER_BYTES])
{
    memset(ret_bytes, 0, KVCI_FOOTER_BYTES);
    memcpy(ret_bytes + KVCI_FOOTER_ROOT, footer->root, KVCI_DIGEST);
    memcpy(ret_bytes + KVCI_FOOTER_TAG, footer->tag, KVCI_DIGEST);
    kvci_store64(ret_bytes + KVCI_FOOTER_FILE_BYTES, footer->file_bytes);
    check_value(ret_bytes, KVCI_FOOTER_CHECK, ret_bytes + KVCI_FOOTER_CHECK);
    end_magic(ret_bytes + KVCI_FOOTER_END_MAGIC);
}

static enum kvc_status refuse_footer(struct kvc_error *error, const char *field, uint64_t offset,
                                     const uint8_t *expected, const uint8_t *found)
{
    char expected_text[2 * KVCI_CHECK_BYTES + 1];
    char found_text[2 * KVCI_CHECK_BYTES + 1];
    kvci_hex(expected, KVCI_CHECK_BYTES, expected_text);
    kvci_hex(found, KVCI_CHECK_BYTES, found_text);
    (void)kvci_fail(error, KVC_E_FOOTER_CHECK, offset,
                    "the footer is damaged: its %s at byte %llu is %s, expected %s; restore the "
                    "file from a good copy",
                    field, (unsigned long long)offset, found_text, expected_text);
    kvci_error_field(error, field, strlen(field));
    kvci_error_expected(error, "%s", expected_text);
    kvci_error_found(error, "%s", found_text);
    return KVC_E_FOOTER_CHECK;
}

enum kvc_status kvci_footer_decode(const uint8_t bytes[KVCI_FOOTER_BYTES], uint64_t footer_offset,
                                   uint64_t file_bytes, struct kvci_footer *ret_footer,
                                   struct kvc_error *error)
{
    if (kvci_first_nonzero(bytes, KVCI_FOOTER_BYTES) == KVCI_FOOTER_BYTES) {
        return kvci_fail(error, KVC_E_UNFINISHED, footer_offset,
                         "the file was never finished: the 128 bytes of its footer at byte %llu "
                         "are zero; save it again",
                         (unsigned long long)footer_offset);
    }
    uint8_t check[KVCI_CHECK_BYTES];
    uint8_t end[KVCI_MAGIC_BYTES];
    check_value(bytes, KVCI_FOOTER_CHECK, check);
    end_magic(end);
    if (memcmp(check, bytes + KVCI_FOOTER_CHECK, sizeof(check)) != 0) {
        return refuse_footer(error, "footer_check", footer_offset + KVCI_FOOTER_CHECK, check,
                             bytes + KVCI_FOOTER_CHECK);
    }
    if (memcmp(end, bytes + KVCI_FOOTER_END_MAGIC, sizeof(end)) != 0) {
        return refuse_footer(error, "end_magic", footer_offset + KVCI_FOOTER_END_MAGIC, end,
                             bytes + KVCI_FOOTER_END_MAGIC);
    }
    size_t reserved_bytes = KVCI_FOOTER_CHECK - KVCI_FOOTER_RESERVED;
    size_t at = kvci_first_nonzero(bytes + KVCI_FOOTER_RESERVED, reserved_bytes);
    if (at != reserved_bytes) {
        at += KVCI_FOOTER_RESERVED;
        (void)kvci_fail(error, KVC_E_STRUCTURE, footer_offset + at,
                        "reserved footer byte %zu is %u, expected 0", at, (unsigned)bytes[at]);
        kvci_error_field(error, "reserved", 8);
        return KVC_E_STRUCTURE;
    }
    uint64_t again = kvci_load64(bytes + KVCI_FOOTER_FILE_BYTES);
    if (again != file_bytes) {
        (void)kvci_fail(error, KVC_E_STRUCTURE, footer_offset + KVCI_FOOTER_FILE_BYTES,
                        "the footer says that the file has %llu bytes, the header %llu",
                        (unsigned long long)again, (unsigned long long)file_bytes);
        kvci_error_field(error, "file_bytes", 10);
        kvci_error_expected(error, "%llu", (unsigned long long)file_bytes);
        kvci_error_found(error, "%llu", (unsigned long long)again);
        return KVC_E_STRUCTURE;
    }
    memcpy(ret_footer->root, bytes + KVCI_FOOTER_ROOT, KVCI_DIGEST);
    memcpy(ret_footer->tag, bytes + KVCI_FOOTER_TAG, KVCI_DIGEST);
    ret_footer->file_bytes = again;
    ret_footer->has_tag = kvci_first_nonzero(ret_footer->tag, KVCI_DIGEST) != KVCI_DIGEST;
    return KVC_OK;
}
