/* safe_text.h: prints text that came from a file or a file name, and numbers for people.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVC_SAFE_TEXT_H
#define KVC_SAFE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* `limit` of a text that is never cut. */
#define SAFE_WHOLE SIZE_MAX

/* Decodes one character. Returns its bytes, or 0 where the text is not valid UTF-8. */
size_t utf8_decode(const char *text, size_t bytes, uint32_t *ret_point);

/* Says whether a character can move the cursor, change what a terminal does, reverse the direction
 * of writing, or hide itself. */
bool unsafe_point(uint32_t point);

/* Prints text with unsafe characters as \u{202e}, controls and invalid bytes as \x1b. What needs
 * more than `limit` columns is cut there, and an ellipsis follows. Returns the columns taken. */
size_t put_safe(FILE *stream, const char *text, size_t bytes, size_t limit);

/* The same for a terminated text. */
size_t put_safe_text(FILE *stream, const char *text, size_t limit);

/* Writes a number with commas between groups of three digits, and returns `ret_text`. */
const char *grouped(uint64_t number, char ret_text[32]);

/* Writes a size as "512.0 MiB", and as "100 bytes" below 1 KiB, and returns `ret_text`. */
const char *short_size(uint64_t bytes, char ret_text[32]);

/* Writes `bytes` bytes as hexadecimal digits and a final zero, and returns `ret_text`. */
const char *hex_text(const uint8_t *data, size_t bytes, char *ret_text);

#endif
