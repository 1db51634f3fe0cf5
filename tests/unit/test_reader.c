/* test_reader.c: every range of every tensor is what was written, from every source, by any number
 * of threads, and misuse is refused.
 * SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>

#include "cases.h"

static char folder[CASE_PATH_BYTES];
static char target[CASE_PATH_BYTES];

static const struct shape shapes[] = {
    {1, 1, 1, 1},     {3, 1, 7, 13},     {1, 2, 1024, 32},  {1, 1, 32771, 2},
    {1, 4, 1024, 32}, {2, 1, 30000, 10}, {1, 1, 1000, 777},
};
#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

enum way { WAY_PATH, WAY_FD, WAY_MEMORY, WAY_SOURCE, WAYS };

/* A source over memory whose reads are counted and can be made to fail. */
struct custom {
    const struct memory_file *file;
    atomic_int reads;
    int fail_read; /* counted from 1 */
    atomic_int closes;
};

static int custom_read(void *context, void *buffer, size_t bytes, uint64_t offset)
{
    struct custom *custom = context;
    if (atomic_fetch_add(&custom->reads, 1) + 1 == custom->fail_read) {
        memset(buffer, 0xEE, bytes);
        return ENOTCONN;
    }
    if (offset > custom->file->bytes || bytes > custom->file->bytes - offset) {
        return EINVAL;
    }
    memcpy(buffer, custom->file->data + offset, bytes);
    return 0;
}

static void custom_close(void *context)
{
    struct custom *custom = context;
    atomic_fetch_add(&custom->closes, 1);
}

static struct kvc_source custom_source(struct custom *custom)
{
    struct kvc_source source = KVC_SOURCE_INIT;
    source.context = custom;
    source.file_bytes = custom->file->bytes;
    source.read_at = custom_read;
    source.close = custom_close;
    return source;
}

static struct kvc_reader *open_way(enum way way, const struct memory_file *file,
                                   struct custom *custom)
{
    struct kvc_reader *reader = NULL;
    struct kvc_source source = custom_source(custom);
    int fd = -1;
    switch (way) {
    case WAY_PATH:
        CHECK_STATUS(kvc_reader_open_path(target, NULL, &reader, NULL), KVC_OK);
        break;
    case WAY_FD:
        fd = open(target, O_RDONLY);
        CHECK(lseek(fd, 5, SEEK_SET) == 5);
        CHECK_STATUS(kvc_reader_open_fd(fd, NULL, &reader, NULL), KVC_OK);
        CHECK(lseek(fd, 0, SEEK_CUR) == 5);
        (void)close(fd);
        break;
    case WAY_MEMORY:
        CHECK_STATUS(kvc_reader_open_memory(file->data, file->bytes, NULL, &reader, NULL), KVC_OK);
        break;
    default:
        CHECK_STATUS(kvc_reader_open_source(&source, NULL, &reader, NULL), KVC_OK);
        break;
    }
    if (reader == NULL) {
        bail_out("a good file was refused");
    }
    return reader;
}

/* The borders where a range could go wrong, within the tensor. */
static size_t list_borders(uint64_t bytes, uint64_t ret_borders[32])
{
    static const uint64_t offsets[] = {0,      1,      64,     65535,  65536, 65537,
                                       131071, 131072, 131073, 262143, 262144};
    size_t count = 0;
    for (size_t i = 0; i < sizeof(offsets) / sizeof(offsets[0]); i++) {
        if (offsets[i] < bytes) {
            ret_borders[count++] = offsets[i];
        }
    }
    ret_borders[count++] = bytes - 1;
    ret_borders[count++] = bytes;
    return count;
}

static void read_ranges(const struct kvc_reader *reader, uint32_t index, const uint8_t *truth,
                        uint64_t tensor_bytes)
{
    static const uint32_t threads[] = {1, 2, 7};
    uint64_t borders[32];
    size_t count = list_borders(tensor_bytes, borders);
    uint8_t *buffer = take_memory((size_t)tensor_bytes + 1);
    struct kvc_work work = KVC_WORK_INIT;
    unsigned turn = 0;
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < count; k++) {
            if (borders[k] < borders[i]) {
                continue;
            }
            uint64_t bytes = borders[k] - borders[i];
            work.threads = threads[turn++ % 3];
            memset(buffer, 0xAA, (size_t)bytes + 1);
            CHECK_STATUS(kvc_reader_read(reader, index, borders[i], bytes, &work, buffer, NULL),
                         KVC_OK);
            CHECK(memcmp(buffer, truth + borders[i], (size_t)bytes) == 0);
            CHECK(buffer[bytes] == 0xAA);
        }
    }
    free(buffer);
}

