/* fault_driver.c: saves and loads caches on behalf of the fault tests, which spoil system calls,
 * kill it, and run many of it at once.
 * SPDX-License-Identifier: Apache-2.0
 *
 * Usage: fault_driver COMMAND PATH [NUMBER]
 *   save PATH SEED      saves the content of SEED with several threads
 *   stream PATH SEED    the same content as an opaque payload of unknown length
 *   load PATH           opens, maps, reads and verifies; the bytes must be those of the file's seed
 *   loop PATH COUNT     saves COUNT contents to one name, one after the other; 0: without end
 *   watch PATH COUNT    loads COUNT times; the file must be there and whole each time
 *   crowd PATH COUNT    eight threads that save COUNT times each, and two that watch them
 *
 * Exit codes: 0 good; 1 wrong bytes, or a file that is damaged; 3 the system or the memory
 * refused. A refusal is one line on stderr: the status' name and the message. */
#include <pthread.h>
#include <stdatomic.h>

#include "cases.h"

#define WRITERS 8
#define WATCHERS 2

/* Four tensors of five grid chunks each: the file has rows, and more than one tile. */
static const struct shape shape = {2, 1, 30000, 10};

static int refuse(enum kvc_status status, const struct kvc_error *error)
{
    (void)fprintf(stderr, "%s: %s\n", kvc_status_name(status), error->message);
    return strcmp(kvc_status_class(status), "environment") == 0 ? 3 : 1;
}

static int wrong(const char *what)
{
    (void)fprintf(stderr, "wrong: %s\n", what);
    return 1;
}

/* The seed is written into the metadata, so that a reader knows what the bytes must be. */
static char *seeded_metadata(uint64_t seed, int manifest)
{
    char revision[64];
    (void)snprintf(revision, sizeof(revision), "seed-%" PRIu64, seed);
    return make_metadata(&shape, manifest, revision);
}

static int save(const char *path, uint64_t seed, int manifest, enum kvc_durability durability,
                uint32_t threads)
{
    struct kvc_error error = KVC_ERROR_INIT;
    struct kvc_writer_options options = KVC_WRITER_OPTIONS_INIT;
    struct kvc_writer *writer = NULL;
    uint64_t bytes = shape_payload_bytes(&shape);
    char *metadata = seeded_metadata(seed, manifest);
    uint8_t *payload = make_payload(bytes, seed);
    options.durability = durability;
    options.align_bytes = manifest ? 64 : 1;
    options.work.threads = threads;
    enum kvc_status status =
        kvc_writer_create_path(path, metadata, strlen(metadata), &options, &writer, &error);
    if (status == KVC_OK) {
        status = write_in_pieces(writer, payload, bytes, 500000, &error);
    }
    if (status == KVC_OK) {
        status = kvc_writer_finish(writer, NULL, &error);
    }
    kvc_writer_free(writer);
    free(metadata);
    free(payload);
    return status == KVC_OK ? 0 : refuse(status, &error);
}

static enum kvc_status find_seed(const struct kvc_reader *reader, uint64_t *ret_seed,
                                 struct kvc_error *error)
{
    const char *json = NULL;
    uint64_t bytes = 0;
    enum kvc_status status = kvc_reader_field(reader, "model_revision", &json, &bytes, error);
    if (status == KVC_OK) {
        *ret_seed = strtoull(json + strlen("\"seed-"), NULL, 10);
    }
    return status;
}

/* Compares reads, maps and the whole payload with the truth. */
static enum kvc_status compare(const struct kvc_reader *reader, const uint8_t *payload,
                               uint8_t *buffer, int *ret_same, struct kvc_error *error)
{
    struct kvc_info info = KVC_INFO_INIT;
    struct kvc_tensor tensor = KVC_TENSOR_INIT;
    struct kvc_work work = KVC_WORK_INIT;
    work.threads = 3;
    enum kvc_status status = kvc_reader_info(reader, &info, error);
    uint32_t count = info.tensor_count > 0 ? info.tensor_count : 1;
    *ret_same = info.payload_bytes == shape_payload_bytes(&shape);
    for (uint32_t i = 0; status == KVC_OK && *ret_same && i < count; i++) {
        struct kvc_view *view = NULL;
        status = kvc_reader_tensor(reader, i, &tensor, error);
        if (status == KVC_OK) {
            status = kvc_reader_read(reader, i, 1, 100000, &work, buffer, error);
            const uint8_t *truth = payload + tensor.offset + 1;
            *ret_same &= status != KVC_OK || memcmp(buffer, truth, 100000) == 0;
        }
        if (status == KVC_OK) {
            status = kvc_reader_map(reader, i, &work, &view, error);
        }
        if (status == KVC_OK) {
            *ret_same &= memcmp(kvc_view_data(view, NULL), payload + tensor.offset,
                                (size_t)tensor.tensor_bytes) == 0;
        }
        kvc_view_free(view);
    }
    if (status == KVC_OK) {
        status = kvc_reader_read_payload(reader, &work, buffer, info.payload_bytes, error);
        *ret_same &= status != KVC_OK || memcmp(buffer, payload, (size_t)info.payload_bytes) == 0;
    }
    if (status == KVC_OK) {
        status = kvc_reader_verify(reader, &work, NULL, NULL, error);
    }
    return status;
}

