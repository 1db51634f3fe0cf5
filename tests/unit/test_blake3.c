/* test_blake3.c: known vectors, tree logic and agreement of the kernels of src/blake3.c, as TAP.
 * SPDX-License-Identifier: Apache-2.0
 *
 * One process uses one kernel; the build runs this program once for each KVC_BLAKE3_KERNEL. A slow
 * and obvious BLAKE3, written down below from c2sp.org/BLAKE3 alone, is what every kernel must
 * agree with; the known vectors hold that one to the outside world. */
#include "blake3.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GRID = KVCI_BLAKE3_SUBTREE_BYTES, INPUT_BYTES = 6 * 65536 + 4096 };

static unsigned test_count;
static unsigned failure_count;

static void report(bool good, const char *what)
{
    test_count++;
    failure_count += good ? 0 : 1;
    printf("%s %u - %s\n", good ? "ok" : "not ok", test_count, what);
}

/* ---- the model ---- */

static const uint32_t model_iv[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                     0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

static uint32_t turn(uint32_t word, unsigned bits)
{
    return word >> bits | word << (32 - bits);
}

static void model_mix(uint32_t *v, const unsigned at[4], uint32_t x, uint32_t y)
{
    uint32_t *a = v + at[0];
    uint32_t *b = v + at[1];
    uint32_t *c = v + at[2];
    uint32_t *d = v + at[3];
    *a = *a + *b + x;
    *d = turn(*d ^ *a, 16);
    *c = *c + *d;
    *b = turn(*b ^ *c, 12);
    *a = *a + *b + y;
    *d = turn(*d ^ *a, 8);
    *c = *c + *d;
    *b = turn(*b ^ *c, 7);
}

static void model_compress(uint32_t value[8], const uint8_t *bytes, size_t byte_count,
                           uint64_t counter, uint32_t flags)
{
    static const unsigned order[16] = {2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8};
    static const unsigned at[8][4] = {{0, 4, 8, 12},  {1, 5, 9, 13},  {2, 6, 10, 14},
                                      {3, 7, 11, 15}, {0, 5, 10, 15}, {1, 6, 11, 12},
                                      {2, 7, 8, 13},  {3, 4, 9, 14}};
    uint32_t m[16] = {0};
    uint32_t v[16];
    for (size_t i = 0; i < byte_count; i++) {
        m[i / 4] |= (uint32_t)bytes[i] << (8 * (i % 4));
    }
    for (unsigned i = 0; i < 8; i++) {
        v[i] = value[i];
        v[i + 8] = model_iv[i];
    }
    v[12] = (uint32_t)counter;
    v[13] = (uint32_t)(counter >> 32);
    v[14] = (uint32_t)byte_count;
    v[15] = flags;
    for (unsigned round = 0; round < 7; round++) {
        uint32_t next[16];
        for (unsigned i = 0; i < 8; i++) {
            model_mix(v, at[i], m[2 * i], m[2 * i + 1]);
        }
        for (unsigned i = 0; i < 16; i++) {
            next[i] = m[order[i]];
        }
        memcpy(m, next, sizeof m);
    }
    for (unsigned i = 0; i < 8; i++) {
        value[i] = v[i] ^ v[i + 8];
    }
}

static void model_chunk(const uint8_t *data, size_t bytes, uint64_t counter, const uint32_t key[8],
                        uint32_t flags, uint32_t root, uint32_t ret_value[8])
{
    size_t at = 0;
    memcpy(ret_value, key, 32);
    do {
        size_t step = bytes - at < 64 ? bytes - at : 64;
        bool last = at + step == bytes;
        model_compress(ret_value, data + at, step, counter,
                       flags | (at == 0 ? 1U : 0U) | (last ? 2U | root : 0U));
        at += step;
    } while (at < bytes);
}

static void words_to_bytes(const uint32_t words[8], uint8_t ret_bytes[32])
{
    for (unsigned i = 0; i < 32; i++) {
        ret_bytes[i] = (uint8_t)(words[i / 4] >> (8 * (i % 4)));
    }
}

/* The tree by its definition: a row of chunk values, cut at the largest power of two. Ranges that
 * wait are kept in a list, and a node is computed once both of its halves are. */
static void model_subtree(const uint8_t *data, size_t bytes, uint64_t counter,
                          const uint32_t key[8], uint32_t flags, uint32_t root,
                          uint8_t ret_value[32])
{
    static uint8_t row[512][32];
    size_t chunks = bytes <= 1024 ? 1 : (bytes + 1023) / 1024;
    uint32_t words[8];
    for (size_t i = 0; i < chunks; i++) {
        size_t left = bytes - 1024 * i;
        model_chunk(data + 1024 * i, left < 1024 ? left : 1024, counter + i, key, flags,
                    chunks == 1 ? root : 0, words);
        words_to_bytes(words, row[i]);
    }
    /* A node over [i, i + 2s) of width s on the left exists when it holds more than s chunks. */
    for (size_t s = 1; s < chunks; s *= 2) {
        for (size_t i = 0; i + s < chunks; i += 2 * s) {
            uint8_t pair[64];
            memcpy(pair, row[i], 32);
            memcpy(pair + 32, row[i + s], 32);
            memcpy(words, key, 32);
            model_compress(words, pair, 64, 0, flags | 4U | (2 * s >= chunks ? root : 0));
            words_to_bytes(words, row[i]);
        }
    }
    memcpy(ret_value, row[0], 32);
}

/* ---- helpers ---- */

static bool equals_hex(const uint8_t digest[32], const char *hex)
{
    char text[65];
    for (unsigned i = 0; i < 32; i++) {
        (void)snprintf(text + 2 * i, 3, "%02x", digest[i]);
    }
    return strcmp(text, hex) == 0;
}

/* The input of the official test vectors: bytes 0 1 2 ... 250 0 1 ... */
static void fill(uint8_t *input)
{
    for (size_t i = 0; i < INPUT_BYTES; i++) {
        input[i] = (uint8_t)(i % 251);
    }
}

static void incremental(struct kvci_blake3 h, const uint8_t *data, size_t bytes, size_t step,
                        uint8_t ret_digest[32])
{
    for (size_t at = 0; at < bytes; at += step) {
        kvci_blake3_update(&h, data + at, bytes - at < step ? bytes - at : step);
    }
    kvci_blake3_final(&h, ret_digest);
}

/* ---- tests ---- */

/* From the official test vectors, whose key and context these are. */
static const char vector_key[] = "whats the Elvish word for friend";
static const char vector_context[] = "BLAKE3 2019-12-27 16:29:52 test vectors context";

struct vector {
    size_t bytes;
    const char *hash;
    const char *keyed;
    const char *derived;
};

static const struct vector vectors[] = {
    {0, "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
     "92b2b75604ed3c761f9d6f62392c8a9227ad0ea3f09573e783f1498a4ed60d26",
     "2cc39783c223154fea8dfb7c1b1660f2ac2dcbd1c1de8277b0b0dd39b7e50d7d"},
    {1, "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213",
     "6d7878dfff2f485635d39013278ae14f1454b8c0a3a2d34bc1ab38228a80c95b",
     "b3e2e340a117a499c6cf2398a19ee0d29cca2bb7404c73063382693bf66cb06c"},
    {63, "e9bc37a594daad83be9470df7f7b3798297c3d834ce80ba85d6e207627b7db7b",
     "bb1eb5d4afa793c1ebdd9fb08def6c36d10096986ae0cfe148cd101170ce37ae",
     "b6451e30b953c206e34644c6803724e9d2725e0893039cfc49584f991f451af3"},
    {64, "4eed7141ea4a5cd4b788606bd23f46e212af9cacebacdc7d1f4c6dc7f2511b98",
     "ba8ced36f327700d213f120b1a207a3b8c04330528586f414d09f2f7d9ccb7e6",
     "a5c4a7053fa86b64746d4bb688d06ad1f02a18fce9afd3e818fefaa7126bf73e"},
    {65, "de1e5fa0be70df6d2be8fffd0e99ceaa8eb6e8c93a63f2d8d1c30ecb6b263dee",
     "c0a4edefa2d2accb9277c371ac12fcdbb52988a86edc54f0716e1591b4326e72",
     "51fd05c3c1cfbc8ed67d139ad76f5cf8236cd2acd26627a30c104dfd9d3ff8a8"},
    {1023, "10108970eeda3eb932baac1428c7a2163b0e924c9a9e25b35bba72b28f70bd11",
     "c951ecdf03288d0fcc96ee3413563d8a6d3589547f2c2fb36d9786470f1b9d6e",
     "74a16c1c3d44368a86e1ca6df64be6a2f64cce8f09220787450722d85725dea5"},
    {1024, "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7",
     "75c46f6f3d9eb4f55ecaaee480db732e6c2105546f1e675003687c31719c7ba4",
     "7356cd7720d5b66b6d0697eb3177d9f8d73a4a5c5e968896eb6a689684302706"},
    {1025, "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444",
     "357dc55de0c7e382c900fd6e320acc04146be01db6a8ce7210b7189bd664ea69",
     "effaa245f065fbf82ac186839a249707c3bddf6d3fdda22d1b95a3c970379bcb"},
    {2048, "e776b6028c7cd22a4d0ba182a8bf62205d2ef576467e838ed6f2529b85fba24a",
     "879cf1fa2ea0e79126cb1063617a05b6ad9d0b696d0d757cf053439f60a99dd1",
     "7b2945cb4fef70885cc5d78a87bf6f6207dd901ff239201351ffac04e1088a23"},
    {2049, "5f4d72f40d7a5f82b15ca2b2e44b1de3c2ef86c426c95c1af0b6879522563030",
     "9f29700902f7c86e514ddc4df1e3049f258b2472b6dd5267f61bf13983b78dd5",
     "2ea477c5515cc3dd606512ee72bb3e0e758cfae7232826f35fb98ca1bcbdf273"},
    {3072, "b98cb0ff3623be03326b373de6b9095218513e64f1ee2edd2525c7ad1e5cffd2",
     "044a0e7b172a312dc02a4c9a818c036ffa2776368d7f528268d2e6b5df191770",
     "050df97f8c2ead654d9bb3ab8c9178edcd902a32f8495949feadcc1e0480c46b"},
    {8193, "bab6c09cb8ce8cf459261398d2e7aef35700bf488116ceb94a36d0f5f1b7bc3b",
     "954a2a75420c8d6547e3ba5b98d963e6fa6491addc8c023189cc519821b4a1f5",
     "af1e0346e389b17c23200270a64aa4e1ead98c61695d917de7d5b00491c9b0f1"},
    {31744, "62b6960e1a44bcc1eb1a611a8d6235b6b4b78f32e7abc4fb4c6cdcce94895c47",
     "efa53b389ab67c593dba624d898d0f7353ab99e4ac9d42302ee64cbf9939a419",
     "39772aef80e0ebe60596361e45b061e8f417429d529171b6764468c22928e28e"},
    {102400, "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085",
     "1c35d1a5811083fd7119f5d5d1ba027b4d01c0c6c49fb6ff2cf75393ea5db4a7",
     "4652cff7a3f385a6103b5c260fc1593e13c778dbe608efb092fe7ee69df6e9c6"},
};

static void test_vectors(const uint8_t *input)
{
    bool hash = true;
    bool keyed = true;
    bool derived = true;
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        const struct vector *v = &vectors[i];
        struct kvci_blake3 h;
        uint8_t digest[32];
        kvci_blake3_hash(input, v->bytes, digest);
        hash = hash && equals_hex(digest, v->hash);
        kvci_blake3_init_keyed(&h, (const uint8_t *)vector_key);
        kvci_blake3_update(&h, input, v->bytes);
        kvci_blake3_final(&h, digest);
        keyed = keyed && equals_hex(digest, v->keyed);
        kvci_blake3_init_derive(&h, vector_context);
        kvci_blake3_update(&h, input, v->bytes);
        kvci_blake3_final(&h, digest);
        derived = derived && equals_hex(digest, v->derived);
    }
    report(hash, "known vectors, hash mode");
    report(keyed, "known vectors, keyed mode");
    report(derived, "known vectors, derive-key mode");
}

