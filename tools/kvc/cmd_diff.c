/* cmd_diff.c: `kvc diff` names the metadata fields and the tensors in which two files differ.
 * SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvc.h"

#include "commands.h"
#include "json_text.h"
#include "options.h"
#include "progress.h"
#include "records.h"
#include "report.h"
#include "safe_text.h"

#define VALUE_COLUMNS 120

/* Hexadecimal digits of a digest that are shown: enough to tell two apart. */
#define DIGEST_DIGITS 16

#define PIECE_BYTES (1U << 20)
#define MOST_RANGES 8

enum { OPT_WHERE = 1 };

static const struct option_entry diff_options[] = {
    {OPT_WHERE, 0, "where", NULL,
     "read the tensors that differ, proven, and list the\nbyte ranges in which they do"},
    {0},
};

const struct command diff_command = {
    .name = "diff",
    .operands = "A B",
    .line = "name the fields and tensors in which two files differ",
    .about = "Compares two files by metadata and tensor digests, without reading the payloads.\n"
             "Alignment and tags are not content and not compared. Prints nothing and ends with 0\n"
             "when the content is the same; ends with 1 when it differs.",
    .options = diff_options,
    .examples = "  kvc diff monday.kvc tuesday.kvc\n"
                "  kvc diff --where before.kvc after.kvc",
    .run = cmd_diff,
};

struct side {
    const char *path;
    struct kvc_reader *reader;
    struct kvc_info info;
    struct json_piece metadata;
    uint32_t stored_count;
    struct records records;
};

struct comparison {
    struct side a;
    struct side b;
    bool where;
    bool reversed; /* fields: the expected value is A's */
    int code;
    struct progress progress;
    uint64_t done_bytes;
};

static void put_both(const char *what, const char *name, size_t name_bytes)
{
    (void)printf("%s ", what);
    (void)put_safe(stdout, name, name_bytes, VALUE_COLUMNS);
    (void)fputs(": ", stdout);
}

static void put_member(struct json_piece value)
{
    (void)put_safe(stdout, value.text, value.bytes, VALUE_COLUMNS);
}

/* ---- Fields -------------------------------------------------------------------------------- */

/* The tensors have lines of their own, with names instead of one long array. */
static bool is_tensor_list(const char *field)
{
    return strcmp(field, "tensor_manifest.tensors") == 0;
}

/* So have the layers, with the members that differ. */
static bool is_layer_list(const char *field, const char *a, const char *b)
{
    return strcmp(field, "tensor_manifest.layers") == 0 && a[0] == '[' && b[0] == '[';
}

static void on_difference(void *context, const char *field, const char *expected,
                          size_t expected_bytes, const char *found, size_t found_bytes)
{
    struct comparison *comparison = context;
    bool only_in_one = found == NULL;
    comparison->code = worse_code(comparison->code, CODE_BAD);
    /* The second direction adds only what the first one could not see. */
    if (is_tensor_list(field) || (comparison->reversed && !only_in_one)) {
        return;
    }
    if (!only_in_one && is_layer_list(field, found, expected)) {
        records_compare(field, (struct json_piece){found, found_bytes},
                        (struct json_piece){expected, expected_bytes});
        return;
    }
    put_both("field", field, strlen(field));
    if (only_in_one) {
        (void)printf("only in %c: ", comparison->reversed ? 'A' : 'B');
        put_member((struct json_piece){expected, expected_bytes});
    } else {
        put_member((struct json_piece){found, found_bytes});
        (void)fputs(" in A, ", stdout);
        put_member((struct json_piece){expected, expected_bytes});
        (void)fputs(" in B", stdout);
    }
    (void)fputc('\n', stdout);
}

/* Numbers compare by value, but 10000 and 10000.0 give different roots. */
static void compare_spelling(struct comparison *comparison)
{
    struct json_members members;
    struct json_piece name;
    struct json_piece in_a;
    struct json_piece in_b;
    json_members_start(&members, comparison->a.metadata);
    while (json_members_next(&members, &name, &in_a)) {
        struct json_members others;
        struct json_piece other_name = {"", 0};
        bool found = false;
        json_members_start(&others, comparison->b.metadata);
        while (!found && json_members_next(&others, &other_name, &in_b)) {
            found = other_name.bytes == name.bytes &&
                    memcmp(other_name.text, name.text, name.bytes) == 0;
        }
        if (found && (in_a.bytes != in_b.bytes || memcmp(in_a.text, in_b.text, in_a.bytes) != 0)) {
            put_both("field", name.text + 1, name.bytes - 2);
            put_member(in_a);
            (void)fputs(" in A, ", stdout);
            put_member(in_b);
            (void)fputs(" in B: equal by value, spelled differently\n", stdout);
        }
    }
}

