/* json.c: a scanner for JSON text that allocates nothing, does not recurse, and can insist on the
 * canonical spelling.
 * SPDX-License-Identifier: Apache-2.0 */
#include "json.h"

#include "decimal.h"

#include <string.h>

#include "ban.h"

/* What may come next. */
enum state {
    START,      /* the top value */
    VALUE,      /* the value of a member */
    FIRST_ITEM, /* a value or the end of the array */
    FIRST_KEY,  /* a key or the end of the object */
    AFTER,      /* a comma or the end of the container */
    DONE,       /* nothing */
    FAILED      /* nothing ever */
};

/* What a byte means in a string. */
enum text_class { PLAIN, QUOTE, BACKSLASH, CONTROL, WIDE };

/* Bytes that are not named are PLAIN, which is 0. */
static const uint8_t text_classes[256] = {
#define SIXTEEN(c) c, c, c, c, c, c, c, c, c, c, c, c, c, c, c, c
    [0x00] = SIXTEEN(CONTROL),
    [0x10] = SIXTEEN(CONTROL),
    [0x80] = SIXTEEN(WIDE),
    [0x90] = SIXTEEN(WIDE),
    [0xA0] = SIXTEEN(WIDE),
    [0xB0] = SIXTEEN(WIDE),
    [0xC0] = SIXTEEN(WIDE),
    [0xD0] = SIXTEEN(WIDE),
    [0xE0] = SIXTEEN(WIDE),
    [0xF0] = SIXTEEN(WIDE),
    ['"'] = QUOTE,
    ['\\'] = BACKSLASH,
#undef SIXTEEN
};

static bool fail(struct kvci_json *scan, size_t offset, const char *problem)
{
    scan->state = FAILED;
    scan->problem = problem;
    scan->problem_offset = offset;
    return false;
}

static bool is_digit(uint8_t c)
{
    return c >= '0' && c <= '9';
}

static bool is_space(uint8_t c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* ---- Characters ---------------------------------------------------------------------------- */

/* Returns the value of four hexadecimal digits, or UINT32_MAX. */
static uint32_t read_hex(const uint8_t *at)
{
    uint32_t value = 0;
    for (unsigned i = 0; i < 4; i++) {
        uint8_t c = at[i];
        uint8_t letter = (uint8_t)(c | 0x20);
        if (is_digit(c)) {
            value = value << 4 | (uint32_t)(c - '0');
        } else if (letter >= 'a' && letter <= 'f') {
            value = value << 4 | (uint32_t)(letter - 'a' + 10);
        } else {
            return UINT32_MAX;
        }
    }
    return value;
}

size_t kvci_json_escape(const uint8_t *at, size_t left, uint32_t *ret_point)
{
    static const uint8_t short_points[128] = {
        ['"'] = '"',  ['\\'] = '\\', ['/'] = '/',  ['b'] = '\b',
        ['f'] = '\f', ['n'] = '\n',  ['r'] = '\r', ['t'] = '\t',
    };
    if (left < 2 || at[0] != '\\' || at[1] >= 128) {
        return 0;
    }
    if (at[1] != 'u') {
        *ret_point = short_points[at[1]];
        return *ret_point != 0 ? 2 : 0;
    }
    uint32_t high = left >= 6 ? read_hex(at + 2) : UINT32_MAX;
    if (high < 0xD800 || (high > 0xDFFF && high <= 0xFFFF)) {
        *ret_point = high;
        return 6;
    }
    if (high > 0xDBFF || left < 12 || at[6] != '\\' || at[7] != 'u') {
        return 0;
    }
    uint32_t low = read_hex(at + 8);
    if (low < 0xDC00 || low > 0xDFFF) {
        return 0;
    }
    *ret_point = 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
    return 12;
}

static const char *escape_problem(const uint8_t *at, size_t left)
{
    if (left < 2) {
        return "the text ends inside a string";
    }
    if (at[1] != 'u') {
        return "there is no such escape in JSON";
    }
    if (left < 6 || read_hex(at + 2) == UINT32_MAX) {
        return "an escape \\u needs four hexadecimal digits";
    }
    return "a surrogate escape without its other half means no character";
}

/* Canonical strings escape only what must be escaped, in the shortest way, in lower case. */
static bool escape_is_canonical(const uint8_t *at, size_t escape_bytes, uint32_t point)
{
    if (escape_bytes == 2) {
        return point != '/';
    }
    bool has_short = (point >= '\b' && point <= '\r' && point != '\v');
    bool upper = at[5] >= 'A' && at[5] <= 'F';
    return point < 0x20 && !has_short && !upper;
}

/* Returns the length of the UTF-8 sequence that a byte of 0x80 or more begins, 0 when it is none:
 * not overlong, no surrogate, at most U+10FFFF. */
static size_t wide_bytes(const uint8_t *at, size_t left)
{
    uint8_t lead = at[0];
    size_t bytes = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (lead < 0xC2 || lead > 0xF4 || left < bytes) {
        return 0;
    }
    uint8_t least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    uint8_t most = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (at[1] < least || at[1] > most) {
        return 0;
    }
    for (size_t i = 2; i < bytes; i++) {
        if ((at[i] & 0xC0) != 0x80) {
            return 0;
        }
    }
    return bytes;
}

/* Writes a code point in UTF-8 and returns its length. */
static size_t put_point(uint32_t point, uint8_t out[4])
{
    if (point < 0x80) {
        out[0] = (uint8_t)point;
        return 1;
    }
    size_t bytes = point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
    static const uint8_t leads[5] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = bytes - 1; i > 0; i--) {
        out[i] = (uint8_t)(0x80 | (point & 0x3F));
        point >>= 6;
    }
    out[0] = (uint8_t)(leads[bytes] | point);
    return bytes;
}

