/* sink.c: where a writer's bytes go: a file to be published, or the caller's functions.
 * SPDX-License-Identifier: Apache-2.0 */
#include "sink.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "status.h"

#include "ban.h"

/* Linux moves at most 2 GiB less a page in one call. */
#define MAX_WRITE_BYTES ((size_t)1 << 30)

/* The disk is given this much to write at a time, while more is being hashed. */
#define BEHIND_BYTES (UINT64_C(8) << 20)

#define ZEROS_BYTES 4096

/* Some file systems undo and give up at any signal, so that a timer could keep a loop for ever. */
#define RESERVE_TRIES 3

static_assert(sizeof(off_t) == 8, "large files need a 64-bit off_t");

enum kvc_status kvci_sink_open_path(const char *path, enum kvc_durability durability,
                                    const struct kvc_allocator *allocator,
                                    struct kvci_sink *ret_sink, struct kvc_error *error)
{
    memset(ret_sink, 0, sizeof(*ret_sink));
    ret_sink->is_file = true;
    ret_sink->durability = durability;
    enum kvc_status status = kvci_publish_open(path, allocator, &ret_sink->publish, error);
    ret_sink->done = status != KVC_OK;
    return status;
}

void kvci_sink_open_custom(const struct kvc_sink *custom, struct kvci_sink *ret_sink)
{
    memset(ret_sink, 0, sizeof(*ret_sink));
    ret_sink->custom = *custom;
}

bool kvci_sink_is_random(const struct kvci_sink *sink)
{
    return sink->is_file;
}

enum kvc_status kvci_sink_reserve(struct kvci_sink *sink, uint64_t file_bytes,
                                  struct kvc_error *error)
{
    if (!sink->is_file) {
        return KVC_OK;
    }
#if KVCI_LINUX_CALLS
    int code = EINTR;
    for (unsigned tries = 0; code == EINTR && tries < RESERVE_TRIES; tries++) {
        code = fallocate(sink->publish.fd, 0, 0, (off_t)file_bytes) == 0 ? 0 : errno;
    }
    if (code == ENOSPC || code == EDQUOT || code == EFBIG) {
        (void)kvci_fail_errno(error, code, KVC_NO_OFFSET, "reserving space for the file");
        kvci_error_expected(error, "%llu bytes of free space", (unsigned long long)file_bytes);
        return KVC_E_NO_SPACE;
    }
#else
    (void)file_bytes;
    (void)error;
#endif
    /* A file system that cannot reserve reports a full disk when it is written to. */
    return KVC_OK;
}

/* Starts the disk while the processor goes on hashing. The last window is left to fsync. Errors
 * show up at fsync too, so this is only a hint. */
static void write_behind(struct kvci_sink *sink, uint64_t bytes)
{
#if KVCI_LINUX_CALLS
    uint64_t written = atomic_fetch_add(&sink->written_bytes, bytes) + bytes;
    uint_fast64_t behind = atomic_load(&sink->behind_bytes);
    if (sink->durability == KVC_DURABILITY_NONE || written < behind + BEHIND_BYTES) {
        return;
    }
    if (atomic_compare_exchange_strong(&sink->behind_bytes, &behind, behind + BEHIND_BYTES)) {
        (void)sync_file_range(sink->publish.fd, (off_t)behind, (off_t)BEHIND_BYTES,
                              SYNC_FILE_RANGE_WRITE);
    }
#else
    (void)sink;
    (void)bytes;
#endif
}

static enum kvc_status write_file(struct kvci_sink *sink, const uint8_t *data, size_t bytes,
                                  uint64_t offset, struct kvc_error *error)
{
    size_t done = 0;
    while (done < bytes) {
        size_t wanted = bytes - done < MAX_WRITE_BYTES ? bytes - done : MAX_WRITE_BYTES;
        ssize_t count = pwrite(sink->publish.fd, data + done, wanted, (off_t)(offset + done));
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count <= 0) {
            int code = count < 0 ? errno : EIO;
            return kvci_fail_errno(error, code, offset + done, "writing the file");
        }
        done += (size_t)count;
    }
    write_behind(sink, bytes);
    return KVC_OK;
}

static enum kvc_status write_custom(struct kvci_sink *sink, const void *data, uint64_t bytes,
                                    struct kvc_error *error)
{
    int code = sink->custom.write(sink->custom.context, data, (size_t)bytes);
    if (code != 0) {
        return kvci_fail_errno(error, code, sink->position, "writing to the sink");
    }
    sink->position += bytes;
    return KVC_OK;
}

enum kvc_status kvci_sink_write(struct kvci_sink *sink, const void *data, uint64_t bytes,
                                uint64_t offset, struct kvc_error *error)
{
    static const uint8_t zeros[ZEROS_BYTES];
    if (sink->is_file) {
        return write_file(sink, data, (size_t)bytes, offset, error);
    }
    enum kvc_status status = KVC_OK;
    while (status == KVC_OK && sink->position < offset) {
        uint64_t gap = offset - sink->position;
        status = write_custom(sink, zeros, gap < ZEROS_BYTES ? gap : ZEROS_BYTES, error);
    }
    return status == KVC_OK ? write_custom(sink, data, bytes, error) : status;
}

enum kvc_status kvci_sink_finish(struct kvci_sink *sink, struct kvc_error *error)
{
    if (sink->is_file) {
        enum kvc_status status = kvci_publish_commit(&sink->publish, sink->durability, error);
        sink->done = status == KVC_OK;
        return status;
    }
    sink->done = true;
    int code = sink->custom.finish != NULL ? sink->custom.finish(sink->custom.context) : 0;
    return code == 0 ? KVC_OK : kvci_fail_errno(error, code, KVC_NO_OFFSET, "finishing the sink");
}

void kvci_sink_close(struct kvci_sink *sink, const struct kvc_allocator *allocator)
{
    if (sink->is_file) {
        kvci_publish_close(&sink->publish, allocator);
    } else if (!sink->done && sink->custom.discard != NULL) {
        sink->custom.discard(sink->custom.context);
    }
    sink->done = true;
}
