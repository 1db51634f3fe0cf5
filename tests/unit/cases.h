/* cases.h: what C tests of reading and writing share: TAP cases, small caches, sinks, folders.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef CASES_H
#define CASES_H

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kvc.h"

#define CASE_PATH_BYTES 512
#define GRID_BYTES 65536

static int case_failures = 0;
static int case_count = 0;
static int case_bad = 0;

/* Notes a condition that does not hold; the case goes on. */
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            case_failures++;                                                                       \
            (void)printf("# %s:%d: %s\n", __FILE__, __LINE__, #condition);                         \
        }                                                                                          \
    } while (0)

/* Notes a status that is not the one wanted. */
#define CHECK_STATUS(call, wanted) case_status((call), (wanted), __FILE__, __LINE__)

#define CHECK_NUMBER(found, wanted) case_number((found), (wanted), __FILE__, __LINE__)

static inline int case_status(enum kvc_status found, enum kvc_status wanted, const char *file,
                              int line)
{
    if (found == wanted) {
        return 1;
    }
    case_failures++;
    (void)printf("# %s:%d: %s, expected %s\n", file, line, kvc_status_name(found),
                 kvc_status_name(wanted));
    return 0;
}

static inline void case_number(uint64_t found, uint64_t wanted, const char *file, int line)
{
    if (found != wanted) {
        case_failures++;
        (void)printf("# %s:%d: %" PRIu64 ", expected %" PRIu64 "\n", file, line, found, wanted);
    }
}

/* Runs one case and prints its TAP line. */
static inline void run_case(const char *name, void (*body)(void))
{
    case_failures = 0;
    body();
    case_count++;
    case_bad += case_failures > 0;
    (void)printf("%s %d - %s\n", case_failures > 0 ? "not ok" : "ok", case_count, name);
    (void)fflush(stdout);
}

static inline void skip_case(const char *name, const char *reason)
{
    case_count++;
    (void)printf("ok %d - %s # SKIP %s\n", case_count, name, reason);
}

static inline int end_cases(void)
{
    (void)printf("1..%d\n", case_count);
    return case_bad > 0 ? 1 : 0;
}

/* Ends the program: something that is not under test failed. */
static inline void bail_out(const char *what)
{
    (void)printf("Bail out! %s: %s\n", what, strerror(errno));
    exit(1);
}

static inline void *take_memory(size_t bytes)
{
    void *block = calloc(1, bytes > 0 ? bytes : 1);
    if (block == NULL) {
        bail_out("no memory for the test");
    }
    return block;
}

/* xorshift64*: the same bytes for the same seed, everywhere. */
static inline uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717);
}

static inline uint8_t *make_payload(uint64_t bytes, uint64_t seed)
{
    uint8_t *payload = take_memory((size_t)bytes);
    uint64_t state = seed * UINT64_C(0x9E3779B97F4A7C15) + 1;
    for (uint64_t i = 0; i < bytes; i++) {
        payload[i] = (uint8_t)(next_random(&state) >> 56);
    }
    return payload;
}

/* A cache of u8 tensors, so that a tensor has as many bytes as elements. */
struct shape {
    unsigned layers;
    unsigned kv_heads;
    unsigned sequence;
    unsigned head_dim;
};

static inline uint64_t shape_tensor_bytes(const struct shape *shape)
{
    return (uint64_t)shape->kv_heads * shape->sequence * shape->head_dim;
}

static inline uint64_t shape_payload_bytes(const struct shape *shape)
{
    return 2 * shape->layers * shape_tensor_bytes(shape);
}

struct text {
    char *data;
    size_t bytes;
    size_t capacity;
};

#define ADD(text, ...)                                                                             \
    do {                                                                                           \
        (text)->bytes += (size_t)snprintf((text)->data + (text)->bytes,                            \
                                          (text)->capacity - (text)->bytes, __VA_ARGS__);          \
        if ((text)->bytes >= (text)->capacity) {                                                   \
            bail_out("the test's text buffer is too small");                                       \
        }                                                                                          \
    } while (0)

