/* decimal.c: binary64 numbers as decimal text, exactly, in the spelling that the format stores.
 * SPDX-License-Identifier: Apache-2.0
 *
 * Both directions are one division of exact integers. To read, digits * 10^e is scaled until the
 * quotient has 63 or 64 bits, which are then rounded once. To write, the double and the two ends
 * of the interval that reads back as it are scaled until they have 17 or 18 digits before the
 * point; the shortest decimal in that interval is then found in 64-bit integers. */
#include "decimal.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "ban.h"

static_assert(DBL_MANT_DIG == 53 && DBL_MAX_EXP == 1024, "a double must be an IEEE 754 binary64");

enum {
    MANTISSA_BITS = 52,
    MIN_EXPONENT = -1074, /* of the last bit of a subnormal number */
    MAX_EXPONENT = 971,   /* of the last bit of the largest number */
    REPR_DIGITS = 17,     /* these always suffice to read back */
    EXACT_DIGITS = 15,    /* any decimal of so many digits survives a round trip */
    EXACT_RANGE = 290,    /* as long as its exponent is within this */
    /* The border between two doubles has at most 767 significant digits, so that further digits
     * matter only by not all being zero. */
    KEPT_DIGITS = 800,
    /* The largest integers are KEPT_DIGITS + 1 digits, 2662 bits, and 5^1132, 2629 bits, either
     * scaled up to the other's length and by 64 + 31 bits. */
    LIMBS = 96
};

/* ---- Integers of any size ------------------------------------------------------------------ */

/* A non-negative integer, least significant limb first, without leading zero limbs. */
struct big {
    unsigned count;
    uint32_t limbs[LIMBS];
};

static void big_set(struct big *big, uint64_t value)
{
    big->limbs[0] = (uint32_t)value;
    big->limbs[1] = (uint32_t)(value >> 32);
    big->count = big->limbs[1] != 0 ? 2 : big->limbs[0] != 0 ? 1 : 0;
}

/* Makes `big * factor + addend` of `big`. */
static void big_multiply(struct big *big, uint32_t factor, uint32_t addend)
{
    uint64_t carry = addend;
    for (unsigned i = 0; i < big->count; i++) {
        carry += (uint64_t)big->limbs[i] * factor;
        big->limbs[i] = (uint32_t)carry;
        carry >>= 32;
    }
    if (carry != 0) {
        assert(big->count < LIMBS);
        big->limbs[big->count++] = (uint32_t)carry;
    }
}

/* Multiplies by 5^power. */
static void big_multiply_fives(struct big *big, unsigned power)
{
    static const uint32_t fives[13] = {1,     5,      25,      125,     625,      3125,     15625,
                                       78125, 390625, 1953125, 9765625, 48828125, 244140625};
    for (; power >= 13; power -= 13) {
        big_multiply(big, 1220703125, 0);
    }
    big_multiply(big, fives[power], 0);
}

static unsigned top_bits(uint32_t limb)
{
    unsigned bits = 0;
    while (limb != 0) {
        limb >>= 1;
        bits++;
    }
    return bits;
}

static unsigned big_bits(const struct big *big)
{
    return big->count == 0 ? 0 : 32 * (big->count - 1) + top_bits(big->limbs[big->count - 1]);
}

static void big_shift_left(struct big *big, unsigned bits)
{
    unsigned limbs = bits / 32;
    unsigned rest = bits % 32;
    if (big->count == 0) {
        return;
    }
    assert(big->count + limbs < LIMBS);
    memmove(big->limbs + limbs, big->limbs, big->count * sizeof(big->limbs[0]));
    memset(big->limbs, 0, limbs * sizeof(big->limbs[0]));
    big->count += limbs;
    big->limbs[big->count] = 0;
    if (rest != 0) {
        for (unsigned i = big->count; i > limbs; i--) {
            big->limbs[i] |= big->limbs[i - 1] >> (32 - rest);
            big->limbs[i - 1] <<= rest;
        }
    }
    if (big->limbs[big->count] != 0) {
        big->count++;
    }
}

