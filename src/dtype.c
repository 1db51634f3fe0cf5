/* dtype.c: element types that a tensor can have.
 * SPDX-License-Identifier: Apache-2.0 */
#include "dtype.h"

#include <string.h>

#include "ban.h"

static const struct kvci_dtype dtypes[] = {
    {"f16", 2}, {"bf16", 2}, {"f32", 4}, {"i8", 1}, {"u8", 1},
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
