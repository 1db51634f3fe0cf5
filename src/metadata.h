/* metadata.h: the schema of the top-level metadata; pure.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCI_METADATA_H
#define KVCI_METADATA_H

#include "dtype.h"
#include "json.h"
#include "kvc.h"
#include "layout.h"

#include <stdbool.h>

/* The registry of top-level names of FORMAT.md, in ascending order as in every file. */
enum kvci_member {
    KVCI_MEMBER_ADAPTERS,
    KVCI_MEMBER_ATTENTION,
    KVCI_MEMBER_COMPUTE_DTYPE,
    KVCI_MEMBER_DTYPE,
    KVCI_MEMBER_HEAD_DIM,
    KVCI_MEMBER_KV_HEADS,
    KVCI_MEMBER_KV_QUANTIZATION,
    KVCI_MEMBER_LAYERS,
    KVCI_MEMBER_LAYOUT,
    KVCI_MEMBER_MODEL_REVISION,
    KVCI_MEMBER_PARENT_ROOT,
    KVCI_MEMBER_ROPE,
    KVCI_MEMBER_ROPE_THETA,
    KVCI_MEMBER_SEQUENCE_LENGTH,
    KVCI_MEMBER_SEQUENCE_START,
    KVCI_MEMBER_TENSOR_MANIFEST,
    KVCI_MEMBER_TOKENIZER_SHA256,
    KVCI_MEMBER_USER,
    KVCI_MEMBER_WEIGHTS_DIGEST,
    KVCI_MEMBER_COUNT
};

/* A JSON value inside the metadata text. */
struct kvci_span {
    size_t offset;
    size_t bytes;
};

struct kvci_metadata {
    const uint8_t *text; /* canonical JSON, owned by whoever called kvci_metadata_parse */
    size_t bytes;
    bool present[KVCI_MEMBER_COUNT];
    struct kvci_span spans[KVCI_MEMBER_COUNT];
    uint32_t lowest_minor;          /* the version_minor that the names need */
    uint32_t manifest_version;      /* 0: no manifest; 1: version 1, or one that is not known */
    uint32_t layer_records;         /* of manifest version 2, at most KVCI_MAX_LAYER_RECORDS */
    uint32_t tensor_records;        /* of manifest version 2, at most KVCI_MAX_TENSOR_COUNT */
    const struct kvci_dtype *dtype; /* NULL where it is null */
    double rope_theta;
    uint32_t layers;
    uint32_t kv_heads; /* 0 where it is null */
    uint32_t head_dim; /* 0 where it is null */
    uint64_t sequence_start;
    uint64_t sequence_length;
};

/* Judges canonical JSON: spelling first (KVC_E_JSON), then the schema (KVC_E_SCHEMA). `offset` is
 * added to every place in an error: where the text begins in the file, or 0. `version_minor` says
 * which top-level names are known, and whether others are refused; `tensor_count` sets the limit on
 * JSON values. The manifest's inside is left to manifest.h. */
enum kvc_status kvci_metadata_parse(const uint8_t *text, size_t bytes, uint64_t offset,
                                    uint32_t version_minor, uint32_t tensor_count,
                                    struct kvci_metadata *ret_metadata, struct kvc_error *error);

/* Finds any top-level member by its name; false when there is none. */
bool kvci_metadata_find(const struct kvci_metadata *metadata, const char *name,
                        struct kvci_span *ret_span);

/* Refuses a member: `path` is its full path, `expected` what it should be; the found value is
 * taken from the token. */
enum kvc_status kvci_metadata_refuse(struct kvc_error *error, enum kvc_status status,
                                     uint64_t offset, const char *path, const char *expected,
                                     const struct kvci_json_token *token);

#endif
