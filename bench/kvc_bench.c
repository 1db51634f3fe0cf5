/* kvc_bench.c: measures libkvc beside what any program pays for the same bytes, and prints ratios.
 * SPDX-License-Identifier: Apache-2.0
 *
 * Each step runs in a process of its own, in shuffled rounds; a ratio is taken inside a round, and
 * its median is printed. bench/run.py runs single steps by `--step` beside other programs. */
#include "bench_files.h"
#include "bench_steps.h"

#include <errno.h>
#include <kvc.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST_STEPS 64
#define MOST_ROUNDS 99

static const char usage_text[] =
    "Usage: kvc-bench [--folder DIR] [--mib N] [--big-mib N] [--rounds N] [--keep]\n"
    "       kvc-bench [--folder DIR] [--mib N] [--big-mib N] --step NAME | --make | --list\n"
    "Measures libkvc beside plain reads and writes of the same bytes, side by side.\n"
    "  --folder DIR   where to make its files, 5 GiB and more; on a real disk (default: .)\n"
    "  --mib N        size of the cache, a multiple of 64 (default: 512)\n"
    "  --big-mib N    size of the large one; 0 leaves it out (default: 8192)\n"
    "  --rounds N     3 to 99 (default: 9)\n"
    "  --keep         leave the files for the next run\n"
    "  --make         make the files and end\n"
    "  --step NAME    run one step on files that were made before; print its seconds or bytes\n"
    "  --list         print the names of the steps\n";

struct options {
    const char *folder;
    uint64_t mib;
    uint64_t big_mib;
    long rounds;
    bool keep;
    bool make;
    bool list;
    const char *step;
};

/* A ratio and what it should be. `value` looks at the steps' results of one round. */
struct line {
    const char *title;
    double (*value)(const double *round);
    double limit;
    bool at_least; /* the limit is a floor, not a ceiling */
};

static size_t step_index(const char *name)
{
    for (size_t i = 0; i < bench_step_count; i++) {
        if (strcmp(bench_steps[i].name, name) == 0) {
            return i;
        }
    }
    bench_die(name, "there is no such step; --list names them");
}

static double of(const double *round, const char *name)
{
    return round[step_index(name)];
}

/* Bytes a second of the digest, on one thread and on two. */
static double rate_1(const double *round)
{
    return 67108864.0 / of(round, "digest-64m");
}

static double rate_2(const double *round)
{
    return 67108864.0 / of(round, "digest-64m-2");
}

static double payload_bytes; /* of the cache; set once, before the first round */
static double big_bytes;

static double digest_threads(const double *round)
{
    return of(round, "digest-64m") / of(round, "digest-64m-2");
}

static double opening(const double *round)
{
    return of(round, "open") / of(round, "open-floor");
}

static double opening_big(const double *round)
{
    return of(round, "open-big") / of(round, "open");
}

static double finding(const double *round)
{
    return of(round, "find-32768") / (4 * of(round, "find-8192"));
}

static double reading(const double *round)
{
    return of(round, "read-1") / (of(round, "pread") + of(round, "hash"));
}

static double mapping_1(const double *round)
{
    return of(round, "map-1") * rate_1(round) / payload_bytes;
}

static double mapping_2(const double *round)
{
    return of(round, "map-2") * rate_2(round) / payload_bytes;
}

static double mapping_big(const double *round)
{
    return of(round, "map-big-2") / big_bytes * payload_bytes / of(round, "map-2");
}

static double cold(const double *round)
{
    return of(round, "cold-map-2") / of(round, "cold-read");
}

static double blocks_1(const double *round)
{
    return of(round, "blocks-1") /
           (of(round, "blocks-floor") + (double)BENCH_BLOCK_BYTES / rate_1(round));
}

static double blocks_2(const double *round)
{
    return of(round, "blocks-2") /
           (of(round, "blocks-floor") + (double)BENCH_BLOCK_BYTES / rate_2(round));
}

static double saving(const double *round)
{
    return of(round, "save") / of(round, "write");
}

static double saving_durably(const double *round)
{
    return of(round, "save-fsync") / of(round, "write-fsync");
}

static double growth_verify(const double *round)
{
    return of(round, "verify-growth") / 1048576;
}

static double growth_open(const double *round)
{
    return of(round, "open-growth") / BENCH_MANY_TENSORS;
}

static const struct line lines[] = {
    {"digest, 64 MiB: one thread / two", digest_threads, 1.8, true},
    {"open / (open + fstat + mmap + munmap + close)", opening, 15, false},
    {"open of the large file / open of 8 MiB", opening_big, 1.15, false},
    {"open and find 32,768 tensors / 4 x 8,192", finding, 1.25, false},
    {"read into warm memory, 1 thread / (pread + hash)", reading, 1.15, false},
    {"map, 1 thread / (bytes / digest speed)", mapping_1, 1.10, false},
    {"map, 2 threads / (bytes / digest speed)", mapping_2, 1.10, false},
    {"map of the large file / of the cache, per byte", mapping_big, 1.10, false},
    {"map from a cold disk, 2 threads / plain cold read", cold, 1.10, false},
    {"2,000 x 2 MiB, 1 thread / (read + bytes / speed)", blocks_1, 1.25, false},
    {"2,000 x 2 MiB, 2 threads / (read + bytes / speed)", blocks_2, 1.25, false},
    {"save, not durable / write", saving, 1.35, false},
    {"save, durable / (write + fsync)", saving_durably, 1.05, false},
    {"verify of the large file: growth of the peak, MiB", growth_verify, 32, false},
    {"open: memory beyond 4 x metadata, bytes per tensor", growth_open, 130, false},
};

