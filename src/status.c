/* status.c: fills in the error that a public function hands back.
 * SPDX-License-Identifier: Apache-2.0 */
#include "status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "ban.h"

#define SHOWN_BYTES 96

static const struct {
    enum kvc_status status;
    const char *name;
} names[] = {
    {KVC_OK, "ok"},
    {KVC_E_USAGE, "usage"},
    {KVC_E_OPTION, "option"},
    {KVC_E_RANGE, "range"},
    {KVC_E_NOT_FOUND, "not_found"},
    {KVC_E_CANCELLED, "cancelled"},
    {KVC_E_LENGTH, "length"},
    {KVC_E_IO, "io"},
    {KVC_E_NO_MEMORY, "no_memory"},
    {KVC_E_NO_SPACE, "no_space"},
    {KVC_E_CHANGED, "changed"},
    {KVC_E_NOT_REGULAR, "not_regular"},
    {KVC_E_LIMIT, "limit"},
    {KVC_E_NOT_MAPPABLE, "not_mappable"},
    {KVC_E_FOREIGN, "foreign"},
    {KVC_E_VERSION, "version"},
    {KVC_E_FEATURE, "feature"},
    {KVC_E_MANIFEST, "manifest"},
    {KVC_E_EMPTY, "empty"},
    {KVC_E_MANGLED, "mangled"},
    {KVC_E_TRUNCATED, "truncated"},
    {KVC_E_UNFINISHED, "unfinished"},
    {KVC_E_STRUCTURE, "structure"},
    {KVC_E_TRAILING, "trailing"},
    {KVC_E_JSON, "json"},
    {KVC_E_SCHEMA, "schema"},
    {KVC_E_GEOMETRY, "geometry"},
    {KVC_E_HEADER_CHECK, "header_check"},
    {KVC_E_FOOTER_CHECK, "footer_check"},
    {KVC_E_ROOT, "root"},
    {KVC_E_ROW, "row"},
    {KVC_E_CHUNK, "chunk"},
    {KVC_E_PADDING, "padding"},
    {KVC_E_IDENTITY, "identity"},
    {KVC_E_EXPECTED_ROOT, "expected_root"},
    {KVC_E_NO_TAG, "no_tag"},
    {KVC_E_TAG, "tag"},
};

const char *kvc_status_name(enum kvc_status status)
{
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (names[i].status == status) {
            return names[i].name;
        }
    }
    return "unknown";
}

const char *kvc_status_class(enum kvc_status status)
{
    unsigned number = (unsigned)status;
    switch (number / 10) {
    case 0:
        return number == 0 ? "ok" : "unknown";
    case 1:
        return "caller";
    case 2:
        return "environment";
    case 3:
        return "unsupported";
    case 4:
        return number < KVC_E_STRUCTURE ? "incomplete" : "corrupt";
    case 5:
        return "digest";
    case 6:
        return "identity";
    default:
        return "unknown";
    }
}

/* What vsnprintf cut may end inside a character. */
static void end_whole(char *text, size_t capacity, int wanted)
{
    if (wanted < 0 || (size_t)wanted < capacity) {
        return;
    }
    size_t last = capacity - 2;
    while (last > 0 && ((unsigned char)text[last] & 0xC0) == 0x80) {
        last--;
    }
    /* The character that begins at `last` may be whole or not; it goes in either case, unless it
     * is a single byte. */
    if (((unsigned char)text[last] & 0x80) != 0) {
        text[last] = '\0';
    }
}

static bool usable(const struct kvc_error *error)
{
    return error != NULL && error->size == sizeof(*error);
}

enum kvc_status kvci_fail(struct kvc_error *error, enum kvc_status status, uint64_t offset,
                          const char *format, ...)
{
    if (!usable(error)) {
        return status;
    }
    memset(error, 0, sizeof(*error));
    error->size = sizeof(*error);
    error->status = status;
    error->offset = offset;
    va_list arguments;
    va_start(arguments, format);
    int wanted = vsnprintf(error->message, sizeof(error->message), format, arguments);
    end_whole(error->message, sizeof(error->message), wanted);
    va_end(arguments);
    return status;
}

