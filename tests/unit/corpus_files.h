/* corpus_files.h: what tests over the corpus share: its files, TAP lines, and a verdict on bytes.
 * SPDX-License-Identifier: Apache-2.0
 *
 * The repository is found by the environment variable KVC_SOURCE_DIR, else the current folder. */
#ifndef CORPUS_FILES_H
#define CORPUS_FILES_H

#include <dirent.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvc.h"

#define CORPUS_PATH_BYTES 1024

/* A file of the corpus, read whole. */
struct corpus_file {
    char path[CORPUS_PATH_BYTES];
    uint8_t *data;
    size_t bytes;
};

static int tap_count = 0;
static int tap_failed = 0;

/* Prints one TAP line. */
static inline void tap_line(int good, const char *format, ...)
{
    va_list arguments;
    tap_count++;
    tap_failed += good ? 0 : 1;
    (void)printf("%s %d - ", good ? "ok" : "not ok", tap_count);
    va_start(arguments, format);
    (void)vprintf(format, arguments);
    va_end(arguments);
    (void)printf("\n");
    (void)fflush(stdout);
}

/* Prints the plan and returns the exit code. */
static inline int tap_end(void)
{
    (void)printf("1..%d\n", tap_count);
    return tap_failed == 0 && tap_count > 0 ? 0 : 1;
}

/* Ends the program: something that is not under test failed. */
static inline void corpus_bail(const char *what, const char *path)
{
    (void)printf("Bail out! %s: %s\n", what, path);
    exit(1);
}

static inline void *corpus_allocate(size_t bytes)
{
    /* malloc(0) may return NULL, which must not be taken for a failure. */
    void *block = malloc(bytes == 0 ? 1 : bytes);
    if (block == NULL) {
        corpus_bail("no memory", "test");
    }
    return block;
}

static inline void corpus_join(char ret_path[CORPUS_PATH_BYTES], const char *folder,
                               const char *name)
{
    int length = snprintf(ret_path, CORPUS_PATH_BYTES, "%s/%s", folder, name);
    if (length < 0 || length >= CORPUS_PATH_BYTES) {
        corpus_bail("path too long", name);
    }
}

/* Writes the path of a folder of the corpus. */
static inline void corpus_folder(char ret_path[CORPUS_PATH_BYTES], const char *name)
{
    char corpus[CORPUS_PATH_BYTES];
    const char *source = getenv("KVC_SOURCE_DIR");
    corpus_join(corpus, source == NULL ? "." : source, "tests/corpus");
    corpus_join(ret_path, corpus, name);
}

static inline void corpus_read(struct corpus_file *file)
{
    FILE *stream = fopen(file->path, "rb");
    if (stream == NULL || fseek(stream, 0, SEEK_END) != 0) {
        corpus_bail("cannot be opened", file->path);
    }
    long end = ftell(stream);
    if (end < 0 || fseek(stream, 0, SEEK_SET) != 0) {
        corpus_bail("has no size", file->path);
    }
    file->bytes = (size_t)end;
    file->data = corpus_allocate(file->bytes);
    if (fread(file->data, 1, file->bytes, stream) != file->bytes) {
        corpus_bail("cannot be read", file->path);
    }
    (void)fclose(stream);
}

static inline int corpus_ends_with(const char *text, const char *end)
{
    size_t text_bytes = strlen(text);
    size_t end_bytes = strlen(end);
    return text_bytes >= end_bytes && strcmp(text + text_bytes - end_bytes, end) == 0;
}

typedef void (*corpus_visit_fn)(struct corpus_file *file, void *context);

/* Calls `visit` for every .kvc file in a folder, and returns how many there were. */
static inline int corpus_each(const char *folder, corpus_visit_fn visit, void *context)
{
    int count = 0;
    struct dirent **names = NULL;
    int found = scandir(folder, &names, NULL, alphasort);
    if (found < 0) {
        corpus_bail("folder cannot be listed; set KVC_SOURCE_DIR", folder);
    }
    for (int i = 0; i < found; i++) {
        if (corpus_ends_with(names[i]->d_name, ".kvc")) {
            struct corpus_file file;
            corpus_join(file.path, folder, names[i]->d_name);
            corpus_read(&file);
            visit(&file, context);
            free(file.data);
            count++;
        }
        free(names[i]);
    }
    free(names);
    return count;
}

/* Verifies a reader in the calling thread and frees it. */
static inline enum kvc_status corpus_verify(struct kvc_reader *reader, struct kvc_error *error)
{
    struct kvc_work work = KVC_WORK_INIT;
    work.threads = 1;
    enum kvc_status status = kvc_reader_verify(reader, &work, NULL, NULL, error);
    kvc_reader_free(reader);
    return status;
}

/* Opens and verifies bytes in memory. */
static inline enum kvc_status corpus_judge(const uint8_t *data, size_t bytes,
                                           struct kvc_error *error)
{
    struct kvc_reader *reader = NULL;
    enum kvc_status status = kvc_reader_open_memory(data, bytes, NULL, &reader, error);
    return status == KVC_OK ? corpus_verify(reader, error) : status;
}

#endif
