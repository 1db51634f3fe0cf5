/* test_verify.c: damage is found, named once and in order; a file that changes under its reader
 * gives an error and never a signal.
 * SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <stdbool.h>

#include "cases.h"

static char folder[CASE_PATH_BYTES];
static char target[CASE_PATH_BYTES];

#define MOST_REPORTS 4096

struct report {
    enum kvc_status status;
    uint64_t offset;
    char field[32];
};

struct reports {
    size_t count;
    size_t stop_after; /* 0: never */
    struct report list[MOST_REPORTS];
};

static int hear_failure(void *context, const struct kvc_error *failure)
{
    struct reports *reports = context;
    struct report *report = &reports->list[reports->count++];
    report->status = failure->status;
    report->offset = failure->offset;
    (void)snprintf(report->field, sizeof(report->field), "%.31s", failure->field);
    CHECK(failure->message[0] != '\0');
    return reports->count == reports->stop_after || reports->count == MOST_REPORTS;
}

/* A file on the disk, its content, and a reader of it. */
struct scene {
    struct shape shape;
    struct memory_file file;
    uint8_t *payload;
    uint64_t tensor_bytes;
    struct kvc_info info;
    struct kvc_reader *reader;
};

static struct scene make_scene(struct shape shape, uint32_t align)
{
    struct scene scene = {.shape = shape, .info = KVC_INFO_INIT};
    struct kvc_writer_options options = KVC_WRITER_OPTIONS_INIT;
    options.align_bytes = align;
    scene.file = pack_shape(&shape, 11, &options);
    scene.payload = make_payload(shape_payload_bytes(&shape), 11);
    scene.tensor_bytes = shape_tensor_bytes(&shape);
    put_file(target, scene.file.data, scene.file.bytes);
    if (kvc_reader_open_path(target, NULL, &scene.reader, NULL) != KVC_OK ||
        kvc_reader_info(scene.reader, &scene.info, NULL) != KVC_OK) {
        bail_out("a good file was refused");
    }
    return scene;
}

static void free_scene(struct scene *scene)
{
    kvc_reader_free(scene->reader);
    free(scene->file.data);
    free(scene->payload);
}

static uint64_t place_of(const struct scene *scene, uint32_t tensor, uint64_t byte)
{
    struct kvc_tensor facts = KVC_TENSOR_INIT;
    CHECK_STATUS(kvc_reader_tensor(scene->reader, tensor, &facts, NULL), KVC_OK);
    return facts.file_offset + byte;
}

/* Writes into the same inode. */
static void damage(uint64_t offset)
{
    uint8_t byte = 0;
    int fd = open(target, O_RDWR);
    if (fd < 0 || pread(fd, &byte, 1, (off_t)offset) != 1) {
        bail_out("reading the byte to damage");
    }
    byte ^= 0x10;
    if (pwrite(fd, &byte, 1, (off_t)offset) != 1 || close(fd) != 0) {
        bail_out("damaging");
    }
}

static void expect_report(const struct reports *reports, size_t index, enum kvc_status status,
                          uint64_t offset, const char *field)
{
    CHECK(index < reports->count);
    CHECK_STATUS(reports->list[index].status, status);
    CHECK_NUMBER(reports->list[index].offset, offset);
    CHECK(strcmp(reports->list[index].field, field) == 0);
}

static enum kvc_status verify(const struct scene *scene, uint32_t threads, struct reports *reports,
                              struct kvc_error *error)
{
    struct kvc_work work = KVC_WORK_INIT;
    work.threads = threads;
    return kvc_reader_verify(scene->reader, &work, reports != NULL ? hear_failure : NULL, reports,
                             error);
}

static const uint32_t thread_counts[] = {1, 2, 7};