/* strerror is not safe with threads, and strerror_r differs between systems. */
static const char *errno_phrase(int sys_errno)
{
    switch (sys_errno) {
    case ENOENT:
        return "there is no such file or folder";
    case EACCES:
    case EPERM:
        return "permission is denied";
    case ENOTDIR:
        return "a part of the path is not a folder";
    case EISDIR:
        return "it is a folder";
    case ENOSPC:
        return "the file system is full";
    case EDQUOT:
        return "the disk quota is used up";
    case EFBIG:
        return "the file would be larger than the system allows";
    case EROFS:
        return "the file system is read-only";
    case EMFILE:
    case ENFILE:
        return "too many files are open";
    case EIO:
        return "the device reported an input/output error";
    case ELOOP:
        return "the path holds too many symbolic links";
    case ENAMETOOLONG:
        return "the name is too long";
    case ENOMEM:
        return "the system has no memory left";
    case EPIPE:
        return "the reader of the pipe is gone";
    case EBADF:
        return "the file descriptor is not open for this";
    default:
        return "the system refused";
    }
}

enum kvc_status kvci_fail_errno(struct kvc_error *error, int sys_errno, uint64_t offset,
                                const char *doing)
{
    enum kvc_status status = KVC_E_IO;
    if (sys_errno == ENOSPC || sys_errno == EDQUOT || sys_errno == EFBIG) {
        status = KVC_E_NO_SPACE;
    } else if (sys_errno == ENOMEM) {
        status = KVC_E_NO_MEMORY;
    }
    (void)kvci_fail(error, status, offset, "%s failed: %s (errno %d)", doing,
                    errno_phrase(sys_errno), sys_errno);
    kvci_error_errno(error, sys_errno);
    return status;
}

enum kvc_status kvci_fail_memory(struct kvc_error *error, uint64_t bytes)
{
    return kvci_fail(error, KVC_E_NO_MEMORY, KVC_NO_OFFSET,
                     "no memory: the allocator refused %llu bytes", (unsigned long long)bytes);
}

void kvci_copy_text(char *ret_text, size_t capacity, const char *text, size_t bytes)
{
    size_t length = bytes < capacity ? bytes : capacity - 1;
    /* A cut inside a character would leave invalid UTF-8: go back to its first byte. */
    while (length < bytes && length > 0 && ((unsigned char)text[length] & 0xC0) == 0x80) {
        length--;
    }
    memcpy(ret_text, text, length);
    ret_text[length] = '\0';
}

void kvci_error_errno(struct kvc_error *error, int sys_errno)
{
    if (usable(error)) {
        error->sys_errno = sys_errno;
    }
}

void kvci_error_field(struct kvc_error *error, const char *text, size_t bytes)
{
    if (usable(error)) {
        kvci_copy_text(error->field, sizeof(error->field), text, bytes);
    }
}

void kvci_error_expected(struct kvc_error *error, const char *format, ...)
{
    if (usable(error)) {
        va_list arguments;
        va_start(arguments, format);
        int wanted = vsnprintf(error->expected, sizeof(error->expected), format, arguments);
        end_whole(error->expected, sizeof(error->expected), wanted);
        va_end(arguments);
    }
}

void kvci_error_found(struct kvc_error *error, const char *format, ...)
{
    if (usable(error)) {
        va_list arguments;
        va_start(arguments, format);
        int wanted = vsnprintf(error->found, sizeof(error->found), format, arguments);
        end_whole(error->found, sizeof(error->found), wanted);
        va_end(arguments);
    }
}

void kvci_hex(const uint8_t *data, size_t bytes, char *ret_text)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < bytes; i++) {
        ret_text[2 * i] = digits[data[i] >> 4];
        ret_text[2 * i + 1] = digits[data[i] & 15];
    }
    ret_text[2 * bytes] = '\0';
}

/* Returns the largest length up to `length` at which no character of the text is cut. */
static size_t whole_characters(const char *text, size_t length)
{
    while (length > 0 && ((unsigned char)text[length] & 0xC0) == 0x80) {
        length--;
    }
    return length;
}

int kvci_shown(const char *text, size_t bytes)
{
    return (int)(bytes <= SHOWN_BYTES ? bytes : whole_characters(text, SHOWN_BYTES));
}
