/* canonical.h: rewrites JSON in any spelling as the canonical one.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCI_CANONICAL_H
#define KVCI_CANONICAL_H

#include "kvc.h"

#include <stddef.h>
#include <stdint.h>

enum kvci_canonical_result {
    KVCI_CANONICAL_OK,
    KVCI_CANONICAL_REFUSED, /* the text is not JSON, or has no canonical spelling */
    KVCI_CANONICAL_NO_MEMORY
};

/* Writes the canonical spelling of one JSON value of any type: keys are sorted, and a key that
 * occurs twice in an object is refused. An integer -0 becomes 0, a float -0.0 becomes 0.0. The
 * caller gives the text back with kvci_free; it is not terminated. When the text is refused,
 * `ret_problem` is a static text that says why, and `ret_problem_offset` where. Outputs that do
 * not belong to the result are untouched. Memory is bounded by a small multiple of `bytes`. */
enum kvci_canonical_result kvci_canonical_write(const void *text, size_t bytes, uint64_t max_values,
                                                const struct kvc_allocator *allocator,
                                                uint8_t **ret_text, size_t *ret_bytes,
                                                const char **ret_problem,
                                                size_t *ret_problem_offset);

#endif
