/* test_manifest2.c: each rule of manifest version 2, of the names of format 1.1 and of the feature
 * bits is kept.
 * SPDX-License-Identifier: Apache-2.0 */
#include "header.h"
#include "root.h"
#include "sheets.h"

#define MOST_PARTS 32
/* ---- What the rules refuse ----------------------------------------------------------------- */

/* Behind `anchor`, `from` becomes `to`. NULL as `path` stands for the manifest as it is. */
struct change {
    const char *anchor;
    const char *from;
    const char *to;
    enum kvc_status status;
    const char *path;
};

#define SCHEMA KVC_E_SCHEMA
#define GEOMETRY KVC_E_GEOMETRY
#define L(n) "\"class\":\"L" #n "\""
#define T(name) "\"name\":\"" name "\""
#define AT_L(n, rest) "tensor_manifest.layers[" #n "]" rest
#define AT_T(n, rest) "tensor_manifest.tensors[" #n "]" rest

static const struct change changes[] = {
    {"", "\"dtype\":null", "\"dtype\":\"u64\"", SCHEMA, "dtype"},
    {"", "\"dtype\":null", "\"dtype\":\"f64\"", KVC_OK, NULL},
    {"", "\"head_dim\":null", "\"head_dim\":0", SCHEMA, "head_dim"},
    {"", "\"kv_heads\":null", "\"kv_heads\":true", SCHEMA, "kv_heads"},
    {"", "\"layers\":6", "\"layers\":null", SCHEMA, "layers"},
    {"", "\"layers\":6", "\"layers\":5", GEOMETRY, "tensor_manifest.layers"},
    {"", "\"layers\":6", "\"layers\":7", GEOMETRY, "tensor_manifest.layers"},
    {"", "\"sequence_length\":3", "\"sequence_length\":4", GEOMETRY, "tensor_manifest.layers"},
    {"", "\"sequence_length\":3", "\"sequence_length\":9", GEOMETRY, "tensor_manifest.layers"},
    {"", "\"version\":2", "\"version\":3", KVC_E_MANIFEST, "tensor_manifest.version"},
    {"", "\"version\":2", "\"version\":2.0", SCHEMA, "dtype"},
    {"", "\"batch_size\":1", "\"batch_size\":0", SCHEMA, "tensor_manifest.batch_size"},
    {"", "\"batch_size\":1", "\"batch_size\":2", GEOMETRY, AT_T(0, ".shape[0]")},
    {"", "\"byte_order\":\"little\"", "\"byte_order\":\"big\"", SCHEMA,
     "tensor_manifest.byte_order"},
    {"", "\"cache_class\":\"C\"", "\"cache_class\":\"\"", SCHEMA, "tensor_manifest.cache_class"},
    {"", "\"cache_class\":\"C\",", "", SCHEMA, "tensor_manifest.cache_class"},
    {"", "\"cache_class\":\"C\",", "\"cache_class\":\"C\",\"cache\":1,", SCHEMA,
     "tensor_manifest.cache"},
    {"", "\"version\":\"1\"", "\"version\":1", SCHEMA, "tensor_manifest.framework.version"},
    {"", ",\"version\":\"1\"", "", SCHEMA, "tensor_manifest.framework.version"},
    {"", ",\"version\":\"1\"", ",\"version\":\"1\",\"x\":1", SCHEMA, "tensor_manifest.framework.x"},
    {"", "{\"name\":\"test\",\"version\":\"1\"}", "\"test\"", SCHEMA, "tensor_manifest.framework"},
    {"", "{\"a\":[1.5,null]}", "[1.5,null]", SCHEMA, "tensor_manifest.info"},
    {"", "\"state_schema\":\"test/s\"", "\"state_schema\":null", SCHEMA,
     "tensor_manifest.state_schema"},
    {"", "\"wrapper\":\"encoder_decoder\"", "\"wrapper\":\"none\"", GEOMETRY,
     "tensor_manifest.wrapper"},
    {"", "\"wrapper\":\"encoder_decoder\"", "\"wrapper\":\"other\"", SCHEMA,
     "tensor_manifest.wrapper"},

    {L(0), "\"aliases\":{}", "\"aliases\":[]", SCHEMA, AT_L(0, ".aliases")},
    {L(0), "\"aliases\":{}", "\"aliases\":{\"queries\":\"key\"}", SCHEMA, AT_L(0, ".aliases")},
    {L(0), "\"aliases\":{}", "\"aliases\":{\"value\":\"queries\"}", SCHEMA,
     AT_L(0, ".aliases.value")},
    {L(0), "\"aliases\":{}", "\"aliases\":{\"value\":\"key\"}", GEOMETRY,
     AT_L(0, ".aliases.value")},
    {L(0), "\"aliases\":{}", "\"aliases\":{\"key_zero\":\"key\"}", GEOMETRY,
     AT_L(0, ".aliases.key_zero")},
    {L(0), "\"aliases\":{}", "\"aliases\":{\"token_ids\":\"key\"}", GEOMETRY,
     AT_L(0, ".aliases.token_ids")},
    {L(1), "{\"value\":\"key\"}", "{\"value\":\"value\"}", GEOMETRY, AT_L(1, ".aliases.value")},
    {L(1), "{\"value\":\"key\"}", "{}", GEOMETRY, AT_L(1, "")},
    {L(2), "\"aliases\":{}", "\"aliases\":{\"conv_state\":\"key\"}", GEOMETRY,
     AT_L(2, ".aliases.conv_state")},
    {L(0), "{},\"cache\":\"self\",\"flags\":{\"f\":true},\"kind\":\"full\"",
     "{\"conv_state\":\"key\"},\"cache\":\"self\",\"flags\":{},\"kind\":\"linear_full\"", GEOMETRY,
     AT_L(0, ".aliases.conv_state")},
    {L(4), "\"aliases\":{}", "\"aliases\":{\"value\":\"key\"}", GEOMETRY, AT_L(4, ".aliases")},
    {L(5), "\"aliases\":{}", "\"aliases\":{\"value\":\"key\"}", GEOMETRY, AT_L(5, ".aliases")},
    {L(0), "\"cache\":\"self\"", "\"cache\":\"other\"", SCHEMA, AT_L(0, ".cache")},
    {L(0), "\"cache\":\"self\"", "\"cache\":\"cross\"", GEOMETRY, AT_L(0, ".cache")},
    {L(6), "\"cache\":\"cross\"", "\"cache\":\"self\"", GEOMETRY, AT_L(6, ".layer")},
    {L(7), "\"cache\":\"cross\"", "\"cache\":\"self\"", GEOMETRY, AT_L(7, ".cache")},
    {"", L(3), "\"class\":7", SCHEMA, AT_L(3, ".class")},
    {L(3), "\"flags\":{\"f\":true}", "\"flags\":null", SCHEMA, AT_L(3, ".flags")},
    {L(3), "\"flags\":{\"f\":true},", "", SCHEMA, AT_L(3, ".flags")},
    {L(3), "\"flags\":{\"f\":true}", "\"flags\":{},\"extra\":1", SCHEMA, AT_L(3, ".extra")},
    {L(0), "\"kind\":\"full\"", "\"kind\":\"fuller\"", SCHEMA, AT_L(0, ".kind")},
    {L(0), "\"kind\":\"full\"", "\"kind\":\"sliding\"", GEOMETRY, AT_L(0, ".window")},
    {L(0), "\"kind\":\"full\"", "\"kind\":\"linear_full\"", KVC_OK, NULL},
    {L(0), "\"kind\":\"full\"", "\"kind\":\"linear\"", GEOMETRY, AT_L(0, ".stored_tokens")},
    {L(0), "\"kind\":\"full\"", "\"kind\":\"quantized\"", GEOMETRY, AT_L(0, "")},
    {L(2), "\"kind\":\"linear_full\"", "\"kind\":\"full\"", GEOMETRY, AT_T(5, ".role")},
    {L(1), "\"layer\":1", "\"layer\":2", GEOMETRY, AT_L(1, ".layer")},
    {L(1), "\"layer\":1", "\"layer\":32768", SCHEMA, AT_L(1, ".layer")},
    {L(7), "\"layer\":1", "\"layer\":7", GEOMETRY, AT_L(7, ".layer")},
    {L(4), "\"positions_seen\":2", "\"positions_seen\":2147483648", SCHEMA,
     AT_L(4, ".positions_seen")},
    {L(5), "\"positions_seen\":0", "\"positions_seen\":1", GEOMETRY, AT_L(5, ".positions_seen")},
    {L(6), "\"positions_seen\":9", "\"positions_seen\":1", GEOMETRY, AT_L(6, ".stored_tokens")},
    {L(0), "\"state\":\"filled\"", "\"state\":\"full\"", SCHEMA, AT_L(0, ".state")},
    {L(0), "\"state\":\"filled\"", "\"state\":\"empty\"", GEOMETRY, AT_L(0, ".stored_tokens")},
    {L(7), "\"state\":\"filled\"", "\"state\":\"empty\"", GEOMETRY, AT_T(18, ".nbytes")},
    {L(4), "\"state\":\"empty\"", "\"state\":\"filled\"", GEOMETRY, AT_L(4, ".state")},
    {L(5), "\"state\":\"uninitialized\"", "\"state\":\"filled\"", GEOMETRY, AT_L(5, ".state")},
    {L(5), "\"state\":\"uninitialized\"", "\"state\":\"empty\"", KVC_OK, NULL},
    {L(4), "\"positions_seen\":2,\"state\":\"empty\"",
     "\"positions_seen\":0,\"state\":\"uninitialized\"", GEOMETRY, AT_T(14, ".layer")},
    {L(4), "\"stored_tokens\":0", "\"stored_tokens\":1", GEOMETRY, AT_L(4, ".stored_tokens")},
    {L(5), "\"stored_tokens\":0", "\"stored_tokens\":1", GEOMETRY, AT_L(5, ".stored_tokens")},
    {L(7), "\"stored_tokens\":0", "\"stored_tokens\":1", GEOMETRY, AT_L(7, ".stored_tokens")},
    {L(0), "\"stored_tokens\":3", "\"stored_tokens\":4", GEOMETRY, AT_L(0, ".stored_tokens")},
    {L(0), "\"stored_tokens\":3", "\"stored_tokens\":2", GEOMETRY, AT_T(0, ".shape[2]")},
    {L(3), "\"stored_tokens\":3", "\"stored_tokens\":0", GEOMETRY, AT_T(8, ".shape[2]")},
    {L(0), "\"stored_tokens\":3", "\"stored_tokens\":-1", SCHEMA, AT_L(0, ".stored_tokens")},
    {L(1), "\"window\":2", "\"window\":0", SCHEMA, AT_L(1, ".window")},
    {L(1), "\"window\":2", "\"window\":null", GEOMETRY, AT_L(1, ".window")},
    {L(0), "\"window\":null", "\"window\":4", GEOMETRY, AT_L(0, ".window")},

    {T("layer.0.key"), "\"head\"", "\"Head\"", SCHEMA, AT_T(0, ".axes[1]")},
    {T("layer.0.key"), "\"head\"", "\"\"", SCHEMA, AT_T(0, ".axes[1]")},
    {T("layer.0.key"), "\"head\"", "\"1\"", SCHEMA, AT_T(0, ".axes[1]")},
    {T("layer.0.key"), "\"head\"", "\"batch\"", SCHEMA, AT_T(0, ".axes[1]")},
    {T("layer.0.key"), "\"head\"", "\"abcdefghijklmnopqrstuvwxyz0123_56\"", SCHEMA,
     AT_T(0, ".axes[1]")},
    {T("layer.0.key"), "\"head\"", "\"abcdefghijklmnopqrstuvwxyz0123_5\"", KVC_OK, NULL},
    {T("layer.0.key"), "\"head\",", "", GEOMETRY, AT_T(0, ".axes")},
    {T("layer.0.key"), "\"head\"", "\"a\",\"b\",\"c\",\"d\",\"e\",\"f\"", GEOMETRY,
     AT_T(0, ".axes")},
    {T("layer.0.key"), "\"sequence\"", "\"tokens\"", GEOMETRY, AT_T(0, ".axes")},
    {T("layer.3.key"), "\"sequence\"", "\"tokens\"", KVC_OK, NULL},
    {T("layer.4.indexer_key"), "\"sequence\"", "\"tokens\"", KVC_OK, NULL},
    {T("layer.4.key"), "\"sequence\"", "\"tokens\"", KVC_OK, NULL},
    {T("layer.2.conv_state.255"),
     "[\"kernel\"],\"dtype\":\"u8\",\"index\":255,\"layer\":2,\"nbytes\":0,\"offset\":86,"
     "\"packing\":null,\"role\":\"conv_state\",\"shape\":[0]",
     "[\"a\",\"b\",\"c\"],\"dtype\":\"u8\",\"index\":255,\"layer\":2,\"nbytes\":0,\"offset\":86,"
     "\"packing\":null,\"role\":\"conv_state\",\"shape\":[9007199254740991,9007199254740991,0]",
     KVC_OK, NULL},
    {T("layer.0.key"), "\"dtype\":\"f16\"", "\"dtype\":\"f17\"", SCHEMA, AT_T(0, ".dtype")},
    {T("layer.0.key"), "\"dtype\":\"f16\"", "\"dtype\":\"f32\"", GEOMETRY, AT_T(0, ".nbytes")},
    {T("layer.0.key"), "\"dtype\":\"f16\"", "\"dtype\":\"u16\"", KVC_OK, NULL},
    {T("token_ids"), "\"dtype\":\"i64\"", "\"dtype\":\"f64\"", GEOMETRY, AT_T(19, ".dtype")},
    {T("attention_mask"), "\"dtype\":\"bool\"", "\"dtype\":\"f8_e5m2\"", GEOMETRY,
     AT_T(20, ".dtype")},
    {T("layer.0.key"), "\"index\":0", "\"index\":1", GEOMETRY, AT_T(0, ".index")},
    {T("layer.2.conv_state.0"), "\"index\":0", "\"index\":1", GEOMETRY, AT_T(5, ".name")},
    {T("layer.2.conv_state.255"), "\"index\":255", "\"index\":256", SCHEMA, AT_T(6, ".index")},
    {T("layer.2.conv_state.255"), "\"index\":255", "\"index\":0", GEOMETRY, AT_T(6, ".index")},
    {T("layer.0.value"), "\"role\":\"value\"", "\"role\":\"key\"", GEOMETRY, AT_T(1, ".role")},
    {T("layer.2.recurrent_state.7"), "\"role\":\"recurrent_state\"", "\"role\":\"key\"", GEOMETRY,
     AT_T(7, ".index")},
    {T("layer.0.key"), "\"layer\":0", "\"layer\":-1", SCHEMA, AT_T(0, ".layer")},
    {T("layer.0.key"), "\"layer\":0", "\"layer\":null", GEOMETRY, AT_T(0, ".layer")},
    {T("layer.0.key"), "\"layer\":0", "\"layer\":8", GEOMETRY, AT_T(0, ".layer")},
    {T("layer.0.key"), "\"layer\":0", "\"layer\":4294967295", GEOMETRY, AT_T(0, ".layer")},
    {T("layer.0.key"), "\"layer\":0", "\"layer\":9007199254740991", GEOMETRY, AT_T(0, ".layer")},
    {T("layer.1.key"), "\"layer\":1", "\"layer\":0", GEOMETRY, AT_T(2, ".role")},
    {T("layer.3.key"), "\"layer\":3", "\"layer\":1", GEOMETRY, AT_T(8, ".layer")},
    {T("token_ids"), "\"layer\":null", "\"layer\":0", GEOMETRY, AT_T(19, ".layer")},
    {"", T("layer.0.key"), T("layer.0.kex"), GEOMETRY, AT_T(0, ".name")},
    {"", T("cross.0.key"), T("layer.6.key"), GEOMETRY, AT_T(16, ".name")},
    {"", T("token_ids"), "\"name\":null", SCHEMA, AT_T(19, ".name")},
    {T("layer.0.key"), "\"nbytes\":12", "\"nbytes\":13", GEOMETRY, AT_T(0, ".nbytes")},
    {T("layer.0.key"), "\"nbytes\":12", "\"nbytes\":12.0", SCHEMA, AT_T(0, ".nbytes")},
    {T("layer.0.value"), "\"offset\":12", "\"offset\":64", GEOMETRY, AT_T(1, ".offset")},
    {T("layer.0.value"), "\"offset\":12", "\"offset\":\"12\"", SCHEMA, AT_T(1, ".offset")},
    {T("layer.0.key"), "\"role\":\"key\"", "\"role\":\"query\"", SCHEMA, AT_T(0, ".role")},
    {T("layer.0.key"), "\"role\":\"key\"", "\"role\":\"indexer_key\"", GEOMETRY, AT_T(0, ".role")},
    {T("layer.0.key"), "[1,1,3,2]", "[1,1,3,-2]", SCHEMA, AT_T(0, ".shape[3]")},
    {T("layer.0.key"), "[1,1,3,2]", "[1,1,3,2.0]", SCHEMA, AT_T(0, ".shape[3]")},
    {T("layer.0.key"), "[1,1,3,2]", "6", SCHEMA, AT_T(0, ".shape")},
    {T("layer.0.key"), "[1,1,3,2]", "[1,1,1,1,1,1,1,3,2]", SCHEMA, AT_T(0, ".shape")},
    {T("layer.0.key"), "[1,1,3,2]", "[1,1,2,3]", GEOMETRY, AT_T(0, ".shape[2]")},
    {T("layer.0.key"), "[1,1,3,2]", "[2,1,3,1]", GEOMETRY, AT_T(0, ".shape[0]")},
    {T("layer.0.key"), "[1,1,3,2]", "[9007199254740991,9007199254740991,3,2]", GEOMETRY,
     AT_T(0, ".shape")},
    {T("layer.0.key"), "[1,1,3,2]", "[4294967296,4294967296,1,1]", GEOMETRY, AT_T(0, ".shape")},
    {T("layer.0.key"), "[1,1,3,2]", "[1,1,3,1501199875790166]", GEOMETRY, AT_T(0, ".shape")},
    {T("layer.4.key"), "[1,1,0,2]", "[1,9007199254740991,0,9007199254740991]", KVC_OK, NULL},
    {T("layer.0.key"), ",\"packing\":null", "", SCHEMA, AT_T(0, ".packing")},
    {T("layer.0.key"), "\"packing\":null", "\"packing\":null,\"x\":0", SCHEMA, AT_T(0, ".x")},
    {T("token_ids"), "[\"batch\",\"sequence\"]", "[\"sequence\",\"batch\"]", GEOMETRY,
     AT_T(19, ".shape[1]")},
    {T("token_ids"), "[\"batch\",\"sequence\"]", "[\"batch\",\"tokens\"]", GEOMETRY,
     AT_T(19, ".axes")},

    {T("layer.0.key"), "\"packing\":null", "\"packing\":{}", SCHEMA, AT_T(0, ".packing.axis")},
    {T("layer.0.key"), "\"packing\":null", "\"packing\":" PACKING("key", "null"), GEOMETRY,
     AT_T(0, ".packing")},
    {T("layer.3.packed_key"), PACKING("key", "\"key_zero\""), "null", GEOMETRY,
     AT_T(9, ".packing")},
    {T("layer.3.packed_key"), PACKING("key", "\"key_zero\""), "[]", SCHEMA, AT_T(9, ".packing")},
    {T("layer.3.packed_key"), "\"axis\":-1", "\"axis\":8", SCHEMA, AT_T(9, ".packing.axis")},
    {T("layer.3.packed_key"), "\"bits\":4", "\"bits\":9", SCHEMA, AT_T(9, ".packing.bits")},
    {T("layer.3.packed_key"), "\"codec\":\"c\"", "\"codec\":\"\"", SCHEMA,
     AT_T(9, ".packing.codec")},
    {T("layer.3.packed_key"), "\"dtype\":\"f16\"", "\"dtype\":\"x\"", SCHEMA,
     AT_T(9, ".packing.dtype")},
    {T("layer.3.packed_key"), "\"group_size\":2", "\"group_size\":0", SCHEMA,
     AT_T(9, ".packing.group_size")},
    {T("layer.3.packed_key"), "\"group_size\":2", "\"group_size\":null", KVC_OK, NULL},
    {T("layer.3.packed_key"), "\"key_scale\"", "\"key\"", SCHEMA, AT_T(9, ".packing.scale")},
    {T("layer.3.packed_key"), "\"key_scale\"", "\"value_scale\"", GEOMETRY,
     AT_T(9, ".packing.scale")},
    {T("layer.3.packed_key"), "[1,2,2]", "[1,2,-2]", SCHEMA, AT_T(9, ".packing.shape[2]")},
    {T("layer.3.packed_key"), "\"key_zero\"", "\"key_scale\"", SCHEMA, AT_T(9, ".packing.zero")},
    {T("layer.3.packed_key"), "\"key_zero\"", "\"value_zero\"", GEOMETRY, AT_T(9, ".packing.zero")},
    {T("layer.3.packed_key"), "\"key_zero\"", "null", GEOMETRY, AT_T(9, ".packing.zero")},
    {T("layer.3.packed_value"), "\"zero\":null", "\"zero\":\"value_zero\"", GEOMETRY,
     AT_T(12, ".packing.zero")},
};
#define CHANGES (sizeof(changes) / sizeof(changes[0]))

