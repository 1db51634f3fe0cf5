/* test_spelling.c: the public function that gives JSON its canonical spelling. What it accepts and
 * writes is tested in test_json.c.
 * SPDX-License-Identifier: Apache-2.0 */
#include "cases.h"

static struct {
    int calls;
    int live;
    int fail_at; /* the number of the call that fails, 0: none */
} meter;

static void *meter_allocate(void *context, size_t bytes)
{
    (void)context;
    if (++meter.calls == meter.fail_at) {
        return NULL;
    }
    meter.live++;
    return malloc(bytes);
}

static void meter_release(void *context, void *block)
{
    (void)context;
    meter.live--;
    free(block);
}

static const struct kvc_allocator allocator = {meter_allocate, meter_release, NULL};

static const char loose[] =
    " { \"b\" : [ 1E2 , -0 , \"\\u0041\\/\" ] ,\n \"a\" : { \"d\" : null , \"c\" : 1.50 } } ";
static const char strict[] = "{\"a\":{\"c\":1.5,\"d\":null},\"b\":[100.0,0,\"A/\"]}";

static void rewriting(void)
{
    struct kvc_error error = KVC_ERROR_INIT;
    char *text = NULL;
    size_t bytes = 0;
    CHECK_STATUS(kvc_json_canonical(loose, strlen(loose), 0, NULL, &text, &bytes, &error), KVC_OK);
    CHECK_NUMBER(bytes, strlen(strict));
    CHECK(text != NULL && memcmp(text, strict, bytes) == 0);
    free(text);
    CHECK_STATUS(kvc_json_canonical("7", 1, 1, NULL, &text, &bytes, NULL), KVC_OK);
    CHECK(bytes == 1 && text[0] == '7');
    free(text);
}

static void refusing(void)
{
    static const struct {
        const char *text;
        uint64_t offset;
        const char *words;
    } refused[] = {
        {"", 0, "at byte 0"},
        {"{\"a\":1,\"\\u0061\":2}", 7, "the same key twice at byte 7"},
        {"[1,2,x]", 5, "at byte 5"},
        {"\"\\u0000\"", 1, "U+0000"},
        {"[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]", 16, "nested deeper than 16"},
    };
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        struct kvc_error error = KVC_ERROR_INIT;
        char untouched = 0;
        char *text = &untouched;
        size_t bytes = 77;
        CHECK_STATUS(kvc_json_canonical(refused[i].text, strlen(refused[i].text), 0, NULL, &text,
                                        &bytes, &error),
                     KVC_E_JSON);
        CHECK_STATUS(error.status, KVC_E_JSON);
        CHECK_NUMBER(error.offset, refused[i].offset);
        CHECK(strstr(error.message, refused[i].words) != NULL);
        CHECK(text == &untouched && bytes == 77);
    }
}

static void limiting(void)
{
    const size_t most = 2113536;
    struct kvc_error error = KVC_ERROR_INIT;
    char *text = NULL;
    size_t bytes = 0;
    CHECK_STATUS(kvc_json_canonical("[1,2]", 5, 3, NULL, &text, &bytes, &error), KVC_OK);
    free(text);
    CHECK_STATUS(kvc_json_canonical("[1,2]", 5, 2, NULL, &text, &bytes, &error), KVC_E_JSON);
    CHECK(strstr(error.message, "values") != NULL);
    /* An array and one value less than the default limit, then one more. */
    char *many = take_memory(2 * most + 2);
    many[0] = '[';
    for (size_t i = 0; i < most; i++) {
        memcpy(many + 1 + 2 * i, "0,", 2);
    }
    many[2 * (most - 1)] = ']';
    CHECK_STATUS(kvc_json_canonical(many, 2 * most - 1, 0, NULL, &text, &bytes, &error), KVC_OK);
    free(text);
    many[2 * (most - 1)] = ',';
    many[2 * most] = ']';
    CHECK_STATUS(kvc_json_canonical(many, 2 * most + 1, 0, NULL, &text, &bytes, &error),
                 KVC_E_JSON);
    free(many);
}

static void misuse(void)
{
    const struct kvc_allocator half = {meter_allocate, NULL, NULL};
    struct kvc_error error = KVC_ERROR_INIT;
    char *text = NULL;
    size_t bytes = 0;
    CHECK_STATUS(kvc_json_canonical(NULL, 0, 0, NULL, &text, &bytes, &error), KVC_E_USAGE);
    CHECK_STATUS(kvc_json_canonical("1", 1, 0, NULL, NULL, &bytes, &error), KVC_E_USAGE);
    CHECK_STATUS(kvc_json_canonical("1", 1, 0, NULL, &text, NULL, &error), KVC_E_USAGE);
    CHECK_STATUS(kvc_json_canonical("1", 1, 0, &half, &text, &bytes, &error), KVC_E_OPTION);
    CHECK(text == NULL && bytes == 0);
}

static void memory(void)
{
    for (int at = 1;; at++) {
        struct kvc_error error = KVC_ERROR_INIT;
        char *text = NULL;
        size_t bytes = 0;
        meter.calls = 0;
        meter.fail_at = at;
        enum kvc_status status =
            kvc_json_canonical(loose, strlen(loose), 0, &allocator, &text, &bytes, &error);
        if (meter.calls < at) {
            CHECK_STATUS(status, KVC_OK);
            CHECK(at > 3 && meter.live == 1);
            allocator.release(allocator.context, text);
            break;
        }
        CHECK_STATUS(status, KVC_E_NO_MEMORY);
        CHECK(text == NULL && bytes == 0 && meter.live == 0);
    }
    CHECK(meter.live == 0);
}

int main(void)
{
    run_case("any spelling is rewritten", rewriting);
    run_case("what has no canonical spelling is refused with its offset", refusing);
    run_case("values are limited", limiting);
    run_case("wrong arguments are refused", misuse);
    run_case("memory that is refused is no crash and no leak", memory);
    return end_cases();
}
