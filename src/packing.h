/* packing.h: how a tensor of manifest version 2 holds quantised elements; pure.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCI_PACKING_H
#define KVCI_PACKING_H

#include "roles.h"
#include "walk.h"

struct kvci_packing {
    bool there; /* an object, and not null */
    bool zero;  /* it names a tensor of zero points */
    enum kvci_role scale_role;
    enum kvci_role zero_role;
    struct kvci_json_token token; /* its first */
    struct kvci_json_token scale_token;
    struct kvci_json_token zero_token;
};

/* Takes the value of `packing`, by itself. */
enum kvc_status kvci_packing_take(struct kvci_walk *walk, struct kvci_packing *ret_packing);

/* Holds it against the role of its tensor. */
enum kvc_status kvci_packing_judge(struct kvci_walk *walk, const struct kvci_packing *packing,
                                   enum kvci_role role);

/* Takes an array of 0 to 8 lengths. `ret_tokens`, which may be NULL, has room for as many. */
enum kvc_status kvci_shape_take(struct kvci_walk *walk, struct kvci_json_token *ret_tokens,
                                uint32_t *ret_rank);

/* Takes the name of an element type. */
enum kvc_status kvci_dtype_take(struct kvci_walk *walk, const struct kvci_dtype **ret_dtype,
                                struct kvci_json_token *ret_token);

#endif