/* Returns the text with the change made; the caller frees it. */
static char *apply(const char *text, const struct change *change)
{
    const char *anchor = strstr(text, change->anchor);
    const char *at = anchor != NULL ? strstr(anchor, change->from) : NULL;
    if (at == NULL) {
        (void)printf("# %s not found behind %s\n", change->from, change->anchor);
        bail_out("a change that does not apply");
    }
    size_t before = (size_t)(at - text);
    size_t capacity = strlen(text) + strlen(change->to) + 1;
    char *result = take_memory(capacity);
    (void)snprintf(result, capacity, "%.*s%s%s", (int)before, text, change->to,
                   at + strlen(change->from));
    return result;
}

static void check_change(const char *text, const struct change *change)
{
    struct kvc_error error = KVC_ERROR_INIT;
    char *changed = apply(text, change);
    int before = case_failures;
    CHECK_STATUS(judge_text(changed, &error), change->status);
    if (change->path != NULL) {
        CHECK(strcmp(error.field, change->path) == 0);
        CHECK(error.message[0] != '\0' && error.expected[0] != '\0');
        CHECK(error.offset < strlen(changed));
    }
    if (case_failures > before) {
        (void)printf("# %s instead of %s behind %s: %s\n", change->to, change->from, change->anchor,
                     error.message);
    }
    free(changed);
}

