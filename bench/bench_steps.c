/* bench_steps.c: the steps that kvc-bench times: the library's own, and the floors beside them.
 * SPDX-License-Identifier: Apache-2.0 */
#include "bench_steps.h"

#include "bench_clock.h"
#include "blake3.h"

#include <errno.h>
#include <fcntl.h>
#include <kvc.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)
#define REPEATS 9
#define OPENS 2000
#define WRITE_BYTES (8 * MIB)

static void must(enum kvc_status status, const struct kvc_error *error)
{
    if (status != KVC_OK) {
        bench_die(kvc_status_name(status), error->message);
    }
}

static void must_system(bool good, const char *what)
{
    if (!good) {
        bench_die(what, strerror(errno));
    }
}

static int by_value(const void *a, const void *b)
{
    double left = *(const double *)a;
    double right = *(const double *)b;
    return (left > right) - (left < right);
}

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof(*values), by_value);
    return values[count / 2];
}

static struct kvc_work threads_of(uint64_t threads)
{
    struct kvc_work work = KVC_WORK_INIT;
    work.threads = (uint32_t)threads;
    return work;
}

static struct kvc_reader *open_file(const char *path)
{
    struct kvc_error error = KVC_ERROR_INIT;
    struct kvc_reader *reader = NULL;
    must(kvc_reader_open_path(path, NULL, &reader, &error), &error);
    return reader;
}

/* ---- Digest -------------------------------------------------------------------------------- */

/* Seconds for one call on `bytes` bytes that lie in memory. */
static double digest(const struct bench_files *files, uint64_t bytes)
{
    double times[REPEATS];
    uint8_t *block = bench_warm_block((size_t)bytes);
    uint8_t value[32];
    uint64_t calls = 32 * MIB / bytes;
    (void)files;
    calls = calls > 0 ? calls : 1;
    for (int i = 0; i < REPEATS; i++) {
        double start = bench_now();
        for (uint64_t call = 0; call < calls; call++) {
            kvci_blake3_hash(block, (size_t)bytes, value);
            block[call % bytes] ^= value[0];
        }
        times[i] = (bench_now() - start) / (double)calls;
    }
    free(block);
    return median(times, REPEATS);
}

struct half {
    const uint8_t *data;
    uint64_t bytes;
    uint8_t value[32];
};

static void *digest_half(void *context)
{
    struct half *half = context;
    kvci_blake3_hash(half->data, (size_t)half->bytes, half->value);
    return NULL;
}

/* Seconds for `bytes` bytes, each half by a thread. */
static double digest_2(const struct bench_files *files, uint64_t bytes)
{
    double times[REPEATS];
    uint8_t *block = bench_warm_block((size_t)bytes);
    struct half halves[2] = {{block, bytes / 2, {0}}, {block + bytes / 2, bytes / 2, {0}}};
    (void)files;
    for (int i = 0; i < REPEATS; i++) {
        pthread_t thread;
        double start = bench_now();
        must_system(pthread_create(&thread, NULL, digest_half, &halves[0]) == 0, "pthread_create");
        (void)digest_half(&halves[1]);
        (void)pthread_join(thread, NULL);
        times[i] = bench_now() - start;
    }
    free(block);
    return median(times, REPEATS);
}

/* ---- Opening ------------------------------------------------------------------------------- */

static double time_opens(const char *path)
{
    kvc_reader_free(open_file(path));
    double start = bench_now();
    for (int i = 0; i < OPENS; i++) {
        kvc_reader_free(open_file(path));
    }
    return (bench_now() - start) / OPENS;
}

static double open_small(const struct bench_files *files, uint64_t unused)
{
    (void)unused;
    return time_opens(files->small);
}

static double open_big(const struct bench_files *files, uint64_t unused)
{
    (void)unused;
    return time_opens(files->big);
}

/* What any program pays that maps a file. */
static double open_floor(const struct bench_files *files, uint64_t unused)
{
    (void)unused;
    double start = bench_now();
    for (int i = 0; i < OPENS; i++) {
        struct stat facts;
        int fd = open(files->small, O_RDONLY | O_CLOEXEC);
        must_system(fd >= 0 && fstat(fd, &facts) == 0, files->small);
        void *map = mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        must_system(map != MAP_FAILED, "mmap");
        (void)munmap(map, (size_t)facts.st_size);
        (void)close(fd);
    }
    return (bench_now() - start) / OPENS;
}

