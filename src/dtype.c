/* dtype.c: element types that a tensor can have.
 * SPDX-License-Identifier: Apache-2.0 */
#include "dtype.h"

#include <stddef.h>

#include "ban.h"

static const struct kvci_dtype dtypes[] = {
    {"f16", 2}, {"bf16", 2}, {"f32", 4}, {"i8", 1}, {"u8", 1},
};

const struct kvci_dtype *kvci_dtype_at(uint32_t index)
{
    return index < sizeof(dtypes) / sizeof(dtypes[0]) ? &dtypes[index] : NULL;
}