static void every_rule(void)
{
    char *text = make_sheet(&rich);
    struct kvc_error error = KVC_ERROR_INIT;
    CHECK_STATUS(judge_text(text, &error), KVC_OK);
    for (unsigned i = 0; i < CHANGES; i++) {
        check_change(text, &changes[i]);
    }
    free(text);
}

/* Leaves out one tensor after the other. Those that something needs are missed. */
static void missing_tensors(void)
{
    static const struct {
        unsigned index;
        const char *path;
    } missed[] = {
        {0, AT_L(0, "")},
        {1, AT_L(0, "")},
        {2, AT_L(1, ".aliases.value")},
        {3, AT_L(2, "")},
        {4, AT_L(2, "")},
        {9, AT_L(3, "")},
        {10, AT_T(9, ".packing.scale")},
        {11, AT_T(9, ".packing.zero")},
        {12, AT_L(3, "")},
        {13, AT_T(12, ".packing.scale")},
        {16, AT_L(6, "")},
        {17, AT_L(6, "")},
        {18, AT_L(7, ".state")},
    };
    unsigned at = 0;
    for (unsigned i = 0; i < RICH_PARTS; i++) {
        struct part parts[MOST_PARTS];
        struct sheet sheet = rich;
        struct kvc_error error = KVC_ERROR_INIT;
        memcpy(parts, rich_parts, i * sizeof(parts[0]));
        memcpy(parts + i, rich_parts + i + 1, (RICH_PARTS - i - 1) * sizeof(parts[0]));
        sheet.parts = parts;
        sheet.part_count = RICH_PARTS - 1;
        char *text = make_sheet(&sheet);
        bool needed = at < sizeof(missed) / sizeof(missed[0]) && missed[at].index == i;
        CHECK_STATUS(judge_text(text, &error), needed ? KVC_E_GEOMETRY : KVC_OK);
        if (needed) {
            CHECK(strcmp(error.field, missed[at].path) == 0);
            at++;
        }
        free(text);
    }
    CHECK_NUMBER(at, sizeof(missed) / sizeof(missed[0]));
}