static void damaged_tensors_are_named_once(void)
{
    struct scene scene = make_scene((struct shape){3, 1, 70000, 10}, 1);
    damage(place_of(&scene, 1, 0));
    damage(place_of(&scene, 1, 500000));
    damage(place_of(&scene, 1, 699999));
    damage(place_of(&scene, 4, 70000));
    damage(place_of(&scene, 5, 300000));
    for (size_t t = 0; t < 3; t++) {
        struct reports *reports = take_memory(sizeof(*reports));
        struct kvc_error error = KVC_ERROR_INIT;
        CHECK_STATUS(verify(&scene, thread_counts[t], reports, &error), KVC_E_CHUNK);
        CHECK_NUMBER(error.offset, place_of(&scene, 1, 0));
        CHECK_NUMBER(reports->count, 3);
        expect_report(reports, 0, KVC_E_CHUNK, place_of(&scene, 1, 0), "layer.0.value");
        expect_report(reports, 1, KVC_E_CHUNK, place_of(&scene, 4, 65536), "layer.2.key");
        expect_report(reports, 2, KVC_E_CHUNK, place_of(&scene, 5, 262144), "layer.2.value");
        free(reports);
        CHECK_STATUS(verify(&scene, thread_counts[t], NULL, &error), KVC_E_CHUNK);
        CHECK_NUMBER(error.offset, place_of(&scene, 1, 0));
        reports = take_memory(sizeof(*reports));
        reports->stop_after = 2;
        CHECK_STATUS(verify(&scene, thread_counts[t], reports, NULL), KVC_E_CHUNK);
        CHECK_NUMBER(reports->count, 2);
        free(reports);
    }
    free_scene(&scene);
}

/* A bad chunk and a bad gap behind it are two damages. */
static void damaged_gaps(void)
{
    struct scene scene = make_scene((struct shape){2, 1, 70, 10}, 4096);
    damage(place_of(&scene, 0, 700));
    damage(place_of(&scene, 1, 699));
    damage(place_of(&scene, 1, 4095));
    damage(place_of(&scene, 2, 2000));
    for (size_t t = 0; t < 3; t++) {
        struct reports *reports = take_memory(sizeof(*reports));
        CHECK_STATUS(verify(&scene, thread_counts[t], reports, NULL), KVC_E_PADDING);
        CHECK_NUMBER(reports->count, 4);
        expect_report(reports, 0, KVC_E_PADDING, place_of(&scene, 0, 700), "");
        expect_report(reports, 1, KVC_E_CHUNK, place_of(&scene, 1, 0), "layer.0.value");
        expect_report(reports, 2, KVC_E_PADDING, place_of(&scene, 1, 4095), "");
        expect_report(reports, 3, KVC_E_PADDING, place_of(&scene, 2, 2000), "");
        free(reports);
    }
    uint8_t *back = take_memory((size_t)scene.info.payload_bytes);
    struct kvc_view *view = NULL;
    CHECK_STATUS(kvc_reader_read_payload(scene.reader, NULL, back, scene.info.payload_bytes, NULL),
                 KVC_E_PADDING);
    CHECK_STATUS(kvc_reader_map_payload(scene.reader, NULL, &view, NULL), KVC_E_PADDING);
    CHECK_STATUS(kvc_reader_read(scene.reader, 0, 0, 700, NULL, back, NULL), KVC_OK);
    CHECK_STATUS(kvc_reader_map(scene.reader, 3, NULL, &view, NULL), KVC_OK);
    kvc_view_free(view);
    free(back);
    free_scene(&scene);
}

static void every_tensor_damaged(void)
{
    struct scene scene = make_scene((struct shape){1500, 1, 1, 3}, 1);
    struct reports *reports = take_memory(sizeof(*reports));
    for (uint32_t i = 0; i < 3000; i++) {
        damage(place_of(&scene, i, i % 3));
    }
    CHECK_STATUS(verify(&scene, 2, reports, NULL), KVC_E_CHUNK);
    CHECK_NUMBER(reports->count, 3000);
    for (uint32_t i = 0; i < reports->count; i++) {
        CHECK_NUMBER(reports->list[i].offset, place_of(&scene, i, 0));
    }
    free(reports);
    free_scene(&scene);
}

