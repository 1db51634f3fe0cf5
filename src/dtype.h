/* dtype.h: element types that a tensor can have.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCI_DTYPE_H
#define KVCI_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kvci_dtype {
    const char *name;
    uint32_t item_bytes;
    bool version_1; /* one that manifest version 1 and metadata without a manifest may have */
};

/* The names that FORMAT.md lists, joined for messages: of version 1, and all of them. */
#define KVCI_DTYPE_NAMES_1 "\"f16\", \"bf16\", \"f32\", \"i8\" or \"u8\""
#define KVCI_DTYPE_NAMES                                                                           \
    "one of f16, bf16, f32, f64, f8_e4m3fn, f8_e5m2, f8_e4m3fnuz, f8_e5m2fnuz, f8_e8m0, i8, i16, " \
    "i32, i64, u8, u16, u32 and bool, as a string"

/* Returns the element type of this name, which need not be terminated, or NULL. No name has an
 * escape, so the spelling of a JSON string will do. */
const struct kvci_dtype *kvci_dtype_find(const uint8_t *name, size_t name_bytes);

/* Tells whether elements are integers, or booleans. */
bool kvci_dtype_is_countable(const struct kvci_dtype *dtype);

#endif
