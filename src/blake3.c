/* blake3.c: BLAKE3 in portable C, its tree and modes, and the choice among the vector kernels.
 * SPDX-License-Identifier: Apache-2.0
 *
 * Written from "The BLAKE3 Hashing Framework" (c2sp.org/BLAKE3); the section numbers below are
 * those of that text. The waiting stack is described in section 5.1 of the BLAKE3 paper. */
#include "blake3.h"

#include "blake3_lanes.h"
#include "bytes.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ban.h"

enum {
    BLOCK_BYTES = 64,
    CHUNK_BYTES = 1024,
    CHUNK_BLOCKS = CHUNK_BYTES / BLOCK_BYTES,
    VALUE_BYTES = KVCI_BLAKE3_BYTES,
    SUBTREE_CHUNKS = KVCI_BLAKE3_SUBTREE_BYTES / CHUNK_BYTES,
    /* Chunks whose values are gathered before their parents are computed. Many, so that the upper
     * levels, which are too small to fill the lanes, cost little; 8 KiB of stack. */
    BATCH_CHUNKS = 256
};

/* Section 2.4. */
enum {
    CHUNK_START = 0x01,
    CHUNK_END = 0x02,
    PARENT = 0x04,
    ROOT = 0x08,
    KEYED_HASH = 0x10,
    DERIVE_KEY_CONTEXT = 0x20,
    DERIVE_KEY_MATERIAL = 0x40
};

static const uint32_t initial_value[8] = {
    KVCI_BLAKE3_IV0, KVCI_BLAKE3_IV1, KVCI_BLAKE3_IV2, KVCI_BLAKE3_IV3,
    KVCI_BLAKE3_IV4, KVCI_BLAKE3_IV5, KVCI_BLAKE3_IV6, KVCI_BLAKE3_IV7,
};

/* ---- compression in portable C ---- */

static inline uint32_t rotate_right(uint32_t word, unsigned bits)
{
    return word >> bits | word << (32 - bits);
}

/* The quarter round of section 3.2. */
static inline void mix(uint32_t v[16], unsigned a, unsigned b, unsigned c, unsigned d, uint32_t x,
                       uint32_t y)
{
    /* The sum in this order, because `a` and the word are ready before `b`. */
    v[a] = (v[a] + x) + v[b];
    v[d] = rotate_right(v[d] ^ v[a], 16);
    v[c] = v[c] + v[d];
    v[b] = rotate_right(v[b] ^ v[c], 12);
    v[a] = (v[a] + y) + v[b];
    v[d] = rotate_right(v[d] ^ v[a], 8);
    v[c] = v[c] + v[d];
    v[b] = rotate_right(v[b] ^ v[c], 7);
}

#define ROUND(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p)                                      \
    do {                                                                                           \
        mix(v, 0, 4, 8, 12, w[a], w[b]);                                                           \
        mix(v, 1, 5, 9, 13, w[c], w[d]);                                                           \
        mix(v, 2, 6, 10, 14, w[e], w[f]);                                                          \
        mix(v, 3, 7, 11, 15, w[g], w[h]);                                                          \
        mix(v, 0, 5, 10, 15, w[i], w[j]);                                                          \
        mix(v, 1, 6, 11, 12, w[k], w[l]);                                                          \
        mix(v, 2, 7, 8, 13, w[m], w[n]);                                                           \
        mix(v, 3, 4, 9, 14, w[o], w[p]);                                                           \
    } while (0)

/* Section 3.3, of which only the first eight words of the result are ever needed here. */
static void compress_portable(uint32_t value[8], const uint8_t block[64], uint32_t block_bytes,
                              uint64_t counter, uint32_t flags)
{
    uint32_t w[16];
    for (unsigned i = 0; i < 16; i++) {
        w[i] = kvci_load32(block + 4 * (size_t)i);
    }
    uint32_t v[16] = {
        value[0],          value[1],
        value[2],          value[3],
        value[4],          value[5],
        value[6],          value[7],
        KVCI_BLAKE3_IV0,   KVCI_BLAKE3_IV1,
        KVCI_BLAKE3_IV2,   KVCI_BLAKE3_IV3,
        (uint32_t)counter, (uint32_t)(counter >> 32),
        block_bytes,       flags,
    };
    KVCI_BLAKE3_SEVEN_ROUNDS(ROUND);
    for (unsigned i = 0; i < 8; i++) {
        value[i] = v[i] ^ v[i + 8];
    }
}

#undef ROUND

