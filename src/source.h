/* source.h: where a reader's bytes come from: a file, memory, or the caller's functions.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCI_SOURCE_H
#define KVCI_SOURCE_H

#include "kvc.h"

#include <stdbool.h>

struct kvci_source {
    int fd; /* -1 unless a file */
    const uint8_t *memory;
    struct kvc_source custom;
    uint64_t file_bytes;
};

/* Opens a file for reading without waiting, and refuses what is not a regular file. */
enum kvc_status kvci_source_open_path(const char *path, struct kvci_source *ret_source,
                                      struct kvc_error *error);

/* Duplicates the descriptor. */
enum kvc_status kvci_source_open_fd(int fd, struct kvci_source *ret_source,
                                    struct kvc_error *error);

void kvci_source_open_memory(const void *data, uint64_t data_bytes, struct kvci_source *ret_source);

void kvci_source_open_custom(const struct kvc_source *custom, struct kvci_source *ret_source);

void kvci_source_close(struct kvci_source *source);

/* Fills the buffer. A file that ends too early is KVC_E_CHANGED: its size was looked at before. */
enum kvc_status kvci_source_read(const struct kvci_source *source, void *buffer, uint64_t bytes,
                                 uint64_t offset, struct kvc_error *error);

/* Maps the whole file privately and writable, or returns the caller's memory. `*ret_owned` says
 * whether kvci_source_unmap must be called. */
enum kvc_status kvci_source_map(const struct kvci_source *source, void **ret_base, bool *ret_owned,
                                struct kvc_error *error);

void kvci_source_unmap(void *base, uint64_t bytes);

/* Tells the system that the file will be read from front to back. */
void kvci_source_sequential(const struct kvci_source *source);

#endif