/* `way` is not a map where a custom source has none. */
static void map_all(const struct kvc_reader *reader, const struct kvc_info *info,
                    const uint8_t *payload, enum kvc_status wanted)
{
    uint64_t tensor_bytes = info->payload_bytes / info->tensor_count;
    for (uint32_t i = 0; i < info->tensor_count; i++) {
        struct kvc_view *view = NULL;
        uint64_t bytes = 0;
        if (!CHECK_STATUS(kvc_reader_map(reader, i, NULL, &view, NULL), wanted) ||
            wanted != KVC_OK) {
            CHECK(view == NULL);
            continue;
        }
        const uint8_t *data = kvc_view_data(view, &bytes);
        CHECK_NUMBER(bytes, tensor_bytes);
        CHECK(memcmp(data, payload + i * tensor_bytes, (size_t)tensor_bytes) == 0);
        kvc_view_free(view);
    }
    struct kvc_view *view = NULL;
    uint64_t bytes = 0;
    CHECK_STATUS(kvc_reader_map_payload(reader, NULL, &view, NULL), wanted);
    if (view != NULL) {
        const uint8_t *data = kvc_view_data(view, &bytes);
        CHECK_NUMBER(bytes, info->payload_span);
        uint64_t stride = (info->payload_span - tensor_bytes) / (info->tensor_count - 1);
        for (uint32_t i = 0; i < info->tensor_count; i++) {
            CHECK(memcmp(data + i * stride, payload + i * tensor_bytes, (size_t)tensor_bytes) == 0);
        }
    }
    kvc_view_free(view);
}

static void read_everything(const struct shape *shape, uint32_t align, enum way way)
{
    struct kvc_writer_options options = KVC_WRITER_OPTIONS_INIT;
    struct kvc_info info = KVC_INFO_INIT;
    uint64_t tensor_bytes = shape_tensor_bytes(shape);
    uint64_t payload_bytes = shape_payload_bytes(shape);
    uint8_t *payload = make_payload(payload_bytes, 3);
    uint8_t *back = take_memory((size_t)payload_bytes + 1);
    options.align_bytes = align;
    struct memory_file file = pack_shape(shape, 3, &options);
    struct custom custom = {.file = &file};
    put_file(target, file.data, file.bytes);
    struct kvc_reader *reader = open_way(way, &file, &custom);
    CHECK_STATUS(kvc_reader_info(reader, &info, NULL), KVC_OK);
    CHECK_NUMBER(info.payload_bytes, payload_bytes);
    for (uint32_t i = 0; i < info.tensor_count; i += info.tensor_count - 1) {
        read_ranges(reader, i, payload + i * tensor_bytes, tensor_bytes);
    }
    back[payload_bytes] = 0xAA;
    CHECK_STATUS(kvc_reader_read_payload(reader, NULL, back, payload_bytes, NULL), KVC_OK);
    CHECK(memcmp(back, payload, (size_t)payload_bytes) == 0 && back[payload_bytes] == 0xAA);
    map_all(reader, &info, payload, way == WAY_SOURCE ? KVC_E_NOT_MAPPABLE : KVC_OK);
    CHECK_STATUS(kvc_reader_verify(reader, NULL, NULL, NULL, NULL), KVC_OK);
    kvc_reader_free(reader);
    CHECK(atomic_load(&custom.closes) == (way == WAY_SOURCE));
    free(file.data);
    free(back);
    free(payload);
}

static void ranges_are_true(void)
{
    static const uint32_t aligns[] = {1, 64, 4096};
    for (size_t s = 0; s < SHAPES; s++) {
        for (int way = 0; way < WAYS; way++) {
            read_everything(&shapes[s], aligns[(s + (size_t)way) % 3], (enum way)way);
        }
    }
}