static void chain_portable(const struct kvci_blake3_job *job, uint32_t ret_value[8])
{
    uint32_t value[8];
    uint32_t flags = job->flags | job->first_flags;
    memcpy(value, job->key, sizeof value);
    for (size_t i = 0; i + 1 < job->block_count; i++) {
        compress_portable(value, job->data + BLOCK_BYTES * i, BLOCK_BYTES, job->counter, flags);
        flags = job->flags;
    }
    compress_portable(value, job->data + BLOCK_BYTES * (job->block_count - 1), job->last_bytes,
                      job->counter, flags | job->last_flags);
    memcpy(ret_value, value, sizeof value);
}

/* ---- the kernels and the choice among them ---- */

struct kernel {
    const char *name;
    kvci_blake3_chain_fn *chain;
    /* From wide to narrow; the end is a row without a function. */
    struct {
        size_t lane_count;
        kvci_blake3_lanes_fn *run;
    } lanes[4];
};

static const struct kernel portable_kernel = {"portable", chain_portable, {{0, NULL}}};

/* The build defines one of these names when it links the lane kernels of that family. */
#if defined(KVCI_BLAKE3_X86)
static const struct kernel sse41_kernel = {
    "sse41", kvci_blake3_chain, {{4, kvci_blake3_lanes4}, {0, NULL}}};
static const struct kernel avx2_kernel = {
    "avx2",
    kvci_blake3_chain_avx2,
    {{8, kvci_blake3_lanes8}, {4, kvci_blake3_lanes4_avx2}, {0, NULL}}};
static const struct kernel avx512_kernel = {
    "avx512",
    kvci_blake3_chain_vl,
    {{16, kvci_blake3_lanes16}, {8, kvci_blake3_lanes8_vl}, {4, kvci_blake3_lanes4_vl}, {0, NULL}}};
#elif defined(KVCI_BLAKE3_NEON)
static const struct kernel neon_kernel = {
    "neon", kvci_blake3_chain, {{4, kvci_blake3_lanes4}, {0, NULL}}};
#endif

/* Lists the kernels that can run here, the best last; the compiler's own feature test also asks
 * whether the operating system saves the wide registers. */
static size_t list_kernels(const struct kernel *ret_list[4])
{
    size_t count = 0;
    ret_list[count++] = &portable_kernel;
#if defined(KVCI_BLAKE3_X86)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("sse4.1")) {
        ret_list[count++] = &sse41_kernel;
        if (__builtin_cpu_supports("avx2")) {
            ret_list[count++] = &avx2_kernel;
            if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                __builtin_cpu_supports("avx512bw")) {
                ret_list[count++] = &avx512_kernel;
            }
        }
    }
#elif defined(KVCI_BLAKE3_NEON)
    ret_list[count++] = &neon_kernel;
#endif
    return count;
}

static const struct kernel *choose_kernel(void)
{
    const struct kernel *list[4] = {NULL};
    size_t count = list_kernels(list);
    const char *wanted = getenv("KVC_BLAKE3_KERNEL");
    if (wanted != NULL) {
        for (size_t i = 0; i < count; i++) {
            if (strcmp(list[i]->name, wanted) == 0) {
                return list[i];
            }
        }
    }
    return list[count - 1];
}

static const struct kernel *current_kernel(void)
{
    /* Threads that meet here for the first time choose the same one, so that a race only repeats
     * the work; what is pointed to is constant, so no order is needed either. */
    static _Atomic(const struct kernel *) chosen;
    const struct kernel *kernel = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (kernel == NULL) {
        kernel = choose_kernel();
        atomic_store_explicit(&chosen, kernel, memory_order_relaxed);
    }
    return kernel;
}

const char *kvci_blake3_kernel(void)
{
    return current_kernel()->name;
}

/* ---- nodes ---- */

static void store_value(uint8_t *at, const uint32_t value[8])
{
    for (unsigned i = 0; i < 8; i++) {
        kvci_store32(at + 4 * (size_t)i, value[i]);
    }
}

static void load_value(uint32_t ret_value[8], const uint8_t *at)
{
    for (unsigned i = 0; i < 8; i++) {
        ret_value[i] = kvci_load32(at + 4 * (size_t)i);
    }
}

/* Writes the values of `count` inputs, each step by the narrowest kernel that holds what is left,
 * else by the widest: idle lanes are cheaper than another pass through a chain of blocks. */