/* Every block boundary in the first chunks, then every number of chunks that meets a new shape of
 * tree, of lanes in use or of batch. */
static void test_against_model(const uint8_t *input)
{
    bool one_call = true;
    bool pieces = true;
    struct kvci_blake3 h;
    kvci_blake3_init(&h);
    for (size_t bytes = 0; bytes < INPUT_BYTES; bytes += bytes < 2200 ? 1 : 1024 - bytes % 5) {
        uint8_t wanted[32];
        uint8_t digest[32];
        model_subtree(input, bytes, 0, model_iv, 0, 8, wanted);
        kvci_blake3_hash(input, bytes, digest);
        one_call = one_call && memcmp(digest, wanted, 32) == 0;
        incremental(h, input, bytes, bytes % 7 == 0 ? 61 : 100 + bytes % 5000 * 20, digest);
        pieces = pieces && memcmp(digest, wanted, 32) == 0;
    }
    report(one_call, "one call agrees with the model at every length");
    report(pieces, "pieces agree with the model at every length");
}

static void test_final_keeps_the_state(const uint8_t *input)
{
    bool good = true;
    struct kvci_blake3 h;
    kvci_blake3_init(&h);
    kvci_blake3_update(&h, NULL, 0);
    size_t at = 0;
    for (size_t step = 1; at + step < INPUT_BYTES; step += 1 + step / 3) {
        uint8_t wanted[32];
        uint8_t digest[32];
        kvci_blake3_update(&h, input + at, step);
        at += step;
        kvci_blake3_final(&h, digest);
        kvci_blake3_hash(input, at, wanted);
        good = good && memcmp(digest, wanted, 32) == 0;
    }
    report(good, "a digest taken in between changes nothing");
}

