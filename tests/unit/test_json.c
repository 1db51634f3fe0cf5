/* test_json.c: the JSON scanner and the canonical writer. Thousands of documents are compared with
 * Python's reader in tests/api/test_json_oracle.py.
 * SPDX-License-Identifier: Apache-2.0 */
#include "alloc.h"
#include "canonical.h"
#include "json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned tests;
static unsigned failures;

static void report(bool fine, const char *what)
{
    tests++;
    failures += !fine;
    printf("%s %u - %s\n", fine ? "ok" : "not ok", tests, what);
}

/* ---- Tokens -------------------------------------------------------------------------------- */

struct expected_token {
    enum kvci_json_type type;
    unsigned depth;
    size_t offset;
    size_t bytes;
    int64_t integer;
};

static bool scan_gives(const char *text, enum kvci_json_mode mode,
                       const struct expected_token *expected, size_t count)
{
    struct kvci_json scan;
    struct kvci_json_token token;
    kvci_json_init(&scan, text, strlen(text), mode, 100);
    for (size_t i = 0; i < count; i++) {
        if (!kvci_json_next(&scan, &token)) {
            printf("# token %zu: %s\n", i, scan.problem);
            return false;
        }
        if (token.type != expected[i].type || token.offset != expected[i].offset ||
            token.bytes != expected[i].bytes || token.depth != expected[i].depth ||
            token.integer != expected[i].integer) {
            printf("# token %zu: type %d, offset %zu, %zu bytes, depth %u\n", i, (int)token.type,
                   token.offset, token.bytes, token.depth);
            return false;
        }
    }
    return kvci_json_next(&scan, &token) && token.type == KVCI_JSON_END;
}

static void test_tokens(void)
{
    static const struct expected_token strict[] = {
        {KVCI_JSON_OBJECT, 1, 0, 1, 0},      {KVCI_JSON_KEY, 2, 1, 1, 0},
        {KVCI_JSON_ARRAY, 2, 5, 1, 0},       {KVCI_JSON_INTEGER, 3, 6, 3, -12},
        {KVCI_JSON_FLOAT, 3, 10, 3, 0},      {KVCI_JSON_TRUE, 3, 14, 4, 0},
        {KVCI_JSON_FALSE, 3, 19, 5, 0},      {KVCI_JSON_NULL, 3, 25, 4, 0},
        {KVCI_JSON_ARRAY_END, 2, 29, 1, 0},  {KVCI_JSON_KEY, 2, 31, 2, 0},
        {KVCI_JSON_STRING, 2, 36, 3, 0},     {KVCI_JSON_KEY, 2, 42, 2, 0},
        {KVCI_JSON_OBJECT, 2, 47, 1, 0},     {KVCI_JSON_OBJECT_END, 2, 48, 1, 0},
        {KVCI_JSON_OBJECT_END, 1, 49, 1, 0}, {KVCI_JSON_END, 0, 50, 0, 0},
    };
    static const struct expected_token any[] = {
        {KVCI_JSON_ARRAY, 1, 1, 1, 0},      {KVCI_JSON_INTEGER, 2, 3, 2, 0},
        {KVCI_JSON_FLOAT, 2, 8, 3, 0},      {KVCI_JSON_STRING, 2, 13, 6, 0},
        {KVCI_JSON_ARRAY_END, 1, 21, 1, 0},
    };
    static const struct expected_token scalar[] = {{KVCI_JSON_INTEGER, 1, 0, 1, 7}};
    report(scan_gives("{\"a\":[-12,0.5,true,false,null],\"bb\":\"ccc\",\"dd\":{}}",
                      KVCI_JSON_STRICT, strict, sizeof(strict) / sizeof(strict[0])),
           "the tokens of a strict text");
    report(scan_gives("\n[ -0\t, 1E2, \"\\u0041\"] \r\n", KVCI_JSON_ANY, any,
                      sizeof(any) / sizeof(any[0])),
           "the tokens of any text");
    report(scan_gives("7", KVCI_JSON_STRICT, scalar, 1), "the token of a scalar");
}

/* ---- Refusals ------------------------------------------------------------------------------ */

