/* main.c: kvc, the command line of KVC1: chooses the subcommand.
 * SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kvc.h"

#include "commands.h"
#include "options.h"
#include "report.h"

static const struct command *const commands[] = {
    &inspect_command, &verify_command, &cat_command,    &diff_command,
    &pack_command,    &export_command, &import_command, &root_command,
};

#define COMMAND_COUNT (sizeof(commands) / sizeof(commands[0]))

static const char usage_line[] = "usage: kvc COMMAND [options] [operands]";

static const char exit_codes[] =
    "exit codes: 0 good; 1 a file is foreign, newer, damaged or does not fit, or two differ;\n"
    "2 usage; 3 could not look (missing file, input/output, no memory). With several files the\n"
    "highest counts.";

/* A file opened later must not become descriptor 0, 1 or 2, where others would write into it. What
 * was closed stays unusable: reading from it or writing to it fails. */
static int fill_standard_descriptors(void)
{
    static const int modes[] = {O_WRONLY, O_RDONLY, O_RDWR};
    for (int fd = 0; fd < 3; fd++) {
        if (fcntl(fd, F_GETFD) == -1 && errno == EBADF && open("/dev/null", modes[fd]) != fd) {
            return CODE_TROUBLE;
        }
    }
    return CODE_GOOD;
}

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(commands[i]->name, name) == 0) {
            return commands[i];
        }
    }
    return NULL;
}

static int show_overview(void)
{
    (void)printf(
        "%s\n\nLooks into, checks, compares and makes KVC1 files, which hold the key/value "
        "cache of a\nlanguage model.\n\n",
        usage_line);
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        (void)printf("  %-10s%s\n", commands[i]->name, commands[i]->line);
    }
    (void)printf("\n  -h, --help     print this text; after a command, that command's options\n"
                 "  -V, --version  print the version\n\n%s\n\nexample:\n"
                 "  kvc inspect cache.kvc\n  kvc verify cache.kvc\n",
                 exit_codes);
    return finish_output(CODE_GOOD);
}

static int show_version(void)
{
    (void)printf("kvc %s (BLAKE3 kernel %s)\n", kvc_version(), kvc_kernel());
    return finish_output(CODE_GOOD);
}

static int show_command_help(int count, char **words)
{
    if (count == 0) {
        return show_overview();
    }
    const struct command *command = find_command(words[0]);
    if (command == NULL) {
        return usage_error(NULL, "there is no command %.100s", words[0]);
    }
    print_help(command);
    return finish_output(CODE_GOOD);
}

int main(int count, char **words)
{
    static char error_buffer[4096];
    int code = fill_standard_descriptors();
    if (code != CODE_GOOD) {
        return code;
    }
    report_start();
    /* A whole line at a time, so that the lines of several processes do not mix. */
    (void)setvbuf(stderr, error_buffer, _IOFBF, sizeof(error_buffer));
    if (count < 2) {
        return usage_error(NULL, "expected a command, as in kvc inspect cache.kvc");
    }
    if (strcmp(words[1], "--help") == 0 || strcmp(words[1], "-h") == 0) {
        return show_overview();
    }
    if (strcmp(words[1], "--version") == 0 || strcmp(words[1], "-V") == 0) {
        return show_version();
    }
    if (strcmp(words[1], "help") == 0) {
        return show_command_help(count - 2, words + 2);
    }
    const struct command *command = find_command(words[1]);
    if (command == NULL) {
        return usage_error(NULL, "there is no %s %.100s", words[1][0] == '-' ? "option" : "command",
                           words[1]);
    }
    return finish_output(command->run(count - 2, words + 2));
}
