/* cmd_import.c: `kvc import` makes a container from a safetensors file that `kvc export` wrote.
 * SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kvc.h"

#include "commands.h"
#include "keyfile.h"
#include "options.h"
#include "output.h"
#include "progress.h"
#include "report.h"
#include "safe_text.h"
#include "safetensors.h"

#define PIECE_BYTES (4U << 20)

enum { OPT_OUTPUT = 1, OPT_ALIGN, OPT_KEY_FILE, OPT_DURABILITY, OPT_CHANGED };

static const struct option_entry import_options[] = {
    {OPT_OUTPUT, 'o', "output", "FILE",
     "the file to make; an older one is replaced when the new\n"
     "one is complete"},
    {OPT_ALIGN, 0, "align", "N",
     "start each tensor at a multiple of N bytes: 1, 64 or\n4096; by default 64 for manifest "
     "version 2, else 1"},
    {OPT_KEY_FILE, 0, "key-file", "PATH",
     "add a tag made with this key: 32 raw bytes, or\n64 hexadecimal digits"},
    {OPT_DURABILITY, 0, "durability", "LEVEL",
     "full, the default: file and name survive a power cut;\nfile: the bytes do; none: as the "
     "system pleases"},
    {OPT_CHANGED, 0, "changed", NULL, "accept tensors and metadata that were changed since export"},
    {0},
};

const struct command import_command = {
    .name = "import",
    .operands = "IN -o FILE",
    .line = "make a file from a safetensors file that export wrote",
    .about = "Makes a KVC1 file from a safetensors file of `kvc export` and prints `ROOT  FILE`.\n"
             "Other programs may have written it again: the order of tensors and the spelling of\n"
             "the header do not matter. Every tensor of the metadata must be there, with its\n"
             "dtype and shape, and no other. The root must be that of the exported file.",
    .options = import_options,
    .examples = "  kvc import cache.safetensors -o cache.kvc",
    .run = cmd_import,
};

struct job {
    const char *path;
    const char *output_path;
    struct kvc_writer_options options;
    uint8_t key[KVC_DIGEST_BYTES];
    bool changed;
    int fd;
    uint64_t data_offset; /* of the first tensor in the input */
    struct safetensors header;
    char *metadata; /* of the container, canonical */
    size_t metadata_bytes;
    const struct safetensors_tensor **order; /* the input's tensors as the container has them */
    size_t count;
    struct output output;
    int output_errno; /* of a write that failed */
};

static int shown(struct json_piece piece)
{
    return (int)(piece.bytes < 200 ? piece.bytes : 200);
}

/* ---- Input --------------------------------------------------------------------------------- */

/* Reads exactly `bytes` bytes. Returns 0, an errno value, or -1 where the file ends before that. */
static int read_exact(const struct job *job, void *buffer, size_t bytes, uint64_t offset)
{
    char *at = buffer;
    while (bytes > 0) {
        ssize_t got = pread(job->fd, at, bytes, (off_t)offset);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return got < 0 ? errno : -1;
        }
        at += got;
        offset += (uint64_t)got;
        bytes -= (size_t)got;
    }
    return 0;
}

static int refuse_read(const struct job *job, int failure)
{
    if (failure > 0) {
        return refuse_errno(job->path, "reading", failure);
    }
    refuse(job->path, "the file became shorter while it was read");
    return CODE_TROUBLE;
}

