/* report.c: refusals on stderr, the exit code of a status, and the end of standard output.
 * SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "safe_text.h"

#define MESSAGE_BYTES 2048

int status_code(enum kvc_status status)
{
    switch (status) {
    case KVC_OK:
        return CODE_GOOD;
    case KVC_E_RANGE:
    case KVC_E_NOT_FOUND:
    case KVC_E_LENGTH:
        /* What was asked for is well formed, and the file does not have it. */
        return CODE_BAD;
    default:
        return (unsigned)status >= KVC_E_FOREIGN ? CODE_BAD : CODE_TROUBLE;
    }
}

int worse_code(int first, int second)
{
    return first > second ? first : second;
}

static void refuse_message(const char *name, const char *message)
{
    (void)fputs("kvc: ", stderr);
    if (name != NULL) {
        (void)put_safe_text(stderr, name, SAFE_WHOLE);
        (void)fputs(": ", stderr);
    }
    (void)put_safe_text(stderr, message, SAFE_WHOLE);
    (void)fputc('\n', stderr);
    (void)fflush(stderr);
}

void refuse(const char *name, const char *format, ...)
{
    char message[MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(message, sizeof(message), format, arguments);
    va_end(arguments);
    refuse_message(name, message);
}

int refuse_error(const char *name, const struct kvc_error *error)
{
    refuse_message(name, error->message);
    return status_code(error->status);
}

int refuse_errno(const char *name, const char *doing, int sys_errno)
{
    refuse(name, "%s failed: %s", doing, strerror(sys_errno));
    return CODE_TROUBLE;
}

int usage_error(const char *command, const char *format, ...)
{
    char message[MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(message, sizeof(message), format, arguments);
    va_end(arguments);
    (void)fprintf(stderr, "kvc%s%s: ", command == NULL ? "" : " ", command == NULL ? "" : command);
    (void)put_safe_text(stderr, message, SAFE_WHOLE);
    (void)fprintf(stderr, "; see kvc%s%s --help\n", command == NULL ? "" : " ",
                  command == NULL ? "" : command);
    (void)fflush(stderr);
    return CODE_USAGE;
}

/* Set by SIGPIPE: stdio does not keep the errno of a write that failed some calls ago. */
static volatile sig_atomic_t reader_left = 0;

static void note_reader_left(int number)
{
    (void)number;
    reader_left = 1;
}

void report_start(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof(action));
    action.sa_handler = note_reader_left;
    (void)sigemptyset(&action.sa_mask);
    action.sa_flags = SA_RESTART;
    (void)sigaction(SIGPIPE, &action, NULL);
    /* A limit on the size of files is an error of write too. */
    action.sa_handler = SIG_IGN;
    (void)sigaction(SIGXFSZ, &action, NULL);
}

int output_failed(int sys_errno)
{
    static bool said = false;
    /* A reader like `head` that has seen enough is no reason for a message. */
    if (!said && sys_errno != EPIPE && !reader_left) {
        if (sys_errno == 0) {
            refuse(NULL, "writing to standard output failed");
        } else {
            refuse(NULL, "writing to standard output failed: %s", strerror(sys_errno));
        }
    }
    said = true;
    return CODE_TROUBLE;
}

int finish_output(int code)
{
    bool failed_before = ferror(stdout) != 0;
    errno = 0;
    if (fflush(stdout) != 0) {
        return output_failed(errno);
    }
    return failed_before ? output_failed(0) : code;
}
