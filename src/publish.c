/* publish.c: makes a file that appears under its name only when it is complete.
 * SPDX-License-Identifier: Apache-2.0 */
#include "publish.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#if KVCI_LINUX_CALLS
#include <sys/file.h>
#endif

#include "alloc.h"
#include "blake3.h"
#include "status.h"

#include "ban.h"

/* Writers of one name that publish at the same moment need a temporary name each. */
#define SLOTS 64

/* rw-rw-rw-, which the kernel cuts by the umask. */
#define NEW_FILE_MODE 0666

/* What became of the lock on a temporary file that was just made. */
enum own {
    OWN_LOCKED,
    OWN_TAKEN, /* a cleaner was faster, and removes the file */
    OWN_UNSURE /* there are no locks here, or the file cannot be looked at */
};

/* The temporary name depends on the final one alone, so that the next writer of that name knows
 * where to look for what a killed one left, without reading the folder. It is short even where
 * the final name has the greatest length that the file system allows. Without locks nobody may
 * remove what another process made, and `owner`, else 0, keeps the names of processes apart. */
static void slot_name(const char *name, unsigned slot, long owner,
                      char ret_name[KVCI_TEMPORARY_BYTES])
{
    uint8_t digest[KVCI_BLAKE3_BYTES];
    char hex[33];
    kvci_blake3_hash(name, strlen(name), digest);
    kvci_hex(digest, 16, hex);
    if (owner == 0) {
        (void)snprintf(ret_name, KVCI_TEMPORARY_BYTES, ".kvc-%s-%u.tmp", hex, slot);
    } else {
        (void)snprintf(ret_name, KVCI_TEMPORARY_BYTES, ".kvc-%s-%u-%ld.tmp", hex, slot, owner);
    }
}

#if KVCI_LINUX_CALLS
/* Returns 1 when the name shows this file, 0 when it shows another or none, -1 when it cannot be
 * looked at. */
static int same_file(int folder_fd, const char *name, int fd)
{
    struct stat by_name;
    struct stat by_fd;
    if (fstat(fd, &by_fd) != 0) {
        return -1;
    }
    if (fstatat(folder_fd, name, &by_name, AT_SYMLINK_NOFOLLOW) != 0) {
        return errno == ENOENT ? 0 : -1;
    }
    return by_name.st_dev == by_fd.st_dev && by_name.st_ino == by_fd.st_ino ? 1 : 0;
}

/* A living writer holds a lock on its temporary file. While we hold the lock on the file that the
 * name shows, nobody else removes or replaces that name, so that unlinking it is safe. */
static void remove_stale(int folder_fd, const char *temporary)
{
    int fd = openat(folder_fd, temporary, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        return;
    }
    struct stat facts;
    if (fstat(fd, &facts) == 0 && S_ISREG(facts.st_mode) && flock(fd, LOCK_EX | LOCK_NB) == 0 &&
        same_file(folder_fd, temporary, fd) == 1) {
        (void)unlinkat(folder_fd, temporary, 0);
    }
    (void)close(fd);
}

static void remove_all_stale(int folder_fd, const char *name)
{
    char temporary[KVCI_TEMPORARY_BYTES];
    for (unsigned slot = 0; slot < SLOTS; slot++) {
        slot_name(name, slot, 0, temporary);
        remove_stale(folder_fd, temporary);
    }
}

static void proc_path(int fd, char ret_path[KVCI_TEMPORARY_BYTES])
{
    (void)snprintf(ret_path, KVCI_TEMPORARY_BYTES, "/proc/self/fd/%d", fd);
}

/* A file without a name vanishes by itself when its writer dies. It can be linked later only
 * through /proc, so without that a named file is used. */
static int open_unnamed(int folder_fd)
{
    char path[KVCI_TEMPORARY_BYTES];
    int fd = openat(folder_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, NEW_FILE_MODE);
    if (fd < 0) {
        return -1;
    }
    proc_path(fd, path);
    if (access(path, F_OK) != 0 || flock(fd, LOCK_EX | LOCK_NB) != 0) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

/* When a forked process published the same file before, both names show it and renaming one to
 * the other did nothing. The name may be another writer's by now, so it is looked at first. */
static void remove_own(const struct kvci_publish *publish)
{
    if (same_file(publish->folder_fd, publish->temporary, publish->fd) == 1) {
        (void)unlinkat(publish->folder_fd, publish->temporary, 0);
    }
}

static enum own lock_own(int folder_fd, const char *temporary, int fd)
{
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        return errno == EWOULDBLOCK ? OWN_TAKEN : OWN_UNSURE;
    }
    int same = same_file(folder_fd, temporary, fd);
    return same == 1 ? OWN_LOCKED : (same == 0 ? OWN_TAKEN : OWN_UNSURE);
}
#else
static void remove_all_stale(int folder_fd, const char *name)
{
    (void)folder_fd;
    (void)name;
}

