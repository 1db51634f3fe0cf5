/* layers.c: the layers of manifest version 2, gathered by kind.
 * SPDX-License-Identifier: Apache-2.0 */
#include "layers.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "safe_text.h"

#define KIND_COLUMNS 40

static struct json_piece member(struct json_piece object, const char *name)
{
    struct json_piece value = {"", 0};
    (void)json_find(object, name, strlen(name), &value);
    return value;
}

static bool is_text(struct json_piece value, const char *text)
{
    size_t bytes = strlen(text);
    return value.bytes == bytes + 2 && memcmp(value.text + 1, text, bytes) == 0;
}

static void add_layer(struct layer_summary *layers, struct json_piece record)
{
    const struct json_piece kind = member(record, "kind");
    const struct json_piece window = member(record, "window");
    const struct json_piece state = member(record, "state");
    layers->count++;
    layers->empty += is_text(state, "empty");
    layers->uninitialized += is_text(state, "uninitialized");
    uint32_t at = 0;
    while (at < layers->group_count && !(json_same(layers->groups[at].kind, kind) &&
                                         json_same(layers->groups[at].window, window))) {
        at++;
    }
    if (at == LAYER_GROUPS) {
        layers->others++;
        return;
    }
    if (at == layers->group_count) {
        layers->groups[at] = (struct layer_group){kind, window, 0};
        layers->group_count++;
    }
    layers->groups[at].count++;
}

void layers_gather(struct json_piece manifest, const char *cache, struct layer_summary *ret_layers)
{
    struct json_members items;
    struct json_piece record;
    *ret_layers = (struct layer_summary){.count = 0};
    json_items_start(&items, member(manifest, "layers"));
    while (json_items_next(&items, &record)) {
        if (is_text(member(record, "cache"), cache)) {
            add_layer(ret_layers, record);
        }
    }
}

static bool has_window(const struct layer_group *group)
{
    return group->window.bytes > 0 && group->window.text[0] != 'n';
}

void layers_print(const struct layer_summary *layers)
{
    (void)printf("%" PRIu32 ":", layers->count);
    for (uint32_t i = 0; i < layers->group_count; i++) {
        const struct layer_group *group = &layers->groups[i];
        (void)printf("%s %" PRIu32 " ", i == 0 ? "" : ",", group->count);
        (void)put_safe(stdout, group->kind.text + 1, group->kind.bytes - 2, KIND_COLUMNS);
        if (has_window(group)) {
            (void)printf(" (window %.*s)", (int)group->window.bytes, group->window.text);
        }
    }
    if (layers->others > 0) {
        (void)printf(", %" PRIu32 " of other kinds or windows", layers->others);
    }
    const char *separator = "; ";
    if (layers->empty > 0) {
        (void)printf("%s%" PRIu32 " empty", separator, layers->empty);
        separator = ", ";
    }
    if (layers->uninitialized > 0) {
        (void)printf("%s%" PRIu32 " uninitialized", separator, layers->uninitialized);
    }
}

void layers_json(struct json_out *out, const char *cache, const struct layer_summary *layers)
{
    for (uint32_t i = 0; i < layers->group_count; i++) {
        json_open(out, '{');
        json_key(out, "cache");
        json_text(out, cache);
        json_key(out, "kind");
        json_raw(out, layers->groups[i].kind);
        json_key(out, "window");
        json_raw(out, layers->groups[i].window);
        json_key(out, "count");
        json_number(out, layers->groups[i].count);
        json_close(out, '}');
    }
}