/* Scans it all and returns the problem, or NULL. */
static const char *problem_of(const char *text, size_t bytes, enum kvci_json_mode mode,
                              uint64_t max_values, size_t *ret_offset)
{
    struct kvci_json scan;
    struct kvci_json_token token;
    kvci_json_init(&scan, text, bytes, mode, max_values);
    do {
        if (!kvci_json_next(&scan, &token)) {
            *ret_offset = scan.problem_offset;
            return scan.problem;
        }
    } while (token.type != KVCI_JSON_END);
    return NULL;
}

struct refusal {
    const char *text;
    const char *problem;
    size_t offset;
};

static void test_refusals(enum kvci_json_mode mode, const struct refusal *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        size_t offset = SIZE_MAX;
        const char *problem =
            problem_of(cases[i].text, strlen(cases[i].text), mode, UINT64_MAX, &offset);
        bool fine =
            problem != NULL && strcmp(problem, cases[i].problem) == 0 && offset == cases[i].offset;
        if (!fine) {
            printf("# case %zu: found %s at %zu, expected %zu\n", i,
                   problem != NULL ? problem : "nothing", offset, cases[i].offset);
        }
        report(fine, cases[i].problem);
    }
}

static const struct refusal refused_in_both[] = {
    {"", "the text ends too early", 0},
    {"[1", "the text ends too early", 2},
    {"{\"a\"", "the text ends too early", 4},
    {"\"a", "the text ends inside a string", 2},
    {"\"a\\", "the text ends inside a string", 2},
    {"\xEF\xBB\xBF{}", "the text begins with a byte order mark", 0},
    {"{}x", "there is something behind the end of the value", 2},
    {"[1}", "a comma or the end of the array is expected here", 2},
    {"{\"a\":1]", "a comma or the end of the object is expected here", 6},
    {"[1,]", "a value is expected here", 3},
    {"[,1]", "a value is expected here", 1},
    {"[nul]", "a value is expected here", 1},
    {"[NaN]", "a value is expected here", 1},
    {"{1:2}", "a key in quotes is expected here", 1},
    {"{\"a\":1,}", "a key in quotes is expected here", 7},
    {"{\"a\"1}", "a colon is expected behind a key", 4},
    {"\"a\nb\"", "a control character in a string is not escaped", 2},
    {"\"\\x\"", "there is no such escape in JSON", 1},
    {"\"\\U0041\"", "there is no such escape in JSON", 1},
    {"\"\\u00g1\"", "an escape \\u needs four hexadecimal digits", 1},
    {"\"\\u00", "an escape \\u needs four hexadecimal digits", 1},
    {"\"\\ud800\"", "a surrogate escape without its other half means no character", 1},
    {"\"\\udc00\\ud800\"", "a surrogate escape without its other half means no character", 1},
    {"\"\\ud800\\ue000\"", "a surrogate escape without its other half means no character", 1},
    {"\"\\ud800\\u0041\"", "a surrogate escape without its other half means no character", 1},
    {"\"\\u0000\"", "a string holds U+0000, which is not allowed", 1},
    {"\"\x80\"", "the text is not valid UTF-8", 1},
    {"\"\xC0\x80\"", "the text is not valid UTF-8", 1},
    {"\"\xC1\xBF\"", "the text is not valid UTF-8", 1},
    {"\"\xE0\x9F\xBF\"", "the text is not valid UTF-8", 1},
    {"\"\xED\xA0\x80\"", "the text is not valid UTF-8", 1},
    {"\"\xF0\x8F\xBF\xBF\"", "the text is not valid UTF-8", 1},
    {"\"\xF4\x90\x80\x80\"", "the text is not valid UTF-8", 1},
    {"\"\xF5\x80\x80\x80\"", "the text is not valid UTF-8", 1},
    {"\"\xE2\x82\"", "the text is not valid UTF-8", 1},
    {"\"a\xF0\x9F\x98", "the text is not valid UTF-8", 2},
    {"[-]", "a number has no digit behind its sign", 2},
    {"[01]", "a number has a leading zero", 1},
    {"[-00]", "a number has a leading zero", 1},
    {"[00.5]", "a number has a leading zero", 1},
    {"[1.]", "a number has no digit behind its point", 3},
    {"[1.e5]", "a number has no digit behind its point", 3},
    {"[1e]", "a number has no digit in its exponent", 3},
    {"[1e+]", "a number has no digit in its exponent", 4},
    {"[+1]", "a value is expected here", 1},
    {"[.5]", "a value is expected here", 1},
    {"[9007199254740992]", "an integer is outside -(2^53 - 1) ... 2^53 - 1", 1},
    {"[-9007199254740992]", "an integer is outside -(2^53 - 1) ... 2^53 - 1", 1},
    {"[18446744073709551617]", "an integer is outside -(2^53 - 1) ... 2^53 - 1", 1},
    {"[[[[[[[[[[[[[[[[[", "objects and arrays are nested deeper than 16", 16},
};

