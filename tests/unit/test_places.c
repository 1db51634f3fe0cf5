/* test_places.c: tensors of different sizes: where they lie, and that every way to read them gives
 * the same bytes, or names the same damage.
 * SPDX-License-Identifier: Apache-2.0 */
#include "blake3.h"
#include "sheets.h"

/* ---- Tensors of many sizes ----------------------------------------------------------------- */

static const char *const linear_layer[] = {
    LAYER("L0", "linear", "0", "self", "filled", "0", "3", "null", "{}"),
};

/* Around the edges of chunks and tiles, with tensors of no bytes first, last and between. */
static const uint64_t sizes[] = {
    0, 0, 1, 65535, 0, 65536, 65537, 0, 0, 131072, 64, 131073, 4096, 262145, 63, 0, 524289, 0,
};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

struct many {
    struct part parts[SIZES];
    char shapes[SIZES][24];
    struct sheet sheet;
};

static void make_many(struct many *many)
{
    for (unsigned i = 0; i < SIZES; i++) {
        (void)snprintf(many->shapes[i], sizeof(many->shapes[i]), "[%" PRIu64 "]", sizes[i]);
        many->parts[i] =
            (struct part){"layer.0.",      0,        "conv_state", (int)i, "u8", "[\"element\"]",
                          many->shapes[i], sizes[i], NULL};
    }
    many->sheet = (struct sheet){1, linear_layer, 1, many->parts, SIZES, NULL, NULL};
}

static const uint32_t aligns[] = {0, 1, 64, 4096};
#define ALIGNS (sizeof(aligns) / sizeof(aligns[0]))

static uint32_t align_of(unsigned number)
{
    return aligns[number] == 0 ? 64 : aligns[number];
}

static uint64_t chunks_of(uint64_t bytes)
{
    return (bytes + GRID_BYTES - 1) / GRID_BYTES;
}

static void check_facts(const struct kvc_reader *reader, uint32_t align)
{
    struct kvc_info info = KVC_INFO_INIT;
    uint64_t end = 0;
    uint64_t offset = 0;
    uint64_t rows = 0;
    uint64_t chunks = 0;
    CHECK_STATUS(kvc_reader_info(reader, &info, NULL), KVC_OK);
    for (unsigned i = 0; i < SIZES; i++) {
        struct kvc_tensor tensor = KVC_TENSOR_INIT;
        char name[64];
        uint32_t found = UINT32_MAX;
        uint64_t start = sizes[i] > 0 ? (end + align - 1) / align * align : end;
        (void)snprintf(name, sizeof(name), "layer.0.conv_state.%u", i);
        CHECK_STATUS(kvc_reader_tensor(reader, i, &tensor, NULL), KVC_OK);
        CHECK(strcmp(tensor.name, name) == 0 && strcmp(tensor.kind, "conv_state") == 0);
        CHECK(strcmp(tensor.dtype, "u8") == 0 && tensor.layer == 0 && tensor.rank == 1);
        CHECK_NUMBER(tensor.shape[0], sizes[i]);
        CHECK_NUMBER(tensor.tensor_bytes, sizes[i]);
        CHECK_NUMBER(tensor.offset, offset);
        CHECK_NUMBER(tensor.file_offset, info.payload_offset + start);
        CHECK_NUMBER(tensor.chunk_count, chunks_of(sizes[i]));
        CHECK_STATUS(kvc_reader_find(reader, name, strlen(name), &found, NULL), KVC_OK);
        CHECK_NUMBER(found, i);
        end = start + sizes[i];
        offset += sizes[i];
        chunks += chunks_of(sizes[i]);
        rows += chunks_of(sizes[i]) > 1 ? chunks_of(sizes[i]) : 0;
    }
    uint64_t trailer = (info.payload_offset + end + 63) / 64 * 64;
    CHECK_NUMBER(info.payload_span, end);
    CHECK_NUMBER(info.payload_bytes, offset);
    CHECK_NUMBER(info.chunk_count, chunks);
    CHECK_NUMBER(info.file_bytes, trailer + 32 * (rows + SIZES) + 128);
    CHECK_NUMBER(info.align_bytes, align);
    CHECK_NUMBER(info.tensor_count, SIZES);
    CHECK_NUMBER(info.manifest_version, 2);
    CHECK_NUMBER(info.incompat, 1);
    CHECK_NUMBER(info.version_minor, 0);
    CHECK(info.kv_heads == 0 && info.head_dim == 0 && strcmp(info.dtype, "") == 0);
}

