/* blake3_lanes.c: BLAKE3 kernels that compress 16, 8 or 4 inputs side by side, one in each lane.
 * SPDX-License-Identifier: Apache-2.0
 *
 * The build compiles this file once for each of
 *     KVCI_LANES=16   kvci_blake3_lanes16      AVX-512 F, VL, BW
 *     KVCI_LANES=8    kvci_blake3_lanes8_vl    the same
 *     KVCI_LANES=4    kvci_blake3_lanes4_vl    the same
 *     KVCI_LANES=8    kvci_blake3_lanes8       AVX2
 *     KVCI_LANES=4    kvci_blake3_lanes4_avx2  AVX2
 *     KVCI_LANES=4    kvci_blake3_lanes4       SSE4.1, or NEON
 * and the 4-lane compiles add a kernel for one input, kvci_blake3_chain with the same endings,
 * whose lanes are the columns of the state.
 * The language is C with the vector extensions that GCC (from 12) and Clang share; nothing here is
 * particular to one processor. Section numbers are those of c2sp.org/BLAKE3. */
#include "blake3_lanes.h"

#include <string.h>

#include "ban.h"

#if !defined(KVCI_LANES) || (KVCI_LANES != 16 && KVCI_LANES != 8 && KVCI_LANES != 4)
#error "KVCI_LANES must be 16, 8 or 4"
#endif
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the lanes take message words from memory as they are, which needs a little-endian host"
#endif

#define LANES KVCI_LANES
#define GROUPS (LANES / 4)

#define JOIN_NAMES(a, b) a##b
#define JOIN(a, b) JOIN_NAMES(a, b)
#if defined(__AVX512VL__) && LANES < 16
#define NAME(base) JOIN(base, _vl)
#elif defined(__AVX2__) && LANES < 8
#define NAME(base) JOIN(base, _avx2)
#else
#define NAME(base) base
#endif

#define SHUFFLE __builtin_shufflevector

typedef uint32_t quad __attribute__((vector_size(16)));
typedef uint32_t lanes __attribute__((vector_size(4 * LANES)));
typedef uint8_t lanes_bytes __attribute__((vector_size(4 * LANES)));

/* ---- what differs between the widths: shuffles within groups of four lanes ---- */

#if LANES == 16
#define LOW32(a, b) SHUFFLE(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29)
#define HIGH32(a, b) SHUFFLE(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31)
#define LOW64(a, b) SHUFFLE(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
#define HIGH64(a, b) SHUFFLE(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
#elif LANES == 8
#define LOW32(a, b) SHUFFLE(a, b, 0, 8, 1, 9, 4, 12, 5, 13)
#define HIGH32(a, b) SHUFFLE(a, b, 2, 10, 3, 11, 6, 14, 7, 15)
#define LOW64(a, b) SHUFFLE(a, b, 0, 1, 8, 9, 4, 5, 12, 13)
#define HIGH64(a, b) SHUFFLE(a, b, 2, 3, 10, 11, 6, 7, 14, 15)
#else
#define LOW32(a, b) SHUFFLE(a, b, 0, 4, 1, 5)
#define HIGH32(a, b) SHUFFLE(a, b, 2, 6, 3, 7)
#define LOW64(a, b) SHUFFLE(a, b, 0, 1, 4, 5)
#define HIGH64(a, b) SHUFFLE(a, b, 2, 3, 6, 7)
#endif