static const struct refusal refused_in_strict[] = {
    {" {}", "there is white space between the tokens", 0},
    {"{ }", "there is white space between the tokens", 1},
    {"{\"a\" :1}", "there is white space between the tokens", 4},
    {"[1,\t2]", "there is white space between the tokens", 3},
    {"[1\n]", "there is white space between the tokens", 2},
    {"{}\n", "there is something behind the end of the value", 2},
    {"{\"b\":1,\"a\":2}", "object keys are not in ascending order", 7},
    {"{\"aa\":1,\"a\":2}", "object keys are not in ascending order", 8},
    {"{\"a\":{\"b\":1},\"\":2}", "object keys are not in ascending order", 13},
    {"{\" \":1,\"\\n\":2}", "object keys are not in ascending order", 7},
    {"{\"#\":1,\"\\\"\":2}", "object keys are not in ascending order", 7},
    {"{\"\xF0\x9F\x98\x80\":1,\"\xEF\xBF\xBF\":2}", "object keys are not in ascending order", 10},
    {"{\"a\":1,\"a\":2}", "an object has the same key twice", 7},
    {"\"\\/\"", "an escape is not the canonical spelling of its character", 1},
    {"\"\\u0041\"", "an escape is not the canonical spelling of its character", 1},
    {"\"\\u000a\"", "an escape is not the canonical spelling of its character", 1},
    {"\"\\u0008\"", "an escape is not the canonical spelling of its character", 1},
    {"\"\\u001F\"", "an escape is not the canonical spelling of its character", 1},
    {"\"\\u007f\"", "an escape is not the canonical spelling of its character", 1},
    {"\"\\u0022\"", "an escape is not the canonical spelling of its character", 1},
    {"\"\\ud83d\\ude00\"", "an escape is not the canonical spelling of its character", 1},
    {"-0", "zero has a minus sign", 0},
    {"-0.0", "a float is not in its one canonical spelling", 0},
    {"1.50", "a float is not in its one canonical spelling", 0},
    {"1e5", "a float is not in its one canonical spelling", 0},
    {"1e400", "a float is not in its one canonical spelling", 0},
};

static const struct refusal refused_in_any[] = {
    {"[1e309]", "a float is too large for a double", 1},
    {" \xEF\xBB\xBF{}", "a value is expected here", 1},
    {"\v1", "a value is expected here", 0},
    {"1 2", "there is something behind the end of the value", 2},
};

static bool accepts(const char *text, size_t bytes, enum kvci_json_mode mode, uint64_t max_values)
{
    size_t offset = 0;
    const char *problem = problem_of(text, bytes, mode, max_values, &offset);
    if (problem != NULL) {
        printf("# %s at %zu\n", problem, offset);
    }
    return problem == NULL;
}