/* ---- Raw spellings ------------------------------------------------------------------------- */

/* Takes one character of a raw spelling in UTF-8 and returns its length; 0 at the end. Bytes of a
 * sequence may be taken one by one, since their order is that of code points. */
static size_t take_character(const uint8_t *text, size_t bytes, size_t *at, uint8_t out[4])
{
    uint32_t point = 0;
    if (*at >= bytes) {
        return 0;
    }
    if (text[*at] != '\\') {
        out[0] = text[(*at)++];
        return 1;
    }
    size_t taken = kvci_json_escape(text + *at, bytes - *at, &point);
    if (taken == 0) {
        *at = bytes; /* No token has such a spelling; there is no way on. */
        return 0;
    }
    *at += taken;
    return put_point(point, out);
}

/* A raw spelling that is read byte by byte in UTF-8. */
struct reader {
    const uint8_t *text;
    size_t bytes;
    size_t at;
    uint8_t pending[4];
    size_t pending_bytes;
    size_t pending_at;
};

/* Returns the next byte, or -1 at the end. */
static int read_byte(struct reader *reader)
{
    if (reader->pending_at == reader->pending_bytes) {
        reader->pending_at = 0;
        reader->pending_bytes =
            take_character(reader->text, reader->bytes, &reader->at, reader->pending);
        if (reader->pending_bytes == 0) {
            return -1;
        }
    }
    return reader->pending[reader->pending_at++];
}

int kvci_json_compare(const uint8_t *a, size_t a_bytes, const uint8_t *b, size_t b_bytes)
{
    size_t shorter = a_bytes < b_bytes ? a_bytes : b_bytes;
    size_t at = 0;
    while (at < shorter && a[at] == b[at] && a[at] != '\\') {
        at++;
    }
    /* UTF-8 sorts like code points, so bytes decide as long as there are no escapes. */
    if (at < shorter && a[at] != '\\' && b[at] != '\\') {
        return a[at] < b[at] ? -1 : 1;
    }
    struct reader left = {.text = a, .bytes = a_bytes, .at = at};
    struct reader right = {.text = b, .bytes = b_bytes, .at = at};
    for (;;) {
        int x = read_byte(&left);
        int y = read_byte(&right);
        if (x != y) {
            return x < y ? -1 : 1;
        }
        if (x < 0) {
            return 0;
        }
    }
}

bool kvci_json_equals(const uint8_t *text, size_t bytes, const char *literal)
{
    size_t at = 0;
    /* Without escapes a spelling is what it means. */
    if (bytes == 0 || memchr(text, '\\', bytes) == NULL) {
        return strlen(literal) == bytes && memcmp(text, literal, bytes) == 0;
    }
    while (at < bytes) {
        uint8_t character[4];
        size_t taken = take_character(text, bytes, &at, character);
        for (size_t i = 0; i < taken; i++) {
            if (*literal == '\0' || (uint8_t)*literal != character[i]) {
                return false;
            }
            literal++;
        }
    }
    return *literal == '\0';
}

