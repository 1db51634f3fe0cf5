/* dtype.c: element types that a tensor can have.
 * SPDX-License-Identifier: Apache-2.0 */
#include "dtype.h"

#include <string.h>

#include "ban.h"

static const struct kvci_dtype dtypes[] = {
    {"f16", 2, true},          {"bf16", 2, true},     {"f32", 4, true},
    {"i8", 1, true},           {"u8", 1, true},       {"f64", 8, false},
    {"f8_e4m3fn", 1, false},   {"f8_e5m2", 1, false}, {"f8_e4m3fnuz", 1, false},
    {"f8_e5m2fnuz", 1, false}, {"f8_e8m0", 1, false}, {"i16", 2, false},
    {"i32", 4, false},         {"i64", 8, false},     {"u16", 2, false},
    {"u32", 4, false},         {"bool", 1, false},
};

const struct kvci_dtype *kvci_dtype_find(const uint8_t *name, size_t name_bytes)
{
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        if (strlen(dtypes[i].name) == name_bytes && memcmp(dtypes[i].name, name, name_bytes) == 0) {
            return &dtypes[i];
        }
    }
    return NULL;
}

bool kvci_dtype_is_countable(const struct kvci_dtype *dtype)
{
    return dtype->name[0] == 'i' || dtype->name[0] == 'u' || strcmp(dtype->name, "bool") == 0;
}