static void empty_tables(void)
{
    struct kvc_error error = KVC_ERROR_INIT;
    struct sheet sheet = {1, NULL, 0, rich_parts, 1, NULL, NULL};
    char *text = make_sheet(&sheet);
    CHECK_STATUS(judge_text(text, &error), KVC_E_SCHEMA);
    CHECK(strcmp(error.field, "tensor_manifest.layers") == 0);
    free(text);
    static const char *const empty_layer[] = {
        LAYER("L0", "linear", "0", "self", "empty", "0", "3", "null", "{}"),
    };
    sheet = (struct sheet){1, empty_layer, 1, NULL, 0, NULL, NULL};
    text = make_sheet(&sheet);
    CHECK_STATUS(judge_text(text, &error), KVC_E_SCHEMA);
    CHECK(strcmp(error.field, "tensor_manifest.tensors") == 0);
    free(text);
    static const struct part nothing[] = {
        {"layer.0.", 0, "conv_state", 0, "u8", "[\"kernel\"]", "[0]", 0, NULL},
    };
    sheet.parts = nothing;
    sheet.part_count = 1;
    text = make_sheet(&sheet);
    CHECK_STATUS(judge_text(text, &error), KVC_E_GEOMETRY);
    CHECK(strcmp(error.field, "tensor_manifest.tensors") == 0);
    free(text);
}

