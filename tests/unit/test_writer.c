/* test_writer.c: the same content gives the same bytes however it is written, and a writer that
 * fails leaves nothing.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cases.h"

static char folder[CASE_PATH_BYTES];
static char target[CASE_PATH_BYTES];

/* Tensors under, at and over one, two and many grid chunks. */
static const struct shape shapes[] = {
    {1, 1, 1, 1},     {2, 1, 5, 20},    {1, 1, 1, 65535 / 3}, {1, 2, 1024, 32}, {1, 1, 32771, 2},
    {1, 4, 1024, 32}, {1, 1, 65537, 2}, {2, 1, 30000, 10},    {1, 3, 7000, 33}, {3, 16, 1024, 128},
};
#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

static const uint32_t aligns[] = {1, 64, 4096};

static uint64_t random_state = 7;

/* What is to be written and how. */
struct job {
    const char *metadata;
    const uint8_t *payload;
    uint64_t bytes;
    uint64_t piece; /* 0: all at once; UINT64_MAX: random */
    struct kvc_writer_options options;
};

static enum kvc_status feed(struct kvc_writer *writer, const struct job *job,
                            struct kvc_error *error)
{
    if (job->piece != UINT64_MAX) {
        return write_in_pieces(writer, job->payload, job->bytes, job->piece, error);
    }
    enum kvc_status status = KVC_OK;
    for (uint64_t at = 0; status == KVC_OK && at < job->bytes;) {
        uint64_t limit = UINT64_C(1) << (next_random(&random_state) % 20);
        uint64_t count = next_random(&random_state) % (limit + 1);
        count = count < job->bytes - at ? count : job->bytes - at;
        status = kvc_writer_write(writer, job->payload + at, count, error);
        at += count;
    }
    return status;
}

static enum kvc_status save(const struct job *job, uint8_t *ret_root, struct kvc_error *error)
{
    struct kvc_writer *writer = NULL;
    enum kvc_status status = kvc_writer_create_path(target, job->metadata, strlen(job->metadata),
                                                    &job->options, &writer, error);
    if (status == KVC_OK) {
        status = feed(writer, job, error);
    }
    if (status == KVC_OK) {
        status = kvc_writer_finish(writer, ret_root, error);
    }
    kvc_writer_free(writer);
    return status;
}

static enum kvc_status send(const struct job *job, struct memory_file *file,
                            struct kvc_error *error)
{
    struct kvc_writer *writer = NULL;
    struct kvc_sink sink = memory_sink(file);
    enum kvc_status status = kvc_writer_create_sink(&sink, job->metadata, strlen(job->metadata),
                                                    &job->options, &writer, error);
    if (status == KVC_OK) {
        status = feed(writer, job, error);
    }
    if (status == KVC_OK) {
        status = kvc_writer_finish(writer, NULL, error);
    }
    kvc_writer_free(writer);
    return status;
}

static struct job make_job(const struct shape *shape, int manifest, uint64_t bytes)
{
    struct job job = {.bytes = bytes, .options = KVC_WRITER_OPTIONS_INIT};
    job.metadata = make_metadata(shape, manifest, "test");
    job.payload = make_payload(bytes, bytes);
    job.options.durability = KVC_DURABILITY_NONE;
    return job;
}

static void free_job(struct job *job)
{
    free((void *)(uintptr_t)job->metadata);
    free((void *)(uintptr_t)job->payload);
}

static void compare_pieces(struct job *job, const struct memory_file *wanted)
{
    static const uint64_t pieces[] = {1, 63, 64, 65535, 65536, 65537, UINT64_MAX, 0};
    static const uint32_t threads[] = {1, 2, 7};
    for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
        struct memory_file file = {0};
        job->piece = pieces[i];
        job->options.work.threads = threads[i % 3];
        if (job->piece < 60 && job->bytes > 300000) {
            continue;
        }
        CHECK_STATUS(save(job, NULL, NULL), KVC_OK);
        CHECK(same_file_bytes(target, wanted->data, wanted->bytes));
        CHECK_STATUS(send(job, &file, NULL), KVC_OK);
        CHECK(file.bytes == wanted->bytes && memcmp(file.data, wanted->data, file.bytes) == 0);
        CHECK(file.finishes == 1 && file.discards == 0);
        free(file.data);
    }
}

