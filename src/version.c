/* version.c: the version of the library, and roots in text.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kvc.h"

#include <string.h>

#include "blake3.h"
#include "status.h"

#include "ban.h"

#define ROOT_PREFIX "kvc1:"
#define ROOT_PREFIX_CHARS 5

const char *kvc_version(void)
{
    return KVC_VERSION;
}

const char *kvc_kernel(void)
{
    return kvci_blake3_kernel();
}

void kvc_root_format(const uint8_t root[KVC_DIGEST_BYTES], char ret_text[KVC_ROOT_TEXT_BYTES])
{
    memcpy(ret_text, ROOT_PREFIX, ROOT_PREFIX_CHARS);
    kvci_hex(root, KVC_DIGEST_BYTES, ret_text + ROOT_PREFIX_CHARS);
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    if (c >= 'A' && c <= 'F') {
        return c - 'A' + 10;
    }
    return -1;
}

enum kvc_status kvc_root_parse(const char *text, uint8_t ret_root[KVC_DIGEST_BYTES])
{
    uint8_t root[KVC_DIGEST_BYTES];
    if (text == NULL || ret_root == NULL) {
        return KVC_E_USAGE;
    }
    if (memcmp(text, ROOT_PREFIX, strnlen(text, ROOT_PREFIX_CHARS)) == 0) {
        text += strnlen(text, ROOT_PREFIX_CHARS);
    }
    if (strnlen(text, 2 * KVC_DIGEST_BYTES + 1) != 2 * KVC_DIGEST_BYTES) {
        return KVC_E_OPTION;
    }
    for (size_t i = 0; i < KVC_DIGEST_BYTES; i++) {
        int high = hex_digit(text[2 * i]);
        int low = hex_digit(text[2 * i + 1]);
        if (high < 0 || low < 0) {
            return KVC_E_OPTION;
        }
        root[i] = (uint8_t)(high << 4 | low);
    }
    memcpy(ret_root, root, sizeof(root));
    return KVC_OK;
}