static int open_unnamed(int folder_fd)
{
    (void)folder_fd;
    return -1;
}

static void remove_own(const struct kvci_publish *publish)
{
    (void)publish;
}

static enum own lock_own(int folder_fd, const char *temporary, int fd)
{
    (void)folder_fd;
    (void)temporary;
    (void)fd;
    return OWN_UNSURE;
}
#endif

static int open_named(struct kvci_publish *publish)
{
    bool locks = KVCI_LINUX_CALLS;
    for (unsigned slot = 0; slot < SLOTS; slot++) {
        slot_name(publish->name, slot, locks ? 0 : (long)getpid(), publish->temporary);
        int fd = openat(publish->folder_fd, publish->temporary,
                        O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, NEW_FILE_MODE);
        int failure = fd < 0 ? errno : EEXIST;
        enum own own =
            fd >= 0 && locks ? lock_own(publish->folder_fd, publish->temporary, fd) : OWN_LOCKED;
        if (fd >= 0 && own == OWN_LOCKED) {
            return fd;
        }
        if (own == OWN_UNSURE) {
            (void)unlinkat(publish->folder_fd, publish->temporary, 0);
            locks = false;
        }
        publish->temporary[0] = '\0';
        if (fd >= 0) {
            (void)close(fd);
        }
        if (failure != EEXIST) {
            errno = failure;
            return -1;
        }
    }
    errno = EEXIST;
    return -1;
}

/* Splits the path into its folder, opened, and its last part, copied. */
static enum kvc_status open_folder(const char *path, const struct kvc_allocator *allocator,
                                   struct kvci_publish *publish, struct kvc_error *error)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash != NULL ? slash + 1 : path;
    size_t folder_bytes = slash == NULL ? 1 : (slash == path ? 1 : (size_t)(slash - path));
    if (name[0] == '\0' || strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
        int code = path[0] == '\0' ? ENOENT : EISDIR;
        return kvci_fail_errno(error, code, KVC_NO_OFFSET, "creating the file");
    }
    char *folder = kvci_alloc(allocator, folder_bytes + 1);
    publish->name = kvci_alloc(allocator, strlen(name) + 1);
    if (folder == NULL || publish->name == NULL) {
        kvci_free(allocator, folder);
        return kvci_fail_memory(error, strlen(path));
    }
    memcpy(folder, slash == NULL ? "." : path, folder_bytes);
    memcpy(publish->name, name, strlen(name) + 1);
    publish->folder_fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    enum kvc_status status = KVC_OK;
    if (publish->folder_fd < 0) {
        status = kvci_fail_errno(error, errno, KVC_NO_OFFSET, "opening the folder of the file");
    }
    kvci_free(allocator, folder);
    return status;
}

/* Renaming over a device or a pipe would destroy it, which nobody means. */
static enum kvc_status judge_target(const struct kvci_publish *publish, struct kvc_error *error)
{
    struct stat facts;
    if (fstatat(publish->folder_fd, publish->name, &facts, AT_SYMLINK_NOFOLLOW) != 0) {
        if (errno == ENOENT) {
            return KVC_OK;
        }
        return kvci_fail_errno(error, errno, KVC_NO_OFFSET, "looking at the file to be replaced");
    }
    /* The link itself is replaced. What it shows is looked at all the same, for links such as
     * /dev/stdout stand for a device or a pipe. */
    if (S_ISLNK(facts.st_mode) &&
        (fstatat(publish->folder_fd, publish->name, &facts, 0) != 0 || S_ISDIR(facts.st_mode))) {
        return KVC_OK;
    }
    if (S_ISREG(facts.st_mode)) {
        return KVC_OK;
    }
    if (S_ISDIR(facts.st_mode)) {
        return kvci_fail_errno(error, EISDIR, KVC_NO_OFFSET, "creating the file");
    }
    return kvci_fail(error, KVC_E_NOT_REGULAR, KVC_NO_OFFSET,
                     "the name is taken by a pipe, a socket or a device, which a file would "
                     "replace: choose another name");
}

