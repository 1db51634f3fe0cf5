/* bench_files.h: the files that kvc-bench measures on.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVC_BENCH_FILES_H
#define KVC_BENCH_FILES_H

#include <stdint.h>

#define BENCH_BLOCK_COUNT 2000
#define BENCH_BLOCK_BYTES (UINT64_C(2) << 20)
#define BENCH_TENSOR_COUNT 64    /* 32 layers, as Llama 3 8B has */
#define BENCH_MANY_TENSORS 32768 /* in one file */
#define BENCH_FEWER_TENSORS 8192 /* a quarter of that */
#define BENCH_SMALL_BYTES (UINT64_C(8) << 20)

struct bench_files {
    const char *folder;
    uint64_t payload_bytes; /* of `cache` */
    uint64_t big_bytes;     /* of `big`; 0: there is none */
    char cache[4096];
    char small[4096]; /* as many tensors, BENCH_SMALL_BYTES */
    char big[4096];
    char many[4096];  /* BENCH_MANY_TENSORS of one byte */
    char fewer[4096]; /* BENCH_FEWER_TENSORS of one byte */
    char saved[4096]; /* where the steps that save may write */
};

/* Makes the files that are missing; what is there is taken as it is. Ends the process with a
 * sentence when that fails. */
void bench_files_make(struct bench_files *files, const char *folder, uint64_t payload_bytes,
                      uint64_t big_bytes);

/* Writes the name of block file `index` into `ret_path`. */
void bench_files_block(const struct bench_files *files, int index, char ret_path[4096]);

/* Returns the metadata, JSON for the caller to free, of a bf16 cache of `tensor_count` tensors of
 * `tensor_bytes` each, with heads of 128 elements; or of u8 where a tensor has one byte. */
char *bench_files_metadata(int tensor_count, uint64_t tensor_bytes);

/* Removes all of them. */
void bench_files_remove(const struct bench_files *files);

/* Prints a sentence and the system's reason, and ends the process. */
_Noreturn void bench_die(const char *what, const char *why);

#endif