static void ranges_outside(void)
{
    struct memory_file file = pack_shape(&shapes[3], 1, NULL);
    uint64_t bytes = shape_tensor_bytes(&shapes[3]);
    struct kvc_reader *reader = NULL;
    uint8_t buffer[16];
    const uint64_t starts[] = {bytes + 1, bytes, bytes - 3, 1, UINT64_MAX, UINT64_MAX - 1, 0};
    const uint64_t counts[] = {0, 1, 4, UINT64_MAX, 2, 3, bytes + 1};
    CHECK_STATUS(kvc_reader_open_memory(file.data, file.bytes, NULL, &reader, NULL), KVC_OK);
    for (size_t i = 0; i < 7; i++) {
        struct kvc_error error = KVC_ERROR_INIT;
        CHECK_STATUS(kvc_reader_read(reader, 0, starts[i], counts[i], NULL, buffer, &error),
                     KVC_E_RANGE);
        CHECK(error.message[0] != '\0');
    }
    CHECK_STATUS(kvc_reader_read(reader, 2, 0, 1, NULL, buffer, NULL), KVC_E_RANGE);
    CHECK_STATUS(kvc_reader_read(reader, UINT32_MAX, 0, 1, NULL, buffer, NULL), KVC_E_RANGE);
    CHECK_STATUS(kvc_reader_read_payload(reader, NULL, buffer, sizeof(buffer), NULL), KVC_E_RANGE);
    kvc_reader_free(reader);
    free(file.data);
}

/* What a caller writes into a view is the caller's alone, and views live on without the reader. */
static void views_are_private(void)
{
    const struct shape *shape = &shapes[5];
    struct memory_file file = pack_shape(shape, 4, NULL);
    uint64_t bytes = shape_tensor_bytes(shape);
    uint8_t *payload = make_payload(shape_payload_bytes(shape), 4);
    uint8_t *back = take_memory((size_t)bytes);
    struct kvc_reader *reader = NULL;
    struct kvc_view *view = NULL;
    struct kvc_view *again = NULL;
    put_file(target, file.data, file.bytes);
    CHECK_STATUS(kvc_reader_open_path(target, NULL, &reader, NULL), KVC_OK);
    CHECK_STATUS(kvc_reader_map(reader, 1, NULL, &view, NULL), KVC_OK);
    uint8_t *data = kvc_view_data(view, NULL);
    memset(data, 0x77, (size_t)bytes);
    CHECK_STATUS(kvc_reader_map(reader, 1, NULL, &again, NULL), KVC_OK);
    CHECK(kvc_view_data(again, NULL) == data && data[0] == 0x77 && data[bytes - 1] == 0x77);
    kvc_view_free(again);
    CHECK_STATUS(kvc_reader_map(reader, 2, NULL, &again, NULL), KVC_OK);
    CHECK(memcmp(kvc_view_data(again, NULL), payload + 2 * bytes, (size_t)bytes) == 0);
    CHECK_STATUS(kvc_reader_read(reader, 1, 0, bytes, NULL, back, NULL), KVC_OK);
    CHECK(memcmp(back, payload + bytes, (size_t)bytes) == 0);
    CHECK_STATUS(kvc_reader_verify(reader, NULL, NULL, NULL, NULL), KVC_OK);
    CHECK(same_file_bytes(target, file.data, file.bytes));
    kvc_reader_free(reader);
    CHECK(data[0] == 0x77 && data[bytes - 1] == 0x77);
    CHECK(memcmp(kvc_view_data(again, NULL), payload + 2 * bytes, (size_t)bytes) == 0);
    kvc_view_free(view);
    CHECK(memcmp(kvc_view_data(again, NULL), payload + 2 * bytes, (size_t)bytes) == 0);
    kvc_view_free(again);
    kvc_view_free(NULL);
    CHECK(kvc_view_data(NULL, NULL) == NULL);
    free(file.data);
    free(payload);
    free(back);
}

static void replaced_while_mapped(void)
{
    const struct shape *shape = &shapes[5];
    struct memory_file old_file = pack_shape(shape, 5, NULL);
    struct memory_file new_file = pack_shape(shape, 6, NULL);
    uint64_t bytes = shape_tensor_bytes(shape);
    uint8_t *payload = make_payload(shape_payload_bytes(shape), 5);
    char *metadata = make_metadata(shape, 1, "test");
    uint8_t *newer = make_payload(shape_payload_bytes(shape), 6);
    struct kvc_reader *reader = NULL;
    struct kvc_view *views[2] = {NULL, NULL};
    struct kvc_writer *writer = NULL;
    put_file(target, old_file.data, old_file.bytes);
    CHECK_STATUS(kvc_reader_open_path(target, NULL, &reader, NULL), KVC_OK);
    CHECK_STATUS(kvc_reader_map(reader, 0, NULL, &views[0], NULL), KVC_OK);
    CHECK_STATUS(kvc_writer_create_path(target, metadata, strlen(metadata), NULL, &writer, NULL),
                 KVC_OK);
    CHECK_STATUS(kvc_writer_write(writer, newer, shape_payload_bytes(shape), NULL), KVC_OK);
    CHECK_STATUS(kvc_writer_finish(writer, NULL, NULL), KVC_OK);
    kvc_writer_free(writer);
    CHECK(same_file_bytes(target, new_file.data, new_file.bytes));
    CHECK_STATUS(kvc_reader_map(reader, 3, NULL, &views[1], NULL), KVC_OK);
    CHECK(memcmp(kvc_view_data(views[0], NULL), payload, (size_t)bytes) == 0);
    CHECK(memcmp(kvc_view_data(views[1], NULL), payload + 3 * bytes, (size_t)bytes) == 0);
    CHECK_STATUS(kvc_reader_verify(reader, NULL, NULL, NULL, NULL), KVC_OK);
    kvc_view_free(views[0]);
    kvc_view_free(views[1]);
    kvc_reader_free(reader);
    free(old_file.data);
    free(new_file.data);
    free(payload);
    free(newer);
    free(metadata);
}

