/* cmd_inspect.c: `kvc inspect` shows what is in a file, without reading its payload.
 * SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvc.h"

#include "commands.h"
#include "json_out.h"
#include "layers.h"
#include "opening.h"
#include "options.h"
#include "report.h"
#include "safe_text.h"

/* Columns of a value from the metadata; --json shows all of it. */
#define VALUE_COLUMNS 240

enum { OPT_TENSORS = 1, OPT_JSON, OPT_ROOT, OPT_KEY_FILE };

static const struct option_entry inspect_options[] = {
    {OPT_TENSORS, 0, "tensors", NULL, "add a row for each tensor, with its BLAKE3 digest"},
    {OPT_JSON, 0, "json", NULL, "print one JSON object for each file, with all of it"},
    {OPT_ROOT, 0, "root", "ROOT", "refuse any content but that of this root"},
    {OPT_KEY_FILE, 0, "key-file", "PATH",
     "require a tag made with this key: 32 raw bytes, or\n64 hexadecimal digits"},
    {0},
};

const struct command inspect_command = {
    .name = "inspect",
    .operands = "FILE...",
    .line = "show what a file holds: identity, geometry, sizes, root, tensors",
    .about = "Shows what is in a file. Header, metadata, tensor digests and footer are checked\n"
             "against the root; the payload is not read: kvc verify does that.",
    .options = inspect_options,
    .examples = "  kvc inspect --tensors cache.kvc\n"
                "  kvc inspect --json cache.kvc | python3 -m json.tool",
    .run = cmd_inspect,
};

struct view {
    struct opening opening;
    bool tensors;
    bool json;
    bool shown; /* a table was printed, and an empty line is due before the next */
};

/* An open file and what was asked about it. */
struct subject {
    const char *path;
    const struct kvc_reader *reader;
    struct kvc_info info;
    struct json_piece metadata;
    struct json_piece manifest; /* of version 2, otherwise empty */
    uint32_t stored_count;      /* tensors that the library counts: an opaque payload is one */
};

/* ---- The table ----------------------------------------------------------------------------- */

/* Top-level members that have a line of their own, or are told in the words of one. */
static const char *const known_members[] = {
    "model_revision",
    "tokenizer_sha256",
    "rope_theta",
    "layers",
    "kv_heads",
    "head_dim",
    "dtype",
    "layout",
    "sequence_start",
    "sequence_length",
    "user",
    "tensor_manifest",
    "adapters",
    "attention",
    "compute_dtype",
    "parent_root",
    "rope",
    "weights_digest",
    "kv_quantization",
};

/* Those of format 1.1 that say more about what made the cache, with their labels. */
static const char *const identity_members[][2] = {
    {"Weights", "weights_digest"}, {"Compute data type", "compute_dtype"}, {"RoPE", "rope"},
    {"Attention", "attention"},    {"Quantization", "kv_quantization"},    {"Adapters", "adapters"},
};

static void put_label(const char *label)
{
    (void)printf("%-17s  ", label);
}

static void put_size_line(const char *label, uint64_t bytes, const char *rest)
{
    char size[32];
    char exact[32];
    put_label(label);
    if (bytes < 1024) {
        (void)printf("%s%s\n", short_size(bytes, size), rest);
    } else {
        (void)printf("%s (%s bytes)%s\n", short_size(bytes, size), grouped(bytes, exact), rest);
    }
}

/* Prints the text of a string, or the JSON of anything else. */
static void put_value(struct json_piece value)
{
    char *text = NULL;
    if (value.bytes >= 2 && value.text[0] == '"') {
        text = malloc(value.bytes);
    }
    if (text == NULL) {
        (void)put_safe(stdout, value.text, value.bytes, VALUE_COLUMNS);
    } else {
        (void)put_safe(stdout, text, json_decode(value, text), VALUE_COLUMNS);
    }
    free(text);
}

static void put_line_of(struct json_piece object, const char *label, const char *name)
{
    struct json_piece value;
    if (json_find(object, name, strlen(name), &value)) {
        put_label(label);
        put_value(value);
        (void)fputc('\n', stdout);
    }
}

