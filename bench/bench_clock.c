/* bench_clock.c: time, and memory in the state that a timed step wants.
 * SPDX-License-Identifier: Apache-2.0 */
#include "bench_clock.h"

#include "bench_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

double bench_now(void)
{
    struct timespec time;
    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

uint8_t *bench_warm_block(size_t bytes)
{
    uint8_t *block = malloc(bytes);
    if (block == NULL) {
        bench_die("no memory", strerror(errno));
    }
    memset(block, 0x5a, bytes);
    return block;
}

void bench_warm_pages(uint64_t bytes)
{
    uint8_t *block = bench_warm_block((size_t)bytes);
    const volatile uint8_t *at = block;
    (void)at[bytes / 2];
    free(block);
}

static int must_open(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        bench_die(path, strerror(errno));
    }
    return fd;
}

void bench_warm_file(const char *path)
{
    const size_t piece = (size_t)1 << 20;
    uint8_t *block = bench_warm_block(piece);
    int fd = must_open(path);
    while (read(fd, block, piece) > 0) {
    }
    (void)close(fd);
    free(block);
}

/* Returns how many of the file's pages the system holds in memory. */
static size_t pages_held(int fd, size_t bytes)
{
    const size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    const size_t pages = (bytes + page_bytes - 1) / page_bytes;
    void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    unsigned char *held = malloc(pages);
    size_t count = 0;
    if (map == MAP_FAILED || held == NULL || mincore(map, bytes, held) != 0) {
        bench_die("mincore", strerror(errno));
    }
    for (size_t i = 0; i < pages; i++) {
        count += held[i] & 1u;
    }
    free(held);
    (void)munmap(map, bytes);
    return count;
}

void bench_cool_file(const char *path)
{
    struct stat facts;
    int fd = must_open(path);
    if (fstat(fd, &facts) != 0 || fsync(fd) != 0) {
        bench_die(path, strerror(errno));
    }
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    if (pages_held(fd, (size_t)facts.st_size) > 0) {
        bench_die(path, "the system keeps it in memory, so that nothing cold can be measured");
    }
    (void)close(fd);
}

static uint64_t status_bytes(const char *field)
{
    char line[256];
    uint64_t kib = 0;
    FILE *file = fopen("/proc/self/status", "re");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, field, strlen(field)) == 0) {
            kib = strtoull(line + strlen(field), NULL, 10);
        }
    }
    if (file == NULL || kib == 0) {
        bench_die("/proc/self/status", "it does not tell the process's memory");
    }
    (void)fclose(file);
    return kib * 1024;
}

uint64_t bench_peak_reset(void)
{
    int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, "5", 1) != 1) {
        bench_die("/proc/self/clear_refs", strerror(errno));
    }
    (void)close(fd);
    return status_bytes("VmRSS:");
}

uint64_t bench_peak(void)
{
    return status_bytes("VmHWM:");
}
