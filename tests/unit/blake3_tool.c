/* blake3_tool.c: answers hash requests on standard input, one a line, for the comparison with the
 * blake3 package in tests/api/test_blake3_oracle.py.
 * SPDX-License-Identifier: Apache-2.0
 *
 * The inputs are made by the rule in make_input, which the Python test repeats, so that no bytes
 * have to be sent. Requests, each answered by one line of lower-case hex digits (or a name):
 *   kernel                        the kernel in use
 *   hash N SHIFT                  one call of kvci_blake3_hash over N bytes at an odd address
 *   update N STEP                 hash mode, in pieces of STEP, STEP + 1, STEP + 2, ... bytes
 *   keyed N STEP                  the same in keyed mode, with the first 32 input bytes as key
 *   derive N STEP                 the same in derive-key mode, with the context below
 *   subtree N GRID SHIFT          the value of a grid chunk of N bytes with index GRID
 *   row N GRID                    the values of the grid chunks of N bytes, the first being GRID
 *   combine N                     the hash of N bytes by way of kvci_blake3_subtree and combine */
#include "blake3.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONTEXT "KVC1 tests 2025 derive"

enum { INPUT_BYTES = 17 << 20, SHIFT_BYTES = 64, ROW_VALUES = INPUT_BYTES / 65536 + 1 };

/* Byte i is byte i % 4 of a 32-bit number that depends on i / 4, so that no two blocks, chunks or
 * grid chunks are equal. */
static void make_input(uint8_t *input)
{
    for (size_t i = 0; i < INPUT_BYTES; i += 4) {
        uint32_t word = (uint32_t)(i / 4) * 2654435761U;
        word ^= word >> 15;
        for (size_t j = 0; j < 4; j++) {
            input[i + j] = (uint8_t)(word >> (8 * j));
        }
    }
}

static void print_hex(const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        printf("%02x", bytes[i]);
    }
    printf("\n");
}

static void feed(struct kvci_blake3 *h, const uint8_t *input, size_t bytes, size_t step)
{
    while (bytes > 0) {
        size_t piece = step < bytes ? step : bytes;
        kvci_blake3_update(h, input, piece);
        input += piece;
        bytes -= piece;
        step++;
    }
}

static void answer_combine(const uint8_t *input, size_t bytes)
{
    static uint8_t values[ROW_VALUES * 32];
    uint8_t digest[32];
    size_t count = 0;
    for (size_t at = 0; at < bytes; at += KVCI_BLAKE3_SUBTREE_BYTES) {
        size_t left = bytes - at;
        kvci_blake3_subtree(input + at,
                            left < KVCI_BLAKE3_SUBTREE_BYTES ? left : KVCI_BLAKE3_SUBTREE_BYTES,
                            count, values + 32 * count);
        count++;
    }
    kvci_blake3_combine(values, count, digest);
    print_hex(digest, sizeof digest);
}

/* Returns whether the request was understood. */
static int answer(const char *name, size_t bytes, uint64_t a, uint64_t b, uint8_t *input,
                  uint8_t *shifted)
{
    static uint8_t values[ROW_VALUES * 32];
    struct kvci_blake3 h;
    uint8_t digest[32];
    if (bytes > INPUT_BYTES || b > SHIFT_BYTES) {
        return 0;
    }
    if (strcmp(name, "kernel") == 0) {
        printf("%s\n", kvci_blake3_kernel());
        return 1;
    }
    if (strcmp(name, "combine") == 0) {
        answer_combine(input, bytes);
        return 1;
    }
    if (strcmp(name, "row") == 0) {
        kvci_blake3_subtrees(input, bytes, a, values);
        print_hex(values,
                  32 * ((bytes + KVCI_BLAKE3_SUBTREE_BYTES - 1) / KVCI_BLAKE3_SUBTREE_BYTES));
        return 1;
    }
    if (strcmp(name, "hash") == 0 || strcmp(name, "subtree") == 0) {
        uint64_t shift = name[0] == 'h' ? a : b;
        if (shift > SHIFT_BYTES) {
            return 0;
        }
        memcpy(shifted + shift, input, bytes);
        if (name[0] == 'h') {
            kvci_blake3_hash(shifted + shift, bytes, digest);
        } else {
            kvci_blake3_subtree(shifted + shift, bytes, a, digest);
        }
        print_hex(digest, sizeof digest);
        return 1;
    }
    if (strcmp(name, "update") == 0) {
        kvci_blake3_init(&h);
    } else if (strcmp(name, "keyed") == 0) {
        kvci_blake3_init_keyed(&h, input);
    } else if (strcmp(name, "derive") == 0) {
        kvci_blake3_init_derive(&h, CONTEXT);
    } else {
        return 0;
    }
    feed(&h, input, bytes, (size_t)a);
    kvci_blake3_final(&h, digest);
    print_hex(digest, sizeof digest);
    return 1;
}

int main(void)
{
    char line[128];
    uint8_t *input = malloc(INPUT_BYTES);
    uint8_t *shifted = malloc(INPUT_BYTES + SHIFT_BYTES);
    if (input == NULL || shifted == NULL) {
        fprintf(stderr, "blake3_tool: out of memory\n");
        return 2;
    }
    make_input(input);
    while (fgets(line, sizeof line, stdin) != NULL) {
        char name[16] = "";
        uint64_t bytes = 0;
        uint64_t a = 0;
        uint64_t b = 0;
        int fields = sscanf(line, "%15s %" SCNu64 " %" SCNu64 " %" SCNu64, name, &bytes, &a, &b);
        if (fields < 1 || !answer(name, (size_t)bytes, a, b, input, shifted)) {
            fprintf(stderr, "blake3_tool: not understood: %s", line);
            return 2;
        }
    }
    free(input);
    free(shifted);
    return 0;
}
