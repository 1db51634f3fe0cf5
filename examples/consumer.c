/* consumer.c: opens a KVC1 file, prints what it holds, and reads its first tensor, proven.
 * SPDX-License-Identifier: Apache-2.0
 *
 * Build it against the installed library:
 *     cc consumer.c $(pkg-config --cflags --libs kvc) -o consumer
 * Usage: consumer FILE [EXPECTED_ROOT] */
#include <inttypes.h>
#include <kvc.h>
#include <stdio.h>
#include <stdlib.h>

static int refuse(const char *path, const struct kvc_error *error)
{
    fprintf(stderr, "%s: %s (%s)\n", path, error->message, kvc_status_name(error->status));
    return 1;
}

/* Reads a whole tensor into memory of our own; the library proves the bytes there. */
static int read_tensor(const struct kvc_reader *reader, const char *path, uint32_t index)
{
    struct kvc_error error = KVC_ERROR_INIT;
    struct kvc_tensor tensor = KVC_TENSOR_INIT;
    if (kvc_reader_tensor(reader, index, &tensor, &error) != KVC_OK) {
        return refuse(path, &error);
    }
    printf("tensor %" PRIu32 ": \"%s\" %s [", index, tensor.name, tensor.dtype);
    for (uint32_t i = 0; i < tensor.rank; i++) {
        printf("%s%" PRIu64, i > 0 ? ", " : "", tensor.shape[i]);
    }
    printf("], %" PRIu64 " bytes\n", tensor.tensor_bytes);

    unsigned char *data = malloc(tensor.tensor_bytes > 0 ? (size_t)tensor.tensor_bytes : 1);
    if (data == NULL) {
        fprintf(stderr, "%s: no memory for %" PRIu64 " bytes\n", path, tensor.tensor_bytes);
        return 1;
    }
    int code = 0;
    if (kvc_reader_read(reader, index, 0, tensor.tensor_bytes, NULL, data, &error) != KVC_OK) {
        code = refuse(path, &error);
    } else if (tensor.tensor_bytes > 0) {
        printf("first byte %u, last byte %u, both proven\n", data[0],
               data[tensor.tensor_bytes - 1]);
    }
    free(data);
    return code;
}

static int print_file(const struct kvc_reader *reader, const char *path)
{
    struct kvc_info info = KVC_INFO_INIT;
    struct kvc_error error = KVC_ERROR_INIT;
    if (kvc_reader_info(reader, &info, &error) != KVC_OK) {
        return refuse(path, &error);
    }
    char root[KVC_ROOT_TEXT_BYTES];
    kvc_root_format(info.root, root);
    printf("root %s\n", root);
    printf("payload %" PRIu64 " bytes in %" PRIu32 " tensors\n", info.payload_bytes,
           info.tensor_count);
    return read_tensor(reader, path, 0); /* a payload without tensors is tensor 0 as well */
}

int main(int argc, char **argv)
{
    if (argc != 2 && argc != 3) {
        fputs("usage: consumer FILE [EXPECTED_ROOT]\n", stderr);
        return 2;
    }
    struct kvc_reader_options options = KVC_READER_OPTIONS_INIT;
    uint8_t expected_root[KVC_DIGEST_BYTES];
    if (argc == 3) {
        if (kvc_root_parse(argv[2], expected_root) != KVC_OK) {
            fprintf(stderr, "%s is not a root: expected kvc1: and 64 hexadecimal digits\n",
                    argv[2]);
            return 2;
        }
        options.expected_root = expected_root;
    }
    struct kvc_error error = KVC_ERROR_INIT;
    struct kvc_reader *reader = NULL;
    if (kvc_reader_open_path(argv[1], &options, &reader, &error) != KVC_OK) {
        return refuse(argv[1], &error);
    }
    int code = print_file(reader, argv[1]);
    kvc_reader_free(reader);
    return code;
}
