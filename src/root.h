/* root.h: the root that names a content, and the tag that a key holder adds; pure.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCI_ROOT_H
#define KVCI_ROOT_H

#include "layout.h"

#include <stdbool.h>

/* FORMAT.md "Root": derive-key mode over both counts, the metadata and the tensor digests. */
void kvci_root_compute(const uint8_t *metadata, uint64_t metadata_bytes, const uint8_t *digests,
                       uint64_t digest_count, uint8_t ret_root[KVCI_DIGEST]);

/* FORMAT.md "Tag": keyed mode over the root, with a key derived from the caller's. */
void kvci_root_tag(const uint8_t root[KVCI_DIGEST], const uint8_t key[KVCI_DIGEST],
                   uint8_t ret_tag[KVCI_DIGEST]);

/* Compares in a time that does not depend on where the two differ. */
bool kvci_root_equal(const uint8_t a[KVCI_DIGEST], const uint8_t b[KVCI_DIGEST]);

#endif