/* Runs a step in a child, so that no step finds what another one left. */
static double run_step(const struct bench_files *files, const struct bench_step *step)
{
    int ends[2];
    double value = 0;
    int status = 0;
    if (pipe(ends) != 0) {
        bench_die("pipe", strerror(errno));
    }
    (void)fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        value = step->run(files, step->argument);
        _exit(write(ends[1], &value, sizeof(value)) == (ssize_t)sizeof(value) ? 0 : 3);
    }
    (void)close(ends[1]);
    ssize_t got = read(ends[0], &value, sizeof(value));
    (void)close(ends[0]);
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0 ||
        got != (ssize_t)sizeof(value)) {
        bench_die(step->name, "the step failed");
    }
    return value;
}

static void shuffle(size_t *order, size_t count, unsigned seed)
{
    uint32_t state = seed * 2654435761U + 1;
    for (size_t i = count; i > 1; i--) {
        state = state * 1664525U + 1013904223U; /* Numerical Recipes' constants */
        size_t other = (size_t)((state >> 8) % i);
        size_t swap = order[i - 1];
        order[i - 1] = order[other];
        order[other] = swap;
    }
}

static int by_value(const void *a, const void *b)
{
    double left = *(const double *)a;
    double right = *(const double *)b;
    return (left > right) - (left < right);
}

/* Prints a line, and returns whether its aim is held. Rounds that disagree give no ratio. */
static bool print_line(const struct line *line, double values[], long rounds)
{
    qsort(values, (size_t)rounds, sizeof(*values), by_value);
    double middle = values[rounds / 2];
    double spread = values[rounds * 3 / 4] - values[rounds / 4];
    printf("%-52s ", line->title);
    if (spread > 0.25 * middle) {
        printf("the rounds disagree: %.2f to %.2f\n", values[0], values[rounds - 1]);
        return false;
    }
    bool held = line->at_least ? middle >= line->limit : middle <= line->limit;
    printf("%7.2f  least %7.2f  %s %6.2f: %s\n", middle, values[0],
           line->at_least ? "at least" : "at most ", line->limit, held ? "held" : "NOT held");
    return held;
}

static bool needs_big(const struct line *line)
{
    return line->value == opening_big || line->value == mapping_big;
}

static int measure(const struct bench_files *files, long rounds)
{
    static double results[MOST_ROUNDS][MOST_STEPS];
    size_t order[MOST_STEPS];
    bool all_held = true;
    for (size_t i = 0; i < bench_step_count; i++) {
        order[i] = i;
    }
    for (long round = 0; round < rounds; round++) {
        shuffle(order, bench_step_count, (unsigned)round + 1);
        for (size_t i = 0; i < bench_step_count; i++) {
            const struct bench_step *step = &bench_steps[order[i]];
            if (files->big_bytes > 0 || !step->needs_big) {
                results[round][order[i]] = run_step(files, step);
            }
        }
        fprintf(stderr, "round %ld of %ld\n", round + 1, rounds);
    }
    payload_bytes = (double)files->payload_bytes;
    big_bytes = (double)files->big_bytes;
    printf("libkvc %s, BLAKE3 by %s, %ld rounds\n", kvc_version(), kvc_kernel(), rounds);
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        double values[MOST_ROUNDS];
        if (files->big_bytes == 0 && needs_big(&lines[i])) {
            continue;
        }
        for (long round = 0; round < rounds; round++) {
            values[round] = lines[i].value(results[round]);
        }
        all_held &= print_line(&lines[i], values, rounds);
    }
    return all_held ? 0 : 1;
}

static void usage(void)
{
    (void)fputs(usage_text, stderr);
    exit(2);
}

static uint64_t number(const char *text, uint64_t least, uint64_t most)
{
    char *end = NULL;
    errno = 0;
    unsigned long long value = text == NULL ? 0 : strtoull(text, &end, 10);
    if (text == NULL || *text == '\0' || *end != '\0' || errno != 0 || value < least ||
        value > most) {
        usage();
    }
    return value;
}

static struct options parse(char **arguments)
{
    struct options options = {.folder = ".", .mib = 512, .big_mib = 8192, .rounds = 9};
    for (char **at = arguments; *at != NULL; at++) {
        const char *value = at[1];
        if (strcmp(*at, "--keep") == 0) {
            options.keep = true;
        } else if (strcmp(*at, "--make") == 0) {
            options.make = true;
        } else if (strcmp(*at, "--list") == 0) {
            options.list = true;
        } else if (strcmp(*at, "--folder") == 0 && value != NULL) {
            options.folder = *++at;
        } else if (strcmp(*at, "--step") == 0 && value != NULL) {
            options.step = *++at;
        } else if (strcmp(*at, "--mib") == 0) {
            options.mib = number(value, 64, 1 << 20) / 64 * 64;
            at++;
        } else if (strcmp(*at, "--big-mib") == 0) {
            options.big_mib = number(value, 0, 1 << 20) / 64 * 64;
            at++;
        } else if (strcmp(*at, "--rounds") == 0) {
            options.rounds = (long)number(value, 3, MOST_ROUNDS);
            at++;
        } else {
            usage();
        }
    }
    return options;
}

int main(int count, char **arguments)
{
    struct bench_files files;
    (void)count;
    const struct options options = parse(arguments + 1);
    if (options.list) {
        for (size_t i = 0; i < bench_step_count; i++) {
            printf("%s\n", bench_steps[i].name);
        }
        return 0;
    }
    bench_files_make(&files, options.folder, options.mib << 20, options.big_mib << 20);
    if (options.make) {
        return 0;
    }
    if (options.step != NULL) {
        printf("%.9g\n", run_step(&files, &bench_steps[step_index(options.step)]));
        return 0;
    }
    int code = measure(&files, options.rounds);
    if (!options.keep) {
        bench_files_remove(&files);
    }
    return code;
}