/* What a layer lacks is found also where no tensor follows, and where the layer is empty. */
static void last_layers(void)
{
    static const char *const records[] = {
        LAYER("L0", "linear", "0", "self", "filled", "0", "3", "null", "{}"),
        LAYER("L1", "quantized", "1", "self", "empty", "0", "3", "null", "{}"),
        LAYER("L1", "full", "1", "self", "filled", "3", "3", "null", "{}"),
    };
    static const struct part state = {"layer.0.", 0, "conv_state", 0, "u8", "[]", "[]", 1, NULL};
    static const struct part scale = {"layer.1.",    1,     "key_scale", -1,  "f16",
                                      "[\"group\"]", "[0]", 0,           NULL};
    static const struct part key = {"layer.1.", 1, "key", -1, "u8", KEY_AXES, KEY_SHAPE, 6, NULL};
    const char *const quantized[] = {records[0], records[1]};
    const char *const full[] = {records[0], records[2]};
    const struct part alone[] = {state, scale};
    const struct part half[] = {state, key};
    const struct sheet sheets[] = {{2, quantized, 2, alone, 2, NULL, NULL},
                                   {2, full, 2, half, 2, NULL, NULL},
                                   {2, quantized, 2, alone, 1, NULL, NULL}};
    for (unsigned i = 0; i < 3; i++) {
        struct kvc_error error = KVC_ERROR_INIT;
        char *text = make_sheet(&sheets[i]);
        CHECK_STATUS(judge_text(text, &error), i < 2 ? KVC_E_GEOMETRY : KVC_OK);
        CHECK(i == 2 || strcmp(error.field, "tensor_manifest.layers[1]") == 0);
        free(text);
    }
}