static void test_addresses(const uint8_t *input)
{
    static uint8_t shifted[20 * 1024 + 64];
    bool good = true;
    for (size_t shift = 0; shift < 64; shift++) {
        for (size_t bytes = 1000; bytes <= 20 * 1024; bytes = bytes * 2 + 1) {
            uint8_t wanted[32];
            uint8_t digest[32];
            kvci_blake3_hash(input, bytes, wanted);
            memcpy(shifted + shift, input, bytes);
            kvci_blake3_hash(shifted + shift, bytes, digest);
            good = good && memcmp(digest, wanted, 32) == 0;
        }
    }
    report(good, "input at any address");
}

/* Grid indices from 2^26 need more than 32 bits in the chunk counter. */
static void test_subtrees(const uint8_t *input)
{
    static const uint64_t grids[] = {0, 1, 1000, (1U << 26) - 1, 1U << 26, (1ULL << 53) + 1};
    static const size_t sizes[] = {1, 64, 1024, 1025, 2048, 5000, 17408, 65535, 65536};
    bool good = true;
    for (size_t i = 0; i < sizeof grids / sizeof grids[0]; i++) {
        for (size_t j = 0; j < sizeof sizes / sizeof sizes[0]; j++) {
            uint8_t wanted[32];
            uint8_t value[32];
            model_subtree(input, sizes[j], 64 * grids[i], model_iv, 0, 0, wanted);
            kvci_blake3_subtree(input, sizes[j], grids[i], value);
            good = good && memcmp(value, wanted, 32) == 0;
        }
    }
    report(good, "subtree values agree with the model");
}