/* Reads, in whole and in part, and maps; all of it is the payload. */
static void check_bytes(const struct kvc_reader *reader, const uint8_t *payload)
{
    uint64_t offset = 0;
    for (unsigned i = 0; i < SIZES; i++) {
        struct kvc_tensor tensor = KVC_TENSOR_INIT;
        struct kvc_view *view = NULL;
        uint8_t digest[KVC_DIGEST_BYTES];
        uint64_t view_bytes = UINT64_MAX;
        uint8_t *buffer = take_memory((size_t)sizes[i] + 1);
        const uint64_t part = sizes[i] / 3;
        CHECK_STATUS(kvc_reader_read(reader, i, 0, sizes[i], NULL, buffer, NULL), KVC_OK);
        CHECK(memcmp(buffer, payload + offset, (size_t)sizes[i]) == 0);
        CHECK_STATUS(kvc_reader_read(reader, i, part, sizes[i] - part, NULL, buffer, NULL), KVC_OK);
        CHECK(memcmp(buffer, payload + offset + part, (size_t)(sizes[i] - part)) == 0);
        CHECK_STATUS(kvc_reader_map(reader, i, NULL, &view, NULL), KVC_OK);
        const uint8_t *mapped = kvc_view_data(view, &view_bytes);
        CHECK_NUMBER(view_bytes, sizes[i]);
        CHECK(mapped != NULL && memcmp(mapped, payload + offset, (size_t)sizes[i]) == 0);
        CHECK_STATUS(kvc_reader_tensor(reader, i, &tensor, NULL), KVC_OK);
        kvci_blake3_hash(payload + offset, (size_t)sizes[i], digest);
        CHECK(memcmp(digest, tensor.digest, sizeof(digest)) == 0);
        kvc_view_free(view);
        free(buffer);
        offset += sizes[i];
    }
}

static void check_payload(const struct kvc_reader *reader, const uint8_t *payload, uint64_t bytes)
{
    struct kvc_info info = KVC_INFO_INIT;
    struct kvc_view *view = NULL;
    uint64_t view_bytes = 0;
    uint8_t *buffer = take_memory((size_t)bytes);
    CHECK_STATUS(kvc_reader_info(reader, &info, NULL), KVC_OK);
    CHECK_STATUS(kvc_reader_read_payload(reader, NULL, buffer, bytes, NULL), KVC_OK);
    CHECK(memcmp(buffer, payload, (size_t)bytes) == 0);
    CHECK_STATUS(kvc_reader_map_payload(reader, NULL, &view, NULL), KVC_OK);
    const uint8_t *mapped = kvc_view_data(view, &view_bytes);
    CHECK_NUMBER(view_bytes, info.payload_span);
    for (unsigned i = 0; i < SIZES && mapped != NULL; i++) {
        struct kvc_tensor tensor = KVC_TENSOR_INIT;
        CHECK_STATUS(kvc_reader_tensor(reader, i, &tensor, NULL), KVC_OK);
        CHECK(memcmp(mapped + (tensor.file_offset - info.payload_offset), payload + tensor.offset,
                     (size_t)tensor.tensor_bytes) == 0);
    }
    CHECK_STATUS(kvc_reader_verify(reader, NULL, NULL, NULL, NULL), KVC_OK);
    kvc_view_free(view);
    free(buffer);
}