static void pieces_do_not_matter(void)
{
    for (size_t s = 0; s < SHAPES; s++) {
        for (size_t a = 0; a < 3; a++) {
            struct job job = make_job(&shapes[s], 1, shape_payload_bytes(&shapes[s]));
            job.options.align_bytes = aligns[a];
            struct memory_file wanted =
                pack_memory(job.metadata, job.payload, job.bytes, &job.options);
            compare_pieces(&job, &wanted);
            free(wanted.data);
            free_job(&job);
        }
    }
    CHECK_NUMBER((uint64_t)count_folder(folder, 0), 1);
}

static void unknown_lengths(void)
{
    static const uint64_t lengths[] = {1,      2,      4095,   65535,  65536,   65537,
                                       131071, 131072, 131073, 262144, 1048579, 9000001};
    static const uint64_t pieces[] = {0, 65536, 65537, 131072, 1000, UINT64_MAX};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        struct job job = make_job(&shapes[0], 0, lengths[i]);
        struct memory_file wanted = pack_memory(job.metadata, job.payload, job.bytes, NULL);
        for (size_t p = 0; p < sizeof(pieces) / sizeof(pieces[0]); p++) {
            job.piece = pieces[p];
            job.options.payload_bytes = KVC_UNKNOWN_BYTES;
            CHECK_STATUS(save(&job, NULL, NULL), KVC_OK);
            CHECK(same_file_bytes(target, wanted.data, wanted.bytes));
            job.options.payload_bytes = lengths[i];
            CHECK_STATUS(save(&job, NULL, NULL), KVC_OK);
            CHECK(same_file_bytes(target, wanted.data, wanted.bytes));
        }
        free(wanted.data);
        free_job(&job);
    }
}

/* Gaps hold zeros, tensors begin at the multiple, and the root is the same. */
static void alignment(void)
{
    const struct shape shape = {3, 1, 7, 13};
    uint8_t roots[3][KVC_DIGEST_BYTES];
    for (size_t a = 0; a < 3; a++) {
        struct job job = make_job(&shape, 1, shape_payload_bytes(&shape));
        struct kvc_info info = KVC_INFO_INIT;
        struct kvc_reader *reader = NULL;
        uint8_t *back = take_memory((size_t)job.bytes);
        job.options.align_bytes = aligns[a];
        CHECK_STATUS(save(&job, roots[a], NULL), KVC_OK);
        CHECK_STATUS(kvc_reader_open_path(target, NULL, &reader, NULL), KVC_OK);
        CHECK_STATUS(kvc_reader_info(reader, &info, NULL), KVC_OK);
        CHECK(info.align_bytes == aligns[a] && memcmp(info.root, roots[a], 32) == 0);
        uint64_t stride = (91 + aligns[a] - 1) / aligns[a] * aligns[a];
        CHECK_NUMBER(info.payload_span, 5 * stride + 91);
        for (uint32_t i = 0; i < 6; i++) {
            struct kvc_tensor tensor = KVC_TENSOR_INIT;
            CHECK_STATUS(kvc_reader_tensor(reader, i, &tensor, NULL), KVC_OK);
            CHECK_NUMBER(tensor.file_offset, info.payload_offset + i * stride);
            CHECK_NUMBER(tensor.offset, i * UINT64_C(91));
        }
        CHECK_STATUS(kvc_reader_verify(reader, NULL, NULL, NULL, NULL), KVC_OK);
        CHECK_STATUS(kvc_reader_read_payload(reader, NULL, back, job.bytes, NULL), KVC_OK);
        CHECK(memcmp(back, job.payload, (size_t)job.bytes) == 0);
        CHECK(memcmp(roots[a], roots[0], KVC_DIGEST_BYTES) == 0);
        kvc_reader_free(reader);
        free(back);
        free_job(&job);
    }
}

