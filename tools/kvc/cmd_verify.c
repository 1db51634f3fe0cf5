/* cmd_verify.c: `kvc verify` proves every byte of each file, and that it is the one expected.
 * SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvc.h"

#include "commands.h"
#include "expect.h"
#include "json_out.h"
#include "opening.h"
#include "options.h"
#include "progress.h"
#include "report.h"
#include "safe_text.h"

#define MOST_THREADS 256

/* Columns of a value in the line that lists differences. */
#define VALUE_COLUMNS 120

enum { OPT_ROOT = 1, OPT_KEY_FILE, OPT_EXPECT, OPT_THREADS, OPT_ALL, OPT_JSON };

static const struct option_entry verify_options[] = {
    {OPT_ROOT, 0, "root", "ROOT", "refuse any content but that of this root"},
    {OPT_KEY_FILE, 0, "key-file", "PATH",
     "require a tag made with this key: 32 raw bytes, or\n64 hexadecimal digits"},
    {OPT_EXPECT, 0, "expect", "FIELD=VALUE",
     "require this metadata value; may be repeated. Compares\nas text where the file has a string, "
     "else as JSON;\nuser.tenant=a reaches into objects. Compared before\nthe payload is read"},
    {OPT_THREADS, 0, "threads", "N", "threads to use; 0, the default, chooses by processors"},
    {OPT_ALL, 0, "all", NULL,
     "go on after the first damage and list each damaged\ntensor or gap on a line of its own"},
    {OPT_JSON, 0, "json", NULL, "print one JSON object for each file, good or not"},
    {0},
};

const struct command verify_command = {
    .name = "verify",
    .operands = "FILE...",
    .line = "prove every byte of files, and that they are the ones expected",
    .about =
        "Reads each file from end to end and proves every byte by its digests. A good file is\n"
        "named on stdout with its root, a refused one on stderr with the reason. Without\n"
        "--root or --key-file this shows that a file is whole, not where it came from.",
    .options = verify_options,
    .examples = "  kvc verify cache.kvc\n"
                "  kvc verify --expect rope_theta=10000 --expect dtype=f16 *.kvc",
    .run = cmd_verify,
};

/* What the command line asks for. */
struct demands {
    struct opening opening;
    struct expectation *expectations;
    size_t expectation_count;
    uint32_t threads;
    bool all;
    bool json;
};

/* What was found out about one file. The two lists grow in memory, because the JSON line begins
 * with the verdict. */
struct verdict {
    const char *path;
    const struct demands *demands;
    struct kvc_error error; /* status KVC_OK when all is well */
    struct kvc_info info;
    bool opened;
    struct progress progress;
    FILE *list; /* JSON members of `differences` or `damages`, or the text of the differences */
    struct json_out json;
    uint64_t difference_count;
    uint64_t damage_count;
};

static void put_error(struct json_out *out, const struct kvc_error *error)
{
    json_key(out, "status");
    json_text(out, kvc_status_name(error->status));
    json_key(out, "class");
    json_text(out, kvc_status_class(error->status));
    json_key(out, "offset");
    if (error->status == KVC_OK || error->offset == KVC_NO_OFFSET) {
        json_null(out);
    } else {
        json_number(out, error->offset);
    }
    const struct {
        const char *name;
        const char *text;
    } parts[] = {{"message", error->message},
                 {"field", error->field},
                 {"expected", error->expected},
                 {"found", error->found}};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        json_key(out, parts[i].name);
        if (parts[i].text[0] == '\0') {
            json_null(out);
        } else {
            json_text(out, parts[i].text);
        }
    }
}

