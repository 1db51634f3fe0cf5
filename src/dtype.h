/* dtype.h: element types that a tensor can have.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCI_DTYPE_H
#define KVCI_DTYPE_H

#include <stdint.h>

struct kvci_dtype {
    const char *name;
    uint32_t item_bytes;
};

/* The names that FORMAT.md lists, joined for messages. */
#define KVCI_DTYPE_NAMES "\"f16\", \"bf16\", \"f32\", \"i8\" or \"u8\""

/* Returns the element type at `index`, or NULL past the last one. */
const struct kvci_dtype *kvci_dtype_at(uint32_t index);

#endif
