/* _kvc_memory.c: memory behind tensors and payloads, counted without Python.
 * SPDX-License-Identifier: Apache-2.0 */
#include "_kvc.h"

#include <stdlib.h>

#define MEMORY_ALIGN 64

struct kvcpy_memory {
    atomic_size_t holders;
    struct kvc_view *view; /* NULL when `block` holds the bytes */
    void *block;
    char *data;
};

static struct kvcpy_memory *memory_new(struct kvc_view *view, void *block, char *data)
{
    struct kvcpy_memory *memory = calloc(1, sizeof(*memory));
    if (memory == NULL) {
        kvc_view_free(view);
        free(block);
        (void)PyErr_NoMemory();
        return NULL;
    }
    atomic_init(&memory->holders, 1);
    memory->view = view;
    memory->block = block;
    memory->data = data;
    return memory;
}

struct kvcpy_memory *kvcpy_memory_of_view(struct kvc_view *view)
{
    return memory_new(view, NULL, kvc_view_data(view, NULL));
}

struct kvcpy_memory *kvcpy_memory_allocate(uint64_t bytes)
{
    if (bytes > (uint64_t)PY_SSIZE_T_MAX - MEMORY_ALIGN) {
        (void)PyErr_NoMemory();
        return NULL;
    }
    size_t rounded = ((size_t)bytes + MEMORY_ALIGN - 1) / MEMORY_ALIGN * MEMORY_ALIGN;
    void *block = aligned_alloc(MEMORY_ALIGN, rounded > 0 ? rounded : MEMORY_ALIGN);
    if (block == NULL) {
        (void)PyErr_NoMemory();
        return NULL;
    }
    return memory_new(NULL, block, block);
}

struct kvcpy_memory *kvcpy_memory_hold(struct kvcpy_memory *memory)
{
    atomic_fetch_add(&memory->holders, 1);
    return memory;
}

void kvcpy_memory_release(struct kvcpy_memory *memory)
{
    if (memory == NULL || atomic_fetch_sub(&memory->holders, 1) != 1) {
        return;
    }
    kvc_view_free(memory->view);
    free(memory->block);
    free(memory);
}

char *kvcpy_memory_data(const struct kvcpy_memory *memory)
{
    return memory->data;
}

/* ---- The exporter behind the memoryview of a payload ---------------------------------------- */

struct payload {
    PyObject_HEAD
    struct kvcpy_memory *memory;
    Py_ssize_t bytes;
};

PyObject *kvcpy_payload_new(struct kvcpy_state *state, struct kvcpy_memory *memory, uint64_t bytes)
{
    struct payload *payload = NULL;
    if (bytes > (uint64_t)PY_SSIZE_T_MAX) {
        (void)PyErr_NoMemory();
    } else {
        payload = PyObject_New(struct payload, state->payload_type);
    }
    if (payload == NULL) {
        kvcpy_memory_release(memory);
        return NULL;
    }
    payload->memory = memory;
    payload->bytes = (Py_ssize_t)bytes;
    PyObject *view = PyMemoryView_FromObject((PyObject *)payload);
    Py_DECREF(payload);
    return view;
}

static void payload_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    kvcpy_memory_release(((struct payload *)self)->memory);
    PyObject_Free(self);
    Py_DECREF(type);
}

static int payload_getbuffer(PyObject *self, Py_buffer *view, int flags)
{
    struct payload *payload = (struct payload *)self;
    return PyBuffer_FillInfo(view, self, kvcpy_memory_data(payload->memory), payload->bytes, 1,
                             flags);
}

static PyType_Slot payload_slots[] = {
    {Py_tp_dealloc, KVCPY_SLOT(payload_dealloc)},
    {Py_bf_getbuffer, KVCPY_SLOT(payload_getbuffer)},
    {Py_tp_doc,
     KVCPY_TEXT("Holds the memory of a payload; memoryview.obj of what read_cache returns.")},
    {0, NULL},
};

PyType_Spec kvcpy_payload_spec = {
    .name = "kvcache._kvc.Payload",
    .basicsize = (int)sizeof(struct payload),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = payload_slots,
};
