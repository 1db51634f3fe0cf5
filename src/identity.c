/* identity.c: compares a file's metadata with what a caller expects.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "canonical.h"
#include "decimal.h"
#include "reader.h"
#include "status.h"

#include "ban.h"

#define PATH_BYTES 1024
#define LIST_BYTES 480

/* Both texts are canonical, so their members come in one order and one walk through both finds
 * every difference. `pending` is a member of the file's object that was read and not used yet. */
struct level {
    struct kvci_json_token pending;
    bool has_pending;
    bool found_end;
    size_t path_bytes;
};

struct walk {
    struct kvci_json expected;
    struct kvci_json found;
    const uint8_t *expected_text;
    const uint8_t *found_text;
    struct level levels[KVCI_JSON_MAX_DEPTH + 1];
    unsigned depth;
    char path[PATH_BYTES];
    kvc_difference_fn on_difference;
    void *context;
    uint64_t differences;
    char list[LIST_BYTES];
    size_t list_bytes;
    bool list_full;
    struct kvc_error first; /* its field, expected and found */
};

/* Bytes of a key's spelling, at most `room`, that end with a whole character or escape. */
static size_t whole_prefix(const struct kvci_json_token *key, size_t room)
{
    size_t at = 0;
    while (at < key->bytes) {
        uint32_t point = 0;
        size_t step = 1;
        if (key->text[at] == '\\') {
            step = kvci_json_escape(key->text + at, key->bytes - at, &point);
        } else {
            while (at + step < key->bytes && (key->text[at + step] & 0xC0) == 0x80) {
                step++;
            }
        }
        if (at + step > room) {
            break;
        }
        at += step;
    }
    return at;
}

static void push_path(struct walk *walk, const struct kvci_json_token *key)
{
    size_t at = walk->levels[walk->depth].path_bytes;
    size_t room = sizeof(walk->path) - 1 - at;
    if (at > 0 && room > 0) {
        walk->path[at++] = '.';
        room--;
    }
    uint8_t decoded[PATH_BYTES];
    size_t bytes = kvci_json_decode(key->text, whole_prefix(key, room), decoded);
    kvci_copy_text(walk->path + at, room + 1, (const char *)decoded, bytes);
}

static void list_difference(struct walk *walk, const char *expected, size_t expected_bytes,
                            const char *found, size_t found_bytes)
{
    if (walk->list_full) {
        return;
    }
    char entry[PATH_BYTES];
    if (found == NULL) {
        found = "nothing";
        found_bytes = strlen(found);
    }
    int bytes = snprintf(
        entry, sizeof(entry), "%s%.*s: expected %.*s, found %.*s", walk->list_bytes > 0 ? "; " : "",
        kvci_shown(walk->path, strlen(walk->path)), walk->path,
        kvci_shown(expected, expected_bytes), expected, kvci_shown(found, found_bytes), found);
    if (bytes < 0 || (size_t)bytes >= sizeof(walk->list) - walk->list_bytes) {
        walk->list_full = true;
        return;
    }
    memcpy(walk->list + walk->list_bytes, entry, (size_t)bytes + 1);
    walk->list_bytes += (size_t)bytes;
}

/* `found_bytes` is 0 when the file has no such member. */
static void differ(struct walk *walk, size_t expected_offset, size_t expected_bytes,
                   size_t found_offset, size_t found_bytes)
{
    const char *expected = (const char *)walk->expected_text + expected_offset;
    const char *found = found_bytes > 0 ? (const char *)walk->found_text + found_offset : NULL;
    if (walk->differences == 0) {
        kvci_error_field(&walk->first, walk->path, strlen(walk->path));
        kvci_copy_text(walk->first.expected, sizeof(walk->first.expected), expected,
                       expected_bytes);
        kvci_copy_text(walk->first.found, sizeof(walk->first.found), found != NULL ? found : "",
                       found_bytes);
    }
    walk->differences++;
    list_difference(walk, expected, expected_bytes, found, found_bytes);
    if (walk->on_difference != NULL) {
        walk->on_difference(walk->context, walk->path, expected, expected_bytes, found,
                            found_bytes);
    }
}

