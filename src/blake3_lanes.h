/* blake3_lanes.h: the interface between blake3.c and its kernels; nobody else includes it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCI_BLAKE3_LANES_H
#define KVCI_BLAKE3_LANES_H

#include <stddef.h>
#include <stdint.h>

/* The first eight words of the square roots of the first primes, as in SHA-256: the initialisation
 * vector (c2sp.org/BLAKE3, section 2.2). */
#define KVCI_BLAKE3_IV0 0x6a09e667U
#define KVCI_BLAKE3_IV1 0xbb67ae85U
#define KVCI_BLAKE3_IV2 0x3c6ef372U
#define KVCI_BLAKE3_IV3 0xa54ff53aU
#define KVCI_BLAKE3_IV4 0x510e527fU
#define KVCI_BLAKE3_IV5 0x9b05688cU
#define KVCI_BLAKE3_IV6 0x1f83d9abU
#define KVCI_BLAKE3_IV7 0x5be0cd19U

/* The seven rounds, as calls of ROUND with the message words in the order of their use. Each line
 * is the one above it after the permutation 2 6 3 10 7 0 4 13 1 11 12 5 9 14 15 8 (c2sp.org/BLAKE3,
 * section 2.3). They are written out so that no kernel has to look an index up at run time. */
#define KVCI_BLAKE3_SEVEN_ROUNDS(ROUND)                                                            \
    do {                                                                                           \
        ROUND(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);                               \
        ROUND(2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8);                               \
        ROUND(3, 4, 10, 12, 13, 2, 7, 14, 6, 5, 9, 0, 11, 15, 8, 1);                               \
        ROUND(10, 7, 12, 9, 14, 3, 13, 15, 4, 0, 11, 2, 5, 8, 1, 6);                               \
        ROUND(12, 13, 9, 11, 15, 10, 14, 8, 7, 2, 5, 3, 0, 1, 6, 4);                               \
        ROUND(9, 14, 11, 5, 8, 12, 15, 1, 13, 3, 0, 10, 2, 6, 4, 7);                               \
        ROUND(11, 15, 5, 0, 1, 9, 8, 6, 14, 10, 2, 12, 3, 4, 7, 13);                               \
    } while (0)

/* What a kernel compresses: several inputs of one shape, side by side, each being a whole chunk (16
 * blocks, counters in a row) or a parent node (one block, counter 0); or one run of blocks of one
 * chunk, for which the two steps do not matter. */
struct kvci_blake3_job {
    const uint8_t *data; /* the first input; the next ones follow at a distance of stride_bytes */
    size_t stride_bytes;
    size_t block_count;    /* 64-byte blocks in each input, at least one */
    const uint32_t *key;   /* eight words, the value before the first block */
    uint64_t counter;      /* of the first input */
    uint32_t counter_step; /* added from one input to the next */
    uint32_t flags;        /* in every block */
    uint32_t first_flags;  /* more in the first block */
    uint32_t last_flags;   /* more in the last block */
    uint32_t last_bytes;   /* bytes that count in the last block; the others are there, and 0 */
};

/* Writes `count` values of 32 bytes, 1 <= count <= the kernel's lanes; last_bytes must be 64. All
 * the inputs are read before the first value is written, so the values may lie over them. */
typedef void kvci_blake3_lanes_fn(const struct kvci_blake3_job *job, size_t count,
                                  uint8_t *ret_values);

/* Writes the eight words of the value after the blocks of one input, which may lie over the key. */
typedef void kvci_blake3_chain_fn(const struct kvci_blake3_job *job, uint32_t ret_value[8]);

/* x86: with AVX-512 F, VL and BW. */
kvci_blake3_lanes_fn kvci_blake3_lanes16;
kvci_blake3_lanes_fn kvci_blake3_lanes8_vl;
kvci_blake3_lanes_fn kvci_blake3_lanes4_vl;
kvci_blake3_chain_fn kvci_blake3_chain_vl;

/* x86: with AVX2. */
kvci_blake3_lanes_fn kvci_blake3_lanes8;
kvci_blake3_lanes_fn kvci_blake3_lanes4_avx2;
kvci_blake3_chain_fn kvci_blake3_chain_avx2;

/* x86 with SSE4.1; AArch64 with NEON. */
kvci_blake3_lanes_fn kvci_blake3_lanes4;
kvci_blake3_chain_fn kvci_blake3_chain;

#endif
