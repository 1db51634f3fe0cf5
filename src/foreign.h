/* foreign.h: names the format of a file that is not a KVC1 container; pure.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCI_FOREIGN_H
#define KVCI_FOREIGN_H

#include "kvc.h"

/* Always returns a failure: KVC_E_MANGLED or KVC_E_FOREIGN. `head` is the start of the file. */
enum kvc_status kvci_foreign(const uint8_t *head, size_t head_bytes, struct kvc_error *error);

#endif
