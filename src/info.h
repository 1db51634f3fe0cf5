/* info.h: the facts of a file, gathered from its parts; pure.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCI_INFO_H
#define KVCI_INFO_H

#include "geometry.h"
#include "header.h"
#include "metadata.h"

/* Fills in a caller's struct, whose size is checked. */
enum kvc_status kvci_info_fill(const struct kvci_header *header, const struct kvci_footer *footer,
                               const struct kvci_metadata *metadata,
                               const struct kvci_geometry *geometry, bool tag_checked,
                               struct kvc_info *ret_info, struct kvc_error *error);

#endif
