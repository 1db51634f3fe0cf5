/* strides.h: puts row-major strides where a dimension of size 1 has another one; pure.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCI_STRIDES_H
#define KVCI_STRIDES_H

#include "kvc.h"

#include <stdbool.h>

/* Rewrites canonical metadata. Tensor libraries give a dimension of size 1 any stride, which says
 * nothing about where bytes lie; FORMAT.md knows one spelling, row-major. Strides of other
 * dimensions are left as they are, for the schema to judge. When nothing has to change,
 * `*ret_text` is NULL. False when there is no memory. */
bool kvci_strides_normalize(const uint8_t *text, size_t bytes,
                            const struct kvc_allocator *allocator, uint8_t **ret_text,
                            size_t *ret_bytes);

#endif