/* Compares the `count` limbs from `limbs` on, the highest of which may be zero, with `other`. */
static int limbs_compare(const uint32_t *limbs, unsigned count, const struct big *other)
{
    for (unsigned i = count; i > 0; i--) {
        uint32_t limb = i <= other->count ? other->limbs[i - 1] : 0;
        if (limbs[i - 1] != limb) {
            return limbs[i - 1] < limb ? -1 : 1;
        }
    }
    return 0;
}

/* Subtracts `other * factor` from the limbs, which have one more than `other`. */
static void limbs_subtract(uint32_t *limbs, const struct big *other, uint32_t factor)
{
    uint64_t carry = 0;
    for (unsigned i = 0; i < other->count; i++) {
        carry += (uint64_t)other->limbs[i] * factor;
        uint32_t low = (uint32_t)carry;
        carry = (carry >> 32) + (limbs[i] < low);
        limbs[i] -= low;
    }
    limbs[other->count] -= (uint32_t)carry;
}

/* Divides, where the quotient is known to fit 64 bits and the divisor's top bit is the top bit of
 * a limb. Leaves the remainder in `number`, in as many limbs as the divisor has. */
static uint64_t big_divide(struct big *number, const struct big *divisor)
{
    unsigned count = divisor->count;
    uint64_t estimator = (uint64_t)divisor->limbs[count - 1] + 1;
    uint64_t quotient = 0;
    assert(count > 0 && count + 1 < LIMBS && number->count < LIMBS);
    while (number->count <= count) {
        number->limbs[number->count++] = 0;
    }
    number->limbs[number->count] = 0;
    for (unsigned i = number->count + 1 - count; i > 0; i--) {
        uint32_t *limbs = number->limbs + i - 1;
        uint64_t top = (uint64_t)limbs[count] << 32 | limbs[count - 1];
        /* Never too large, and too small by a few at most. */
        uint32_t digit = (uint32_t)(top / estimator);
        limbs_subtract(limbs, divisor, digit);
        while (limbs_compare(limbs, count + 1, divisor) >= 0) {
            limbs_subtract(limbs, divisor, 1);
            digit++;
        }
        quotient = quotient << 32 | digit;
    }
    number->count = count;
    return quotient;
}

static bool remainder_is_zero(const struct big *number)
{
    for (unsigned i = 0; i < number->count; i++) {
        if (number->limbs[i] != 0) {
            return false;
        }
    }
    return true;
}

/* Makes the divisor's top bit the top bit of a limb, and scales the number along. */
static void normalize(struct big *number, struct big *divisor)
{
    unsigned shift = (32 - big_bits(divisor) % 32) % 32;
    big_shift_left(number, shift);
    big_shift_left(divisor, shift);
}

/* ---- Text to double ------------------------------------------------------------------------ */

/* A decimal number as its text has it: 0.d1 d2 ... dn * 10^point, d1 not zero. */
struct digits {
    bool negative;
    bool more;     /* behind the digits that were kept come others, not all zero */
    int64_t point; /* where the decimal point lies, counted from d1 */
    unsigned count;
    uint8_t digits[KEPT_DIGITS];
};

/* Reads an exponent with its sign. It stops growing beyond what any text's length can undo. */
static int64_t read_exponent(const uint8_t *text, size_t bytes)
{
    int64_t value = 0;
    size_t i = 0;
    bool negative = bytes > 0 && text[0] == '-';
    if (bytes > 0 && (text[0] == '-' || text[0] == '+')) {
        i++;
    }
    for (; i < bytes; i++) {
        if (value < INT64_C(100000000000000000)) {
            value = value * 10 + (text[i] - '0');
        }
    }
    return negative ? -value : value;
}

