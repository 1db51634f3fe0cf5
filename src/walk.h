/* walk.h: takes a manifest's members one by one, and refuses them with their paths; pure.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCI_WALK_H
#define KVCI_WALK_H

#include "metadata.h"

#define KVCI_PATH_BYTES 128

/* Where a walk through the manifest is. Places in tokens count from the manifest's first byte. The
 * path of a member is `tensor_manifest`, `.array[index]` inside a record, `.part` inside an object
 * of that, and the member's name. */
struct kvci_walk {
    struct kvci_json scan;
    const struct kvci_metadata *metadata;
    uint64_t offset; /* of the manifest's first byte in the file */
    const char *array;
    uint32_t index;
    const char *part;
    struct kvc_error *error;
};

/* The members of an object, in ascending order; all of them are required. */
struct kvci_fields {
    const char *const *names;
    int count;
};

/* Starts before the manifest's first token. `offset` is where the metadata begin in the file. */
void kvci_walk_start(struct kvci_walk *walk, const struct kvci_metadata *metadata, uint64_t offset,
                     struct kvc_error *error);

/* Takes the next token. The spelling was judged before, so this can only fail on a defect of this
 * library. */
enum kvc_status kvci_walk_next(struct kvci_walk *walk, struct kvci_json_token *ret_token);

/* Takes the key that must come next. */
enum kvc_status kvci_walk_key(struct kvci_walk *walk, const struct kvci_fields *fields, int wanted);

/* Takes the end of an object, which has no other members than those that were taken. */
enum kvc_status kvci_walk_end(struct kvci_walk *walk);

/* Takes an object of any content, or an array's or object's rest, whose first token was taken. */
enum kvc_status kvci_walk_any_object(struct kvci_walk *walk, const char *field);

/* Takes a string of 1 to `most` bytes, escapes resolved. */
enum kvc_status kvci_walk_string(struct kvci_walk *walk, const char *field, unsigned most,
                                 struct kvci_json_token *ret_token);

/* Takes a string that must be `wanted` here: any other is wrong in every manifest. */
enum kvc_status kvci_walk_text(struct kvci_walk *walk, const char *field, const char *wanted);

/* Takes an integer in a range. */
enum kvc_status kvci_walk_integer(struct kvci_walk *walk, const char *field, int64_t least,
                                  int64_t most, struct kvci_json_token *ret_token);

/* Refuses a token. */
enum kvc_status kvci_walk_refuse(const struct kvci_walk *walk, enum kvc_status status,
                                 const char *field, const char *expected,
                                 const struct kvci_json_token *token);

/* The same where one number is expected. */
enum kvc_status kvci_walk_refuse_number(const struct kvci_walk *walk, enum kvc_status status,
                                        const char *field, uint64_t expected,
                                        const struct kvci_json_token *token);

/* Refuses what no single token shows. `is` is what the member is or has: "is missing". */
enum kvc_status kvci_walk_refuse_as(const struct kvci_walk *walk, enum kvc_status status,
                                    const char *field, const struct kvci_json_token *at,
                                    const char *is, const char *expected);

/* Refuses an object or array that has another number of things in it than it must. */
enum kvc_status kvci_walk_refuse_count(const struct kvci_walk *walk, enum kvc_status status,
                                       const char *field, const struct kvci_json_token *at,
                                       uint64_t found, uint64_t expected, const char *what,
                                       const char *why);

#endif
