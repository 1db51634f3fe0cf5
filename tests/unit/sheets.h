/* sheets.h: what C tests of manifest version 2 share: metadata from short tables, and a cache with
 * every kind of thing in it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef SHEETS_H
#define SHEETS_H

#include "cases.h"

#define KEY_SHAPE "[1,1,3,2]"
#define KEY_AXES "[\"batch\",\"head\",\"sequence\",\"head_dim\"]"

/* A tensor record. `where` is the beginning of its name, "" for the roles of the cache. */
struct part {
    const char *where;
    int layer;
    const char *role;
    int index; /* -1 for roles that have none */
    const char *dtype;
    const char *axes;
    const char *shape;
    uint64_t bytes;
    const char *packing;
};

/* Metadata of manifest version 2. */
struct sheet {
    unsigned layers;
    const char *const *records; /* of layers */
    unsigned record_count;
    const struct part *parts;
    unsigned part_count;
    const char *wrapper;
    const char *top; /* more members of the top level, each with a comma behind it */
};

static inline void add_part(struct text *text, const struct part *part, uint64_t offset)
{
    /* The name comes first, so that tests find the record by it; the writer sorts the members. */
    ADD(text, "{\"name\":\"%s%s", part->where, part->role);
    if (part->index >= 0) {
        ADD(text, ".%d", part->index);
    }
    ADD(text, "\",\"axes\":%s,\"dtype\":\"%s\",\"index\":%d,", part->axes, part->dtype,
        part->index < 0 ? 0 : part->index);
    if (part->layer < 0) {
        ADD(text, "\"layer\":null,");
    } else {
        ADD(text, "\"layer\":%d,", part->layer);
    }
    ADD(text, "\"nbytes\":%" PRIu64 ",\"offset\":%" PRIu64 ",\"packing\":%s,", part->bytes, offset,
        part->packing != NULL ? part->packing : "null");
    ADD(text, "\"role\":\"%s\",\"shape\":%s}", part->role, part->shape);
}

static inline char *make_sheet(const struct sheet *sheet)
{
    struct text text = {NULL, 0, 4096 + 512 * (sheet->record_count + sheet->part_count)};
    uint64_t offset = 0;
    text.data = take_memory(text.capacity);
    ADD(&text, "{%s\"dtype\":null,\"head_dim\":null,\"kv_heads\":null,\"layers\":%u,",
        sheet->top != NULL ? sheet->top : "", sheet->layers);
    ADD(&text, "\"layout\":\"layer-major-k-then-v\",\"model_revision\":\"test\",");
    ADD(&text, "\"rope_theta\":1.0,\"sequence_length\":3,\"sequence_start\":1,");
    ADD(&text, "\"tensor_manifest\":{\"batch_size\":1,\"byte_order\":\"little\",");
    ADD(&text, "\"cache_class\":\"C\",\"framework\":{\"name\":\"test\",\"version\":\"1\"},");
    ADD(&text, "\"info\":{\"a\":[1.5,null]},\"layers\":[");
    for (unsigned i = 0; i < sheet->record_count; i++) {
        ADD(&text, "%s%s", i > 0 ? "," : "", sheet->records[i]);
    }
    ADD(&text, "],\"state_schema\":\"test/s\",\"tensors\":[");
    for (unsigned i = 0; i < sheet->part_count; i++) {
        ADD(&text, "%s", i > 0 ? "," : "");
        add_part(&text, &sheet->parts[i], offset);
        offset += sheet->parts[i].bytes;
    }
    ADD(&text, "],\"version\":2,\"wrapper\":\"%s\"},\"tokenizer_sha256\":\"%064d\"}",
        sheet->wrapper != NULL ? sheet->wrapper : "none", 0);
    return text.data;
}

static inline uint64_t sheet_bytes(const struct sheet *sheet)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < sheet->part_count; i++) {
        bytes += sheet->parts[i].bytes;
    }
    return bytes;
}

static inline struct memory_file pack_sheet(const struct sheet *sheet, uint32_t align)
{
    struct kvc_writer_options options = KVC_WRITER_OPTIONS_INIT;
    char *metadata = make_sheet(sheet);
    uint8_t *payload = make_payload(sheet_bytes(sheet), 1);
    options.align_bytes = align;
    struct memory_file file = pack_memory(metadata, payload, sheet_bytes(sheet), &options);
    free(metadata);
    free(payload);
    return file;
}

static inline struct kvc_reader *open_file(const struct memory_file *file)
{
    struct kvc_reader *reader = NULL;
    struct kvc_error error = KVC_ERROR_INIT;
    if (kvc_reader_open_memory(file->data, file->bytes, NULL, &reader, &error) != KVC_OK) {
        bail_out(error.message);
    }
    return reader;
}

/* Lets a writer judge metadata, whose rules are a reader's. */
static inline enum kvc_status judge_text(const char *metadata, struct kvc_error *error)
{
    struct memory_file file = {0};
    struct kvc_sink sink = memory_sink(&file);
    struct kvc_writer *writer = NULL;
    enum kvc_status status =
        kvc_writer_create_sink(&sink, metadata, strlen(metadata), NULL, &writer, error);
    CHECK(status == KVC_OK || file.writes == 0);
    kvc_writer_free(writer);
    free(file.data);
    return status;
}

