/* _kvc_tensor.c: CacheTensor, one tensor of a cache as memory for other libraries.
 * SPDX-License-Identifier: Apache-2.0 */
#include "_kvc.h"

#include <string.h>

/* The codes are DLPack's: 0 signed, 1 unsigned, 2 float, 4 bfloat, 6 bool. The version that is
 * spoken here has none for floats of one byte. */
static const struct kvcpy_dtype dtypes[] = {
    {"f16", "e", "<f2", 2, 2},
    {"bf16", NULL, NULL, 2, 4},
    {"f32", "f", "<f4", 4, 2},
    {"f64", "d", "<f8", 8, 2},
    {"f8_e4m3fn", NULL, NULL, 1, KVCPY_NO_DLPACK},
    {"f8_e5m2", NULL, NULL, 1, KVCPY_NO_DLPACK},
    {"f8_e4m3fnuz", NULL, NULL, 1, KVCPY_NO_DLPACK},
    {"f8_e5m2fnuz", NULL, NULL, 1, KVCPY_NO_DLPACK},
    {"f8_e8m0", NULL, NULL, 1, KVCPY_NO_DLPACK},
    {"i8", "b", "|i1", 1, 0},
    {"i16", "h", "<i2", 2, 0},
    {"i32", "i", "<i4", 4, 0},
    {"i64", "q", "<i8", 8, 0},
    {"u8", "B", "|u1", 1, 1},
    {"u16", "H", "<u2", 2, 1},
    {"u32", "I", "<u4", 4, 1},
    {"bool", "?", "|b1", 1, 6},
};

static const struct kvcpy_dtype *dtype_find(const char *name)
{
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            return &dtypes[i];
        }
    }
    PyErr_Format(PyExc_SystemError, "kvcache does not know the dtype %s of its library", name);
    return NULL;
}

PyObject *kvcpy_shape_tuple(const struct kvc_tensor *facts)
{
    PyObject *shape = PyTuple_New((Py_ssize_t)facts->rank);
    for (uint32_t i = 0; shape != NULL && i < facts->rank; i++) {
        PyObject *length = PyLong_FromUnsignedLongLong(facts->shape[i]);
        if (length == NULL || PyTuple_SetItem(shape, (Py_ssize_t)i, length) < 0) {
            Py_CLEAR(shape);
        }
    }
    return shape;
}

PyObject *kvcpy_digest_text(const uint8_t digest[KVC_DIGEST_BYTES])
{
    static const char digits[] = "0123456789abcdef";
    char text[2 * KVC_DIGEST_BYTES];
    for (size_t i = 0; i < KVC_DIGEST_BYTES; i++) {
        text[2 * i] = digits[digest[i] >> 4];
        text[2 * i + 1] = digits[digest[i] & 15];
    }
    return PyUnicode_FromStringAndSize(text, (Py_ssize_t)sizeof(text));
}

int kvcpy_place(const struct kvc_tensor *facts, PyObject **ret_kind, PyObject **ret_layer)
{
    int opaque = facts->kind[0] == '\0';
    if (opaque) {
        Py_INCREF(Py_None);
        *ret_kind = Py_None;
    } else {
        *ret_kind = PyUnicode_FromString(facts->kind);
    }
    if (opaque || facts->layer == KVC_NO_LAYER) {
        Py_INCREF(Py_None);
        *ret_layer = Py_None;
    } else {
        *ret_layer = PyLong_FromUnsignedLong(facts->layer);
    }
    return *ret_kind == NULL || *ret_layer == NULL ? -1 : 0;
}

/* Row-major strides. Without elements no stride is used, and products of the others may be too
 * large. */
static void tensor_strides(struct kvcpy_tensor *tensor)
{
    Py_ssize_t stride = tensor->dtype->item_bytes;
    for (int i = tensor->rank - 1; i >= 0; i--) {
        tensor->strides[i] = stride;
        stride *= tensor->tensor_bytes > 0 ? tensor->shape[i] : 1;
    }
}

