/* cmd_cat.c: `kvc cat` writes the proven bytes of a tensor to standard output.
 * SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kvc.h"

#include "commands.h"
#include "opening.h"
#include "options.h"
#include "report.h"

/* Memory that a run takes, and what is proven before its first byte is written. */
#define PIECE_BYTES (8U << 20)

enum { OPT_START = 1, OPT_BYTES, OPT_ROOT, OPT_KEY_FILE, OPT_FORCE };

static const struct option_entry cat_options[] = {
    {OPT_START, 0, "start", "N", "begin at byte N of the tensor; 0 is the first"},
    {OPT_BYTES, 0, "bytes", "N", "write N bytes instead of all up to the tensor's end"},
    {OPT_ROOT, 0, "root", "ROOT", "refuse any content but that of this root"},
    {OPT_KEY_FILE, 0, "key-file", "PATH",
     "require a tag made with this key: 32 raw bytes, or\n64 hexadecimal digits"},
    {OPT_FORCE, 0, "force", NULL, "write to a terminal too"},
    {0},
};

const struct command cat_command = {
    .name = "cat",
    .operands = "FILE [TENSOR]",
    .line = "write a tensor's proven bytes to standard output",
    .about =
        "Writes the raw bytes of one tensor, little-endian; a file without tensors has only a\n"
        "payload, and needs no name. Each piece is proven before it is written, so what\n"
        "arrives is right; where damage is met the output ends early, with exit code 1.",
    .options = cat_options,
    .examples = "  kvc cat cache.kvc layer.0.key > key.bin\n"
                "  kvc cat --start 4096 --bytes 128 cache.kvc layer.0.key | od -A d -t x1",
    .run = cmd_cat,
};

struct request {
    struct opening opening;
    const char *path;
    const char *name; /* NULL: the file must have no tensors */
    uint64_t start;
    uint64_t bytes;
    bool has_bytes;
    bool force;
};

/* Returns 0 or an errno value. */
static int write_whole(const char *data, size_t bytes)
{
    while (bytes > 0) {
        ssize_t written = write(STDOUT_FILENO, data, bytes);
        if (written >= 0) {
            data += written;
            bytes -= (size_t)written;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            /* Another process has made the shared descriptor non-blocking. */
            struct pollfd descriptor = {.fd = STDOUT_FILENO, .events = POLLOUT};
            (void)poll(&descriptor, 1, -1);
        } else if (errno != EINTR) {
            return errno;
        }
    }
    return 0;
}

static int find_tensor(const struct request *request, const struct kvc_reader *reader,
                       uint32_t *ret_index)
{
    struct kvc_error error = KVC_ERROR_INIT;
    struct kvc_info info = KVC_INFO_INIT;
    enum kvc_status status = kvc_reader_info(reader, &info, &error);
    if (status == KVC_OK && request->name == NULL && info.tensor_count != 0) {
        return usage_error("cat",
                           "%.300s holds %" PRIu32 " tensors: name one of them, as in layer.0.key",
                           request->path, info.tensor_count);
    }
    if (status == KVC_OK) {
        const char *name = request->name == NULL ? "" : request->name;
        status = kvc_reader_find(reader, name, strlen(name), ret_index, &error);
        if (status == KVC_E_NOT_FOUND) {
            refuse(request->path,
                   info.tensor_count == 0
                       ? "there is no tensor %.200s: the payload has no tensors, "
                         "leave the name out"
                       : "there is no tensor %.200s: kvc inspect --tensors lists "
                         "those that exist",
                   name);
            return CODE_BAD;
        }
    }
    return status == KVC_OK ? CODE_GOOD : refuse_error(request->path, &error);
}

static int write_range(const struct request *request, const struct kvc_reader *reader,
                       uint32_t index, uint64_t bytes)
{
    struct kvc_error error = KVC_ERROR_INIT;
    uint64_t at = request->start;
    char *piece = malloc(bytes < PIECE_BYTES ? (size_t)bytes + 1 : PIECE_BYTES);
    if (piece == NULL) {
        refuse(request->path, "no memory for a piece of the tensor");
        return CODE_TROUBLE;
    }
    int code = CODE_GOOD;
    while (code == CODE_GOOD && bytes > 0) {
        uint64_t length = bytes < PIECE_BYTES ? bytes : PIECE_BYTES;
        if (kvc_reader_read(reader, index, at, length, NULL, piece, &error) != KVC_OK) {
            code = refuse_error(request->path, &error);
            break;
        }
        int failure = write_whole(piece, (size_t)length);
        if (failure != 0) {
            code = output_failed(failure);
        }
        at += length;
        bytes -= length;
    }
    free(piece);
    return code;
}

static int cat_tensor(const struct request *request, const struct kvc_reader *reader)
{
    struct kvc_error error = KVC_ERROR_INIT;
    struct kvc_tensor tensor = KVC_TENSOR_INIT;
    uint32_t index = 0;
    int code = find_tensor(request, reader, &index);
    if (code != CODE_GOOD) {
        return code;
    }
    if (kvc_reader_tensor(reader, index, &tensor, &error) != KVC_OK) {
        return refuse_error(request->path, &error);
    }
    if (request->start > tensor.tensor_bytes) {
        refuse(request->path,
               "--start %" PRIu64 " is behind the end: the tensor has %" PRIu64 " bytes",
               request->start, tensor.tensor_bytes);
        return CODE_BAD;
    }
    uint64_t rest = tensor.tensor_bytes - request->start;
    if (request->has_bytes && request->bytes > rest) {
        refuse(request->path,
               "--bytes %" PRIu64 " reaches behind the end: from --start %" PRIu64
               " on the tensor has %" PRIu64 " bytes",
               request->bytes, request->start, rest);
        return CODE_BAD;
    }
    return write_range(request, reader, index, request->has_bytes ? request->bytes : rest);
}

static int take_option(void *context, int id, const char *value)
{
    struct request *request = context;
    switch (id) {
    case OPT_START:
    case OPT_BYTES:
        if (!parse_number(value, UINT64_MAX, id == OPT_START ? &request->start : &request->bytes)) {
            return usage_error("cat", "--%s %.100s: expected a decimal number of bytes",
                               id == OPT_START ? "start" : "bytes", value);
        }
        request->has_bytes = request->has_bytes || id == OPT_BYTES;
        return CODE_GOOD;
    case OPT_ROOT:
        return opening_root(&request->opening, "cat", value);
    case OPT_KEY_FILE:
        return opening_key(&request->opening, "cat", value);
    default:
        request->force = true;
        return CODE_GOOD;
    }
}

static int run_request(struct request *request)
{
    struct kvc_error error = KVC_ERROR_INIT;
    struct kvc_reader *reader = NULL;
    if (isatty(STDOUT_FILENO) == 1 && !request->force) {
        return usage_error("cat", "standard output is a terminal and the bytes are binary: send "
                                  "them to a file or a pipe, or add --force");
    }
    if (opening_open(&request->opening, request->path, &reader, &error) != KVC_OK) {
        return refuse_error(request->path, &error);
    }
    int code = cat_tensor(request, reader);
    kvc_reader_free(reader);
    return code;
}

int cmd_cat(int count, char **words)
{
    struct words line;
    struct request request = {.opening = OPENING_INIT};
    words_start(&line, &cat_command, count, words);
    int code = CODE_GOOD;
    if (!words_read(&line, take_option, &request, 1, 2)) {
        code = line.code;
    } else {
        request.path = words[0];
        request.name = line.operand_count == 2 ? words[1] : NULL;
        code = run_request(&request);
    }
    opening_end(&request.opening);
    return code;
}
