/* test_tiles.c: tiles are done once each, failures come in order, progress can cancel.
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "cases.h"
#include "tiles.h"

#define MOST_TILES 5000
#define TILE_BYTES (UINT64_C(1) << 20)

/* One run: what each tile should do, and what happened. */
struct run_log {
    atomic_uint done[MOST_TILES];
    uint8_t fails[MOST_TILES];
    pthread_t caller;
    atomic_int unblocked; /* helper threads in which a signal could arrive */
    atomic_int dirty;     /* tiles whose scratch was used by somebody else at the same time */
    uint64_t reported[MOST_TILES];
    size_t report_count;
    size_t stop_after; /* reports; 0: never */
    uint64_t group_tiles;
    uint64_t last_done;
    uint64_t last_total;
    unsigned calls;
    unsigned cancel_at; /* progress call that cancels, counted from 1 */
    int went_back;
    int wrong_thread;
};

static enum kvc_status do_tile(void *context, uint64_t tile, uint8_t *scratch,
                               struct kvc_error *error)
{
    struct run_log *log = context;
    sigset_t blocked;
    if (!pthread_equal(pthread_self(), log->caller)) {
        (void)pthread_sigmask(SIG_SETMASK, NULL, &blocked);
        if (sigismember(&blocked, SIGINT) != 1) {
            atomic_fetch_add(&log->unblocked, 1);
        }
    }
    atomic_fetch_add(&log->done[tile], 1);
    if (scratch != NULL) {
        memset(scratch, (int)(tile % 251), 4096);
        for (size_t i = 0; i < 4096; i++) {
            if (scratch[i] != tile % 251) {
                atomic_fetch_add(&log->dirty, 1);
                break;
            }
        }
    }
    if (log->fails[tile]) {
        error->status = KVC_E_CHUNK;
        error->offset = tile;
        return KVC_E_CHUNK;
    }
    return KVC_OK;
}

static int hear_failure(void *context, uint64_t tile, const struct kvc_error *failure)
{
    struct run_log *log = context;
    CHECK_NUMBER(failure->offset, tile);
    log->reported[log->report_count++] = tile;
    return log->stop_after > 0 && log->report_count == log->stop_after;
}

static int hear_progress(void *context, uint64_t done, uint64_t total)
{
    struct run_log *log = context;
    log->calls++;
    log->went_back += done < log->last_done || done > total;
    log->wrong_thread += !pthread_equal(pthread_self(), log->caller);
    log->last_done = done;
    log->last_total = total;
    return log->calls == log->cancel_at;
}

/* `group_tiles` is how many neighbours make a group. */
static uint64_t group_of_tile(void *context, uint64_t tile)
{
    const struct run_log *log = context;
    return tile / (log->group_tiles > 0 ? log->group_tiles : 1);
}

static enum kvc_status run_tiles(struct run_log *log, uint32_t threads, uint64_t count, int reports,
                                 struct kvc_error *error)
{
    struct kvc_work work = KVC_WORK_INIT;
    work.threads = threads;
    work.progress = hear_progress;
    work.progress_context = log;
    log->caller = pthread_self();
    struct kvci_tiles tiles = {
        .work = &work,
        .tile_count = count,
        .total_bytes = count * TILE_BYTES,
        .scratch_bytes = 4096,
        .tile = do_tile,
        .context = log,
        .on_failure = reports ? hear_failure : NULL,
        .group = group_of_tile,
    };
    return kvci_tiles_run(&tiles, error);
}

static const uint32_t thread_counts[] = {0, 1, 2, 7, 64};
#define THREAD_COUNTS (sizeof(thread_counts) / sizeof(thread_counts[0]))

static void each_tile_once(void)
{
    static const uint64_t counts[] = {0, 1, 2, 3, 63, 1000, MOST_TILES};
    for (size_t t = 0; t < THREAD_COUNTS; t++) {
        for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
            struct run_log *log = take_memory(sizeof(*log));
            CHECK_STATUS(run_tiles(log, thread_counts[t], counts[c], 0, NULL), KVC_OK);
            for (uint64_t i = 0; i < counts[c]; i++) {
                CHECK_NUMBER(atomic_load(&log->done[i]), 1);
            }
            CHECK_NUMBER((uint64_t)atomic_load(&log->unblocked), 0);
            CHECK_NUMBER((uint64_t)atomic_load(&log->dirty), 0);
            CHECK(log->went_back == 0 && log->wrong_thread == 0);
            CHECK_NUMBER(log->last_done, counts[c] * TILE_BYTES);
            CHECK_NUMBER(log->last_total, counts[c] * TILE_BYTES);
            free(log);
        }
    }
}