/* Seconds to open a file of many tensors and find each by its name. */
static double find_all(const struct bench_files *files, uint64_t tensor_count)
{
    const char *path = tensor_count == BENCH_MANY_TENSORS ? files->many : files->fewer;
    double times[REPEATS];
    bench_warm_file(path);
    for (int i = 0; i < REPEATS; i++) {
        struct kvc_error error = KVC_ERROR_INIT;
        double start = bench_now();
        struct kvc_reader *reader = open_file(path);
        for (uint64_t index = 0; index < tensor_count; index++) {
            char name[64];
            uint32_t found = 0;
            int length = snprintf(name, sizeof(name), "layer.%u.%s", (unsigned)(index / 2),
                                  index % 2 == 0 ? "key" : "value");
            must(kvc_reader_find(reader, name, (size_t)length, &found, &error), &error);
        }
        times[i] = bench_now() - start;
        kvc_reader_free(reader);
    }
    return median(times, REPEATS);
}

/* Seconds to open a file of many tensors that lies in memory: mostly its metadata. */
static double open_many(const struct bench_files *files, uint64_t unused)
{
    double times[REPEATS];
    struct stat facts;
    (void)unused;
    int fd = open(files->many, O_RDONLY | O_CLOEXEC);
    must_system(fd >= 0 && fstat(fd, &facts) == 0, files->many);
    uint8_t *block = bench_warm_block((size_t)facts.st_size);
    must_system(pread(fd, block, (size_t)facts.st_size, 0) == facts.st_size, files->many);
    for (int i = 0; i < REPEATS; i++) {
        struct kvc_error error = KVC_ERROR_INIT;
        struct kvc_reader *reader = NULL;
        double start = bench_now();
        must(kvc_reader_open_memory(block, (uint64_t)facts.st_size, NULL, &reader, &error), &error);
        times[i] = bench_now() - start;
        kvc_reader_free(reader);
    }
    free(block);
    (void)close(fd);
    return median(times, REPEATS);
}

/* ---- Reading and mapping ------------------------------------------------------------------- */

/* Reads bytes [start, start + bytes) of a file into memory. */
static void pread_all(const char *path, uint8_t *block, uint64_t bytes, uint64_t start)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    must_system(fd >= 0, path);
    for (uint64_t done = 0; done < bytes;) {
        uint64_t piece = bytes - done < WRITE_BYTES ? bytes - done : WRITE_BYTES;
        ssize_t got = pread(fd, block + done, (size_t)piece, (off_t)(start + done));
        must_system(got > 0, path);
        done += (uint64_t)got;
    }
    (void)close(fd);
}

static double pread_floor(const struct bench_files *files, uint64_t unused)
{
    uint8_t *block = bench_warm_block((size_t)files->payload_bytes);
    (void)unused;
    bench_warm_file(files->cache);
    double start = bench_now();
    pread_all(files->cache, block, files->payload_bytes, 4096);
    return bench_now() - start;
}

static double hash_floor(const struct bench_files *files, uint64_t unused)
{
    uint8_t *block = bench_warm_block((size_t)files->payload_bytes);
    uint8_t value[32];
    (void)unused;
    double start = bench_now();
    kvci_blake3_hash(block, (size_t)files->payload_bytes, value);
    return bench_now() - start;
}

static double read_payload(const struct bench_files *files, uint64_t threads)
{
    struct kvc_error error = KVC_ERROR_INIT;
    struct kvc_work work = threads_of(threads);
    uint8_t *block = bench_warm_block((size_t)files->payload_bytes);
    bench_warm_file(files->cache);
    double start = bench_now();
    struct kvc_reader *reader = open_file(files->cache);
    must(kvc_reader_read_payload(reader, &work, block, files->payload_bytes, &error), &error);
    double seconds = bench_now() - start;
    kvc_reader_free(reader);
    return seconds;
}

static double time_map(const char *path, uint64_t threads)
{
    struct kvc_error error = KVC_ERROR_INIT;
    struct kvc_work work = threads_of(threads);
    struct kvc_view *view = NULL;
    double start = bench_now();
    struct kvc_reader *reader = open_file(path);
    must(kvc_reader_map_payload(reader, &work, &view, &error), &error);
    double seconds = bench_now() - start;
    kvc_view_free(view);
    kvc_reader_free(reader);
    return seconds;
}

static double map_payload(const struct bench_files *files, uint64_t threads)
{
    bench_warm_pages(64 * MIB);
    bench_warm_file(files->cache);
    return time_map(files->cache, threads);
}