static inline quad load_quad(const uint8_t *at)
{
    quad value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* Four words from each input, taken at the same place: group g holds those of input 4 g + row. */
static inline lanes load_row(const uint8_t *const inputs[LANES], unsigned row, size_t offset)
{
#if LANES == 4
    return load_quad(inputs[row] + offset);
#else
    quad a = load_quad(inputs[row] + offset);
    quad b = load_quad(inputs[row + 4] + offset);
#if LANES == 8
    return SHUFFLE(a, b, 0, 1, 2, 3, 4, 5, 6, 7);
#else
    typedef uint32_t octet __attribute__((vector_size(32)));
    quad c = load_quad(inputs[row + 8] + offset);
    quad d = load_quad(inputs[row + 12] + offset);
    octet ab = SHUFFLE(a, b, 0, 1, 2, 3, 4, 5, 6, 7);
    octet cd = SHUFFLE(c, d, 0, 1, 2, 3, 4, 5, 6, 7);
    return SHUFFLE(ab, cd, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#endif
#endif
}

/* Transposes the 4 x 4 words of each group: lane 4 g + i of row j goes to lane 4 g + j of row i. */
static inline void transpose_groups(lanes row[4])
{
    lanes a = LOW32(row[0], row[1]);
    lanes b = HIGH32(row[0], row[1]);
    lanes c = LOW32(row[2], row[3]);
    lanes d = HIGH32(row[2], row[3]);
    row[0] = LOW64(a, c);
    row[1] = HIGH64(a, c);
    row[2] = LOW64(b, d);
    row[3] = HIGH64(b, d);
}

/* ---- rotations ---- */

#define ROTATE(x, bits) ((x) >> (bits) | (x) << (32 - (bits)))

/* Rotations by whole bytes are one byte shuffle where there is no rotate instruction. */
#if defined(__AVX512VL__)
#define ROTATE16(x) ROTATE(x, 16)
#define ROTATE8(x) ROTATE(x, 8)
#elif LANES == 8
#define ROTATE16(x)                                                                                \
    ((lanes)SHUFFLE((lanes_bytes)(x), (lanes_bytes)(x), 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14,  \
                    15, 12, 13, 18, 19, 16, 17, 22, 23, 20, 21, 26, 27, 24, 25, 30, 31, 28, 29))
#define ROTATE8(x)                                                                                 \
    ((lanes)SHUFFLE((lanes_bytes)(x), (lanes_bytes)(x), 1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11, 8, 13,  \
                    14, 15, 12, 17, 18, 19, 16, 21, 22, 23, 20, 25, 26, 27, 24, 29, 30, 31, 28))
#else
#define ROTATE16(x)                                                                                \
    ((lanes)SHUFFLE((lanes_bytes)(x), (lanes_bytes)(x), 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14,  \
                    15, 12, 13))
#define ROTATE8(x)                                                                                 \
    ((lanes)SHUFFLE((lanes_bytes)(x), (lanes_bytes)(x), 1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11, 8, 13,  \
                    14, 15, 12))
#endif

/* ---- many inputs side by side ---- */

/* Half a quarter round (section 3.2). The word is added to `a` first: both are ready long before
 * `b`, on which everything waits. */
#define HALF_MIX(a, b, c, d, word, rotate_d, bits_b)                                               \
    do {                                                                                           \
        v[a] = (v[a] + w[word]) + v[b];                                                            \
        v[d] = rotate_d(v[d] ^ v[a]);                                                              \
        v[c] += v[d];                                                                              \
        v[b] = ROTATE(v[b] ^ v[c], bits_b);                                                        \
    } while (0)

/* Two quarter rounds in step: one alone would leave the processor waiting for its results, and four
 * need more registers than the narrower sets have. The last two names of each are message words. */
#define MIX2(a0, b0, c0, d0, x0, y0, a1, b1, c1, d1, x1, y1)                                       \
    do {                                                                                           \
        HALF_MIX(a0, b0, c0, d0, x0, ROTATE16, 12);                                                \
        HALF_MIX(a1, b1, c1, d1, x1, ROTATE16, 12);                                                \
        HALF_MIX(a0, b0, c0, d0, y0, ROTATE8, 7);                                                  \
        HALF_MIX(a1, b1, c1, d1, y1, ROTATE8, 7);                                                  \
    } while (0)

#define ROUND(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p)                                      \
    do {                                                                                           \
        MIX2(0, 4, 8, 12, a, b, 1, 5, 9, 13, c, d);                                                \
        MIX2(2, 6, 10, 14, e, f, 3, 7, 11, 15, g, h);                                              \
        MIX2(0, 5, 10, 15, i, j, 1, 6, 11, 12, k, l);                                              \
        MIX2(2, 7, 8, 13, m, n, 3, 4, 9, 14, o, p);                                                \
    } while (0)

/* Asks for a share of the bytes that the lanes read next, in the order of their addresses: so many
 * streams at once are more than the processor foresees by itself. Over the blocks of a chunk this
 * asks for the next LANES chunks, whole. Nothing is read, so it may point beyond the input. */
static inline void prefetch(const struct kvci_blake3_job *job, size_t offset)
{
    uintptr_t next = (uintptr_t)job->data + LANES * (job->stride_bytes + offset);
    for (size_t i = 0; i < LANES; i++) {
        __builtin_prefetch((const void *)(next + 64 * i));
    }
}

/* Section 3.3 in every lane; all blocks are full. */
static inline void compress_lanes(lanes value[8], const uint8_t *const inputs[LANES], size_t offset,
                                  lanes counter_low, lanes counter_high, uint32_t flags)
{
    lanes w[16];
    for (unsigned i = 0; i < 4; i++) {
        for (unsigned j = 0; j < 4; j++) {
            w[4 * i + j] = load_row(inputs, j, offset + 16 * (size_t)i);
        }
        transpose_groups(w + 4 * i);
    }
    const lanes zero = {0};
    lanes v[16] = {
        value[0],
        value[1],
        value[2],
        value[3],
        value[4],
        value[5],
        value[6],
        value[7],
        zero + KVCI_BLAKE3_IV0,
        zero + KVCI_BLAKE3_IV1,
        zero + KVCI_BLAKE3_IV2,
        zero + KVCI_BLAKE3_IV3,
        counter_low,
        counter_high,
        zero + 64U,
        zero + flags,
    };
    KVCI_BLAKE3_SEVEN_ROUNDS(ROUND);
    for (unsigned i = 0; i < 8; i++) {
        value[i] = v[i] ^ v[i + 8];
    }
}

#undef ROUND

/* Turns eight words in every lane into 32 bytes for every lane. */
static inline void store_values(lanes value[8], uint8_t *ret_values)
{
    transpose_groups(value);
    transpose_groups(value + 4);
    for (unsigned i = 0; i < 4; i++) {
        for (unsigned group = 0; group < GROUPS; group++) {
            uint8_t *at = ret_values + 32 * (size_t)(4 * group + i);
            memcpy(at, (const uint8_t *)&value[i] + 16 * (size_t)group, 16);
            memcpy(at + 16, (const uint8_t *)&value[4 + i] + 16 * (size_t)group, 16);
        }
    }
}

void NAME(JOIN(kvci_blake3_lanes, LANES))(const struct kvci_blake3_job *job, size_t count,
                                          uint8_t *ret_values)
{
    const uint8_t *inputs[LANES];
    lanes value[8];
    lanes counter_low;
    lanes counter_high;
    for (size_t i = 0; i < LANES; i++) {
        /* Lanes without an input of their own repeat the last one. */
        size_t input = i < count ? i : count - 1;
        uint64_t counter = job->counter + input * job->counter_step;
        inputs[i] = job->data + input * job->stride_bytes;
        counter_low[i] = (uint32_t)counter;
        counter_high[i] = (uint32_t)(counter >> 32);
    }
    const lanes zero = {0};
    for (unsigned i = 0; i < 8; i++) {
        value[i] = zero + job->key[i];
    }
    uint32_t flags = job->flags | job->first_flags;
    for (size_t block = 0; block < job->block_count; block++) {
        if (block + 1 == job->block_count) {
            flags |= job->last_flags;
        }
        prefetch(job, 64 * block);
        compress_lanes(value, inputs, 64 * block, counter_low, counter_high, flags);
        flags = job->flags;
    }
    if (count == LANES) {
        store_values(value, ret_values);
    } else {
        uint8_t all[32 * LANES];
        store_values(value, all);
        memcpy(ret_values, all, 32 * count);
    }
}

/* ---- one input: the vectors are the four rows of the state ---- */

#if LANES == 4

/* The message words of one round, in the order in which the rows take them. The diagonal half round
 * leaves row b in place and turns the others, because b is the last row to be ready; so lane j of
 * diagonal_x belongs to diagonal j - 1. */
struct round_words {
#if defined(__AVX512VL__)
    /* Two halves of one vector, which a two-source permutation can produce whole. */
    uint32_t column __attribute__((vector_size(32)));
    uint32_t diagonal __attribute__((vector_size(32)));
#else
    quad column_x;   /* words 0 2 4 6 of this round's sixteen */
    quad column_y;   /* words 1 3 5 7 */
    quad diagonal_x; /* words 14 8 10 12 */
    quad diagonal_y; /* words 15 9 11 13 */
#endif
};

#if defined(__AVX512VL__)

#define FIRST_HALF(octet) SHUFFLE(octet, octet, 0, 1, 2, 3)
#define SECOND_HALF(octet) SHUFFLE(octet, octet, 4, 5, 6, 7)
#define COLUMN_X(w) FIRST_HALF((w).column)
#define COLUMN_Y(w) SECOND_HALF((w).column)
#define DIAGONAL_X(w) FIRST_HALF((w).diagonal)
#define DIAGONAL_Y(w) SECOND_HALF((w).diagonal)

static inline struct round_words first_words(const uint8_t block[64])
{
    struct round_words w;
    memcpy(&w.column, block, 32);
    memcpy(&w.diagonal, block + 32, 32);
    w.column = SHUFFLE(w.column, w.column, 0, 2, 4, 6, 1, 3, 5, 7);
    w.diagonal = SHUFFLE(w.diagonal, w.diagonal, 6, 0, 2, 4, 7, 1, 3, 5);
    return w;
}

/* The permutation of section 2.3, seen through the order above. */
static inline struct round_words next_words(struct round_words w)
{
    return (struct round_words){
        .column = SHUFFLE(w.column, w.diagonal, 1, 5, 7, 2, 3, 10, 0, 15),
        .diagonal = SHUFFLE(w.column, w.diagonal, 12, 4, 11, 13, 9, 14, 6, 8),
    };
}

#else

#define COLUMN_X(w) ((w).column_x)
#define COLUMN_Y(w) ((w).column_y)
#define DIAGONAL_X(w) ((w).diagonal_x)
#define DIAGONAL_Y(w) ((w).diagonal_y)

static inline struct round_words first_words(const uint8_t block[64])
{
    quad a = load_quad(block);
    quad b = load_quad(block + 16);
    quad c = load_quad(block + 32);
    quad d = load_quad(block + 48);
    quad even = SHUFFLE(c, d, 0, 2, 4, 6);
    quad odd = SHUFFLE(c, d, 1, 3, 5, 7);
    return (struct round_words){
        .column_x = SHUFFLE(a, b, 0, 2, 4, 6),
        .column_y = SHUFFLE(a, b, 1, 3, 5, 7),
        .diagonal_x = SHUFFLE(even, even, 3, 0, 1, 2),
        .diagonal_y = SHUFFLE(odd, odd, 3, 0, 1, 2),
    };
}

/* The permutation of section 2.3, seen through the order above, in steps of two sources each. */
static inline struct round_words next_words(struct round_words w)
{
    quad a = SHUFFLE(w.column_x, w.column_y, 1, 2, 5, 7);
    quad xy = SHUFFLE(w.diagonal_x, w.diagonal_y, 0, 1, 2, 7);
    quad b = SHUFFLE(w.column_x, xy, 3, 0, 6, 7);
    quad yx = SHUFFLE(w.column_y, w.diagonal_x, 0, 1, 2, 7);
    quad c = SHUFFLE(w.diagonal_y, yx, 0, 1, 4, 7);
    quad yy = SHUFFLE(w.diagonal_y, w.column_y, 2, 6, 3, 7);
    quad d = SHUFFLE(w.diagonal_x, yy, 1, 0, 4, 5);
    return (struct round_words){
        .column_x = SHUFFLE(a, a, 0, 2, 3, 1),
        .column_y = SHUFFLE(b, b, 0, 2, 1, 3),
        .diagonal_x = SHUFFLE(c, c, 0, 2, 3, 1),
        .diagonal_y = SHUFFLE(d, d, 0, 2, 3, 1),
    };
}

#endif

/* Half a quarter round on four columns, or four diagonals, at once. */
#define MIX_ROWS(words, rotate_d, bits_b)                                                          \
    do {                                                                                           \
        a = (a + (words)) + b;                                                                     \
        d = rotate_d(d ^ a);                                                                       \
        c += d;                                                                                    \
        b = ROTATE(b ^ c, bits_b);                                                                 \
    } while (0)

#define TURN(x, i, j, k, l) ((x) = SHUFFLE(x, x, i, j, k, l))

/* Section 3.3 for one block; `d` is the last row: counter, block length and flags. */
static inline void compress_rows(quad value[2], const uint8_t block[64], quad d)
{
    struct round_words w = first_words(block);
    quad a = value[0];
    quad b = value[1];
    quad c = {KVCI_BLAKE3_IV0, KVCI_BLAKE3_IV1, KVCI_BLAKE3_IV2, KVCI_BLAKE3_IV3};
    for (unsigned round = 0; round < 7; round++) {
        MIX_ROWS(COLUMN_X(w), ROTATE16, 12);
        MIX_ROWS(COLUMN_Y(w), ROTATE8, 7);
        TURN(a, 3, 0, 1, 2);
        TURN(c, 1, 2, 3, 0);
        TURN(d, 2, 3, 0, 1);
        MIX_ROWS(DIAGONAL_X(w), ROTATE16, 12);
        MIX_ROWS(DIAGONAL_Y(w), ROTATE8, 7);
        TURN(a, 1, 2, 3, 0);
        TURN(c, 3, 0, 1, 2);
        TURN(d, 2, 3, 0, 1);
        w = next_words(w);
    }
    value[0] = a ^ c;
    value[1] = b ^ d;
}

void NAME(kvci_blake3_chain)(const struct kvci_blake3_job *job, uint32_t ret_value[8])
{
    quad value[2];
    memcpy(value, job->key, sizeof value);
    uint32_t flags = job->flags | job->first_flags;
    uint32_t counter_low = (uint32_t)job->counter;
    uint32_t counter_high = (uint32_t)(job->counter >> 32);
    const uint8_t *last = job->data + 64 * (job->block_count - 1);
    for (const uint8_t *block = job->data; block < last; block += 64) {
        compress_rows(value, block, (quad){counter_low, counter_high, 64, flags});
        flags = job->flags;
    }
    flags |= job->last_flags;
    compress_rows(value, last, (quad){counter_low, counter_high, job->last_bytes, flags});
    memcpy(ret_value, value, sizeof value);
}

#endif