static int open_input(struct job *job, uint64_t *ret_bytes)
{
    struct stat facts;
    /* A FIFO must not make this wait. */
    job->fd = open(job->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (job->fd < 0 || fstat(job->fd, &facts) != 0) {
        return refuse_errno(job->path, "opening", errno);
    }
    if (!S_ISREG(facts.st_mode)) {
        refuse(job->path, "it is a folder, a pipe or a device: tensors are read in the order of "
                          "the metadata, which needs a file");
        return CODE_TROUBLE;
    }
    *ret_bytes = (uint64_t)facts.st_size;
    return CODE_GOOD;
}

static int parse_header(struct job *job, size_t header_bytes, uint64_t data_bytes)
{
    struct kvc_error error = KVC_ERROR_INIT;
    char *text = malloc(header_bytes + 1);
    if (text == NULL) {
        refuse(job->path, "no memory for the header");
        return CODE_TROUBLE;
    }
    int code = CODE_GOOD;
    int failure = read_exact(job, text, header_bytes, SAFETENSORS_LENGTH_BYTES);
    if (failure != 0) {
        code = refuse_read(job, failure);
    } else if (safetensors_parse(text, header_bytes, data_bytes, &job->header, &error) != KVC_OK) {
        code = refuse_error(job->path, &error);
    }
    free(text);
    return code;
}

static int read_header(struct job *job)
{
    static const uint8_t container[SAFETENSORS_LENGTH_BYTES] = {0x89, 'K',  'V',  'C',
                                                                '1',  '\r', '\n', 0x1a};
    struct kvc_error error = KVC_ERROR_INIT;
    uint8_t first[SAFETENSORS_LENGTH_BYTES] = {0};
    uint64_t file_bytes = 0;
    uint64_t header_bytes = 0;
    int code = open_input(job, &file_bytes);
    if (code != CODE_GOOD) {
        return code;
    }
    int failure = file_bytes < sizeof(first) ? 0 : read_exact(job, first, sizeof(first), 0);
    if (failure != 0) {
        return refuse_read(job, failure);
    }
    if (memcmp(first, container, sizeof(first)) == 0) {
        refuse(job->path, "it is a KVC1 file already: kvc import takes safetensors files");
        return CODE_BAD;
    }
    if (safetensors_header_bytes(first, file_bytes, &header_bytes, &error) != KVC_OK) {
        return refuse_error(job->path, &error);
    }
    job->data_offset = SAFETENSORS_LENGTH_BYTES + header_bytes;
    return parse_header(job, (size_t)header_bytes, file_bytes - job->data_offset);
}

/* ---- Metadata ------------------------------------------------------------------------------ */

/* Takes the metadata of the container out of the header, where they are a string. */
static int take_metadata(struct job *job)
{
    struct kvc_error error = KVC_ERROR_INIT;
    struct json_piece string;
    if (!safetensors_metadata(&job->header, SAFETENSORS_KVC_METADATA, &string)) {
        refuse(job->path,
               "the safetensors file has no " SAFETENSORS_KVC_METADATA
               " in its metadata, which kvc export writes there: without it nothing says which "
               "model and tokens the tensors belong to; kvc pack makes a file from metadata and "
               "a payload");
        return CODE_BAD;
    }
    char *text = malloc(string.bytes);
    if (text == NULL) {
        refuse(job->path, "no memory for the metadata");
        return CODE_TROUBLE;
    }
    size_t bytes = json_decode(string, text);
    enum kvc_status status =
        kvc_json_canonical(text, bytes, 0, NULL, &job->metadata, &job->metadata_bytes, &error);
    free(text);
    if (status != KVC_OK) {
        refuse(job->path, SAFETENSORS_KVC_METADATA ": %s", error.message);
        return status_code(status);
    }
    return CODE_GOOD;
}

static bool find_manifest(const char *metadata, size_t bytes, struct json_piece *ret_manifest)
{
    struct json_piece top = {metadata, bytes};
    return json_find(top, "tensor_manifest", strlen("tensor_manifest"), ret_manifest);
}

/* ---- Tensors ------------------------------------------------------------------------------- */

static int refuse_missing(const struct job *job, struct json_piece name)
{
    refuse(job->path, "tensor %.*s is missing: the metadata have it, and the safetensors file not",
           shown(name), name.text);
    return CODE_BAD;
}

/* Notes that a tensor comes next in the container. Names of records differ, so none comes twice. */
static int take_tensor(struct job *job, struct safetensors_tensor *tensor)
{
    if (tensor->taken) {
        refuse(job->path, "tensor %.*s is named twice in the metadata", shown(tensor->name),
               tensor->name.text);
        return CODE_BAD;
    }
    tensor->taken = true;
    job->order[job->count++] = tensor;
    return CODE_GOOD;
}

/* Holds a tensor against its record in the manifest, which the writer has judged. */
static int match_tensor(struct job *job, struct json_piece record)
{
    static const char *const members[] = {"name", "dtype", "shape", "nbytes"};
    struct json_piece values[4] = {{"", 0}};
    for (size_t i = 0; i < 4; i++) {
        (void)json_find(record, members[i], strlen(members[i]), &values[i]);
    }
    struct safetensors_tensor *tensor = safetensors_find(&job->header, values[0]);
    if (tensor == NULL) {
        return refuse_missing(job, values[0]);
    }
    const char *dtype = safetensors_dtype(values[1].text + 1, values[1].bytes - 2);
    struct json_piece found = {tensor->dtype.text + 1, tensor->dtype.bytes - 2};
    if (dtype == NULL || !json_same(found, (struct json_piece){dtype, strlen(dtype)})) {
        refuse(job->path, "tensor %.*s has the dtype %.*s, and should have %s", shown(values[0]),
               values[0].text, shown(found), found.text, dtype != NULL ? dtype : "another");
        return CODE_BAD;
    }
    if (!json_same(tensor->shape, values[2])) {
        refuse(job->path, "tensor %.*s has the shape %.*s, and should have %.*s", shown(values[0]),
               values[0].text, shown(tensor->shape), tensor->shape.text, shown(values[2]),
               values[2].text);
        return CODE_BAD;
    }
    char bytes[24];
    (void)snprintf(bytes, sizeof(bytes), "%" PRIu64, tensor->end - tensor->start);
    if (!json_same(values[3], (struct json_piece){bytes, strlen(bytes)})) {
        refuse(job->path, "tensor %.*s has %s bytes, and should have %.*s", shown(values[0]),
               values[0].text, bytes, shown(values[3]), values[3].text);
        return CODE_BAD;
    }
    return take_tensor(job, tensor);
}

/* A file without a manifest has its payload as its only tensor, bytes of any number. */
static int match_payload(struct job *job)
{
    static const char name[] = "\"" SAFETENSORS_PAYLOAD "\"";
    struct json_piece piece = {name, sizeof(name) - 1};
    struct safetensors_tensor *tensor = safetensors_find(&job->header, piece);
    if (tensor == NULL) {
        return refuse_missing(job, piece);
    }
    if (!json_same(tensor->dtype, (struct json_piece){"\"U8\"", 4}) ||
        memchr(tensor->shape.text, ',', tensor->shape.bytes) != NULL || tensor->shape.bytes == 2) {
        refuse(job->path,
               "tensor %s has the dtype %.*s and the shape %.*s, and should be bytes: U8 with one "
               "dimension",
               name, shown(tensor->dtype), tensor->dtype.text, shown(tensor->shape),
               tensor->shape.text);
        return CODE_BAD;
    }
    job->options.payload_bytes = tensor->end - tensor->start;
    return take_tensor(job, tensor);
}

/* Names a tensor of the input that the metadata do not have; all that they have were found. */
static int refuse_extra(const struct job *job)
{
    size_t at = 0;
    while (at + 1 < job->header.count && job->header.tensors[at].taken) {
        at++;
    }
    struct json_piece name = job->header.tensors[at].name;
    refuse(job->path,
           "tensor %.*s is one too many: the safetensors file has it, and the metadata not",
           shown(name), name.text);
    return CODE_BAD;
}

/* `manifest` is NULL where the metadata have none. */
static int match_tensors(struct job *job, const struct json_piece *manifest)
{
    struct json_members items;
    struct json_piece tensors;
    struct json_piece record;
    int code = CODE_GOOD;
    job->order = calloc(job->header.count + 1, sizeof(struct safetensors_tensor *));
    if (job->order == NULL) {
        refuse(job->path, "no memory for the order of the tensors");
        return CODE_TROUBLE;
    }
    if (manifest == NULL) {
        code = match_payload(job);
    } else if (json_find(*manifest, "tensors", strlen("tensors"), &tensors)) {
        json_items_start(&items, tensors);
        while (code == CODE_GOOD && json_items_next(&items, &record)) {
            code = match_tensor(job, record);
        }
    }
    return code == CODE_GOOD && job->count != job->header.count ? refuse_extra(job) : code;
}

/* ---- Output -------------------------------------------------------------------------------- */

static int sink_write(void *context, const void *data, size_t bytes)
{
    struct job *job = context;
    job->output_errno = output_write(&job->output, data, bytes);
    return job->output_errno;
}

/* Names the input or the output that an error of the writer is about. */
static int refuse_writer(const struct job *job, const struct kvc_error *error)
{
    if (job->output_errno != 0) {
        return refuse_errno(job->output_path, "writing the file", job->output_errno);
    }
    switch (error->status) {
    case KVC_E_LENGTH:
        refuse(job->path, "tensor \"" SAFETENSORS_PAYLOAD "\" has no bytes: %s", error->message);
        return CODE_BAD;
    case KVC_E_MANIFEST:
    case KVC_E_JSON:
    case KVC_E_SCHEMA:
    case KVC_E_GEOMETRY:
    case KVC_E_STRUCTURE:
        refuse(job->path, SAFETENSORS_KVC_METADATA ": %s", error->message);
        return CODE_BAD;
    default:
        return refuse_error(job->output_path, error);
    }
}

static int copy_tensors(struct job *job, struct kvc_writer *writer)
{
    struct kvc_error error = KVC_ERROR_INIT;
    struct progress progress;
    uint64_t total = 0;
    uint64_t done = 0;
    int code = CODE_GOOD;
    char *piece = malloc(PIECE_BYTES);
    if (piece == NULL) {
        refuse(job->path, "no memory for a piece of a tensor");
        return CODE_TROUBLE;
    }
    for (size_t i = 0; i < job->count; i++) {
        total += job->order[i]->end - job->order[i]->start;
    }
    progress_start(&progress, "import", job->path);
    for (size_t i = 0; i < job->count; i++) {
        uint64_t at = job->order[i]->start;
        while (code == CODE_GOOD && at < job->order[i]->end) {
            uint64_t rest = job->order[i]->end - at;
            size_t bytes = rest < PIECE_BYTES ? (size_t)rest : PIECE_BYTES;
            int failure = read_exact(job, piece, bytes, job->data_offset + at);
            if (failure != 0) {
                progress_clear(&progress);
                code = refuse_read(job, failure);
            } else if (kvc_writer_write(writer, piece, bytes, &error) != KVC_OK) {
                progress_clear(&progress);
                code = refuse_writer(job, &error);
            }
            at += bytes;
            done += bytes;
            if (code == CODE_GOOD) {
                (void)progress_update(&progress, done, total);
            }
        }
    }
    progress_clear(&progress);
    free(piece);
    return code;
}

/* Holds the new root against that of the exported file. */
static int judge_root(const struct job *job, const uint8_t root[KVC_DIGEST_BYTES])
{
    struct json_piece string;
    char new_text[KVC_ROOT_TEXT_BYTES];
    char old_text[KVC_ROOT_TEXT_BYTES] = "";
    uint8_t old_root[KVC_DIGEST_BYTES];
    if (job->changed || !safetensors_metadata(&job->header, SAFETENSORS_KVC_ROOT, &string)) {
        return CODE_GOOD;
    }
    /* Without its quotes and decoded it is not longer than it is spelled. */
    if (string.bytes - 2 < sizeof(old_text)) {
        (void)json_decode(string, old_text);
    }
    kvc_root_format(root, new_text);
    if (kvc_root_parse(old_text, old_root) != KVC_OK) {
        refuse(job->path, SAFETENSORS_KVC_ROOT " is no root: expected kvc1: and 64 hexadecimal "
                                               "digits; --changed makes the file without it");
        return CODE_BAD;
    }
    if (memcmp(old_root, root, sizeof(old_root)) != 0) {
        refuse(job->path,
               "the tensors or the metadata were changed after the export: their root is %s, and "
               "that of the exported file was %s; --changed accepts the change",
               new_text, old_text);
        return CODE_BAD;
    }
    return CODE_GOOD;
}

static int finish(struct job *job, struct kvc_writer *writer)
{
    struct kvc_error error = KVC_ERROR_INIT;
    uint8_t root[KVC_DIGEST_BYTES];
    char text[KVC_ROOT_TEXT_BYTES];
    if (kvc_writer_finish(writer, root, &error) != KVC_OK) {
        return refuse_writer(job, &error);
    }
    int code = judge_root(job, root);
    if (code == CODE_GOOD) {
        code = output_publish(&job->output, job->options.durability);
    }
    if (code == CODE_GOOD) {
        kvc_root_format(root, text);
        (void)printf("%s  ", text);
        (void)put_safe_text(stdout, job->output_path, SAFE_WHOLE);
        (void)fputc('\n', stdout);
    }
    return code;
}

/* The writer judges the metadata, so that the records can be trusted once it is made; the length of
 * an opaque payload it must know before. */
static int write_container(struct job *job)
{
    struct kvc_error error = KVC_ERROR_INIT;
    struct kvc_sink sink = KVC_SINK_INIT;
    struct kvc_writer *writer = NULL;
    struct json_piece manifest;
    bool has_manifest = find_manifest(job->metadata, job->metadata_bytes, &manifest);
    int code = CODE_GOOD;
    sink.context = job;
    sink.write = sink_write;
    if (!has_manifest) {
        code = match_tensors(job, NULL);
    }
    if (code == CODE_GOOD && kvc_writer_create_sink(&sink, job->metadata, job->metadata_bytes,
                                                    &job->options, &writer, &error) != KVC_OK) {
        code = refuse_writer(job, &error);
    }
    if (code == CODE_GOOD && has_manifest) {
        code = match_tensors(job, &manifest);
    }
    if (code == CODE_GOOD) {
        code = copy_tensors(job, writer);
    }
    if (code == CODE_GOOD) {
        code = finish(job, writer);
    }
    kvc_writer_free(writer);
    return code;
}

static int take_option(void *context, int id, const char *value)
{
    struct job *job = context;
    static const char *const levels[] = {"full", "file", "none"};
    uint64_t number = 0;
    switch (id) {
    case OPT_OUTPUT:
        job->output_path = value;
        return CODE_GOOD;
    case OPT_ALIGN:
        if (!parse_number(value, 4096, &number) ||
            (number != 1 && number != 64 && number != 4096)) {
            return usage_error("import", "--align %.100s: expected 1, 64 or 4096", value);
        }
        job->options.align_bytes = (uint32_t)number;
        return CODE_GOOD;
    case OPT_KEY_FILE:
        job->options.key = job->key;
        return keyfile_read("import", value, job->key);
    case OPT_CHANGED:
        job->changed = true;
        return CODE_GOOD;
    default:
        for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) {
            if (strcmp(value, levels[i]) == 0) {
                job->options.durability = (enum kvc_durability)i;
                return CODE_GOOD;
            }
        }
        return usage_error("import", "--durability %.100s: expected full, file or none", value);
    }
}