static double map_big(const struct bench_files *files, uint64_t threads)
{
    bench_warm_file(files->big);
    return time_map(files->big, threads);
}

static double map_cold(const struct bench_files *files, uint64_t threads)
{
    bench_cool_file(files->cache);
    return time_map(files->cache, threads);
}

static double read_cold_floor(const struct bench_files *files, uint64_t unused)
{
    uint8_t *block = bench_warm_block((size_t)files->payload_bytes);
    (void)unused;
    bench_cool_file(files->cache);
    double start = bench_now();
    pread_all(files->cache, block, files->payload_bytes, 4096);
    return bench_now() - start;
}

static double verify(const struct bench_files *files, uint64_t threads)
{
    struct kvc_error error = KVC_ERROR_INIT;
    struct kvc_work work = threads_of(threads);
    bench_warm_file(files->cache);
    double start = bench_now();
    struct kvc_reader *reader = open_file(files->cache);
    must(kvc_reader_verify(reader, &work, NULL, NULL, &error), &error);
    double seconds = bench_now() - start;
    kvc_reader_free(reader);
    return seconds;
}

/* Seconds for each of many files, read whole into the same memory. */
static double read_blocks(const struct bench_files *files, uint64_t threads)
{
    struct kvc_error error = KVC_ERROR_INIT;
    struct kvc_work work = threads_of(threads);
    uint8_t *block = bench_warm_block(BENCH_BLOCK_BYTES);
    char path[4096];
    for (int i = 0; i < BENCH_BLOCK_COUNT; i++) {
        bench_files_block(files, i, path);
        bench_warm_file(path);
    }
    double start = bench_now();
    for (int i = 0; i < BENCH_BLOCK_COUNT; i++) {
        bench_files_block(files, i, path);
        struct kvc_reader *reader = open_file(path);
        must(kvc_reader_read_payload(reader, &work, block, BENCH_BLOCK_BYTES, &error), &error);
        kvc_reader_free(reader);
    }
    return (bench_now() - start) / BENCH_BLOCK_COUNT;
}

static double blocks_floor(const struct bench_files *files, uint64_t unused)
{
    uint8_t *block = bench_warm_block(BENCH_BLOCK_BYTES);
    char path[4096];
    (void)unused;
    for (int i = 0; i < BENCH_BLOCK_COUNT; i++) {
        bench_files_block(files, i, path);
        bench_warm_file(path);
    }
    double start = bench_now();
    for (int i = 0; i < BENCH_BLOCK_COUNT; i++) {
        bench_files_block(files, i, path);
        pread_all(path, block, BENCH_BLOCK_BYTES, 4096);
    }
    return (bench_now() - start) / BENCH_BLOCK_COUNT;
}

/* ---- Saving -------------------------------------------------------------------------------- */

static double save(const struct bench_files *files, uint64_t durability)
{
    struct kvc_error error = KVC_ERROR_INIT;
    struct kvc_writer_options options = KVC_WRITER_OPTIONS_INIT;
    struct kvc_writer *writer = NULL;
    uint8_t *block = bench_warm_block((size_t)files->payload_bytes);
    char *metadata =
        bench_files_metadata(BENCH_TENSOR_COUNT, files->payload_bytes / BENCH_TENSOR_COUNT);
    options.durability = (enum kvc_durability)durability;
    bench_warm_pages(64 * MIB);
    sync();
    double start = bench_now();
    must(
        kvc_writer_create_path(files->saved, metadata, strlen(metadata), &options, &writer, &error),
        &error);
    must(kvc_writer_write(writer, block, files->payload_bytes, &error), &error);
    must(kvc_writer_finish(writer, NULL, &error), &error);
    double seconds = bench_now() - start;
    kvc_writer_free(writer);
    (void)unlink(files->saved);
    return seconds;
}

