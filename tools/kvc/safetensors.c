/* safetensors.c: the header of a safetensors file, which may come from anybody; does no input.
 * SPDX-License-Identifier: Apache-2.0 */
#include "safetensors.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__GNUC__)
#define SAFETENSORS_PRINTF(format_at, first_at) __attribute__((format(printf, format_at, first_at)))
#else
#define SAFETENSORS_PRINTF(format_at, first_at)
#endif

/* The largest number that the library's JSON has. */
#define MOST_BYTES ((UINT64_C(1) << 53) - 1)

/* Bytes of a name, as it is spelled, that a message shows. */
#define SHOWN_BYTES 200

static const struct {
    const char *kvc;
    const char *name;
    unsigned item_bytes;
} dtypes[] = {
    {"f16", "F16", 2},
    {"bf16", "BF16", 2},
    {"f32", "F32", 4},
    {"f64", "F64", 8},
    {"i8", "I8", 1},
    {"u8", "U8", 1},
    {"i16", "I16", 2},
    {"u16", "U16", 2},
    {"i32", "I32", 4},
    {"u32", "U32", 4},
    {"i64", "I64", 8},
    {"bool", "BOOL", 1},
    {"f8_e4m3fn", "F8_E4M3", 1},
    {"f8_e5m2", "F8_E5M2", 1},
    {"f8_e4m3fnuz", "F8_E4M3FNUZ", 1},
    {"f8_e5m2fnuz", "F8_E5M2FNUZ", 1},
    {"f8_e8m0", "F8_E8M0", 1},
};

#define DTYPE_COUNT (sizeof(dtypes) / sizeof(dtypes[0]))

static enum kvc_status fail(struct kvc_error *error, enum kvc_status status, const char *format,
                            ...) SAFETENSORS_PRINTF(3, 4);

static enum kvc_status fail(struct kvc_error *error, enum kvc_status status, const char *format,
                            ...)
{
    va_list arguments;
    va_start(arguments, format);
    error->status = status;
    (void)vsnprintf(error->message, sizeof(error->message), format, arguments);
    va_end(arguments);
    return status;
}

static enum kvc_status fail_memory(struct kvc_error *error)
{
    return fail(error, KVC_E_NO_MEMORY, "no memory for the header of the safetensors file");
}

static int shown(struct json_piece piece)
{
    return (int)(piece.bytes < SHOWN_BYTES ? piece.bytes : SHOWN_BYTES);
}

static enum kvc_status fail_tensor(struct kvc_error *error, struct json_piece name,
                                   const char *problem)
{
    return fail(error, KVC_E_STRUCTURE, "the safetensors header is wrong: tensor %.*s %s",
                shown(name), name.text, problem);
}

const char *safetensors_dtype(const char *kvc_name, size_t bytes)
{
    for (size_t i = 0; i < DTYPE_COUNT; i++) {
        if (strlen(dtypes[i].kvc) == bytes && memcmp(dtypes[i].kvc, kvc_name, bytes) == 0) {
            return dtypes[i].name;
        }
    }
    return NULL;
}

enum kvc_status safetensors_header_bytes(const uint8_t first[SAFETENSORS_LENGTH_BYTES],
                                         uint64_t file_bytes, uint64_t *ret_bytes,
                                         struct kvc_error *error)
{
    uint64_t bytes = 0;
    if (file_bytes < SAFETENSORS_LENGTH_BYTES) {
        return fail(error, KVC_E_FOREIGN,
                    "it is no safetensors file: it has %" PRIu64
                    " bytes, and the length of the header alone takes 8",
                    file_bytes);
    }
    for (size_t i = SAFETENSORS_LENGTH_BYTES; i > 0; i--) {
        bytes = bytes << 8 | first[i - 1];
    }
    if (bytes > SAFETENSORS_MOST_BYTES) {
        return fail(error, KVC_E_FOREIGN,
                    "it is no safetensors file: its first 8 bytes would be the length of a header "
                    "of %" PRIu64 " bytes, at most 100000000 are allowed",
                    bytes);
    }
    if (bytes > file_bytes - SAFETENSORS_LENGTH_BYTES) {
        return fail(error, KVC_E_TRUNCATED,
                    "the safetensors file is cut short, or is none: its header would have %" PRIu64
                    " bytes, and only %" PRIu64 " follow its length",
                    bytes, file_bytes - SAFETENSORS_LENGTH_BYTES);
    }
    *ret_bytes = bytes;
    return KVC_OK;
}

/* ---- Members ------------------------------------------------------------------------------- */

