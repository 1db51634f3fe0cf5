/* options.c: reads the command line of a subcommand and prints its help text.
 * SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "report.h"

enum {
    WORDS_END = 0,  /* all words are read */
    WORDS_STOP = -1 /* help was printed, or the command line is wrong; `code` says how to end */
};

/* Columns of the help text before an option's explanation. */
#define HELP_INDENT 24

void words_start(struct words *words, const struct command *command, int count, char **all)
{
    *words = (struct words){.command = command, .count = count, .all = all};
}

static int stop(struct words *words, int code)
{
    words->code = code;
    return WORDS_STOP;
}

static int show_help(struct words *words)
{
    print_help(words->command);
    return stop(words, finish_output(CODE_GOOD));
}

static int long_option(struct words *words, const char *word, const char **ret_value)
{
    const char *name = word + 2;
    size_t name_bytes = strcspn(name, "=");
    const char *value = name[name_bytes] == '=' ? name + name_bytes + 1 : NULL;
    if (strcmp(name, "help") == 0) {
        return show_help(words);
    }
    for (const struct option_entry *entry = words->command->options; entry->name != NULL; entry++) {
        if (strlen(entry->name) != name_bytes || memcmp(entry->name, name, name_bytes) != 0) {
            continue;
        }
        if (entry->value == NULL && value != NULL) {
            (void)usage_error(words->command->name, "option --%s takes no value", entry->name);
            return stop(words, CODE_USAGE);
        }
        if (entry->value != NULL && value == NULL) {
            if (words->at == words->count) {
                (void)usage_error(words->command->name, "option --%s needs a value: --%s %s",
                                  entry->name, entry->name, entry->value);
                return stop(words, CODE_USAGE);
            }
            value = words->all[words->at++];
        }
        *ret_value = value;
        return entry->id;
    }
    (void)usage_error(words->command->name, "unknown option %.100s", word);
    return stop(words, CODE_USAGE);
}

static int short_option(struct words *words, const char *word, const char **ret_value)
{
    if (strcmp(word, "-h") == 0) {
        return show_help(words);
    }
    for (const struct option_entry *entry = words->command->options; entry->name != NULL; entry++) {
        if (entry->letter != word[1] || (entry->value == NULL && word[2] != '\0')) {
            continue;
        }
        const char *value = word + 2;
        if (entry->value != NULL && *value == '\0') {
            if (words->at == words->count) {
                (void)usage_error(words->command->name, "option -%c needs a value: -%c %s",
                                  entry->letter, entry->letter, entry->value);
                return stop(words, CODE_USAGE);
            }
            value = words->all[words->at++];
        }
        *ret_value = entry->value == NULL ? NULL : value;
        return entry->id;
    }
    (void)usage_error(words->command->name, "unknown option %.100s", word);
    return stop(words, CODE_USAGE);
}

static int next_option(struct words *words, const char **ret_value)
{
    while (words->at < words->count) {
        char *word = words->all[words->at++];
        if (words->ended || word[0] != '-' || word[1] == '\0') {
            /* This never overtakes `at`: every operand came from a word already read. */
            words->all[words->operand_count++] = word;
        } else if (strcmp(word, "--") == 0) {
            words->ended = true;
        } else if (word[1] == '-') {
            return long_option(words, word, ret_value);
        } else {
            return short_option(words, word, ret_value);
        }
    }
    return WORDS_END;
}

static bool count_operands(struct words *words, int least, int most)
{
    const struct command *command = words->command;
    if (words->operand_count < least) {
        (void)usage_error(command->name, "expected %s, and got %s", command->operands,
                          words->operand_count == 0 ? "nothing" : "too little");
        return false;
    }
    if (most != 0 && words->operand_count > most) {
        (void)usage_error(command->name, "expected %s, and got one more: %.200s", command->operands,
                          words->all[most]);
        return false;
    }
    return true;
}

bool words_read(struct words *words, take_option_fn take, void *context, int least, int most)
{
    const char *value = NULL;
    int id = 0;
    while ((id = next_option(words, &value)) != WORDS_END) {
        if (id == WORDS_STOP) {
            return false;
        }
        words->code = take(context, id, value);
        if (words->code != CODE_GOOD) {
            return false;
        }
    }
    words->code = count_operands(words, least, most) ? CODE_GOOD : CODE_USAGE;
    return words->code == CODE_GOOD;
}

bool parse_number(const char *text, uint64_t most, uint64_t *ret_number)
{
    uint64_t number = 0;
    if (*text == '\0') {
        return false;
    }
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9') {
            return false;
        }
        uint64_t digit = (uint64_t)(*text - '0');
        if (number > (most - digit) / 10 || digit > most) {
            return false;
        }
        number = number * 10 + digit;
    }
    *ret_number = number;
    return true;
}

static void print_entry(const char *label, const char *text)
{
    size_t width = strlen(label);
    (void)fputs(label, stdout);
    if (width + 2 > HELP_INDENT) {
        (void)printf("\n%*s", HELP_INDENT, "");
    } else {
        (void)printf("%*s", (int)(HELP_INDENT - width), "");
    }
    for (; *text != '\0'; text++) {
        (void)fputc(*text, stdout);
        if (*text == '\n') {
            (void)printf("%*s", HELP_INDENT, "");
        }
    }
    (void)fputc('\n', stdout);
}

void print_help(const struct command *command)
{
    (void)printf("usage: kvc %s [options] %s\n\n%s\n\n", command->name, command->operands,
                 command->about);
    for (const struct option_entry *entry = command->options; entry->name != NULL; entry++) {
        char label[80];
        char letter[8] = "";
        if (entry->letter != 0) {
            (void)snprintf(letter, sizeof(letter), "-%c, ", entry->letter);
        }
        (void)snprintf(label, sizeof(label), "  %s--%s%s%s", letter, entry->name,
                       entry->value == NULL ? "" : " ", entry->value == NULL ? "" : entry->value);
        print_entry(label, entry->text);
    }
    print_entry("  -h, --help", "print this text");
    (void)printf("\nexample:\n%s\n", command->examples);
}