static void lowest_failure_wins(void)
{
    for (size_t t = 0; t < THREAD_COUNTS; t++) {
        for (int round = 0; round < 40; round++) {
            struct run_log *log = take_memory(sizeof(*log));
            struct kvc_error error = KVC_ERROR_INIT;
            for (uint64_t tile = 100 + (uint64_t)round; tile < 1000; tile += 7) {
                log->fails[tile] = 1;
            }
            CHECK_STATUS(run_tiles(log, thread_counts[t], 1000, 0, &error), KVC_E_CHUNK);
            CHECK_NUMBER(error.offset, 100 + (uint64_t)round);
            for (int i = 0; i < 100 + round; i++) {
                CHECK_NUMBER(atomic_load(&log->done[i]), 1);
            }
            free(log);
        }
    }
}

static void stops_after_a_failure(void)
{
    struct run_log *log = take_memory(sizeof(*log));
    log->fails[10] = 1;
    CHECK_STATUS(run_tiles(log, 1, 1000, 0, NULL), KVC_E_CHUNK);
    CHECK_NUMBER(atomic_load(&log->done[10]), 1);
    CHECK_NUMBER(atomic_load(&log->done[11]), 0);
    free(log);
}

static void reports_in_order(void)
{
    for (size_t t = 0; t < THREAD_COUNTS; t++) {
        struct run_log *log = take_memory(sizeof(*log));
        struct kvc_error error = KVC_ERROR_INIT;
        size_t wanted = 0;
        for (uint64_t tile = 5; tile < 3000; tile += 11) {
            log->fails[tile] = 1;
        }
        CHECK_STATUS(run_tiles(log, thread_counts[t], 3000, 1, &error), KVC_E_CHUNK);
        CHECK_NUMBER(error.offset, 5);
        for (uint64_t tile = 0; tile < 3000; tile++) {
            CHECK_NUMBER(atomic_load(&log->done[tile]), 1);
            if (log->fails[tile]) {
                CHECK(wanted < log->report_count && log->reported[wanted] == tile);
                wanted++;
            }
        }
        CHECK_NUMBER(log->report_count, wanted);
        free(log);
    }
}

static void groups_report_once(void)
{
    for (size_t t = 0; t < THREAD_COUNTS; t++) {
        struct run_log *log = take_memory(sizeof(*log));
        struct kvc_error error = KVC_ERROR_INIT;
        log->group_tiles = 7;
        memset(log->fails + 3, 1, 20);
        log->fails[700] = 1;
        log->fails[706] = 1;
        CHECK_STATUS(run_tiles(log, thread_counts[t], 1000, 1, &error), KVC_E_CHUNK);
        CHECK_NUMBER(error.offset, 3);
        static const uint64_t wanted[] = {3, 7, 14, 21, 700};
        CHECK_NUMBER(log->report_count, 5);
        CHECK(memcmp(log->reported, wanted, sizeof(wanted)) == 0);
        free(log);
    }
}

static void reports_end_when_told(void)
{
    struct run_log *log = take_memory(sizeof(*log));
    memset(log->fails, 1, 100);
    log->stop_after = 3;
    CHECK_STATUS(run_tiles(log, 2, 100, 1, NULL), KVC_E_CHUNK);
    CHECK_NUMBER(log->report_count, 3);
    free(log);
}

static void progress_cancels(void)
{
    for (size_t t = 0; t < THREAD_COUNTS; t++) {
        for (unsigned at = 1; at < 4; at++) {
            struct run_log *log = take_memory(sizeof(*log));
            struct kvc_error error = KVC_ERROR_INIT;
            log->cancel_at = at;
            /* A run that is over before the caller's thread took many tiles calls once. */
            enum kvc_status status = run_tiles(log, thread_counts[t], MOST_TILES, 0, &error);
            CHECK(log->calls <= at);
            CHECK_STATUS(status, log->calls == at ? KVC_E_CANCELLED : KVC_OK);
            if (thread_counts[t] == 1) {
                CHECK_NUMBER(log->calls, at);
                CHECK_NUMBER(atomic_load(&log->done[MOST_TILES - 1]), 0);
            }
            free(log);
        }
    }
}

static void work_is_judged(void)
{
    struct kvc_work work = KVC_WORK_INIT;
    CHECK_STATUS(kvci_tiles_check(NULL, NULL), KVC_OK);
    CHECK_STATUS(kvci_tiles_check(&work, NULL), KVC_OK);
    work.threads = 256;
    CHECK_STATUS(kvci_tiles_check(&work, NULL), KVC_OK);
    work.threads = 257;
    CHECK_STATUS(kvci_tiles_check(&work, NULL), KVC_E_OPTION);
    work.threads = 1;
    work.size--;
    CHECK_STATUS(kvci_tiles_check(&work, NULL), KVC_E_OPTION);
}

int main(void)
{
    run_case("each tile is done once, by threads that block signals", each_tile_once);
    run_case("the failure of the lowest tile is returned", lowest_failure_wins);
    run_case("nothing is begun after a failure", stops_after_a_failure);
    run_case("with reports all tiles are done and failures come in order", reports_in_order);
    run_case("a group of tiles is reported once, by its lowest", groups_report_once);
    run_case("reports end when the callback says so", reports_end_when_told);
    run_case("the progress callback cancels", progress_cancels);
    run_case("the work struct is judged", work_is_judged);
    return end_cases();
}