/* ---- Feature bits, names of 1.1, digests of nothing ----------------------------------------- */

#define PARENT                                                                                     \
    "\"parent_root\":\"kvc1:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\","

static const struct change names[] = {
    {"", "{\"dtype\"", "{\"rope\":{},\"dtype\"", KVC_OK, NULL},
    {"", "{\"dtype\"", "{\"rope\":null,\"dtype\"", SCHEMA, "rope"},
    {"", "{\"dtype\"", "{\"attention\":[],\"dtype\"", SCHEMA, "attention"},
    {"", "{\"dtype\"", "{\"adapters\":{},\"dtype\"", SCHEMA, "adapters"},
    {"", "{\"dtype\"", "{\"adapters\":[{},1],\"dtype\"", SCHEMA, "adapters[1]"},
    {"", "{\"dtype\"", "{\"adapters\":[],\"dtype\"", KVC_OK, NULL},
    {"", "{\"dtype\"", "{\"compute_dtype\":\"\",\"dtype\"", SCHEMA, "compute_dtype"},
    {"", "{\"dtype\"", "{\"kv_quantization\":null,\"dtype\"", KVC_OK, NULL},
    {"", "{\"dtype\"", "{\"kv_quantization\":0,\"dtype\"", SCHEMA, "kv_quantization"},
    {"", "{\"dtype\"", "{\"weights_digest\":null,\"dtype\"", SCHEMA, "weights_digest"},
    {"", "{\"dtype\"", "{\"weights_digest\":\"a:b\",\"dtype\"", KVC_OK, NULL},
    {"", "{\"dtype\"", "{\"parent_root\":\"kvc1:0\",\"dtype\"", SCHEMA, "parent_root"},
    {"", "{\"dtype\"", "{\"unknown\":0,\"dtype\"", SCHEMA, "unknown"},
};

