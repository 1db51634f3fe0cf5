/* output.c: a file that appears under its name only when it is complete.
 * SPDX-License-Identifier: Apache-2.0 */
#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "report.h"

/* rw-rw-rw-, which the kernel cuts by the umask. */
#define NEW_FILE_MODE 0666

/* Temporary names that are tried; each process has its own, so that only litter takes them. */
#define SLOTS 64

bool output_is_input(const char *output_path, const char *input_path)
{
    struct stat output;
    struct stat input;
    return stat(output_path, &output) == 0 && stat(input_path, &input) == 0 &&
           output.st_dev == input.st_dev && output.st_ino == input.st_ino;
}

static void choose_temporary(struct output *output, unsigned slot)
{
    (void)snprintf(output->temporary, sizeof(output->temporary), ".kvc-%ld-%u.tmp", (long)getpid(),
                   slot);
}

/* A file without a name vanishes by itself when its writer is killed. It can be linked later only
 * through /proc, so without that a named file is used. */
static int open_unnamed(int folder_fd, char *ret_proc_path, size_t bytes)
{
#ifdef O_TMPFILE
    int fd = openat(folder_fd, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, NEW_FILE_MODE);
    if (fd >= 0) {
        (void)snprintf(ret_proc_path, bytes, "/proc/self/fd/%d", fd);
        if (access(ret_proc_path, F_OK) == 0) {
            return fd;
        }
        (void)close(fd);
    }
#else
    (void)folder_fd;
    (void)ret_proc_path;
    (void)bytes;
#endif
    return -1;
}

/* Returns the descriptor, or -1 with errno. */
static int open_named(struct output *output)
{
    for (unsigned slot = 0; slot < SLOTS; slot++) {
        choose_temporary(output, slot);
        int fd = openat(output->folder_fd, output->temporary,
                        O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, NEW_FILE_MODE);
        if (fd >= 0) {
            return fd;
        }
        output->temporary[0] = '\0';
        if (errno != EEXIST) {
            return -1;
        }
    }
    return -1;
}

/* Splits the path and opens its folder. Returns 0 or an errno value. */
static int open_folder(struct output *output, const char *path)
{
    const char *slash = strrchr(path, '/');
    output->path = path;
    output->name = slash != NULL ? slash + 1 : path;
    if (output->name[0] == '\0' || strcmp(output->name, ".") == 0 ||
        strcmp(output->name, "..") == 0) {
        return path[0] == '\0' ? ENOENT : EISDIR;
    }
    /* The root folder keeps its slash. */
    size_t folder_bytes = slash == NULL || slash == path ? 1 : (size_t)(slash - path);
    char *folder = malloc(folder_bytes + 1);
    if (folder == NULL) {
        return ENOMEM;
    }
    memcpy(folder, slash == NULL ? "." : path, folder_bytes);
    folder[folder_bytes] = '\0';
    output->folder_fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int failure = output->folder_fd < 0 ? errno : 0;
    free(folder);
    return failure;
}

/* Renaming over a device or a pipe would destroy it, which nobody means. A symbolic link is
 * replaced itself; what it shows is looked at all the same, since links such as /dev/stdout stand
 * for a device or a pipe. */
static int judge_target(const struct output *output)
{
    struct stat facts;
    if (fstatat(output->folder_fd, output->name, &facts, AT_SYMLINK_NOFOLLOW) != 0) {
        return errno == ENOENT
                   ? CODE_GOOD
                   : refuse_errno(output->path, "looking at the file to be replaced", errno);
    }
    if (S_ISLNK(facts.st_mode) &&
        (fstatat(output->folder_fd, output->name, &facts, 0) != 0 || S_ISDIR(facts.st_mode))) {
        return CODE_GOOD;
    }
    if (S_ISREG(facts.st_mode)) {
        return CODE_GOOD;
    }
    if (S_ISDIR(facts.st_mode)) {
        return refuse_errno(output->path, "creating the file", EISDIR);
    }
    refuse(output->path, "the name is taken by a pipe, a socket or a device, which a file would "
                         "replace: choose another name");
    return CODE_TROUBLE;
}

int output_open(struct output *output, const char *path)
{
    char proc_path[OUTPUT_NAME_BYTES];
    *output = (struct output)OUTPUT_INIT;
    int failure = open_folder(output, path);
    if (failure != 0) {
        return refuse_errno(path, "creating the file", failure);
    }
    int code = judge_target(output);
    if (code != CODE_GOOD) {
        return code;
    }
    output->fd = open_unnamed(output->folder_fd, proc_path, sizeof(proc_path));
    if (output->fd < 0) {
        output->fd = open_named(output);
    }
    return output->fd >= 0 ? CODE_GOOD : refuse_errno(path, "creating the file", errno);
}

int output_write(struct output *output, const void *data, size_t bytes)
{
    const char *at = data;
    while (bytes > 0) {
        ssize_t written = pwrite(output->fd, at, bytes, (off_t)output->bytes);
        if (written > 0) {
            at += written;
            bytes -= (size_t)written;
            output->bytes += (uint64_t)written;
        } else if (written == 0 || errno != EINTR) {
            return written == 0 ? EIO : errno;
        }
    }
    return 0;
}

/* Links a file without a name to a temporary one: no call links over a name that is taken. Returns
 * 0 or an errno value. */
static int give_temporary(struct output *output)
{
    char proc_path[OUTPUT_NAME_BYTES];
    int failure = EEXIST;
    (void)snprintf(proc_path, sizeof(proc_path), "/proc/self/fd/%d", output->fd);
    for (unsigned slot = 0; slot < SLOTS && failure == EEXIST; slot++) {
        choose_temporary(output, slot);
        if (linkat(AT_FDCWD, proc_path, output->folder_fd, output->temporary, AT_SYMLINK_FOLLOW) ==
            0) {
            return 0;
        }
        failure = errno;
        output->temporary[0] = '\0';
    }
    return failure;
}

int output_publish(struct output *output, enum kvc_durability durability)
{
    /* A failed fsync may have dropped the dirty pages, so a second one would prove nothing. */
    if (durability != KVC_DURABILITY_NONE && fsync(output->fd) != 0) {
        return refuse_errno(output->path, "writing the file to the disk", errno);
    }
    int failure = output->temporary[0] != '\0' ? 0 : give_temporary(output);
    if (failure == 0 &&
        renameat(output->folder_fd, output->temporary, output->folder_fd, output->name) != 0) {
        failure = errno;
    }
    if (failure != 0) {
        return refuse_errno(output->path, "giving the file its name", failure);
    }
    output->temporary[0] = '\0';
    if (durability == KVC_DURABILITY_FULL && fsync(output->folder_fd) != 0) {
        return refuse_errno(output->path,
                            "the new file is complete and in its place, but a power cut may still "
                            "lose it: writing the folder to the disk",
                            errno);
    }
    return CODE_GOOD;
}

void output_close(struct output *output)
{
    if (output->temporary[0] != '\0') {
        (void)unlinkat(output->folder_fd, output->temporary, 0);
        output->temporary[0] = '\0';
    }
    if (output->fd >= 0) {
        (void)close(output->fd);
        output->fd = -1;
    }
    if (output->folder_fd >= 0) {
        (void)close(output->folder_fd);
        output->folder_fd = -1;
    }
}
