/* layout.h: the constants of the KVC1 container on disk; mirrors docs/FORMAT.md. Those of JSON
 * spelling stand in json.h and decimal.h.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCI_LAYOUT_H
#define KVCI_LAYOUT_H

#include <assert.h>
#include <stdint.h>

/* FORMAT.md "Header": 0x89 "KVC1" CR LF ^Z. The end magic is the same bytes backwards. */
#define KVCI_MAGIC_BYTES 8
#define KVCI_MAGIC                                                                                 \
    {                                                                                              \
        0x89, 0x4B, 0x56, 0x43, 0x31, 0x0D, 0x0A, 0x1A                                             \
    }

#define KVCI_HEADER_BYTES 128
#define KVCI_HEADER_VERSION_MAJOR 8
#define KVCI_HEADER_VERSION_MINOR 10
#define KVCI_HEADER_HEADER_BYTES 12
#define KVCI_HEADER_INCOMPAT 16
#define KVCI_HEADER_RO_COMPAT 24
#define KVCI_HEADER_COMPAT 32
#define KVCI_HEADER_FILE_BYTES 40
#define KVCI_HEADER_METADATA_BYTES 48
#define KVCI_HEADER_PAYLOAD_SPAN 56
#define KVCI_HEADER_TENSOR_COUNT 64
#define KVCI_HEADER_DIGEST_ALG 68
#define KVCI_HEADER_CHUNK_LOG2 69
#define KVCI_HEADER_ALIGN_LOG2 70
#define KVCI_HEADER_RESERVED 71
#define KVCI_HEADER_CHECK 120
#define KVCI_CHECK_BYTES 8

#define KVCI_FOOTER_BYTES 128
#define KVCI_FOOTER_ROOT 0
#define KVCI_FOOTER_TAG 32
#define KVCI_FOOTER_FILE_BYTES 64
#define KVCI_FOOTER_RESERVED 72
#define KVCI_FOOTER_CHECK 112
#define KVCI_FOOTER_END_MAGIC 120

#define KVCI_VERSION_MAJOR 1
#define KVCI_VERSION_MINOR 1
#define KVCI_DIGEST_ALG_BLAKE3 1

/* FORMAT.md "Versions and feature bits": those of incompat. */
#define KVCI_INCOMPAT_MANIFEST_2 (UINT64_C(1) << 0)
#define KVCI_INCOMPAT_SEGMENT (UINT64_C(1) << 1)
#define KVCI_INCOMPAT_CHUNK_CODEC (UINT64_C(1) << 2)
#define KVCI_INCOMPAT_TAIL_HEADER (UINT64_C(1) << 3)
#define KVCI_INCOMPAT_ENCRYPTED (UINT64_C(1) << 4)
#define KVCI_INCOMPAT_KNOWN (KVCI_INCOMPAT_MANIFEST_2 | KVCI_INCOMPAT_SEGMENT)

/* FORMAT.md "Payload" and "Digests". */
#define KVCI_PAYLOAD_ALIGN 4096
#define KVCI_TRAILER_ALIGN 64
/* Alignment of tensors of manifest version 2, unless another is asked for: 64 bytes. */
#define KVCI_ALIGN_LOG2_2 6
#define KVCI_DIGEST 32
#define KVCI_CHUNK_LOG2 16
#define KVCI_CHUNK_BYTES (UINT64_C(1) << KVCI_CHUNK_LOG2)
#define KVCI_ROOT_CONTEXT "KVC1 1.0 root"
#define KVCI_TAG_CONTEXT "KVC1 1.0 tag"

/* FORMAT.md "Limits". */
#define KVCI_MAX_FILE_BYTES ((UINT64_C(1) << 53) - 1)
#define KVCI_MAX_INTEGER ((INT64_C(1) << 53) - 1)
#define KVCI_MIN_METADATA_BYTES 2
#define KVCI_MAX_METADATA_BYTES (UINT64_C(16) << 20)
#define KVCI_MAX_LOOSE_METADATA_BYTES (UINT64_C(256) << 10)
#define KVCI_MAX_TENSOR_COUNT 65536
#define KVCI_MAX_DIMENSION 32768
#define KVCI_MAX_SEQUENCE_LENGTH ((INT64_C(1) << 31) - 1)
#define KVCI_MAX_BATCH_SIZE ((INT64_C(1) << 31) - 1)
#define KVCI_MAX_MODEL_REVISION_BYTES 1024
#define KVCI_MAX_COMPUTE_DTYPE_BYTES 64
#define KVCI_MAX_WEIGHTS_DIGEST_BYTES 256
#define KVCI_MAX_CLASS_BYTES 128
#define KVCI_MAX_FRAMEWORK_BYTES 64
#define KVCI_MAX_STATE_SCHEMA_BYTES 128
#define KVCI_MAX_CODEC_BYTES 64
#define KVCI_TOKENIZER_SHA256_CHARS 64
/* Layers of the cache itself, and of the cross cache beside it. */
#define KVCI_MAX_LAYER_RECORDS (2 * KVCI_MAX_DIMENSION)
/* Every tensor of manifest version 1 is [batch, kv_heads, sequence, head_dim]. */
#define KVCI_RANK 4
#define KVCI_MAX_RANK 8
#define KVCI_BASE_JSON_VALUES 16384
#define KVCI_JSON_VALUES_PER_TENSOR 32

static_assert(KVCI_HEADER_CHECK + KVCI_CHECK_BYTES == KVCI_HEADER_BYTES, "the check ends a header");
static_assert(KVCI_FOOTER_END_MAGIC + KVCI_MAGIC_BYTES == KVCI_FOOTER_BYTES, "magic ends a footer");
static_assert(KVCI_FOOTER_CHECK + KVCI_CHECK_BYTES == KVCI_FOOTER_END_MAGIC, "no gap before it");
static_assert(KVCI_MAX_TENSOR_COUNT == 2 * KVCI_MAX_DIMENSION, "a key and a value for each layer");

#endif
