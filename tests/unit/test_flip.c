/* test_flip.c: no flipped bit, cut, extension or swap of a valid file goes unnoticed.
 * SPDX-License-Identifier: Apache-2.0
 *
 * Small files of several kinds are tried in all bits, some larger ones in every byte, the others in
 * all bits of header, footer and trailer and in a sample of the rest. What a change must be refused
 * as follows from the region of the file that it lies in (FORMAT.md, section 11). Files that are
 * named as arguments are tried in all bits; `scripts/check flip` does so with larger ones. Uses the
 * public interface only. */
#include <inttypes.h>

#include "corpus_files.h"

#define HEADER_BYTES 128
#define FOOTER_BYTES 128
#define SAMPLED_BITS 500
#define SAMPLED_CUTS 300
#define SWAPS 200

/* Where things lie in a file, from the reader's own account of the intact one. */
struct regions {
    uint64_t metadata_end;
    uint64_t payload;
    uint64_t payload_end;
    uint64_t trailer;
    uint64_t digests;
    uint64_t footer;
    uint32_t tensor_count;
    struct kvc_tensor *tensors;
};

/* Files whose bits and lengths are all tried. */
static const char *const whole_files[] = {
    "example.kvc", "align-1.kvc",    "align-64.kvc", "batch-2.kvc",        "no-padding.kvc",
    "tag.kvc",     "opaque-tag.kvc", "unicode.kvc",  "ro-compat-bits.kvc", NULL,
};

static int every_bit; /* set when the files are named as arguments */

/* Files of which one bit of every byte is tried. */
static const char *const byte_files[] = {"align-4096.kvc", "opaque-65537.kvc", NULL};

/* xorshift64: a fixed sequence, so that a failure can be repeated. */
static uint64_t random_state = UINT64_C(0x9E3779B97F4A7C15);

static size_t random_below(size_t limit)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (size_t)(random_state % limit);
}

static void find_regions(const struct corpus_file *file, struct regions *ret)
{
    struct kvc_error error = KVC_ERROR_INIT;
    struct kvc_info info = KVC_INFO_INIT;
    struct kvc_reader *reader = NULL;
    if (kvc_reader_open_memory(file->data, file->bytes, NULL, &reader, &error) != KVC_OK ||
        kvc_reader_info(reader, &info, &error) != KVC_OK) {
        corpus_bail(error.message, file->path);
    }
    ret->tensor_count = info.tensor_count == 0 ? 1 : info.tensor_count;
    ret->tensors = corpus_allocate(ret->tensor_count * sizeof(*ret->tensors));
    for (uint32_t i = 0; i < ret->tensor_count; i++) {
        ret->tensors[i] = (struct kvc_tensor)KVC_TENSOR_INIT;
        if (kvc_reader_tensor(reader, i, &ret->tensors[i], &error) != KVC_OK) {
            corpus_bail(error.message, file->path);
        }
    }
    kvc_reader_free(reader);
    ret->metadata_end = HEADER_BYTES + info.metadata_bytes;
    ret->payload = info.payload_offset;
    ret->payload_end = info.payload_offset + info.payload_span;
    ret->trailer = (ret->payload_end + 63) / 64 * 64;
    ret->footer = file->bytes - FOOTER_BYTES;
    ret->digests = ret->footer - 32 * (uint64_t)ret->tensor_count;
}

static enum kvc_status payload_status(const struct regions *regions, uint64_t offset)
{
    for (uint32_t i = 0; i < regions->tensor_count; i++) {
        const struct kvc_tensor *tensor = &regions->tensors[i];
        if (offset >= tensor->file_offset && offset - tensor->file_offset < tensor->tensor_bytes) {
            return KVC_E_CHUNK;
        }
    }
    return KVC_E_PADDING;
}

/* Returns what a change of the byte at `offset` must be refused as; KVC_OK stands for the two
 * statuses of a damaged magic. */
