/* _kvc.h: what the files of the extension module kvcache._kvc share.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCPY_H
#define KVCPY_H

#define PY_SSIZE_T_CLEAN
#include <pyconfig.h>

#ifdef Py_GIL_DISABLED
#error "kvcache does not support free-threaded Python: build it for a Python with the GIL"
#endif
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "kvcache hands out little-endian memory as it is: big-endian machines are not supported"
#endif
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030b0000
#endif
#include <Python.h>

#include <stdatomic.h>
#include <stdint.h>

#include "kvc.h"

#define KVCPY_MAX_RANK 8

/* `dlpack_code` of a dtype that DLPack has not. */
#define KVCPY_NO_DLPACK UINT8_MAX

/* ISO C has no conversion from a function to `void *`, which type and module slots need. */
#define KVCPY_SLOT(function) __extension__((void *)(function))
#define KVCPY_TEXT(text) ((void *)(uintptr_t)(text))
#define KVCPY_METHOD(function) ((PyCFunction)(void (*)(void))(function))

/* Everything of an instance of the module; nothing is global. */
struct kvcpy_state {
    PyObject *make_error; /* kvcache.errors.exception_from_status */
    PyTypeObject *reader_type;
    PyTypeObject *tensor_type;
    PyTypeObject *payload_type;
    atomic_int exiting; /* 1 once the interpreter runs its exit handlers */
};

/* ---- Calls into the library without the GIL (_kvc_call.c) ---------------------------------- */

/* One call. Callbacks of the library run in the calling thread: they take the GIL through the
 * saved thread state, which works in every interpreter of the process. */
struct kvcpy_call {
    struct kvcpy_state *state;
    PyThreadState *thread; /* while the GIL is released */
    PyObject *progress;    /* borrowed; NULL when there is none */
    PyObject *path;        /* borrowed: the file that errors name */
    PyObject *differences; /* borrowed list that receives them; NULL when unused */
    PyObject *failures;    /* borrowed list that receives them; NULL when unused */
    int64_t next_ns;       /* when the next progress is due */
    int failed;            /* 1 when a callback left a Python exception in this thread */
    struct kvc_error error;
};

void kvcpy_call_init(struct kvcpy_call *call, struct kvcpy_state *state, PyObject *path,
                     PyObject *progress);
void kvcpy_call_work(struct kvcpy_call *call, unsigned threads, struct kvc_work *ret_work);
void kvcpy_call_begin(struct kvcpy_call *call);
void kvcpy_call_end(struct kvcpy_call *call);

/* Ends a call: returns 0 when it succeeded, else sets the Python exception and returns -1. */
int kvcpy_call_check(struct kvcpy_call *call, enum kvc_status status);

int kvcpy_progress(void *context, uint64_t done_bytes, uint64_t total_bytes);
int kvcpy_failure(void *context, const struct kvc_error *failure);
void kvcpy_difference(void *context, const char *field, const char *expected, size_t expected_bytes,
                      const char *found, size_t found_bytes);

/* Returns a new exception for an error of the library, or NULL with another exception set. */
PyObject *kvcpy_exception(struct kvcpy_call *call, const struct kvc_error *error);

/* ---- Memory behind tensors and payloads (_kvc_memory.c) ------------------------------------ */

/* Memory that outlives Python objects: tensors of other libraries hold it, and may let it go in
 * any thread, without the GIL, after the reader is gone. */
struct kvcpy_memory;

/* Takes the view over, also when it fails and returns NULL with an exception. */
struct kvcpy_memory *kvcpy_memory_of_view(struct kvc_view *view);

/* Allocates memory that is aligned to 64 bytes. NULL with an exception when there is none. */
struct kvcpy_memory *kvcpy_memory_allocate(uint64_t bytes);

struct kvcpy_memory *kvcpy_memory_hold(struct kvcpy_memory *memory);
void kvcpy_memory_release(struct kvcpy_memory *memory);
char *kvcpy_memory_data(const struct kvcpy_memory *memory);

/* Wraps the first `bytes` of the memory, which is taken over, in a read-only memoryview. */
PyObject *kvcpy_payload_new(struct kvcpy_state *state, struct kvcpy_memory *memory, uint64_t bytes);

/* ---- Tensors (_kvc_tensor.c, _kvc_dlpack.c) ------------------------------------------------ */

struct kvcpy_dtype {
    const char *name;
    const char *format;  /* of the buffer protocol, NULL where it has none: exported as bytes */
    const char *typestr; /* of numpy's array interface, NULL where it has none */
    int item_bytes;
    uint8_t dlpack_code;
};

struct kvcpy_tensor {
    PyObject_HEAD
    struct kvcpy_memory *memory;
    const struct kvcpy_dtype *dtype;
    PyObject *name;
    PyObject *kind;  /* None for an opaque payload */
    PyObject *layer; /* None for an opaque payload, and for a tensor of the cache as a whole */
    int rank;
    Py_ssize_t shape[KVCPY_MAX_RANK];
    Py_ssize_t strides[KVCPY_MAX_RANK]; /* bytes */
    Py_ssize_t tensor_bytes;
    Py_ssize_t byte_stride; /* 1: the stride of the flat export */
    uint64_t offset;
    uint8_t digest[KVC_DIGEST_BYTES];
};

/* Makes a tensor over the memory, which is taken over, also when NULL is returned. */
PyObject *kvcpy_tensor_new(struct kvcpy_state *state, const struct kvc_tensor *facts,
                           struct kvcpy_memory *memory);

PyObject *kvcpy_shape_tuple(const struct kvc_tensor *facts);
PyObject *kvcpy_digest_text(const uint8_t digest[KVC_DIGEST_BYTES]);

/* kind and layer of a tensor as Python objects; both None for an opaque payload, and the layer for
 * a tensor of the cache as a whole. */
int kvcpy_place(const struct kvc_tensor *facts, PyObject **ret_kind, PyObject **ret_layer);

PyObject *kvcpy_dlpack(PyObject *self, PyObject *args, PyObject *keywords);
PyObject *kvcpy_dlpack_device(PyObject *self, PyObject *unused);

/* ---- What the module holds ----------------------------------------------------------------- */

extern PyType_Spec kvcpy_reader_spec;
extern PyType_Spec kvcpy_tensor_spec;
extern PyType_Spec kvcpy_payload_spec;

/* Returns the facts of a file as a dict, whose keys are the fields of CacheInfo. */
PyObject *kvcpy_info(const struct kvc_info *info);

PyObject *kvcpy_open(PyObject *module, PyObject *args);
PyObject *kvcpy_write(PyObject *module, PyObject *args);

#endif
