/* commands.h: the subcommands of kvc, and the exit codes that all of them use.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVC_COMMANDS_H
#define KVC_COMMANDS_H

/* With several files the highest code wins: 3 says that something was never looked at, and 1 that
 * everything was looked at and something is wrong. */
enum {
    CODE_GOOD = 0,
    CODE_BAD = 1,    /* the file is foreign, newer, damaged or does not fit */
    CODE_USAGE = 2,  /* the command line is wrong, or the key file holds no key */
    CODE_TROUBLE = 3 /* could not look: a missing file, input/output, no memory */
};

struct command;

/* Each takes the words after its own name, and returns an exit code. The order of the words is
 * changed: operands move to the front. */
int cmd_inspect(int count, char **words);
int cmd_verify(int count, char **words);
int cmd_cat(int count, char **words);
int cmd_diff(int count, char **words);
int cmd_pack(int count, char **words);
int cmd_export(int count, char **words);
int cmd_import(int count, char **words);
int cmd_root(int count, char **words);

extern const struct command inspect_command;
extern const struct command verify_command;
extern const struct command cat_command;
extern const struct command diff_command;
extern const struct command pack_command;
extern const struct command export_command;
extern const struct command import_command;
extern const struct command root_command;

#endif
