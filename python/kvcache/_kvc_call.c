/* _kvc_call.c: calls into libkvc without the GIL, and what they report back to Python.
 * SPDX-License-Identifier: Apache-2.0 */
#include "_kvc.h"

#include <string.h>
#include <time.h>

/* Taking the GIL can cost a switch interval (5 ms) when other threads compute, so progress and
 * signals get their turn twenty times a second and no more. */
#define REPORT_INTERVAL_NS INT64_C(50000000)

static int64_t now_ns(void)
{
    struct timespec now = {0, 0};
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * INT64_C(1000000000) + (int64_t)now.tv_nsec;
}

void kvcpy_call_init(struct kvcpy_call *call, struct kvcpy_state *state, PyObject *path,
                     PyObject *progress)
{
    memset(call, 0, sizeof(*call));
    call->error = (struct kvc_error)KVC_ERROR_INIT;
    call->state = state;
    call->path = path;
    call->progress = progress == Py_None ? NULL : progress;
    call->next_ns = call->progress == NULL ? now_ns() + REPORT_INTERVAL_NS : 0;
}

void kvcpy_call_work(struct kvcpy_call *call, unsigned threads, struct kvc_work *ret_work)
{
    *ret_work = (struct kvc_work)KVC_WORK_INIT;
    ret_work->threads = threads;
    ret_work->progress = kvcpy_progress;
    ret_work->progress_context = call;
}

void kvcpy_call_begin(struct kvcpy_call *call)
{
    call->thread = PyEval_SaveThread();
}

void kvcpy_call_end(struct kvcpy_call *call)
{
    PyEval_RestoreThread(call->thread);
    call->thread = NULL;
}

int kvcpy_call_check(struct kvcpy_call *call, enum kvc_status status)
{
    if (call->failed) {
        return -1;
    }
    if (status == KVC_OK) {
        return 0;
    }
    PyObject *exception = kvcpy_exception(call, &call->error);
    if (exception != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
        Py_DECREF(exception);
    }
    return -1;
}

/* A thread that asks for the GIL of an exiting interpreter is ended inside the library's call,
 * while the library's own threads still use its stack. So nothing is asked for any more then. */
static int exiting(const struct kvcpy_call *call)
{
    return atomic_load(&call->state->exiting);
}

static int due(struct kvcpy_call *call, uint64_t done_bytes, uint64_t total_bytes)
{
    int64_t now = now_ns();
    int last = call->progress != NULL && done_bytes == total_bytes;
    if (!last && now < call->next_ns) {
        return 0;
    }
    call->next_ns = now + REPORT_INTERVAL_NS;
    return 1;
}

int kvcpy_progress(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
    struct kvcpy_call *call = context;
    if (call->failed) {
        return 1;
    }
    if (exiting(call) || !due(call, done_bytes, total_bytes)) {
        return 0;
    }
    kvcpy_call_end(call);
    if (PyErr_CheckSignals() < 0) {
        call->failed = 1;
    } else if (call->progress != NULL) {
        PyObject *result = PyObject_CallFunction(
            call->progress, "KK", (unsigned long long)done_bytes, (unsigned long long)total_bytes);
        call->failed = result == NULL;
        Py_XDECREF(result);
    }
    kvcpy_call_begin(call);
    return call->failed;
}

int kvcpy_failure(void *context, const struct kvc_error *failure)
{
    struct kvcpy_call *call = context;
    if (call->failed || exiting(call)) {
        return 1;
    }
    kvcpy_call_end(call);
    PyObject *exception = kvcpy_exception(call, failure);
    if (exception == NULL || PyList_Append(call->failures, exception) < 0) {
        call->failed = 1;
    }
    Py_XDECREF(exception);
    kvcpy_call_begin(call);
    return call->failed;
}

void kvcpy_difference(void *context, const char *field, const char *expected, size_t expected_bytes,
                      const char *found, size_t found_bytes)
{
    struct kvcpy_call *call = context;
    if (call->failed || exiting(call)) {
        return;
    }
    kvcpy_call_end(call);
    PyObject *item = Py_BuildValue("(sy#z#)", field, expected, (Py_ssize_t)expected_bytes, found,
                                   (Py_ssize_t)found_bytes);
    if (item == NULL || PyList_Append(call->differences, item) < 0) {
        call->failed = 1;
    }
    Py_XDECREF(item);
    kvcpy_call_begin(call);
}

/* Texts of an error are cut at a fixed length, perhaps inside a character. */
static PyObject *text_of(const char *text)
{
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

PyObject *kvcpy_exception(struct kvcpy_call *call, const struct kvc_error *error)
{
    PyObject *offset = Py_None;
    if (error->offset == KVC_NO_OFFSET) {
        Py_INCREF(offset);
    } else {
        offset = PyLong_FromUnsignedLongLong(error->offset);
    }
    PyObject *field = text_of(error->field);
    PyObject *expected = text_of(error->expected);
    PyObject *found = text_of(error->found);
    PyObject *message = text_of(error->message);
    PyObject *exception = NULL;
    if (offset != NULL && field != NULL && expected != NULL && found != NULL && message != NULL) {
        exception = PyObject_CallFunction(
            call->state->make_error, "ssiOOOOOOO", kvc_status_name(error->status),
            kvc_status_class(error->status), error->sys_errno, offset, field, expected, found,
            message, call->path, call->differences == NULL ? Py_None : call->differences);
    }
    Py_XDECREF(offset);
    Py_XDECREF(field);
    Py_XDECREF(expected);
    Py_XDECREF(found);
    Py_XDECREF(message);
    if (exception != NULL && !PyExceptionInstance_Check(exception)) {
        Py_DECREF(exception);
        PyErr_SetString(PyExc_SystemError, "kvcache.errors made no exception");
        return NULL;
    }
    return exception;
}
