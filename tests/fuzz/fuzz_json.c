/* fuzz_json.c: any bytes as JSON; what the strict scanner accepts and what the canonical writer
 * writes must be the same texts.
 * SPDX-License-Identifier: Apache-2.0 */
#include "alloc.h"
#include "canonical.h"
#include "json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_VALUES = 100000 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* A defect ends the process in every build, so that it is not lost with assertions off. */
static void check(bool fine, const char *what)
{
    if (!fine) {
        fprintf(stderr, "fuzz_json: %s\n", what);
        abort();
    }
}

/* Holds one token against the text that it comes from. */
static void check_token(const struct kvci_json *scan, const struct kvci_json_token *token,
                        size_t *last_offset)
{
    check(token->offset >= *last_offset && token->offset <= scan->bytes, "an offset goes back");
    *last_offset = token->offset;
    if (token->type == KVCI_JSON_END) {
        return;
    }
    check(token->depth >= 1 && token->depth <= KVCI_JSON_MAX_DEPTH + 1, "a depth is out of range");
    check(token->text >= scan->text && token->bytes <= scan->bytes &&
              (size_t)(token->text - scan->text) <= scan->bytes - token->bytes,
          "a token lies outside the text");
    if (token->type == KVCI_JSON_KEY || token->type == KVCI_JSON_STRING) {
        uint8_t *decoded = malloc(token->bytes + 1);
        check(decoded != NULL, "out of memory");
        size_t decoded_bytes = kvci_json_decode(token->text, token->bytes, decoded);
        check(decoded_bytes <= token->bytes, "decoding makes a string longer");
        check(decoded_bytes == kvci_json_decoded_bytes(token->text, token->bytes),
              "two lengths for one string");
        decoded[decoded_bytes] = '\0';
        check(kvci_json_equals(token->text, token->bytes, (const char *)decoded),
              "a string does not equal itself");
        check(kvci_json_compare(token->text, token->bytes, token->text, token->bytes) == 0,
              "a string does not compare equal to itself");
        free(decoded);
    }
}

/* Returns whether the whole text is accepted. */
static bool scan_all(const uint8_t *data, size_t bytes, enum kvci_json_mode mode)
{
    struct kvci_json scan;
    struct kvci_json_token token;
    size_t last_offset = 0;
    kvci_json_init(&scan, data, bytes, mode, MAX_VALUES);
    do {
        if (!kvci_json_next(&scan, &token)) {
            check(scan.problem != NULL && scan.problem_offset <= bytes, "no problem is named");
            check(!kvci_json_next(&scan, &token), "a scan goes on after its problem");
            return false;
        }
        check_token(&scan, &token, &last_offset);
    } while (token.type != KVCI_JSON_END);
    check(scan.values >= 1 && scan.values <= MAX_VALUES, "the values are counted wrongly");
    return true;
}

/* Skipping the top value must judge the text as taking its tokens does. */
static void check_skip(const uint8_t *data, size_t bytes, enum kvci_json_mode mode, bool accepted)
{
    struct kvci_json scan;
    struct kvci_json_token first;
    struct kvci_json_token end;
    size_t end_offset = 0;
    kvci_json_init(&scan, data, bytes, mode, MAX_VALUES);
    bool skipped = kvci_json_next(&scan, &first) && kvci_json_skip(&scan, &first, &end_offset) &&
                   end_offset <= bytes && kvci_json_next(&scan, &end) && end.type == KVCI_JSON_END;
    check(skipped == accepted, "skipping judges otherwise than scanning");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    uint8_t *text = NULL;
    uint8_t *again = NULL;
    size_t text_bytes = 0;
    size_t again_bytes = 0;
    const char *problem = NULL;
    size_t offset = 0;
    bool strict = scan_all(data, bytes, KVCI_JSON_STRICT);
    bool any = scan_all(data, bytes, KVCI_JSON_ANY);
    check_skip(data, bytes, KVCI_JSON_STRICT, strict);
    check_skip(data, bytes, KVCI_JSON_ANY, any);
    enum kvci_canonical_result result =
        kvci_canonical_write(data, bytes, MAX_VALUES, NULL, &text, &text_bytes, &problem, &offset);
    check(result != KVCI_CANONICAL_NO_MEMORY, "out of memory");
    check(any || !strict, "the strict scanner accepts what is not JSON");
    check(any || result == KVCI_CANONICAL_REFUSED, "what is not JSON has a canonical spelling");
    if (result == KVCI_CANONICAL_REFUSED) {
        check(!strict, "a canonical text has no canonical spelling");
        check(problem != NULL && offset <= bytes, "no problem is named");
        return 0;
    }
    check(!strict || (text_bytes == bytes && memcmp(text, data, bytes) == 0),
          "a canonical text is rewritten");
    check(scan_all(text, text_bytes, KVCI_JSON_STRICT), "the writer's text is not canonical");
    result = kvci_canonical_write(text, text_bytes, MAX_VALUES, NULL, &again, &again_bytes,
                                  &problem, &offset);
    check(result == KVCI_CANONICAL_OK && again_bytes == text_bytes &&
              memcmp(again, text, text_bytes) == 0,
          "writing twice changes the text");
    kvci_free(NULL, text);
    kvci_free(NULL, again);
    return 0;
}
