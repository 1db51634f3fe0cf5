/* shim.c: a library for LD_PRELOAD that makes the n-th call of a system function fail.
 * SPDX-License-Identifier: Apache-2.0
 *
 * It is told by the environment:
 *   KVC_FAULT_CALL    the function: open, fstat, pread, ... (see `names`)
 *   KVC_FAULT_AT      the number of the call that it spoils, counted from 1 in the process
 *   KVC_FAULT_UNTIL   the last call that it spoils; without it the first is the only one
 *   KVC_FAULT_DO      error, short, zero, kill or kill-after
 *   KVC_FAULT_ERRNO   errno of `error`, a number
 *   KVC_FAULT_MET     a file that is made when a call was spoiled
 *   KVC_FAULT_NAMED   when set, files without a name are refused, so that named ones are used
 *
 * It is built with the same _FILE_OFFSET_BITS as the library, so that the system's headers give
 * these functions the names that the library calls: open64 for open, and so on. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum call {
    CALL_OPEN,
    CALL_FSTAT,
    CALL_FSTATAT,
    CALL_READ,
    CALL_PREAD,
    CALL_PWRITE,
    CALL_FALLOCATE,
    CALL_FSYNC,
    CALL_FLOCK,
    CALL_LINKAT,
    CALL_RENAMEAT,
    CALL_UNLINKAT,
    CALL_MMAP,
    CALL_SYNC,
    CALL_FADVISE,
    CALL_THREAD,
    CALLS
};

static const char *const names[CALLS] = {
    "open",      "fstat",           "fstatat",       "read",           "pread",    "pwrite",
    "fallocate", "fsync",           "flock",         "linkat",         "renameat", "unlinkat",
    "mmap",      "sync_file_range", "posix_fadvise", "pthread_create",
};

enum deed { PASS, FAIL, SHORTEN, NOTHING, DIE_AFTER };

static atomic_long counts[CALLS];
static atomic_bool met;

static long number(const char *variable, long otherwise)
{
    const char *text = getenv(variable);
    return text != NULL ? strtol(text, NULL, 10) : otherwise;
}

static void tell(void)
{
    const char *path = getenv("KVC_FAULT_MET");
    if (path != NULL && !atomic_exchange(&met, true)) {
        long fd = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        (void)syscall(SYS_close, fd);
    }
}

/* Counts a call and says what becomes of it; sets errno where it fails. */
static enum deed judge(enum call call)
{
    const char *wanted = getenv("KVC_FAULT_CALL");
    if (wanted == NULL || strcmp(wanted, names[call]) != 0) {
        return PASS;
    }
    long count = atomic_fetch_add(&counts[call], 1) + 1;
    long first = number("KVC_FAULT_AT", 1);
    if (count < first || count > number("KVC_FAULT_UNTIL", first)) {
        return PASS;
    }
    const char *deed = getenv("KVC_FAULT_DO");
    tell();
    if (deed == NULL || strcmp(deed, "error") == 0) {
        errno = (int)number("KVC_FAULT_ERRNO", EIO);
        return FAIL;
    }
    if (strcmp(deed, "kill") == 0) {
        (void)kill(getpid(), SIGKILL);
    }
    return strcmp(deed, "short") == 0 ? SHORTEN : strcmp(deed, "zero") == 0 ? NOTHING : DIE_AFTER;
}

static void after(enum deed deed)
{
    if (deed == DIE_AFTER) {
        (void)kill(getpid(), SIGKILL);
    }
}

/* The function that this one stands before. */
static void next(const char *name, void *ret_function)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL) {
        abort();
    }
    memcpy(ret_function, &found, sizeof(found));
}

static size_t shorter(size_t bytes)
{
    return bytes > 1 ? (bytes + 1) / 2 : bytes;
}

static int open_spoiled(int folder_fd, const char *path, int flags, mode_t mode)
{
    if ((flags & O_TMPFILE) == O_TMPFILE && getenv("KVC_FAULT_NAMED") != NULL) {
        errno = EOPNOTSUPP;
        return -1;
    }
    enum deed deed = judge(CALL_OPEN);
    if (deed == FAIL) {
        return -1;
    }
    int fd = (int)syscall(SYS_openat, folder_fd, path, flags, mode);
    after(deed);
    return fd;
}

/* The mode is there only when the flags ask for a new file. */
#define TAKE_MODE(flags, mode)                                                                     \
    mode_t mode = 0;                                                                               \
    if (((flags)&O_CREAT) != 0 || ((flags)&O_TMPFILE) == O_TMPFILE) {                              \
        va_list arguments;                                                                         \
        va_start(arguments, flags);                                                                \
        mode = va_arg(arguments, mode_t);                                                          \
        va_end(arguments);                                                                         \
    }

EXPORT int open(const char *path, int flags, ...)
{
    TAKE_MODE(flags, mode)
    return open_spoiled(AT_FDCWD, path, flags, mode);
}

EXPORT int openat(int folder_fd, const char *path, int flags, ...)
{
    TAKE_MODE(flags, mode)
    return open_spoiled(folder_fd, path, flags, mode);
}

EXPORT int fstat(int fd, struct stat *ret_facts)
{
    int (*real)(int, struct stat *) = NULL;
    enum deed deed = judge(CALL_FSTAT);
    next("fstat", &real);
    int result = deed == FAIL ? -1 : real(fd, ret_facts);
    after(deed);
    return result;
}

