/* test_allocation.c: every allocation of every public function fails once, and from then on.
 * SPDX-License-Identifier: Apache-2.0
 *
 * The status must be no_memory, outputs stay untouched, nothing leaks, a reader works on when
 * there is memory again, and a writer leaves nothing. */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "cases.h"

/* Two tensors of five chunks: with rows, more than one tile, and gaps. */
static const struct shape shape = {1, 1, 30000, 10};

static char folder[CASE_PATH_BYTES];
static char target[CASE_PATH_BYTES];
static struct memory_file file;
static uint8_t *payload;
static char *metadata;

static struct {
    atomic_int calls;
    atomic_int live;
    int fail_at; /* the number of the call that fails, 0: none */
    bool always; /* those after it fail too */
} meter;

static void *meter_allocate(void *context, size_t bytes)
{
    int call = atomic_fetch_add(&meter.calls, 1) + 1;
    (void)context;
    if (meter.fail_at > 0 && (call == meter.fail_at || (meter.always && call > meter.fail_at))) {
        return NULL;
    }
    void *block = malloc(bytes);
    if (block != NULL) {
        /* What was there before must not matter. */
        memset(block, 0xA5, bytes);
        atomic_fetch_add(&meter.live, 1);
    }
    return block;
}

static void meter_release(void *context, void *block)
{
    (void)context;
    CHECK(block != NULL);
    atomic_fetch_sub(&meter.live, 1);
    free(block);
}

static const struct kvc_allocator allocator = {meter_allocate, meter_release, NULL};

static void start_failing(int at, bool always)
{
    atomic_store(&meter.calls, 0);
    meter.fail_at = at;
    meter.always = always;
}

/* Tells whether the failing call was made since start_failing. */
static bool has_failed(void)
{
    bool failed = meter.fail_at > 0 && atomic_load(&meter.calls) >= meter.fail_at;
    meter.fail_at = 0;
    return failed;
}

static void check_no_memory(enum kvc_status status, const struct kvc_error *error)
{
    CHECK_STATUS(status, KVC_E_NO_MEMORY);
    CHECK_STATUS(error->status, KVC_E_NO_MEMORY);
    CHECK(strstr(error->message, "no memory") != NULL);
}

/* A source over memory that counts how often it is closed. */
static int closes;

static int source_read(void *context, void *buffer, size_t bytes, uint64_t offset)
{
    const struct memory_file *from = context;
    memcpy(buffer, from->data + offset, bytes);
    return 0;
}

static void source_close(void *context)
{
    (void)context;
    closes++;
}

static enum kvc_status open_reader(int way, struct kvc_reader **ret_reader, struct kvc_error *error)
{
    static const uint8_t key[KVC_DIGEST_BYTES] = {9};
    static const char identity[] = " {\"layers\": 1.0, \"user\": {\"b\": [1, 2], \"a\": 5e-1}} ";
    struct kvc_reader_options options = KVC_READER_OPTIONS_INIT;
    struct kvc_source source = KVC_SOURCE_INIT;
    options.allocator = &allocator;
    options.key = key;
    options.expected_identity = identity;
    options.expected_identity_bytes = strlen(identity);
    source.context = &file;
    source.file_bytes = file.bytes;
    source.read_at = source_read;
    source.close = source_close;
    if (way == 0) {
        return kvc_reader_open_path(target, &options, ret_reader, error);
    }
    if (way == 1) {
        int fd = open(target, O_RDONLY);
        enum kvc_status status = kvc_reader_open_fd(fd, &options, ret_reader, error);
        (void)close(fd);
        return status;
    }
    return way == 2 ? kvc_reader_open_memory(file.data, file.bytes, &options, ret_reader, error)
                    : kvc_reader_open_source(&source, &options, ret_reader, error);
}

static void opening(void)
{
    for (int way = 0; way < 4; way++) {
        for (int always = 0; always < 2; always++) {
            for (int at = 1;; at++) {
                struct kvc_reader *reader = NULL;
                struct kvc_error error = KVC_ERROR_INIT;
                closes = 0;
                start_failing(at, always == 1);
                enum kvc_status status = open_reader(way, &reader, &error);
                if (!has_failed()) {
                    CHECK_STATUS(status, KVC_OK);
                    CHECK(at > 4);
                    kvc_reader_free(reader);
                    CHECK_NUMBER((uint64_t)atomic_load(&meter.live), 0);
                    break;
                }
                check_no_memory(status, &error);
                CHECK(reader == NULL);
                CHECK(closes == (way == 3));
                CHECK_NUMBER((uint64_t)atomic_load(&meter.live), 0);
            }
        }
    }
}

static int no_failure(void *context, const struct kvc_error *failure)
{
    (void)context;
    (void)failure;
    return 0;
}