/* Reads an integer in canonical spelling that is not below 0. */
static bool read_number(struct json_piece value, uint64_t *ret_number)
{
    uint64_t number = 0;
    if (value.bytes == 0 || value.bytes > 16) {
        return false;
    }
    for (size_t i = 0; i < value.bytes; i++) {
        if (value.text[i] < '0' || value.text[i] > '9') {
            return false;
        }
        number = number * 10 + (uint64_t)(value.text[i] - '0');
    }
    *ret_number = number;
    return true;
}

/* Counts the elements of a shape. A factor 0 makes every product 0. Returns false where an entry is
 * no size; too large products are MOST_BYTES + 1. */
static bool count_elements(struct json_piece shape, uint64_t *ret_count)
{
    struct json_members items;
    struct json_piece item;
    uint64_t count = 1;
    bool empty = false;
    json_items_start(&items, shape);
    while (json_items_next(&items, &item)) {
        uint64_t size = 0;
        if (!read_number(item, &size)) {
            return false;
        }
        empty = empty || size == 0;
        if (size != 0 && count > MOST_BYTES / size) {
            count = MOST_BYTES + 1;
        } else if (size != 0) {
            count *= size;
        }
    }
    *ret_count = empty ? 0 : count;
    return true;
}

/* Says whether the bytes are those of the shape; of a dtype that is not known here they may be
 * any. */
static bool size_fits(const struct safetensors_tensor *tensor, uint64_t elements)
{
    for (size_t i = 0; i < DTYPE_COUNT; i++) {
        size_t bytes = strlen(dtypes[i].name);
        if (tensor->dtype.bytes == bytes + 2 &&
            memcmp(tensor->dtype.text + 1, dtypes[i].name, bytes) == 0) {
            return elements <= MOST_BYTES / dtypes[i].item_bytes &&
                   elements * dtypes[i].item_bytes == tensor->end - tensor->start;
        }
    }
    return true;
}

static bool read_offsets(struct json_piece array, uint64_t *ret_start, uint64_t *ret_end)
{
    struct json_members items;
    struct json_piece item;
    json_items_start(&items, array);
    return json_items_next(&items, &item) && read_number(item, ret_start) &&
           json_items_next(&items, &item) && read_number(item, ret_end) &&
           !json_items_next(&items, &item);
}

static enum kvc_status take_tensor(struct json_piece name, struct json_piece value,
                                   uint64_t data_bytes, struct safetensors_tensor *ret_tensor,
                                   struct kvc_error *error)
{
    struct safetensors_tensor tensor = {.name = name};
    struct json_piece offsets;
    uint64_t elements = 0;
    if (value.text[0] != '{') {
        return fail_tensor(error, name, "is no object");
    }
    if (!json_find(value, "dtype", strlen("dtype"), &tensor.dtype) || tensor.dtype.text[0] != '"') {
        return fail_tensor(error, name, "has no dtype that is a string");
    }
    if (!json_find(value, "shape", strlen("shape"), &tensor.shape) || tensor.shape.text[0] != '[' ||
        !count_elements(tensor.shape, &elements)) {
        return fail_tensor(error, name, "has no shape that is an array of sizes");
    }
    if (!json_find(value, "data_offsets", strlen("data_offsets"), &offsets) ||
        offsets.text[0] != '[' || !read_offsets(offsets, &tensor.start, &tensor.end)) {
        return fail_tensor(error, name, "has no data_offsets that are an array of two numbers");
    }
    if (tensor.start > tensor.end) {
        return fail_tensor(error, name, "has data_offsets that end before they begin");
    }
    if (tensor.end > data_bytes) {
        return fail_tensor(error, name, "ends behind the end of the file");
    }
    if (!size_fits(&tensor, elements)) {
        return fail_tensor(error, name, "has a shape that does not give its number of bytes");
    }
    *ret_tensor = tensor;
    return KVC_OK;
}

static enum kvc_status judge_metadata(struct json_piece metadata, struct kvc_error *error)
{
    struct json_members members;
    struct json_piece name;
    struct json_piece value;
    if (metadata.text[0] != '{') {
        return fail(error, KVC_E_STRUCTURE,
                    "the safetensors header is wrong: " SAFETENSORS_METADATA " is no object");
    }
    json_members_start(&members, metadata);
    while (json_members_next(&members, &name, &value)) {
        if (value.text[0] != '"') {
            return fail(error, KVC_E_STRUCTURE,
                        "the safetensors header is wrong: %.*s in " SAFETENSORS_METADATA
                        " is no string",
                        shown(name), name.text);
        }
    }
    return KVC_OK;
}

/* ---- Order --------------------------------------------------------------------------------- */

static int compare_pieces(struct json_piece a, struct json_piece b)
{
    int order = memcmp(a.text, b.text, a.bytes < b.bytes ? a.bytes : b.bytes);
    return order != 0 ? order : (a.bytes > b.bytes) - (a.bytes < b.bytes);
}