EXPORT int fstatat(int folder_fd, const char *restrict path, struct stat *restrict ret_facts,
                   int flags)
{
    int (*real)(int, const char *, struct stat *, int) = NULL;
    enum deed deed = judge(CALL_FSTATAT);
    next("fstatat", &real);
    int result = deed == FAIL ? -1 : real(folder_fd, path, ret_facts, flags);
    after(deed);
    return result;
}

EXPORT ssize_t read(int fd, void *buffer, size_t bytes)
{
    ssize_t (*real)(int, void *, size_t) = NULL;
    enum deed deed = judge(CALL_READ);
    next("read", &real);
    if (deed == FAIL || deed == NOTHING) {
        return deed == FAIL ? -1 : 0;
    }
    ssize_t result = real(fd, buffer, deed == SHORTEN ? shorter(bytes) : bytes);
    after(deed);
    return result;
}

EXPORT ssize_t pread(int fd, void *buffer, size_t bytes, off_t offset)
{
    ssize_t (*real)(int, void *, size_t, off_t) = NULL;
    enum deed deed = judge(CALL_PREAD);
    next("pread", &real);
    if (deed == FAIL || deed == NOTHING) {
        return deed == FAIL ? -1 : 0;
    }
    ssize_t result = real(fd, buffer, deed == SHORTEN ? shorter(bytes) : bytes, offset);
    after(deed);
    return result;
}

EXPORT ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    ssize_t (*real)(int, const void *, size_t, off_t) = NULL;
    enum deed deed = judge(CALL_PWRITE);
    next("pwrite", &real);
    if (deed == FAIL || deed == NOTHING) {
        return deed == FAIL ? -1 : 0;
    }
    ssize_t result = real(fd, data, deed == SHORTEN ? shorter(bytes) : bytes, offset);
    after(deed);
    return result;
}

EXPORT int fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    int (*real)(int, int, off_t, off_t) = NULL;
    enum deed deed = judge(CALL_FALLOCATE);
    next("fallocate", &real);
    int result = deed == FAIL ? -1 : real(fd, mode, offset, bytes);
    after(deed);
    return result;
}

EXPORT int fsync(int fd)
{
    int (*real)(int) = NULL;
    enum deed deed = judge(CALL_FSYNC);
    next("fsync", &real);
    int result = deed == FAIL ? -1 : real(fd);
    after(deed);
    return result;
}

EXPORT int flock(int fd, int operation)
{
    int (*real)(int, int) = NULL;
    enum deed deed = judge(CALL_FLOCK);
    next("flock", &real);
    int result = deed == FAIL ? -1 : real(fd, operation);
    after(deed);
    return result;
}

EXPORT int linkat(int old_fd, const char *old_path, int new_fd, const char *new_path, int flags)
{
    int (*real)(int, const char *, int, const char *, int) = NULL;
    enum deed deed = judge(CALL_LINKAT);
    next("linkat", &real);
    int result = deed == FAIL ? -1 : real(old_fd, old_path, new_fd, new_path, flags);
    after(deed);
    return result;
}

EXPORT int renameat(int old_fd, const char *old_path, int new_fd, const char *new_path)
{
    int (*real)(int, const char *, int, const char *) = NULL;
    enum deed deed = judge(CALL_RENAMEAT);
    next("renameat", &real);
    int result = deed == FAIL ? -1 : real(old_fd, old_path, new_fd, new_path);
    after(deed);
    return result;
}

EXPORT int unlinkat(int folder_fd, const char *path, int flags)
{
    int (*real)(int, const char *, int) = NULL;
    enum deed deed = judge(CALL_UNLINKAT);
    next("unlinkat", &real);
    int result = deed == FAIL ? -1 : real(folder_fd, path, flags);
    after(deed);
    return result;
}

/* Memory without a file is the C library's business. */
EXPORT void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    if (fd >= 0 && judge(CALL_MMAP) == FAIL) {
        return MAP_FAILED;
    }
    long result = syscall(SYS_mmap, address, bytes, protection, flags, fd, offset);
    return (void *)result; /* -1 is MAP_FAILED */
}

EXPORT int sync_file_range(int fd, off_t offset, off_t bytes, unsigned flags)
{
    int (*real)(int, off_t, off_t, unsigned) = NULL;
    enum deed deed = judge(CALL_SYNC);
    next("sync_file_range", &real);
    int result = deed == FAIL ? -1 : real(fd, offset, bytes, flags);
    after(deed);
    return result;
}

/* These two return the error. */
EXPORT int posix_fadvise(int fd, off_t offset, off_t bytes, int advice)
{
    int (*real)(int, off_t, off_t, int) = NULL;
    next("posix_fadvise", &real);
    return judge(CALL_FADVISE) == FAIL ? errno : real(fd, offset, bytes, advice);
}

EXPORT int pthread_create(pthread_t *ret_thread, const pthread_attr_t *attributes,
                          void *(*body)(void *), void *argument)
{
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = NULL;
    next("pthread_create", &real);
    return judge(CALL_THREAD) == FAIL ? errno : real(ret_thread, attributes, body, argument);
}