static void put_member_line(const struct subject *subject, const char *label, const char *name)
{
    put_line_of(subject->metadata, label, name);
}

static bool is_known_member(struct json_piece name)
{
    for (size_t i = 0; i < sizeof(known_members) / sizeof(known_members[0]); i++) {
        size_t bytes = strlen(known_members[i]);
        if (name.bytes == bytes + 2 && memcmp(name.text + 1, known_members[i], bytes) == 0) {
            return true;
        }
    }
    return false;
}

/* A later minor version may have members that this program knows nothing about. */
static void put_other_members(const struct subject *subject)
{
    struct json_members members;
    struct json_piece name;
    struct json_piece value;
    json_members_start(&members, subject->metadata);
    while (json_members_next(&members, &name, &value)) {
        if (!is_known_member(name)) {
            put_label("Other metadata");
            (void)put_safe(stdout, name.text, name.bytes, VALUE_COLUMNS);
            (void)fputs(": ", stdout);
            (void)put_safe(stdout, value.text, value.bytes, VALUE_COLUMNS);
            (void)fputc('\n', stdout);
        }
    }
}

static void put_bits(const char *name, uint64_t bits)
{
    if (bits != 0) {
        (void)printf(", %s bits", name);
        for (unsigned bit = 0; bit < 64; bit++) {
            if ((bits >> bit & 1) != 0) {
                (void)printf(" %u", bit);
            }
        }
    }
}

static void put_geometry(const struct kvc_info *info)
{
    put_label("Geometry");
    (void)printf("%" PRIu32 " layer%s, ", info->layers, info->layers == 1 ? "" : "s");
    if (info->kv_heads == 0) {
        (void)fputs("KV heads vary", stdout);
    } else {
        (void)printf("%" PRIu32 " KV head%s", info->kv_heads, info->kv_heads == 1 ? "" : "s");
    }
    if (info->head_dim == 0) {
        (void)fputs(", head dimension varies", stdout);
    } else {
        (void)printf(", head dimension %" PRIu32, info->head_dim);
    }
    if (info->manifest_version != 0) {
        (void)printf(", batch %" PRIu32, info->batch_size);
    }
    (void)fputc('\n', stdout);
}

static void put_layers(const struct subject *subject, const char *label, const char *cache)
{
    struct layer_summary layers;
    layers_gather(subject->manifest, cache, &layers);
    if (layers.count > 0) {
        put_label(label);
        layers_print(&layers);
        (void)fputc('\n', stdout);
    }
}

/* What a manifest of version 2 says beyond its tensors. */
static void put_manifest(const struct subject *subject)
{
    struct json_piece framework;
    struct json_piece value;
    const struct json_piece manifest = subject->manifest;
    put_layers(subject, "Layers", "self");
    put_layers(subject, "Cross layers", "cross");
    put_line_of(manifest, "State schema", "state_schema");
    if (json_find(manifest, "framework", strlen("framework"), &framework) &&
        json_find(framework, "name", strlen("name"), &value)) {
        put_label("Framework");
        put_value(value);
        (void)fputc(' ', stdout);
        if (json_find(framework, "version", strlen("version"), &value)) {
            put_value(value);
        }
        (void)fputc('\n', stdout);
    }
    put_line_of(manifest, "Cache class", "cache_class");
    put_line_of(manifest, "Wrapper", "wrapper");
}

static void put_identity(const struct subject *subject)
{
    for (size_t i = 0; i < sizeof(identity_members) / sizeof(identity_members[0]); i++) {
        put_member_line(subject, identity_members[i][0], identity_members[i][1]);
    }
}

