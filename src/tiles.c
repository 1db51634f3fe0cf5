/* tiles.c: does numbered pieces of work on several threads; the only file that knows threads.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tiles.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if KVCI_LINUX_CALLS
#include <sched.h>
#endif

#include "alloc.h"
#include "status.h"

#include "ban.h"

#define MAX_THREADS 256
#define MAX_DEFAULT_THREADS 16

/* Starting a thread costs about as much as hashing this many bytes. */
#define BYTES_PER_THREAD (UINT64_C(512) << 10)

/* The progress callback is called about once for this many bytes. */
#define PROGRESS_BYTES (UINT64_C(4) << 20)

struct failure {
    uint64_t tile;
    struct kvc_error error;
};

struct run {
    const struct kvci_tiles *tiles;
    atomic_uint_fast64_t next_tile;
    atomic_uint_fast64_t done_tiles;
    atomic_uint_fast64_t stop_at; /* no tile from here on is begun */
    pthread_mutex_t lock;         /* guards what follows */
    struct failure *failures;     /* in ascending order of tiles */
    size_t failure_count;
    size_t failure_capacity;
    bool no_memory; /* for a failure that should have been kept */
    uint64_t reported_bytes;
    bool cancelled;
    struct worker *workers; /* the first is the caller itself */
    uint64_t worker_count;
    pid_t process;
};

struct worker {
    struct run *run;
    pthread_t thread;
    uint8_t *scratch;
    bool started;
};

enum kvc_status kvci_tiles_check(const struct kvc_work *work, struct kvc_error *error)
{
    if (work != NULL && work->size != sizeof(*work)) {
        return kvci_fail(error, KVC_E_OPTION, KVC_NO_OFFSET,
                         "kvc_work.size is %zu, expected %zu: use KVC_WORK_INIT", work->size,
                         sizeof(*work));
    }
    if (work != NULL && work->threads > MAX_THREADS) {
        return kvci_fail(error, KVC_E_OPTION, KVC_NO_OFFSET,
                         "kvc_work.threads is %u, expected 0 to %d", work->threads, MAX_THREADS);
    }
    return KVC_OK;
}

static uint64_t usable_processors(void)
{
#if KVCI_LINUX_CALLS
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0) {
        return (uint64_t)CPU_COUNT(&set);
    }
#endif
    long count = sysconf(_SC_NPROCESSORS_ONLN);
    return count > 0 ? (uint64_t)count : 1;
}

static uint64_t choose_threads(const struct kvci_tiles *tiles)
{
    uint64_t threads = tiles->work != NULL ? tiles->work->threads : 0;
    if (threads == 0) {
        uint64_t useful = 1 + tiles->total_bytes / BYTES_PER_THREAD;
        threads = usable_processors();
        threads = threads < MAX_DEFAULT_THREADS ? threads : MAX_DEFAULT_THREADS;
        threads = threads < useful ? threads : useful;
    }
    threads = threads < tiles->tile_count ? threads : tiles->tile_count;
    return threads > 0 ? threads : 1;
}

static uint64_t group_of(const struct run *run, size_t index)
{
    return run->tiles->group(run->tiles->context, run->failures[index].tile);
}

/* Returns the index of the kept failure of this status in the tile's group, else the count. A
 * group's failures are neighbours of `at`, where the tile belongs. */
static size_t find_in_group(const struct run *run, size_t at, uint64_t tile, enum kvc_status status)
{
    if (run->tiles->on_failure == NULL) {
        return run->failure_count;
    }
    uint64_t group = run->tiles->group(run->tiles->context, tile);
    while (at > 0 && group_of(run, at - 1) == group) {
        at--;
    }
    for (; at < run->failure_count && group_of(run, at) == group; at++) {
        if (run->failures[at].error.status == status) {
            return at;
        }
    }
    return run->failure_count;
}

/* Makes room for one more failure. A run that stops at a failure keeps one, that of the lowest
 * tile. */
