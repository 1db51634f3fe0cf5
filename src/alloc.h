/* alloc.h: memory through the caller's allocator, or malloc when there is none.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCI_ALLOC_H
#define KVCI_ALLOC_H

#include "kvc.h"

#include <stddef.h>

/* Returns zeroed memory of `bytes` bytes (at least one), or NULL. `allocator` may be NULL. */
void *kvci_alloc(const struct kvc_allocator *allocator, size_t bytes);

/* Moves a block to a larger one; the added bytes are zero. On NULL the old block is still owned. */
void *kvci_alloc_grow(const struct kvc_allocator *allocator, void *block, size_t old_bytes,
                      size_t new_bytes);

/* Clears a secret in a way that the compiler keeps. */
void kvci_wipe(void *data, size_t bytes);

/* Refuses an allocator that has one function and not the other. */
enum kvc_status kvci_alloc_check(const struct kvc_allocator *allocator);

/* Gives back what kvci_alloc returned; NULL is accepted. */
void kvci_free(const struct kvc_allocator *allocator, void *block);

#endif