static void test_accepted(void)
{
    static const char *const strict[] = {
        "{}",
        "[]",
        "\"\"",
        "0",
        "-1",
        "0.0",
        "null",
        "9007199254740991",
        "-9007199254740991",
        "\"\\\"\\\\\\b\\t\\n\\f\\r\\u0001\\u001f/\x7F\"",
        "\"\xC2\x80\xE0\xA0\x80\xED\x9F\xBF\xEE\x80\x80\xF0\x90\x80\x80\xF4\x8F\xBF\xBF\"",
        "{\"\":0,\"\\u0001\":1,\"\\t\":2,\"\\n\":3,\" \":4,\"\\\"\":5,\"#\":6,\"A\":7,\"\\\\\":8}",
        "{\"a\":9,\"a\\n\":1,\"a \":1,\"ab\":1,\"\xC3\xA9\":1,\"\xEF\xBF\xBF\":1}",
        "{\"\xEF\xBF\xBF\":1,\"\xF0\x9F\x98\x80\":1}",
        "[[[[[[[[[[[[[[[[7]]]]]]]]]]]]]]]]",
    };
    static const char *const any[] = {
        " { \"b\" : 1 , \"a\" : [ ] } ",
        "\t\r\n0",
        "{\"a\":1,\"a\":2}",
        "\"\\/\\ud83d\\ude00\"",
        "[-0,-0.0,1E+02,0.10,1e-999,1.00000000000000000000000000000000000000000000001]",
    };
    for (size_t i = 0; i < sizeof(strict) / sizeof(strict[0]); i++) {
        report(accepts(strict[i], strlen(strict[i]), KVCI_JSON_STRICT, UINT64_MAX) &&
                   accepts(strict[i], strlen(strict[i]), KVCI_JSON_ANY, UINT64_MAX),
               "a canonical text is accepted in both modes");
    }
    for (size_t i = 0; i < sizeof(any) / sizeof(any[0]); i++) {
        size_t offset = 0;
        report(accepts(any[i], strlen(any[i]), KVCI_JSON_ANY, UINT64_MAX) &&
                   problem_of(any[i], strlen(any[i]), KVCI_JSON_STRICT, UINT64_MAX, &offset) !=
                       NULL,
               "another spelling is accepted in one mode");
    }
    report(accepts("[1,{\"a\":[]},\"b\"]", 16, KVCI_JSON_STRICT, 5), "as many values as allowed");
    report(!accepts("[1,{\"a\":[]},\"b\"]", 16, KVCI_JSON_STRICT, 4), "one value too many");
    report(!accepts("1", 1, KVCI_JSON_ANY, 0), "no value is allowed");
    report(!accepts("[\0]", 3, KVCI_JSON_ANY, 9) && !accepts("\"\0\"", 3, KVCI_JSON_ANY, 9),
           "a zero byte is refused");
    report(!accepts(NULL, 0, KVCI_JSON_STRICT, 9), "no text at all is refused");
}

/* ---- Skipping and raw spellings ------------------------------------------------------------ */

/* Takes tokens up to the first of a type; false when there is none. */
static bool go_to(struct kvci_json *scan, enum kvci_json_type type, struct kvci_json_token *token)
{
    do {
        if (!kvci_json_next(scan, token) || token->type == KVCI_JSON_END) {
            return false;
        }
    } while (token->type != type);
    return true;
}

static void test_skip(void)
{
    static const char text[] = "{\"a\":[[1,{\"b\":2}],3],\"c\":\"d\",\"e\":4}";
    struct kvci_json scan;
    struct kvci_json_token token;
    size_t end = 0;
    kvci_json_init(&scan, text, sizeof(text) - 1, KVCI_JSON_STRICT, 100);
    bool fine = go_to(&scan, KVCI_JSON_ARRAY, &token) && kvci_json_skip(&scan, &token, &end);
    report(fine && end == 20, "an array is passed over");
    fine = go_to(&scan, KVCI_JSON_KEY, &token) && kvci_json_equals(token.text, token.bytes, "c") &&
           go_to(&scan, KVCI_JSON_STRING, &token) && kvci_json_skip(&scan, &token, &end);
    report(fine && end == 28, "a string is passed over");
    fine = go_to(&scan, KVCI_JSON_INTEGER, &token) && kvci_json_skip(&scan, &token, &end);
    report(fine && end == 34, "a number is passed over");
    fine = kvci_json_next(&scan, &token) && token.type == KVCI_JSON_OBJECT_END;
    for (unsigned i = 0; i < 3; i++) {
        fine = fine && kvci_json_next(&scan, &token) && token.type == KVCI_JSON_END;
    }
    report(fine, "END comes for ever");
    report(scan.values == 9, "values are counted, keys are not");

    kvci_json_init(&scan, "[[1,2}", 6, KVCI_JSON_STRICT, 100);
    fine = kvci_json_next(&scan, &token) && !kvci_json_skip(&scan, &token, &end);
    for (unsigned i = 0; i < 3; i++) {
        fine = fine && scan.problem_offset == 5 && !kvci_json_next(&scan, &token);
    }
    report(fine, "what is passed over is judged, and a failed scan stays so");
}

