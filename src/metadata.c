/* metadata.c: the schema of the top-level metadata; pure.
 * SPDX-License-Identifier: Apache-2.0 */
#include "metadata.h"

#include <math.h>
#include <string.h>

#include "decimal.h"
#include "status.h"

#include "ban.h"

static const struct {
    const char *name;
    bool required;
} members[KVCI_MEMBER_COUNT] = {
    [KVCI_MEMBER_DTYPE] = {"dtype", true},
    [KVCI_MEMBER_HEAD_DIM] = {"head_dim", true},
    [KVCI_MEMBER_KV_HEADS] = {"kv_heads", true},
    [KVCI_MEMBER_LAYERS] = {"layers", true},
    [KVCI_MEMBER_LAYOUT] = {"layout", true},
    [KVCI_MEMBER_MODEL_REVISION] = {"model_revision", true},
    [KVCI_MEMBER_ROPE_THETA] = {"rope_theta", true},
    [KVCI_MEMBER_SEQUENCE_LENGTH] = {"sequence_length", true},
    [KVCI_MEMBER_SEQUENCE_START] = {"sequence_start", true},
    [KVCI_MEMBER_TENSOR_MANIFEST] = {"tensor_manifest", false},
    [KVCI_MEMBER_TOKENIZER_SHA256] = {"tokenizer_sha256", true},
    [KVCI_MEMBER_USER] = {"user", false},
};

/* What a parse carries from step to step. */
struct parse {
    struct kvci_metadata *metadata;
    uint64_t offset;
    uint32_t version_minor;
    struct kvc_error *error;
};

static const char *type_name(enum kvci_json_type type)
{
    switch (type) {
    case KVCI_JSON_OBJECT:
        return "an object";
    case KVCI_JSON_ARRAY:
        return "an array";
    case KVCI_JSON_STRING:
        return "the string";
    case KVCI_JSON_INTEGER:
    case KVCI_JSON_FLOAT:
        return "the number";
    default:
        return "the value";
    }
}

enum kvc_status kvci_metadata_refuse(struct kvc_error *error, enum kvc_status status,
                                     uint64_t offset, const char *path, const char *expected,
                                     const struct kvci_json_token *token)
{
    bool nested = token->type == KVCI_JSON_OBJECT || token->type == KVCI_JSON_ARRAY;
    const char *text = (const char *)token->text;
    int shown = nested ? 0 : kvci_shown(text, token->bytes);
    (void)kvci_fail(error, status, offset + token->offset,
                    "metadata member %s is %s%s%.*s, expected %s", path, type_name(token->type),
                    nested ? "" : " ", shown, text, expected);
    kvci_error_field(error, path, strlen(path));
    kvci_error_expected(error, "%s", expected);
    kvci_error_found(error, "%.*s", nested ? 1 : shown, text);
    return status;
}

static enum kvc_status refuse_spelling(const struct parse *parse, const struct kvci_json *scan)
{
    return kvci_fail(parse->error, KVC_E_JSON, parse->offset + scan->problem_offset,
                     "the metadata are not canonical JSON: %s at byte %zu of the metadata",
                     scan->problem, scan->problem_offset);
}

/* Names must be compared decoded: a name spelled with escapes is still that name. */
static int find_member(const struct kvci_json_token *key)
{
    for (int i = 0; i < KVCI_MEMBER_COUNT; i++) {
        if (kvci_json_equals(key->text, key->bytes, members[i].name)) {
            return i;
        }
    }
    return -1;
}

static void keep_first_unknown(const struct kvci_json_token *key,
                               struct kvci_json_token *first_unknown)
{
    if (first_unknown->type == KVCI_JSON_END) {
        *first_unknown = *key;
    }
}

/* Scans the whole text once, so that spelling is judged before any meaning, and notes where each
 * known member lies. */
