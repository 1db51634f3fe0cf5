/* status.h: fills in the error that a public function hands back.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCI_STATUS_H
#define KVCI_STATUS_H

#include "kvc.h"

#if defined(__GNUC__)
#define KVCI_PRINTF(format_at, first_at) __attribute__((format(printf, format_at, first_at)))
#else
#define KVCI_PRINTF(format_at, first_at)
#endif

/* Fills in status, offset and message, clears the rest, and returns the status. `error` may be
 * NULL. A caller's struct of another size is left alone. */
enum kvc_status kvci_fail(struct kvc_error *error, enum kvc_status status, uint64_t offset,
                          const char *format, ...) KVCI_PRINTF(4, 5);

/* The same for a failed system call; chooses KVC_E_NO_SPACE where errno says so. `doing` is a
 * phrase like "reading". */
enum kvc_status kvci_fail_errno(struct kvc_error *error, int sys_errno, uint64_t offset,
                                const char *doing);

enum kvc_status kvci_fail_memory(struct kvc_error *error, uint64_t bytes);

/* Adds detail to an error just made; `text` need not be terminated. */
void kvci_error_field(struct kvc_error *error, const char *text, size_t bytes);
void kvci_error_errno(struct kvc_error *error, int sys_errno);
void kvci_error_expected(struct kvc_error *error, const char *format, ...) KVCI_PRINTF(2, 3);
void kvci_error_found(struct kvc_error *error, const char *format, ...) KVCI_PRINTF(2, 3);

/* Copies at most `capacity - 1` bytes, cut at a whole UTF-8 character, and terminates. */
void kvci_copy_text(char *ret_text, size_t capacity, const char *text, size_t bytes);

/* Writes 2 * bytes lower-case hexadecimal digits and a final zero. */
void kvci_hex(const uint8_t *data, size_t bytes, char *ret_text);

/* Bytes of a text of a file to show with "%.*s" in a message; a longer text is cut there, at a
 * whole character. */
int kvci_shown(const char *text, size_t bytes);

#endif
