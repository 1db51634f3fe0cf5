/* test_sources.c: a file is judged alike from a path, a descriptor, memory and a custom source.
 * SPDX-License-Identifier: Apache-2.0
 *
 * Every file of the corpus is opened and verified in the four ways. Valid files must be accepted
 * with the same facts, hostile ones refused with the status that their folder names and with the
 * same offset and field. Also the place of the caller's limits among the checks. Uses the public
 * interface only. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "corpus_files.h"

enum way { WAY_MEMORY, WAY_PATH, WAY_FD, WAY_SOURCE, WAY_COUNT };

static const char *const way_names[WAY_COUNT] = {"memory", "path", "descriptor", "source"};

/* What one way of opening found. */
struct answer {
    enum kvc_status status;
    struct kvc_error error;
    struct kvc_info info;
    uint8_t digest[KVC_DIGEST_BYTES]; /* of the last tensor */
};

/* A source whose calls are counted. */
struct counted {
    const struct corpus_file *file;
    int closes;
    int wrong_calls;
};

static int read_at(void *context, void *buffer, size_t bytes, uint64_t offset)
{
    struct counted *counted = context;
    if (offset > counted->file->bytes || bytes > counted->file->bytes - offset) {
        counted->wrong_calls++;
        return EIO;
    }
    memcpy(buffer, counted->file->data + offset, bytes);
    return 0;
}

static void close_source(void *context)
{
    struct counted *counted = context;
    counted->closes++;
}

static enum kvc_status open_way(enum way way, const struct corpus_file *file,
                                struct counted *counted, struct kvc_reader **ret_reader,
                                struct kvc_error *error)
{
    struct kvc_source source = KVC_SOURCE_INIT;
    if (way == WAY_MEMORY) {
        return kvc_reader_open_memory(file->data, file->bytes, NULL, ret_reader, error);
    }
    if (way == WAY_PATH) {
        return kvc_reader_open_path(file->path, NULL, ret_reader, error);
    }
    if (way == WAY_FD) {
        int fd = open(file->path, O_RDONLY | O_CLOEXEC);
        enum kvc_status status = kvc_reader_open_fd(fd, NULL, ret_reader, error);
        (void)close(fd);
        return status;
    }
    source.context = counted;
    source.file_bytes = file->bytes;
    source.read_at = read_at;
    source.close = close_source;
    return kvc_reader_open_source(&source, NULL, ret_reader, error);
}

static void ask(enum way way, const struct corpus_file *file, struct answer *ret)
{
    struct kvc_reader *reader = NULL;
    struct counted counted = {file, 0, 0};
    memset(ret, 0, sizeof(*ret));
    ret->error = (struct kvc_error)KVC_ERROR_INIT;
    ret->info = (struct kvc_info)KVC_INFO_INIT;
    ret->status = open_way(way, file, &counted, &reader, &ret->error);
    if (ret->status == KVC_OK) {
        struct kvc_tensor tensor = KVC_TENSOR_INIT;
        (void)kvc_reader_info(reader, &ret->info, NULL);
        uint32_t count = ret->info.tensor_count == 0 ? 1 : ret->info.tensor_count;
        (void)kvc_reader_tensor(reader, count - 1, &tensor, NULL);
        memcpy(ret->digest, tensor.digest, sizeof(ret->digest));
        ret->status = corpus_verify(reader, &ret->error);
    }
    if (way == WAY_SOURCE && (counted.closes != 1 || counted.wrong_calls != 0)) {
        (void)printf("# %s: %d closes, %d reads outside the file\n", file->path, counted.closes,
                     counted.wrong_calls);
        ret->status = KVC_E_USAGE;
    }
}

static int same_answer(const struct answer *one, const struct answer *two)
{
    return one->status == two->status && one->error.offset == two->error.offset &&
           strcmp(one->error.field, two->error.field) == 0 &&
           one->info.file_bytes == two->info.file_bytes &&
           one->info.chunk_count == two->info.chunk_count &&
           memcmp(one->info.root, two->info.root, KVC_DIGEST_BYTES) == 0 &&
           memcmp(one->digest, two->digest, KVC_DIGEST_BYTES) == 0;
}