static void put_model(const struct subject *subject)
{
    char from[32];
    char to[32];
    char count[32];
    const struct kvc_info *info = &subject->info;
    uint64_t last = info->sequence_start + info->sequence_length - 1;
    put_member_line(subject, "Model revision", "model_revision");
    put_member_line(subject, "Tokenizer SHA-256", "tokenizer_sha256");
    put_member_line(subject, "RoPE theta", "rope_theta");
    put_geometry(info);
    put_manifest(subject);
    if (info->dtype[0] == '\0') {
        put_label("Data type");
        (void)fputs("varies\n", stdout);
    } else {
        put_member_line(subject, "Data type", "dtype");
    }
    put_member_line(subject, "Layout", "layout");
    put_label("Tokens");
    (void)printf("%s, positions %s to %s\n", grouped(info->sequence_length, count),
                 grouped(info->sequence_start, from), grouped(last, to));
    put_member_line(subject, "Parent root", "parent_root");
    put_identity(subject);
    put_member_line(subject, "User data", "user");
    put_other_members(subject);
}

static void put_container(const struct subject *subject)
{
    const struct kvc_info *info = &subject->info;
    char offset[32];
    char rest[96];
    put_label("Tensors");
    if (info->manifest_version == 0) {
        (void)fputs("none: the payload is opaque\n", stdout);
    } else {
        (void)printf("%" PRIu32 ", manifest version %" PRIu32 "\n", info->tensor_count,
                     info->manifest_version);
    }
    (void)snprintf(rest, sizeof(rest), ", at byte %s", grouped(info->payload_offset, offset));
    put_size_line("Payload", info->payload_bytes, rest);
    if (info->payload_span != info->payload_bytes) {
        put_size_line("Gaps", info->payload_span - info->payload_bytes, ", zeros between tensors");
    }
    put_size_line("Metadata", info->metadata_bytes, "");
    put_size_line("File", info->file_bytes, "");
    put_label("Alignment");
    if (info->align_bytes == 1) {
        (void)fputs("1, packed\n", stdout);
    } else {
        (void)printf("%" PRIu32 "\n", info->align_bytes);
    }
    put_label("Format");
    (void)printf("KVC%" PRIu32 " %" PRIu32 ".%" PRIu32, info->version_major, info->version_major,
                 info->version_minor);
    if ((info->incompat | info->ro_compat | info->compat) == 0) {
        (void)fputs(", no feature bits", stdout);
    }
    put_bits("incompat", info->incompat);
    put_bits("ro_compat", info->ro_compat);
    put_bits("compat", info->compat);
    (void)fputc('\n', stdout);
    put_label("Tag");
    (void)fputs(info->tag_checked ? "present, made with this key\n"
                : info->has_tag   ? "present, not checked: --key-file PATH checks it\n"
                                  : "none\n",
                stdout);
    put_label("Checked");
    (void)fputs("header, metadata and digests; payload not checked: run kvc verify\n", stdout);
}

static void shape_text(const struct kvc_tensor *tensor, char ret_text[200])
{
    size_t length = 0;
    ret_text[length++] = '[';
    for (uint32_t i = 0; i < tensor->rank && i < 8; i++) {
        length += (size_t)snprintf(ret_text + length, 200 - length, "%s%" PRIu64,
                                   i == 0 ? "" : ", ", tensor->shape[i]);
    }
    ret_text[length++] = ']';
    ret_text[length] = '\0';
}

static int put_tensors(const struct subject *subject)
{
    struct kvc_error error = KVC_ERROR_INIT;
    int shape_width = 5;
    int dtype_width = 5;
    size_t name_width = 6;
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1) {
            (void)printf("\n%-*s  %-*s  %-*s  %14s  %16s  %s\n", (int)name_width, "TENSOR",
                         dtype_width, "DTYPE", shape_width, "SHAPE", "BYTES", "FILE OFFSET",
                         "BLAKE3");
        }
        for (uint32_t i = 0; i < subject->stored_count; i++) {
            struct kvc_tensor tensor = KVC_TENSOR_INIT;
            char shape[200];
            char digest[2 * KVC_DIGEST_BYTES + 1];
            if (kvc_reader_tensor(subject->reader, i, &tensor, &error) != KVC_OK) {
                return refuse_error(subject->path, &error);
            }
            shape_text(&tensor, shape);
            if (pass == 0) {
                int width = (int)strlen(shape);
                shape_width = width > shape_width ? width : shape_width;
                width = (int)strlen(tensor.dtype);
                dtype_width = width > dtype_width ? width : dtype_width;
                size_t bytes = strlen(tensor.name);
                name_width = bytes > name_width ? bytes : name_width;
                continue;
            }
            const char *name = tensor.name[0] == '\0' ? "-" : tensor.name;
            size_t used = put_safe_text(stdout, name, VALUE_COLUMNS);
            (void)printf("%*s  %-*s  %-*s  %14" PRIu64 "  %16" PRIu64 "  %s\n",
                         used < name_width ? (int)(name_width - used) : 0, "", dtype_width,
                         tensor.dtype, shape_width, shape, tensor.tensor_bytes, tensor.file_offset,
                         hex_text(tensor.digest, KVC_DIGEST_BYTES, digest));
        }
    }
    return CODE_GOOD;
}

