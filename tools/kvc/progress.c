/* progress.c: a progress bar on stderr for long work, when stderr is a terminal.
 * SPDX-License-Identifier: Apache-2.0 */
#include "progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "safe_text.h"

#define QUIET_MS 500
#define REDRAW_MS 100
#define NAME_COLUMNS 24
#define BAR_COLUMNS 20
#define LEAST_COLUMNS 10
#define MOST_COLUMNS 200

static int64_t now_ms(void)
{
    struct timespec now = {0, 0};
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void progress_start(struct progress *progress, const char *verb, const char *name)
{
    /* A job in the background must not draw over what the foreground prints. */
    pid_t foreground = tcgetpgrp(STDERR_FILENO);
    *progress = (struct progress){.verb = verb, .name = name};
    progress->enabled = isatty(STDERR_FILENO) == 1 && (foreground < 0 || foreground == getpgrp());
    progress->start_ms = now_ms();
}

static int terminal_columns(void)
{
    struct winsize size;
    memset(&size, 0, sizeof(size));
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) {
        return 80;
    }
    if (size.ws_col < LEAST_COLUMNS) {
        return LEAST_COLUMNS;
    }
    return size.ws_col < MOST_COLUMNS ? size.ws_col : MOST_COLUMNS;
}

static void rest_text(uint64_t done, uint64_t total, int64_t spent_ms, char ret_text[32])
{
    ret_text[0] = '\0';
    if (done > 0 && total > done) {
        uint64_t left_s =
            (uint64_t)((double)(total - done) / (double)done * (double)spent_ms / 1000 + 0.5);
        (void)snprintf(ret_text, 32, ", %" PRIu64 ":%02" PRIu64 " left", left_s / 60, left_s % 60);
    }
}

/* Everything after the file name, which has no characters of the file in it. */
static void state_text(uint64_t done, uint64_t total, int64_t spent_ms, char *ret_text,
                       size_t capacity)
{
    char done_text[32];
    char total_text[32];
    char rate_text[32];
    char left_text[32];
    double rate = spent_ms > 0 ? (double)done * 1000 / (double)spent_ms : 0;
    (void)short_size(done, done_text);
    (void)short_size((uint64_t)rate, rate_text);
    if (total == 0) {
        (void)snprintf(ret_text, capacity, "%s, %s/s", done_text, rate_text);
        return;
    }
    if (done > total) {
        done = total;
    }
    char bar[BAR_COLUMNS + 1];
    double part = (double)done / (double)total;
    size_t full = (size_t)(part * BAR_COLUMNS);
    memset(bar, '-', BAR_COLUMNS);
    memset(bar, '#', full);
    bar[BAR_COLUMNS] = '\0';
    rest_text(done, total, spent_ms, left_text);
    (void)snprintf(ret_text, capacity, "[%s] %3d%% of %s, %s/s%s", bar, (int)(part * 100),
                   short_size(total, total_text), rate_text, left_text);
}

int progress_update(void *context, uint64_t done, uint64_t total)
{
    struct progress *progress = context;
    if (!progress->enabled) {
        return 0;
    }
    int64_t now = now_ms();
    if (now - progress->start_ms < QUIET_MS ||
        (progress->shown && now - progress->drawn_ms < REDRAW_MS)) {
        return 0;
    }
    char state[160];
    state_text(done, total, now - progress->start_ms, state, sizeof(state));
    int columns = terminal_columns() - 1;
    int used = fprintf(stderr, "\r%.*s ", columns - 1, progress->verb) - 1;
    /* One column less than there is room for: a name that is cut has an ellipsis behind it. */
    int room = columns - used - 1;
    room = room < NAME_COLUMNS ? room : NAME_COLUMNS;
    used += room > 0 ? (int)put_safe_text(stderr, progress->name, (size_t)room) : 0;
    room = columns - used - 2;
    if (room > 0) {
        used += fprintf(stderr, "  %.*s", room, state);
    }
    /* Spaces instead of an erase sequence: every terminal has them. */
    if (used < columns) {
        (void)fprintf(stderr, "%*s", columns - used, "");
    }
    (void)fflush(stderr);
    progress->shown = true;
    progress->drawn_ms = now;
    return 0;
}

void progress_clear(struct progress *progress)
{
    if (progress->shown) {
        (void)fprintf(stderr, "\r%*s\r", terminal_columns() - 1, "");
        (void)fflush(stderr);
        progress->shown = false;
    }
}