static int tensor_fill(struct kvcpy_tensor *tensor, const struct kvc_tensor *facts)
{
    tensor->dtype = dtype_find(facts->dtype);
    if (tensor->dtype == NULL) {
        return -1;
    }
    if (facts->rank > KVCPY_MAX_RANK || facts->tensor_bytes > (uint64_t)PY_SSIZE_T_MAX) {
        PyErr_SetString(PyExc_SystemError, "kvcache cannot represent a tensor of its library");
        return -1;
    }
    tensor->rank = (int)facts->rank;
    for (int i = 0; i < tensor->rank; i++) {
        tensor->shape[i] = (Py_ssize_t)facts->shape[i];
    }
    tensor->tensor_bytes = (Py_ssize_t)facts->tensor_bytes;
    tensor_strides(tensor);
    tensor->byte_stride = 1;
    tensor->offset = facts->offset;
    memcpy(tensor->digest, facts->digest, sizeof(tensor->digest));
    tensor->name = PyUnicode_FromString(facts->name);
    if (tensor->name == NULL) {
        return -1;
    }
    return kvcpy_place(facts, &tensor->kind, &tensor->layer);
}

PyObject *kvcpy_tensor_new(struct kvcpy_state *state, const struct kvc_tensor *facts,
                           struct kvcpy_memory *memory)
{
    struct kvcpy_tensor *tensor = PyObject_New(struct kvcpy_tensor, state->tensor_type);
    if (tensor == NULL) {
        kvcpy_memory_release(memory);
        return NULL;
    }
    tensor->memory = memory;
    tensor->name = NULL;
    tensor->kind = NULL;
    tensor->layer = NULL;
    if (tensor_fill(tensor, facts) < 0) {
        Py_CLEAR(tensor);
    }
    return (PyObject *)tensor;
}

static void tensor_dealloc(PyObject *self)
{
    struct kvcpy_tensor *tensor = (struct kvcpy_tensor *)self;
    PyTypeObject *type = Py_TYPE(self);
    kvcpy_memory_release(tensor->memory);
    Py_XDECREF(tensor->name);
    Py_XDECREF(tensor->kind);
    Py_XDECREF(tensor->layer);
    PyObject_Free(self);
    Py_DECREF(type);
}