static uint64_t row_place(const struct scene *scene, uint32_t tensor, uint64_t byte)
{
    uint64_t end = scene->info.payload_offset + scene->info.payload_span;
    uint64_t chunks = (scene->tensor_bytes + GRID_BYTES - 1) / GRID_BYTES;
    return (end + 63) / 64 * 64 + tensor * chunks * 32 + byte;
}

/* The row is bad from the start, or becomes bad after it was proven. */
static void damaged_rows(void)
{
    for (int proven_before = 0; proven_before < 2; proven_before++) {
        struct scene scene = make_scene((struct shape){2, 1, 70000, 10}, 1);
        struct reports *reports = take_memory(sizeof(*reports));
        struct kvc_error error = KVC_ERROR_INIT;
        uint8_t buffer[100];
        for (uint32_t i = 0; proven_before && i < 4; i++) {
            CHECK_STATUS(kvc_reader_read(scene.reader, i, 0, 100, NULL, buffer, NULL), KVC_OK);
        }
        damage(row_place(&scene, 1, 0));
        damage(row_place(&scene, 2, 351));
        damage(place_of(&scene, 0, 1));
        CHECK_STATUS(verify(&scene, 2, reports, &error), KVC_E_CHUNK);
        CHECK_NUMBER(reports->count, 3);
        expect_report(reports, 0, KVC_E_CHUNK, place_of(&scene, 0, 0), "layer.0.key");
        expect_report(reports, 1, KVC_E_ROW, row_place(&scene, 1, 0), "layer.0.value");
        CHECK_STATUS(reports->list[2].status, KVC_E_ROW);
        CHECK(strcmp(reports->list[2].field, "layer.1.key") == 0);
        CHECK_STATUS(kvc_reader_read(scene.reader, 1, 0, 100, NULL, buffer, NULL),
                     proven_before ? KVC_OK : KVC_E_ROW);
        CHECK_STATUS(kvc_reader_read(scene.reader, 3, 0, 100, NULL, buffer, NULL), KVC_OK);
        damage(place_of(&scene, 0, 1));
        CHECK_STATUS(verify(&scene, 2, NULL, &error), KVC_E_ROW);
        CHECK(strcmp(error.field, "layer.0.value") == 0);
        free(reports);
        free_scene(&scene);
    }
}

static void damaged_frames(void)
{
    struct scene scene = make_scene((struct shape){2, 1, 70, 10}, 1);
    const struct {
        uint64_t offset;
        enum kvc_status status;
    } cases[] = {
        {50, KVC_E_HEADER_CHECK},
        {200, KVC_E_ROOT},
        {128 + scene.info.metadata_bytes, KVC_E_PADDING},
        {scene.info.file_bytes - 128 - 40, KVC_E_ROOT},
        {scene.info.file_bytes - 128, KVC_E_FOOTER_CHECK},
        {scene.info.file_bytes - 1, KVC_E_FOOTER_CHECK},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct reports *reports = take_memory(sizeof(*reports));
        damage(cases[i].offset);
        CHECK_STATUS(verify(&scene, 1, reports, NULL), cases[i].status);
        CHECK_NUMBER(reports->count, 1);
        CHECK_STATUS(reports->list[0].status, cases[i].status);
        damage(cases[i].offset);
        CHECK_STATUS(verify(&scene, 1, NULL, NULL), KVC_OK);
        free(reports);
    }
    free_scene(&scene);
}

