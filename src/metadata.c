/* metadata.c: the schema of the top-level metadata; pure.
 * SPDX-License-Identifier: Apache-2.0 */
#include "metadata.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "decimal.h"
#include "status.h"

#include "ban.h"

/* `since` is the minor version whose registry has the name first. */
static const struct {
    const char *name;
    bool required;
    uint8_t since;
} members[KVCI_MEMBER_COUNT] = {
    [KVCI_MEMBER_ADAPTERS] = {"adapters", false, 1},
    [KVCI_MEMBER_ATTENTION] = {"attention", false, 1},
    [KVCI_MEMBER_COMPUTE_DTYPE] = {"compute_dtype", false, 1},
    [KVCI_MEMBER_DTYPE] = {"dtype", true, 0},
    [KVCI_MEMBER_HEAD_DIM] = {"head_dim", true, 0},
    [KVCI_MEMBER_KV_HEADS] = {"kv_heads", true, 0},
    [KVCI_MEMBER_KV_QUANTIZATION] = {"kv_quantization", false, 1},
    [KVCI_MEMBER_LAYERS] = {"layers", true, 0},
    [KVCI_MEMBER_LAYOUT] = {"layout", true, 0},
    [KVCI_MEMBER_MODEL_REVISION] = {"model_revision", true, 0},
    [KVCI_MEMBER_PARENT_ROOT] = {"parent_root", false, 1},
    [KVCI_MEMBER_ROPE] = {"rope", false, 1},
    [KVCI_MEMBER_ROPE_THETA] = {"rope_theta", true, 0},
    [KVCI_MEMBER_SEQUENCE_LENGTH] = {"sequence_length", true, 0},
    [KVCI_MEMBER_SEQUENCE_START] = {"sequence_start", true, 0},
    [KVCI_MEMBER_TENSOR_MANIFEST] = {"tensor_manifest", false, 0},
    [KVCI_MEMBER_TOKENIZER_SHA256] = {"tokenizer_sha256", true, 0},
    [KVCI_MEMBER_USER] = {"user", false, 0},
    [KVCI_MEMBER_WEIGHTS_DIGEST] = {"weights_digest", false, 1},
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

/* Names must be compared decoded: a name spelled with escapes is still that name. One that is newer
 * than the file is as unknown as any other. */
static int find_member(const struct parse *parse, const struct kvci_json_token *key)
{
    for (int i = 0; i < KVCI_MEMBER_COUNT; i++) {
        if (members[i].since <= parse->version_minor &&
            kvci_json_equals(key->text, key->bytes, members[i].name)) {
            return i;
        }
    }
    return -1;
}

/* What the first scan came upon; a type of KVCI_JSON_END stands for nothing. */
struct found {
    struct kvci_json_token top;
    struct kvci_json_token unknown; /* the first name that is not known */
    struct kvci_json_token version; /* of the manifest */
};

/* Passes over the rest of a value, and counts the items of an array; false when something in it is
 * wrong. */
static bool count_items(struct kvci_json *scan, const struct kvci_json_token *first,
                        uint64_t *ret_count)
{
    struct kvci_json_token token;
    uint64_t count = 0;
    *ret_count = 0;
    if (first->type != KVCI_JSON_OBJECT && first->type != KVCI_JSON_ARRAY) {
        return true;
    }
    do {
        if (!kvci_json_next(scan, &token)) {
            return false;
        }
        count += token.depth == first->depth + 1 && token.type != KVCI_JSON_OBJECT_END &&
                 token.type != KVCI_JSON_ARRAY_END;
    } while (token.depth != first->depth);
    *ret_count = first->type == KVCI_JSON_ARRAY ? count : 0;
    return true;
}

/* Passes over the members of the manifest, whose first token was taken. The records are counted, so
 * that memory for them can be taken before they are judged. */
static bool index_manifest(struct kvci_json *scan, struct kvci_metadata *metadata,
                           struct kvci_json_token *ret_version)
{
    struct kvci_json_token key;
    struct kvci_json_token token;
    uint64_t count = 0;
    for (;;) {
        if (!kvci_json_next(scan, &key)) {
            return false;
        }
        if (key.type != KVCI_JSON_KEY) {
            return true;
        }
        if (!kvci_json_next(scan, &token) || !count_items(scan, &token, &count)) {
            return false;
        }
        if (kvci_json_equals(key.text, key.bytes, "layers")) {
            metadata->layer_records =
                count < KVCI_MAX_LAYER_RECORDS ? (uint32_t)count : KVCI_MAX_LAYER_RECORDS;
        } else if (kvci_json_equals(key.text, key.bytes, "tensors")) {
            metadata->tensor_records =
                count < KVCI_MAX_TENSOR_COUNT ? (uint32_t)count : KVCI_MAX_TENSOR_COUNT;
        } else if (kvci_json_equals(key.text, key.bytes, "version")) {
            *ret_version = token;
        }
    }
}

/* Takes the value of a member whose key was taken, or passes over it. */
static bool index_member(const struct parse *parse, struct kvci_json *scan, int member,
                         struct kvci_json_token *ret_version)
{
    struct kvci_metadata *metadata = parse->metadata;
    struct kvci_json_token value;
    size_t end = 0;
    if (!kvci_json_next(scan, &value)) {
        return false;
    }
    if (member == KVCI_MEMBER_TENSOR_MANIFEST && value.type == KVCI_JSON_OBJECT) {
        if (!index_manifest(scan, metadata, ret_version)) {
            return false;
        }
        end = scan->at;
    } else if (!kvci_json_skip(scan, &value, &end)) {
        return false;
    }
    if (member >= 0) {
        metadata->present[member] = true;
        metadata->spans[member].offset = value.offset;
        metadata->spans[member].bytes = end - value.offset;
        if (members[member].since > metadata->lowest_minor) {
            metadata->lowest_minor = members[member].since;
        }
    }
    return true;
}

/* Scans the whole text once, so that spelling is judged before any meaning, and notes where each
 * known member lies. */
static enum kvc_status index_members(const struct parse *parse, uint64_t max_values,
                                     struct found *ret_found)
{
    struct kvci_json scan;
    struct kvci_json_token token;
    kvci_json_init(&scan, parse->metadata->text, parse->metadata->bytes, KVCI_JSON_STRICT,
                   max_values);
    if (!kvci_json_next(&scan, &ret_found->top)) {
        return refuse_spelling(parse, &scan);
    }
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
        int member = find_member(parse, &token);
        if (member < 0 && ret_found->unknown.type == KVCI_JSON_END) {
            ret_found->unknown = token;
        }
        if (!index_member(parse, &scan, member, &ret_found->version)) {
            return refuse_spelling(parse, &scan);
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

/* The layers of manifest version 2 need not agree on a value for the whole cache: null. */
static bool is_null(const struct parse *parse, enum kvci_member member)
{
    return parse->metadata->manifest_version == 2 &&
           value_of(parse->metadata, member).type == KVCI_JSON_NULL;
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

static enum kvc_status take_dimensions(const struct parse *parse)
{
    struct kvci_metadata *metadata = parse->metadata;
    enum kvc_status status = KVC_OK;
    if (!is_null(parse, KVCI_MEMBER_HEAD_DIM)) {
        status = take_dimension(parse, KVCI_MEMBER_HEAD_DIM, &metadata->head_dim);
    }
    if (status == KVC_OK && !is_null(parse, KVCI_MEMBER_KV_HEADS)) {
        status = take_dimension(parse, KVCI_MEMBER_KV_HEADS, &metadata->kv_heads);
    }
    return status == KVC_OK ? take_dimension(parse, KVCI_MEMBER_LAYERS, &metadata->layers) : status;
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
    const bool second = parse->metadata->manifest_version == 2;
    struct kvci_json_token token = value_of(parse->metadata, KVCI_MEMBER_DTYPE);
    bool string = token.type == KVCI_JSON_STRING;
    const struct kvci_dtype *dtype = string ? kvci_dtype_find(token.text, token.bytes) : NULL;
    if (is_null(parse, KVCI_MEMBER_DTYPE)) {
        return KVC_OK;
    }
    if (dtype == NULL || !(second || dtype->version_1)) {
        return refuse_member(parse, KVCI_MEMBER_DTYPE,
                             second ? KVCI_DTYPE_NAMES ", or null" : KVCI_DTYPE_NAMES_1, &token);
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

static enum kvc_status judge_text(const struct parse *parse, enum kvci_member member, unsigned most,
                                  const char *expected)
{
    struct kvci_json_token token = value_of(parse->metadata, member);
    size_t bytes =
        token.type == KVCI_JSON_STRING ? kvci_json_decoded_bytes(token.text, token.bytes) : 0;
    return bytes >= 1 && bytes <= most ? KVC_OK : refuse_member(parse, member, expected, &token);
}

static enum kvc_status judge_strings(const struct parse *parse)
{
    struct kvci_json_token token = value_of(parse->metadata, KVCI_MEMBER_LAYOUT);
    if (token.type != KVCI_JSON_STRING ||
        !kvci_json_equals(token.text, token.bytes, "layer-major-k-then-v")) {
        return refuse_member(parse, KVCI_MEMBER_LAYOUT, "\"layer-major-k-then-v\"", &token);
    }
    enum kvc_status status =
        judge_text(parse, KVCI_MEMBER_MODEL_REVISION, KVCI_MAX_MODEL_REVISION_BYTES,
                   "a string of 1 to 1024 bytes that names the model's exact weights");
    if (status != KVC_OK) {
        return status;
    }
    token = value_of(parse->metadata, KVCI_MEMBER_TOKENIZER_SHA256);
    if (token.type != KVCI_JSON_STRING || token.bytes != KVCI_TOKENIZER_SHA256_CHARS ||
        !is_lower_hex(token.text, token.bytes)) {
        return refuse_member(parse, KVCI_MEMBER_TOKENIZER_SHA256,
                             "a string of 64 lower-case hexadecimal digits", &token);
    }
    return KVC_OK;
}

static enum kvc_status judge_parent(const struct parse *parse)
{
    static const char scheme[] = "kvc1:";
    const size_t scheme_bytes = sizeof(scheme) - 1;
    if (!parse->metadata->present[KVCI_MEMBER_PARENT_ROOT]) {
        return KVC_OK;
    }
    struct kvci_json_token token = value_of(parse->metadata, KVCI_MEMBER_PARENT_ROOT);
    if (token.type != KVCI_JSON_STRING || token.bytes != scheme_bytes + 2 * KVCI_DIGEST ||
        memcmp(token.text, scheme, scheme_bytes) != 0 ||
        !is_lower_hex(token.text + scheme_bytes, token.bytes - scheme_bytes)) {
        return refuse_member(parse, KVCI_MEMBER_PARENT_ROOT,
                             "a root: \"kvc1:\" and 64 lower-case hexadecimal digits", &token);
    }
    token = value_of(parse->metadata, KVCI_MEMBER_SEQUENCE_START);
    if (parse->metadata->sequence_start == 0) {
        return kvci_metadata_refuse(parse->error, KVC_E_GEOMETRY, parse->offset,
                                    members[KVCI_MEMBER_SEQUENCE_START].name,
                                    "at least 1, behind the tokens of parent_root", &token);
    }
    return KVC_OK;
}

static enum kvc_status judge_adapters(const struct parse *parse)
{
    const struct kvci_span span = parse->metadata->spans[KVCI_MEMBER_ADAPTERS];
    struct kvci_json scan;
    struct kvci_json_token token = value_of(parse->metadata, KVCI_MEMBER_ADAPTERS);
    char path[32];
    size_t end = 0;
    if (token.type != KVCI_JSON_ARRAY) {
        return refuse_member(parse, KVCI_MEMBER_ADAPTERS, "an array of objects", &token);
    }
    kvci_json_init(&scan, parse->metadata->text + span.offset, span.bytes, KVCI_JSON_STRICT,
                   UINT64_MAX);
    (void)kvci_json_next(&scan, &token);
    for (unsigned i = 0; kvci_json_next(&scan, &token) && token.type != KVCI_JSON_ARRAY_END; i++) {
        if (token.type != KVCI_JSON_OBJECT) {
            (void)snprintf(path, sizeof(path), "adapters[%u]", i);
            return kvci_metadata_refuse(parse->error, KVC_E_SCHEMA, parse->offset + span.offset,
                                        path, "an object", &token);
        }
        if (!kvci_json_skip(&scan, &token, &end)) {
            break;
        }
    }
    return KVC_OK;
}

/* The names of 1.1, which say more about what made the cache. Each may be left out. */
static enum kvc_status judge_identity(const struct parse *parse)
{
    const bool *present = parse->metadata->present;
    enum kvc_status status = KVC_OK;
    if (present[KVCI_MEMBER_ADAPTERS]) {
        status = judge_adapters(parse);
    }
    if (status == KVC_OK && present[KVCI_MEMBER_COMPUTE_DTYPE]) {
        status = judge_text(parse, KVCI_MEMBER_COMPUTE_DTYPE, KVCI_MAX_COMPUTE_DTYPE_BYTES,
                            "a string of 1 to 64 bytes");
    }
    if (status == KVC_OK && present[KVCI_MEMBER_WEIGHTS_DIGEST]) {
        status = judge_text(parse, KVCI_MEMBER_WEIGHTS_DIGEST, KVCI_MAX_WEIGHTS_DIGEST_BYTES,
                            "a string of 1 to 256 bytes");
    }
    return status == KVC_OK ? judge_parent(parse) : status;
}

static enum kvc_status judge_objects(const struct parse *parse)
{
    static const enum kvci_member objects[] = {KVCI_MEMBER_ATTENTION, KVCI_MEMBER_KV_QUANTIZATION,
                                               KVCI_MEMBER_ROPE, KVCI_MEMBER_TENSOR_MANIFEST,
                                               KVCI_MEMBER_USER};
    for (size_t i = 0; i < sizeof(objects) / sizeof(objects[0]); i++) {
        if (parse->metadata->present[objects[i]]) {
            struct kvci_json_token token = value_of(parse->metadata, objects[i]);
            bool nullable = objects[i] == KVCI_MEMBER_KV_QUANTIZATION;
            if (token.type != KVCI_JSON_OBJECT && !(nullable && token.type == KVCI_JSON_NULL)) {
                return refuse_member(parse, objects[i],
                                     nullable ? "an object or null" : "an object", &token);
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
 * version, or no right one, is left to manifest.h as one of version 1. */
static enum kvc_status judge_manifest_version(const struct parse *parse,
                                              const struct kvci_json_token *version)
{
    struct kvci_metadata *metadata = parse->metadata;
    if (!metadata->present[KVCI_MEMBER_TENSOR_MANIFEST]) {
        return KVC_OK;
    }
    metadata->manifest_version = 1;
    if (version->type != KVCI_JSON_INTEGER || version->integer < 2) {
        return KVC_OK;
    }
    if (version->integer > 2) {
        return kvci_metadata_refuse(
            parse->error, KVC_E_MANIFEST, parse->offset, "tensor_manifest.version",
            "1 or 2 (a newer version of this library may read it)", version);
    }
    metadata->manifest_version = 2;
    return KVC_OK;
}

static enum kvc_status judge_values(const struct parse *parse)
{
    struct kvci_metadata *metadata = parse->metadata;
    enum kvc_status status = take_dtype(parse);
    if (status == KVC_OK) {
        status = take_dimensions(parse);
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
    if (status == KVC_OK) {
        status = judge_identity(parse);
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
    struct found found = {{0}, {0}, {0}};
    uint64_t max_values =
        KVCI_BASE_JSON_VALUES + KVCI_JSON_VALUES_PER_TENSOR * (uint64_t)tensor_count;
    enum kvc_status status = index_members(&parse, max_values, &found);
    if (status == KVC_OK && found.top.type != KVCI_JSON_OBJECT) {
        status = kvci_metadata_refuse(error, KVC_E_SCHEMA, offset, "(the whole)", "an object",
                                      &found.top);
    }
    if (status == KVC_OK) {
        status = judge_manifest_version(&parse, &found.version);
    }
    if (status == KVC_OK) {
        status = judge_names(&parse, &found.unknown);
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