static void every_way(void)
{
    struct many many;
    make_many(&many);
    const uint64_t bytes = sheet_bytes(&many.sheet);
    uint8_t *payload = make_payload(bytes, 1);
    for (unsigned i = 0; i < ALIGNS; i++) {
        struct memory_file file = pack_sheet(&many.sheet, aligns[i]);
        struct kvc_reader *reader = open_file(&file);
        check_facts(reader, align_of(i));
        check_bytes(reader, payload);
        check_payload(reader, payload, bytes);
        kvc_reader_free(reader);
        free(file.data);
    }
    free(payload);
}

/* Files by path, which are written at any place by several threads, are the same as by a sink. */
static void pieces_and_paths(void)
{
    static const uint64_t pieces[] = {0, 1000, 65536, 65537, 400000};
    char folder[CASE_PATH_BYTES];
    char path[CASE_PATH_BYTES];
    struct many many;
    make_many(&many);
    make_folder(folder);
    join_path(path, folder, "a.kvc");
    const uint64_t bytes = sheet_bytes(&many.sheet);
    uint8_t *payload = make_payload(bytes, 1);
    char *metadata = make_sheet(&many.sheet);
    for (unsigned i = 0; i < ALIGNS; i++) {
        struct memory_file file = pack_sheet(&many.sheet, aligns[i]);
        for (unsigned k = 0; k < sizeof(pieces) / sizeof(pieces[0]); k++) {
            struct kvc_writer_options options = KVC_WRITER_OPTIONS_INIT;
            struct kvc_writer *writer = NULL;
            struct kvc_info info = KVC_INFO_INIT;
            options.align_bytes = aligns[i];
            options.durability = KVC_DURABILITY_NONE;
            options.work.threads = 1 + k % 3;
            CHECK_STATUS(
                kvc_writer_create_path(path, metadata, strlen(metadata), &options, &writer, NULL),
                KVC_OK);
            CHECK_STATUS(write_in_pieces(writer, payload, bytes, pieces[k], NULL), KVC_OK);
            CHECK_STATUS(kvc_writer_finish(writer, NULL, NULL), KVC_OK);
            CHECK_STATUS(kvc_writer_info(writer, &info, NULL), KVC_OK);
            CHECK_NUMBER(info.align_bytes, align_of(i));
            kvc_writer_free(writer);
            CHECK(same_file_bytes(path, file.data, file.bytes));
        }
        free(file.data);
    }
    free(metadata);
    free(payload);
    (void)count_folder(folder, 1);
}

/* One way to meet a damaged place. */
static enum kvc_status meet(const struct kvc_reader *reader, unsigned way, uint32_t index,
                            struct kvc_error *error)
{
    struct kvc_tensor tensor = KVC_TENSOR_INIT;
    struct kvc_info info = KVC_INFO_INIT;
    struct kvc_view *view = NULL;
    enum kvc_status status = kvc_reader_tensor(reader, index, &tensor, NULL);
    CHECK_STATUS(kvc_reader_info(reader, &info, NULL), KVC_OK);
    uint8_t *buffer = take_memory((size_t)info.payload_bytes);
    switch (way) {
    case 0:
        status = kvc_reader_verify(reader, NULL, NULL, NULL, error);
        break;
    case 1:
        status = kvc_reader_read_payload(reader, NULL, buffer, info.payload_bytes, error);
        break;
    case 2:
        status = kvc_reader_map_payload(reader, NULL, &view, error);
        break;
    case 3:
        status = kvc_reader_read(reader, index, 0, tensor.tensor_bytes, NULL, buffer, error);
        break;
    default:
        status = kvc_reader_map(reader, index, NULL, &view, error);
        break;
    }
    kvc_view_free(view);
    free(buffer);
    return status;
}

/* Changes one byte of a file and expects every way to name it. Ways from 3 on see no gaps. */
static void check_damage(const struct memory_file *file, uint64_t at, enum kvc_status wanted,
                         uint32_t index, uint64_t offset, unsigned ways)
{
    file->data[at] ^= 1;
    for (unsigned way = 0; way < ways; way++) {
        struct kvc_error error = KVC_ERROR_INIT;
        struct kvc_tensor tensor = KVC_TENSOR_INIT;
        struct kvc_reader *reader = open_file(file);
        CHECK_STATUS(meet(reader, way, index, &error), wanted);
        CHECK_NUMBER(error.offset, offset);
        CHECK_STATUS(kvc_reader_tensor(reader, index, &tensor, NULL), KVC_OK);
        CHECK(wanted == KVC_E_PADDING || strcmp(error.field, tensor.name) == 0);
        kvc_reader_free(reader);
    }
    file->data[at] ^= 1;
}