static enum kvc_status index_members(const struct parse *parse, uint64_t max_values,
                                     struct kvci_json_token *ret_top,
                                     struct kvci_json_token *ret_unknown)
{
    struct kvci_metadata *metadata = parse->metadata;
    struct kvci_json scan;
    struct kvci_json_token token;
    kvci_json_init(&scan, metadata->text, metadata->bytes, KVCI_JSON_STRICT, max_values);
    if (!kvci_json_next(&scan, ret_top)) {
        return refuse_spelling(parse, &scan);
    }
    ret_unknown->type = KVCI_JSON_END;
    for (;;) {
        if (!kvci_json_next(&scan, &token)) {
            return refuse_spelling(parse, &scan);
        }
        if (token.type == KVCI_JSON_END) {
            return KVC_OK;
        }
        if (token.type != KVCI_JSON_KEY) {
            continue;
        }
        int member = find_member(&token);
        if (member < 0) {
            keep_first_unknown(&token, ret_unknown);
        }
        size_t end = 0;
        struct kvci_json_token value;
        if (!kvci_json_next(&scan, &value) || !kvci_json_skip(&scan, &value, &end)) {
            return refuse_spelling(parse, &scan);
        }
        if (member >= 0) {
            metadata->present[member] = true;
            metadata->spans[member].offset = value.offset;
            metadata->spans[member].bytes = end - value.offset;
        }
    }
}

static struct kvci_json_token value_of(const struct kvci_metadata *metadata,
                                       enum kvci_member member)
{
    struct kvci_json scan;
    struct kvci_json_token token = {0};
    struct kvci_span span = metadata->spans[member];
    kvci_json_init(&scan, metadata->text + span.offset, span.bytes, KVCI_JSON_STRICT,
                   KVCI_MAX_METADATA_BYTES);
    (void)kvci_json_next(&scan, &token);
    token.offset += span.offset;
    return token;
}

static enum kvc_status refuse_member(const struct parse *parse, enum kvci_member member,
                                     const char *expected, const struct kvci_json_token *token)
{
    return kvci_metadata_refuse(parse->error, KVC_E_SCHEMA, parse->offset, members[member].name,
                                expected, token);
}

static enum kvc_status take_integer(const struct parse *parse, enum kvci_member member,
                                    int64_t least, int64_t most, const char *expected,
                                    uint64_t *ret_value)
{
    struct kvci_json_token token = value_of(parse->metadata, member);
    if (token.type != KVCI_JSON_INTEGER || token.integer < least || token.integer > most) {
        return refuse_member(parse, member, expected, &token);
    }
    *ret_value = (uint64_t)token.integer;
    return KVC_OK;
}

static enum kvc_status take_dimension(const struct parse *parse, enum kvci_member member,
                                      uint32_t *ret_value)
{
    uint64_t value = 0;
    enum kvc_status status =
        take_integer(parse, member, 1, KVCI_MAX_DIMENSION, "an integer from 1 to 32768", &value);
    *ret_value = (uint32_t)value;
    return status;
}

static enum kvc_status take_rope_theta(const struct parse *parse)
{
    struct kvci_json_token token = value_of(parse->metadata, KVCI_MEMBER_ROPE_THETA);
    bool number = token.type == KVCI_JSON_INTEGER || token.type == KVCI_JSON_FLOAT;
    double value = number ? kvci_decimal_value(token.text, token.bytes) : -1.0;
    if (!number || !isfinite(value) || value < 0.0) {
        return refuse_member(parse, KVCI_MEMBER_ROPE_THETA,
                             "a finite number of at least 0 (0: no rotary embedding)", &token);
    }
    parse->metadata->rope_theta = value;
    return KVC_OK;
}

static enum kvc_status take_dtype(const struct parse *parse)
{
    struct kvci_json_token token = value_of(parse->metadata, KVCI_MEMBER_DTYPE);
    bool string = token.type == KVCI_JSON_STRING;
    const struct kvci_dtype *dtype = string ? kvci_dtype_find(token.text, token.bytes) : NULL;
    if (dtype == NULL) {
        return refuse_member(parse, KVCI_MEMBER_DTYPE, KVCI_DTYPE_NAMES, &token);
    }
    parse->metadata->dtype = dtype;
    return KVC_OK;
}

static bool is_lower_hex(const uint8_t *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (!(text[i] >= '0' && text[i] <= '9') && !(text[i] >= 'a' && text[i] <= 'f')) {
            return false;
        }
    }
    return true;
}