static enum kvc_status status_at(const struct regions *regions, uint64_t offset)
{
    if (offset < 8) {
        return KVC_OK;
    }
    if (offset < HEADER_BYTES) {
        return KVC_E_HEADER_CHECK;
    }
    if (offset < regions->metadata_end) {
        return KVC_E_ROOT;
    }
    if (offset < regions->payload) {
        return KVC_E_PADDING;
    }
    if (offset < regions->payload_end) {
        return payload_status(regions, offset);
    }
    if (offset < regions->trailer) {
        return KVC_E_PADDING;
    }
    if (offset < regions->digests) {
        return KVC_E_ROW;
    }
    return offset < regions->footer ? KVC_E_ROOT : KVC_E_FOOTER_CHECK;
}

static int flip_is_refused(struct corpus_file *file, const struct regions *regions, size_t offset,
                           unsigned bit)
{
    struct kvc_error error = KVC_ERROR_INIT;
    enum kvc_status expected = status_at(regions, offset);
    file->data[offset] ^= (uint8_t)(1U << bit);
    enum kvc_status found = corpus_judge(file->data, file->bytes, &error);
    file->data[offset] ^= (uint8_t)(1U << bit);
    int good = expected == KVC_OK ? found == KVC_E_FOREIGN || found == KVC_E_MANGLED
                                  : found == expected && error.status == expected;
    if (!good) {
        (void)printf("# %s: bit %u of byte %zu: %s instead of %s: %s\n", file->path, bit, offset,
                     kvc_status_name(found), kvc_status_name(expected), error.message);
    }
    return good;
}

static int flip_range(struct corpus_file *file, const struct regions *regions, size_t start,
                      size_t stop)
{
    int failures = 0;
    for (size_t offset = start; offset < stop && failures < 5; offset++) {
        for (unsigned bit = 0; bit < 8; bit++) {
            failures += flip_is_refused(file, regions, offset, bit) ? 0 : 1;
        }
    }
    return failures;
}

static int is_one_of(const char *path, const char *const *names)
{
    const char *name = strrchr(path, '/');
    name = name == NULL ? path : name + 1;
    for (size_t i = 0; names[i] != NULL; i++) {
        if (strcmp(name, names[i]) == 0) {
            return 1;
        }
    }
    return 0;
}

static int flip_sample(struct corpus_file *file, const struct regions *regions)
{
    int failures = flip_range(file, regions, 0, HEADER_BYTES);
    failures += flip_range(file, regions, (size_t)regions->trailer, file->bytes);
    for (int i = 0; i < SAMPLED_BITS && failures < 5; i++) {
        size_t offset = random_below(file->bytes);
        unsigned bit = (unsigned)random_below(8);
        failures += flip_is_refused(file, regions, offset, bit) ? 0 : 1;
    }
    return failures;
}

static void try_flips(struct corpus_file *file, const struct regions *regions)
{
    int failures = 0;
    if (every_bit || is_one_of(file->path, whole_files)) {
        failures = flip_range(file, regions, 0, file->bytes);
    } else {
        failures = flip_sample(file, regions);
    }
    if (!every_bit && is_one_of(file->path, byte_files)) {
        for (size_t offset = 0; offset < file->bytes && failures < 5; offset++) {
            unsigned bit = (unsigned)random_below(8);
            failures += flip_is_refused(file, regions, offset, bit) ? 0 : 1;
        }
    }
    tap_line(failures == 0, "flipped bits in %s", file->path);
}

/* Judges a copy in a block of its own, so that a read past the end is one that sanitizers see. */
static int copy_is_refused(const struct corpus_file *file, size_t bytes, enum kvc_status expected,
                           uint64_t offset)
{
    struct kvc_error error = KVC_ERROR_INIT;
    size_t kept = bytes < file->bytes ? bytes : file->bytes;
    uint8_t *copy = corpus_allocate(bytes);
    memcpy(copy, file->data, kept);
    for (size_t i = kept; i < bytes; i++) {
        copy[i] = (uint8_t)random_below(256);
    }
    enum kvc_status found = corpus_judge(copy, bytes, &error);
    free(copy);
    int good = found == expected && (expected == KVC_E_EMPTY || error.offset == offset);
    if (!good) {
        (void)printf("# %s: %zu of %zu bytes: %s at %" PRIu64 " instead of %s: %s\n", file->path,
                     bytes, file->bytes, kvc_status_name(found), error.offset,
                     kvc_status_name(expected), error.message);
    }
    return good;
}