static int compare(const char *a, const char *b)
{
    return kvci_json_compare((const uint8_t *)a, strlen(a), (const uint8_t *)b, strlen(b));
}

static bool equals(const char *raw, const char *literal)
{
    return kvci_json_equals((const uint8_t *)raw, strlen(raw), literal);
}

static void test_spellings(void)
{
    static const char *const ascending[] = {
        "",
        "\\u0001",
        "\\t",
        "\\n",
        "\\n\\n",
        " ",
        "\\\"",
        "#",
        "\\/0",
        "A",
        "\\\\",
        "]",
        "a",
        "a\\u0001",
        "a ",
        "aa",
        "\\u007f",
        "\xC2\x80",
        "\\u00e9",
        "\\ud7ff",
        "\\ue000",
        "\xEF\xBF\xBF",
        "\\ud800\\udc00",
        "\xF0\x90\x80\x80\\n",
        "\\udbff\\udfff",
    };
    bool fine = true;
    size_t count = sizeof(ascending) / sizeof(ascending[0]);
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < count; j++) {
            int order = compare(ascending[i], ascending[j]);
            if ((order < 0) != (i < j) || (order > 0) != (i > j)) {
                printf("# %s and %s compare as %d\n", ascending[i], ascending[j], order);
                fine = false;
            }
        }
    }
    report(fine, "spellings compare by code points");
    report(compare("\\u0041b", "Ab") == 0 && compare("a\\/", "a/") == 0 &&
               compare("\\ud83d\\ude00", "\xF0\x9F\x98\x80") == 0,
           "two spellings of one text are equal");
    report(equals("", "") && equals("abc", "abc") && equals("a\\u0062c", "abc") &&
               equals("\\ud83d\\ude00", "\xF0\x9F\x98\x80") && equals("\\\"\\\\", "\"\\"),
           "spellings equal plain text");
    report(!equals("", "a") && !equals("ab", "abc") && !equals("abc", "ab") &&
               !equals("a\\n", "a\\n") && !equals("\\u0061", "\\u0061") && !equals("\\n", ""),
           "other spellings do not");

    static const char raw[] = "a\\n\\u00e9\xE2\x82\xAC\\ud83d\\ude00\\/";
    static const char wanted[] = "a\n\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80/";
    uint8_t decoded[sizeof(raw)];
    size_t bytes = kvci_json_decode((const uint8_t *)raw, sizeof(raw) - 1, decoded);
    report(bytes == sizeof(wanted) - 1 && memcmp(decoded, wanted, bytes) == 0 &&
               kvci_json_decoded_bytes((const uint8_t *)raw, sizeof(raw) - 1) == bytes,
           "a spelling is decoded");
    for (size_t cut = 0; cut < sizeof(raw); cut++) {
        uint8_t *exact = malloc(cut + 1);
        if (exact != NULL) {
            memcpy(exact, raw, cut);
            fine = fine && kvci_json_decode(exact, cut, decoded) <= cut;
        }
        free(exact);
    }
    report(fine, "a spelling that was cut is decoded as far as it goes");
}

/* ---- Canonical text ------------------------------------------------------------------------ */

/* An allocator that fails at the n-th call, and counts what is not given back. */
struct pool {
    size_t calls;
    size_t failing_call;
    size_t blocks;
    size_t bytes;
    size_t peak_bytes;
};

union block {
    size_t bytes;
    max_align_t align;
};

