/* progress.h: a progress bar on stderr for long work, when stderr is a terminal.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVC_PROGRESS_H
#define KVC_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One piece of work. It shows nothing in its first half second. */
struct progress {
    const char *verb; /* "verify" */
    const char *name; /* of the file */
    bool enabled;
    bool shown; /* the bar stands on the terminal now */
    int64_t start_ms;
    int64_t drawn_ms;
};

void progress_start(struct progress *progress, const char *verb, const char *name);

/* Draws the bar when its time has come; a `total` of 0 is not known. Its type is kvc_progress_fn,
 * with the struct as its context; it never cancels. */
int progress_update(void *context, uint64_t done, uint64_t total);

/* Takes the bar away, before other lines are printed and at the end. */
void progress_clear(struct progress *progress);

#endif