size_t kvci_json_decode(const uint8_t *text, size_t bytes, uint8_t *out)
{
    size_t at = 0;
    size_t written = 0;
    uint8_t character[4];
    size_t taken = 0;
    while ((taken = take_character(text, bytes, &at, character)) > 0) {
        memcpy(out + written, character, taken);
        written += taken;
    }
    return written;
}

size_t kvci_json_decoded_bytes(const uint8_t *text, size_t bytes)
{
    size_t at = 0;
    size_t counted = 0;
    uint8_t character[4];
    size_t taken = 0;
    while ((taken = take_character(text, bytes, &at, character)) > 0) {
        counted += taken;
    }
    return counted;
}

/* ---- Scalars ------------------------------------------------------------------------------- */

/* Scans a string whose opening quote is at `scan->at`. */
static bool scan_string(struct kvci_json *scan, struct kvci_json_token *token)
{
    const uint8_t *text = scan->text;
    size_t end = scan->bytes;
    size_t at = scan->at + 1;
    token->text = text + at;
    for (;;) {
        while (at < end && text_classes[text[at]] == PLAIN) {
            at++;
        }
        if (at == end) {
            return fail(scan, at, "the text ends inside a string");
        }
        uint8_t class = text_classes[text[at]];
        if (class == QUOTE) {
            break;
        }
        if (class == CONTROL) {
            return fail(scan, at, "a control character in a string is not escaped");
        }
        size_t taken = 0;
        if (class == WIDE) {
            taken = wide_bytes(text + at, end - at);
            if (taken == 0) {
                return fail(scan, at, "the text is not valid UTF-8");
            }
        } else {
            uint32_t point = 0;
            taken = kvci_json_escape(text + at, end - at, &point);
            if (taken == 0) {
                return fail(scan, at, escape_problem(text + at, end - at));
            }
            if (point == 0) {
                return fail(scan, at, "a string holds U+0000, which is not allowed");
            }
            if (scan->mode == KVCI_JSON_STRICT && !escape_is_canonical(text + at, taken, point)) {
                return fail(scan, at, "an escape is not the canonical spelling of its character");
            }
        }
        at += taken;
    }
    token->bytes = (size_t)(text + at - token->text);
    scan->at = at + 1;
    return true;
}

/* Passes over digits from `at` on; false when there is none. */
static bool pass_digits(const struct kvci_json *scan, size_t *at)
{
    size_t first = *at;
    while (*at < scan->bytes && is_digit(scan->text[*at])) {
        (*at)++;
    }
    return *at > first;
}

/* Scans the rest of a float: a point and digits, an exponent, or both. */
static bool scan_float(struct kvci_json *scan, struct kvci_json_token *token, size_t at)
{
    const uint8_t *text = scan->text;
    if (text[at] == '.') {
        at++;
        if (!pass_digits(scan, &at)) {
            return fail(scan, at, "a number has no digit behind its point");
        }
    }
    if (at < scan->bytes && (text[at] == 'e' || text[at] == 'E')) {
        at++;
        if (at < scan->bytes && (text[at] == '+' || text[at] == '-')) {
            at++;
        }
        if (!pass_digits(scan, &at)) {
            return fail(scan, at, "a number has no digit in its exponent");
        }
    }
    token->type = KVCI_JSON_FLOAT;
    token->bytes = at - token->offset;
    scan->at = at;
    if (scan->mode == KVCI_JSON_STRICT) {
        return kvci_decimal_canonical(token->text, token->bytes) ||
               fail(scan, token->offset, "a float is not in its one canonical spelling");
    }
    return kvci_decimal_finite(token->text, token->bytes) ||
           fail(scan, token->offset, "a float is too large for a double");
}