static void compare_fields(struct comparison *comparison)
{
    struct kvc_error error = KVC_ERROR_INIT;
    const struct side *a = &comparison->a;
    const struct side *b = &comparison->b;
    enum kvc_status status = kvc_reader_identity(a->reader, b->metadata.text, b->metadata.bytes,
                                                 on_difference, comparison, &error);
    if (status == KVC_OK || status == KVC_E_IDENTITY) {
        comparison->reversed = true;
        status = kvc_reader_identity(b->reader, a->metadata.text, a->metadata.bytes, on_difference,
                                     comparison, &error);
    }
    if (status != KVC_OK && status != KVC_E_IDENTITY) {
        comparison->code = worse_code(comparison->code, refuse_error(a->path, &error));
    }
}

/* ---- Tensors ------------------------------------------------------------------------------- */

/* The places in which two tensors differ. */
struct places {
    uint64_t first[MOST_RANGES];
    uint64_t last[MOST_RANGES];
    uint64_t range_count;
    uint64_t byte_count;
    uint64_t next; /* the byte that would extend the last range */
};

static void note_byte(struct places *places, uint64_t at)
{
    if (places->range_count == 0 || at != places->next) {
        places->range_count++;
        if (places->range_count <= MOST_RANGES) {
            places->first[places->range_count - 1] = at;
        }
    }
    if (places->range_count <= MOST_RANGES) {
        places->last[places->range_count - 1] = at;
    }
    places->next = at + 1;
    places->byte_count++;
}

static enum kvc_status compare_piece(const struct comparison *comparison, const uint32_t index[2],
                                     uint64_t at, size_t bytes, char *buffer, struct places *places,
                                     int *ret_code)
{
    struct kvc_error error = KVC_ERROR_INIT;
    char *other = buffer + PIECE_BYTES;
    enum kvc_status status =
        kvc_reader_read(comparison->a.reader, index[0], at, bytes, NULL, buffer, &error);
    if (status != KVC_OK) {
        *ret_code = refuse_error(comparison->a.path, &error);
        return status;
    }
    status = kvc_reader_read(comparison->b.reader, index[1], at, bytes, NULL, other, &error);
    if (status != KVC_OK) {
        *ret_code = refuse_error(comparison->b.path, &error);
        return status;
    }
    if (memcmp(buffer, other, bytes) != 0) {
        for (size_t i = 0; i < bytes; i++) {
            if (buffer[i] != other[i]) {
                note_byte(places, at + i);
            }
        }
    }
    return KVC_OK;
}

/* Prints the position of an element in its tensor, for people who think in heads and tokens. */
static void put_element(const struct kvc_tensor *tensor, uint64_t at)
{
    uint64_t elements = 1;
    for (uint32_t i = 0; i < tensor->rank && i < 8; i++) {
        elements *= tensor->shape[i];
    }
    if (tensor->rank < 2 || elements == 0 || tensor->tensor_bytes % elements != 0) {
        return;
    }
    uint64_t element = at / (tensor->tensor_bytes / elements);
    (void)fputs("; first in element [", stdout);
    for (uint32_t i = 0; i < tensor->rank && i < 8; i++) {
        elements /= tensor->shape[i];
        (void)printf("%s%" PRIu64, i == 0 ? "" : ", ", element / elements);
        element %= elements;
    }
    (void)fputc(']', stdout);
}

static void put_places(const struct places *places, const struct kvc_tensor *a,
                       const struct kvc_tensor *b)
{
    char count[32];
    (void)printf("  %s %s, in %s ", grouped(places->byte_count, count),
                 places->byte_count == 1 ? "byte differs" : "bytes differ",
                 places->range_count == 1 ? "bytes" : "ranges");
    for (uint64_t i = 0; i < places->range_count && i < MOST_RANGES; i++) {
        (void)printf("%s%" PRIu64, i == 0 ? "" : ", ", places->first[i]);
        if (places->last[i] != places->first[i]) {
            (void)printf("-%" PRIu64, places->last[i]);
        }
    }
    if (places->range_count > MOST_RANGES) {
        (void)printf(", … (%s ranges)", grouped(places->range_count, count));
    }
    bool same_shape = a->rank == b->rank && memcmp(a->shape, b->shape, sizeof(a->shape)) == 0;
    if (places->range_count > 0 && same_shape) {
        put_element(a, places->first[0]);
    }
    (void)fputc('\n', stdout);
}