static void tags(void)
{
    uint8_t key[KVC_DIGEST_BYTES] = {1, 2, 3};
    uint8_t roots[2][KVC_DIGEST_BYTES];
    struct kvc_info info = KVC_INFO_INIT;
    struct kvc_reader_options options = KVC_READER_OPTIONS_INIT;
    struct kvc_reader *reader = NULL;
    struct job job = make_job(&shapes[1], 1, shape_payload_bytes(&shapes[1]));
    CHECK_STATUS(save(&job, roots[0], NULL), KVC_OK);
    options.key = key;
    CHECK_STATUS(kvc_reader_open_path(target, &options, &reader, NULL), KVC_E_NO_TAG);
    CHECK(reader == NULL);
    job.options.key = key;
    CHECK_STATUS(save(&job, roots[1], NULL), KVC_OK);
    CHECK(memcmp(roots[0], roots[1], KVC_DIGEST_BYTES) == 0);
    CHECK_STATUS(kvc_reader_open_path(target, &options, &reader, NULL), KVC_OK);
    CHECK_STATUS(kvc_reader_info(reader, &info, NULL), KVC_OK);
    CHECK(info.has_tag == 1 && info.tag_checked == 1);
    kvc_reader_free(reader);
    CHECK_STATUS(kvc_reader_open_path(target, NULL, &reader, NULL), KVC_OK);
    CHECK_STATUS(kvc_reader_info(reader, &info, NULL), KVC_OK);
    CHECK(info.has_tag == 1 && info.tag_checked == 0);
    kvc_reader_free(reader);
    for (int bit = 0; bit < 256; bit += 17) {
        key[bit / 8] ^= (uint8_t)(1 << (bit % 8));
        reader = NULL;
        CHECK_STATUS(kvc_reader_open_path(target, &options, &reader, NULL), KVC_E_TAG);
        CHECK(reader == NULL);
        key[bit / 8] ^= (uint8_t)(1 << (bit % 8));
    }
    free_job(&job);
}

static void wrong_lengths(void)
{
    for (size_t s = 0; s < SHAPES; s++) {
        struct job job = make_job(&shapes[s], 1, shape_payload_bytes(&shapes[s]) + 1);
        uint64_t right = job.bytes - 1;
        const uint64_t lengths[] = {0, right / 2, right - 1, right + 1};
        char number[32];
        (void)unlink(target);
        for (int i = 0; i < 4; i++) {
            struct kvc_error error = KVC_ERROR_INIT;
            struct memory_file file = {0};
            uint8_t root[KVC_DIGEST_BYTES] = {0};
            job.bytes = lengths[i];
            CHECK_STATUS(save(&job, root, &error), KVC_E_LENGTH);
            (void)snprintf(number, sizeof(number), "%" PRIu64, right);
            CHECK(strcmp(error.expected, number) == 0 && strstr(error.message, number) != NULL);
            (void)snprintf(number, sizeof(number), "%" PRIu64, lengths[i]);
            CHECK(strcmp(error.found, number) == 0 && strstr(error.message, number) != NULL);
            CHECK(root[0] == 0 && root[31] == 0);
            CHECK_NUMBER((uint64_t)count_folder(folder, 0), 0);
            CHECK_STATUS(send(&job, &file, NULL), KVC_E_LENGTH);
            CHECK(file.finishes == 0 && file.discards == 1);
            free(file.data);
        }
        free_job(&job);
    }
}

static void no_payload(void)
{
    struct job job = make_job(&shapes[0], 0, 0);
    CHECK_STATUS(save(&job, NULL, NULL), KVC_E_LENGTH);
    job.options.payload_bytes = 0;
    CHECK_STATUS(save(&job, NULL, NULL), KVC_E_LENGTH);
    CHECK_NUMBER((uint64_t)count_folder(folder, 0), 0);
    free_job(&job);
}