static void run_job(const struct kernel *kernel, struct kvci_blake3_job job, size_t count,
                    uint8_t *ret_values)
{
    while (count > 0) {
        size_t step = 1;
        if (count == 1 || kernel->lanes[0].run == NULL) {
            uint32_t value[8];
            kernel->chain(&job, value);
            store_value(ret_values, value);
        } else {
            size_t i = 0;
            while (kernel->lanes[i + 1].run != NULL && kernel->lanes[i + 1].lane_count >= count) {
                i++;
            }
            step = count < kernel->lanes[i].lane_count ? count : kernel->lanes[i].lane_count;
            kernel->lanes[i].run(&job, step, ret_values);
        }
        job.data += step * job.stride_bytes;
        job.counter += step * job.counter_step;
        ret_values += step * VALUE_BYTES;
        count -= step;
    }
}

/* The blocks of a chunk that lie in one place. `value` goes in and comes out; `bytes` is at least 1
 * except for an empty input, whose only block is empty. A short last block is padded with zeros. */
static void hash_blocks(const struct kernel *kernel, uint32_t value[8], const uint8_t *data,
                        size_t bytes, uint64_t counter, uint32_t flags, uint32_t first_flags,
                        uint32_t last_flags)
{
    struct kvci_blake3_job job = {.data = data,
                                  .block_count = bytes / BLOCK_BYTES,
                                  .key = value,
                                  .counter = counter,
                                  .flags = flags,
                                  .first_flags = first_flags,
                                  .last_bytes = BLOCK_BYTES};
    size_t short_bytes = bytes % BLOCK_BYTES;
    if (short_bytes == 0 && bytes > 0) {
        job.last_flags = last_flags;
        kernel->chain(&job, value);
        return;
    }
    if (job.block_count > 0) {
        kernel->chain(&job, value);
        job.first_flags = 0;
    }
    uint8_t padded[BLOCK_BYTES] = {0};
    if (short_bytes > 0) {
        memcpy(padded, data + (bytes - short_bytes), short_bytes);
    }
    job.data = padded;
    job.block_count = 1;
    job.last_flags = last_flags;
    job.last_bytes = (uint32_t)short_bytes;
    kernel->chain(&job, value);
}

/* One whole chunk of 0..1024 bytes (section 4.2); `root_flag` is ROOT or 0. */
static void hash_chunk(const struct kernel *kernel, const uint32_t key[8], uint32_t mode_flags,
                       const uint8_t *data, size_t bytes, uint64_t counter, uint32_t root_flag,
                       uint8_t *ret_value)
{
    uint32_t value[8];
    memcpy(value, key, sizeof value);
    hash_blocks(kernel, value, data, bytes, counter, mode_flags, CHUNK_START,
                CHUNK_END | root_flag);
    store_value(ret_value, value);
}

/* Writes the values of the chunks that `bytes` bytes make, none of them being the root; returns
 * how many there are. */
static size_t hash_chunks(const struct kernel *kernel, const uint32_t key[8], uint32_t mode_flags,
                          const uint8_t *data, size_t bytes, uint64_t counter, uint8_t *ret_values)
{
    struct kvci_blake3_job job = {.data = data,
                                  .stride_bytes = CHUNK_BYTES,
                                  .block_count = CHUNK_BLOCKS,
                                  .key = key,
                                  .counter = counter,
                                  .counter_step = 1,
                                  .flags = mode_flags,
                                  .first_flags = CHUNK_START,
                                  .last_flags = CHUNK_END,
                                  .last_bytes = BLOCK_BYTES};
    size_t count = bytes / CHUNK_BYTES;
    size_t rest_bytes = bytes % CHUNK_BYTES;
    run_job(kernel, job, count, ret_values);
    if (rest_bytes > 0) {
        hash_chunk(kernel, key, mode_flags, data + count * CHUNK_BYTES, rest_bytes, counter + count,
                   0, ret_values + count * VALUE_BYTES);
        count++;
    }
    return count;
}

/* Replaces a row of values by the row of their parents; an odd one at the end moves up as it is.
 * Doing so level by level gives the tree of section 4.3.2, whose left subtrees are full. */
static size_t lift_row(const struct kernel *kernel, const uint32_t key[8], uint32_t mode_flags,
                       uint8_t *values, size_t count)
{
    struct kvci_blake3_job job = {.data = values,
                                  .stride_bytes = 2 * VALUE_BYTES,
                                  .block_count = 1,
                                  .key = key,
                                  .flags = mode_flags | PARENT,
                                  .last_bytes = BLOCK_BYTES};
    size_t pair_count = count / 2;
    run_job(kernel, job, pair_count, values);
    if (count % 2 != 0) {
        memmove(values + pair_count * VALUE_BYTES, values + (count - 1) * VALUE_BYTES, VALUE_BYTES);
    }
    return pair_count + count % 2;
}

