/* blake3.h: the BLAKE3 hash in its three modes, and the subtree values that prove parts of a hash.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCI_BLAKE3_H
#define KVCI_BLAKE3_H

#include <stddef.h>
#include <stdint.h>

#define KVCI_BLAKE3_BYTES 32
#define KVCI_BLAKE3_SUBTREE_BYTES 65536 /* 64 chunks of 1024 bytes, one cell of the chunk grid */

/* An input has fewer than 2^64 bytes, so fewer than 2^54 chunks: the finished subtrees that wait
 * for a right-hand neighbour are at most one per binary digit of the chunk count, and one more
 * because merging is put off until the next chunk is known to exist. */
#define KVCI_BLAKE3_STACK_VALUES 55

/* A hash being computed. It owns nothing: copy it by assignment, forget it at any time. */
struct kvci_blake3 {
    uint32_t key[8];         /* where every chunk and parent node starts */
    uint32_t mode_flags;     /* set in every compression */
    uint32_t value_count;    /* values on the stack */
    uint64_t chunk_count;    /* chunks whose values are on the stack or merged into them */
    uint32_t chunk_value[8]; /* of the chunk being filled, before its last block */
    uint32_t block_count;    /* blocks compressed into chunk_value */
    uint32_t block_bytes;    /* bytes in block, 0..64; the block stays until more bytes come */
    uint8_t block[64];
    uint8_t stack[KVCI_BLAKE3_STACK_VALUES * KVCI_BLAKE3_BYTES];
};

/* Each init starts a hash in one mode; `context` ends at its NUL byte and should be a constant. */
void kvci_blake3_init(struct kvci_blake3 *h);
void kvci_blake3_init_keyed(struct kvci_blake3 *h, const uint8_t key[32]);
void kvci_blake3_init_derive(struct kvci_blake3 *h, const char *context);

/* Appends bytes to the input, in pieces of any size. `data` may be NULL when `bytes` is 0. */
void kvci_blake3_update(struct kvci_blake3 *h, const void *data, size_t bytes);

/* Returns the hash of all the bytes so far; the state is unchanged and can take more. */
void kvci_blake3_final(const struct kvci_blake3 *h, uint8_t ret_digest[32]);

/* Returns the hash, in hash mode, of bytes that lie in one place. */
void kvci_blake3_hash(const void *data, size_t bytes, uint8_t ret_digest[32]);

/* Returns the chaining value of one grid chunk of 1..65536 bytes: hash mode, never ROOT, the chunk
 * counter starting at 64 * grid_index. */
void kvci_blake3_subtree(const uint8_t *data, size_t bytes, uint64_t grid_index,
                         uint8_t ret_value[32]);

/* Returns the chaining values of a run of neighbouring grid chunks, ceil(bytes / 65536) values of
 * 32 bytes, the same as one kvci_blake3_subtree call for each and faster. `bytes` is at least 1;
 * every grid chunk but the last is full. */
void kvci_blake3_subtrees(const uint8_t *data, size_t bytes, uint64_t grid_index,
                          uint8_t *ret_values);

/* Returns the hash of an input from the values of its grid chunks, two or more of them, all but
 * the last being of full 65536-byte chunks: parent nodes, with ROOT at the top. */
void kvci_blake3_combine(const uint8_t *values, size_t count, uint8_t ret_digest[32]);

/* Names the kernel in use: "portable", "sse41", "avx2", "avx512" or "neon". It is chosen once, at
 * the first use of this module, by what the processor and the operating system offer; tests force
 * another supported one by the environment variable KVC_BLAKE3_KERNEL. */
const char *kvci_blake3_kernel(void);

#endif