static void order_of_calls(void)
{
    struct job job = make_job(&shapes[1], 1, shape_payload_bytes(&shapes[1]));
    struct kvc_error error = KVC_ERROR_INIT;
    struct kvc_writer *writer = NULL;
    size_t metadata_bytes = strlen(job.metadata);
    CHECK_STATUS(kvc_writer_create_path(target, job.metadata, metadata_bytes, NULL, &writer, NULL),
                 KVC_OK);
    CHECK_STATUS(kvc_writer_write(writer, NULL, 0, NULL), KVC_OK);
    CHECK_STATUS(kvc_writer_write(writer, NULL, 1, NULL), KVC_E_USAGE);
    CHECK_STATUS(kvc_writer_write(writer, job.payload, job.bytes, NULL), KVC_OK);
    CHECK(access(target, F_OK) != 0);
    CHECK_STATUS(kvc_writer_finish(writer, NULL, NULL), KVC_OK);
    CHECK_STATUS(kvc_writer_finish(writer, NULL, &error), KVC_E_USAGE);
    CHECK(strstr(error.message, "finished") != NULL);
    CHECK_STATUS(kvc_writer_write(writer, job.payload, 1, NULL), KVC_E_USAGE);
    kvc_writer_free(writer);
    CHECK_NUMBER((uint64_t)count_folder(folder, 0), 1);
    (void)unlink(target);
    CHECK_STATUS(kvc_writer_create_path(target, job.metadata, metadata_bytes, NULL, &writer, NULL),
                 KVC_OK);
    CHECK_STATUS(kvc_writer_write(writer, job.payload, 10, NULL), KVC_OK);
    CHECK_STATUS(kvc_writer_finish(writer, NULL, NULL), KVC_E_LENGTH);
    CHECK_STATUS(kvc_writer_write(writer, job.payload + 10, job.bytes - 10, &error), KVC_E_USAGE);
    CHECK(strstr(error.message, "failed") != NULL);
    CHECK_STATUS(kvc_writer_finish(writer, NULL, NULL), KVC_E_USAGE);
    kvc_writer_free(writer);
    kvc_writer_free(NULL);
    CHECK_NUMBER((uint64_t)count_folder(folder, 0), 0);
    free_job(&job);
}

struct progress {
    unsigned calls;
    unsigned cancel_at;
    uint64_t last_done;
    uint64_t total;
    int wrong;
};

static int hear_progress(void *context, uint64_t done, uint64_t total)
{
    struct progress *progress = context;
    progress->calls++;
    progress->wrong += done < progress->last_done || done > total;
    progress->last_done = done;
    progress->total = total;
    return progress->calls == progress->cancel_at;
}

static void progress_and_cancellation(void)
{
    const struct shape *shape = &shapes[SHAPES - 1];
    struct job job = make_job(shape, 1, shape_payload_bytes(shape));
    for (unsigned at = 0; at < 4; at++) {
        struct progress progress = {.cancel_at = at};
        job.options.work.progress = hear_progress;
        job.options.work.progress_context = &progress;
        job.options.work.threads = 2;
        job.piece = at % 2 == 0 ? 0 : 1 << 20;
        (void)unlink(target);
        enum kvc_status status = save(&job, NULL, NULL);
        if (at == 0) {
            CHECK_STATUS(status, KVC_OK);
            CHECK_NUMBER(progress.last_done, job.bytes);
        } else {
            CHECK_STATUS(status, KVC_E_CANCELLED);
            CHECK_NUMBER((uint64_t)count_folder(folder, 0), 0);
        }
        CHECK_NUMBER(progress.total, job.bytes);
        CHECK(progress.wrong == 0);
    }
    struct kvc_writer *writer = NULL;
    struct progress progress = {.cancel_at = 1};
    job.options.work.progress_context = &progress;
    CHECK_STATUS(kvc_writer_create_path(target, job.metadata, strlen(job.metadata), &job.options,
                                        &writer, NULL),
                 KVC_OK);
    CHECK_STATUS(kvc_writer_write(writer, job.payload, job.bytes, NULL), KVC_E_CANCELLED);
    CHECK_STATUS(kvc_writer_write(writer, job.payload, job.bytes, NULL), KVC_E_USAGE);
    CHECK_STATUS(kvc_writer_finish(writer, NULL, NULL), KVC_E_USAGE);
    kvc_writer_free(writer);
    CHECK_NUMBER((uint64_t)count_folder(folder, 0), 0);
    free_job(&job);
}