static void names_of_1_1(void)
{
    char *text = make_sheet(&rich);
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct kvc_error error = KVC_ERROR_INIT;
        char *changed = apply(text, &names[i]);
        CHECK_STATUS(judge_text(changed, &error), names[i].status);
        CHECK(names[i].path == NULL || strcmp(error.field, names[i].path) == 0);
        free(changed);
    }
    free(text);
    struct sheet sheet = rich;
    sheet.top = PARENT;
    text = make_sheet(&sheet);
    const struct change first = {"", "\"sequence_start\":1", "\"sequence_start\":0", GEOMETRY,
                                 "sequence_start"};
    check_change(text, &first);
    free(text);
    struct memory_file file = pack_sheet(&sheet, 1);
    struct kvc_reader *reader = open_file(&file);
    struct kvc_info info = KVC_INFO_INIT;
    CHECK_STATUS(kvc_reader_info(reader, &info, NULL), KVC_OK);
    CHECK_NUMBER(info.incompat, 3);
    CHECK_NUMBER(info.version_minor, 1);
    kvc_reader_free(reader);
    free(file.data);
}

/* Makes header, root and footer right again after a change. */
static void sign(struct memory_file *file, const struct kvci_header *header)
{
    struct kvci_places places;
    struct kvci_footer footer = {.file_bytes = header->file_bytes};
    if (!kvci_header_places(header, &places)) {
        bail_out("a header without places");
    }
    kvci_header_encode(header, file->data);
    kvci_root_compute(file->data + KVCI_HEADER_BYTES, header->metadata_bytes,
                      file->data + places.digests_offset, places.digest_count, footer.root);
    kvci_footer_encode(&footer, file->data + places.footer_offset);
}