static bool is_number(enum kvci_json_type type)
{
    return type == KVCI_JSON_INTEGER || type == KVCI_JSON_FLOAT;
}

static bool scalars_equal(const struct kvci_json_token *a, const struct kvci_json_token *b)
{
    if (is_number(a->type) && is_number(b->type)) {
        if (a->type == KVCI_JSON_INTEGER && b->type == KVCI_JSON_INTEGER) {
            return a->integer == b->integer;
        }
        double difference =
            kvci_decimal_value(a->text, a->bytes) - kvci_decimal_value(b->text, b->bytes);
        return difference >= 0.0 && difference <= 0.0;
    }
    if (a->type != b->type) {
        return false;
    }
    if (a->type == KVCI_JSON_STRING || a->type == KVCI_JSON_KEY) {
        return a->bytes == b->bytes && memcmp(a->text, b->text, a->bytes) == 0;
    }
    return true;
}

/* Compares two whole values, token by token; scanners stand behind their first tokens. */
static bool values_equal(const struct walk *walk, const struct kvci_json_token *expected,
                         size_t expected_end, const struct kvci_json_token *found, size_t found_end)
{
    struct kvci_json a;
    struct kvci_json b;
    struct kvci_json_token x;
    struct kvci_json_token y;
    kvci_json_init(&a, walk->expected_text + expected->offset, expected_end - expected->offset,
                   KVCI_JSON_STRICT, UINT64_MAX);
    kvci_json_init(&b, walk->found_text + found->offset, found_end - found->offset,
                   KVCI_JSON_STRICT, UINT64_MAX);
    do {
        if (!kvci_json_next(&a, &x) || !kvci_json_next(&b, &y) || !scalars_equal(&x, &y)) {
            return false;
        }
    } while (x.type != KVCI_JSON_END);
    return true;
}

/* Moves through the file's object to the member of the key's name; false when there is none. */
static bool find_key(struct walk *walk, const struct kvci_json_token *key)
{
    struct level *level = &walk->levels[walk->depth];
    struct kvci_json_token value;
    size_t end = 0;
    while (!level->found_end) {
        if (!level->has_pending) {
            if (!kvci_json_next(&walk->found, &level->pending) ||
                level->pending.type != KVCI_JSON_KEY) {
                level->found_end = true;
                break;
            }
            level->has_pending = true;
        }
        int order =
            kvci_json_compare(level->pending.text, level->pending.bytes, key->text, key->bytes);
        if (order > 0) {
            return false;
        }
        level->has_pending = false;
        if (order == 0) {
            return true;
        }
        if (!kvci_json_next(&walk->found, &value) || !kvci_json_skip(&walk->found, &value, &end)) {
            level->found_end = true;
        }
    }
    return false;
}

/* Passes over what is left of the file's object, so that both scanners leave it together. */
static void leave_object(struct walk *walk)
{
    struct level *level = &walk->levels[walk->depth];
    struct kvci_json_token token;
    size_t end = 0;
    while (!level->found_end) {
        if (!level->has_pending &&
            (!kvci_json_next(&walk->found, &token) || token.type != KVCI_JSON_KEY)) {
            break;
        }
        level->has_pending = false;
        if (!kvci_json_next(&walk->found, &token) || !kvci_json_skip(&walk->found, &token, &end)) {
            break;
        }
    }
    if (walk->depth > 0) {
        walk->depth--;
    }
}