/* What many threads share: one reader and the truth. */
struct crowd {
    const struct kvc_reader *reader;
    const uint8_t *payload;
    uint64_t tensor_bytes;
    uint32_t tensors;
    atomic_int wrong;
    atomic_uint_fast64_t seeds;
};

static int one_request(struct crowd *crowd, uint64_t random, uint8_t *buffer)
{
    uint32_t index = (uint32_t)(random % crowd->tensors);
    const uint8_t *truth = crowd->payload + index * crowd->tensor_bytes;
    uint64_t start = (random >> 8) % crowd->tensor_bytes;
    uint64_t bytes = (random >> 32) % (crowd->tensor_bytes - start) + 1;
    struct kvc_work work = KVC_WORK_INIT;
    struct kvc_view *view = NULL;
    work.threads = 1 + (uint32_t)(random % 3);
    switch ((random >> 4) % 4) {
    case 0:
        return kvc_reader_map(crowd->reader, index, &work, &view, NULL) == KVC_OK &&
               memcmp(kvc_view_data(view, NULL), truth, (size_t)crowd->tensor_bytes) == 0 &&
               (kvc_view_free(view), 1);
    case 1:
        return kvc_reader_verify(crowd->reader, &work, NULL, NULL, NULL) == KVC_OK;
    default:
        return kvc_reader_read(crowd->reader, index, start, bytes, &work, buffer, NULL) == KVC_OK &&
               memcmp(buffer, truth + start, (size_t)bytes) == 0;
    }
}

static void *join_crowd(void *context)
{
    struct crowd *crowd = context;
    uint64_t state = atomic_fetch_add(&crowd->seeds, 1) * UINT64_C(0x9E3779B97F4A7C15);
    uint8_t *buffer = take_memory((size_t)crowd->tensor_bytes);
    for (int i = 0; i < 25; i++) {
        if (!one_request(crowd, next_random(&state), buffer)) {
            atomic_fetch_add(&crowd->wrong, 1);
        }
    }
    free(buffer);
    return NULL;
}

static void many_threads_share_a_reader(void)
{
    const struct shape *shape = &shapes[5];
    struct memory_file file = pack_shape(shape, 8, NULL);
    uint8_t *payload = make_payload(shape_payload_bytes(shape), 8);
    put_file(target, file.data, file.bytes);
    for (int round = 0; round < 10; round++) {
        pthread_t threads[8];
        struct kvc_reader *reader = NULL;
        struct crowd crowd = {
            .payload = payload, .tensor_bytes = shape_tensor_bytes(shape), .tensors = 4};
        atomic_init(&crowd.seeds, 1 + 8 * (uint64_t)round);
        CHECK_STATUS(kvc_reader_open_path(target, NULL, &reader, NULL), KVC_OK);
        crowd.reader = reader;
        for (int i = 0; i < 8; i++) {
            if (pthread_create(&threads[i], NULL, join_crowd, &crowd) != 0) {
                bail_out("starting a thread");
            }
        }
        for (int i = 0; i < 8; i++) {
            (void)pthread_join(threads[i], NULL);
        }
        CHECK(atomic_load(&crowd.wrong) == 0);
        kvc_reader_free(reader);
    }
    free(file.data);
    free(payload);
}