enum kvc_status kvci_publish_open(const char *path, const struct kvc_allocator *allocator,
                                  struct kvci_publish *ret_publish, struct kvc_error *error)
{
    struct kvci_publish publish = {.fd = -1, .folder_fd = -1, .process = getpid()};
    enum kvc_status status = open_folder(path, allocator, &publish, error);
    if (status == KVC_OK) {
        status = judge_target(&publish, error);
    }
    if (status == KVC_OK) {
        remove_all_stale(publish.folder_fd, publish.name);
        publish.fd = open_unnamed(publish.folder_fd);
        if (publish.fd < 0) {
            publish.fd = open_named(&publish);
        }
        if (publish.fd < 0) {
            status = kvci_fail_errno(error, errno, KVC_NO_OFFSET, "creating the file");
        }
    }
    if (status != KVC_OK) {
        kvci_publish_close(&publish, allocator);
        return status;
    }
    *ret_publish = publish;
    return KVC_OK;
}

#if KVCI_LINUX_CALLS
/* A name that is free is taken by a link at once. One that is taken is replaced by a link to a
 * temporary name and a rename, since no call links over a name. */
static int give_name(struct kvci_publish *publish)
{
    char path[KVCI_TEMPORARY_BYTES];
    proc_path(publish->fd, path);
    if (linkat(AT_FDCWD, path, publish->folder_fd, publish->name, AT_SYMLINK_FOLLOW) == 0) {
        return 0;
    }
    if (errno != EEXIST) {
        return errno;
    }
    for (unsigned slot = 0; slot < SLOTS; slot++) {
        slot_name(publish->name, slot, 0, publish->temporary);
        if (linkat(AT_FDCWD, path, publish->folder_fd, publish->temporary, AT_SYMLINK_FOLLOW) ==
            0) {
            return 0;
        }
        int failure = errno;
        remove_stale(publish->folder_fd, publish->temporary);
        publish->temporary[0] = '\0';
        if (failure != EEXIST) {
            return failure;
        }
    }
    return EEXIST;
}
#else
static int give_name(struct kvci_publish *publish)
{
    (void)publish;
    return ENOSYS;
}
#endif

enum kvc_status kvci_publish_commit(struct kvci_publish *publish, enum kvc_durability durability,
                                    struct kvc_error *error)
{
    /* A failed fsync may have dropped the dirty pages, so a second one would prove nothing. */
    if (durability != KVC_DURABILITY_NONE && fsync(publish->fd) != 0) {
        return kvci_fail_errno(error, errno, KVC_NO_OFFSET, "writing the file to the disk");
    }
    bool had_name = publish->temporary[0] != '\0';
    int failure = had_name ? 0 : give_name(publish);
    if (failure != 0) {
        return kvci_fail_errno(error, failure, KVC_NO_OFFSET, "giving the file its name");
    }
    if (publish->temporary[0] != '\0') {
        if (renameat(publish->folder_fd, publish->temporary, publish->folder_fd, publish->name) !=
            0) {
            return kvci_fail_errno(error, errno, KVC_NO_OFFSET, "giving the file its name");
        }
        remove_own(publish);
        publish->temporary[0] = '\0';
    }
    if (durability == KVC_DURABILITY_FULL && fsync(publish->folder_fd) != 0) {
        return kvci_fail_errno(error, errno, KVC_NO_OFFSET,
                               "the new file is complete and in its place, but a power cut may "
                               "still lose it: writing the folder to the disk");
    }
    return KVC_OK;
}

void kvci_publish_close(struct kvci_publish *publish, const struct kvc_allocator *allocator)
{
    if (publish->temporary[0] != '\0' && publish->process == getpid()) {
        (void)unlinkat(publish->folder_fd, publish->temporary, 0);
    }
    if (publish->fd >= 0) {
        (void)close(publish->fd);
    }
    if (publish->folder_fd >= 0) {
        (void)close(publish->folder_fd);
    }
    kvci_free(allocator, publish->name);
    publish->name = NULL;
    publish->fd = -1;
    publish->folder_fd = -1;
    publish->temporary[0] = '\0';
}
