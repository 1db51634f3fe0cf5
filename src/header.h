/* header.h: the header and the footer of a container, bytes to struct and back; pure.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCI_HEADER_H
#define KVCI_HEADER_H

#include "kvc.h"
#include "layout.h"

#include <stdbool.h>

struct kvci_header {
    uint16_t version_major;
    uint16_t version_minor;
    uint64_t incompat;
    uint64_t ro_compat;
    uint64_t compat;
    uint64_t file_bytes;
    uint64_t metadata_bytes;
    uint64_t payload_span;
    uint32_t tensor_count;
    uint8_t align_log2;
};

/* Where the parts lie that follow from the header alone; FORMAT.md calls them P, T and D. */
struct kvci_places {
    uint64_t payload_offset;
    uint64_t trailer_offset;
    uint64_t digest_count;
    uint64_t digests_offset;
    uint64_t footer_offset;
};

struct kvci_footer {
    uint8_t root[KVCI_DIGEST];
    uint8_t tag[KVCI_DIGEST];
    uint64_t file_bytes;
    bool has_tag;
};

void kvci_header_encode(const struct kvci_header *header, uint8_t ret_bytes[KVCI_HEADER_BYTES]);

/* Judges the first bytes of a file in the order that FORMAT.md gives: empty, foreign, cut, check,
 * version, features, structure. `head_bytes` is less than 128 only when the file is. */
enum kvc_status kvci_header_decode(const uint8_t *head, size_t head_bytes,
                                   struct kvci_header *ret_header, struct kvci_places *ret_places,
                                   struct kvc_error *error);

/* Computes the places; false when a sum overflows or the file would exceed the format's limit. */
bool kvci_header_places(const struct kvci_header *header, struct kvci_places *ret_places);

void kvci_footer_encode(const struct kvci_footer *footer, uint8_t ret_bytes[KVCI_FOOTER_BYTES]);

enum kvc_status kvci_footer_decode(const uint8_t bytes[KVCI_FOOTER_BYTES], uint64_t footer_offset,
                                   uint64_t file_bytes, struct kvci_footer *ret_footer,
                                   struct kvc_error *error);

#endif