static int cut_is_refused(const struct corpus_file *file, size_t bytes)
{
    enum kvc_status expected = bytes == 0 ? KVC_E_EMPTY : KVC_E_TRUNCATED;
    return copy_is_refused(file, bytes, expected, bytes);
}

static void try_cuts(const struct corpus_file *file)
{
    int failures = 0;
    if (is_one_of(file->path, whole_files)) {
        for (size_t bytes = 0; bytes < file->bytes && failures < 5; bytes++) {
            failures += cut_is_refused(file, bytes) ? 0 : 1;
        }
    } else {
        for (size_t i = 0; i < 300 && failures < 5; i++) {
            failures += cut_is_refused(file, i) ? 0 : 1;
            failures += cut_is_refused(file, file->bytes - 1 - i) ? 0 : 1;
        }
        for (int i = 0; i < SAMPLED_CUTS && failures < 5; i++) {
            failures += cut_is_refused(file, random_below(file->bytes)) ? 0 : 1;
        }
    }
    tap_line(failures == 0, "cuts of %s", file->path);
}

static void try_extensions(const struct corpus_file *file)
{
    static const size_t more[] = {1, 2, 31, 32, 63, 64, 127, 128, 129, 4095, 4096, 65536};
    int failures = 0;
    for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++) {
        size_t bytes = file->bytes + more[i];
        failures += copy_is_refused(file, bytes, KVC_E_TRAILING, file->bytes) ? 0 : 1;
    }
    tap_line(failures == 0, "extensions of %s", file->path);
}

static void swap_blocks(uint8_t *data, size_t first, size_t second, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        uint8_t kept = data[first + i];
        data[first + i] = data[second + i];
        data[second + i] = kept;
    }
}

static void try_swaps(struct corpus_file *file)
{
    int failures = 0;
    int done = 0;
    for (int tries = 0; done < SWAPS && tries < 100 * SWAPS && failures < 5; tries++) {
        struct kvc_error error = KVC_ERROR_INIT;
        size_t bytes = (size_t)1 << random_below(8);
        size_t first = random_below(file->bytes / bytes) * bytes;
        size_t second = random_below(file->bytes / bytes) * bytes;
        if (memcmp(file->data + first, file->data + second, bytes) == 0) {
            continue;
        }
        swap_blocks(file->data, first, second, bytes);
        if (corpus_judge(file->data, file->bytes, &error) == KVC_OK) {
            (void)printf("# %s: %zu bytes at %zu and %zu were swapped\n", file->path, bytes, first,
                         second);
            failures++;
        }
        swap_blocks(file->data, first, second, bytes);
        done++;
    }
    tap_line(failures == 0 && done == SWAPS, "swapped blocks in %s", file->path);
}

static void try_file(struct corpus_file *file, void *context)
{
    struct regions regions;
    struct kvc_error error = KVC_ERROR_INIT;
    (void)context;
    find_regions(file, &regions);
    try_flips(file, &regions);
    try_cuts(file);
    try_extensions(file);
    try_swaps(file);
    enum kvc_status status = corpus_judge(file->data, file->bytes, &error);
    tap_line(status == KVC_OK, "%s is valid when it is put back", file->path);
    free(regions.tensors);
}

int main(int argc, char **argv)
{
    char folder[CORPUS_PATH_BYTES];
    if (argc > 1) {
        every_bit = 1;
        for (int i = 1; i < argc; i++) {
            struct corpus_file file;
            (void)snprintf(file.path, sizeof(file.path), "%s", argv[i]);
            corpus_read(&file);
            try_file(&file, NULL);
            free(file.data);
        }
    } else {
        corpus_folder(folder, "good");
        int count = corpus_each(folder, try_file, NULL);
        tap_line(count >= 15, "%d valid files were tried", count);
    }
    return tap_end();
}