static enum kvc_status judge_strings(const struct parse *parse)
{
    struct kvci_json_token token = value_of(parse->metadata, KVCI_MEMBER_LAYOUT);
    if (token.type != KVCI_JSON_STRING ||
        !kvci_json_equals(token.text, token.bytes, "layer-major-k-then-v")) {
        return refuse_member(parse, KVCI_MEMBER_LAYOUT, "\"layer-major-k-then-v\"", &token);
    }
    token = value_of(parse->metadata, KVCI_MEMBER_MODEL_REVISION);
    size_t bytes =
        token.type == KVCI_JSON_STRING ? kvci_json_decoded_bytes(token.text, token.bytes) : 0;
    if (bytes < 1 || bytes > KVCI_MAX_MODEL_REVISION_BYTES) {
        return refuse_member(parse, KVCI_MEMBER_MODEL_REVISION,
                             "a string of 1 to 1024 bytes that names the model's exact weights",
                             &token);
    }
    token = value_of(parse->metadata, KVCI_MEMBER_TOKENIZER_SHA256);
    if (token.type != KVCI_JSON_STRING || token.bytes != KVCI_TOKENIZER_SHA256_CHARS ||
        !is_lower_hex(token.text, token.bytes)) {
        return refuse_member(parse, KVCI_MEMBER_TOKENIZER_SHA256,
                             "a string of 64 lower-case hexadecimal digits", &token);
    }
    return KVC_OK;
}

static enum kvc_status judge_objects(const struct parse *parse)
{
    static const enum kvci_member objects[] = {KVCI_MEMBER_TENSOR_MANIFEST, KVCI_MEMBER_USER};
    for (size_t i = 0; i < 2; i++) {
        if (parse->metadata->present[objects[i]]) {
            struct kvci_json_token token = value_of(parse->metadata, objects[i]);
            if (token.type != KVCI_JSON_OBJECT) {
                return refuse_member(parse, objects[i], "an object", &token);
            }
        }
    }
    uint64_t loose = parse->metadata->bytes;
    if (parse->metadata->present[KVCI_MEMBER_TENSOR_MANIFEST]) {
        loose -= parse->metadata->spans[KVCI_MEMBER_TENSOR_MANIFEST].bytes;
    }
    if (loose > KVCI_MAX_LOOSE_METADATA_BYTES) {
        (void)kvci_fail(parse->error, KVC_E_SCHEMA, parse->offset,
                        "the metadata outside tensor_manifest take %llu bytes, at most 262144 are "
                        "allowed: keep large private data in a file of their own",
                        (unsigned long long)loose);
        kvci_error_expected(parse->error, "at most 262144");
        kvci_error_found(parse->error, "%llu", (unsigned long long)loose);
        return KVC_E_SCHEMA;
    }
    return KVC_OK;
}

static enum kvc_status judge_names(const struct parse *parse, const struct kvci_json_token *unknown)
{
    if (unknown->type == KVCI_JSON_KEY && parse->version_minor <= KVCI_VERSION_MINOR) {
        (void)kvci_fail(parse->error, KVC_E_SCHEMA, parse->offset + unknown->offset,
                        "metadata member \"%.*s\" is not a name of the format's registry: put "
                        "private data under \"user\"",
                        kvci_shown((const char *)unknown->text, unknown->bytes),
                        (const char *)unknown->text);
        kvci_error_field(parse->error, (const char *)unknown->text, unknown->bytes);
        return KVC_E_SCHEMA;
    }
    for (int i = 0; i < KVCI_MEMBER_COUNT; i++) {
        if (members[i].required && !parse->metadata->present[i]) {
            (void)kvci_fail(parse->error, KVC_E_SCHEMA, parse->offset,
                            "metadata member %s is missing", members[i].name);
            kvci_error_field(parse->error, members[i].name, strlen(members[i].name));
            return KVC_E_SCHEMA;
        }
    }
    return KVC_OK;
}

/* The version is judged before anything that it could give another meaning. A manifest that has no
 * version, or no right one, is left to manifest.h. */