static void *pool_allocate(void *context, size_t bytes)
{
    struct pool *pool = context;
    if (++pool->calls == pool->failing_call) {
        return NULL;
    }
    union block *block = malloc(sizeof(*block) + bytes);
    if (block == NULL) {
        return NULL;
    }
    block->bytes = bytes;
    pool->blocks++;
    pool->bytes += bytes;
    pool->peak_bytes = pool->bytes > pool->peak_bytes ? pool->bytes : pool->peak_bytes;
    return block + 1;
}

static void pool_release(void *context, void *pointer)
{
    struct pool *pool = context;
    union block *block = (union block *)pointer - 1;
    pool->blocks--;
    pool->bytes -= block->bytes;
    free(block);
}

static bool rewrites(const char *text, const char *expected)
{
    struct pool pool = {0};
    struct kvc_allocator allocator = {pool_allocate, pool_release, &pool};
    uint8_t *out = NULL;
    size_t bytes = 0;
    const char *problem = "nothing";
    size_t offset = 0;
    enum kvci_canonical_result result =
        kvci_canonical_write(text, strlen(text), 1000, &allocator, &out, &bytes, &problem, &offset);
    bool fine = result == KVCI_CANONICAL_OK && bytes == strlen(expected) &&
                memcmp(out, expected, bytes) == 0;
    if (!fine) {
        printf("# result %d, %s at %zu, text %.*s\n", (int)result, problem, offset, (int)bytes,
               out != NULL ? (const char *)out : "");
    }
    kvci_free(&allocator, out);
    return fine && pool.blocks == 0;
}

static void test_canonical(void)
{
    static const char *const pairs[][2] = {
        {" { } ", "{}"},
        {"[ 1 , 2 , [ ] , { } ]", "[1,2,[],{}]"},
        {"\"\\u0041\\/\\u000A\\u001F\\u0022\\u005c\\ud83d\\ude00\\u007f\"",
         "\"A/\\n\\u001f\\\"\\\\\xF0\x9F\x98\x80\x7F\""},
        {"[-0,-0.0,-0e0,-1e-999,0.0,0]", "[0,0.0,0.0,0.0,0.0,0]"},
        {"[1E2,1e16,0.00001,12345678901234567890.0,1.50,-7,10e-1]",
         "[100.0,1e+16,1e-05,1.2345678901234567e+19,1.5,-7,1.0]"},
        {"[9007199254740991,-9007199254740991]", "[9007199254740991,-9007199254740991]"},
        {"{\"b\":1,\"a\":2}", "{\"a\":2,\"b\":1}"},
        {"{\"c\":[{\"z\":1,\"y\":{\"q\":1,\"p\":[2,3]}},4],\"b\":{},\"a\":\"x\"}",
         "{\"a\":\"x\",\"b\":{},\"c\":[{\"y\":{\"p\":[2,3],\"q\":1},\"z\":1},4]}"},
        {"{\"a\":{\"d\":1,\"c\":2},\"b\":{\"f\":3,\"e\":4}}",
         "{\"a\":{\"c\":2,\"d\":1},\"b\":{\"e\":4,\"f\":3}}"},
        {"{\"\\ud83d\\ude00\":1,\"\\uffff\":2,\" \":3,\"\\u000a\":4,\"\":5}",
         "{\"\":5,\"\\n\":4,\" \":3,\"\xEF\xBF\xBF\":2,\"\xF0\x9F\x98\x80\":1}"},
        {"null", "null"},
    };
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        report(rewrites(pairs[i][0], pairs[i][1]), "a text is rewritten");
        report(rewrites(pairs[i][1], pairs[i][1]), "the canonical text is kept");
    }
}

