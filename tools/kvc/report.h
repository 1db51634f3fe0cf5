/* report.h: refusals on stderr, the exit code of a status, and the end of standard output.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVC_REPORT_H
#define KVC_REPORT_H

#include "kvc.h"

#include "commands.h"

#if defined(__GNUC__)
#define REPORT_PRINTF(format_at, first_at) __attribute__((format(printf, format_at, first_at)))
#else
#define REPORT_PRINTF(format_at, first_at)
#endif

/* Returns the exit code that a status of the library means. */
int status_code(enum kvc_status status);

/* Returns the code that wins when two files end differently. */
int worse_code(int first, int second);

/* Prints `kvc: NAME: message` as one line on stderr. `format` may insert text from files: the
 * whole message is printed safely. `name` may be NULL, for what concerns no file. */
void refuse(const char *name, const char *format, ...) REPORT_PRINTF(2, 3);

/* Prints an error of the library, and returns its exit code. */
int refuse_error(const char *name, const struct kvc_error *error);

/* Prints an errno value with what was being done, and returns CODE_TROUBLE. */
int refuse_errno(const char *name, const char *doing, int sys_errno);

/* Prints a message about the command line that points to the help text, and returns CODE_USAGE.
 * `command` is NULL for kvc itself. */
int usage_error(const char *command, const char *format, ...) REPORT_PRINTF(2, 3);

/* Makes a pipe whose reader has left, and a file that may not grow, errors of write instead of the
 * end of the process. */
void report_start(void);

/* Flushes standard output. Returns `code`, or CODE_TROUBLE when results were lost; says so once,
 * unless the reader of a pipe simply left. */
int finish_output(int code);

/* The same for a write to standard output that failed with `sys_errno`, 0 when not known. */
int output_failed(int sys_errno);

#endif
