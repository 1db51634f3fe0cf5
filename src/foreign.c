/* foreign.c: names the format of a file that is not a KVC1 container; pure.
 * SPDX-License-Identifier: Apache-2.0 */
#include "foreign.h"

#include <stdbool.h>
#include <string.h>

#include "bytes.h"
#include "layout.h"
#include "status.h"

#include "ban.h"

/* Each form of the magic that a text-mode transfer leaves, and the transfer that does it. */
static const struct {
    const char *bytes;
    size_t length;
    const char *cause;
} mangled[] = {
    {"\x09KVC1", 5, "the high bit of each byte was cleared"},
    {"\xC2\x89KVC1", 6, "it was converted from Latin-1 to UTF-8"},
    {"\xE2\x80\xB0KVC1", 7, "it was converted from Windows-1252 to UTF-8"},
    {"\xEF\xBF\xBDKVC1", 7, "bytes that are not UTF-8 were replaced"},
    {"KVC1\r\n", 6, "bytes that are not ASCII were dropped"},
    {"KVC1\n", 5, "bytes that are not ASCII were dropped"},
    {"?KVC1", 5, "bytes that are not ASCII were replaced"},
    {"\x89KVC1\n\x1A", 7, "CR LF was changed to LF"},
    {"\x89KVC1\n\n\x1A", 8, "CR was changed to LF"},
    {"\x89KVC1\r\r\n", 8, "LF was changed to CR LF"},
    {"\x89KVC1", 5, "the bytes after it were changed"},
};

/* Signatures as each format's own documentation gives them. The llama.cpp numbers 0x6767736e and
 * 0x67677371 are stored little-endian. */
static const struct {
    const char *bytes;
    size_t length;
    const char *name;
} signatures[] = {
    {"GGUF", 4, "a GGUF model"},
    {"nsgg", 4, "a llama.cpp session state (ggsn)"},
    {"ggsn", 4, "a llama.cpp session state (ggsn) of a big-endian machine"},
    {"qsgg", 4, "a llama.cpp sequence state (ggsq)"},
    {"ggsq", 4, "a llama.cpp sequence state (ggsq) of a big-endian machine"},
    {"PK\x03\x04", 4, "a zip archive, such as torch.save and numpy.savez write"},
    {"\x89HDF\r\n\x1A\n", 8, "an HDF5 file"},
    {"\x93NUMPY", 6, "a numpy array (.npy)"},
    {"KVC\x01", 4, "another format whose files begin with KVC and the byte 0x01"},
    {"\x28\xB5\x2F\xFD", 4, "zstd-compressed data: decompress it first"},
    {"\x1F\x8B", 2, "gzip-compressed data: decompress it first"},
};

static bool starts(const uint8_t *head, size_t head_bytes, const char *with, size_t with_bytes)
{
    return head_bytes >= with_bytes && memcmp(head, with, with_bytes) == 0;
}

/* A safetensors file begins with the length of its JSON header and an opening brace. */
static bool is_safetensors(const uint8_t *head, size_t head_bytes)
{
    const uint64_t largest_header_bytes = 100000000;
    return head_bytes > 8 && kvci_load64(head) <= largest_header_bytes && kvci_load64(head) >= 2 &&
           head[8] == '{';
}

/* Protocols 2 to 5 begin with the opcode PROTO and their number. */
static bool is_pickle(const uint8_t *head, size_t head_bytes)
{
    return head_bytes >= 2 && head[0] == 0x80 && head[1] >= 2 && head[1] <= 5;
}

static const char *foreign_name(const uint8_t *head, size_t head_bytes)
{
    for (size_t i = 0; i < sizeof(signatures) / sizeof(signatures[0]); i++) {
        if (starts(head, head_bytes, signatures[i].bytes, signatures[i].length)) {
            return signatures[i].name;
        }
    }
    if (is_safetensors(head, head_bytes)) {
        return "a safetensors file";
    }
    if (is_pickle(head, head_bytes)) {
        return "a Python pickle";
    }
    if (kvci_first_nonzero(head, head_bytes) == head_bytes) {
        return "zero bytes, as a file has whose data never reached the disk";
    }
    return NULL;
}

enum kvc_status kvci_foreign(const uint8_t *head, size_t head_bytes, struct kvc_error *error)
{
    char found[2 * KVCI_MAGIC_BYTES + 1];
    size_t shown = head_bytes < KVCI_MAGIC_BYTES ? head_bytes : KVCI_MAGIC_BYTES;
    kvci_hex(head, shown, found);
    enum kvc_status status = KVC_E_FOREIGN;
    const char *name = foreign_name(head, head_bytes);
    const char *cause = NULL;
    for (size_t i = 0; cause == NULL && i < sizeof(mangled) / sizeof(mangled[0]); i++) {
        if (starts(head, head_bytes, mangled[i].bytes, mangled[i].length)) {
            cause = mangled[i].cause;
        }
    }
    if (cause != NULL) {
        status = kvci_fail(error, KVC_E_MANGLED, 0,
                           "a KVC1 file that was changed by a text-mode transfer: %s; transfer the "
                           "original again in binary mode",
                           cause);
    } else if (name != NULL) {
        status = kvci_fail(error, KVC_E_FOREIGN, 0, "not a KVC1 file: it is %s", name);
    } else {
        status = kvci_fail(error, KVC_E_FOREIGN, 0,
                           "not a KVC1 file: it begins with the bytes %s instead of "
                           "894b5643310d0a1a",
                           found);
    }
    kvci_error_field(error, "magic", 5);
    kvci_error_expected(error, "894b5643310d0a1a");
    kvci_error_found(error, "%s", found);
    return status;
}