/* Every write of a sink fails once; so does its finish. */
static void failing_sinks(void)
{
    const struct shape shape = {2, 1, 30000, 10};
    struct job job = make_job(&shape, 1, shape_payload_bytes(&shape));
    job.options.align_bytes = 4096;
    for (int at = 1;; at++) {
        struct memory_file file = {.fail_write = at};
        struct kvc_error error = KVC_ERROR_INIT;
        enum kvc_status status = send(&job, &file, &error);
        free(file.data);
        if (status == KVC_OK) {
            CHECK(at > 8 && file.writes == at - 1);
            break;
        }
        CHECK_STATUS(status, KVC_E_IO);
        CHECK_NUMBER((uint64_t)error.sys_errno, EPIPE);
        CHECK(strstr(error.message, "writing to the sink") != NULL);
        CHECK(file.finishes == 0 && file.discards == 1);
    }
    struct memory_file file = {.fail_finish = 1};
    struct kvc_error error = KVC_ERROR_INIT;
    CHECK_STATUS(send(&job, &file, &error), KVC_E_NO_SPACE);
    CHECK_NUMBER((uint64_t)error.sys_errno, EDQUOT);
    CHECK(file.finishes == 1 && file.discards == 0);
    free(file.data);
    free_job(&job);
}

static void check_refused(const struct job *job, enum kvc_status wanted)
{
    struct memory_file file = {0};
    struct kvc_error error = KVC_ERROR_INIT;
    CHECK_STATUS(save(job, NULL, &error), wanted);
    CHECK(error.message[0] != '\0');
    CHECK_NUMBER((uint64_t)count_folder(folder, 0), 0);
    CHECK_STATUS(send(job, &file, NULL), wanted);
    CHECK(file.writes == 0 && file.finishes == 0 && file.discards == 0);
}

static void refused_options(void)
{
    struct job good = make_job(&shapes[0], 1, shape_payload_bytes(&shapes[0]));
    struct job job = good;
    job.options.size--;
    check_refused(&job, KVC_E_OPTION);
    static const uint32_t bad_aligns[] = {2, 32, 128, 8192, UINT32_MAX};
    for (size_t i = 0; i < 5; i++) {
        job = good;
        job.options.align_bytes = bad_aligns[i];
        check_refused(&job, KVC_E_OPTION);
    }
    job = good;
    job.options.durability = (enum kvc_durability)3;
    check_refused(&job, KVC_E_OPTION);
    job = good;
    job.options.work.size = 0;
    check_refused(&job, KVC_E_OPTION);
    job = good;
    job.options.work.threads = 100000;
    check_refused(&job, KVC_E_OPTION);
    free_job(&good);
    struct memory_file file = {0};
    job = make_job(&shapes[0], 0, 10);
    CHECK_STATUS(send(&job, &file, NULL), KVC_E_OPTION);
    CHECK(file.writes == 0 && file.finishes == 0 && file.discards == 0);
    free_job(&job);
}

static void refused_metadata(void)
{
    static const struct {
        const char *text;
        enum kvc_status status;
    } cases[] = {
        {"", KVC_E_JSON},
        {"{", KVC_E_JSON},
        {"{} {}", KVC_E_JSON},
        {"[]", KVC_E_SCHEMA},
        {"{}", KVC_E_SCHEMA},
        {"{\"a\":1,\"a\":1}", KVC_E_JSON},
        {"\xFF", KVC_E_JSON},
        {"{\"dtype\":\"f64\"}", KVC_E_SCHEMA},
        {"{\"x\":1e999}", KVC_E_JSON},
    };
    struct job job = make_job(&shapes[0], 1, 2);
    const char *whole = job.metadata;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        job.metadata = cases[i].text;
        check_refused(&job, cases[i].status);
    }
    char *changed = take_memory(strlen(whole) + 1);
    memcpy(changed, whole, strlen(whole) + 1);
    *(strstr(changed, "\"layers\":1") + 9) = '2';
    job.metadata = changed;
    check_refused(&job, KVC_E_GEOMETRY);
    free(changed);
    job.metadata = whole;
    free_job(&job);
}