static void test_rows(const uint8_t *input)
{
    bool single = true;
    bool combined = true;
    for (size_t bytes = GRID + 1; bytes <= INPUT_BYTES; bytes += 20011) {
        uint8_t row[7 * 32];
        uint8_t value[32];
        uint8_t digest[32];
        size_t count = (bytes + GRID - 1) / GRID;
        kvci_blake3_subtrees(input, bytes, 5, row);
        for (size_t i = 0; i < count; i++) {
            size_t left = bytes - GRID * i;
            kvci_blake3_subtree(input + GRID * i, left < GRID ? left : GRID, 5 + i, value);
            single = single && memcmp(value, row + 32 * i, 32) == 0;
        }
        kvci_blake3_subtrees(input, bytes, 0, row);
        kvci_blake3_combine(row, count, value);
        kvci_blake3_hash(input, bytes, digest);
        combined = combined && memcmp(value, digest, 32) == 0;
    }
    report(single, "a row of subtrees agrees with single ones");
    report(combined, "a row combines to the hash");
}

/* The model's tree over rows of values that no input was hashed for. */
static void test_combine_shapes(const uint8_t *input)
{
    static uint8_t row[700][32];
    bool good = true;
    for (size_t count = 2; count <= 700; count++) {
        uint8_t digest[32];
        memcpy(row, input, count * 32);
        kvci_blake3_combine(input, count, digest);
        for (size_t s = 1; s < count; s *= 2) {
            for (size_t i = 0; i + s < count; i += 2 * s) {
                uint8_t pair[64];
                uint32_t words[8];
                memcpy(pair, row[i], 32);
                memcpy(pair + 32, row[i + s], 32);
                memcpy(words, model_iv, 32);
                model_compress(words, pair, 64, 0, 4U | (2 * s >= count ? 8U : 0U));
                words_to_bytes(words, row[i]);
            }
        }
        good = good && memcmp(row[0], digest, 32) == 0;
    }
    report(good, "combining 2 to 700 values agrees with the model");
}

static void test_kernel_choice(void)
{
    const char *wanted = getenv("KVC_BLAKE3_KERNEL");
    const char *kernel = kvci_blake3_kernel();
    if (wanted != NULL && strcmp(wanted, kernel) != 0) {
        printf("# kernel %s was asked for and is not to be had here; using %s\n", wanted, kernel);
    } else {
        printf("# kernel %s\n", kernel);
    }
    report(kernel == kvci_blake3_kernel(), "the kernel is chosen once");
}

int main(void)
{
    uint8_t *input = malloc(INPUT_BYTES);
    if (input == NULL) {
        printf("Bail out! out of memory\n");
        return 1;
    }
    fill(input);
    test_kernel_choice();
    test_vectors(input);
    test_against_model(input);
    test_final_keeps_the_state(input);
    test_addresses(input);
    test_subtrees(input);
    test_rows(input);
    test_combine_shapes(input);
    printf("1..%u\n", test_count);
    free(input);
    return failure_count == 0 ? 0 : 1;
}
