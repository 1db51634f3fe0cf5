/* opening.c: opens a container with the root and the key that the command line asked for.
 * SPDX-License-Identifier: Apache-2.0 */
#include "opening.h"

#include "keyfile.h"
#include "report.h"

int opening_root(struct opening *opening, const char *command, const char *text)
{
    if (kvc_root_parse(text, opening->root) != KVC_OK) {
        return usage_error(
            command, "--root %.200s is no root: expected kvc1: and 64 hexadecimal digits", text);
    }
    opening->has_root = true;
    return CODE_GOOD;
}

int opening_key(struct opening *opening, const char *command, const char *path)
{
    int code = keyfile_read(command, path, opening->key);
    opening->has_key = code == CODE_GOOD;
    return code;
}

enum kvc_status opening_open(const struct opening *opening, const char *path,
                             struct kvc_reader **ret_reader, struct kvc_error *error)
{
    struct kvc_reader_options options = KVC_READER_OPTIONS_INIT;
    options.expected_root = opening->has_root ? opening->root : NULL;
    options.key = opening->has_key ? opening->key : NULL;
    return kvc_reader_open_path(path, &options, ret_reader, error);
}

void opening_end(struct opening *opening)
{
    keyfile_wipe(opening->key, sizeof(opening->key));
    opening->has_key = false;
}
