/* test_decimal.c: doubles as text and back. Python's repr, by the hundred thousand, is compared in
 * tests/api/test_json_oracle.py.
 * SPDX-License-Identifier: Apache-2.0 */
#include "decimal.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static unsigned tests;
static unsigned failures;

static void report(bool fine, const char *what)
{
    tests++;
    failures += !fine;
    printf("%s %u - %s\n", fine ? "ok" : "not ok", tests, what);
}

static uint64_t bits_of(double value)
{
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static double from_bits(uint64_t bits)
{
    double value = 0.0;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static double value_of(const char *text)
{
    return kvci_decimal_value((const uint8_t *)text, strlen(text));
}

static bool is_canonical(const char *text)
{
    return kvci_decimal_canonical((const uint8_t *)text, strlen(text));
}

/* Prints what differs and returns whether nothing does. */
static bool formats_as(double value, const char *expected)
{
    char text[KVCI_DECIMAL_BYTES];
    size_t bytes = kvci_decimal_format(value, text);
    bool fine = bytes == strlen(expected) && strcmp(text, expected) == 0;
    if (!fine) {
        printf("# %a: expected %s, found %s\n", value, expected, text);
    }
    return fine;
}

static bool reads_as(const char *text, double expected)
{
    double found = value_of(text);
    bool fine = bits_of(found) == bits_of(expected);
    fine = fine && kvci_decimal_finite((const uint8_t *)text, strlen(text)) == isfinite(expected);
    if (!fine) {
        printf("# %.80s: expected %a, found %a\n", text, expected, found);
    }
    return fine;
}

static void test_format(void)
{
    static const struct {
        double value;
        const char *text;
    } cases[] = {
        {0.0, "0.0"},
        {-0.0, "-0.0"},
        {1.0, "1.0"},
        {-1.5, "-1.5"},
        {0.1, "0.1"},
        {10000.0, "10000.0"},
        {1000000.0, "1000000.0"},
        {1e15, "1000000000000000.0"},
        {1e16, "1e+16"},
        {1.5e16, "1.5e+16"},
        {1234567890123456.0, "1234567890123456.0"},
        {9007199254740992.0, "9007199254740992.0"},
        {0.0001, "0.0001"},
        {0.00012, "0.00012"},
        {0.00001, "1e-05"},
        {1e22, "1e+22"},
        {1e23, "1e+23"},
        {1e100, "1e+100"},
        {1e-100, "1e-100"},
        {2.0 / 3.0, "0.6666666666666666"},
        {0x1p-44, "5.684341886080802e-14"}, /* the nearest of 16 digits, not of 17 */
        {0x1p-1074, "5e-324"},
        {0x1p-1022, "2.2250738585072014e-308"},
        {0x1.ffffffffffffep-1023, "2.225073858507201e-308"},
        {DBL_MAX, "1.7976931348623157e+308"},
        {1125899906842624.25, "1125899906842624.2"}, /* halfway: the even digit */
        {1125899906842624.75, "1125899906842624.8"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        report(formats_as(cases[i].value, cases[i].text), cases[i].text);
    }
}

static void test_value(void)
{
    static const struct {
        const char *text;
        double value;
    } cases[] = {
        {"0", 0.0},
        {"-0", -0.0},
        {"-0.0e7", -0.0},
        {"12", 12.0},
        {"1E2", 100.0},
        {"1e+2", 100.0},
        {"100e-2", 1.0},
        {"0.000001e6", 1.0},
        {"9007199254740991", 9007199254740991.0},
        {"9007199254740993", 9007199254740992.0}, /* halfway: to even */
        {"9007199254740995", 9007199254740996.0},
        {"9007199254740993.0000000000000000000000000000000001", 9007199254740994.0},
        {"1e308", 1e308},
        {"1.7976931348623158e308", DBL_MAX},
        {"1.7976931348623159e308", HUGE_VAL},
        {"-1e309", -HUGE_VAL},
        {"1e999999999999999999999999", HUGE_VAL},
        {"1e-999999999999999999999999", 0.0},
        {"0e999999999999999999999999", 0.0},
        {"4.9406564584124654e-324", 0x1p-1074},
        {"2.4703282292062328e-324", 0x1p-1074},
        {"2.4703282292062327e-324", 0.0},
        {"-2.4703282292062327e-324", -0.0},
        {"2.2250738585072011e-308", 0x1.ffffffffffffep-1023},
        {"2.2250738585072012e-308", 0x1p-1022},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        report(reads_as(cases[i].text, cases[i].value), cases[i].text);
    }
}

/* Writes over a part of a text. */
static void place(char *at, const char *part)
{
    while (*part != '\0') {
        *at++ = *part++;
    }
}

/* No digit is too far behind to decide, and no exponent too large to be undone. */
static void test_long_numbers(void)
{
    static char text[200000];
    size_t bytes = sizeof(text) - 1;
    memset(text, '0', bytes);
    place(text, "1.");
    report(reads_as(text, 1.0), "1 and 200,000 zeros");
    text[bytes - 1] = '1';
    report(reads_as(text, 1.0), "1, zeros, and a last digit");
    text[bytes - 1] = '0';

    /* 1 + 2^-53 is halfway between 1 and the next double. */
    place(text, "1.00000000000000011102230246251565404236316680908203125");
    report(reads_as(text, 1.0), "halfway, then zeros");
    text[bytes - 1] = '1';
    report(reads_as(text, 1.0 + DBL_EPSILON), "halfway, zeros, and a last digit");

    memset(text, '0', bytes);
    text[1] = '.';
    place(text + bytes - 8, "1e199990");
    report(reads_as(text, 1.0), "an exponent that undoes 200,000 zeros");
    memset(text, '9', bytes);
    place(text + bytes - 8, "e-199991");
    report(reads_as(text, 1.0), "200,000 nines scaled down");
}

static void test_canonical(void)
{
    static const char *const good[] = {
        "0.0",
        "1.0",
        "-1.0",
        "0.1",
        "10000.0",
        "1e+16",
        "1e-05",
        "1.5e+300",
        "0.0001",
        "1234567890123456.0",
        "5.684341886080802e-14",
        "5e-324",
        "1.7976931348623157e+308",
        "2.2250738585072014e-308",
        "123456789012345.6",
        "1e+22",
        "1e+23",
        "-2.5e-07",
    };
    static const char *const bad[] = {
        "-0.0",
        "0.00",
        "00.0",
        "0e0",
        "0.0e+00",
        "1.00",
        "1.50",
        "01.5",
        "1e5",
        "1E+16",
        "1e16",
        "1e+016",
        "1.0e+16",
        "10e+15",
        "1e-5",
        "1e-005",
        "0.00001",
        "100000.0e-01",
        "1e+15",
        "10000000000000000.0",
        "0.1000000000000000055",
        "5.6843418860808015e-14",
        "4.9e-324",
        "1e-324",
        "1e+309",
        "1.7976931348623159e+308",
        "9007199254740993.0",
        "1.00000000000000000000000000000001",
        "2.2250738585072011e-308",
        "12345678901234567.0",
        "0.30000000000000001",
        "0.50000000000000000e+00",
    };
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        printf("# canonical: %s\n", good[i]);
        report(is_canonical(good[i]), "a canonical float");
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        printf("# not canonical: %s\n", bad[i]);
        report(!is_canonical(bad[i]), "a float in another spelling");
    }
}

/* Every double that is tried must come back from its text, which must be canonical. */
static void test_round_trips(void)
{
    char text[KVCI_DECIMAL_BYTES];
    uint64_t state = 1;
    unsigned wrong = 0;
    for (unsigned i = 0; i < 100000; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        double value = from_bits(i < 10000 ? state >> 12 : state); /* at first subnormal ones */
        if (!isfinite(value) || bits_of(value) << 1 == 0) {
            continue;
        }
        size_t bytes = kvci_decimal_format(value, text);
        const uint8_t *raw = (const uint8_t *)text;
        wrong += bits_of(kvci_decimal_value(raw, bytes)) != bits_of(value) ||
                 !kvci_decimal_canonical(raw, bytes);
    }
    report(wrong == 0, "100,000 doubles come back from their text");
}

int main(void)
{
    test_format();
    test_value();
    test_long_numbers();
    test_canonical();
    test_round_trips();
    printf("1..%u\n", tests);
    return failures > 0 ? 1 : 0;
}
