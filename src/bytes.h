/* bytes.h: little-endian loads and stores that work at any address on any host.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCI_BYTES_H
#define KVCI_BYTES_H

#include <stddef.h>
#include <stdint.h>

static inline uint16_t kvci_load16(const uint8_t *at)
{
    return (uint16_t)(at[0] | (uint16_t)(at[1] << 8));
}

static inline uint32_t kvci_load32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline uint64_t kvci_load64(const uint8_t *at)
{
    return (uint64_t)kvci_load32(at) | (uint64_t)kvci_load32(at + 4) << 32;
}

static inline void kvci_store16(uint8_t *at, uint16_t value)
{
    at[0] = (uint8_t)value;
    at[1] = (uint8_t)(value >> 8);
}

static inline void kvci_store32(uint8_t *at, uint32_t value)
{
    for (unsigned i = 0; i < 4; i++) {
        at[i] = (uint8_t)(value >> (8 * i));
    }
}

static inline void kvci_store64(uint8_t *at, uint64_t value)
{
    for (unsigned i = 0; i < 8; i++) {
        at[i] = (uint8_t)(value >> (8 * i));
    }
}

/* Returns the index of the first byte that is not zero, or `bytes` when all are. */
static inline size_t kvci_first_nonzero(const uint8_t *data, size_t bytes)
{
    size_t i = 0;
    while (i < bytes && data[i] == 0) {
        i++;
    }
    return i;
}

#endif
