/* dtype.h: element types that a tensor can have.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCI_DTYPE_H
#define KVCI_DTYPE_H

#include <stddef.h>
#include <stdint.h>

struct kvci_dtype {
    const char *name;
    uint32_t item_bytes;
};

/* The names that FORMAT.md lists, joined for messages. */
#define KVCI_DTYPE_NAMES "\"f16\", \"bf16\", \"f32\", \"i8\" or \"u8\""

/* Returns the element type of this name, which need not be terminated, or NULL. No name has an
 * escape, so the spelling of a JSON string will do. */
const struct kvci_dtype *kvci_dtype_find(const uint8_t *name, size_t name_bytes);

#endif