static int show_table(const struct view *view, const struct subject *subject)
{
    char root[KVC_ROOT_TEXT_BYTES];
    put_label("File name");
    (void)put_safe_text(stdout, subject->path, SAFE_WHOLE);
    (void)fputc('\n', stdout);
    kvc_root_format(subject->info.root, root);
    put_label("Root");
    (void)printf("%s\n", root);
    put_model(subject);
    put_container(subject);
    return view->tensors ? put_tensors(subject) : CODE_GOOD;
}

/* ---- JSON ---------------------------------------------------------------------------------- */

static void json_member_number(struct json_out *out, const char *name, uint64_t number)
{
    json_key(out, name);
    json_number(out, number);
}

static void json_member_bits(struct json_out *out, const char *name, uint64_t bits)
{
    json_key(out, name);
    json_open(out, '[');
    for (unsigned bit = 0; bit < 64; bit++) {
        if ((bits >> bit & 1) != 0) {
            json_number(out, bit);
        }
    }
    json_close(out, ']');
}

static void json_tensor(struct json_out *out, const struct kvc_tensor *tensor)
{
    char digest[2 * KVC_DIGEST_BYTES + 1];
    json_open(out, '{');
    json_key(out, "name");
    json_text(out, tensor->name);
    json_key(out, "dtype");
    json_text(out, tensor->dtype);
    if (tensor->kind[0] != '\0') {
        json_key(out, "kind");
        json_text(out, tensor->kind);
        json_key(out, "layer");
        if (tensor->layer == KVC_NO_LAYER) {
            json_null(out);
        } else {
            json_number(out, tensor->layer);
        }
    }
    json_key(out, "shape");
    json_open(out, '[');
    for (uint32_t i = 0; i < tensor->rank && i < 8; i++) {
        json_number(out, tensor->shape[i]);
    }
    json_close(out, ']');
    json_member_number(out, "bytes", tensor->tensor_bytes);
    json_member_number(out, "offset", tensor->offset);
    json_member_number(out, "file_offset", tensor->file_offset);
    json_member_number(out, "chunk_count", tensor->chunk_count);
    json_key(out, "blake3");
    json_text(out, hex_text(tensor->digest, KVC_DIGEST_BYTES, digest));
    json_close(out, '}');
}

static void json_facts(struct json_out *out, const struct subject *subject)
{
    char root[KVC_ROOT_TEXT_BYTES];
    const struct kvc_info *info = &subject->info;
    json_key(out, "file");
    json_text(out, subject->path);
    json_key(out, "root");
    kvc_root_format(info->root, root);
    json_text(out, root);
    json_key(out, "payload_checked");
    json_bool(out, false);
    json_key(out, "has_tag");
    json_bool(out, info->has_tag);
    json_key(out, "tag_checked");
    json_bool(out, info->tag_checked);
    json_member_number(out, "version_major", info->version_major);
    json_member_number(out, "version_minor", info->version_minor);
    json_member_bits(out, "incompat", info->incompat);
    json_member_bits(out, "ro_compat", info->ro_compat);
    json_member_bits(out, "compat", info->compat);
    json_member_number(out, "file_bytes", info->file_bytes);
    json_member_number(out, "metadata_bytes", info->metadata_bytes);
    json_member_number(out, "payload_offset", info->payload_offset);
    json_member_number(out, "payload_span", info->payload_span);
    json_member_number(out, "payload_bytes", info->payload_bytes);
    json_member_number(out, "chunk_count", info->chunk_count);
    json_member_number(out, "align_bytes", info->align_bytes);
    json_member_number(out, "tensor_count", info->tensor_count);
    json_member_number(out, "manifest_version", info->manifest_version);
}

