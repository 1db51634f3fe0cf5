/* output.h: a file that appears under its name only when it is complete.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVC_OUTPUT_H
#define KVC_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvc.h"

#define OUTPUT_NAME_BYTES 64

/* A file being made. Where the system can do that it has no name, else a temporary one beside the
 * target. */
struct output {
    const char *path; /* of the target; borrowed */
    const char *name; /* its last part */
    int folder_fd;
    int fd;
    uint64_t bytes;                    /* written so far */
    char temporary[OUTPUT_NAME_BYTES]; /* "" while the file has no name */
};

#define OUTPUT_INIT                                                                                \
    {                                                                                              \
        .folder_fd = -1, .fd = -1                                                                  \
    }

/* Says whether two paths show the same file. */
bool output_is_input(const char *output_path, const char *input_path);

/* Begins a file. Returns CODE_GOOD, or another exit code after saying why not. */
int output_open(struct output *output, const char *path);

/* Appends bytes. Returns 0 or an errno value. */
int output_write(struct output *output, const void *data, size_t bytes);

/* Gives the file its name, in the place of any older one. Returns CODE_GOOD, or another exit code
 * after saying why not; the older file is then still there, unless the message says otherwise. */
int output_publish(struct output *output, enum kvc_durability durability);

/* Ends the work on a file. One that was not published vanishes. */
void output_close(struct output *output);

#endif