/* Any spelling is stored in the canonical one; a stride of a dimension of 1 does not matter. */
static void spellings(void)
{
    const struct shape shape = {1, 1, 3, 2};
    struct job job = make_job(&shape, 1, shape_payload_bytes(&shape));
    const char *plain = job.metadata;
    uint8_t roots[2][KVC_DIGEST_BYTES];
    uint64_t stored_bytes = 0;
    CHECK_STATUS(save(&job, roots[0], NULL), KVC_OK);
    struct text text = {NULL, 0, 4 * strlen(plain)};
    text.data = take_memory(text.capacity);
    ADD(&text, "\n { ");
    for (const char *at = plain + 1; *at != '\0'; at++) {
        if (strncmp(at, "10000.0", 7) == 0) {
            ADD(&text, "1.00e4");
            at += 6;
        } else if (strncmp(at, "\"strides\":[6,", 13) == 0) {
            ADD(&text, "\"strides\":[77777,");
            at += 12;
        } else {
            ADD(&text, strchr(",:[]", *at) != NULL ? "\t%c " : "%c", *at);
        }
    }
    job.metadata = text.data;
    struct kvc_writer *writer = NULL;
    CHECK_STATUS(kvc_writer_create_path(target, text.data, text.bytes, NULL, &writer, NULL),
                 KVC_OK);
    const char *stored = kvc_writer_metadata(writer, &stored_bytes);
    CHECK(stored_bytes == strlen(plain) && memcmp(stored, plain, strlen(plain)) == 0);
    kvc_writer_free(writer);
    CHECK_STATUS(save(&job, roots[1], NULL), KVC_OK);
    CHECK(memcmp(roots[0], roots[1], KVC_DIGEST_BYTES) == 0);
    free(text.data);
    job.metadata = plain;
    free_job(&job);
}

static void null_arguments(void)
{
    struct memory_file file = {0};
    struct kvc_sink sink = memory_sink(&file);
    struct kvc_writer *writer = NULL;
    struct kvc_error error = KVC_ERROR_INIT;
    const char *path = target;
    CHECK_STATUS(kvc_writer_create_path(NULL, "{}", 2, NULL, &writer, &error), KVC_E_USAGE);
    CHECK_STATUS(kvc_writer_create_path(path, NULL, 2, NULL, &writer, &error), KVC_E_USAGE);
    CHECK_STATUS(kvc_writer_create_path(path, "{}", 2, NULL, NULL, &error), KVC_E_USAGE);
    CHECK_STATUS(kvc_writer_create_sink(NULL, "{}", 2, NULL, &writer, &error), KVC_E_USAGE);
    CHECK_STATUS(kvc_writer_create_sink(&sink, NULL, 2, NULL, &writer, &error), KVC_E_USAGE);
    CHECK_STATUS(kvc_writer_create_sink(&sink, "{}", 2, NULL, NULL, &error), KVC_E_USAGE);
    sink.write = NULL;
    CHECK_STATUS(kvc_writer_create_sink(&sink, "{}", 2, NULL, &writer, &error), KVC_E_OPTION);
    sink = memory_sink(&file);
    sink.size++;
    CHECK_STATUS(kvc_writer_create_sink(&sink, "{}", 2, NULL, &writer, &error), KVC_E_OPTION);
    CHECK_STATUS(kvc_writer_write(NULL, "", 1, &error), KVC_E_USAGE);
    CHECK_STATUS(kvc_writer_finish(NULL, NULL, &error), KVC_E_USAGE);
    CHECK(kvc_writer_metadata(NULL, NULL) == NULL);
    CHECK(writer == NULL && file.writes + file.finishes + file.discards == 0);
    CHECK_NUMBER((uint64_t)count_folder(folder, 0), 0);
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
    fresh_case("pieces, threads and kinds of sink give the same bytes", pieces_do_not_matter);
    fresh_case("a length that is found out gives the same bytes", unknown_lengths);
    fresh_case("alignment makes gaps of zeros and keeps the root", alignment);
    fresh_case("a tag proves the key and keeps the root", tags);
    fresh_case("payloads too short or too long leave nothing", wrong_lengths);
    fresh_case("a payload has at least one byte", no_payload);
    fresh_case("a writer ends once, and a failed one can only be freed", order_of_calls);
    fresh_case("progress reaches the total, and cancels", progress_and_cancellation);
    fresh_case("a sink that fails is discarded once", failing_sinks);
    fresh_case("refused options touch nothing", refused_options);
    fresh_case("refused metadata touch nothing", refused_metadata);
    fresh_case("every spelling is stored in the canonical one", spellings);
    fresh_case("NULL is refused", null_arguments);
    return end_cases();
}
