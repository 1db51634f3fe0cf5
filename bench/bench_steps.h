/* bench_steps.h: the steps that kvc-bench times, each for a process of its own.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVC_BENCH_STEPS_H
#define KVC_BENCH_STEPS_H

#include "bench_files.h"

#include <stddef.h>

/* One step. `run` returns seconds, or what `unit` says, and ends the process when it fails. */
struct bench_step {
    const char *name;
    const char *unit; /* "s", "B" */
    double (*run)(const struct bench_files *files, uint64_t argument);
    uint64_t argument; /* bytes or threads */
    int needs_big;
};

extern const struct bench_step bench_steps[];
extern const size_t bench_step_count;

#endif