static void take_member(struct walk *walk, const struct kvci_json_token *key)
{
    struct kvci_json_token expected;
    struct kvci_json_token found;
    size_t expected_end = 0;
    size_t found_end = 0;
    push_path(walk, key);
    bool present = find_key(walk, key);
    if (!kvci_json_next(&walk->expected, &expected)) {
        return;
    }
    if (!present) {
        if (kvci_json_skip(&walk->expected, &expected, &expected_end)) {
            differ(walk, expected.offset, expected_end - expected.offset, 0, 0);
        }
        return;
    }
    if (!kvci_json_next(&walk->found, &found)) {
        return;
    }
    if (expected.type == KVCI_JSON_OBJECT && found.type == KVCI_JSON_OBJECT) {
        struct level next = {.path_bytes = strlen(walk->path)};
        walk->levels[++walk->depth] = next;
        return;
    }
    if (kvci_json_skip(&walk->expected, &expected, &expected_end) &&
        kvci_json_skip(&walk->found, &found, &found_end) &&
        !values_equal(walk, &expected, expected_end, &found, found_end)) {
        differ(walk, expected.offset, expected_end - expected.offset, found.offset,
               found_end - found.offset);
    }
}

static void walk_both(struct walk *walk)
{
    struct kvci_json_token token;
    (void)kvci_json_next(&walk->expected, &token);
    (void)kvci_json_next(&walk->found, &token);
    while (kvci_json_next(&walk->expected, &token) && token.type != KVCI_JSON_END) {
        if (token.type == KVCI_JSON_KEY) {
            take_member(walk, &token);
        } else if (walk->depth == 0) {
            return;
        } else {
            leave_object(walk);
        }
    }
}

static enum kvc_status conclude(const struct walk *walk, struct kvc_error *error)
{
    if (walk->differences == 0) {
        return KVC_OK;
    }
    (void)kvci_fail(error, KVC_E_IDENTITY, KVC_NO_OFFSET,
                    "the file is not the one for this use: %llu metadata field%s from what "
                    "is expected: %s%s",
                    (unsigned long long)walk->differences,
                    walk->differences == 1 ? " differs" : "s differ", walk->list,
                    walk->list_full ? "; and more" : "");
    if (error != NULL && error->size == sizeof(*error)) {
        error->difference_count = walk->differences;
        memcpy(error->field, walk->first.field, sizeof(error->field));
        memcpy(error->expected, walk->first.expected, sizeof(error->expected));
        memcpy(error->found, walk->first.found, sizeof(error->found));
    }
    return KVC_E_IDENTITY;
}

enum kvc_status kvc_reader_identity(const struct kvc_reader *reader, const char *expected,
                                    size_t expected_bytes, kvc_difference_fn on_difference,
                                    void *difference_context, struct kvc_error *error)
{
    uint8_t *text = NULL;
    size_t text_bytes = 0;
    const char *problem = NULL;
    size_t problem_offset = 0;
    if (reader == NULL || expected == NULL) {
        return kvci_fail(error, KVC_E_USAGE, KVC_NO_OFFSET, "reader and expected must not be NULL");
    }
    enum kvci_canonical_result result =
        kvci_canonical_write(expected, expected_bytes, UINT64_MAX, reader->allocator, &text,
                             &text_bytes, &problem, &problem_offset);
    if (result == KVCI_CANONICAL_NO_MEMORY) {
        return kvci_fail_memory(error, expected_bytes);
    }
    if (result == KVCI_CANONICAL_REFUSED) {
        return kvci_fail(error, KVC_E_JSON, problem_offset,
                         "the expected identity is not JSON: %s at byte %zu of it", problem,
                         problem_offset);
    }
    enum kvc_status status = KVC_OK;
    if (text[0] != '{') {
        status = kvci_fail(error, KVC_E_SCHEMA, 0, "the expected identity is not a JSON object");
        goto out;
    }
    struct walk walk = {.expected_text = text,
                        .found_text = reader->metadata.text,
                        .on_difference = on_difference,
                        .context = difference_context,
                        .first = KVC_ERROR_INIT};
    kvci_json_init(&walk.expected, text, text_bytes, KVCI_JSON_STRICT, UINT64_MAX);
    kvci_json_init(&walk.found, reader->metadata.text, reader->metadata.bytes, KVCI_JSON_STRICT,
                   UINT64_MAX);
    walk_both(&walk);
    status = conclude(&walk, error);
out:
    kvci_free(reader->allocator, text);
    return status;
}
