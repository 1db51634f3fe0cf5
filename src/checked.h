/* checked.h: arithmetic on numbers from a file; every function returns false on overflow.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCI_CHECKED_H
#define KVCI_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

static inline bool kvci_add(uint64_t a, uint64_t b, uint64_t *ret_sum)
{
    if (a > UINT64_MAX - b) {
        return false;
    }
    *ret_sum = a + b;
    return true;
}

static inline bool kvci_mul(uint64_t a, uint64_t b, uint64_t *ret_product)
{
    if (b != 0 && a > UINT64_MAX / b) {
        return false;
    }
    *ret_product = a * b;
    return true;
}

/* `unit` must be a power of two. */
static inline bool kvci_round_up(uint64_t value, uint64_t unit, uint64_t *ret_rounded)
{
    uint64_t sum = 0;
    if (!kvci_add(value, unit - 1, &sum)) {
        return false;
    }
    *ret_rounded = sum & ~(unit - 1);
    return true;
}

#endif
