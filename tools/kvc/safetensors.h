/* safetensors.h: the header of a safetensors file, which may come from anybody; does no input.
 * SPDX-License-Identifier: Apache-2.0
 *
 * Such a file is a u64 with the length of its header, the header, which is JSON, and the bytes of
 * all tensors, one after the other without gaps, in any order. */
#ifndef KVC_SAFETENSORS_H
#define KVC_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvc.h"

#include "json_text.h"

/* Bytes of the length before the header. */
#define SAFETENSORS_LENGTH_BYTES 8

/* What the safetensors library allows a header to have. */
#define SAFETENSORS_MOST_BYTES UINT64_C(100000000)

/* The entry of the header that is no tensor. */
#define SAFETENSORS_METADATA "__metadata__"

/* What `kvc export` writes there: the metadata of the file, and its root. */
#define SAFETENSORS_KVC_METADATA "kvc1.metadata"
#define SAFETENSORS_KVC_ROOT "kvc1.root"

/* The name that an opaque payload has as a tensor. */
#define SAFETENSORS_PAYLOAD "payload"

/* One tensor. The pieces lie in the header's text and are canonical JSON. */
struct safetensors_tensor {
    struct json_piece name;  /* a string with its quotes */
    struct json_piece dtype; /* the same */
    struct json_piece shape; /* an array of integers, none below 0 */
    uint64_t start;          /* bytes, counted from the end of the header */
    uint64_t end;
    bool taken; /* for the caller's account */
};

/* A header that keeps the rules of the format. */
struct safetensors {
    char *text;                         /* in canonical spelling */
    struct json_piece metadata;         /* an object whose values are strings; maybe empty */
    struct safetensors_tensor *tensors; /* by the spelling of their names */
    size_t count;
};

/* Returns the name that safetensors has for a dtype of a KVC1 file, or NULL when it has none. */
const char *safetensors_dtype(const char *kvc_name, size_t bytes);

/* Reads the length of the header from the first bytes of a file of `file_bytes` bytes; refuses one
 * that the file or the format's limit does not have room for. */
enum kvc_status safetensors_header_bytes(const uint8_t first[SAFETENSORS_LENGTH_BYTES],
                                         uint64_t file_bytes, uint64_t *ret_bytes,
                                         struct kvc_error *error);

/* Judges a header and takes it apart; `data_bytes` is what follows it in the file. Tensors keep
 * within it, do not overlap, leave nothing over, and have the size of their shape where the dtype
 * is known. Errors say what is wrong; KVC_E_NO_MEMORY says nothing about the file. */
enum kvc_status safetensors_parse(const char *header, size_t header_bytes, uint64_t data_bytes,
                                  struct safetensors *ret_file, struct kvc_error *error);

/* Finds a tensor by its name, a string in canonical spelling; NULL when there is none. */
struct safetensors_tensor *safetensors_find(const struct safetensors *file, struct json_piece name);

/* Finds a string of the header's metadata by its key. */
bool safetensors_metadata(const struct safetensors *file, const char *key,
                          struct json_piece *ret_string);

void safetensors_free(struct safetensors *file);

#endif
