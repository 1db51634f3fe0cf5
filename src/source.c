/* source.c: where a reader's bytes come from: a file, memory, or the caller's functions.
 * SPDX-License-Identifier: Apache-2.0 */
#include "source.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "status.h"

#include "ban.h"

/* Linux moves at most 2 GiB less a page in one call. */
#define MAX_READ_BYTES ((size_t)1 << 30)

static_assert(sizeof(off_t) == 8, "large files need a 64-bit off_t");

static void clear(struct kvci_source *source)
{
    memset(source, 0, sizeof(*source));
    source->fd = -1;
}

static enum kvc_status take_fd(int fd, struct kvci_source *ret_source, struct kvc_error *error)
{
    struct stat facts;
    if (fstat(fd, &facts) != 0) {
        return kvci_fail_errno(error, errno, KVC_NO_OFFSET, "looking at the file");
    }
    if (!S_ISREG(facts.st_mode)) {
        const char *kind = S_ISDIR(facts.st_mode)    ? "a folder"
                           : S_ISFIFO(facts.st_mode) ? "a pipe"
                           : S_ISSOCK(facts.st_mode) ? "a socket"
                                                     : "a device";
        (void)kvci_fail(error, KVC_E_NOT_REGULAR, KVC_NO_OFFSET,
                        "not a regular file: it is %s, and only a file can be read at any place",
                        kind);
        kvci_error_errno(error, S_ISDIR(facts.st_mode) ? EISDIR : 0);
        kvci_error_found(error, "%s", kind);
        return KVC_E_NOT_REGULAR;
    }
    clear(ret_source);
    ret_source->fd = fd;
    ret_source->file_bytes = (uint64_t)facts.st_size;
    return KVC_OK;
}

enum kvc_status kvci_source_open_path(const char *path, struct kvci_source *ret_source,
                                      struct kvc_error *error)
{
    int fd = -1;
    do {
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0) {
        return kvci_fail_errno(error, errno, KVC_NO_OFFSET, "opening the file");
    }
    enum kvc_status status = take_fd(fd, ret_source, error);
    if (status != KVC_OK) {
        (void)close(fd);
    }
    return status;
}

enum kvc_status kvci_source_open_fd(int fd, struct kvci_source *ret_source, struct kvc_error *error)
{
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0) {
        return kvci_fail_errno(error, errno, KVC_NO_OFFSET, "duplicating the file descriptor");
    }
    enum kvc_status status = take_fd(own, ret_source, error);
    if (status != KVC_OK) {
        (void)close(own);
    }
    return status;
}

void kvci_source_open_memory(const void *data, uint64_t data_bytes, struct kvci_source *ret_source)
{
    clear(ret_source);
    ret_source->memory = data;
    ret_source->file_bytes = data_bytes;
}

void kvci_source_open_custom(const struct kvc_source *custom, struct kvci_source *ret_source)
{
    clear(ret_source);
    ret_source->custom = *custom;
    ret_source->file_bytes = custom->file_bytes;
}

void kvci_source_close(struct kvci_source *source)
{
    if (source->fd >= 0) {
        (void)close(source->fd);
    }
    if (source->custom.close != NULL) {
        source->custom.close(source->custom.context);
    }
    clear(source);
}

static enum kvc_status changed(uint64_t offset, struct kvc_error *error)
{
    return kvci_fail(error, KVC_E_CHANGED, offset,
                     "the file became shorter while it was open: nothing is left at byte %llu; "
                     "writers must replace files, not truncate them",
                     (unsigned long long)offset);
}

static enum kvc_status read_file(int fd, uint8_t *buffer, size_t bytes, uint64_t offset,
                                 struct kvc_error *error)
{
    size_t done = 0;
    while (done < bytes) {
        size_t wanted = bytes - done < MAX_READ_BYTES ? bytes - done : MAX_READ_BYTES;
        ssize_t count = pread(fd, buffer + done, wanted, (off_t)(offset + done));
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count < 0) {
            return kvci_fail_errno(error, errno, offset + done, "reading the file");
        }
        if (count == 0) {
            return changed(offset + done, error);
        }
        done += (size_t)count;
    }
    return KVC_OK;
}

enum kvc_status kvci_source_read(const struct kvci_source *source, void *buffer, uint64_t bytes,
                                 uint64_t offset, struct kvc_error *error)
{
    if (offset > source->file_bytes || bytes > source->file_bytes - offset) {
        return changed(source->file_bytes, error);
    }
    if (source->fd >= 0) {
        return read_file(source->fd, buffer, (size_t)bytes, offset, error);
    }
    if (source->custom.read_at != NULL) {
        int code = source->custom.read_at(source->custom.context, buffer, (size_t)bytes, offset);
        return code == 0 ? KVC_OK : kvci_fail_errno(error, code, offset, "reading the source");
    }
    memcpy(buffer, source->memory + offset, (size_t)bytes);
    return KVC_OK;
}

enum kvc_status kvci_source_map(const struct kvci_source *source, void **ret_base, bool *ret_owned,
                                struct kvc_error *error)
{
    if (source->memory != NULL) {
        /* The caller asked for views on this memory, and may write where it may. */
        memcpy(ret_base, &source->memory, sizeof(*ret_base));
        *ret_owned = false;
        return KVC_OK;
    }
    if (source->fd < 0) {
        return kvci_fail(error, KVC_E_NOT_MAPPABLE, KVC_NO_OFFSET,
                         "a source of the caller's functions cannot be mapped: read it instead");
    }
    struct stat facts;
    if (fstat(source->fd, &facts) != 0) {
        return kvci_fail_errno(error, errno, KVC_NO_OFFSET, "looking at the file");
    }
    if ((uint64_t)facts.st_size < source->file_bytes) {
        return changed((uint64_t)facts.st_size, error);
    }
    if (source->file_bytes > SIZE_MAX) {
        return kvci_fail(error, KVC_E_NO_MEMORY, KVC_NO_OFFSET,
                         "the file is larger than the address space: read parts of it instead");
    }
    void *base =
        mmap(NULL, (size_t)source->file_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, source->fd, 0);
    if (base == MAP_FAILED) {
        return kvci_fail_errno(error, errno, KVC_NO_OFFSET, "mapping the file");
    }
    *ret_base = base;
    *ret_owned = true;
    return KVC_OK;
}

void kvci_source_unmap(void *base, uint64_t bytes)
{
    (void)munmap(base, (size_t)bytes);
}

void kvci_source_sequential(const struct kvci_source *source)
{
    if (source->fd >= 0) {
        (void)posix_fadvise(source->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    }
}