static int tensor_getbuffer(PyObject *self, Py_buffer *view, int flags)
{
    struct kvcpy_tensor *tensor = (struct kvcpy_tensor *)self;
    int flat = tensor->dtype->format == NULL;
    int fortran = (flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS;
    if (fortran && (flags & PyBUF_C_CONTIGUOUS) != PyBUF_C_CONTIGUOUS && !flat &&
        tensor->rank > 1) {
        view->obj = NULL;
        PyErr_SetString(PyExc_BufferError, "a CacheTensor is row-major (C-contiguous)");
        return -1;
    }
    view->buf = kvcpy_memory_data(tensor->memory);
    view->len = tensor->tensor_bytes;
    view->itemsize = flat ? 1 : tensor->dtype->item_bytes;
    view->readonly = 0;
    view->ndim = flat ? 1 : tensor->rank;
    view->format = NULL;
    if ((flags & PyBUF_FORMAT) == PyBUF_FORMAT) {
        /* The struct's member is not const for history's sake; consumers only read it. */
        union {
            const char *constant;
            char *plain;
        } format = {flat ? "B" : tensor->dtype->format};
        view->format = format.plain;
    }
    view->shape = NULL;
    view->strides = NULL;
    /* A buffer without dimensions, one element, must have neither shape nor strides. */
    if ((flags & PyBUF_ND) != PyBUF_ND) {
        view->ndim = 1;
    } else if (view->ndim > 0) {
        view->shape = flat ? &tensor->tensor_bytes : tensor->shape;
    }
    if ((flags & PyBUF_STRIDES) == PyBUF_STRIDES && view->ndim > 0) {
        view->strides = flat ? &tensor->byte_stride : tensor->strides;
    }
    view->suboffsets = NULL;
    view->internal = NULL;
    Py_INCREF(self);
    view->obj = self;
    return 0;
}

static PyObject *get_name(PyObject *self, void *closure)
{
    (void)closure;
    PyObject *name = ((struct kvcpy_tensor *)self)->name;
    Py_INCREF(name);
    return name;
}

static PyObject *get_kind(PyObject *self, void *closure)
{
    (void)closure;
    PyObject *kind = ((struct kvcpy_tensor *)self)->kind;
    Py_INCREF(kind);
    return kind;
}

static PyObject *get_layer(PyObject *self, void *closure)
{
    (void)closure;
    PyObject *layer = ((struct kvcpy_tensor *)self)->layer;
    Py_INCREF(layer);
    return layer;
}

static PyObject *get_dtype(PyObject *self, void *closure)
{
    (void)closure;
    return PyUnicode_FromString(((struct kvcpy_tensor *)self)->dtype->name);
}

static PyObject *get_nbytes(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromSsize_t(((struct kvcpy_tensor *)self)->tensor_bytes);
}

static PyObject *get_offset(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromUnsignedLongLong(((struct kvcpy_tensor *)self)->offset);
}

static PyObject *get_digest(PyObject *self, void *closure)
{
    (void)closure;
    return kvcpy_digest_text(((struct kvcpy_tensor *)self)->digest);
}

static PyObject *get_shape(PyObject *self, void *closure)
{
    (void)closure;
    struct kvcpy_tensor *tensor = (struct kvcpy_tensor *)self;
    PyObject *shape = PyTuple_New(tensor->rank);
    for (int i = 0; shape != NULL && i < tensor->rank; i++) {
        PyObject *length = PyLong_FromSsize_t(tensor->shape[i]);
        if (length == NULL || PyTuple_SetItem(shape, i, length) < 0) {
            Py_CLEAR(shape);
        }
    }
    return shape;
}

static PyObject *get_array_interface(PyObject *self, void *closure)
{
    struct kvcpy_tensor *tensor = (struct kvcpy_tensor *)self;
    if (tensor->dtype->typestr == NULL) {
        PyErr_Format(PyExc_AttributeError, "numpy has no dtype for %s: use %sthe raw bytes",
                     tensor->dtype->name,
                     tensor->dtype->dlpack_code == KVCPY_NO_DLPACK
                         ? "the buffer, which holds "
                         : "torch.from_dlpack, or the buffer, which holds ");
        return NULL;
    }
    PyObject *shape = get_shape(self, closure);
    PyObject *address = PyLong_FromVoidPtr(kvcpy_memory_data(tensor->memory));
    if (shape == NULL || address == NULL) {
        Py_XDECREF(shape);
        Py_XDECREF(address);
        return NULL;
    }
    return Py_BuildValue("{s:N,s:s,s:(NO),s:O,s:i}", "shape", shape, "typestr",
                         tensor->dtype->typestr, "data", address, Py_False, "strides", Py_None,
                         "version", 3);
}

static PyObject *tensor_repr(PyObject *self)
{
    struct kvcpy_tensor *tensor = (struct kvcpy_tensor *)self;
    PyObject *shape = get_shape(self, NULL);
    if (shape == NULL) {
        return NULL;
    }
    PyObject *text = PyUnicode_FromFormat("<kvcache.CacheTensor %R %s %R, %zd bytes>", tensor->name,
                                          tensor->dtype->name, shape, tensor->tensor_bytes);
    Py_DECREF(shape);
    return text;
}

static PyObject *tensor_reduce(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    PyErr_SetString(PyExc_TypeError,
                    "a CacheTensor cannot be pickled or deep-copied: it is memory of this process; "
                    "take bytes(tensor), or pass the path and open it again");
    return NULL;
}

static PyMethodDef tensor_methods[] = {
    {"__dlpack__", KVCPY_METHOD(kvcpy_dlpack), METH_VARARGS | METH_KEYWORDS,
     "__dlpack__($self, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\n"
     "Return a DLPack capsule over the tensor's memory, for torch.from_dlpack and others.\n\n"
     "No copy is made unless copy=True. The consumer's tensor keeps the memory alive on its own.\n"
     "Raises BufferError for another device than the CPU, (1, 0), ValueError for a stream."},
    {"__dlpack_device__", kvcpy_dlpack_device, METH_NOARGS,
     "__dlpack_device__($self)\n--\n\nReturn (1, 0): the memory of the CPU."},
    {"__reduce__", tensor_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef tensor_getset[] = {
    {"name", get_name, NULL, "Name, as in the manifest; '' for an opaque payload.", NULL},
    {"shape", get_shape, NULL,
     "Lengths in elements; (batch, kv_heads, sequence, head_dim) in manifest version 1.", NULL},
    {"dtype", get_dtype, NULL,
     "Name of the element type, as in the manifest: 'f16', 'bf16', 'f32', 'u8', ...", NULL},
    {"nbytes", get_nbytes, NULL, "Size in bytes.", NULL},
    {"offset", get_offset, NULL, "Bytes from the start of the logical payload.", NULL},
    {"layer", get_layer, NULL,
     "Layer, counted from 0, in the manifest's order; None for a tensor of the whole cache and for "
     "an opaque payload.",
     NULL},
    {"kind", get_kind, NULL,
     "Role: 'key', 'value', or another of manifest version 2; None for an opaque payload.", NULL},
    {"digest", get_digest, NULL, "BLAKE3 of the tensor's bytes in the file, 64 hexadecimal digits.",
     NULL},
    {"__array_interface__", get_array_interface, NULL,
     "numpy's array interface; AttributeError for bf16 and floats of one byte, which numpy does "
     "not "
     "have.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static const char tensor_doc[] =
    "A proven tensor of a cache, as memory that other libraries use without a copy.\n\n"
    "It supports the buffer protocol, DLPack and numpy's array interface. The buffer has the\n"
    "tensor's shape with the format of its elements: 'e' (f16), 'f' (f32), 'd' (f64), 'b', 'h',\n"
    "'i', 'q' (i8 to i64), 'B', 'H', 'I' (u8 to u32) or '?' (bool). bf16 and the floats of one\n"
    "byte, which Python and numpy do not have, are one row of bytes; DLPack has bf16, but not\n"
    "the floats of one byte. The memory is writable and private to this process: writing to it\n"
    "never changes the file. It stays valid until the last tensor, array or memoryview on it is\n"
    "gone, also after the Cache was closed. Any thread may use it; threads that write to the same\n"
    "bytes must agree among themselves. With copy=False all tensors of an open cache share its\n"
    "pages; with copy=True each CacheTensor has memory of its own.\n\n"
    "    with kvcache.open_cache(\"prefix.kvc\") as cache:\n"
    "        keys = torch.from_dlpack(cache[\"layer.0.key\"])\n";

static PyType_Slot tensor_slots[] = {
    {Py_tp_dealloc, KVCPY_SLOT(tensor_dealloc)},
    {Py_tp_repr, KVCPY_SLOT(tensor_repr)},
    {Py_bf_getbuffer, KVCPY_SLOT(tensor_getbuffer)},
    {Py_tp_methods, tensor_methods},
    {Py_tp_getset, tensor_getset},
    {Py_tp_doc, KVCPY_TEXT(tensor_doc)},
    {0, NULL},
};

PyType_Spec kvcpy_tensor_spec = {
    .name = "kvcache.CacheTensor",
    .basicsize = (int)sizeof(struct kvcpy_tensor),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = tensor_slots,
};