/* Takes a number apart, keeping at most `capacity` digits; zeros at its end are not counted. */
static void read_digits(const uint8_t *text, size_t bytes, unsigned capacity, struct digits *digits)
{
    size_t i = 0;
    bool behind_point = false;
    unsigned taken = 0;
    digits->negative = bytes > 0 && text[0] == '-';
    digits->more = false;
    digits->point = 0;
    digits->count = 0;
    for (i = digits->negative ? 1 : 0; i < bytes && text[i] != 'e' && text[i] != 'E'; i++) {
        if (text[i] == '.') {
            behind_point = true;
            continue;
        }
        uint8_t digit = (uint8_t)(text[i] - '0');
        if (taken == 0 && digit == 0) {
            digits->point -= behind_point;
            continue;
        }
        digits->point += !behind_point;
        if (taken < capacity) {
            digits->digits[taken++] = digit;
            digits->count = digit != 0 ? taken : digits->count;
        } else if (digit != 0) {
            digits->more = true;
        }
    }
    if (i < bytes) {
        digits->point += read_exponent(text + i + 1, bytes - i - 1);
    }
}

static double make_double(bool negative, uint64_t bits)
{
    double value = 0.0;
    bits |= (uint64_t)negative << 63;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* Returns the double nearest to (quotient + a bit, if `inexact`) * 2^exponent; the quotient has
 * at least 63 bits. */
static double round_to_double(bool negative, uint64_t quotient, bool inexact, int exponent)
{
    int drop = quotient >> 63 != 0 ? 11 : 10;
    if (exponent + drop < MIN_EXPONENT) {
        drop = MIN_EXPONENT - exponent;
    }
    if (drop > 64) {
        return make_double(negative, 0);
    }
    uint64_t mantissa = drop < 64 ? quotient >> drop : 0;
    uint64_t half = UINT64_C(1) << (drop - 1);
    bool above = (quotient & (half - 1)) != 0 || inexact;
    if ((quotient & half) != 0 && (above || (mantissa & 1) != 0)) {
        mantissa++;
    }
    exponent += drop;
    if (mantissa >> (MANTISSA_BITS + 1) != 0) {
        mantissa >>= 1;
        exponent++;
    }
    if (exponent > MAX_EXPONENT) {
        return negative ? -HUGE_VAL : HUGE_VAL;
    }
    /* The hidden bit, which subnormal numbers lack, raises the exponent field by one. */
    uint64_t field = (uint64_t)(exponent - MIN_EXPONENT);
    return make_double(negative, (field << MANTISSA_BITS) + mantissa);
}

/* Makes an integer of the digits, and of a last one for those that were not kept. */
static void gather(const struct digits *digits, struct big *number)
{
    big_set(number, 0);
    unsigned i = 0;
    while (i < digits->count) {
        uint32_t chunk = 0;
        uint32_t scale = 1;
        for (unsigned end = i + 9; i < digits->count && i < end; i++) {
            chunk = chunk * 10 + digits->digits[i];
            scale *= 10;
        }
        big_multiply(number, scale, chunk);
    }
    if (digits->more) {
        big_multiply(number, 10, 1);
    }
}

double kvci_decimal_value(const uint8_t *text, size_t bytes)
{
    struct digits digits;
    read_digits(text, bytes, KEPT_DIGITS, &digits);
    if (digits.count == 0 || digits.point < -330) {
        return make_double(digits.negative, 0);
    }
    if (digits.point > 310) {
        return digits.negative ? -HUGE_VAL : HUGE_VAL;
    }
    if (digits.more) {
        /* The zeros at the end of what was kept count now. */
        digits.count = KEPT_DIGITS;
    }
    struct big number;
    struct big divisor;
    gather(&digits, &number);
    big_set(&divisor, 1);
    int power = (int)digits.point - (int)(digits.count + digits.more);
    if (power >= 0) {
        big_multiply_fives(&number, (unsigned)power);
    } else {
        big_multiply_fives(&divisor, (unsigned)-power);
    }
    int shift = (int)big_bits(&divisor) + 63 - (int)big_bits(&number);
    if (shift >= 0) {
        big_shift_left(&number, (unsigned)shift);
    } else {
        big_shift_left(&divisor, (unsigned)-shift);
    }
    normalize(&number, &divisor);
    uint64_t quotient = big_divide(&number, &divisor);
    return round_to_double(digits.negative, quotient, !remainder_is_zero(&number), power - shift);
}

bool kvci_decimal_finite(const uint8_t *text, size_t bytes)
{
    struct digits digits;
    read_digits(text, bytes, REPR_DIGITS, &digits);
    return digits.count == 0 || digits.point <= DBL_MAX_10_EXP ||
           isfinite(kvci_decimal_value(text, bytes));
}

/* ---- Double to text ------------------------------------------------------------------------ */

/* Writes digits as 0.d1 d2 ... dn * 10^point in the layout of Python's repr. */
static size_t lay_out(const struct digits *digits, char ret_text[KVCI_DECIMAL_BYTES])
{
    char *out = ret_text;
    int point = (int)digits->point;
    int count = (int)digits->count;
    bool plain = point > -4 && point <= 16;
    int before = plain ? point : 1; /* digits before the decimal point */
    if (digits->negative) {
        *out++ = '-';
    }
    if (before <= 0) {
        *out++ = '0';
        *out++ = '.';
        for (int i = before; i < 0; i++) {
            *out++ = '0';
        }
    }
    for (int i = 0; i < count || i < before; i++) {
        *out++ = (char)('0' + (i < count ? digits->digits[i] : 0));
        if (i + 1 == before && (i + 1 < count || plain)) {
            *out++ = '.';
        }
    }
    if (plain && before >= count) {
        *out++ = '0';
    }
    if (!plain) {
        unsigned exponent = (unsigned)(point > 0 ? point - 1 : 1 - point);
        *out++ = 'e';
        *out++ = point > 0 ? '+' : '-';
        if (exponent >= 100) {
            *out++ = (char)('0' + exponent / 100);
        }
        *out++ = (char)('0' + exponent / 10 % 10);
        *out++ = (char)('0' + exponent % 10);
    }
    *out = '\0';
    return (size_t)(out - ret_text);
}

/* Returns floor(value * 2^exponent * 10^power), which must fit 64 bits. `ret_half` compares what
 * was cut off with a half, and `ret_exact` tells whether it was nothing. */
static uint64_t scale(uint64_t value, int exponent, int power, int *ret_half, bool *ret_exact)
{
    struct big number;
    struct big divisor;
    big_set(&number, value);
    big_set(&divisor, 1);
    if (power >= 0) {
        big_multiply_fives(&number, (unsigned)power);
    } else {
        big_multiply_fives(&divisor, (unsigned)-power);
    }
    int shift = exponent + power;
    if (shift >= 0) {
        big_shift_left(&number, (unsigned)shift);
    } else {
        big_shift_left(&divisor, (unsigned)-shift);
    }
    normalize(&number, &divisor);
    uint64_t quotient = big_divide(&number, &divisor);
    *ret_exact = remainder_is_zero(&number);
    /* The remainder has as many limbs as the divisor; twice it may have one more. */
    big_shift_left(&number, 1);
    *ret_half =
        number.count > divisor.count ? 1 : limbs_compare(number.limbs, divisor.count, &divisor);
    return quotient;
}

/* What is known about a double after scaling by a power of ten. */
struct interval {
    uint64_t low;   /* the least and the greatest integer that read back as the double */
    uint64_t high;  /*   when they are scaled back */
    uint64_t value; /* the double itself, without its fraction */
    int half;       /* the fraction compared with a half */
    bool exact;     /* there is no fraction */
};

/* Looks for the shortest decimal: for each length the two decimals around the value, the nearer
 * one if both read back; at the same distance the even one, as Python does. */
static uint64_t find_shortest(const struct interval *interval)
{
    uint64_t unit = interval->value >= UINT64_C(100000000000000000) ? UINT64_C(100000000000000000)
                                                                    : UINT64_C(10000000000000000);
    for (unsigned n = 1; n <= REPR_DIGITS; n++, unit /= 10) {
        uint64_t below = interval->value / unit * unit;
        uint64_t above = below + unit;
        uint64_t rest = interval->value - below;
        if (rest == 0 && interval->exact) {
            return below;
        }
        bool below_fits = below >= interval->low;
        bool above_fits = above <= interval->high;
        if (!below_fits && !above_fits) {
            continue;
        }
        if (!below_fits || !above_fits) {
            return below_fits ? below : above;
        }
        int order = unit == 1 ? interval->half : rest < unit / 2 ? -1 : 1;
        if (unit > 1 && rest == unit / 2 && interval->exact) {
            order = 0;
        }
        bool odd = interval->value / unit % 2 != 0;
        return order > 0 || (order == 0 && odd) ? above : below;
    }
    assert(false); /* Seventeen digits always read back. */
    return interval->value;
}

/* Returns floor(log10(2) * exponent), which the constant gives for every exponent of a double. */
static int decimal_exponent(int exponent)
{
    int scaled = exponent * 78913; /* log10(2) * 2^18 */
    return scaled >= 0 ? scaled / 262144 : -((-scaled + 262143) / 262144);
}

size_t kvci_decimal_format(double value, char ret_text[KVCI_DECIMAL_BYTES])
{
    uint64_t bits = 0;
    struct digits digits = {.negative = false};
    memcpy(&bits, &value, sizeof(bits));
    digits.negative = bits >> 63 != 0;
    uint64_t mantissa = bits & ((UINT64_C(1) << MANTISSA_BITS) - 1);
    int field = (int)(bits >> MANTISSA_BITS & 0x7FF);
    if (field == 0 && mantissa == 0) {
        digits.point = 1;
        return lay_out(&digits, ret_text);
    }
    /* Below a power of two the doubles lie twice as close, except at the subnormal ones. */
    bool narrow = mantissa == 0 && field > 1;
    bool even = (mantissa & 1) == 0;
    mantissa |= (uint64_t)(field > 0) << MANTISSA_BITS;
    int exponent = MIN_EXPONENT + (field > 0 ? field - 1 : 0);

    int leading = 0;
    while (mantissa >> leading > 1) {
        leading++;
    }
    int power = REPR_DIGITS - 1 - decimal_exponent(exponent + leading);
    struct interval interval;
    bool exact = false;
    int half = 0;
    interval.low = scale(4 * mantissa - (narrow ? 1 : 2), exponent - 2, power, &half, &exact);
    interval.low += !exact || !even;
    interval.high = scale(4 * mantissa + 2, exponent - 2, power, &half, &exact);
    interval.high -= exact && !even;
    interval.value = scale(mantissa, exponent, power, &interval.half, &interval.exact);
    uint64_t decimal = find_shortest(&interval);

    uint8_t reversed[20];
    unsigned total = 0;
    for (; decimal > 0; decimal /= 10) {
        reversed[total++] = (uint8_t)(decimal % 10);
    }
    for (unsigned i = 0; i < total; i++) {
        digits.digits[i] = reversed[total - 1 - i];
        digits.count = digits.digits[i] != 0 ? i + 1 : digits.count;
    }
    digits.point = (int)total - power;
    return lay_out(&digits, ret_text);
}

bool kvci_decimal_canonical(const uint8_t *text, size_t bytes)
{
    char expected[KVCI_DECIMAL_BYTES];
    struct digits digits;
    if (bytes > KVCI_DECIMAL_BYTES) {
        return false;
    }
    read_digits(text, bytes, REPR_DIGITS, &digits);
    if (digits.count == 0) {
        return bytes == 3 && memcmp(text, "0.0", 3) == 0;
    }
    if (digits.more || digits.point < -330 || digits.point > 310) {
        return false;
    }
    if (lay_out(&digits, expected) != bytes || memcmp(expected, text, bytes) != 0) {
        return false;
    }
    if (digits.count <= EXACT_DIGITS && digits.point >= -EXACT_RANGE &&
        digits.point <= EXACT_RANGE) {
        return true;
    }
    double value = kvci_decimal_value(text, bytes);
    return isfinite(value) && kvci_decimal_format(value, expected) == bytes &&
           memcmp(expected, text, bytes) == 0;
}