static inline void add_record(struct text *text, const struct shape *shape, unsigned index)
{
    uint64_t bytes = shape_tensor_bytes(shape);
    const char *kind = index % 2 == 0 ? "key" : "value";
    ADD(text, "%s{\"dtype\":\"u8\",\"kind\":\"%s\",\"layer\":%u,\"name\":\"layer.%u.%s\",",
        index > 0 ? "," : "", kind, index / 2, index / 2, kind);
    ADD(text, "\"nbytes\":%" PRIu64 ",\"offset\":%" PRIu64 ",", bytes, bytes * index);
    ADD(text, "\"shape\":[1,%u,%u,%u],\"strides\":[%" PRIu64 ",%" PRIu64 ",%u,1]}", shape->kv_heads,
        shape->sequence, shape->head_dim, bytes, (uint64_t)shape->sequence * shape->head_dim,
        shape->head_dim);
}

/* Returns canonical metadata, terminated: with a manifest, or for an opaque payload. `revision`
 * makes contents differ. The caller frees it. */
static inline char *make_metadata(const struct shape *shape, int manifest, const char *revision)
{
    struct text text = {NULL, 0, 2048 + (size_t)shape->layers * 512 + strlen(revision)};
    text.data = take_memory(text.capacity);
    ADD(&text, "{\"dtype\":\"u8\",\"head_dim\":%u,\"kv_heads\":%u,\"layers\":%u,", shape->head_dim,
        shape->kv_heads, shape->layers);
    ADD(&text, "\"layout\":\"layer-major-k-then-v\",\"model_revision\":\"%s\",", revision);
    ADD(&text, "\"rope_theta\":10000.0,\"sequence_length\":%u,\"sequence_start\":0",
        shape->sequence);
    if (manifest) {
        ADD(&text, ",\"tensor_manifest\":{\"attention_type\":\"causal\",\"batch_size\":1,");
        ADD(&text, "\"byte_order\":\"little\",\"cache_class\":\"dynamic\",\"tensors\":[");
        for (unsigned i = 0; i < 2 * shape->layers; i++) {
            add_record(&text, shape, i);
        }
        ADD(&text, "],\"version\":1}");
    }
    ADD(&text, ",\"tokenizer_sha256\":\"%064d\"}", 0);
    return text.data;
}

/* A file in memory that a writer makes through a sink, with calls that can be made to fail. */
struct memory_file {
    uint8_t *data;
    size_t bytes;
    size_t capacity;
    int writes;
    int finishes;
    int discards;
    int fail_write; /* the number of the write that fails, counted from 1 */
    int fail_finish;
};

static inline int memory_write(void *context, const void *data, size_t bytes)
{
    struct memory_file *file = context;
    file->writes++;
    if (file->writes == file->fail_write) {
        return EPIPE;
    }
    if (file->bytes + bytes > file->capacity) {
        file->capacity = 2 * (file->bytes + bytes);
        uint8_t *larger = realloc(file->data, file->capacity);
        if (larger == NULL) {
            return ENOMEM;
        }
        file->data = larger;
    }
    memcpy(file->data + file->bytes, data, bytes);
    file->bytes += bytes;
    return 0;
}

static inline int memory_finish(void *context)
{
    struct memory_file *file = context;
    file->finishes++;
    return file->fail_finish ? EDQUOT : 0;
}

static inline void memory_discard(void *context)
{
    struct memory_file *file = context;
    file->discards++;
}

static inline struct kvc_sink memory_sink(struct memory_file *file)
{
    struct kvc_sink sink = KVC_SINK_INIT;
    sink.context = file;
    sink.write = memory_write;
    sink.finish = memory_finish;
    sink.discard = memory_discard;
    return sink;
}

/* Gives the payload to a writer in pieces of `piece` bytes, 0 meaning all at once. */
static inline enum kvc_status write_in_pieces(struct kvc_writer *writer, const uint8_t *payload,
                                              uint64_t bytes, uint64_t piece,
                                              struct kvc_error *error)
{
    enum kvc_status status = KVC_OK;
    for (uint64_t at = 0; status == KVC_OK && at < bytes;) {
        uint64_t count = piece == 0 || piece > bytes - at ? bytes - at : piece;
        status = kvc_writer_write(writer, payload + at, count, error);
        at += count;
    }
    return status;
}