/* Bytes that are not proven never reach the caller; the chunks beside them do. */
static void damaged_bytes_are_not_read(void)
{
    struct scene scene = make_scene((struct shape){1, 1, 70000, 10}, 1);
    uint8_t *buffer = take_memory((size_t)scene.tensor_bytes);
    struct kvc_view *view = NULL;
    damage(place_of(&scene, 0, 200000));
    const struct {
        uint64_t start;
        uint64_t bytes;
        enum kvc_status status;
    } cases[] = {
        {0, 196608, KVC_OK},          {262144, 437856, KVC_OK}, {0, 196609, KVC_E_CHUNK},
        {262143, 100, KVC_E_CHUNK},   {200000, 1, KVC_E_CHUNK}, {0, 700000, KVC_E_CHUNK},
        {196608, 65536, KVC_E_CHUNK},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (size_t t = 0; t < 3; t++) {
            struct kvc_work work = KVC_WORK_INIT;
            uint8_t any = 0;
            work.threads = thread_counts[t];
            memset(buffer, 0xAA, (size_t)scene.tensor_bytes);
            CHECK_STATUS(kvc_reader_read(scene.reader, 0, cases[i].start, cases[i].bytes, &work,
                                         buffer, NULL),
                         cases[i].status);
            for (uint64_t k = 0; k < cases[i].bytes; k++) {
                any |= buffer[k];
            }
            CHECK((any == 0) == (cases[i].status != KVC_OK));
        }
    }
    CHECK_STATUS(kvc_reader_map(scene.reader, 0, NULL, &view, NULL), KVC_E_CHUNK);
    CHECK_STATUS(kvc_reader_map(scene.reader, 0, NULL, &view, NULL), KVC_E_CHUNK);
    CHECK_STATUS(kvc_reader_map_payload(scene.reader, NULL, &view, NULL), KVC_E_CHUNK);
    CHECK(view == NULL);
    CHECK_STATUS(kvc_reader_map(scene.reader, 1, NULL, &view, NULL), KVC_OK);
    kvc_view_free(view);
    free(buffer);
    free_scene(&scene);
}

/* Every length that the file is cut to under an open reader. */
static void cut_files(void)
{
    struct scene scene = make_scene((struct shape){1, 1, 20000, 10}, 4096);
    uint8_t *buffer = take_memory((size_t)scene.info.payload_bytes);
    uint64_t row_end = row_place(&scene, 2, 0);
    for (uint64_t length = scene.info.file_bytes; length-- > 0;) {
        if (length > 700 && length % 4096 > 1 && length < row_end - 300) {
            length -= 600;
        }
        struct kvc_error error = KVC_ERROR_INIT;
        struct kvc_view *view = NULL;
        if (truncate(target, (off_t)length) != 0) {
            bail_out("cutting the file");
        }
        CHECK_STATUS(verify(&scene, 1, NULL, &error), KVC_E_CHANGED);
        CHECK(error.offset <= scene.info.file_bytes && error.message[0] != '\0');
        CHECK_STATUS(kvc_reader_map(scene.reader, 0, NULL, &view, NULL), KVC_E_CHANGED);
        CHECK(view == NULL);
        enum kvc_status status = kvc_reader_read(scene.reader, 1, 0, 70000, NULL, buffer, NULL);
        /* A row that was proven before is still known, so the cut must take payload bytes. */
        CHECK(status == KVC_OK || status == KVC_E_CHANGED);
        CHECK_STATUS(status, length >= place_of(&scene, 1, 131072) ? KVC_OK : KVC_E_CHANGED);
        if (length == row_end) {
            CHECK_STATUS(kvc_reader_read(scene.reader, 0, 0, 1, NULL, buffer, NULL), KVC_OK);
        }
    }
    free(buffer);
    free_scene(&scene);
}

/* A file that grows, or is written into, gives proven bytes or an error. */
static void changed_files(void)
{
    struct scene scene = make_scene((struct shape){1, 1, 20000, 10}, 1);
    uint8_t *buffer = take_memory((size_t)scene.tensor_bytes);
    int fd = open(target, O_WRONLY | O_APPEND);
    CHECK(write(fd, "more", 4) == 4 && close(fd) == 0);
    CHECK_STATUS(kvc_reader_read(scene.reader, 0, 0, scene.tensor_bytes, NULL, buffer, NULL),
                 KVC_OK);
    CHECK(memcmp(buffer, scene.payload, (size_t)scene.tensor_bytes) == 0);
    for (uint64_t at = 0; at < scene.tensor_bytes; at += 30011) {
        damage(place_of(&scene, 0, at));
        CHECK_STATUS(kvc_reader_read(scene.reader, 0, at, 1, NULL, buffer, NULL), KVC_E_CHUNK);
        CHECK(buffer[0] == 0);
        damage(place_of(&scene, 0, at));
        CHECK_STATUS(kvc_reader_read(scene.reader, 0, at, 1, NULL, buffer, NULL), KVC_OK);
        CHECK(buffer[0] == scene.payload[at]);
    }
    free(buffer);
    free_scene(&scene);
}

