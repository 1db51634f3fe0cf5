/* alloc.c: memory through the caller's allocator, or malloc when there is none.
 * SPDX-License-Identifier: Apache-2.0 */
#include "alloc.h"

#include <stdlib.h>
#include <string.h>

#include "ban.h"

void *kvci_alloc(const struct kvc_allocator *allocator, size_t bytes)
{
    size_t wanted = bytes > 0 ? bytes : 1;
    if (allocator == NULL || allocator->allocate == NULL) {
        return calloc(1, wanted);
    }
    void *block = allocator->allocate(allocator->context, wanted);
    if (block != NULL) {
        memset(block, 0, wanted);
    }
    return block;
}

void *kvci_alloc_grow(const struct kvc_allocator *allocator, void *block, size_t old_bytes,
                      size_t new_bytes)
{
    void *moved = kvci_alloc(allocator, new_bytes);
    if (moved == NULL) {
        return NULL;
    }
    if (block != NULL) {
        memcpy(moved, block, old_bytes < new_bytes ? old_bytes : new_bytes);
        kvci_free(allocator, block);
    }
    return moved;
}

void kvci_free(const struct kvc_allocator *allocator, void *block)
{
    if (block == NULL) {
        return;
    }
    if (allocator == NULL || allocator->release == NULL) {
        free(block);
        return;
    }
    allocator->release(allocator->context, block);
}