static void on_difference(void *context, const char *field, const char *expected,
                          size_t expected_bytes, const char *found, size_t found_bytes)
{
    struct verdict *verdict = context;
    verdict->difference_count++;
    if (verdict->demands->json) {
        struct json_out *out = &verdict->json;
        json_open(out, '{');
        json_key(out, "field");
        json_text(out, field);
        json_key(out, "expected");
        json_raw(out, (struct json_piece){expected, expected_bytes});
        /* null is a value in the format: what is absent has no member here. */
        if (found != NULL) {
            json_key(out, "found");
            json_raw(out, (struct json_piece){found, found_bytes});
        }
        json_close(out, '}');
        return;
    }
    (void)fputs(verdict->difference_count == 1 ? "" : "; ", verdict->list);
    (void)put_safe_text(verdict->list, field, VALUE_COLUMNS);
    (void)fputs(": expected ", verdict->list);
    (void)put_safe(verdict->list, expected, expected_bytes, VALUE_COLUMNS);
    (void)fputs(", found ", verdict->list);
    if (found == NULL) {
        (void)fputs("nothing", verdict->list);
    } else {
        (void)put_safe(verdict->list, found, found_bytes, VALUE_COLUMNS);
    }
}

static int on_damage(void *context, const struct kvc_error *failure)
{
    struct verdict *verdict = context;
    verdict->damage_count++;
    if (verdict->demands->json) {
        json_open(&verdict->json, '{');
        put_error(&verdict->json, failure);
        json_close(&verdict->json, '}');
    } else {
        progress_clear(&verdict->progress);
        (void)refuse_error(verdict->path, failure);
    }
    return 0;
}

static void check_expectations(struct verdict *verdict, const struct kvc_reader *reader)
{
    const struct demands *demands = verdict->demands;
    for (size_t i = 0; i < demands->expectation_count; i++) {
        struct kvc_error error = KVC_ERROR_INIT;
        enum kvc_status status =
            expectation_check(&demands->expectations[i], reader, on_difference, verdict, &error);
        /* What could not be compared is worse than a difference, which must not hide it. */
        if (status != KVC_OK && (verdict->error.status == KVC_OK || status != KVC_E_IDENTITY)) {
            verdict->error = error;
        }
        if (status != KVC_OK && status != KVC_E_IDENTITY) {
            return;
        }
    }
}

static void examine(struct verdict *verdict)
{
    const struct demands *demands = verdict->demands;
    struct kvc_reader *reader = NULL;
    if (opening_open(&demands->opening, verdict->path, &reader, &verdict->error) != KVC_OK) {
        return;
    }
    if (kvc_reader_info(reader, &verdict->info, &verdict->error) == KVC_OK) {
        verdict->opened = true;
        check_expectations(verdict, reader);
    }
    if (verdict->error.status == KVC_OK) {
        struct kvc_work work = KVC_WORK_INIT;
        work.threads = demands->threads;
        work.progress = progress_update;
        work.progress_context = &verdict->progress;
        progress_start(&verdict->progress, "verify", verdict->path);
        (void)kvc_reader_verify(reader, &work, demands->all ? on_damage : NULL, verdict,
                                &verdict->error);
        progress_clear(&verdict->progress);
    }
    kvc_reader_free(reader);
}

static void print_json(const struct verdict *verdict, const char *list, size_t list_bytes)
{
    struct json_out out;
    struct json_piece piece = {list, list_bytes};
    struct json_piece nothing = {"", 0};
    json_start(&out, stdout);
    json_open(&out, '{');
    json_key(&out, "file");
    json_text(&out, verdict->path);
    json_key(&out, "ok");
    json_bool(&out, verdict->error.status == KVC_OK);
    json_key(&out, "root");
    if (verdict->opened) {
        char root[KVC_ROOT_TEXT_BYTES];
        kvc_root_format(verdict->info.root, root);
        json_text(&out, root);
    } else {
        json_null(&out);
    }
    json_key(&out, "tag_checked");
    json_bool(&out, verdict->opened && verdict->info.tag_checked);
    put_error(&out, &verdict->error);
    json_key(&out, "differences");
    json_open(&out, '[');
    json_raw(&out, verdict->difference_count > 0 ? piece : nothing);
    json_close(&out, ']');
    json_key(&out, "damages");
    json_open(&out, '[');
    json_raw(&out, verdict->damage_count > 0 ? piece : nothing);
    json_close(&out, ']');
    json_close(&out, '}');
    json_end(&out);
}