static void limits(void)
{
    struct memory_file file = pack_shape(&shapes[1], 1, NULL);
    struct kvc_info info = KVC_INFO_INIT;
    struct kvc_reader *reader = NULL;
    CHECK_STATUS(kvc_reader_open_memory(file.data, file.bytes, NULL, &reader, NULL), KVC_OK);
    CHECK_STATUS(kvc_reader_info(reader, &info, NULL), KVC_OK);
    kvc_reader_free(reader);
    static const char *const fields[] = {"file_bytes", "metadata_bytes", "tensor_count"};
    for (unsigned i = 0; i < 3; i++) {
        for (unsigned short_by = 0; short_by < 2; short_by++) {
            struct kvc_reader_options options = KVC_READER_OPTIONS_INIT;
            struct kvc_error error = KVC_ERROR_INIT;
            options.max_file_bytes = i == 0 ? info.file_bytes - short_by : 0;
            options.max_metadata_bytes = i == 1 ? info.metadata_bytes - short_by : 0;
            options.max_tensor_count = i == 2 ? info.tensor_count - short_by : 0;
            reader = NULL;
            CHECK_STATUS(kvc_reader_open_memory(file.data, file.bytes, &options, &reader, &error),
                         short_by ? KVC_E_LIMIT : KVC_OK);
            CHECK((reader == NULL) == (short_by == 1));
            CHECK(strcmp(error.field, short_by ? fields[i] : "") == 0);
            kvc_reader_free(reader);
        }
    }
    free(file.data);
}

static void expectations(void)
{
    struct memory_file file = pack_shape(&shapes[1], 1, NULL);
    struct kvc_info info = KVC_INFO_INIT;
    struct kvc_reader_options options = KVC_READER_OPTIONS_INIT;
    struct kvc_reader *reader = NULL;
    struct kvc_error error = KVC_ERROR_INIT;
    CHECK_STATUS(kvc_reader_open_memory(file.data, file.bytes, NULL, &reader, NULL), KVC_OK);
    CHECK_STATUS(kvc_reader_info(reader, &info, NULL), KVC_OK);
    kvc_reader_free(reader);
    options.expected_root = info.root;
    options.expected_identity = " {\"rope_theta\": 1e4, \"layers\": 3.0}";
    options.expected_identity_bytes = strlen(options.expected_identity);
    CHECK_STATUS(kvc_reader_open_memory(file.data, file.bytes, &options, &reader, NULL), KVC_OK);
    kvc_reader_free(reader);
    reader = NULL;
    options.expected_identity = "{\"layers\":4,\"user\":{}}";
    options.expected_identity_bytes = strlen(options.expected_identity);
    CHECK_STATUS(kvc_reader_open_memory(file.data, file.bytes, &options, &reader, &error),
                 KVC_E_IDENTITY);
    CHECK_NUMBER(error.difference_count, 2);
    CHECK(strcmp(error.field, "layers") == 0 && reader == NULL);
    info.root[31] ^= 1;
    CHECK_STATUS(kvc_reader_open_memory(file.data, file.bytes, &options, &reader, &error),
                 KVC_E_EXPECTED_ROOT);
    CHECK(reader == NULL);
    free(file.data);
}

static void facts_and_names(void)
{
    struct memory_file file = pack_shape(&shapes[5], 1, NULL);
    struct kvc_reader *reader = NULL;
    struct kvc_tensor tensor = KVC_TENSOR_INIT;
    const char *json = NULL;
    uint64_t bytes = 0;
    uint32_t index = 99;
    CHECK_STATUS(kvc_reader_open_memory(file.data, file.bytes, NULL, &reader, NULL), KVC_OK);
    CHECK_STATUS(kvc_reader_find(reader, "layer.1.key", 11, &index, NULL), KVC_OK);
    CHECK_NUMBER(index, 2);
    CHECK_STATUS(kvc_reader_tensor(reader, index, &tensor, NULL), KVC_OK);
    CHECK(strcmp(tensor.name, "layer.1.key") == 0 && strcmp(tensor.kind, "key") == 0);
    CHECK(tensor.layer == 1 && tensor.rank == 4 && tensor.shape[2] == 30000);
    CHECK(tensor.tensor_bytes == 300000 && tensor.offset == 600000 && tensor.chunk_count == 5);
    static const char *const missing[] = {"",  "layer.2.key",  "layer.01.key", "layer.1.keys",
                                          "x", "layer.-1.key", "layer.1.",     "layer.1.key "};
    for (size_t i = 0; i < sizeof(missing) / sizeof(missing[0]); i++) {
        CHECK_STATUS(kvc_reader_find(reader, missing[i], strlen(missing[i]), &index, NULL),
                     KVC_E_NOT_FOUND);
    }
    CHECK_NUMBER(index, 2);
    CHECK_STATUS(kvc_reader_field(reader, "layers", &json, &bytes, NULL), KVC_OK);
    CHECK(bytes == 1 && json[0] == '2');
    CHECK_STATUS(kvc_reader_field(reader, "layer", &json, &bytes, NULL), KVC_E_NOT_FOUND);
    CHECK_STATUS(kvc_reader_field(reader, "", &json, &bytes, NULL), KVC_E_NOT_FOUND);
    const char *metadata = kvc_reader_metadata(reader, &bytes);
    CHECK(metadata[0] == '{' && metadata[bytes - 1] == '}');
    kvc_reader_free(reader);
    free(file.data);
}

