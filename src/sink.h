/* sink.h: where a writer's bytes go: a file to be published, or the caller's functions.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCI_SINK_H
#define KVCI_SINK_H

#include "publish.h"

#include <stdatomic.h>

struct kvci_sink {
    bool is_file;
    bool done; /* finished or discarded */
    struct kvci_publish publish;
    struct kvc_sink custom;
    enum kvc_durability durability;
    uint64_t position;                  /* custom: bytes written so far */
    atomic_uint_fast64_t written_bytes; /* file: for write-behind */
    atomic_uint_fast64_t behind_bytes;  /* file: bytes whose writing was started */
};

enum kvc_status kvci_sink_open_path(const char *path, enum kvc_durability durability,
                                    const struct kvc_allocator *allocator,
                                    struct kvci_sink *ret_sink, struct kvc_error *error);

void kvci_sink_open_custom(const struct kvc_sink *custom, struct kvci_sink *ret_sink);

/* Files can be written at any place and from several threads; a custom sink only in order. */
bool kvci_sink_is_random(const struct kvci_sink *sink);

/* Reserves the space of a file, so that a full disk is found out before the work is done. */
enum kvc_status kvci_sink_reserve(struct kvci_sink *sink, uint64_t file_bytes,
                                  struct kvc_error *error);

/* Writes at `offset`. Places that are passed over hold zeros; a custom sink gets them written. */
enum kvc_status kvci_sink_write(struct kvci_sink *sink, const void *data, uint64_t bytes,
                                uint64_t offset, struct kvc_error *error);

enum kvc_status kvci_sink_finish(struct kvci_sink *sink, struct kvc_error *error);

/* Discards unless it was finished, and frees what it holds. */
void kvci_sink_close(struct kvci_sink *sink, const struct kvc_allocator *allocator);

#endif
