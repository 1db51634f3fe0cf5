/* replay.c: runs a fuzz target over files, for machines without clang and for ordinary tests.
 * SPDX-License-Identifier: Apache-2.0
 *
 * Usage: replay_TARGET PATH... A folder stands for all files in it and below, in the order of their
 * names. Each file is one TAP test; a target that finds a defect ends the process in the middle. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_PATH_BYTES = 4096, MAX_FILE_BYTES = 64 << 20 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

struct tally {
    unsigned files;
    unsigned failures;
};

static void report(struct tally *tally, int fine, const char *path, const char *why)
{
    tally->files++;
    tally->failures += !fine;
    printf("%s %u - %s%s\n", fine ? "ok" : "not ok", tally->files, path, why);
    /* What was well must be on record when the next file ends the process. */
    (void)fflush(stdout);
}

static void replay_file(struct tally *tally, const char *path, off_t file_bytes)
{
    if (file_bytes < 0 || file_bytes > MAX_FILE_BYTES) {
        report(tally, 0, path, ": the file is too large");
        return;
    }
    /* A block of just this size lets a sanitizer see what reads beyond it. */
    size_t bytes = (size_t)file_bytes;
    uint8_t *data = malloc(bytes > 0 ? bytes : 1);
    FILE *file = fopen(path, "rb");
    int fine = data != NULL && file != NULL && fread(data, 1, bytes, file) == bytes;
    if (fine) {
        fprintf(stderr, "replaying %s\n", path);
        (void)LLVMFuzzerTestOneInput(data, bytes);
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    free(data);
    report(tally, fine, path, fine ? "" : ": the file cannot be read");
}

static int is_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* Replays one path; folders are entered at most `depth` deep. */
static void replay_path(struct tally *tally, const char *path, unsigned depth)
{
    struct stat about;
    struct dirent **entries = NULL;
    if (stat(path, &about) != 0) {
        report(tally, 0, path, ": there is no such file");
        return;
    }
    if (!S_ISDIR(about.st_mode)) {
        replay_file(tally, path, about.st_size);
        return;
    }
    int count = depth > 0 ? scandir(path, &entries, is_visible, alphasort) : -1;
    if (count < 0) {
        report(tally, 0, path, ": the folder cannot be read");
        return;
    }
    for (int i = 0; i < count; i++) {
        char below[MAX_PATH_BYTES];
        int written = snprintf(below, sizeof(below), "%s/%s", path, entries[i]->d_name);
        if (written > 0 && (size_t)written < sizeof(below)) {
            replay_path(tally, below, depth - 1);
        } else {
            report(tally, 0, path, ": a path in the folder is too long");
        }
        free(entries[i]);
    }
    free(entries);
}

int main(int argc, char **argv)
{
    struct tally tally = {0, 0};
    for (int i = 1; i < argc; i++) {
        replay_path(&tally, argv[i], 8);
    }
    if (tally.files == 0) {
        report(&tally, 0, "corpus", ": there is no file to replay");
    }
    printf("1..%u\n", tally.files);
    return tally.failures > 0 ? 1 : 0;
}
