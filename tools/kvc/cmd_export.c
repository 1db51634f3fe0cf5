/* cmd_export.c: `kvc export` writes the proven tensors and the metadata as a safetensors file.
 * SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvc.h"

#include "commands.h"
#include "json_out.h"
#include "opening.h"
#include "options.h"
#include "output.h"
#include "progress.h"
#include "report.h"
#include "safetensors.h"

/* Memory that a run takes, and what is proven before its first byte is written. */
#define PIECE_BYTES (8U << 20)

/* Readers map the tensors; each length is a multiple of this. */
#define HEADER_ALIGN 8

enum { OPT_SAFETENSORS = 1, OPT_ROOT, OPT_KEY_FILE };

static const struct option_entry export_options[] = {
    {OPT_SAFETENSORS, 0, "safetensors", "OUT",
     "the file to make; an older one is replaced when the new\none is complete"},
    {OPT_ROOT, 0, "root", "ROOT", "refuse any content but that of this root"},
    {OPT_KEY_FILE, 0, "key-file", "PATH",
     "require a tag made with this key: 32 raw bytes, or\n64 hexadecimal digits"},
    {0},
};

const struct command export_command = {
    .name = "export",
    .operands = "FILE --safetensors OUT",
    .line = "write tensors and metadata as a safetensors file",
    .about = "Makes a safetensors file of the tensors in FILE. Each piece is proven before it is\n"
             "written. Metadata and root go along as kvc1.metadata and kvc1.root, with which\n"
             "`kvc import` makes the KVC1 file again. A file without tensors gives one, named\n"
             "payload. The safetensors file has no digests of its own.",
    .options = export_options,
    .examples = "  kvc export cache.kvc --safetensors cache.safetensors",
    .run = cmd_export,
};

struct request {
    struct opening opening;
    const char *path;
    const char *output_path;
};

/* A file being exported. */
struct job {
    const struct request *request;
    const struct kvc_reader *reader;
    struct kvc_info info;
    uint32_t count; /* tensors, an opaque payload included */
    struct output output;
};

static void put_metadata(struct json_out *out, const struct job *job)
{
    char root[KVC_ROOT_TEXT_BYTES];
    uint64_t bytes = 0;
    const char *metadata = kvc_reader_metadata(job->reader, &bytes);
    kvc_root_format(job->info.root, root);
    json_key(out, SAFETENSORS_METADATA);
    json_open(out, '{');
    json_key(out, SAFETENSORS_KVC_METADATA);
    json_string(out, metadata, (size_t)bytes);
    json_key(out, SAFETENSORS_KVC_ROOT);
    json_text(out, root);
    json_close(out, '}');
}

static void put_tensor(struct json_out *out, const struct kvc_tensor *tensor, const char *dtype)
{
    json_key(out, tensor->name[0] != '\0' ? tensor->name : SAFETENSORS_PAYLOAD);
    json_open(out, '{');
    json_key(out, "dtype");
    json_text(out, dtype);
    json_key(out, "shape");
    json_open(out, '[');
    for (uint32_t i = 0; i < tensor->rank; i++) {
        json_number(out, tensor->shape[i]);
    }
    json_close(out, ']');
    json_key(out, "data_offsets");
    json_open(out, '[');
    json_number(out, tensor->offset);
    json_number(out, tensor->offset + tensor->tensor_bytes);
    json_close(out, ']');
    json_close(out, '}');
}

static int put_header(struct json_out *out, const struct job *job)
{
    struct kvc_error error = KVC_ERROR_INIT;
    json_open(out, '{');
    put_metadata(out, job);
    for (uint32_t i = 0; i < job->count; i++) {
        struct kvc_tensor tensor = KVC_TENSOR_INIT;
        if (kvc_reader_tensor(job->reader, i, &tensor, &error) != KVC_OK) {
            return refuse_error(job->request->path, &error);
        }
        const char *dtype = safetensors_dtype(tensor.dtype, strlen(tensor.dtype));
        if (dtype == NULL) {
            refuse(job->request->path, "safetensors has no dtype %s, which tensor %s has",
                   tensor.dtype, tensor.name);
            return CODE_BAD;
        }
        put_tensor(out, &tensor, dtype);
    }
    json_close(out, '}');
    return CODE_GOOD;
}

/* Makes the header in memory, padded with spaces. */
static int make_header(const struct job *job, char **ret_header, size_t *ret_bytes)
{
    char *header = NULL;
    size_t bytes = 0;
    struct json_out out;
    FILE *stream = open_memstream(&header, &bytes);
    if (stream == NULL) {
        refuse(job->request->path, "no memory for the header");
        return CODE_TROUBLE;
    }
    json_start(&out, stream);
    int code = put_header(&out, job);
    if (fflush(stream) == 0) {
        for (size_t at = bytes; at % HEADER_ALIGN != 0; at++) {
            (void)fputc(' ', stream);
        }
    }
    bool failed = ferror(stream) != 0;
    failed = fclose(stream) != 0 || failed;
    if (code == CODE_GOOD && failed) {
        refuse(job->request->path, "no memory for the header");
        code = CODE_TROUBLE;
    }
    if (code == CODE_GOOD && bytes > SAFETENSORS_MOST_BYTES) {
        refuse(job->request->path,
               "the header would take %zu bytes: safetensors allows 100000000 at most", bytes);
        code = CODE_BAD;
    }
    if (code != CODE_GOOD) {
        free(header);
        return code;
    }
    *ret_header = header;
    *ret_bytes = bytes;
    return CODE_GOOD;
}