/* `context` is the name of the status that every file must have, and counts failures. */
struct expectation {
    const char *status;
    int failures;
};

static void try_file(struct corpus_file *file, void *context)
{
    struct expectation *expectation = context;
    struct answer first;
    for (int way = 0; way < WAY_COUNT; way++) {
        struct answer answer;
        ask((enum way)way, file, &answer);
        if (way == 0) {
            first = answer;
        }
        const char *name = kvc_status_name(answer.status);
        if (strcmp(name, expectation->status) != 0 || !same_answer(&first, &answer)) {
            (void)printf("# %s by %s: %s instead of %s: %s\n", file->path, way_names[way], name,
                         expectation->status, answer.error.message);
            expectation->failures++;
        }
    }
}

static void try_folder(const char *folder, const char *status)
{
    struct expectation expectation = {status, 0};
    int count = corpus_each(folder, try_file, &expectation);
    tap_line(expectation.failures == 0 && count > 0, "%d files are %s by all four ways", count,
             status);
}

/* A file, limits, and the status of opening: what the header and the size say comes before the
 * limits, and the footer after them. */
static const struct {
    const char *file;
    uint64_t max_file_bytes;
    uint64_t max_metadata_bytes;
    uint32_t max_tensor_count;
    enum kvc_status status;
} limit_cases[] = {
    {"good/example.kvc", 4352, 652, 2, KVC_OK},
    {"good/example.kvc", 4351, 0, 0, KVC_E_LIMIT},
    {"good/example.kvc", 0, 651, 0, KVC_E_LIMIT},
    {"good/example.kvc", 0, 0, 1, KVC_E_LIMIT},
    {"bad/version/major-2.kvc", 1, 1, 1, KVC_E_VERSION},
    {"bad/structure/tensor-count-65537.kvc", 1, 1, 1, KVC_E_STRUCTURE},
    {"bad/truncated/first-4096.kvc", 1, 1, 1, KVC_E_TRUNCATED},
    {"bad/trailing/one-byte.kvc", 1, 1, 1, KVC_E_TRAILING},
    {"bad/unfinished/footer-zero.kvc", 0, 0, 1, KVC_E_LIMIT},
    {"bad/root/zero.kvc", 0, 0, 1, KVC_E_LIMIT},
};

static void try_limits(void)
{
    for (size_t i = 0; i < sizeof(limit_cases) / sizeof(limit_cases[0]); i++) {
        struct corpus_file file;
        struct kvc_error error = KVC_ERROR_INIT;
        struct kvc_reader_options options = KVC_READER_OPTIONS_INIT;
        struct kvc_reader *reader = NULL;
        corpus_folder(file.path, limit_cases[i].file);
        corpus_read(&file);
        options.max_file_bytes = limit_cases[i].max_file_bytes;
        options.max_metadata_bytes = limit_cases[i].max_metadata_bytes;
        options.max_tensor_count = limit_cases[i].max_tensor_count;
        enum kvc_status status =
            kvc_reader_open_memory(file.data, file.bytes, &options, &reader, &error);
        kvc_reader_free(reader);
        free(file.data);
        tap_line(status == limit_cases[i].status, "%s with limits, case %zu: %s",
                 limit_cases[i].file, i, kvc_status_name(status));
    }
}

int main(void)
{
    char folder[CORPUS_PATH_BYTES];
    char bad[CORPUS_PATH_BYTES];
    int folders = 0;
    corpus_folder(folder, "good");
    try_folder(folder, kvc_status_name(KVC_OK));
    corpus_folder(bad, "bad");
    for (int status = KVC_E_FOREIGN; status <= KVC_E_PADDING; status++) {
        struct dirent **names = NULL;
        corpus_join(folder, bad, kvc_status_name((enum kvc_status)status));
        int found = scandir(folder, &names, NULL, NULL);
        if (found < 0) {
            continue;
        }
        while (found > 0) {
            free(names[--found]);
        }
        free(names);
        try_folder(folder, kvc_status_name((enum kvc_status)status));
        folders++;
    }
    try_limits();
    tap_line(folders == 19, "%d statuses have hostile files", folders);
    return tap_end();
}