static void find_places(struct comparison *comparison, const uint32_t index[2],
                        const struct kvc_tensor *a, const struct kvc_tensor *b)
{
    struct places places = {.range_count = 0};
    uint64_t common = a->tensor_bytes < b->tensor_bytes ? a->tensor_bytes : b->tensor_bytes;
    int code = CODE_GOOD;
    char *buffer = malloc(2 * (size_t)PIECE_BYTES);
    if (buffer == NULL) {
        refuse(comparison->a.path, "no memory for a piece of the tensors");
        comparison->code = CODE_TROUBLE;
        return;
    }
    for (uint64_t at = 0; at < common && code == CODE_GOOD; at += PIECE_BYTES) {
        size_t bytes = common - at < PIECE_BYTES ? (size_t)(common - at) : PIECE_BYTES;
        if (compare_piece(comparison, index, at, bytes, buffer, &places, &code) == KVC_OK) {
            (void)progress_update(&comparison->progress, comparison->done_bytes + at,
                                  comparison->a.info.payload_bytes);
        }
    }
    free(buffer);
    progress_clear(&comparison->progress);
    comparison->code = worse_code(comparison->code, code);
    if (code != CODE_GOOD) {
        return;
    }
    if (places.byte_count > 0) {
        put_places(&places, a, b);
    }
    if (a->tensor_bytes != b->tensor_bytes) {
        (void)printf("  from byte %" PRIu64 " on only in %c\n", common,
                     a->tensor_bytes > b->tensor_bytes ? 'A' : 'B');
    }
}

static void put_tensor_name(const struct kvc_tensor *tensor)
{
    if (tensor->name[0] == '\0') {
        (void)fputs("payload: ", stdout);
    } else {
        put_both("tensor", tensor->name, strlen(tensor->name));
    }
}

static void put_form(const struct kvc_tensor *tensor)
{
    (void)printf("%s [", tensor->dtype);
    for (uint32_t i = 0; i < tensor->rank && i < 8; i++) {
        (void)printf("%s%" PRIu64, i == 0 ? "" : ", ", tensor->shape[i]);
    }
    (void)fputc(']', stdout);
}

static void compare_pair(struct comparison *comparison, const uint32_t index[2],
                         const struct kvc_tensor *a, const struct kvc_tensor *b)
{
    char digest[2 * KVC_DIGEST_BYTES + 1];
    bool same_form = strcmp(a->dtype, b->dtype) == 0 && a->rank == b->rank &&
                     memcmp(a->shape, b->shape, sizeof(a->shape)) == 0;
    bool same_bytes = memcmp(a->digest, b->digest, KVC_DIGEST_BYTES) == 0;
    progress_clear(&comparison->progress);
    if (records_differ(&comparison->a.records, index[0], &comparison->b.records, index[1],
                       a->name)) {
        comparison->code = worse_code(comparison->code, CODE_BAD);
    }
    if (same_form && same_bytes) {
        return;
    }
    comparison->code = worse_code(comparison->code, CODE_BAD);
    put_tensor_name(a);
    if (!same_form) {
        put_form(a);
        (void)fputs(" in A, ", stdout);
        put_form(b);
        (void)printf(" in B%s\n", same_bytes ? ", the same bytes" : "");
    } else {
        (void)printf("digest %.*s… in A, ", DIGEST_DIGITS,
                     hex_text(a->digest, KVC_DIGEST_BYTES, digest));
        (void)printf("%.*s… in B\n", DIGEST_DIGITS, hex_text(b->digest, KVC_DIGEST_BYTES, digest));
    }
    if (comparison->where && !same_bytes) {
        find_places(comparison, index, a, b);
    }
}

/* Finds the tensor of the same name; files of one kind have it at the same index. */
static enum kvc_status find_partner(const struct side *side, const struct kvc_tensor *tensor,
                                    uint32_t guess, uint32_t *ret_index,
                                    struct kvc_tensor *ret_partner, struct kvc_error *error)
{
    enum kvc_status status = KVC_OK;
    *ret_index = guess;
    if (guess < side->stored_count) {
        status = kvc_reader_tensor(side->reader, guess, ret_partner, error);
        if (status != KVC_OK || strcmp(ret_partner->name, tensor->name) == 0) {
            return status;
        }
    }
    status = kvc_reader_find(side->reader, tensor->name, strlen(tensor->name), ret_index, error);
    return status == KVC_OK ? kvc_reader_tensor(side->reader, *ret_index, ret_partner, error)
                            : status;
}

