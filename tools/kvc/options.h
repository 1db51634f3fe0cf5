/* options.h: reads the command line of a subcommand and prints its help text.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVC_OPTIONS_H
#define KVC_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

/* One option of a subcommand. A list ends with an entry without a name. */
struct option_entry {
    int id;            /* from 1 */
    char letter;       /* the short form, or 0 */
    const char *name;  /* without its dashes */
    const char *value; /* what the help text calls the value; NULL when the option takes none */
    const char *text;  /* lines for the help text */
};

/* A subcommand: the source of both its parser and its help text. */
struct command {
    const char *name;
    const char *operands; /* "FILE..." */
    const char *line;     /* for the list of commands */
    const char *about;    /* paragraphs for the help text */
    const struct option_entry *options;
    const char *examples; /* lines */
    int (*run)(int count, char **words);
};

/* A command line being read. */
struct words {
    const struct command *command;
    int count;
    char **all;
    int at;
    bool ended;        /* `--` was seen */
    int operand_count; /* operands so far, moved to the front of `all` */
    int code;
};

void words_start(struct words *words, const struct command *command, int count, char **all);

/* Takes one option into the subcommand's own struct. Returns CODE_GOOD, or another exit code after
 * saying why. */
typedef int (*take_option_fn)(void *context, int id, const char *value);

/* Reads the whole line. Options may stand between and after operands, long ones take values as
 * `--name=value` and `--name value`, and `--` ends them. Options go through `take`. There must be
 * `least` to `most` operands, which stand in front of `all` afterwards; `most` 0 is any number.
 * Returns true to go on, or false when `code` says how to end: after a message, or after the help
 * text. */
bool words_read(struct words *words, take_option_fn take, void *context, int least, int most);

/* Reads a decimal number with nothing before or after it. Returns false above `most` too. */
bool parse_number(const char *text, uint64_t most, uint64_t *ret_number);

void print_help(const struct command *command);

#endif
