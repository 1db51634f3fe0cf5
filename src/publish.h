/* publish.h: makes a file that appears under its name only when it is complete.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCI_PUBLISH_H
#define KVCI_PUBLISH_H

#include "kvc.h"

#include <stdbool.h>
#include <sys/types.h>

#define KVCI_TEMPORARY_BYTES 64

/* A file in the making. `name` is the last part of the path; `temporary` is "" while the file has
 * no name at all. */
struct kvci_publish {
    int fd;
    int folder_fd;
    pid_t process; /* a forked child must not remove its parent's temporary file */
    char *name;
    char temporary[KVCI_TEMPORARY_BYTES];
};

/* Opens a new file in the folder of `path`, without a name where the system can do that, else
 * under a temporary one. Refuses targets that are neither a regular file nor a symbolic link, and
 * removes temporary files that a killed writer of the same name left. */
enum kvc_status kvci_publish_open(const char *path, const struct kvc_allocator *allocator,
                                  struct kvci_publish *ret_publish, struct kvc_error *error);

/* Makes the file durable as far as asked, and gives it its name. */
enum kvc_status kvci_publish_commit(struct kvci_publish *publish, enum kvc_durability durability,
                                    struct kvc_error *error);

/* Closes everything; without a commit nothing is left in the folder. */
void kvci_publish_close(struct kvci_publish *publish, const struct kvc_allocator *allocator);

#endif