static void test_canonical_refusals(void)
{
    static const struct refusal cases[] = {
        {"{\"a\":1,\"b\":2,\"\\u0061\":3}", "an object has the same key twice", 13},
        {"{\"a\":1,\"a\":2}", "an object has the same key twice", 7},
        {"[{\"c\":{\"x\":1,\"w\":2,\"x\":3}}]", "an object has the same key twice", 19},
        {"{\"\":1,\"\":2}", "an object has the same key twice", 6},
        {"{\"b\":1,\"a\":[1,}", "a value is expected here", 14},
        {"", "the text ends too early", 0},
        {"\xEF\xBB\xBF{}", "the text begins with a byte order mark", 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct pool pool = {0};
        struct kvc_allocator allocator = {pool_allocate, pool_release, &pool};
        uint8_t *out = NULL;
        size_t bytes = 77;
        const char *problem = NULL;
        size_t offset = 0;
        enum kvci_canonical_result result =
            kvci_canonical_write(cases[i].text, strlen(cases[i].text), 1000, &allocator, &out,
                                 &bytes, &problem, &offset);
        report(result == KVCI_CANONICAL_REFUSED && problem != NULL &&
                   strcmp(problem, cases[i].problem) == 0 && offset == cases[i].offset &&
                   out == NULL && bytes == 77 && pool.blocks == 0,
               cases[i].problem);
    }
}

/* Writes an object of `count` members whose keys descend, and returns its length. */
static size_t make_descending(char *text, size_t room, unsigned count)
{
    size_t at = 0;
    text[at++] = '{';
    for (unsigned i = count; i > 0; i--) {
        int written =
            snprintf(text + at, room - at, "\"%05u\":[%u,1e15]%s", i, i, i > 1 ? "," : "}");
        at += (size_t)written;
    }
    return at;
}

static void test_memory(void)
{
    enum { ROOM = 1 << 20, MEMBERS = 20000 };
    char *text = malloc(ROOM);
    if (text == NULL) {
        report(false, "memory for the test");
        return;
    }
    size_t bytes = make_descending(text, ROOM, 40);
    bool fine = true;
    size_t failing = 0;
    enum kvci_canonical_result result = KVCI_CANONICAL_NO_MEMORY;
    while (result == KVCI_CANONICAL_NO_MEMORY && failing < 100) {
        struct pool pool = {.failing_call = ++failing};
        struct kvc_allocator allocator = {pool_allocate, pool_release, &pool};
        uint8_t *out = NULL;
        size_t out_bytes = 0;
        const char *problem = NULL;
        size_t offset = 0;
        result = kvci_canonical_write(text, bytes, 1000, &allocator, &out, &out_bytes, &problem,
                                      &offset);
        fine = fine && (out != NULL) == (result == KVCI_CANONICAL_OK);
        kvci_free(&allocator, out);
        fine = fine && pool.blocks == 0;
    }
    report(fine && result == KVCI_CANONICAL_OK && failing > 4,
           "each allocation may fail, and nothing is lost");

    bytes = make_descending(text, ROOM, MEMBERS);
    struct pool pool = {0};
    struct kvc_allocator allocator = {pool_allocate, pool_release, &pool};
    uint8_t *out = NULL;
    size_t out_bytes = 0;
    const char *problem = NULL;
    size_t offset = 0;
    result = kvci_canonical_write(text, bytes, UINT64_MAX, &allocator, &out, &out_bytes, &problem,
                                  &offset);
    report(result == KVCI_CANONICAL_OK &&
               accepts((const char *)out, out_bytes, KVCI_JSON_STRICT, UINT64_MAX),
           "20,000 members in descending order are sorted");
    printf("# %zu bytes in, %zu out, at most %zu held\n", bytes, out_bytes, pool.peak_bytes);
    report(pool.peak_bytes < 16 * bytes, "memory is a small multiple of the text");
    kvci_free(&allocator, out);
    report(pool.blocks == 0, "everything is given back");
    free(text);
}

int main(void)
{
    test_tokens();
    test_refusals(KVCI_JSON_STRICT, refused_in_both,
                  sizeof(refused_in_both) / sizeof(refused_in_both[0]));
    test_refusals(KVCI_JSON_ANY, refused_in_both,
                  sizeof(refused_in_both) / sizeof(refused_in_both[0]));
    test_refusals(KVCI_JSON_STRICT, refused_in_strict,
                  sizeof(refused_in_strict) / sizeof(refused_in_strict[0]));
    test_refusals(KVCI_JSON_ANY, refused_in_any,
                  sizeof(refused_in_any) / sizeof(refused_in_any[0]));
    test_accepted();
    test_skip();
    test_spellings();
    test_canonical();
    test_canonical_refusals();
    test_memory();
    printf("1..%u\n", tests);
    return failures > 0 ? 1 : 0;
}