static enum kvc_status judge_manifest_version(const struct parse *parse)
{
    const struct kvci_metadata *metadata = parse->metadata;
    const struct kvci_span span = metadata->spans[KVCI_MEMBER_TENSOR_MANIFEST];
    struct kvci_json scan;
    struct kvci_json_token token;
    size_t end = 0;
    if (!metadata->present[KVCI_MEMBER_TENSOR_MANIFEST] || metadata->text[span.offset] != '{') {
        return KVC_OK;
    }
    kvci_json_init(&scan, metadata->text + span.offset, span.bytes, KVCI_JSON_STRICT, UINT64_MAX);
    (void)kvci_json_next(&scan, &token);
    while (kvci_json_next(&scan, &token) && token.type == KVCI_JSON_KEY) {
        bool wanted = kvci_json_equals(token.text, token.bytes, "version");
        if (!kvci_json_next(&scan, &token) || !kvci_json_skip(&scan, &token, &end)) {
            break;
        }
        if (wanted && token.type == KVCI_JSON_INTEGER && token.integer > 1) {
            return kvci_metadata_refuse(parse->error, KVC_E_MANIFEST, parse->offset + span.offset,
                                        "tensor_manifest.version",
                                        "1 (a newer version of this library may read it)", &token);
        }
    }
    return KVC_OK;
}

static enum kvc_status judge_values(const struct parse *parse)
{
    struct kvci_metadata *metadata = parse->metadata;
    enum kvc_status status = take_dtype(parse);
    if (status == KVC_OK) {
        status = take_dimension(parse, KVCI_MEMBER_HEAD_DIM, &metadata->head_dim);
    }
    if (status == KVC_OK) {
        status = take_dimension(parse, KVCI_MEMBER_KV_HEADS, &metadata->kv_heads);
    }
    if (status == KVC_OK) {
        status = take_dimension(parse, KVCI_MEMBER_LAYERS, &metadata->layers);
    }
    if (status == KVC_OK) {
        status = take_rope_theta(parse);
    }
    if (status == KVC_OK) {
        status = take_integer(parse, KVCI_MEMBER_SEQUENCE_LENGTH, 1, KVCI_MAX_SEQUENCE_LENGTH,
                              "an integer from 1 to 2147483647", &metadata->sequence_length);
    }
    if (status == KVC_OK) {
        status = take_integer(parse, KVCI_MEMBER_SEQUENCE_START, 0, KVCI_MAX_INTEGER,
                              "an integer from 0 to 9007199254740991", &metadata->sequence_start);
    }
    if (status == KVC_OK) {
        status = judge_strings(parse);
    }
    if (status == KVC_OK) {
        status = judge_objects(parse);
    }
    return status;
}

enum kvc_status kvci_metadata_parse(const uint8_t *text, size_t bytes, uint64_t offset,
                                    uint32_t version_minor, uint32_t tensor_count,
                                    struct kvci_metadata *ret_metadata, struct kvc_error *error)
{
    memset(ret_metadata, 0, sizeof(*ret_metadata));
    ret_metadata->text = text;
    ret_metadata->bytes = bytes;
    struct parse parse = {ret_metadata, offset, version_minor, error};
    struct kvci_json_token top = {0};
    struct kvci_json_token unknown = {0};
    uint64_t max_values =
        KVCI_BASE_JSON_VALUES + KVCI_JSON_VALUES_PER_TENSOR * (uint64_t)tensor_count;
    enum kvc_status status = index_members(&parse, max_values, &top, &unknown);
    if (status == KVC_OK && top.type != KVCI_JSON_OBJECT) {
        status =
            kvci_metadata_refuse(error, KVC_E_SCHEMA, offset, "(the whole)", "an object", &top);
    }
    if (status == KVC_OK) {
        status = judge_manifest_version(&parse);
    }
    if (status == KVC_OK) {
        status = judge_names(&parse, &unknown);
    }
    if (status == KVC_OK) {
        status = judge_values(&parse);
    }
    return status;
}

bool kvci_metadata_find(const struct kvci_metadata *metadata, const char *name,
                        struct kvci_span *ret_span)
{
    struct kvci_json scan;
    struct kvci_json_token token;
    kvci_json_init(&scan, metadata->text, metadata->bytes, KVCI_JSON_STRICT, UINT64_MAX);
    if (!kvci_json_next(&scan, &token)) {
        return false;
    }
    while (kvci_json_next(&scan, &token) && token.type == KVCI_JSON_KEY) {
        bool wanted = kvci_json_equals(token.text, token.bytes, name);
        size_t end = 0;
        if (!kvci_json_next(&scan, &token) || !kvci_json_skip(&scan, &token, &end)) {
            return false;
        }
        if (wanted) {
            ret_span->offset = token.offset;
            ret_span->bytes = end - token.offset;
            return true;
        }
    }
    return false;
}
