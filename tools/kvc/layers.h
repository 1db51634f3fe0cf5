/* layers.h: the layers of manifest version 2, gathered by kind.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVC_LAYERS_H
#define KVC_LAYERS_H

#include <stdbool.h>
#include <stdint.h>

#include "json_out.h"
#include "json_text.h"

/* Kinds that are told apart; a cache has one or two. */
#define LAYER_GROUPS 16

/* Layers of one kind and window, which are JSON. */
struct layer_group {
    struct json_piece kind;
    struct json_piece window;
    uint32_t count;
};

struct layer_summary {
    struct layer_group groups[LAYER_GROUPS]; /* in the order of their first layers */
    uint32_t group_count;
    uint32_t others; /* layers of groups for which there was no room */
    uint32_t count;
    uint32_t empty;
    uint32_t uninitialized;
};

/* Gathers the layers of a cache, "self" or "cross", from a manifest. */
void layers_gather(struct json_piece manifest, const char *cache, struct layer_summary *ret_layers);

/* Prints them as in "18: 15 sliding (window 512), 3 full; 2 empty", without a line end. */
void layers_print(const struct layer_summary *layers);

/* Writes the groups as members of an array that is open. */
void layers_json(struct json_out *out, const char *cache, const struct layer_summary *layers);

#endif
