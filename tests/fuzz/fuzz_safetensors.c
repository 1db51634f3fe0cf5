/* fuzz_safetensors.c: any bytes as a safetensors file; a header that is accepted keeps the rules.
 * SPDX-License-Identifier: Apache-2.0 */
#include "safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* A defect ends the process in every build, so that it is not lost with assertions off. */
static void check(bool fine, const char *what)
{
    if (!fine) {
        fprintf(stderr, "fuzz_safetensors: %s\n", what);
        abort();
    }
}

static void check_string(struct json_piece string)
{
    check(string.bytes >= 2 && string.text[0] == '"' && string.text[string.bytes - 1] == '"',
          "a string has no quotes");
    char *decoded = malloc(string.bytes);
    check(decoded != NULL, "out of memory");
    check(json_decode(string, decoded) <= string.bytes - 2, "decoding makes a string longer");
    free(decoded);
}

/* Every byte behind the header belongs to exactly one tensor: with the order of the places known
 * to be without overlap, the sum and the bounds say so. */
static void check_tensors(const struct safetensors *file, uint64_t data_bytes)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < file->count; i++) {
        const struct safetensors_tensor *tensor = &file->tensors[i];
        check_string(tensor->name);
        check_string(tensor->dtype);
        check(tensor->shape.bytes >= 2 && tensor->shape.text[0] == '[', "a shape is no array");
        check(tensor->start <= tensor->end && tensor->end <= data_bytes,
              "a tensor lies outside the file");
        check(safetensors_find(file, tensor->name) == tensor, "a tensor does not find itself");
        sum += tensor->end - tensor->start;
    }
    check(sum == data_bytes, "tensors overlap, or bytes are left over");
    check(safetensors_find(file, (struct json_piece){"\"\\", 2}) == NULL,
          "a tensor is found whose name cannot exist");
}

static void check_file(const struct safetensors *file, uint64_t data_bytes)
{
    struct json_members members;
    struct json_piece name;
    struct json_piece value;
    check_tensors(file, data_bytes);
    json_members_start(&members, file->metadata);
    while (json_members_next(&members, &name, &value)) {
        check_string(name);
        check_string(value);
    }
    if (safetensors_metadata(file, SAFETENSORS_KVC_METADATA, &value)) {
        check_string(value);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct kvc_error error = KVC_ERROR_INIT;
    struct safetensors file;
    uint8_t first[SAFETENSORS_LENGTH_BYTES] = {0};
    uint64_t header_bytes = 0;
    memcpy(first, data, bytes < sizeof(first) ? bytes : sizeof(first));
    enum kvc_status status = safetensors_header_bytes(first, bytes, &header_bytes, &error);
    if (status == KVC_OK) {
        check(header_bytes <= bytes - sizeof(first), "the header is longer than the file");
        uint64_t data_bytes = bytes - sizeof(first) - header_bytes;
        status = safetensors_parse((const char *)data + sizeof(first), (size_t)header_bytes,
                                   data_bytes, &file, &error);
        if (status == KVC_OK) {
            check_file(&file, data_bytes);
            safetensors_free(&file);
        }
    }
    check(status != KVC_E_NO_MEMORY, "out of memory");
    check(status == KVC_OK || (error.status == status && error.message[0] != '\0'),
          "an error says nothing");
    return 0;
}