static int compare_names(const void *a, const void *b)
{
    return compare_pieces(((const struct safetensors_tensor *)a)->name,
                          ((const struct safetensors_tensor *)b)->name);
}

static int compare_places(const void *a, const void *b)
{
    const struct safetensors_tensor *first = a;
    const struct safetensors_tensor *second = b;
    if (first->start != second->start) {
        return first->start < second->start ? -1 : 1;
    }
    return (first->end > second->end) - (first->end < second->end);
}

/* Tensors must follow each other from the first byte to the last; `tensors` are put in order. */
static enum kvc_status judge_places(struct safetensors *file, uint64_t data_bytes,
                                    struct kvc_error *error)
{
    uint64_t at = 0;
    if (file->count > 0) {
        qsort(file->tensors, file->count, sizeof(file->tensors[0]), compare_places);
    }
    for (size_t i = 0; i < file->count; i++) {
        if (file->tensors[i].start != at) {
            return fail_tensor(error, file->tensors[i].name,
                               file->tensors[i].start < at ? "overlaps the one before it"
                                                           : "begins after a gap");
        }
        at = file->tensors[i].end;
    }
    if (at != data_bytes) {
        return fail(error, KVC_E_STRUCTURE,
                    "the safetensors header is wrong: its tensors take %" PRIu64
                    " bytes, and %" PRIu64 " follow the header",
                    at, data_bytes);
    }
    return KVC_OK;
}

/* ---- Header -------------------------------------------------------------------------------- */

static size_t count_members(struct json_piece object)
{
    struct json_members members;
    struct json_piece name;
    struct json_piece value;
    size_t count = 0;
    json_members_start(&members, object);
    while (json_members_next(&members, &name, &value)) {
        count++;
    }
    return count;
}

static enum kvc_status take_members(struct json_piece top, uint64_t data_bytes,
                                    struct safetensors *file, struct kvc_error *error)
{
    static const char metadata_name[] = "\"" SAFETENSORS_METADATA "\"";
    struct json_members members;
    struct json_piece name;
    struct json_piece value;
    enum kvc_status status = KVC_OK;
    size_t room = count_members(top);
    file->tensors = calloc(room > 0 ? room : 1, sizeof(file->tensors[0]));
    if (file->tensors == NULL) {
        return fail_memory(error);
    }
    json_members_start(&members, top);
    while (status == KVC_OK && json_members_next(&members, &name, &value)) {
        if (json_same(name, (struct json_piece){metadata_name, sizeof(metadata_name) - 1})) {
            file->metadata = value;
            status = judge_metadata(value, error);
        } else {
            status = take_tensor(name, value, data_bytes, &file->tensors[file->count], error);
            file->count += status == KVC_OK;
        }
    }
    return status;
}

enum kvc_status safetensors_parse(const char *header, size_t header_bytes, uint64_t data_bytes,
                                  struct safetensors *ret_file, struct kvc_error *error)
{
    struct safetensors file = {.metadata = {"{}", 2}};
    struct kvc_error inner = KVC_ERROR_INIT;
    size_t text_bytes = 0;
    enum kvc_status status =
        kvc_json_canonical(header, header_bytes, 0, NULL, &file.text, &text_bytes, &inner);
    if (status == KVC_E_NO_MEMORY) {
        return fail_memory(error);
    }
    if (status != KVC_OK) {
        return fail(error, status, "the safetensors header is wrong: %s", inner.message);
    }
    if (file.text[0] != '{') {
        status = fail(error, KVC_E_STRUCTURE, "the safetensors header is wrong: it is no object");
    }
    if (status == KVC_OK) {
        status = take_members((struct json_piece){file.text, text_bytes}, data_bytes, &file, error);
    }
    if (status == KVC_OK) {
        status = judge_places(&file, data_bytes, error);
    }
    if (status != KVC_OK) {
        safetensors_free(&file);
        return status;
    }
    if (file.count > 0) {
        qsort(file.tensors, file.count, sizeof(file.tensors[0]), compare_names);
    }
    *ret_file = file;
    return KVC_OK;
}

struct safetensors_tensor *safetensors_find(const struct safetensors *file, struct json_piece name)
{
    const struct safetensors_tensor wanted = {.name = name};
    if (file->count == 0) {
        return NULL;
    }
    return bsearch(&wanted, file->tensors, file->count, sizeof(file->tensors[0]), compare_names);
}

bool safetensors_metadata(const struct safetensors *file, const char *key,
                          struct json_piece *ret_string)
{
    return json_find(file->metadata, key, strlen(key), ret_string);
}

void safetensors_free(struct safetensors *file)
{
    free(file->tensors);
    free(file->text);
    *file = (struct safetensors){.text = NULL};
}
