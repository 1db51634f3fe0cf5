/* opening.h: opens a container with the root and the key that the command line asked for.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVC_OPENING_H
#define KVC_OPENING_H

#include <stdbool.h>
#include <stdint.h>

#include "kvc.h"

/* What the command line demands of a file. */
struct opening {
    bool has_root;
    bool has_key;
    uint8_t root[KVC_DIGEST_BYTES];
    uint8_t key[KVC_DIGEST_BYTES];
};

#define OPENING_INIT                                                                               \
    {                                                                                              \
        .has_root = false                                                                          \
    }

/* Take the value of --root and --key-file. Return CODE_GOOD, or another code after a message. */
int opening_root(struct opening *opening, const char *command, const char *text);
int opening_key(struct opening *opening, const char *command, const char *path);

enum kvc_status opening_open(const struct opening *opening, const char *path,
                             struct kvc_reader **ret_reader, struct kvc_error *error);

/* Wipes the key. */
void opening_end(struct opening *opening);

#endif
