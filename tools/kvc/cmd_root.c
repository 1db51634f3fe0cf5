/* cmd_root.c: `kvc root` prints the root of each file.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "kvc.h"

#include "commands.h"
#include "options.h"
#include "report.h"
#include "safe_text.h"

static const struct option_entry no_options[] = {{0}};

const struct command root_command = {
    .name = "root",
    .operands = "FILE...",
    .line = "print the root, the digest that names a file's content",
    .about = "Prints `ROOT  FILE` for each file. Header, metadata, tensor digests and footer are\n"
             "checked against the root; the payload is not read: kvc verify does that.",
    .options = no_options,
    .examples = "  kvc root *.kvc",
    .run = cmd_root,
};

static int show_root(const char *path)
{
    struct kvc_error error = KVC_ERROR_INIT;
    struct kvc_info info = KVC_INFO_INIT;
    struct kvc_reader *reader = NULL;
    char root[KVC_ROOT_TEXT_BYTES];
    if (kvc_reader_open_path(path, NULL, &reader, &error) != KVC_OK) {
        return refuse_error(path, &error);
    }
    int code = CODE_GOOD;
    if (kvc_reader_info(reader, &info, &error) != KVC_OK) {
        code = refuse_error(path, &error);
    } else {
        kvc_root_format(info.root, root);
        (void)printf("%s  ", root);
        (void)put_safe_text(stdout, path, SAFE_WHOLE);
        (void)fputc('\n', stdout);
    }
    kvc_reader_free(reader);
    return finish_output(code);
}

/* There are no options that could be taken. */
static int take_option(void *context, int id, const char *value)
{
    (void)context;
    (void)id;
    (void)value;
    return CODE_GOOD;
}

int cmd_root(int count, char **words)
{
    struct words line;
    words_start(&line, &root_command, count, words);
    if (!words_read(&line, take_option, NULL, 1, 0)) {
        return line.code;
    }
    int code = CODE_GOOD;
    for (int i = 0; i < line.operand_count; i++) {
        code = worse_code(code, show_root(words[i]));
    }
    return code;
}