static bool make_room(struct run *run, size_t at)
{
    const struct kvci_tiles *tiles = run->tiles;
    if (run->failure_count < run->failure_capacity) {
        return true;
    }
    if (tiles->on_failure == NULL) {
        run->failure_count = at;
        return at < run->failure_capacity;
    }
    size_t bytes = run->failure_capacity * sizeof(struct failure);
    struct failure *larger = kvci_alloc_grow(tiles->allocator, run->failures, bytes, 2 * bytes);
    if (larger == NULL) {
        run->no_memory = true;
        return false;
    }
    run->failures = larger;
    run->failure_capacity *= 2;
    return true;
}

/* Keeps the failures in the order of their tiles, one of each status in a group. */
static void insert_failure(struct run *run, uint64_t tile, const struct kvc_error *error)
{
    size_t at = run->failure_count;
    while (at > 0 && run->failures[at - 1].tile > tile) {
        at--;
    }
    size_t replaced = find_in_group(run, at, tile, error->status);
    if (replaced < at) {
        return;
    }
    if (replaced == run->failure_count) {
        if (!make_room(run, at)) {
            return;
        }
        replaced = run->failure_count++;
    }
    memmove(&run->failures[at + 1], &run->failures[at], (replaced - at) * sizeof(run->failures[0]));
    run->failures[at].tile = tile;
    run->failures[at].error = *error;
}

static void keep_failure(struct run *run, uint64_t tile, const struct kvc_error *error)
{
    (void)pthread_mutex_lock(&run->lock);
    insert_failure(run, tile, error);
    (void)pthread_mutex_unlock(&run->lock);
}

static void stop_at(struct run *run, uint64_t tile)
{
    uint_fast64_t now = atomic_load(&run->stop_at);
    while (tile < now && !atomic_compare_exchange_weak(&run->stop_at, &now, tile)) {
    }
}

static void report_progress(struct run *run)
{
    const struct kvci_tiles *tiles = run->tiles;
    if (tiles->work == NULL || tiles->work->progress == NULL || run->cancelled) {
        return;
    }
    /* Whole numbers of 2^53 bytes and 2^37 tiles would overflow a product, so it is a quotient. */
    uint64_t per_tile = tiles->tile_count > 0 ? tiles->total_bytes / tiles->tile_count : 0;
    uint64_t done_tiles = atomic_load(&run->done_tiles);
    uint64_t done = done_tiles == tiles->tile_count ? tiles->total_bytes : per_tile * done_tiles;
    bool finished = done_tiles == tiles->tile_count && done > run->reported_bytes;
    if (done < run->reported_bytes + PROGRESS_BYTES && !finished) {
        return;
    }
    run->reported_bytes = done;
    uint64_t total = tiles->progress_bytes > 0 ? tiles->progress_bytes : tiles->total_bytes;
    if (tiles->work->progress(tiles->work->progress_context, tiles->before_bytes + done, total) !=
        0) {
        run->cancelled = true;
        stop_at(run, 0);
    }
}

static void work_on(struct run *run, uint8_t *scratch, bool caller)
{
    const struct kvci_tiles *tiles = run->tiles;
    for (;;) {
        uint64_t tile = atomic_fetch_add(&run->next_tile, 1);
        if (tile >= tiles->tile_count || tile >= atomic_load(&run->stop_at)) {
            return;
        }
        struct kvc_error error = KVC_ERROR_INIT;
        if (tiles->tile(tiles->context, tile, scratch, &error) != KVC_OK) {
            keep_failure(run, tile, &error);
            if (tiles->on_failure == NULL) {
                stop_at(run, tile);
            }
        }
        atomic_fetch_add(&run->done_tiles, 1);
        if (caller) {
            report_progress(run);
        }
    }
}

static void *thread_main(void *argument)
{
    struct worker *worker = argument;
    work_on(worker->run, worker->scratch, false);
    return NULL;
}

/* Signals go to the caller's threads, which know what to do with them; only a fault of a worker,
 * such as access to a mapping that was cut, stays with it and finds the process's handler. A
 * thread that cannot be had is done without. */