/* ---- A cache with everything --------------------------------------------------------------- */

#define LAYER(class, kind, layer, cache, state, stored, seen, window, aliases)                     \
    "{\"class\":\"" class "\",\"aliases\":" aliases ",\"cache\":\"" cache                          \
                          "\",\"flags\":{\"f\":true},\"kind\":\"" kind "\",\"layer\":" layer       \
                          ",\"positions_seen\":" seen ",\"state\":\"" state                        \
                          "\",\"stored_tokens\":" stored ",\"window\":" window "}"

#define PACKING(what, zero)                                                                        \
    "{\"axis\":-1,\"bits\":4,\"codec\":\"c\",\"dtype\":\"f16\",\"group_size\":2,\"scale\":"        \
    "\"" what "_scale\",\"shape\":[1,2,2],\"zero\":" zero "}"

static const char *const rich_layers[] = {
    LAYER("L0", "full", "0", "self", "filled", "3", "3", "null", "{}"),
    LAYER("L1", "sliding", "1", "self", "filled", "2", "3", "2", "{\"value\":\"key\"}"),
    LAYER("L2", "linear_full", "2", "self", "filled", "3", "3", "null", "{}"),
    LAYER("L3", "quantized", "3", "self", "filled", "3", "3", "null", "{}"),
    LAYER("L4", "indexed", "4", "self", "empty", "0", "2", "null", "{}"),
    LAYER("L5", "chunked", "5", "self", "uninitialized", "0", "0", "8", "{}"),
    LAYER("L6", "static", "0", "cross", "filled", "2", "9", "null", "{}"),
    LAYER("L7", "linear", "1", "cross", "filled", "0", "3", "null", "{}"),
};
#define RICH_LAYERS (sizeof(rich_layers) / sizeof(rich_layers[0]))

static const struct part rich_parts[] = {
    {"layer.0.", 0, "key", -1, "f16", KEY_AXES, KEY_SHAPE, 12, NULL},
    {"layer.0.", 0, "value", -1, "bf16", KEY_AXES, "[1,1,3,1]", 6, NULL},
    {"layer.1.", 1, "key", -1, "f8_e4m3fn", KEY_AXES, "[1,1,2,5]", 10, NULL},
    {"layer.2.", 2, "key", -1, "f64", KEY_AXES, KEY_SHAPE, 48, NULL},
    {"layer.2.", 2, "value", -1, "i8", KEY_AXES, KEY_SHAPE, 6, NULL},
    {"layer.2.", 2, "conv_state", 0, "f32", "[]", "[]", 4, NULL},
    {"layer.2.", 2, "conv_state", 255, "u8", "[\"kernel\"]", "[0]", 0, NULL},
    {"layer.2.", 2, "recurrent_state", 7, "u16", "[\"a\",\"b_1\"]", "[2,2]", 8, NULL},
    {"layer.3.", 3, "key", -1, "f16", KEY_AXES, "[1,1,1,2]", 4, NULL},
    {"layer.3.", 3, "packed_key", -1, "u8", "[\"group\"]", "[2]", 2,
     PACKING("key", "\"key_zero\"")},
    {"layer.3.", 3, "key_scale", -1, "f16", "[\"group\"]", "[2]", 4, NULL},
    {"layer.3.", 3, "key_zero", -1, "f16", "[\"group\"]", "[2]", 4, NULL},
    {"layer.3.", 3, "packed_value", -1, "u8", "[\"group\"]", "[2]", 2, PACKING("value", "null")},
    {"layer.3.", 3, "value_scale", -1, "f16", "[\"group\"]", "[2]", 4, NULL},
    {"layer.4.", 4, "key", -1, "f16", KEY_AXES, "[1,1,0,2]", 0, NULL},
    {"layer.4.", 4, "indexer_key", -1, "f16", "[\"sequence\"]", "[0]", 0, NULL},
    {"cross.0.", 6, "key", -1, "f16", KEY_AXES, "[1,2,2,2]", 16, NULL},
    {"cross.0.", 6, "value", -1, "f16", KEY_AXES, "[1,2,2,2]", 16, NULL},
    {"cross.1.", 7, "recurrent_state", 0, "f16", "[\"batch\"]", "[1]", 2, NULL},
    {"", -1, "token_ids", -1, "i64", "[\"batch\",\"sequence\"]", "[1,3]", 24, NULL},
    {"", -1, "attention_mask", -1, "bool", "[\"batch\",\"sequence\"]", "[1,4]", 4, NULL},
};
#define RICH_PARTS (sizeof(rich_parts) / sizeof(rich_parts[0]))

static const struct sheet rich = {6,          rich_layers,       RICH_LAYERS, rich_parts,
                                  RICH_PARTS, "encoder_decoder", NULL};

#endif