/* The parent of two neighbouring values; `root_flag` is ROOT or 0. */
static void hash_pair(const struct kernel *kernel, const uint32_t key[8], uint32_t mode_flags,
                      const uint8_t *pair, uint32_t root_flag, uint8_t *ret_value)
{
    uint32_t value[8];
    memcpy(value, key, sizeof value);
    hash_blocks(kernel, value, pair, 2 * (size_t)VALUE_BYTES, 0, mode_flags | PARENT, 0, root_flag);
    store_value(ret_value, value);
}

/* ---- the stack of finished subtrees ---- */

static unsigned count_ones(uint64_t word)
{
    unsigned ones = 0;
    for (; word != 0; word &= word - 1) {
        ones++;
    }
    return ones;
}

/* The values on the stack belong to full subtrees whose sizes are the binary digits of the number
 * of leaves so far, the largest at the bottom. This merges what is still in two parts; it must be
 * called only when another leaf follows, because only then is no merged node the root. */
static void merge_stack(struct kvci_blake3 *h, const struct kernel *kernel, uint64_t leaves_before)
{
    unsigned kept = count_ones(leaves_before);
    while (h->value_count > kept) {
        uint8_t *pair = h->stack + (size_t)(h->value_count - 2) * VALUE_BYTES;
        hash_pair(kernel, h->key, h->mode_flags, pair, 0, pair);
        h->value_count--;
    }
}

static void push_value(struct kvci_blake3 *h, const struct kernel *kernel, uint64_t leaves_before,
                       const uint8_t *value)
{
    merge_stack(h, kernel, leaves_before);
    assert(h->value_count < KVCI_BLAKE3_STACK_VALUES);
    memcpy(h->stack + (size_t)h->value_count * VALUE_BYTES, value, VALUE_BYTES);
    h->value_count++;
}

/* Pushes the values of `count` leaves, at most BATCH_CHUNKS, as the largest subtrees that start
 * where the leaves before end. `values` is overwritten. */
static void push_leaves(struct kvci_blake3 *h, const struct kernel *kernel, uint64_t leaves_before,
                        uint8_t *values, size_t count)
{
    while (count > 0) {
        size_t size = BATCH_CHUNKS;
        while (size > count || (leaves_before & (size - 1)) != 0) {
            size /= 2;
        }
        /* Two values are left, not one: their parent might be the root. */
        size_t left = size;
        while (left > 2) {
            left = lift_row(kernel, h->key, h->mode_flags, values, left);
        }
        push_value(h, kernel, leaves_before, values);
        if (left == 2) {
            push_value(h, kernel, leaves_before + size / 2, values + VALUE_BYTES);
        }
        leaves_before += size;
        values += size * VALUE_BYTES;
        count -= size;
    }
}

/* Joins everything on the stack with the value on top of it, from right to left. */
static void fold_stack(const struct kvci_blake3 *h, const struct kernel *kernel,
                       const uint8_t top[32], uint32_t value_count, uint8_t ret_digest[32])
{
    uint8_t pair[2 * VALUE_BYTES];
    memcpy(pair + VALUE_BYTES, top, VALUE_BYTES);
    for (uint32_t i = value_count; i > 0; i--) {
        memcpy(pair, h->stack + (size_t)(i - 1) * VALUE_BYTES, VALUE_BYTES);
        hash_pair(kernel, h->key, h->mode_flags, pair, i == 1 ? ROOT : 0, pair + VALUE_BYTES);
    }
    memcpy(ret_digest, pair + VALUE_BYTES, VALUE_BYTES);
}

/* ---- the incremental hash ---- */

static void start_chunk(struct kvci_blake3 *h)
{
    memcpy(h->chunk_value, h->key, sizeof h->chunk_value);
    h->block_count = 0;
    h->block_bytes = 0;
}

/* Starts without clearing the stack, of which nothing is read before it is written. */
static void start(struct kvci_blake3 *h, const uint32_t key[8], uint32_t mode_flags)
{
    memcpy(h->key, key, sizeof h->key);
    h->mode_flags = mode_flags;
    h->value_count = 0;
    h->chunk_count = 0;
    start_chunk(h);
}

void kvci_blake3_init(struct kvci_blake3 *h)
{
    start(h, initial_value, 0);
}