static int load(const char *path)
{
    struct kvc_error error = KVC_ERROR_INIT;
    struct kvc_reader *reader = NULL;
    uint64_t seed = 0;
    int same = 0;
    enum kvc_status status = kvc_reader_open_path(path, NULL, &reader, &error);
    if (status == KVC_OK) {
        status = find_seed(reader, &seed, &error);
    }
    if (status == KVC_OK) {
        uint8_t *payload = make_payload(shape_payload_bytes(&shape), seed);
        uint8_t *buffer = take_memory((size_t)shape_payload_bytes(&shape));
        status = compare(reader, payload, buffer, &same, &error);
        free(payload);
        free(buffer);
    }
    kvc_reader_free(reader);
    if (status != KVC_OK) {
        return refuse(status, &error);
    }
    return same ? 0 : wrong("bytes that are not those that were saved");
}

static int save_loop(const char *path, uint64_t count)
{
    int code = 0;
    for (uint64_t i = 1; code == 0 && (count == 0 || i <= count); i++) {
        code = save(path, i, i % 2 == 0, i % 3 == 0 ? KVC_DURABILITY_FULL : KVC_DURABILITY_NONE, 1);
    }
    return code;
}

static int watch(const char *path, uint64_t count)
{
    int code = 0;
    for (uint64_t i = 0; code == 0 && i < count; i++) {
        code = load(path);
    }
    return code;
}

struct crowd {
    const char *path;
    uint64_t count;
    atomic_uint_fast64_t seed;
    atomic_int writing;
    atomic_int worst;
};

static void note(struct crowd *crowd, int code)
{
    if (code != 0) {
        atomic_store(&crowd->worst, code);
    }
}

static void *write_in_crowd(void *context)
{
    struct crowd *crowd = context;
    for (uint64_t i = 0; i < crowd->count; i++) {
        uint64_t seed = atomic_fetch_add(&crowd->seed, 1);
        note(crowd, save(crowd->path, seed, seed % 2 == 0, KVC_DURABILITY_NONE, 2));
    }
    (void)atomic_fetch_sub(&crowd->writing, 1);
    return NULL;
}

static void *watch_in_crowd(void *context)
{
    struct crowd *crowd = context;
    do {
        note(crowd, load(crowd->path));
    } while (atomic_load(&crowd->writing) > 0);
    return NULL;
}

static int run_crowd(const char *path, uint64_t count)
{
    struct crowd crowd = {.path = path, .count = count};
    pthread_t threads[WRITERS + WATCHERS];
    atomic_init(&crowd.seed, 1);
    atomic_init(&crowd.writing, WRITERS);
    atomic_init(&crowd.worst, 0);
    int code = save(path, 0, 1, KVC_DURABILITY_NONE, 1);
    if (code != 0) {
        return code;
    }
    for (int i = 0; i < WRITERS + WATCHERS; i++) {
        if (pthread_create(&threads[i], NULL, i < WRITERS ? write_in_crowd : watch_in_crowd,
                           &crowd) != 0) {
            bail_out("starting a thread");
        }
    }
    for (int i = 0; i < WRITERS + WATCHERS; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    return atomic_load(&crowd.worst);
}

int main(int count, char **words)
{
    const char *command = count > 2 ? words[1] : "";
    uint64_t number = count > 3 ? strtoull(words[3], NULL, 10) : 1;
    if (strcmp(command, "save") == 0) {
        return save(words[2], number, 1, KVC_DURABILITY_FULL, 3);
    }
    if (strcmp(command, "stream") == 0) {
        return save(words[2], number, 0, KVC_DURABILITY_FULL, 3);
    }
    if (strcmp(command, "load") == 0) {
        return load(words[2]);
    }
    if (strcmp(command, "loop") == 0) {
        return save_loop(words[2], number);
    }
    if (strcmp(command, "watch") == 0) {
        return watch(words[2], number);
    }
    if (strcmp(command, "crowd") == 0) {
        return run_crowd(words[2], number);
    }
    (void)fprintf(stderr, "usage: fault_driver COMMAND PATH [NUMBER]\n");
    return 2;
}
