/* alloc.c: memory through the caller's allocator, or malloc when there is none.
 * SPDX-License-Identifier: Apache-2.0 */
#include "alloc.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ban.h"

void *kvci_alloc(const struct kvc_allocator *allocator, size_t bytes)
{
    size_t wanted = bytes > 0 ? bytes : 1;
    if (allocator == NULL) {
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

/* The volatile pointer keeps the stores. */
void kvci_wipe(void *data, size_t bytes)
{
    volatile uint8_t *at = data;
    for (size_t i = 0; i < bytes; i++) {
        at[i] = 0;
    }
}

enum kvc_status kvci_alloc_check(const struct kvc_allocator *allocator)
{
    bool whole = allocator == NULL || (allocator->allocate != NULL && allocator->release != NULL);
    return whole ? KVC_OK : KVC_E_OPTION;
}

void kvci_free(const struct kvc_allocator *allocator, void *block)
{
    if (block == NULL) {
        return;
    }
    if (allocator == NULL) {
        free(block);
        return;
    }
    allocator->release(allocator->context, block);
}