static void compare_tensors(struct comparison *comparison, const struct side *from,
                            const struct side *to, bool pairs)
{
    for (uint32_t i = 0; i < from->stored_count; i++) {
        struct kvc_error error = KVC_ERROR_INIT;
        struct kvc_tensor tensor = KVC_TENSOR_INIT;
        struct kvc_tensor partner = KVC_TENSOR_INIT;
        uint32_t index[2] = {i, 0};
        enum kvc_status status = kvc_reader_tensor(from->reader, i, &tensor, &error);
        if (status == KVC_OK) {
            status = find_partner(to, &tensor, i, &index[1], &partner, &error);
        }
        if (status == KVC_E_NOT_FOUND) {
            comparison->code = worse_code(comparison->code, CODE_BAD);
            progress_clear(&comparison->progress);
            put_tensor_name(&tensor);
            (void)printf("only in %c\n", pairs ? 'A' : 'B');
        } else if (status != KVC_OK) {
            comparison->code = worse_code(comparison->code, refuse_error(from->path, &error));
            return;
        } else if (pairs) {
            compare_pair(comparison, index, &tensor, &partner);
        }
        comparison->done_bytes += tensor.tensor_bytes;
    }
}

/* ---- The command --------------------------------------------------------------------------- */

static int open_side(struct side *side, const char *path)
{
    struct kvc_error error = KVC_ERROR_INIT;
    struct kvc_info info = KVC_INFO_INIT;
    uint64_t metadata_bytes = 0;
    side->path = path;
    if (kvc_reader_open_path(path, NULL, &side->reader, &error) != KVC_OK ||
        kvc_reader_info(side->reader, &info, &error) != KVC_OK) {
        return refuse_error(path, &error);
    }
    side->info = info;
    side->stored_count = info.manifest_version == 0 ? 1 : info.tensor_count;
    side->metadata.text = kvc_reader_metadata(side->reader, &metadata_bytes);
    side->metadata.bytes = (size_t)metadata_bytes;
    if (info.manifest_version == 2 &&
        !records_load(side->metadata, info.tensor_count, &side->records)) {
        refuse(path, "no memory for the records of the tensors");
        return CODE_TROUBLE;
    }
    return CODE_GOOD;
}

static void put_side(char letter, const struct side *side)
{
    char root[KVC_ROOT_TEXT_BYTES];
    kvc_root_format(side->info.root, root);
    (void)printf("%c  %s  ", letter, root);
    (void)put_safe_text(stdout, side->path, SAFE_WHOLE);
    (void)fputc('\n', stdout);
}

static void compare(struct comparison *comparison)
{
    struct side *a = &comparison->a;
    struct side *b = &comparison->b;
    if (memcmp(a->info.root, b->info.root, KVC_DIGEST_BYTES) == 0) {
        return;
    }
    put_side('A', a);
    put_side('B', b);
    compare_fields(comparison);
    progress_start(&comparison->progress, "compare", a->path);
    compare_tensors(comparison, a, b, true);
    compare_tensors(comparison, b, a, false);
    progress_clear(&comparison->progress);
    if (comparison->code == CODE_GOOD) {
        compare_spelling(comparison);
    }
    comparison->code = worse_code(comparison->code, CODE_BAD);
}

static int take_option(void *context, int id, const char *value)
{
    struct comparison *comparison = context;
    (void)id;
    (void)value;
    comparison->where = true;
    return CODE_GOOD;
}

int cmd_diff(int count, char **words)
{
    struct words line;
    struct comparison comparison = {.code = CODE_GOOD};
    words_start(&line, &diff_command, count, words);
    if (!words_read(&line, take_option, &comparison, 2, 2)) {
        return line.code;
    }
    comparison.code = open_side(&comparison.a, words[0]);
    comparison.code = worse_code(comparison.code, open_side(&comparison.b, words[1]));
    if (comparison.code == CODE_GOOD) {
        compare(&comparison);
    }
    free(comparison.a.records.pieces);
    free(comparison.b.records.pieces);
    kvc_reader_free(comparison.a.reader);
    kvc_reader_free(comparison.b.reader);
    return comparison.code;
}