static void print_good(const struct verdict *verdict)
{
    char root[KVC_ROOT_TEXT_BYTES];
    char size[32];
    const struct kvc_info *info = &verdict->info;
    kvc_root_format(info->root, root);
    (void)put_safe_text(stdout, verdict->path, SAFE_WHOLE);
    (void)printf(": good, %s, ", root);
    if (info->tensor_count == 0) {
        (void)fputs("opaque payload", stdout);
    } else {
        (void)printf("%" PRIu32 " tensors", info->tensor_count);
    }
    (void)printf(", %s", short_size(info->payload_bytes, size));
    if (info->tag_checked) {
        (void)fputs(", tag made with this key", stdout);
    } else if (info->has_tag) {
        (void)fputs(", tag not checked", stdout);
    }
    (void)fputc('\n', stdout);
}

/* Prints the line on stderr. With --all each damage had its own already. */
static void print_refusal(const struct verdict *verdict, const char *list, size_t list_bytes)
{
    if (verdict->error.status == KVC_E_IDENTITY && !verdict->demands->json) {
        /* The library's message names as many fields as fit; here all of them are named. */
        (void)fputs("kvc: ", stderr);
        (void)put_safe_text(stderr, verdict->path, SAFE_WHOLE);
        (void)fprintf(
            stderr, ": %" PRIu64 " metadata %s from what is expected: ", verdict->difference_count,
            verdict->difference_count == 1 ? "field differs" : "fields differ");
        (void)fwrite(list, 1, list_bytes, stderr);
        (void)fputc('\n', stderr);
        (void)fflush(stderr);
    } else if (verdict->damage_count == 0 || verdict->demands->json) {
        (void)refuse_error(verdict->path, &verdict->error);
    }
}

static int verify_file(const struct demands *demands, const char *path)
{
    char *list = NULL;
    size_t list_bytes = 0;
    struct verdict verdict = {
        .path = path, .demands = demands, .error = KVC_ERROR_INIT, .info = KVC_INFO_INIT};
    verdict.list = open_memstream(&list, &list_bytes);
    if (verdict.list == NULL) {
        refuse(path, "no memory");
        return CODE_TROUBLE;
    }
    json_start(&verdict.json, verdict.list);
    examine(&verdict);
    int code = status_code(verdict.error.status);
    if (fclose(verdict.list) != 0) {
        refuse(path, "no memory for the list of differences and damages");
        code = CODE_TROUBLE;
    } else {
        if (demands->json) {
            print_json(&verdict, list, list_bytes);
        } else if (code == CODE_GOOD) {
            print_good(&verdict);
        }
        if (code != CODE_GOOD) {
            print_refusal(&verdict, list, list_bytes);
        }
    }
    free(list);
    return finish_output(code);
}

static int take_option(void *context, int id, const char *value)
{
    struct demands *demands = context;
    uint64_t number = 0;
    switch (id) {
    case OPT_ROOT:
        return opening_root(&demands->opening, "verify", value);
    case OPT_KEY_FILE:
        return opening_key(&demands->opening, "verify", value);
    case OPT_EXPECT:
        return expectation_parse(&demands->expectations[demands->expectation_count++], "verify",
                                 value);
    case OPT_THREADS:
        if (!parse_number(value, MOST_THREADS, &number)) {
            return usage_error("verify", "--threads %.100s: expected a number from 0 to %d", value,
                               MOST_THREADS);
        }
        demands->threads = (uint32_t)number;
        return CODE_GOOD;
    case OPT_ALL:
        demands->all = true;
        return CODE_GOOD;
    default:
        demands->json = true;
        return CODE_GOOD;
    }
}

int cmd_verify(int count, char **words)
{
    struct words line;
    struct demands demands = {.opening = OPENING_INIT};
    /* No more demands than words. */
    demands.expectations = calloc((size_t)count + 1, sizeof(*demands.expectations));
    if (demands.expectations == NULL) {
        refuse(NULL, "no memory");
        return CODE_TROUBLE;
    }
    words_start(&line, &verify_command, count, words);
    bool go_on = words_read(&line, take_option, &demands, 1, 0);
    int code = line.code;
    for (int i = 0; go_on && i < line.operand_count; i++) {
        code = worse_code(code, verify_file(&demands, words[i]));
    }
    opening_end(&demands.opening);
    free(demands.expectations);
    return code;
}