void kvci_blake3_init_keyed(struct kvci_blake3 *h, const uint8_t key[32])
{
    uint32_t words[8];
    load_value(words, key);
    start(h, words, KEYED_HASH);
}

/* Section 4.1: the hash of the context, in a mode of its own, is the key. */
void kvci_blake3_init_derive(struct kvci_blake3 *h, const char *context)
{
    uint8_t key[KVCI_BLAKE3_BYTES];
    uint32_t words[8];
    start(h, initial_value, DERIVE_KEY_CONTEXT);
    kvci_blake3_update(h, context, strlen(context));
    kvci_blake3_final(h, key);
    load_value(words, key);
    start(h, words, DERIVE_KEY_MATERIAL);
}

/* Compresses full blocks of the open chunk, none of them its last. */
static void add_blocks(struct kvci_blake3 *h, const struct kernel *kernel, const uint8_t *data,
                       size_t count)
{
    hash_blocks(kernel, h->chunk_value, data, count * BLOCK_BYTES, h->chunk_count, h->mode_flags,
                h->block_count == 0 ? CHUNK_START : 0, 0);
    h->block_count += (uint32_t)count;
}

/* Adds bytes to the open chunk, as many as fit in it; returns how many. A full block is compressed
 * only when another byte follows, since the last one of a chunk needs its flags. */
static size_t fill_chunk(struct kvci_blake3 *h, const struct kernel *kernel, const uint8_t *data,
                         size_t bytes)
{
    size_t room = CHUNK_BYTES - (size_t)h->block_count * BLOCK_BYTES - h->block_bytes;
    size_t taken = bytes < room ? bytes : room;
    size_t left = taken;
    while (left > 0) {
        if (h->block_bytes == BLOCK_BYTES) {
            add_blocks(h, kernel, h->block, 1);
            h->block_bytes = 0;
        }
        size_t step = BLOCK_BYTES - h->block_bytes;
        if (h->block_bytes == 0 && left > BLOCK_BYTES) {
            size_t count = (left - 1) / BLOCK_BYTES;
            add_blocks(h, kernel, data, count);
            step = count * BLOCK_BYTES;
        } else {
            step = left < step ? left : step;
            memcpy(h->block + h->block_bytes, data, step);
            h->block_bytes += (uint32_t)step;
        }
        data += step;
        left -= step;
    }
    return taken;
}

static size_t chunk_bytes(const struct kvci_blake3 *h)
{
    return (size_t)h->block_count * BLOCK_BYTES + h->block_bytes;
}

/* The value of the open chunk; `root_flag` is ROOT or 0. */
static void close_chunk(const struct kvci_blake3 *h, const struct kernel *kernel,
                        uint32_t root_flag, uint8_t ret_value[32])
{
    uint32_t value[8];
    memcpy(value, h->chunk_value, sizeof value);
    hash_blocks(kernel, value, h->block, h->block_bytes, h->chunk_count, h->mode_flags,
                h->block_count == 0 ? CHUNK_START : 0, CHUNK_END | root_flag);
    store_value(ret_value, value);
}

/* Hashes whole chunks, at least one, straight from the caller's bytes; returns the bytes used. */
static size_t hash_batch(struct kvci_blake3 *h, const struct kernel *kernel, const uint8_t *data,
                         size_t bytes)
{
    uint8_t values[BATCH_CHUNKS * VALUE_BYTES];
    size_t count = bytes / CHUNK_BYTES;
    /* Batches end on multiples of their size, which makes each of them one subtree. */
    size_t most = BATCH_CHUNKS - (size_t)(h->chunk_count % BATCH_CHUNKS);
    if (count > most) {
        count = most;
    }
    (void)hash_chunks(kernel, h->key, h->mode_flags, data, count * CHUNK_BYTES, h->chunk_count,
                      values);
    push_leaves(h, kernel, h->chunk_count, values, count);
    h->chunk_count += count;
    return count * CHUNK_BYTES;
}

void kvci_blake3_update(struct kvci_blake3 *h, const void *data, size_t bytes)
{
    const struct kernel *kernel = current_kernel();
    const uint8_t *at = data;
    while (bytes > 0) {
        size_t used = 0;
        if (chunk_bytes(h) == CHUNK_BYTES) {
            /* Another byte follows, so this chunk is not the last and not the root. */
            uint8_t value[VALUE_BYTES];
            close_chunk(h, kernel, 0, value);
            push_value(h, kernel, h->chunk_count, value);
            h->chunk_count++;
            start_chunk(h);
        } else if (chunk_bytes(h) == 0 && bytes > CHUNK_BYTES) {
            used = hash_batch(h, kernel, at, bytes);
        } else {
            merge_stack(h, kernel, h->chunk_count);
            used = fill_chunk(h, kernel, at, bytes);
        }
        at += used;
        bytes -= used;
    }
}