static int refuse_write(const struct job *job, int failure)
{
    return refuse_errno(job->request->output_path, "writing the file", failure);
}

static int write_header(struct job *job)
{
    uint8_t length[SAFETENSORS_LENGTH_BYTES];
    char *header = NULL;
    size_t bytes = 0;
    int code = make_header(job, &header, &bytes);
    if (code != CODE_GOOD) {
        return code;
    }
    for (unsigned i = 0; i < sizeof(length); i++) {
        length[i] = (uint8_t)((uint64_t)bytes >> (8 * i));
    }
    int failure = output_write(&job->output, length, sizeof(length));
    if (failure == 0) {
        failure = output_write(&job->output, header, bytes);
    }
    free(header);
    return failure == 0 ? CODE_GOOD : refuse_write(job, failure);
}

static int write_tensor(struct job *job, uint32_t index, char *piece, struct progress *progress)
{
    struct kvc_error error = KVC_ERROR_INIT;
    struct kvc_tensor tensor = KVC_TENSOR_INIT;
    enum kvc_status status = kvc_reader_tensor(job->reader, index, &tensor, &error);
    int failure = 0;
    for (uint64_t at = 0; status == KVC_OK && failure == 0 && at < tensor.tensor_bytes;) {
        uint64_t rest = tensor.tensor_bytes - at;
        uint64_t bytes = rest < PIECE_BYTES ? rest : PIECE_BYTES;
        status = kvc_reader_read(job->reader, index, at, bytes, NULL, piece, &error);
        if (status == KVC_OK) {
            failure = output_write(&job->output, piece, (size_t)bytes);
        }
        at += bytes;
        (void)progress_update(progress, tensor.offset + at, job->info.payload_bytes);
    }
    if (status == KVC_OK && failure == 0) {
        return CODE_GOOD;
    }
    progress_clear(progress);
    return status != KVC_OK ? refuse_error(job->request->path, &error) : refuse_write(job, failure);
}

static int write_tensors(struct job *job)
{
    struct progress progress;
    char *piece = malloc(PIECE_BYTES);
    int code = CODE_GOOD;
    if (piece == NULL) {
        refuse(job->request->path, "no memory for a piece of a tensor");
        return CODE_TROUBLE;
    }
    progress_start(&progress, "export", job->request->path);
    for (uint32_t i = 0; code == CODE_GOOD && i < job->count; i++) {
        code = write_tensor(job, i, piece, &progress);
    }
    progress_clear(&progress);
    free(piece);
    return code;
}

static int export_file(const struct request *request, const struct kvc_reader *reader)
{
    struct kvc_error error = KVC_ERROR_INIT;
    struct job job = {
        .request = request, .reader = reader, .info = KVC_INFO_INIT, .output = OUTPUT_INIT};
    if (kvc_reader_info(reader, &job.info, &error) != KVC_OK) {
        return refuse_error(request->path, &error);
    }
    job.count = job.info.tensor_count > 0 ? job.info.tensor_count : 1;
    int code = output_open(&job.output, request->output_path);
    if (code == CODE_GOOD) {
        code = write_header(&job);
    }
    if (code == CODE_GOOD) {
        code = write_tensors(&job);
    }
    if (code == CODE_GOOD) {
        code = output_publish(&job.output, KVC_DURABILITY_FULL);
    }
    output_close(&job.output);
    return code;
}

static int take_option(void *context, int id, const char *value)
{
    struct request *request = context;
    switch (id) {
    case OPT_ROOT:
        return opening_root(&request->opening, "export", value);
    case OPT_KEY_FILE:
        return opening_key(&request->opening, "export", value);
    default:
        request->output_path = value;
        return CODE_GOOD;
    }
}

static int run_request(const struct request *request)
{
    struct kvc_error error = KVC_ERROR_INIT;
    struct kvc_reader *reader = NULL;
    if (request->output_path == NULL || request->output_path[0] == '\0') {
        return usage_error("export", "expected --safetensors OUT, the file to make");
    }
    if (strcmp(request->output_path, "-") == 0) {
        return usage_error("export", "standard output cannot be replaced when it is complete: name "
                                     "a file, or ./- for one of this name");
    }
    if (output_is_input(request->output_path, request->path)) {
        return usage_error("export",
                           "%.300s would be replaced by its own export: choose another "
                           "name",
                           request->path);
    }
    if (opening_open(&request->opening, request->path, &reader, &error) != KVC_OK) {
        return refuse_error(request->path, &error);
    }
    int code = export_file(request, reader);
    kvc_reader_free(reader);
    return code;
}

int cmd_export(int count, char **words)
{
    struct words line;
    struct request request = {.opening = OPENING_INIT};
    words_start(&line, &export_command, count, words);
    int code = CODE_GOOD;
    if (!words_read(&line, take_option, &request, 1, 1)) {
        code = line.code;
    } else {
        request.path = words[0];
        code = run_request(&request);
    }
    opening_end(&request.opening);
    return code;
}