struct progress {
    unsigned calls;
    unsigned cancel_at;
    uint64_t done;
    uint64_t total;
    int wrong;
};

static int hear_progress(void *context, uint64_t done, uint64_t total)
{
    struct progress *progress = context;
    progress->calls++;
    progress->wrong += done < progress->done || done > total;
    progress->done = done;
    progress->total = total;
    return progress->calls == progress->cancel_at;
}

/* Calls every function that takes a work struct. */
static enum kvc_status do_work(const struct scene *scene, int which, const struct kvc_work *work,
                               uint8_t *buffer)
{
    struct kvc_view *view = NULL;
    enum kvc_status status = KVC_OK;
    switch (which) {
    case 0:
        return kvc_reader_verify(scene->reader, work, NULL, NULL, NULL);
    case 1:
        return kvc_reader_read_payload(scene->reader, work, buffer, scene->info.payload_bytes,
                                       NULL);
    case 2:
        return kvc_reader_read(scene->reader, 0, 1, scene->tensor_bytes - 1, work, buffer, NULL);
    case 3:
        status = kvc_reader_map(scene->reader, 0, work, &view, NULL);
        break;
    default:
        status = kvc_reader_map_payload(scene->reader, work, &view, NULL);
        break;
    }
    CHECK((view == NULL) == (status != KVC_OK));
    kvc_view_free(view);
    return status;
}

static void progress_and_cancellation(void)
{
    struct scene scene = make_scene((struct shape){1, 10, 1000, 900}, 1);
    uint8_t *buffer = take_memory((size_t)scene.info.payload_bytes);
    for (int which = 0; which < 5; which++) {
        for (size_t t = 0; t < 3; t++) {
            uint64_t total = which == 2   ? scene.tensor_bytes - 1
                             : which == 3 ? scene.tensor_bytes
                                          : scene.info.payload_bytes;
            for (unsigned at = 0; at < 3; at++) {
                struct progress progress = {.cancel_at = at};
                struct kvc_work work = KVC_WORK_INIT;
                work.threads = thread_counts[t];
                work.progress = hear_progress;
                work.progress_context = &progress;
                enum kvc_status status = do_work(&scene, which, &work, buffer);
                bool cancelled = at > 0 && progress.calls == at;
                CHECK_STATUS(status, cancelled ? KVC_E_CANCELLED : KVC_OK);
                CHECK(progress.wrong == 0 && progress.calls > 0);
                CHECK_NUMBER(progress.total, total);
                if (!cancelled) {
                    CHECK_NUMBER(progress.done, total);
                }
            }
        }
    }
    CHECK_STATUS(kvc_reader_verify(scene.reader, NULL, NULL, NULL, NULL), KVC_OK);
    free(buffer);
    free_scene(&scene);
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
    fresh_case("damaged tensors are reported once each and in order",
               damaged_tensors_are_named_once);
    fresh_case("damaged gaps are reported beside damaged tensors", damaged_gaps);
    fresh_case("thousands of damaged tensors are all reported", every_tensor_damaged);
    fresh_case("damaged chunk values are reported, proven before or not", damaged_rows);
    fresh_case("damage outside the payload is found by a later verify", damaged_frames);
    fresh_case("damaged bytes are zeroed, chunks beside them read", damaged_bytes_are_not_read);
    fresh_case("a file that was cut gives an error, never a signal", cut_files);
    fresh_case("a file that grew or was written into gives proven bytes", changed_files);
    fresh_case("progress reaches the total, and cancels every call", progress_and_cancellation);
    return end_cases();
}
