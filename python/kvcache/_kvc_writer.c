/* _kvc_writer.c: writes a cache from an iterable of buffers, holding one of them at a time.
 * SPDX-License-Identifier: Apache-2.0 */
#include "_kvc.h"

#include <string.h>

struct write_job {
    struct kvcpy_call call;
    struct kvc_writer *writer;
};

/* Does a format of the buffer protocol have one of these letters? Names of fields, which stand
 * between colons, do not count. */
static int format_has(const char *format, const char *letters)
{
    int in_name = 0;
    for (; format != NULL && *format != '\0'; format++) {
        in_name = *format == ':' ? !in_name : in_name;
        if (!in_name && strchr(letters, *format) != NULL) {
            return 1;
        }
    }
    return 0;
}

/* Refuses what would be stored wrong: pointers to Python objects, numbers in the other byte order,
 * bytes with holes. */
static int check_buffer(const Py_buffer *view, Py_ssize_t index)
{
    if (view->itemsize > 1 && format_has(view->format, ">!")) {
        PyErr_Format(PyExc_ValueError,
                     "chunks[%zd] is big-endian (format '%s'), and a file holds little-endian "
                     "numbers: convert it first, as numpy's astype('<f4') does",
                     index, view->format);
        return -1;
    }
    if (format_has(view->format, "O")) {
        PyErr_Format(PyExc_TypeError,
                     "chunks[%zd] holds Python objects (format '%s'), not bytes: give arrays of "
                     "numbers",
                     index, view->format);
        return -1;
    }
    if (!PyBuffer_IsContiguous(view, 'C')) {
        PyErr_Format(PyExc_ValueError,
                     "chunks[%zd] is not C-contiguous: give a contiguous copy, as "
                     "numpy.ascontiguousarray or bytes make",
                     index);
        return -1;
    }
    return 0;
}

static int write_item(struct write_job *job, PyObject *item, Py_ssize_t index)
{
    if (!PyObject_CheckBuffer(item)) {
        PyErr_Format(PyExc_TypeError, "chunks[%zd] must be a bytes-like object, not %R%s", index,
                     (PyObject *)Py_TYPE(item), PyUnicode_Check(item) ? ": encode text first" : "");
        return -1;
    }
    Py_buffer view;
    if (PyObject_GetBuffer(item, &view, PyBUF_FULL_RO) < 0) {
        return -1;
    }
    int result = check_buffer(&view, index);
    if (result == 0 && view.len > 0) {
        kvcpy_call_begin(&job->call);
        enum kvc_status status =
            kvc_writer_write(job->writer, view.buf, (uint64_t)view.len, &job->call.error);
        kvcpy_call_end(&job->call);
        result = kvcpy_call_check(&job->call, status);
    }
    PyBuffer_Release(&view);
    return result;
}

static int write_all(struct write_job *job, PyObject *iterator)
{
    PyObject *item = NULL;
    for (Py_ssize_t index = 0; (item = PyIter_Next(iterator)) != NULL; index++) {
        int result = write_item(job, item, index);
        Py_DECREF(item);
        if (result < 0 || PyErr_CheckSignals() < 0) {
            return -1;
        }
    }
    return PyErr_Occurred() != NULL ? -1 : 0;
}

/* Completes the file and returns its facts. */
static PyObject *finish(struct write_job *job)
{
    struct kvc_info info = KVC_INFO_INIT;
    kvcpy_call_begin(&job->call);
    enum kvc_status status = kvc_writer_finish(job->writer, NULL, &job->call.error);
    if (status == KVC_OK) {
        status = kvc_writer_info(job->writer, &info, &job->call.error);
    }
    kvcpy_call_end(&job->call);
    return kvcpy_call_check(&job->call, status) == 0 ? kvcpy_info(&info) : NULL;
}

static PyObject *run(struct write_job *job, const char *path_bytes, const char *metadata,
                     size_t metadata_bytes, const struct kvc_writer_options *options,
                     PyObject *iterator)
{
    PyObject *result = NULL;
    kvcpy_call_begin(&job->call);
    enum kvc_status status = kvc_writer_create_path(path_bytes, metadata, metadata_bytes, options,
                                                    &job->writer, &job->call.error);
    kvcpy_call_end(&job->call);
    if (kvcpy_call_check(&job->call, status) == 0 && write_all(job, iterator) == 0) {
        result = finish(job);
    }
    kvcpy_call_begin(&job->call);
    kvc_writer_free(job->writer);
    kvcpy_call_end(&job->call);
    return result;
}

/* write(path_bytes, path, metadata, chunks, durability, align, key, progress, threads) */
PyObject *kvcpy_write(PyObject *module, PyObject *args)
{
    const char *path_bytes = NULL;
    PyObject *path = NULL;
    const char *metadata = NULL;
    Py_ssize_t metadata_bytes = 0;
    PyObject *chunks = NULL;
    int durability = 0;
    unsigned align = 0;
    const char *key = NULL;
    Py_ssize_t key_bytes = 0;
    PyObject *progress = NULL;
    unsigned threads = 0;
    if (!PyArg_ParseTuple(args, "yOy#OiIz#OI:write", &path_bytes, &path, &metadata, &metadata_bytes,
                          &chunks, &durability, &align, &key, &key_bytes, &progress, &threads)) {
        return NULL;
    }
    if (key != NULL && key_bytes != KVC_DIGEST_BYTES) {
        PyErr_SetString(PyExc_ValueError, "a key has 32 bytes");
        return NULL;
    }
    PyObject *iterator = PyObject_GetIter(chunks);
    if (iterator == NULL) {
        return NULL;
    }
    struct write_job job = {.writer = NULL};
    struct kvc_writer_options options = KVC_WRITER_OPTIONS_INIT;
    kvcpy_call_init(&job.call, PyModule_GetState(module), path, progress);
    kvcpy_call_work(&job.call, threads, &options.work);
    options.durability = (enum kvc_durability)durability;
    options.align_bytes = align;
    options.key = (const uint8_t *)key;
    PyObject *result = run(&job, path_bytes, metadata, (size_t)metadata_bytes, &options, iterator);
    Py_DECREF(iterator);
    return result;
}