void kvci_blake3_final(const struct kvci_blake3 *h, uint8_t ret_digest[32])
{
    const struct kernel *kernel = current_kernel();
    uint8_t top[VALUE_BYTES];
    if (h->value_count == 0) {
        close_chunk(h, kernel, ROOT, ret_digest);
    } else if (chunk_bytes(h) > 0) {
        close_chunk(h, kernel, 0, top);
        fold_stack(h, kernel, top, h->value_count, ret_digest);
    } else {
        /* A batch ended the input. At least two chunks were pushed, so two values are there. */
        assert(h->value_count >= 2);
        memcpy(top, h->stack + (size_t)(h->value_count - 1) * VALUE_BYTES, VALUE_BYTES);
        fold_stack(h, kernel, top, h->value_count - 1, ret_digest);
    }
}

void kvci_blake3_hash(const void *data, size_t bytes, uint8_t ret_digest[32])
{
    const struct kernel *kernel = current_kernel();
    if (bytes <= CHUNK_BYTES) {
        hash_chunk(kernel, initial_value, 0, data, bytes, 0, ROOT, ret_digest);
    } else if (bytes <= (size_t)BATCH_CHUNKS * CHUNK_BYTES) {
        uint8_t values[BATCH_CHUNKS * VALUE_BYTES];
        size_t count = hash_chunks(kernel, initial_value, 0, data, bytes, 0, values);
        while (count > 2) {
            count = lift_row(kernel, initial_value, 0, values, count);
        }
        hash_pair(kernel, initial_value, 0, values, ROOT, ret_digest);
    } else {
        struct kvci_blake3 h;
        kvci_blake3_init(&h);
        kvci_blake3_update(&h, data, bytes);
        kvci_blake3_final(&h, ret_digest);
    }
}

/* ---- the chunk grid ---- */

void kvci_blake3_subtrees(const uint8_t *data, size_t bytes, uint64_t grid_index,
                          uint8_t *ret_values)
{
    const struct kernel *kernel = current_kernel();
    uint64_t counter = grid_index * SUBTREE_CHUNKS;
    assert(bytes > 0);
    while (bytes > 0) {
        uint8_t values[BATCH_CHUNKS * VALUE_BYTES];
        size_t most = (size_t)BATCH_CHUNKS * CHUNK_BYTES;
        size_t step = bytes < most ? bytes : most;
        size_t count = hash_chunks(kernel, initial_value, 0, data, step, counter, values);
        /* Six levels make one value of 64 chunks, for all the grid chunks of the batch at once;
         * a short one at the end comes out right because odd values move up as they are. */
        for (size_t size = SUBTREE_CHUNKS; size > 1; size /= 2) {
            count = lift_row(kernel, initial_value, 0, values, count);
        }
        memcpy(ret_values, values, count * VALUE_BYTES);
        ret_values += count * VALUE_BYTES;
        counter += BATCH_CHUNKS;
        data += step;
        bytes -= step;
    }
}

void kvci_blake3_subtree(const uint8_t *data, size_t bytes, uint64_t grid_index,
                         uint8_t ret_value[32])
{
    assert(bytes > 0 && bytes <= KVCI_BLAKE3_SUBTREE_BYTES);
    kvci_blake3_subtrees(data, bytes, grid_index, ret_value);
}

void kvci_blake3_combine(const uint8_t *values, size_t count, uint8_t ret_digest[32])
{
    const struct kernel *kernel = current_kernel();
    struct kvci_blake3 h;
    uint64_t done = 0;
    assert(count >= 2);
    kvci_blake3_init(&h);
    while (count > 0) {
        uint8_t batch[BATCH_CHUNKS * VALUE_BYTES];
        size_t step = count < BATCH_CHUNKS ? count : BATCH_CHUNKS;
        memcpy(batch, values, step * VALUE_BYTES);
        push_leaves(&h, kernel, done, batch, step);
        done += step;
        values += step * VALUE_BYTES;
        count -= step;
    }
    fold_stack(&h, kernel, h.stack + (size_t)(h.value_count - 1) * VALUE_BYTES, h.value_count - 1,
               ret_digest);
}
