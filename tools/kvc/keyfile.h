/* keyfile.h: reads the 32 bytes of a key from a file, and wipes them.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVC_KEYFILE_H
#define KVC_KEYFILE_H

#include <stdint.h>

#include "kvc.h"

/* Reads a key file: 32 raw bytes, or 64 hexadecimal digits with or without a line end. Returns
 * CODE_GOOD, or another exit code after saying why not. */
int keyfile_read(const char *command, const char *path, uint8_t ret_key[KVC_DIGEST_BYTES]);

/* Overwrites key bytes; the compiler cannot leave it out. */
void keyfile_wipe(void *key, size_t bytes);

#endif