static void struct_sizes(void)
{
    struct memory_file file = pack_shape(&shapes[1], 1, NULL);
    struct kvc_reader_options options = KVC_READER_OPTIONS_INIT;
    struct kvc_info info = KVC_INFO_INIT;
    struct kvc_tensor tensor = KVC_TENSOR_INIT;
    struct kvc_work work = KVC_WORK_INIT;
    struct kvc_reader *reader = NULL;
    struct kvc_view *view = NULL;
    uint8_t buffer[8] = {0};
    struct kvc_error error = KVC_ERROR_INIT;
    options.size++;
    CHECK_STATUS(kvc_reader_open_memory(file.data, file.bytes, &options, &reader, &error),
                 KVC_E_OPTION);
    CHECK_STATUS(kvc_reader_open_path(target, &options, &reader, NULL), KVC_E_OPTION);
    CHECK_STATUS(kvc_reader_open_fd(0, &options, &reader, NULL), KVC_E_OPTION);
    CHECK(reader == NULL && strstr(error.message, "KVC_READER_OPTIONS_INIT") != NULL);
    CHECK_STATUS(kvc_reader_open_memory(file.data, file.bytes, NULL, &reader, NULL), KVC_OK);
    info.size = 0;
    tensor.size--;
    work.size += 8;
    CHECK_STATUS(kvc_reader_info(reader, &info, NULL), KVC_E_OPTION);
    CHECK_STATUS(kvc_reader_tensor(reader, 0, &tensor, NULL), KVC_E_OPTION);
    CHECK_STATUS(kvc_reader_read(reader, 0, 0, 8, &work, buffer, NULL), KVC_E_OPTION);
    CHECK_STATUS(kvc_reader_map(reader, 0, &work, &view, NULL), KVC_E_OPTION);
    CHECK_STATUS(kvc_reader_map_payload(reader, &work, &view, NULL), KVC_E_OPTION);
    CHECK_STATUS(kvc_reader_verify(reader, &work, NULL, NULL, NULL), KVC_E_OPTION);
    CHECK(view == NULL);
    /* An error struct of another size is left alone. */
    memset(&error, 0x55, sizeof(error));
    CHECK_STATUS(kvc_reader_tensor(reader, 9, NULL, &error), KVC_E_RANGE);
    CHECK(error.message[0] == 0x55 && error.message[639] == 0x55);
    kvc_reader_free(reader);
    free(file.data);
}

