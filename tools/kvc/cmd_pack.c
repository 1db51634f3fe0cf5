/* cmd_pack.c: `kvc pack` makes a container from metadata and a payload.
 * SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kvc.h"

#include "commands.h"
#include "keyfile.h"
#include "options.h"
#include "progress.h"
#include "report.h"
#include "safe_text.h"

/* The format stores 16 MiB at most; this leaves room for white space and long spellings. */
#define MOST_METADATA_BYTES (64U << 20)

#define PIECE_BYTES (4U << 20)

enum { OPT_OUTPUT = 1, OPT_ALIGN, OPT_KEY_FILE, OPT_DURABILITY };

static const struct option_entry pack_options[] = {
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
    {0},
};

const struct command pack_command = {
    .name = "pack",
    .operands = "METADATA.json PAYLOAD -o FILE",
    .line = "make a file from metadata and payload bytes",
    .about = "Makes a KVC1 file and prints `ROOT  FILE`. The metadata may be spelled in any way\n"
             "that JSON allows and are stored in the canonical one. PAYLOAD holds the tensors one\n"
             "after the other in the order of the manifest, or any bytes where the metadata have\n"
             "no manifest; `-` is standard input.",
    .options = pack_options,
    .examples = "  kvc pack metadata.json tensors.bin -o cache.kvc\n"
                "  zstd -dc tensors.zst | kvc pack metadata.json - -o cache.kvc",
    .run = cmd_pack,
};

struct job {
    const char *metadata_path;
    const char *payload_path;
    const char *output_path;
    struct kvc_writer_options options;
    uint8_t key[KVC_DIGEST_BYTES];
};

static const char *shown_name(const char *path)
{
    return strcmp(path, "-") == 0 ? "standard input" : path;
}

static int open_input(const char *path, int *ret_fd)
{
    *ret_fd = STDIN_FILENO;
    if (strcmp(path, "-") != 0) {
        *ret_fd = open(path, O_RDONLY | O_CLOEXEC);
    }
    return *ret_fd >= 0 ? CODE_GOOD : refuse_errno(path, "opening", errno);
}

static void close_input(int fd)
{
    if (fd > STDIN_FILENO) {
        (void)close(fd);
    }
}

/* Returns the bytes that were read, 0 at the end, or -1 with errno. */
static ssize_t read_some(int fd, char *buffer, size_t bytes)
{
    ssize_t got = 0;
    do {
        got = read(fd, buffer, bytes);
    } while (got < 0 && errno == EINTR);
    return got;
}

/* Fills the buffer as far as the input goes, so that pipes do not make small pieces. */
static ssize_t read_piece(int fd, char *buffer, size_t bytes)
{
    size_t length = 0;
    while (length < bytes) {
        ssize_t got = read_some(fd, buffer + length, bytes - length);
        if (got < 0) {
            return got;
        }
        if (got == 0) {
            break;
        }
        length += (size_t)got;
    }
    return (ssize_t)length;
}

static int read_metadata_from(int fd, const char *path, char **ret_text, size_t *ret_bytes)
{
    size_t capacity = 64U << 10;
    size_t length = 0;
    char *text = malloc(capacity);
    while (text != NULL) {
        ssize_t got = read_some(fd, text + length, capacity - length);
        if (got < 0) {
            free(text);
            return refuse_errno(path, "reading the metadata", errno);
        }
        length += (size_t)got;
        if (got == 0) {
            *ret_text = text;
            *ret_bytes = length;
            return CODE_GOOD;
        }
        if (length > MOST_METADATA_BYTES) {
            free(text);
            refuse(path, "the metadata are larger than 64 MiB: the format stores 16 MiB at most");
            return CODE_BAD;
        }
        if (length == capacity) {
            char *larger = realloc(text, capacity * 2);
            if (larger == NULL) {
                break;
            }
            text = larger;
            capacity *= 2;
        }
    }
    free(text);
    refuse(path, "no memory for the metadata");
    return CODE_TROUBLE;
}

static int read_metadata(const char *path, char **ret_text, size_t *ret_bytes)
{
    int fd = -1;
    int code = open_input(path, &fd);
    if (code == CODE_GOOD) {
        code = read_metadata_from(fd, shown_name(path), ret_text, ret_bytes);
        close_input(fd);
    }
    return code;
}

/* A text of several lines has its errors named by line: that is what editors show. */
static int refuse_metadata(const struct job *job, const struct kvc_error *error,
                           const char *metadata, size_t metadata_bytes)
{
    const char *name = shown_name(job->metadata_path);
    size_t line = 1;
    if (error->status != KVC_E_JSON || error->offset > metadata_bytes) {
        return refuse_error(name, error);
    }
    for (size_t i = 0; i < error->offset; i++) {
        line += metadata[i] == '\n';
    }
    refuse(name, "line %zu: %s", line, error->message);
    return status_code(error->status);
}

/* Names the input or output that an error of the writer is about. */
static int refuse_create(const struct job *job, const struct kvc_error *error, const char *metadata,
                         size_t metadata_bytes)
{
    switch (error->status) {
    case KVC_E_LENGTH:
        return refuse_error(shown_name(job->payload_path), error);
    case KVC_E_MANIFEST:
    case KVC_E_JSON:
    case KVC_E_SCHEMA:
    case KVC_E_GEOMETRY:
    case KVC_E_STRUCTURE:
        return refuse_metadata(job, error, metadata, metadata_bytes);
    default:
        return refuse_error(job->output_path, error);
    }
}

