/* tiles.h: does numbered pieces of work on several threads; the only file that knows threads.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCI_TILES_H
#define KVCI_TILES_H

#include "kvc.h"

/* Does tile number `tile`. `scratch` belongs to the calling thread. Called from several threads. */
typedef enum kvc_status (*kvci_tile_fn)(void *context, uint64_t tile, uint8_t *scratch,
                                        struct kvc_error *error);

struct kvci_tiles {
    const struct kvc_work *work;           /* may be NULL */
    const struct kvc_allocator *allocator; /* may be NULL */
    uint64_t tile_count;
    uint64_t total_bytes;    /* for progress, and for choosing threads */
    uint64_t before_bytes;   /* progress: done before this run */
    uint64_t progress_bytes; /* progress: the total; 0 means total_bytes */
    size_t scratch_bytes;
    kvci_tile_fn tile;
    void *context;
    /* Without it the run stops at a failure; with it, it goes on, and failures are reported after
     * the last tile, in the order of tiles. Returning nonzero ends the reports. */
    int (*on_failure)(void *context, uint64_t tile, const struct kvc_error *failure);
    /* Needed with on_failure: neighbouring tiles that give the same number are a group, of which
     * one failure of each status is reported, that of the lowest tile. */
    uint64_t (*group)(void *context, uint64_t tile);
};

/* Checks a caller's work struct. */
enum kvc_status kvci_tiles_check(const struct kvc_work *work, struct kvc_error *error);

/* Runs all tiles. Tiles are handed out in ascending order, and the failure of the lowest failing
 * tile is returned, whatever the threads did. */
enum kvc_status kvci_tiles_run(const struct kvci_tiles *tiles, struct kvc_error *error);

#endif