static void start_workers(struct worker *workers, uint64_t count)
{
    static const int own_faults[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t others;
    sigset_t before;
    (void)sigfillset(&others);
    for (size_t i = 0; i < sizeof(own_faults) / sizeof(own_faults[0]); i++) {
        (void)sigdelset(&others, own_faults[i]);
    }
    (void)pthread_sigmask(SIG_BLOCK, &others, &before);
    for (uint64_t i = 1; i < count; i++) {
        workers[i].started =
            pthread_create(&workers[i].thread, NULL, thread_main, &workers[i]) == 0;
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static enum kvc_status conclude(struct run *run, struct kvc_error *error)
{
    const struct kvci_tiles *tiles = run->tiles;
    if (run->cancelled) {
        return kvci_fail(error, KVC_E_CANCELLED, KVC_NO_OFFSET,
                         "cancelled by the progress callback");
    }
    if (run->no_memory) {
        return kvci_fail_memory(error, sizeof(struct failure));
    }
    if (run->failure_count == 0) {
        return KVC_OK;
    }
    for (size_t i = 0; tiles->on_failure != NULL && i < run->failure_count; i++) {
        const struct failure *failure = &run->failures[i];
        if (tiles->on_failure(tiles->context, failure->tile, &failure->error) != 0) {
            break;
        }
    }
    if (error != NULL && error->size == sizeof(*error)) {
        *error = run->failures[0].error;
    }
    return run->failures[0].error.status;
}

/* Ends the threads and frees what the run holds. It also runs when a callback ends the caller's
 * thread, as Python does at its exit: the workers use the stack of that thread. A process that was
 * forked in a callback has no workers. */
static void end_run(void *argument)
{
    struct run *run = argument;
    const struct kvci_tiles *tiles = run->tiles;
    stop_at(run, 0);
    for (uint64_t i = 0; run->workers != NULL && i < run->worker_count; i++) {
        if (run->workers[i].started && run->process == getpid()) {
            (void)pthread_join(run->workers[i].thread, NULL);
        }
        kvci_free(tiles->allocator, run->workers[i].scratch);
    }
    kvci_free(tiles->allocator, run->failures);
    kvci_free(tiles->allocator, run->workers);
    (void)pthread_mutex_destroy(&run->lock);
}

static void join_workers(struct run *run)
{
    for (uint64_t i = 1; i < run->worker_count && run->process == getpid(); i++) {
        if (run->workers[i].started) {
            (void)pthread_join(run->workers[i].thread, NULL);
            run->workers[i].started = false;
        }
    }
}

static enum kvc_status prepare_run(struct run *run, struct kvc_error *error)
{
    const struct kvci_tiles *tiles = run->tiles;
    size_t workers_bytes = (size_t)run->worker_count * sizeof(struct worker);
    size_t failures_bytes = run->failure_capacity * sizeof(struct failure);
    run->workers = kvci_alloc(tiles->allocator, workers_bytes);
    run->failures = kvci_alloc(tiles->allocator, failures_bytes);
    if (run->workers == NULL || run->failures == NULL) {
        return kvci_fail_memory(error, workers_bytes + failures_bytes);
    }
    for (uint64_t i = 0; i < run->worker_count; i++) {
        run->workers[i].run = run;
        if (tiles->scratch_bytes > 0) {
            run->workers[i].scratch = kvci_alloc(tiles->allocator, tiles->scratch_bytes);
            if (run->workers[i].scratch == NULL) {
                return kvci_fail_memory(error, tiles->scratch_bytes);
            }
        }
    }
    return KVC_OK;
}

enum kvc_status kvci_tiles_run(const struct kvci_tiles *tiles, struct kvc_error *error)
{
    struct run run = {.tiles = tiles,
                      .failure_capacity = 1,
                      .worker_count = choose_threads(tiles),
                      .process = getpid()};
    enum kvc_status status = KVC_OK;
    atomic_init(&run.next_tile, 0);
    atomic_init(&run.done_tiles, 0);
    atomic_init(&run.stop_at, UINT64_MAX);
    (void)pthread_mutex_init(&run.lock, NULL);
    pthread_cleanup_push(end_run, &run);
    status = prepare_run(&run, error);
    if (status == KVC_OK) {
        start_workers(run.workers, run.worker_count);
        work_on(&run, run.workers[0].scratch, true);
        join_workers(&run);
        report_progress(&run);
        status = conclude(&run, error);
    }
    pthread_cleanup_pop(1);
    return status;
}
