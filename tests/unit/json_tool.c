/* json_tool.c: judges JSON documents on standard input for the comparison with Python in
 * tests/api/test_json_oracle.py.
 * SPDX-License-Identifier: Apache-2.0
 *
 * Usage: json_tool MODE [MAX_VALUES]. A document is its length, four bytes little-endian, and its
 * bytes. Each is answered by one line:
 *   strict, any   `accept`, or `refuse OFFSET PROBLEM`
 *   canonical     `accept` and the canonical text in hexadecimal, or `refuse OFFSET PROBLEM`
 *   decimal       for a JSON number: the bits of its double in hexadecimal, the double's canonical
 *                 text, and `canonical` or `other` for the spelling that was given */
#include "alloc.h"
#include "bytes.h"
#include "canonical.h"
#include "decimal.h"
#include "json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_refusal(size_t offset, const char *problem)
{
    printf("refuse %zu %s\n", offset, problem);
}

static void answer_scan(const uint8_t *text, size_t bytes, enum kvci_json_mode mode,
                        uint64_t max_values)
{
    struct kvci_json scan;
    struct kvci_json_token token;
    kvci_json_init(&scan, text, bytes, mode, max_values);
    do {
        if (!kvci_json_next(&scan, &token)) {
            print_refusal(scan.problem_offset, scan.problem);
            return;
        }
    } while (token.type != KVCI_JSON_END);
    printf("accept\n");
}

static int answer_canonical(const uint8_t *text, size_t bytes, uint64_t max_values)
{
    uint8_t *canonical = NULL;
    size_t canonical_bytes = 0;
    const char *problem = NULL;
    size_t offset = 0;
    switch (kvci_canonical_write(text, bytes, max_values, NULL, &canonical, &canonical_bytes,
                                 &problem, &offset)) {
    case KVCI_CANONICAL_OK:
        printf("accept ");
        for (size_t i = 0; i < canonical_bytes; i++) {
            printf("%02x", canonical[i]);
        }
        printf("\n");
        kvci_free(NULL, canonical);
        return 0;
    case KVCI_CANONICAL_REFUSED:
        print_refusal(offset, problem);
        return 0;
    case KVCI_CANONICAL_NO_MEMORY:
        break;
    }
    return 1;
}

static void answer_decimal(const uint8_t *text, size_t bytes)
{
    char formatted[KVCI_DECIMAL_BYTES] = "none";
    uint64_t bits = 0;
    double value = kvci_decimal_value(text, bytes);
    memcpy(&bits, &value, sizeof(bits));
    if (isfinite(value)) {
        (void)kvci_decimal_format(value, formatted);
    }
    printf("%016" PRIx64 " %s %s\n", bits, formatted,
           kvci_decimal_canonical(text, bytes) ? "canonical" : "other");
}

/* Returns 0, or 1 when the mode is unknown or memory runs out. */
static int answer(const char *mode, const uint8_t *text, size_t bytes, uint64_t max_values)
{
    if (strcmp(mode, "strict") == 0) {
        answer_scan(text, bytes, KVCI_JSON_STRICT, max_values);
        return 0;
    }
    if (strcmp(mode, "any") == 0) {
        answer_scan(text, bytes, KVCI_JSON_ANY, max_values);
        return 0;
    }
    if (strcmp(mode, "decimal") == 0) {
        answer_decimal(text, bytes);
        return 0;
    }
    return strcmp(mode, "canonical") == 0 ? answer_canonical(text, bytes, max_values) : 1;
}

int main(int argc, char **argv)
{
    uint8_t head[4];
    int failed = argc < 2;
    uint64_t max_values = argc > 2 ? strtoull(argv[2], NULL, 10) : UINT64_MAX;
    while (!failed && fread(head, 1, sizeof(head), stdin) == sizeof(head)) {
        size_t bytes = kvci_load32(head);
        /* A block of just this size lets a sanitizer see what reads beyond it. */
        uint8_t *text = malloc(bytes > 0 ? bytes : 1);
        failed = text == NULL || fread(text, 1, bytes, stdin) != bytes ||
                 answer(argv[1], text, bytes, max_values) != 0;
        free(text);
    }
    if (failed) {
        fprintf(stderr, "json_tool: usage: json_tool strict|any|canonical|decimal [MAX_VALUES]\n");
    }
    return failed ? 2 : 0;
}