/* What is done with a reader. Data buffers are zeroed on failure, other outputs untouched. */
enum deed { READ, READ_PART, READ_PAYLOAD, MAP, MAP_PAYLOAD, VERIFY, VERIFY_ALL, COMPARE, DEEDS };

static enum kvc_status act(const struct kvc_reader *reader, enum deed deed, uint32_t threads,
                           uint8_t *buffer, struct kvc_error *error)
{
    uint64_t bytes = shape_tensor_bytes(&shape);
    static const char expected[] = "{\"rope_theta\":1e4}";
    struct kvc_view *view = NULL;
    struct kvc_work work = KVC_WORK_INIT;
    enum kvc_status status = KVC_OK;
    work.threads = threads;
    switch (deed) {
    case READ:
        return kvc_reader_read(reader, 1, 0, bytes, &work, buffer, error);
    case READ_PART:
        return kvc_reader_read(reader, 0, 65530, 10, &work, buffer, error);
    case READ_PAYLOAD:
        return kvc_reader_read_payload(reader, &work, buffer, 2 * bytes, error);
    case MAP:
        status = kvc_reader_map(reader, 1, &work, &view, error);
        break;
    case MAP_PAYLOAD:
        status = kvc_reader_map_payload(reader, &work, &view, error);
        break;
    case VERIFY:
        return kvc_reader_verify(reader, &work, NULL, NULL, error);
    case VERIFY_ALL:
        return kvc_reader_verify(reader, &work, no_failure, NULL, error);
    default:
        return kvc_reader_identity(reader, expected, strlen(expected), NULL, NULL, error);
    }
    CHECK((view == NULL) == (status != KVC_OK));
    kvc_view_free(view);
    return status;
}

static bool is_zero(const uint8_t *data, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++) {
        if (data[i] != 0) {
            return false;
        }
    }
    return true;
}

/* Does the deed with the allocation `at` failing; false when it made fewer. */
static bool act_failing(enum deed deed, uint32_t threads, bool always, int at)
{
    uint64_t bytes = shape_tensor_bytes(&shape);
    const uint64_t lengths[DEEDS] = {bytes, 10, 2 * bytes};
    const uint64_t starts[DEEDS] = {bytes, 65530, 0};
    struct kvc_reader *reader = NULL;
    struct kvc_error error = KVC_ERROR_INIT;
    uint8_t *buffer = take_memory((size_t)(2 * bytes));
    memset(buffer, 0xAA, (size_t)(2 * bytes));
    CHECK_STATUS(open_reader(at % 2 == 0 ? 0 : 2, &reader, NULL), KVC_OK);
    start_failing(at, always);
    enum kvc_status status = act(reader, deed, threads, buffer, &error);
    bool failed = has_failed();
    if (failed) {
        check_no_memory(status, &error);
        CHECK(is_zero(buffer, lengths[deed]));
        CHECK(lengths[deed] == 2 * bytes || buffer[lengths[deed]] == 0xAA);
    }
    /* With memory again, the same reader does it. */
    CHECK_STATUS(failed ? act(reader, deed, threads, buffer, &error) : status, KVC_OK);
    CHECK(memcmp(buffer, payload + starts[deed], (size_t)lengths[deed]) == 0);
    kvc_reader_free(reader);
    CHECK_NUMBER((uint64_t)atomic_load(&meter.live), 0);
    free(buffer);
    return failed;
}

static void reading(void)
{
    for (int deed = 0; deed < DEEDS; deed++) {
        for (uint32_t threads = 1; threads < 4; threads += 2) {
            for (int always = 0; always < 2; always++) {
                int at = 1;
                while (act_failing((enum deed)deed, threads, always == 1, at)) {
                    at++;
                }
                CHECK(at > 1);
            }
        }
    }
}

/* Damage is reported from a list that grows. */
static void reporting(void)
{
    const struct shape wide = {20, 1, 1, 7};
    struct memory_file many = pack_shape(&wide, 1, NULL);
    for (int at = 1;; at++) {
        struct kvc_reader *reader = NULL;
        struct kvc_reader_options options = KVC_READER_OPTIONS_INIT;
        struct kvc_info info = KVC_INFO_INIT;
        struct kvc_error error = KVC_ERROR_INIT;
        options.allocator = &allocator;
        CHECK_STATUS(kvc_reader_open_memory(many.data, many.bytes, &options, &reader, NULL),
                     KVC_OK);
        CHECK_STATUS(kvc_reader_info(reader, &info, NULL), KVC_OK);
        for (uint32_t i = 0; i < info.payload_bytes; i++) {
            many.data[info.payload_offset + i] ^= 1;
        }
        start_failing(at, false);
        enum kvc_status status = kvc_reader_verify(reader, NULL, no_failure, NULL, &error);
        bool failed = has_failed();
        for (uint32_t i = 0; i < info.payload_bytes; i++) {
            many.data[info.payload_offset + i] ^= 1;
        }
        CHECK_STATUS(status, failed ? KVC_E_NO_MEMORY : KVC_E_CHUNK);
        CHECK_STATUS(kvc_reader_verify(reader, NULL, no_failure, NULL, &error), KVC_OK);
        kvc_reader_free(reader);
        CHECK_NUMBER((uint64_t)atomic_load(&meter.live), 0);
        if (!failed) {
            CHECK(at > 8);
            break;
        }
    }
    free(many.data);
}

