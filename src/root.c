/* root.c: the root that names a content, and the tag that a key holder adds; pure.
 * SPDX-License-Identifier: Apache-2.0 */
#include "root.h"

#include "alloc.h"
#include "blake3.h"
#include "bytes.h"

#include "ban.h"

void kvci_root_compute(const uint8_t *metadata, uint64_t metadata_bytes, const uint8_t *digests,
                       uint64_t digest_count, uint8_t ret_root[KVCI_DIGEST])
{
    uint8_t counts[16];
    kvci_store64(counts, metadata_bytes);
    kvci_store64(counts + 8, digest_count);
    struct kvci_blake3 hasher;
    kvci_blake3_init_derive(&hasher, KVCI_ROOT_CONTEXT);
    kvci_blake3_update(&hasher, counts, sizeof(counts));
    kvci_blake3_update(&hasher, metadata, (size_t)metadata_bytes);
    kvci_blake3_update(&hasher, digests, (size_t)(KVCI_DIGEST * digest_count));
    kvci_blake3_final(&hasher, ret_root);
}

void kvci_root_tag(const uint8_t root[KVCI_DIGEST], const uint8_t key[KVCI_DIGEST],
                   uint8_t ret_tag[KVCI_DIGEST])
{
    uint8_t derived[KVCI_DIGEST];
    struct kvci_blake3 hasher;
    kvci_blake3_init_derive(&hasher, KVCI_TAG_CONTEXT);
    kvci_blake3_update(&hasher, key, KVCI_DIGEST);
    kvci_blake3_final(&hasher, derived);
    kvci_wipe(&hasher, sizeof(hasher));
    kvci_blake3_init_keyed(&hasher, derived);
    kvci_blake3_update(&hasher, root, KVCI_DIGEST);
    kvci_blake3_final(&hasher, ret_tag);
    kvci_wipe(&hasher, sizeof(hasher));
    kvci_wipe(derived, sizeof(derived));
}

bool kvci_root_equal(const uint8_t a[KVCI_DIGEST], const uint8_t b[KVCI_DIGEST])
{
    unsigned difference = 0;
    for (unsigned i = 0; i < KVCI_DIGEST; i++) {
        difference |= (unsigned)(a[i] ^ b[i]);
    }
    return difference == 0;
}