/* Makes a container in memory; the program ends when that fails. */
static inline struct memory_file pack_memory(const char *metadata, const uint8_t *payload,
                                             uint64_t bytes,
                                             const struct kvc_writer_options *options)
{
    struct memory_file file = {0};
    struct kvc_error error = KVC_ERROR_INIT;
    struct kvc_writer_options own = KVC_WRITER_OPTIONS_INIT;
    struct kvc_writer *writer = NULL;
    struct kvc_sink sink = memory_sink(&file);
    own = options != NULL ? *options : own;
    own.payload_bytes = bytes;
    if (kvc_writer_create_sink(&sink, metadata, strlen(metadata), &own, &writer, &error) !=
            KVC_OK ||
        kvc_writer_write(writer, payload, bytes, &error) != KVC_OK ||
        kvc_writer_finish(writer, NULL, &error) != KVC_OK) {
        bail_out(error.message);
    }
    kvc_writer_free(writer);
    return file;
}

/* Makes a container of `shape` in memory with the payload of `seed`. */
static inline struct memory_file pack_shape(const struct shape *shape, uint64_t seed,
                                            const struct kvc_writer_options *options)
{
    char *metadata = make_metadata(shape, 1, "test");
    uint8_t *payload = make_payload(shape_payload_bytes(shape), seed);
    struct memory_file file = pack_memory(metadata, payload, shape_payload_bytes(shape), options);
    free(metadata);
    free(payload);
    return file;
}

static inline void join_path(char ret_path[CASE_PATH_BYTES], const char *folder, const char *name)
{
    int length = snprintf(ret_path, CASE_PATH_BYTES, "%s/%s", folder, name);
    if (length < 0 || length >= CASE_PATH_BYTES) {
        bail_out("a path is too long");
    }
}

static inline void make_folder(char ret_folder[CASE_PATH_BYTES])
{
    const char *base = getenv("TMPDIR");
    join_path(ret_folder, base != NULL ? base : "/tmp", "kvc-test-XXXXXX");
    if (mkdtemp(ret_folder) == NULL) {
        bail_out("making a folder");
    }
}

/* Counts what lies in a folder; with `remove` set, it and the folder are removed too. */
static inline int count_folder(const char *folder, int remove)
{
    int count = 0;
    DIR *stream = opendir(folder);
    if (stream == NULL) {
        bail_out("listing a folder");
    }
    for (struct dirent *entry = readdir(stream); entry != NULL; entry = readdir(stream)) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        count++;
        if (remove) {
            char path[CASE_PATH_BYTES];
            join_path(path, folder, entry->d_name);
            if (unlink(path) != 0) {
                (void)rmdir(path);
            }
        }
    }
    (void)closedir(stream);
    if (remove) {
        (void)rmdir(folder);
    }
    return count;
}

static inline void put_file(const char *path, const void *data, size_t bytes)
{
    FILE *stream = fopen(path, "wb");
    if (stream == NULL || fwrite(data, 1, bytes, stream) != bytes || fclose(stream) != 0) {
        bail_out(path);
    }
}

/* Reads a whole file; the caller frees it. NULL when there is none. */
static inline uint8_t *get_file(const char *path, size_t *ret_bytes)
{
    struct stat facts;
    FILE *stream = fopen(path, "rb");
    if (stream == NULL || fstat(fileno(stream), &facts) != 0) {
        return NULL;
    }
    uint8_t *data = take_memory((size_t)facts.st_size);
    *ret_bytes = fread(data, 1, (size_t)facts.st_size, stream);
    (void)fclose(stream);
    return data;
}

static inline int same_file_bytes(const char *path, const uint8_t *data, size_t bytes)
{
    size_t found_bytes = 0;
    uint8_t *found = get_file(path, &found_bytes);
    int same = found != NULL && found_bytes == bytes && memcmp(found, data, bytes) == 0;
    free(found);
    return same;
}

#endif