/* Writes everything to a file or a sink, and says where it failed. */
static enum kvc_status write_all(bool to_sink, struct memory_file *out, uint32_t threads,
                                 bool known, struct kvc_error *error)
{
    struct kvc_writer_options options = KVC_WRITER_OPTIONS_INIT;
    struct kvc_writer *writer = NULL;
    struct kvc_sink sink = memory_sink(out);
    char *opaque = make_metadata(&shape, 0, "test");
    const char *text = known ? metadata : opaque;
    uint8_t root[KVC_DIGEST_BYTES] = {0};
    options.allocator = &allocator;
    options.durability = KVC_DURABILITY_NONE;
    options.work.threads = threads;
    enum kvc_status status =
        to_sink ? kvc_writer_create_sink(&sink, text, strlen(text), &options, &writer, error)
                : kvc_writer_create_path(target, text, strlen(text), &options, &writer, error);
    CHECK((writer == NULL) == (status != KVC_OK));
    if (status == KVC_OK) {
        status = write_in_pieces(writer, payload, shape_payload_bytes(&shape), 100000, error);
        if (status != KVC_OK) {
            CHECK_STATUS(kvc_writer_finish(writer, root, NULL), KVC_E_USAGE);
        }
    }
    if (status == KVC_OK) {
        status = kvc_writer_finish(writer, root, error);
    }
    CHECK(is_zero(root, sizeof(root)) == (status != KVC_OK));
    kvc_writer_free(writer);
    free(opaque);
    return status;
}

static void writing_to(bool to_sink, bool known, uint32_t threads, bool always)
{
    for (int at = 1;; at++) {
        struct memory_file out = {0};
        struct kvc_error error = KVC_ERROR_INIT;
        (void)unlink(target);
        start_failing(at, always);
        enum kvc_status status = write_all(to_sink, &out, threads, known, &error);
        bool failed = has_failed();
        CHECK_NUMBER((uint64_t)atomic_load(&meter.live), 0);
        CHECK(out.finishes + out.discards <= 1 && (failed || out.discards == 0));
        free(out.data);
        if (!failed) {
            CHECK_STATUS(status, KVC_OK);
            CHECK(at > 6);
            break;
        }
        check_no_memory(status, &error);
        CHECK(out.finishes == 0 && (out.writes == 0 || out.discards == 1));
        CHECK_NUMBER((uint64_t)count_folder(folder, 0), 0);
    }
}

static void writing(void)
{
    for (uint32_t threads = 1; threads < 4; threads += 2) {
        for (int always = 0; always < 2; always++) {
            writing_to(false, true, threads, always == 1);
            writing_to(true, true, threads, always == 1);
            writing_to(false, false, threads, always == 1);
        }
    }
}

int main(void)
{
    static const uint8_t key[KVC_DIGEST_BYTES] = {9};
    struct kvc_writer_options options = KVC_WRITER_OPTIONS_INIT;
    options.align_bytes = 4096;
    options.key = key;
    payload = make_payload(shape_payload_bytes(&shape), 2);
    metadata = make_metadata(&shape, 1, "test");
    /* The same metadata with private data behind them, for an identity of several levels. */
    struct text tagged = {NULL, 0, strlen(metadata) + 64};
    tagged.data = take_memory(tagged.capacity);
    ADD(&tagged, "%.*s,\"user\":{\"a\":0.5,\"b\":[1,2]}}", (int)strlen(metadata) - 1, metadata);
    file = pack_memory(tagged.data, payload, shape_payload_bytes(&shape), &options);
    make_folder(folder);
    join_path(target, folder, "file.kvc");
    put_file(target, file.data, file.bytes);
    run_case("opening", opening);
    run_case("reading, mapping, verifying and comparing", reading);
    run_case("reporting damage", reporting);
    run_case("writing", writing);
    (void)count_folder(folder, 1);
    free(tagged.data);
    free(file.data);
    free(payload);
    free(metadata);
    return end_cases();
}