static void damage(void)
{
    struct many many;
    make_many(&many);
    for (unsigned i = 0; i < ALIGNS; i++) {
        struct memory_file file = pack_sheet(&many.sheet, aligns[i]);
        struct kvc_reader *reader = open_file(&file);
        struct kvc_info info = KVC_INFO_INIT;
        uint64_t end = 0;
        uint32_t before = 0;
        CHECK_STATUS(kvc_reader_info(reader, &info, NULL), KVC_OK);
        uint64_t row = (info.payload_offset + info.payload_span + 63) / 64 * 64;
        for (uint32_t k = 0; k < SIZES; k++) {
            struct kvc_tensor tensor = KVC_TENSOR_INIT;
            CHECK_STATUS(kvc_reader_tensor(reader, k, &tensor, NULL), KVC_OK);
            if (tensor.tensor_bytes == 0) {
                continue;
            }
            uint64_t last = tensor.tensor_bytes - 1;
            check_damage(&file, tensor.file_offset, KVC_E_CHUNK, k, tensor.file_offset, 5);
            check_damage(&file, tensor.file_offset + last, KVC_E_CHUNK, k,
                         tensor.file_offset + last / GRID_BYTES * GRID_BYTES, 5);
            if (end > 0 && tensor.file_offset > end) {
                check_damage(&file, end, KVC_E_PADDING, before, end, 3);
                check_damage(&file, tensor.file_offset - 1, KVC_E_PADDING, before,
                             tensor.file_offset - 1, 3);
            }
            if (tensor.chunk_count > 1) {
                check_damage(&file, row + 32 * tensor.chunk_count - 1, KVC_E_ROW, k, row, 5);
                row += 32 * tensor.chunk_count;
            }
            end = tensor.file_offset + tensor.tensor_bytes;
            before = k;
        }
        kvc_reader_free(reader);
        free(file.data);
    }
}

static int note_damage(void *context, const struct kvc_error *failure)
{
    struct text *text = context;
    ADD(text, "%s %s\n", kvc_status_name(failure->status), failure->field);
    return 0;
}

/* Damage in several tensors and gaps is reported for each, in their order. */
static void every_damage_is_reported(void)
{
    struct many many;
    struct text text = {NULL, 0, 4096};
    make_many(&many);
    text.data = take_memory(text.capacity);
    struct memory_file file = pack_sheet(&many.sheet, 4096);
    struct kvc_reader *reader = open_file(&file);
    static const uint32_t hurt[] = {2, 6, 11, 16};
    for (unsigned i = 0; i < sizeof(hurt) / sizeof(hurt[0]); i++) {
        struct kvc_tensor tensor = KVC_TENSOR_INIT;
        CHECK_STATUS(kvc_reader_tensor(reader, hurt[i], &tensor, NULL), KVC_OK);
        file.data[tensor.file_offset + tensor.tensor_bytes / 2] ^= 1;
    }
    /* The gaps before tensors 3 and 5; tensor 4, which has no bytes, has no part in the latter. */
    for (uint32_t i = 3; i <= 5; i += 2) {
        struct kvc_tensor tensor = KVC_TENSOR_INIT;
        CHECK_STATUS(kvc_reader_tensor(reader, i, &tensor, NULL), KVC_OK);
        file.data[tensor.file_offset - 1] ^= 1;
    }
    CHECK_STATUS(kvc_reader_verify(reader, NULL, note_damage, &text, NULL), KVC_E_CHUNK);
    CHECK(strcmp(text.data, "chunk layer.0.conv_state.2\npadding \npadding \n"
                            "chunk layer.0.conv_state.6\nchunk layer.0.conv_state.11\n"
                            "chunk layer.0.conv_state.16\n") == 0);
    kvc_reader_free(reader);
    free(file.data);
    free(text.data);
}