/* Added to the facts of manifest version 2 only. */
static void json_layers(struct json_out *out, const struct subject *subject)
{
    static const char *const caches[] = {"self", "cross"};
    struct layer_summary layers;
    if (subject->info.manifest_version != 2) {
        return;
    }
    json_key(out, "layer_kinds");
    json_open(out, '[');
    for (size_t i = 0; i < 2; i++) {
        layers_gather(subject->manifest, caches[i], &layers);
        layers_json(out, caches[i], &layers);
    }
    json_close(out, ']');
}

static int show_json(const struct subject *subject)
{
    struct kvc_error error = KVC_ERROR_INIT;
    struct json_out out;
    int code = CODE_GOOD;
    json_start(&out, stdout);
    json_open(&out, '{');
    json_facts(&out, subject);
    json_layers(&out, subject);
    json_key(&out, "metadata");
    json_raw(&out, subject->metadata);
    json_key(&out, "tensors");
    json_open(&out, '[');
    for (uint32_t i = 0; i < subject->stored_count && code == CODE_GOOD; i++) {
        struct kvc_tensor tensor = KVC_TENSOR_INIT;
        if (kvc_reader_tensor(subject->reader, i, &tensor, &error) != KVC_OK) {
            code = refuse_error(subject->path, &error);
        } else {
            json_tensor(&out, &tensor);
        }
    }
    json_close(&out, ']');
    json_close(&out, '}');
    json_end(&out);
    return code;
}

/* ---- The command --------------------------------------------------------------------------- */

static int show_file(struct view *view, const char *path)
{
    struct kvc_error error = KVC_ERROR_INIT;
    struct kvc_reader *reader = NULL;
    struct subject subject = {.path = path, .info = KVC_INFO_INIT};
    uint64_t metadata_bytes = 0;
    if (opening_open(&view->opening, path, &reader, &error) != KVC_OK) {
        return refuse_error(path, &error);
    }
    int code = CODE_GOOD;
    if (kvc_reader_info(reader, &subject.info, &error) != KVC_OK) {
        code = refuse_error(path, &error);
    } else {
        subject.reader = reader;
        subject.stored_count = subject.info.manifest_version == 0 ? 1 : subject.info.tensor_count;
        subject.metadata.text = kvc_reader_metadata(reader, &metadata_bytes);
        subject.metadata.bytes = (size_t)metadata_bytes;
        if (subject.info.manifest_version == 2) {
            (void)json_find(subject.metadata, "tensor_manifest", strlen("tensor_manifest"),
                            &subject.manifest);
        }
        if (view->json) {
            code = show_json(&subject);
        } else {
            (void)fputs(view->shown ? "\n" : "", stdout);
            view->shown = true;
            code = show_table(view, &subject);
        }
    }
    kvc_reader_free(reader);
    return finish_output(code);
}

static int take_option(void *context, int id, const char *value)
{
    struct view *view = context;
    switch (id) {
    case OPT_TENSORS:
        view->tensors = true;
        return CODE_GOOD;
    case OPT_JSON:
        view->json = true;
        return CODE_GOOD;
    case OPT_ROOT:
        return opening_root(&view->opening, "inspect", value);
    default:
        return opening_key(&view->opening, "inspect", value);
    }
}

int cmd_inspect(int count, char **words)
{
    struct words line;
    struct view view = {.opening = OPENING_INIT};
    words_start(&line, &inspect_command, count, words);
    bool go_on = words_read(&line, take_option, &view, 1, 0);
    int code = line.code;
    for (int i = 0; go_on && i < line.operand_count; i++) {
        code = worse_code(code, show_file(&view, words[i]));
    }
    opening_end(&view.opening);
    return code;
}