static int run_job(struct job *job)
{
    if (job->output_path == NULL || job->output_path[0] == '\0') {
        return usage_error("import", "expected -o FILE, the file to make");
    }
    if (output_is_input(job->output_path, job->path)) {
        return usage_error("import",
                           "%.300s would be replaced by what is made from it: choose "
                           "another name",
                           job->path);
    }
    int code = read_header(job);
    if (code == CODE_GOOD) {
        code = take_metadata(job);
    }
    if (code == CODE_GOOD) {
        code = output_open(&job->output, job->output_path);
    }
    if (code == CODE_GOOD) {
        code = write_container(job);
    }
    output_close(&job->output);
    return code;
}

int cmd_import(int count, char **words)
{
    struct words line;
    struct job job = {.options = KVC_WRITER_OPTIONS_INIT, .fd = -1, .output = OUTPUT_INIT};
    words_start(&line, &import_command, count, words);
    int code = CODE_GOOD;
    if (!words_read(&line, take_option, &job, 1, 1)) {
        code = line.code;
    } else {
        job.path = words[0];
        code = run_job(&job);
    }
    safetensors_free(&job.header);
    free(job.metadata);
    free(job.order);
    if (job.fd >= 0) {
        (void)close(job.fd);
    }
    keyfile_wipe(job.key, sizeof(job.key));
    return code;
}
