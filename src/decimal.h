/* decimal.h: binary64 numbers as decimal text, exactly, in the spelling that the format stores.
 * SPDX-License-Identifier: Apache-2.0
 *
 * Everything is computed with integers: neither the locale nor the rounding mode matters, no
 * memory is allocated, and no input takes longer than its length warrants. */
#ifndef KVCI_DECIMAL_H
#define KVCI_DECIMAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Room for any number's text and its final zero. The format allows no longer floats. */
#define KVCI_DECIMAL_BYTES 32

/* Returns the double nearest to a JSON number of any length, ties to even; HUGE_VAL with the sign
 * of the number when that is not finite. The text must be a valid JSON number. */
double kvci_decimal_value(const uint8_t *text, size_t bytes);

/* Tells whether that double is finite, mostly without computing it. */
bool kvci_decimal_finite(const uint8_t *text, size_t bytes);

/* Writes a finite double as Python's repr does, terminated, and returns the length: the fewest
 * digits that read back as the same double, and of those the nearest, with an exponent below 1e-4
 * and from 1e16 on (10000.0, 1e+16, 1e-05). */
size_t kvci_decimal_format(double value, char ret_text[KVCI_DECIMAL_BYTES]);

/* Tells whether a JSON number with `.`, `e` or `E` is the float's one canonical spelling: what
 * kvci_decimal_format would write, finite, and not negative zero. */
bool kvci_decimal_canonical(const uint8_t *text, size_t bytes);

#endif
