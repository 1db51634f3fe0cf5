/* bench_clock.h: time, and memory in the state that a timed step wants.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVC_BENCH_CLOCK_H
#define KVC_BENCH_CLOCK_H

#include <stddef.h>
#include <stdint.h>

/* Returns seconds of a clock that only goes forward. */
double bench_now(void);

/* Returns `bytes` bytes that were written once, for the caller to free. */
uint8_t *bench_warm_block(size_t bytes);

/* Takes fresh pages from the system and gives them back: on a virtual machine the first use of a
 * page can cost ten times the usual. */
void bench_warm_pages(uint64_t bytes);

/* Reads a file once, so that it is in the page cache. */
void bench_warm_file(const char *path);

/* Puts a file out of the page cache, and ends the process where the system keeps it. */
void bench_cool_file(const char *path);

/* Resets the peak of the process's memory, and returns the memory in use, in bytes. */
uint64_t bench_peak_reset(void);

/* Returns the peak of the process's memory since then, in bytes. */
uint64_t bench_peak(void);

#endif