static void rich_cache(void)
{
    static const char *const absent[] = {
        "layer.1.value",
        "layer.0.conv_state.0",
        "layer.2.conv_state",
        "layer.2.conv_state.1",
        "layer.2.conv_state.00",
        "layer.2.conv_state.256",
        "layer.2.conv_state.",
        "layer.00.key",
        "layer.6.key",
        "cross.0.key.0",
        "cross.2.key",
        "cross..key",
        "cross.0.",
        "cross.0",
        "",
        "token_id",
        "token_ids.0",
        "layer.99999999999999999999.key",
        "layer.0.token_ids",
        "layer.5.key",
        "LAYER.0.key",
        "layer.0.key ",
        "key",
    };
    for (unsigned i = 0; i < ALIGNS; i++) {
        struct memory_file file = pack_sheet(&rich, aligns[i]);
        struct kvc_reader *reader = open_file(&file);
        struct kvc_tensor tensor = KVC_TENSOR_INIT;
        uint32_t index = 0;
        for (uint32_t k = 0; k < RICH_PARTS; k++) {
            CHECK_STATUS(kvc_reader_tensor(reader, k, &tensor, NULL), KVC_OK);
            CHECK(strcmp(tensor.dtype, rich_parts[k].dtype) == 0);
            CHECK(strcmp(tensor.kind, rich_parts[k].role) == 0);
            CHECK_NUMBER(tensor.tensor_bytes, rich_parts[k].bytes);
            CHECK_NUMBER(tensor.layer, (uint32_t)rich_parts[k].layer);
            CHECK_STATUS(kvc_reader_find(reader, tensor.name, strlen(tensor.name), &index, NULL),
                         KVC_OK);
            CHECK_NUMBER(index, k);
        }
        CHECK(strcmp(tensor.name, "attention_mask") == 0 && tensor.layer == KVC_NO_LAYER);
        CHECK(tensor.rank == 2 && tensor.shape[0] == 1 && tensor.shape[1] == 4);
        CHECK_STATUS(kvc_reader_tensor(reader, 5, &tensor, NULL), KVC_OK);
        CHECK_NUMBER(tensor.rank, 0);
        for (unsigned k = 0; k < sizeof(absent) / sizeof(absent[0]); k++) {
            CHECK_STATUS(kvc_reader_find(reader, absent[k], strlen(absent[k]), &index, NULL),
                         KVC_E_NOT_FOUND);
        }
        CHECK_STATUS(kvc_reader_verify(reader, NULL, NULL, NULL, NULL), KVC_OK);
        kvc_reader_free(reader);
        free(file.data);
    }
}

/* ---- Size ---------------------------------------------------------------------------------- */

#define MANY_LAYERS 256
#define MANY_STATES 256