static bool scan_number(struct kvci_json *scan, struct kvci_json_token *token)
{
    const uint8_t *text = scan->text;
    size_t end = scan->bytes;
    size_t at = scan->at;
    int64_t value = 0;
    bool negative = text[at] == '-';
    if (negative) {
        at++;
    }
    size_t first = at;
    while (at < end && is_digit(text[at])) {
        /* A value that is too large stays so; it cannot overflow either. */
        if (value <= KVCI_JSON_MAX_INTEGER) {
            value = value * 10 + (text[at] - '0');
        }
        at++;
    }
    if (at == first) {
        return fail(scan, at, "a number has no digit behind its sign");
    }
    if (text[first] == '0' && at - first > 1) {
        return fail(scan, token->offset, "a number has a leading zero");
    }
    if (at < end && (text[at] == '.' || text[at] == 'e' || text[at] == 'E')) {
        return scan_float(scan, token, at);
    }
    if (value > KVCI_JSON_MAX_INTEGER) {
        return fail(scan, token->offset, "an integer is outside -(2^53 - 1) ... 2^53 - 1");
    }
    if (negative && value == 0 && scan->mode == KVCI_JSON_STRICT) {
        return fail(scan, token->offset, "zero has a minus sign");
    }
    token->type = KVCI_JSON_INTEGER;
    token->bytes = at - token->offset;
    token->integer = negative ? -value : value;
    scan->at = at;
    return true;
}

static bool scan_word(struct kvci_json *scan, struct kvci_json_token *token, const char *word,
                      enum kvci_json_type type)
{
    size_t bytes = strlen(word);
    if (scan->bytes - scan->at < bytes || memcmp(scan->text + scan->at, word, bytes) != 0) {
        return fail(scan, scan->at, "a value is expected here");
    }
    token->type = type;
    token->bytes = bytes;
    scan->at += bytes;
    return true;
}

/* ---- Structure ----------------------------------------------------------------------------- */

static void close_value(struct kvci_json *scan)
{
    scan->state = scan->depth > 0 ? AFTER : DONE;
}

static bool open_container(struct kvci_json *scan, struct kvci_json_token *token, bool object)
{
    if (scan->depth == KVCI_JSON_MAX_DEPTH) {
        return fail(scan, scan->at, "objects and arrays are nested deeper than 16");
    }
    scan->depth++;
    uint32_t bit = UINT32_C(1) << scan->depth;
    scan->object_set = object ? scan->object_set | bit : scan->object_set & ~bit;
    scan->last_keys[scan->depth].text = NULL;
    scan->state = object ? FIRST_KEY : FIRST_ITEM;
    token->type = object ? KVCI_JSON_OBJECT : KVCI_JSON_ARRAY;
    scan->at++;
    return true;
}

static bool close_container(struct kvci_json *scan, struct kvci_json_token *token, bool object)
{
    token->type = object ? KVCI_JSON_OBJECT_END : KVCI_JSON_ARRAY_END;
    token->depth = scan->depth;
    scan->depth--;
    scan->at++;
    close_value(scan);
    return true;
}

static bool scan_value(struct kvci_json *scan, struct kvci_json_token *token)
{
    if (scan->values >= scan->max_values) {
        return fail(scan, scan->at, "there are more values than allowed");
    }
    scan->values++;
    uint8_t first = scan->text[scan->at];
    bool fine = true;
    switch (first) {
    case '{':
    case '[':
        return open_container(scan, token, first == '{');
    case '"':
        token->type = KVCI_JSON_STRING;
        fine = scan_string(scan, token);
        break;
    case 't':
        fine = scan_word(scan, token, "true", KVCI_JSON_TRUE);
        break;
    case 'f':
        fine = scan_word(scan, token, "false", KVCI_JSON_FALSE);
        break;
    case 'n':
        fine = scan_word(scan, token, "null", KVCI_JSON_NULL);
        break;
    default:
        if (first != '-' && !is_digit(first)) {
            return fail(scan, scan->at, "a value is expected here");
        }
        fine = scan_number(scan, token);
        break;
    }
    if (fine) {
        close_value(scan);
    }
    return fine;
}

/* Passes over white space, which canonical text has none of. False at the end of the text. */
static bool pass_space(struct kvci_json *scan)
{
    if (scan->mode == KVCI_JSON_ANY) {
        while (scan->at < scan->bytes && is_space(scan->text[scan->at])) {
            scan->at++;
        }
    } else if (scan->at < scan->bytes && is_space(scan->text[scan->at])) {
        return fail(scan, scan->at, "there is white space between the tokens");
    }
    return scan->at < scan->bytes || fail(scan, scan->at, "the text ends too early");
}

