/* keyfile.c: reads the 32 bytes of a key from a file, and wipes them.
 * SPDX-License-Identifier: Apache-2.0 */
#include "keyfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "report.h"

#define HEX_BYTES (2 * (size_t)KVC_DIGEST_BYTES)

/* One byte more than the longest key file, so that a longer one is noticed. */
#define READ_BYTES (HEX_BYTES + 2)

void keyfile_wipe(void *key, size_t bytes)
{
    volatile unsigned char *at = key;
    while (bytes > 0) {
        *at++ = 0;
        bytes--;
    }
}

/* stdio would leave a copy of the key in its buffer. Returns an errno value. */
static int read_start(const char *path, uint8_t *buffer, size_t *ret_bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return errno;
    }
    size_t length = 0;
    int failure = 0;
    while (length < READ_BYTES) {
        ssize_t got = read(fd, buffer + length, READ_BYTES - length);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            failure = errno;
        }
        if (got <= 0) {
            break;
        }
        length += (size_t)got;
    }
    (void)close(fd);
    *ret_bytes = length;
    return failure;
}

static int hex_value(uint8_t digit)
{
    if (digit >= '0' && digit <= '9') {
        return digit - '0';
    }
    if (digit >= 'a' && digit <= 'f') {
        return digit - 'a' + 10;
    }
    if (digit >= 'A' && digit <= 'F') {
        return digit - 'A' + 10;
    }
    return -1;
}

static bool decode_key(const uint8_t *text, size_t bytes, uint8_t ret_key[KVC_DIGEST_BYTES])
{
    if (bytes == KVC_DIGEST_BYTES) {
        memcpy(ret_key, text, KVC_DIGEST_BYTES);
        return true;
    }
    if (bytes != HEX_BYTES && !(bytes == HEX_BYTES + 1 && text[HEX_BYTES] == '\n')) {
        return false;
    }
    for (size_t i = 0; i < HEX_BYTES; i++) {
        if (hex_value(text[i]) < 0) {
            return false;
        }
    }
    for (size_t i = 0; i < KVC_DIGEST_BYTES; i++) {
        ret_key[i] = (uint8_t)(hex_value(text[2 * i]) * 16 + hex_value(text[2 * i + 1]));
    }
    return true;
}

int keyfile_read(const char *command, const char *path, uint8_t ret_key[KVC_DIGEST_BYTES])
{
    uint8_t text[READ_BYTES];
    size_t bytes = 0;
    int code = CODE_GOOD;
    int failure = read_start(path, text, &bytes);
    if (failure != 0) {
        code = refuse_errno(path, "reading the key file", failure);
    } else if (!decode_key(text, bytes, ret_key)) {
        char length[32];
        (void)snprintf(length, sizeof(length), bytes == READ_BYTES ? "more" : "%zu bytes", bytes);
        code = usage_error(command,
                           "%.300s is no key file: expected 32 raw bytes, or 64 hexadecimal digits "
                           "with at most one line end, and found %s%s",
                           path, length,
                           bytes == HEX_BYTES || bytes == HEX_BYTES + 1 ? " that are not all digits"
                                                                        : "");
    }
    keyfile_wipe(text, sizeof(text));
    return code;
}