static double write_floor(const struct bench_files *files, uint64_t durability)
{
    uint8_t *block = bench_warm_block((size_t)files->payload_bytes);
    bench_warm_pages(64 * MIB);
    sync();
    double start = bench_now();
    int fd = open(files->saved, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    must_system(fd >= 0, files->saved);
    for (uint64_t done = 0; done < files->payload_bytes;) {
        uint64_t left = files->payload_bytes - done;
        ssize_t put = write(fd, block + done, (size_t)(left < WRITE_BYTES ? left : WRITE_BYTES));
        must_system(put > 0, files->saved);
        done += (uint64_t)put;
    }
    if (durability == KVC_DURABILITY_FULL) {
        int folder = open(files->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        must_system(fsync(fd) == 0 && folder >= 0 && fsync(folder) == 0, files->folder);
        (void)close(folder);
    }
    (void)close(fd);
    double seconds = bench_now() - start;
    (void)unlink(files->saved);
    return seconds;
}

/* ---- Memory -------------------------------------------------------------------------------- */

static double verify_growth(const struct bench_files *files, uint64_t threads)
{
    struct kvc_error error = KVC_ERROR_INIT;
    struct kvc_work work = threads_of(threads);
    uint64_t before = bench_peak_reset();
    struct kvc_reader *reader = open_file(files->big_bytes > 0 ? files->big : files->cache);
    must(kvc_reader_verify(reader, &work, NULL, NULL, &error), &error);
    uint64_t peak = bench_peak();
    kvc_reader_free(reader);
    return (double)(peak - before);
}

/* What the library asked for, at its most. */
struct counted {
    uint64_t bytes;
    uint64_t most;
};

static void *counted_allocate(void *context, size_t bytes)
{
    struct counted *counted = context;
    size_t *block = malloc(bytes + 16);
    if (block == NULL) {
        return NULL;
    }
    *block = bytes;
    counted->bytes += bytes;
    counted->most = counted->bytes > counted->most ? counted->bytes : counted->most;
    return (uint8_t *)block + 16;
}

static void counted_release(void *context, void *block)
{
    struct counted *counted = context;
    if (block != NULL) {
        size_t *start = (size_t *)(void *)((uint8_t *)block - 16);
        counted->bytes -= *start;
        free(start);
    }
}

/* Bytes beyond 4 times the metadata that opening a file of many tensors takes. */
static double open_growth(const struct bench_files *files, uint64_t unused)
{
    struct counted counted = {0, 0};
    struct kvc_allocator allocator = {counted_allocate, counted_release, &counted};
    struct kvc_reader_options options = KVC_READER_OPTIONS_INIT;
    struct kvc_error error = KVC_ERROR_INIT;
    struct kvc_info info = KVC_INFO_INIT;
    struct kvc_reader *reader = NULL;
    (void)unused;
    options.allocator = &allocator;
    must(kvc_reader_open_path(files->many, &options, &reader, &error), &error);
    must(kvc_reader_info(reader, &info, &error), &error);
    kvc_reader_free(reader);
    return (double)counted.most - 4.0 * (double)info.metadata_bytes;
}

const struct bench_step bench_steps[] = {
    {"digest-64", "s", digest, 64, 0},
    {"digest-1k", "s", digest, 1024, 0},
    {"digest-4k", "s", digest, 4096, 0},
    {"digest-64m", "s", digest, 64 * MIB, 0},
    {"digest-64m-2", "s", digest_2, 64 * MIB, 0},
    {"open-floor", "s", open_floor, 0, 0},
    {"open", "s", open_small, 0, 0},
    {"open-big", "s", open_big, 0, 1},
    {"find-8192", "s", find_all, BENCH_FEWER_TENSORS, 0},
    {"find-32768", "s", find_all, BENCH_MANY_TENSORS, 0},
    {"open-32768", "s", open_many, 0, 0},
    {"pread", "s", pread_floor, 0, 0},
    {"hash", "s", hash_floor, 0, 0},
    {"read-1", "s", read_payload, 1, 0},
    {"read-2", "s", read_payload, 2, 0},
    {"map-1", "s", map_payload, 1, 0},
    {"map-2", "s", map_payload, 2, 0},
    {"map-big-2", "s", map_big, 2, 1},
    {"verify-2", "s", verify, 2, 0},
    {"cold-read", "s", read_cold_floor, 0, 0},
    {"cold-map-2", "s", map_cold, 2, 0},
    {"blocks-floor", "s", blocks_floor, 0, 0},
    {"blocks-1", "s", read_blocks, 1, 0},
    {"blocks-2", "s", read_blocks, 2, 0},
    {"write", "s", write_floor, KVC_DURABILITY_NONE, 0},
    {"write-fsync", "s", write_floor, KVC_DURABILITY_FULL, 0},
    {"save", "s", save, KVC_DURABILITY_NONE, 0},
    {"save-fsync", "s", save, KVC_DURABILITY_FULL, 0},
    {"verify-growth", "B", verify_growth, 2, 0},
    {"open-growth", "B", open_growth, 0, 0},
};
const size_t bench_step_count = sizeof(bench_steps) / sizeof(bench_steps[0]);