static bool scan_key(struct kvci_json *scan, struct kvci_json_token *token)
{
    if (scan->text[scan->at] != '"') {
        return fail(scan, scan->at, "a key in quotes is expected here");
    }
    token->type = KVCI_JSON_KEY;
    if (!scan_string(scan, token)) {
        return false;
    }
    if (scan->mode == KVCI_JSON_STRICT) {
        const uint8_t *last = scan->last_keys[scan->depth].text;
        size_t last_bytes = scan->last_keys[scan->depth].bytes;
        int order =
            last == NULL ? -1 : kvci_json_compare(last, last_bytes, token->text, token->bytes);
        if (order >= 0) {
            return fail(scan, token->offset,
                        order == 0 ? "an object has the same key twice"
                                   : "object keys are not in ascending order");
        }
        scan->last_keys[scan->depth].text = token->text;
        scan->last_keys[scan->depth].bytes = token->bytes;
    }
    if (!pass_space(scan)) {
        return false;
    }
    if (scan->text[scan->at] != ':') {
        return fail(scan, scan->at, "a colon is expected behind a key");
    }
    scan->at++;
    scan->state = VALUE;
    return true;
}

/* Takes the token behind a value in a container: what follows a comma, or the end. */
static bool scan_after(struct kvci_json *scan, struct kvci_json_token *token)
{
    bool object = (scan->object_set >> scan->depth & 1) != 0;
    uint8_t c = scan->text[scan->at];
    if (c == (object ? '}' : ']')) {
        return close_container(scan, token, object);
    }
    if (c != ',') {
        return fail(scan, scan->at,
                    object ? "a comma or the end of the object is expected here"
                           : "a comma or the end of the array is expected here");
    }
    scan->at++;
    if (!pass_space(scan)) {
        return false;
    }
    token->offset = scan->at;
    token->text = scan->text + scan->at;
    return object ? scan_key(scan, token) : scan_value(scan, token);
}

static bool scan_end(struct kvci_json *scan, struct kvci_json_token *token)
{
    while (scan->mode == KVCI_JSON_ANY && scan->at < scan->bytes &&
           is_space(scan->text[scan->at])) {
        scan->at++;
    }
    if (scan->at < scan->bytes) {
        return fail(scan, scan->at, "there is something behind the end of the value");
    }
    *token = (struct kvci_json_token){.type = KVCI_JSON_END, .offset = scan->at};
    return true;
}

void kvci_json_init(struct kvci_json *scan, const void *text, size_t bytes,
                    enum kvci_json_mode mode, uint64_t max_values)
{
    /* The keys are left as they are: each is set before it is read. */
    scan->text = text;
    scan->bytes = bytes;
    scan->at = 0;
    scan->mode = mode;
    scan->state = START;
    scan->depth = 0;
    scan->object_set = 0;
    scan->max_values = max_values;
    scan->values = 0;
    scan->problem = NULL;
    scan->problem_offset = 0;
}

bool kvci_json_next(struct kvci_json *scan, struct kvci_json_token *ret_token)
{
    if (scan->state == FAILED) {
        return false;
    }
    if (scan->state == DONE) {
        return scan_end(scan, ret_token);
    }
    if (scan->state == START && scan->bytes >= 3 && memcmp(scan->text, "\xEF\xBB\xBF", 3) == 0) {
        return fail(scan, 0, "the text begins with a byte order mark");
    }
    if (!pass_space(scan)) {
        return false;
    }
    ret_token->offset = scan->at;
    ret_token->text = scan->text + scan->at;
    ret_token->bytes = 1;
    ret_token->integer = 0;
    ret_token->depth = scan->depth + 1;
    switch (scan->state) {
    case AFTER:
        return scan_after(scan, ret_token);
    case FIRST_ITEM:
        if (scan->text[scan->at] == ']') {
            return close_container(scan, ret_token, false);
        }
        return scan_value(scan, ret_token);
    case FIRST_KEY:
        if (scan->text[scan->at] == '}') {
            return close_container(scan, ret_token, true);
        }
        return scan_key(scan, ret_token);
    default:
        return scan_value(scan, ret_token);
    }
}

bool kvci_json_skip(struct kvci_json *scan, const struct kvci_json_token *first,
                    size_t *ret_end_offset)
{
    if (first->type != KVCI_JSON_OBJECT && first->type != KVCI_JSON_ARRAY) {
        bool quoted = first->type == KVCI_JSON_STRING || first->type == KVCI_JSON_KEY;
        *ret_end_offset = first->offset + first->bytes + (quoted ? 2 : 0);
        return true;
    }
    struct kvci_json_token token;
    do {
        if (!kvci_json_next(scan, &token)) {
            return false;
        }
    } while (token.depth != first->depth);
    *ret_end_offset = scan->at;
    return true;
}
