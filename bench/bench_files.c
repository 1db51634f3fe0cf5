/* bench_files.c: makes the files that kvc-bench measures on.
 * SPDX-License-Identifier: Apache-2.0 */
#include "bench_files.h"

#include <errno.h>
#include <inttypes.h>
#include <kvc.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PIECE_BYTES (UINT64_C(8) << 20)
#define RECORD_BYTES 320 /* more than a tensor record takes */

_Noreturn void bench_die(const char *what, const char *why)
{
    fprintf(stderr, "kvc-bench: %s: %s\n", what, why);
    exit(3);
}

static void *must_allocate(size_t bytes)
{
    void *block = malloc(bytes);
    if (block == NULL) {
        bench_die("no memory", strerror(errno));
    }
    return block;
}

char *bench_files_metadata(int tensor_count, uint64_t tensor_bytes)
{
    const bool tiny = tensor_bytes == 1;
    const uint64_t heads = tiny ? 1 : 8;
    const uint64_t head_dim = tiny ? 1 : 128;
    const uint64_t tokens = tiny ? 1 : tensor_bytes / (heads * head_dim * 2);
    const uint64_t size = tiny ? 1 : 2;
    const char *dtype = tiny ? "u8" : "bf16";
    const size_t room = (size_t)tensor_count * RECORD_BYTES + 1024;
    char *text = must_allocate(room);
    char *at = text;
    char *end = text + room;
    at += snprintf(at, (size_t)(end - at),
                   "{\"dtype\":\"%s\",\"head_dim\":%" PRIu64 ",\"kv_heads\":%" PRIu64
                   ",\"layers\":%d,\"layout\":\"layer-major-k-then-v\","
                   "\"model_revision\":\"bench\",\"rope_theta\":500000.0,"
                   "\"sequence_length\":%" PRIu64 ",\"sequence_start\":0,"
                   "\"tokenizer_sha256\":\"%064d\",\"tensor_manifest\":{\"attention_type\":"
                   "\"causal\",\"batch_size\":1,\"byte_order\":\"little\",\"cache_class\":"
                   "\"dynamic\",\"version\":1,\"tensors\":[",
                   dtype, head_dim, heads, tensor_count / 2, tokens, 0);
    for (int i = 0; i < tensor_count; i++) {
        const char *kind = i % 2 == 0 ? "key" : "value";
        at += snprintf(at, (size_t)(end - at),
                       "%s{\"dtype\":\"%s\",\"kind\":\"%s\",\"layer\":%d,\"name\":"
                       "\"layer.%d.%s\",\"nbytes\":%" PRIu64 ",\"offset\":%" PRIu64
                       ",\"shape\":[1,%" PRIu64 ",%" PRIu64 ",%" PRIu64 "],\"strides\":[%" PRIu64
                       ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 "]}",
                       i > 0 ? "," : "", dtype, kind, i / 2, i / 2, kind, tensor_bytes,
                       (uint64_t)i * tensor_bytes, heads, tokens, head_dim, tensor_bytes,
                       tokens * head_dim * size, head_dim * size, size);
    }
    (void)snprintf(at, (size_t)(end - at), "]}}");
    return text;
}

/* Fills a block with numbers that do not repeat (xorshift64, Marsaglia 2003). */
static void fill(uint8_t *block, size_t bytes)
{
    uint64_t state = 88172645463325252U;
    for (size_t i = 0; i + sizeof(state) <= bytes; i += sizeof(state)) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        memcpy(block + i, &state, sizeof(state));
    }
}

static void make_file(const char *path, int tensor_count, uint64_t tensor_bytes,
                      const uint8_t *block, enum kvc_durability durability)
{
    if (access(path, R_OK) == 0) {
        return;
    }
    struct kvc_error error = KVC_ERROR_INIT;
    struct kvc_writer_options options = KVC_WRITER_OPTIONS_INIT;
    struct kvc_writer *writer = NULL;
    options.durability = durability;
    char *metadata = bench_files_metadata(tensor_count, tensor_bytes);
    enum kvc_status status =
        kvc_writer_create_path(path, metadata, strlen(metadata), &options, &writer, &error);
    free(metadata);
    uint64_t left = (uint64_t)tensor_count * tensor_bytes;
    while (status == KVC_OK && left > 0) {
        uint64_t piece = left < PIECE_BYTES ? left : PIECE_BYTES;
        status = kvc_writer_write(writer, block, piece, &error);
        left -= piece;
    }
    if (status == KVC_OK) {
        status = kvc_writer_finish(writer, NULL, &error);
    }
    kvc_writer_free(writer);
    if (status != KVC_OK) {
        bench_die(path, error.message);
    }
}

static void name_file(char *ret_path, const char *folder, const char *name, uint64_t bytes)
{
    int length = snprintf(ret_path, 4096, "%s/bench-%s-%" PRIu64 ".kvc", folder, name, bytes);
    if (length >= 4096) {
        bench_die(folder, "the name is too long");
    }
}

void bench_files_block(const struct bench_files *files, int index, char ret_path[4096])
{
    char name[32];
    (void)snprintf(name, sizeof(name), "block-%d", index);
    name_file(ret_path, files->folder, name, BENCH_BLOCK_BYTES);
}

void bench_files_make(struct bench_files *files, const char *folder, uint64_t payload_bytes,
                      uint64_t big_bytes)
{
    uint8_t *block = must_allocate(PIECE_BYTES);
    char path[4096];
    fill(block, PIECE_BYTES);
    files->folder = folder;
    files->payload_bytes = payload_bytes;
    files->big_bytes = big_bytes;
    name_file(files->cache, folder, "cache", payload_bytes);
    name_file(files->small, folder, "small", BENCH_SMALL_BYTES);
    name_file(files->big, folder, "big", big_bytes);
    name_file(files->many, folder, "many", BENCH_MANY_TENSORS);
    name_file(files->fewer, folder, "fewer", BENCH_FEWER_TENSORS);
    name_file(files->saved, folder, "saved", 0);
    make_file(files->cache, BENCH_TENSOR_COUNT, payload_bytes / BENCH_TENSOR_COUNT, block,
              KVC_DURABILITY_FULL);
    make_file(files->small, BENCH_TENSOR_COUNT, BENCH_SMALL_BYTES / BENCH_TENSOR_COUNT, block,
              KVC_DURABILITY_FULL);
    if (big_bytes > 0) {
        make_file(files->big, BENCH_TENSOR_COUNT, big_bytes / BENCH_TENSOR_COUNT, block,
                  KVC_DURABILITY_FULL);
    }
    make_file(files->many, BENCH_MANY_TENSORS, 1, block, KVC_DURABILITY_FULL);
    make_file(files->fewer, BENCH_FEWER_TENSORS, 1, block, KVC_DURABILITY_FULL);
    for (int i = 0; i < BENCH_BLOCK_COUNT; i++) {
        bench_files_block(files, i, path);
        make_file(path, 2, BENCH_BLOCK_BYTES / 2, block, KVC_DURABILITY_NONE);
    }
    free(block);
    sync();
}

void bench_files_remove(const struct bench_files *files)
{
    char path[4096];
    const char *const paths[] = {files->cache, files->small, files->big,
                                 files->many,  files->fewer, files->saved};
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        (void)unlink(paths[i]);
    }
    for (int i = 0; i < BENCH_BLOCK_COUNT; i++) {
        bench_files_block(files, i, path);
        (void)unlink(path);
    }
}
