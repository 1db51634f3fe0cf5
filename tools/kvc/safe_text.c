/* safe_text.c: prints text that came from a file or a file name, and numbers for people.
 * SPDX-License-Identifier: Apache-2.0 */
#include "safe_text.h"

#include <inttypes.h>
#include <string.h>

/* Characters that are valid and yet must not reach a terminal as they are. Zero-width joiners are
 * not among them: several scripts are not readable without. */
static const struct {
    uint32_t first;
    uint32_t last;
} unsafe_ranges[] = {
    {0x00, 0x1F},       /* C0 controls, with escape */
    {0x7F, 0x9F},       /* delete and C1 controls, with the one-character form of escape [ */
    {0xAD, 0xAD},       /* soft hyphen */
    {0x61C, 0x61C},     /* Arabic letter mark */
    {0x180E, 0x180E},   /* Mongolian vowel separator */
    {0x200B, 0x200B},   /* zero-width space */
    {0x200E, 0x200F},   /* direction marks */
    {0x2028, 0x202E},   /* line and paragraph separator, embeddings and overrides */
    {0x2060, 0x206F},   /* invisible operators, isolates */
    {0xFEFF, 0xFEFF},   /* byte order mark */
    {0xFFF9, 0xFFFB},   /* interlinear annotation */
    {0xFFFE, 0xFFFF},   /* noncharacters */
    {0xE0000, 0xE0FFF}, /* tags */
};

/* Characters that take two columns, roughly: a line that is too short is better than a torn one. */
static const struct {
    uint32_t first;
    uint32_t last;
} wide_ranges[] = {
    {0x1100, 0x115F}, {0x2E80, 0xA4CF}, {0xAC00, 0xD7A3},   {0xF900, 0xFAFF},   {0xFE30, 0xFE6F},
    {0xFF00, 0xFF60}, {0xFFE0, 0xFFE6}, {0x1F300, 0x1FAFF}, {0x20000, 0x3FFFD},
};

static size_t point_columns(uint32_t point)
{
    for (size_t i = 0; i < sizeof(wide_ranges) / sizeof(wide_ranges[0]); i++) {
        if (point >= wide_ranges[i].first && point <= wide_ranges[i].last) {
            return 2;
        }
    }
    return 1;
}

size_t utf8_decode(const char *text, size_t bytes, uint32_t *ret_point)
{
    const unsigned char *at = (const unsigned char *)text;
    if (bytes == 0) {
        return 0;
    }
    if (at[0] < 0x80) {
        *ret_point = at[0];
        return 1;
    }
    size_t length = at[0] >= 0xF0 ? 4 : at[0] >= 0xE0 ? 3 : 2;
    if (at[0] < 0xC2 || at[0] > 0xF4 || length > bytes) {
        return 0;
    }
    uint32_t point = at[0] & (0x7FU >> length);
    for (size_t i = 1; i < length; i++) {
        if ((at[i] & 0xC0) != 0x80) {
            return 0;
        }
        point = point << 6 | (at[i] & 0x3FU);
    }
    bool overlong = (length == 3 && point < 0x800) || (length == 4 && point < 0x10000);
    if (overlong || point > 0x10FFFF || (point >= 0xD800 && point <= 0xDFFF)) {
        return 0;
    }
    *ret_point = point;
    return length;
}

bool unsafe_point(uint32_t point)
{
    for (size_t i = 0; i < sizeof(unsafe_ranges) / sizeof(unsafe_ranges[0]); i++) {
        if (point >= unsafe_ranges[i].first && point <= unsafe_ranges[i].last) {
            return true;
        }
    }
    return false;
}

size_t put_safe(FILE *stream, const char *text, size_t bytes, size_t limit)
{
    size_t columns = 0;
    size_t at = 0;
    while (at < bytes) {
        char piece[16];
        uint32_t point = 0;
        size_t length = utf8_decode(text + at, bytes - at, &point);
        size_t width = 1;
        if (length == 0 || point < 0x80) {
            unsigned byte = (unsigned char)text[at];
            length = 1;
            if (byte >= 0x20 && byte < 0x7F) {
                (void)snprintf(piece, sizeof(piece), "%c", text[at]);
            } else {
                width = (size_t)snprintf(piece, sizeof(piece), "\\x%02x", byte);
            }
        } else if (unsafe_point(point)) {
            width = (size_t)snprintf(piece, sizeof(piece), "\\u{%" PRIx32 "}", point);
        } else {
            memcpy(piece, text + at, length);
            piece[length] = '\0';
            width = point_columns(point);
        }
        if (width > limit - columns) {
            (void)fputs("…", stream);
            return columns + 1;
        }
        (void)fputs(piece, stream);
        columns += width;
        at += length;
    }
    return columns;
}

size_t put_safe_text(FILE *stream, const char *text, size_t limit)
{
    return put_safe(stream, text, strlen(text), limit);
}

const char *grouped(uint64_t number, char ret_text[32])
{
    char digits[24];
    size_t count = (size_t)snprintf(digits, sizeof(digits), "%" PRIu64, number);
    size_t length = 0;
    for (size_t i = 0; i < count; i++) {
        if (i > 0 && (count - i) % 3 == 0) {
            ret_text[length++] = ',';
        }
        ret_text[length++] = digits[i];
    }
    ret_text[length] = '\0';
    return ret_text;
}

const char *short_size(uint64_t bytes, char ret_text[32])
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (bytes < 1024) {
        (void)snprintf(ret_text, 32, "%u %s", (unsigned)bytes, bytes == 1 ? "byte" : "bytes");
        return ret_text;
    }
    double amount = (double)bytes / 1024;
    size_t unit = 0;
    /* From here on "1024.0" would be printed instead of the next unit. */
    while (amount >= 1023.95 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        amount /= 1024;
        unit++;
    }
    (void)snprintf(ret_text, 32, "%.1f %s", amount, units[unit]);
    return ret_text;
}

const char *hex_text(const uint8_t *data, size_t bytes, char *ret_text)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < bytes; i++) {
        ret_text[2 * i] = digits[data[i] >> 4];
        ret_text[2 * i + 1] = digits[data[i] & 15];
    }
    ret_text[2 * bytes] = '\0';
    return ret_text;
}