static void null_arguments(void)
{
    struct memory_file file = pack_shape(&shapes[1], 1, NULL);
    struct kvc_source source = KVC_SOURCE_INIT;
    struct kvc_reader *reader = NULL;
    struct kvc_view *view = NULL;
    uint8_t buffer[8];
    uint32_t index = 0;
    const char *json = NULL;
    struct kvc_info info = KVC_INFO_INIT;
    CHECK_STATUS(kvc_reader_open_path(NULL, NULL, &reader, NULL), KVC_E_USAGE);
    CHECK_STATUS(kvc_reader_open_path(target, NULL, NULL, NULL), KVC_E_USAGE);
    CHECK_STATUS(kvc_reader_open_fd(0, NULL, NULL, NULL), KVC_E_USAGE);
    CHECK_STATUS(kvc_reader_open_memory(NULL, 0, NULL, &reader, NULL), KVC_E_USAGE);
    CHECK_STATUS(kvc_reader_open_memory(file.data, file.bytes, NULL, NULL, NULL), KVC_E_USAGE);
    CHECK_STATUS(kvc_reader_open_source(NULL, NULL, &reader, NULL), KVC_E_USAGE);
    CHECK_STATUS(kvc_reader_open_source(&source, NULL, &reader, NULL), KVC_E_USAGE);
    source.size = 1;
    CHECK_STATUS(kvc_reader_open_source(&source, NULL, &reader, NULL), KVC_E_OPTION);
    CHECK(reader == NULL);
    CHECK_STATUS(kvc_reader_open_memory(file.data, file.bytes, NULL, &reader, NULL), KVC_OK);
    CHECK_STATUS(kvc_reader_info(NULL, &info, NULL), KVC_E_USAGE);
    CHECK_STATUS(kvc_reader_info(reader, NULL, NULL), KVC_E_USAGE);
    CHECK_STATUS(kvc_reader_field(reader, NULL, &json, NULL, NULL), KVC_E_USAGE);
    CHECK_STATUS(kvc_reader_tensor(NULL, 0, NULL, NULL), KVC_E_USAGE);
    CHECK_STATUS(kvc_reader_find(reader, NULL, 0, &index, NULL), KVC_E_USAGE);
    CHECK_STATUS(kvc_reader_read(reader, 0, 0, 1, NULL, NULL, NULL), KVC_E_USAGE);
    CHECK_STATUS(kvc_reader_read(reader, 0, 0, 0, NULL, NULL, NULL), KVC_OK);
    CHECK_STATUS(kvc_reader_read(NULL, 0, 0, 1, NULL, buffer, NULL), KVC_E_USAGE);
    CHECK_STATUS(kvc_reader_read_payload(reader, NULL, NULL, 1, NULL), KVC_E_USAGE);
    CHECK_STATUS(kvc_reader_map(NULL, 0, NULL, &view, NULL), KVC_E_USAGE);
    CHECK_STATUS(kvc_reader_map(reader, 0, NULL, NULL, NULL), KVC_E_USAGE);
    CHECK_STATUS(kvc_reader_map_payload(reader, NULL, NULL, NULL), KVC_E_USAGE);
    CHECK_STATUS(kvc_reader_verify(NULL, NULL, NULL, NULL, NULL), KVC_E_USAGE);
    CHECK_STATUS(kvc_reader_identity(NULL, "{}", 2, NULL, NULL, NULL), KVC_E_USAGE);
    CHECK_STATUS(kvc_reader_identity(reader, NULL, 0, NULL, NULL, NULL), KVC_E_USAGE);
    CHECK(kvc_reader_metadata(NULL, NULL) == NULL && view == NULL);
    kvc_reader_free(reader);
    kvc_reader_free(NULL);
    free(file.data);
}

/* Opens, reads and verifies through a source of which one read fails. */
static enum kvc_status use_source(struct custom *custom, struct kvc_error *error)
{
    struct kvc_source source = custom_source(custom);
    struct kvc_reader *reader = NULL;
    uint8_t buffer[1000];
    enum kvc_status status = kvc_reader_open_source(&source, NULL, &reader, error);
    if (status == KVC_OK) {
        memset(buffer, 0xAA, sizeof(buffer));
        status = kvc_reader_read(reader, 1, 65000, sizeof(buffer), NULL, buffer, error);
        for (size_t i = 0; status != KVC_OK && i < sizeof(buffer); i++) {
            CHECK(buffer[i] == 0);
        }
    }
    if (status == KVC_OK) {
        status = kvc_reader_verify(reader, NULL, NULL, NULL, error);
    }
    kvc_reader_free(reader);
    CHECK_NUMBER((uint64_t)atomic_load(&custom->closes), 1);
    return status;
}

static void failing_sources(void)
{
    struct memory_file file = pack_shape(&shapes[5], 9, NULL);
    for (int at = 1;; at++) {
        struct custom custom = {.file = &file, .fail_read = at};
        struct kvc_error error = KVC_ERROR_INIT;
        enum kvc_status status = use_source(&custom, &error);
        if (status == KVC_OK) {
            /* Two threads may both read a row, so the number of reads is not always the same. */
            CHECK(at > 12 && atomic_load(&custom.reads) < at);
            break;
        }
        CHECK_STATUS(status, KVC_E_IO);
        CHECK_NUMBER((uint64_t)error.sys_errno, ENOTCONN);
        CHECK(strstr(error.message, "reading the source") != NULL);
    }
    /* A source that is refused before it is read is closed too. */
    struct custom custom = {.file = &file};
    struct kvc_source source = custom_source(&custom);
    struct kvc_reader_options options = KVC_READER_OPTIONS_INIT;
    struct kvc_reader *reader = NULL;
    options.size = 0;
    CHECK_STATUS(kvc_reader_open_source(&source, &options, &reader, NULL), KVC_E_OPTION);
    CHECK_NUMBER((uint64_t)atomic_load(&custom.closes), 1);
    free(file.data);
}