static void check_signed(const struct memory_file *file, enum kvc_status wanted, const char *field,
                         uint64_t offset)
{
    struct kvc_reader *reader = NULL;
    struct kvc_error error = KVC_ERROR_INIT;
    CHECK_STATUS(kvc_reader_open_memory(file->data, file->bytes, NULL, &reader, &error), wanted);
    CHECK(strcmp(error.field, field) == 0);
    CHECK(wanted == KVC_OK || error.offset == offset);
    kvc_reader_free(reader);
}

static void signed_changes(void)
{
    static const struct {
        uint64_t incompat;
        uint16_t minor;
        uint32_t tensors;
        enum kvc_status status;
        const char *field;
        uint64_t offset;
    } cases[] = {
        {3, 1, RICH_PARTS, KVC_OK, "", 0},
        {3, 9, RICH_PARTS, KVC_OK, "", 0},
        {1, 1, RICH_PARTS, KVC_E_GEOMETRY, "incompat", 16},
        {2, 1, RICH_PARTS, KVC_E_GEOMETRY, "incompat", 16},
        {0, 1, RICH_PARTS, KVC_E_GEOMETRY, "incompat", 16},
        {7, 1, RICH_PARTS, KVC_E_FEATURE, "incompat", 16},
        {3, 0, RICH_PARTS, KVC_E_SCHEMA, "parent_root", UINT64_MAX},
    };
    struct sheet sheet = rich;
    struct kvci_header header = {0};
    struct kvci_places places = {0};
    sheet.top = PARENT;
    struct memory_file file = pack_sheet(&sheet, 64);
    CHECK_STATUS(kvci_header_decode(file.data, KVCI_HEADER_BYTES, &header, &places, NULL), KVC_OK);
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct kvci_header changed = header;
        struct kvc_error error = KVC_ERROR_INIT;
        struct kvc_reader *reader = NULL;
        changed.incompat = cases[i].incompat;
        changed.version_minor = cases[i].minor;
        sign(&file, &changed);
        CHECK_STATUS(kvc_reader_open_memory(file.data, file.bytes, NULL, &reader, &error),
                     cases[i].status);
        CHECK(strcmp(error.field, cases[i].field) == 0);
        CHECK(cases[i].status == KVC_OK || cases[i].offset == UINT64_MAX ||
              error.offset == cases[i].offset);
        kvc_reader_free(reader);
    }
    /* Tensors 6, 14 and 15 have no bytes; the digests of others are held against bytes when those
     * are read. */
    sign(&file, &header);
    static const unsigned empty[] = {6, 14, 15};
    static const char *const empty_names[] = {"layer.2.conv_state.255", "layer.4.key",
                                              "layer.4.indexer_key"};
    for (unsigned i = 0; i < 3; i++) {
        uint64_t at = places.digests_offset + 32 * empty[i];
        file.data[at + 31] ^= 128;
        sign(&file, &header);
        check_signed(&file, KVC_E_CHUNK, empty_names[i], at);
        file.data[at + 31] ^= 128;
    }
    file.data[places.digests_offset] ^= 1;
    sign(&file, &header);
    check_signed(&file, KVC_OK, "", 0);
    free(file.data);
}

/* A table that is sized by the header's count of tensors is never filled beyond it. */
static void fewer_tensors_than_records(void)
{
    struct kvci_header header = {0};
    struct kvci_places places = {0};
    struct memory_file file = pack_sheet(&rich, 1);
    CHECK_STATUS(kvci_header_decode(file.data, KVCI_HEADER_BYTES, &header, &places, NULL), KVC_OK);
    for (uint32_t count = 0; count <= 2 * RICH_PARTS; count++) {
        struct kvci_header changed = header;
        struct memory_file copy = file;
        changed.tensor_count = count;
        copy.data = take_memory(file.bytes + 32 * 2 * RICH_PARTS);
        memcpy(copy.data, file.data, file.bytes);
        copy.bytes = file.bytes + 32 * (size_t)(count > RICH_PARTS ? count - RICH_PARTS : 0);
        changed.file_bytes = copy.bytes;
        sign(&copy, &changed);
        if (count == RICH_PARTS) {
            check_signed(&copy, KVC_OK, "", 0);
        } else {
            check_signed(&copy, KVC_E_GEOMETRY, "tensor_count", 64);
        }
        free(copy.data);
    }
    free(file.data);
}

int main(void)
{
    run_case("each rule of the manifest is kept", every_rule);
    run_case("tensors that are needed are missed", missing_tensors);
    run_case("tables are not empty", empty_tables);
    run_case("what the last layer lacks is missed", last_layers);
    run_case("names of 1.1", names_of_1_1);
    run_case("feature bits and digests of nothing in signed files", signed_changes);
    run_case("another number of records than the header says", fewer_tensors_than_records);
    return end_cases();
}