static int refuse_write(const struct job *job, const struct kvc_error *error)
{
    return refuse_error(
        error->status == KVC_E_LENGTH ? shown_name(job->payload_path) : job->output_path, error);
}

static int copy_payload(const struct job *job, struct kvc_writer *writer, int fd,
                        uint64_t total_bytes)
{
    struct kvc_error error = KVC_ERROR_INIT;
    struct progress progress;
    const char *name = shown_name(job->payload_path);
    char *piece = malloc(PIECE_BYTES);
    if (piece == NULL) {
        refuse(name, "no memory for a piece of the payload");
        return CODE_TROUBLE;
    }
    int code = CODE_GOOD;
    uint64_t done = 0;
    progress_start(&progress, "pack", name);
    for (;;) {
        ssize_t got = read_piece(fd, piece, PIECE_BYTES);
        int failure = errno;
        if (got <= 0) {
            progress_clear(&progress);
            code = got < 0 ? refuse_errno(name, "reading the payload", failure) : CODE_GOOD;
            break;
        }
        if (kvc_writer_write(writer, piece, (uint64_t)got, &error) != KVC_OK) {
            progress_clear(&progress);
            code = refuse_write(job, &error);
            break;
        }
        done += (uint64_t)got;
        (void)progress_update(&progress, done, total_bytes);
    }
    free(piece);
    return code;
}

static int finish(const struct job *job, struct kvc_writer *writer)
{
    struct kvc_error error = KVC_ERROR_INIT;
    uint8_t root[KVC_DIGEST_BYTES];
    char text[KVC_ROOT_TEXT_BYTES];
    if (kvc_writer_finish(writer, root, &error) != KVC_OK) {
        return refuse_write(job, &error);
    }
    kvc_root_format(root, text);
    (void)printf("%s  ", text);
    (void)put_safe_text(stdout, job->output_path, SAFE_WHOLE);
    (void)fputc('\n', stdout);
    return CODE_GOOD;
}

static int pack(struct job *job, const char *metadata, size_t metadata_bytes)
{
    struct kvc_error error = KVC_ERROR_INIT;
    struct kvc_writer *writer = NULL;
    struct stat facts = {0};
    int fd = -1;
    uint64_t total_bytes = 0;
    int code = open_input(job->payload_path, &fd);
    if (code != CODE_GOOD) {
        return code;
    }
    /* A folder is noticed before anything is made. Files of /proc say 0 and are not empty. */
    if (fstat(fd, &facts) == 0 && S_ISDIR(facts.st_mode)) {
        code = refuse_errno(shown_name(job->payload_path), "reading the payload", EISDIR);
    } else if (S_ISREG(facts.st_mode) && fd != STDIN_FILENO && facts.st_size > 0) {
        total_bytes = (uint64_t)facts.st_size;
        job->options.payload_bytes = total_bytes;
    }
    if (code == CODE_GOOD && kvc_writer_create_path(job->output_path, metadata, metadata_bytes,
                                                    &job->options, &writer, &error) != KVC_OK) {
        code = refuse_create(job, &error, metadata, metadata_bytes);
    }
    if (code == CODE_GOOD) {
        code = copy_payload(job, writer, fd, total_bytes);
    }
    if (code == CODE_GOOD) {
        code = finish(job, writer);
    }
    kvc_writer_free(writer);
    close_input(fd);
    return code;
}

static int take_option(void *context, int id, const char *value)
{
    struct job *job = context;
    static const char *const levels[] = {"full", "file", "none"};
    uint64_t number = 0;
    int code = CODE_GOOD;
    switch (id) {
    case OPT_OUTPUT:
        job->output_path = value;
        return CODE_GOOD;
    case OPT_ALIGN:
        if (!parse_number(value, 4096, &number) ||
            (number != 1 && number != 64 && number != 4096)) {
            return usage_error("pack", "--align %.100s: expected 1, 64 or 4096", value);
        }
        job->options.align_bytes = (uint32_t)number;
        return CODE_GOOD;
    case OPT_KEY_FILE:
        code = keyfile_read("pack", value, job->key);
        job->options.key = job->key;
        return code;
    default:
        for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) {
            if (strcmp(value, levels[i]) == 0) {
                job->options.durability = (enum kvc_durability)i;
                return CODE_GOOD;
            }
        }
        return usage_error("pack", "--durability %.100s: expected full, file or none", value);
    }
}

static int check_paths(const struct job *job)
{
    if (job->output_path == NULL || job->output_path[0] == '\0') {
        return usage_error("pack", "expected -o FILE, the file to make");
    }
    if (strcmp(job->metadata_path, "-") == 0 && strcmp(job->payload_path, "-") == 0) {
        return usage_error("pack", "metadata and payload cannot both be standard input");
    }
    return CODE_GOOD;
}

static int run_job(struct job *job)
{
    char *metadata = NULL;
    size_t metadata_bytes = 0;
    int code = check_paths(job);
    if (code == CODE_GOOD) {
        code = read_metadata(job->metadata_path, &metadata, &metadata_bytes);
    }
    if (code == CODE_GOOD) {
        code = pack(job, metadata, metadata_bytes);
    }
    free(metadata);
    return code;
}

int cmd_pack(int count, char **words)
{
    struct words line;
    struct job job = {.options = KVC_WRITER_OPTIONS_INIT};
    words_start(&line, &pack_command, count, words);
    int code = CODE_GOOD;
    if (!words_read(&line, take_option, &job, 2, 2)) {
        code = line.code;
    } else {
        job.metadata_path = words[0];
        job.payload_path = words[1];
        code = run_job(&job);
    }
    keyfile_wipe(job.key, sizeof(job.key));
    return code;
}