static void opening_other_things(void)
{
    struct kvc_reader *reader = NULL;
    struct kvc_error error = KVC_ERROR_INIT;
    char pipe_path[CASE_PATH_BYTES];
    join_path(pipe_path, folder, "pipe");
    CHECK(mkfifo(pipe_path, 0600) == 0);
    CHECK_STATUS(kvc_reader_open_path(pipe_path, NULL, &reader, &error), KVC_E_NOT_REGULAR);
    CHECK(strstr(error.message, "a pipe") != NULL);
    CHECK_STATUS(kvc_reader_open_path(folder, NULL, &reader, &error), KVC_E_NOT_REGULAR);
    CHECK_NUMBER((uint64_t)error.sys_errno, EISDIR);
    CHECK_STATUS(kvc_reader_open_path("/dev/null", NULL, &reader, NULL), KVC_E_NOT_REGULAR);
    CHECK_STATUS(kvc_reader_open_path("/nowhere/file", NULL, &reader, &error), KVC_E_IO);
    CHECK_NUMBER((uint64_t)error.sys_errno, ENOENT);
    CHECK_STATUS(kvc_reader_open_path("", NULL, &reader, &error), KVC_E_IO);
    CHECK_STATUS(kvc_reader_open_fd(-1, NULL, &reader, &error), KVC_E_IO);
    CHECK_NUMBER((uint64_t)error.sys_errno, EBADF);
    put_file(target, "", 0);
    CHECK_STATUS(kvc_reader_open_path(target, NULL, &reader, NULL), KVC_E_EMPTY);
    int fd = open(target, O_WRONLY);
    put_file(target, "0123456789", 10);
    CHECK_STATUS(kvc_reader_open_fd(fd, NULL, &reader, &error), KVC_E_IO);
    CHECK_NUMBER((uint64_t)error.sys_errno, EBADF);
    (void)close(fd);
    CHECK(reader == NULL);
}

/* What opening takes, counted in live bytes. */
struct meter {
    uint64_t live;
    uint64_t most;
};

static void *meter_allocate(void *context, size_t bytes)
{
    struct meter *meter = context;
    max_align_t *block = malloc(sizeof(*block) + bytes);
    if (block != NULL) {
        memcpy(block, &bytes, sizeof(bytes));
        meter->live += bytes;
        meter->most = meter->live > meter->most ? meter->live : meter->most;
    }
    return block != NULL ? block + 1 : NULL;
}

static void meter_release(void *context, void *block)
{
    struct meter *meter = context;
    max_align_t *start = (max_align_t *)block - 1;
    size_t bytes = 0;
    memcpy(&bytes, start, sizeof(bytes));
    meter->live -= bytes;
    free(start);
}

static void memory_of_opening(void)
{
    static const struct shape wide[] = {{1, 1, 1, 1}, {2000, 1, 1, 1}, {32768, 1, 1, 1}};
    for (size_t i = 0; i < 3; i++) {
        struct meter meter = {0, 0};
        struct kvc_allocator allocator = {meter_allocate, meter_release, &meter};
        struct kvc_reader_options options = KVC_READER_OPTIONS_INIT;
        struct kvc_info info = KVC_INFO_INIT;
        struct kvc_reader *reader = NULL;
        struct memory_file file = pack_shape(&wide[i], 1, NULL);
        options.allocator = &allocator;
        CHECK_STATUS(kvc_reader_open_memory(file.data, file.bytes, &options, &reader, NULL),
                     KVC_OK);
        CHECK_STATUS(kvc_reader_info(reader, &info, NULL), KVC_OK);
        CHECK(meter.most <=
              4 * info.metadata_bytes + 64 * (uint64_t)info.tensor_count + (UINT64_C(64) << 10));
        kvc_reader_free(reader);
        CHECK_NUMBER(meter.live, 0);
        free(file.data);
    }
}

static void fresh_case(const char *name, void (*body)(void))
{
    make_folder(folder);
    join_path(target, folder, "file.kvc");
    run_case(name, body);
    (void)count_folder(folder, 1);
}

int main(void)
{
    fresh_case("ranges, payloads and maps are what was written", ranges_are_true);
    fresh_case("ranges outside a tensor are refused", ranges_outside);
    fresh_case("views are private and outlive their reader", views_are_private);
    fresh_case("replacing a mapped file is harmless", replaced_while_mapped);
    fresh_case("many threads share one reader", many_threads_share_a_reader);
    fresh_case("limits of the options hold exactly", limits);
    fresh_case("an expected root and identity are required", expectations);
    fresh_case("names, members and facts are found", facts_and_names);
    fresh_case("structs of another size are refused", struct_sizes);
    fresh_case("NULL is refused", null_arguments);
    fresh_case("errors of a custom source pass through", failing_sources);
    fresh_case("what is no file is refused without waiting", opening_other_things);
    fresh_case("the memory of opening is bounded as promised", memory_of_opening);
    return end_cases();
}