static char *make_crowd(unsigned layers, unsigned states, unsigned more)
{
    struct text text = {NULL, 0, (size_t)layers * 256 + ((size_t)layers * states + more) * 256};
    unsigned offset = 0;
    text.data = take_memory(text.capacity);
    ADD(&text, "{\"dtype\":null,\"head_dim\":null,\"kv_heads\":null,\"layers\":%u,", layers);
    ADD(&text, "\"layout\":\"layer-major-k-then-v\",\"model_revision\":\"test\",");
    ADD(&text, "\"rope_theta\":1.0,\"sequence_length\":3,\"sequence_start\":1,");
    ADD(&text, "\"tensor_manifest\":{\"batch_size\":1,\"byte_order\":\"little\",");
    ADD(&text, "\"cache_class\":\"C\",\"framework\":{\"name\":\"test\",\"version\":\"1\"},");
    ADD(&text, "\"info\":{},\"layers\":[");
    for (unsigned i = 0; i < layers; i++) {
        ADD(&text, "%s{\"class\":\"L\",\"aliases\":{},\"cache\":\"self\",\"flags\":{},",
            i > 0 ? "," : "");
        ADD(&text, "\"kind\":\"linear\",\"layer\":%u,\"positions_seen\":3,", i);
        ADD(&text, "\"state\":\"filled\",\"stored_tokens\":0,\"window\":null}");
    }
    ADD(&text, "],\"state_schema\":\"s\",\"tensors\":[");
    for (unsigned i = 0; i < layers * states; i++) {
        unsigned bytes = i % 3 == 2 ? 0 : 1;
        ADD(&text, "%s{\"axes\":[\"a\"],\"dtype\":\"u8\",\"index\":%u,\"layer\":%u,",
            i > 0 ? "," : "", i % states, i / states);
        ADD(&text, "\"name\":\"layer.%u.conv_state.%u\",\"nbytes\":%u,\"offset\":%u,", i / states,
            i % states, bytes, offset);
        ADD(&text, "\"packing\":null,\"role\":\"conv_state\",\"shape\":[%u]}", bytes);
        offset += bytes;
    }
    if (more > 0) {
        ADD(&text, ",{\"axes\":[\"batch\",\"sequence\"],\"dtype\":\"u8\",\"index\":0,");
        ADD(&text, "\"layer\":null,\"name\":\"token_ids\",\"nbytes\":1,\"offset\":%u,", offset);
        ADD(&text, "\"packing\":null,\"role\":\"token_ids\",\"shape\":[1,1]}");
    }
    ADD(&text, "],\"version\":2,\"wrapper\":\"none\"},\"tokenizer_sha256\":\"%064d\"}", 0);
    return text.data;
}

/* As many tensors as a file can have, each found by its name. */
static void most_tensors(void)
{
    char *text = make_crowd(MANY_LAYERS, MANY_STATES, 0);
    struct kvc_info info = KVC_INFO_INIT;
    struct kvc_writer_options options = KVC_WRITER_OPTIONS_INIT;
    uint64_t bytes = 2 * (MANY_LAYERS * MANY_STATES / 3) + 1;
    uint8_t *payload = make_payload(bytes, 2);
    options.align_bytes = 1;
    struct memory_file file = pack_memory(text, payload, bytes, &options);
    struct kvc_reader *reader = open_file(&file);
    CHECK_STATUS(kvc_reader_info(reader, &info, NULL), KVC_OK);
    CHECK_NUMBER(info.tensor_count, MANY_LAYERS * MANY_STATES);
    for (uint32_t i = 0; i < MANY_LAYERS * MANY_STATES; i++) {
        char name[64];
        uint32_t found = UINT32_MAX;
        (void)snprintf(name, sizeof(name), "layer.%u.conv_state.%u", i / MANY_STATES,
                       i % MANY_STATES);
        CHECK_STATUS(kvc_reader_find(reader, name, strlen(name), &found, NULL), KVC_OK);
        CHECK_NUMBER(found, i);
    }
    CHECK_STATUS(kvc_reader_verify(reader, NULL, NULL, NULL, NULL), KVC_OK);
    kvc_reader_free(reader);
    free(file.data);
    free(payload);
    free(text);
}

static void too_many_tensors(void)
{
    char *text = make_crowd(MANY_LAYERS, MANY_STATES, 1);
    struct kvc_error error = KVC_ERROR_INIT;
    CHECK_STATUS(judge_text(text, &error), KVC_E_GEOMETRY);
    CHECK(strcmp(error.field, "tensor_manifest.tensors") == 0);
    free(text);
}

int main(void)
{
    run_case("tensors of any size are read by every way", every_way);
    run_case("files do not depend on pieces, threads and sinks", pieces_and_paths);
    run_case("damage is met by every way and named", damage);
    run_case("each damaged tensor and gap is reported", every_damage_is_reported);
    run_case("kinds, roles, aliases, packed tensors and caches beside each other", rich_cache);
    run_case("65,536 tensors", most_tensors);
    run_case("65,537 tensors", too_many_tensors);
    return end_cases();
}
