/* _kvc_reader.c: an open cache; kvcache.Cache wraps it.
 * SPDX-License-Identifier: Apache-2.0 */
#include "_kvc.h"

/* There is no close: the object goes when its last user does, so that threads which still read
 * keep it alive. */
struct reader {
    PyObject_HEAD
    struct kvc_reader *reader;
    PyObject *path; /* as the caller gave it, for errors */
};

static struct kvcpy_state *state_of(PyObject *self)
{
    return PyType_GetModuleState(Py_TYPE(self));
}

static struct reader *reader_new(struct kvcpy_state *state, PyObject *path)
{
    struct reader *self = PyObject_New(struct reader, state->reader_type);
    if (self != NULL) {
        self->reader = NULL;
        Py_INCREF(path);
        self->path = path;
    }
    return self;
}

static void reader_dealloc(PyObject *object)
{
    struct reader *self = (struct reader *)object;
    PyTypeObject *type = Py_TYPE(object);
    kvc_reader_free(self->reader);
    Py_XDECREF(self->path);
    PyObject_Free(object);
    Py_DECREF(type);
}

/* open(path_bytes, path, expected_identity, expected_root, key) */
PyObject *kvcpy_open(PyObject *module, PyObject *args)
{
    const char *path_bytes = NULL;
    PyObject *path = NULL;
    const char *identity = NULL;
    const char *root = NULL;
    const char *key = NULL;
    Py_ssize_t identity_bytes = 0;
    Py_ssize_t root_bytes = 0;
    Py_ssize_t key_bytes = 0;
    if (!PyArg_ParseTuple(args, "yOz#z#z#:open", &path_bytes, &path, &identity, &identity_bytes,
                          &root, &root_bytes, &key, &key_bytes)) {
        return NULL;
    }
    if ((root != NULL && root_bytes != KVC_DIGEST_BYTES) ||
        (key != NULL && key_bytes != KVC_DIGEST_BYTES)) {
        PyErr_SetString(PyExc_ValueError, "a root and a key have 32 bytes");
        return NULL;
    }
    struct kvcpy_state *state = PyModule_GetState(module);
    struct kvcpy_call call;
    kvcpy_call_init(&call, state, path, NULL);
    call.differences = PyList_New(0);
    struct reader *self = call.differences == NULL ? NULL : reader_new(state, path);
    if (self == NULL) {
        Py_XDECREF(call.differences);
        return NULL;
    }
    struct kvc_reader_options options = KVC_READER_OPTIONS_INIT;
    options.expected_root = (const uint8_t *)root;
    options.key = (const uint8_t *)key;
    options.expected_identity = identity;
    options.expected_identity_bytes = (size_t)identity_bytes;
    options.on_difference = kvcpy_difference;
    options.difference_context = &call;
    kvcpy_call_begin(&call);
    enum kvc_status status = kvc_reader_open_path(path_bytes, &options, &self->reader, &call.error);
    kvcpy_call_end(&call);
    if (kvcpy_call_check(&call, status) < 0) {
        Py_CLEAR(self);
    }
    Py_DECREF(call.differences);
    return (PyObject *)self;
}

PyObject *kvcpy_info(const struct kvc_info *info)
{
    char root[KVC_ROOT_TEXT_BYTES];
    kvc_root_format(info->root, root);
    return Py_BuildValue(
        "{s:s,s:(II),s:K,s:K,s:K,s:K,s:K,s:I,s:K,s:I,s:N,s:N,s:K,s:K,s:K,s:I,s:I,s:I,s:I,s:I,s:s,"
        "s:d,s:K,s:K}",
        "root", root, "version", (unsigned)info->version_major, (unsigned)info->version_minor,
        "file_bytes", (unsigned long long)info->file_bytes, "metadata_bytes",
        (unsigned long long)info->metadata_bytes, "payload_bytes",
        (unsigned long long)info->payload_bytes, "payload_span",
        (unsigned long long)info->payload_span, "payload_offset",
        (unsigned long long)info->payload_offset, "tensor_count", (unsigned)info->tensor_count,
        "chunk_count", (unsigned long long)info->chunk_count, "align", (unsigned)info->align_bytes,
        "has_tag", PyBool_FromLong(info->has_tag), "tag_checked",
        PyBool_FromLong(info->tag_checked), "incompat", (unsigned long long)info->incompat,
        "ro_compat", (unsigned long long)info->ro_compat, "compat",
        (unsigned long long)info->compat, "manifest_version", (unsigned)info->manifest_version,
        "layers", (unsigned)info->layers, "kv_heads", (unsigned)info->kv_heads, "head_dim",
        (unsigned)info->head_dim, "batch_size", (unsigned)info->batch_size, "dtype", info->dtype,
        "rope_theta", info->rope_theta, "sequence_start", (unsigned long long)info->sequence_start,
        "sequence_length", (unsigned long long)info->sequence_length);
}

static PyObject *reader_info(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct reader *self = (struct reader *)object;
    struct kvc_info info = KVC_INFO_INIT;
    struct kvcpy_call call;
    kvcpy_call_init(&call, state_of(object), self->path, NULL);
    if (kvcpy_call_check(&call, kvc_reader_info(self->reader, &info, &call.error)) < 0) {
        return NULL;
    }
    return kvcpy_info(&info);
}

static PyObject *reader_metadata(PyObject *object, PyObject *unused)
{
    (void)unused;
    uint64_t bytes = 0;
    const char *text = kvc_reader_metadata(((struct reader *)object)->reader, &bytes);
    return PyBytes_FromStringAndSize(text, (Py_ssize_t)bytes);
}

static int find_tensor(struct reader *self, uint32_t index, struct kvc_tensor *ret_tensor)
{
    struct kvcpy_call call;
    *ret_tensor = (struct kvc_tensor)KVC_TENSOR_INIT;
    kvcpy_call_init(&call, state_of((PyObject *)self), self->path, NULL);
    return kvcpy_call_check(&call, kvc_reader_tensor(self->reader, index, ret_tensor, &call.error));
}

/* tensor(index) -> (name, dtype, shape, nbytes, offset, file_offset, chunk_count, layer, kind,
 * digest) */
static PyObject *reader_tensor(PyObject *object, PyObject *args)
{
    unsigned index = 0;
    struct kvc_tensor facts;
    if (!PyArg_ParseTuple(args, "I:tensor", &index) ||
        find_tensor((struct reader *)object, index, &facts) < 0) {
        return NULL;
    }
    PyObject *kind = NULL;
    PyObject *layer = NULL;
    PyObject *shape = kvcpy_shape_tuple(&facts);
    PyObject *digest = kvcpy_digest_text(facts.digest);
    if (kvcpy_place(&facts, &kind, &layer) < 0 || shape == NULL || digest == NULL) {
        Py_XDECREF(kind);
        Py_XDECREF(layer);
        Py_XDECREF(shape);
        Py_XDECREF(digest);
        return NULL;
    }
    return Py_BuildValue("(ssNKKKKNNN)", facts.name, facts.dtype, shape,
                         (unsigned long long)facts.tensor_bytes, (unsigned long long)facts.offset,
                         (unsigned long long)facts.file_offset,
                         (unsigned long long)facts.chunk_count, layer, kind, digest);
}

/* find(name) -> index */
static PyObject *reader_find(PyObject *object, PyObject *args)
{
    struct reader *self = (struct reader *)object;
    const char *name = NULL;
    Py_ssize_t name_bytes = 0;
    uint32_t index = 0;
    if (!PyArg_ParseTuple(args, "s#:find", &name, &name_bytes)) {
        return NULL;
    }
    struct kvcpy_call call;
    kvcpy_call_init(&call, state_of(object), self->path, NULL);
    enum kvc_status status =
        kvc_reader_find(self->reader, name, (size_t)name_bytes, &index, &call.error);
    if (kvcpy_call_check(&call, status) < 0) {
        return NULL;
    }
    return PyLong_FromUnsignedLong(index);
}

/* A bytes object of `bytes` bytes that are still to be filled in. */
static PyObject *new_bytes(uint64_t bytes)
{
    if (bytes > (uint64_t)PY_SSIZE_T_MAX) {
        return PyErr_NoMemory();
    }
    return PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes);
}

/* read(index, start, count, threads) -> bytes */
static PyObject *reader_read(PyObject *object, PyObject *args)
{
    struct reader *self = (struct reader *)object;
    unsigned index = 0;
    unsigned long long start = 0;
    unsigned long long count = 0;
    unsigned threads = 0;
    if (!PyArg_ParseTuple(args, "IKKI:read", &index, &start, &count, &threads)) {
        return NULL;
    }
    PyObject *data = new_bytes(count);
    if (data == NULL) {
        return NULL;
    }
    struct kvcpy_call call;
    struct kvc_work work;
    kvcpy_call_init(&call, state_of(object), self->path, NULL);
    kvcpy_call_work(&call, threads, &work);
    void *buffer = PyBytes_AsString(data);
    kvcpy_call_begin(&call);
    enum kvc_status status =
        kvc_reader_read(self->reader, index, start, count, &work, buffer, &call.error);
    kvcpy_call_end(&call);
    if (kvcpy_call_check(&call, status) < 0) {
        Py_CLEAR(data);
    }
    return data;
}

/* map(index, threads) -> CacheTensor on the reader's private mapping */
static PyObject *reader_map(PyObject *object, PyObject *args)
{
    struct reader *self = (struct reader *)object;
    unsigned index = 0;
    unsigned threads = 0;
    struct kvc_tensor facts;
    if (!PyArg_ParseTuple(args, "II:map", &index, &threads) ||
        find_tensor(self, index, &facts) < 0) {
        return NULL;
    }
    struct kvcpy_call call;
    struct kvc_work work;
    struct kvc_view *view = NULL;
    kvcpy_call_init(&call, state_of(object), self->path, NULL);
    kvcpy_call_work(&call, threads, &work);
    kvcpy_call_begin(&call);
    enum kvc_status status = kvc_reader_map(self->reader, index, &work, &view, &call.error);
    kvcpy_call_end(&call);
    if (kvcpy_call_check(&call, status) < 0) {
        kvc_view_free(view);
        return NULL;
    }
    struct kvcpy_memory *memory = kvcpy_memory_of_view(view);
    return memory == NULL ? NULL : kvcpy_tensor_new(call.state, &facts, memory);
}

/* copy(index, threads) -> CacheTensor in memory of its own */
static PyObject *reader_copy(PyObject *object, PyObject *args)
{
    struct reader *self = (struct reader *)object;
    unsigned index = 0;
    unsigned threads = 0;
    struct kvc_tensor facts;
    if (!PyArg_ParseTuple(args, "II:copy", &index, &threads) ||
        find_tensor(self, index, &facts) < 0) {
        return NULL;
    }
    struct kvcpy_memory *memory = kvcpy_memory_allocate(facts.tensor_bytes);
    if (memory == NULL) {
        return NULL;
    }
    struct kvcpy_call call;
    struct kvc_work work;
    kvcpy_call_init(&call, state_of(object), self->path, NULL);
    kvcpy_call_work(&call, threads, &work);
    kvcpy_call_begin(&call);
    enum kvc_status status = kvc_reader_read(self->reader, index, 0, facts.tensor_bytes, &work,
                                             kvcpy_memory_data(memory), &call.error);
    kvcpy_call_end(&call);
    if (kvcpy_call_check(&call, status) < 0) {
        kvcpy_memory_release(memory);
        return NULL;
    }
    return kvcpy_tensor_new(call.state, &facts, memory);
}

/* map_payload(threads) -> memoryview on the private mapping, from the payload's first byte to its
 * last, gaps included */
static PyObject *reader_map_payload(PyObject *object, PyObject *args)
{
    struct reader *self = (struct reader *)object;
    unsigned threads = 0;
    if (!PyArg_ParseTuple(args, "I:map_payload", &threads)) {
        return NULL;
    }
    struct kvcpy_call call;
    struct kvc_work work;
    struct kvc_view *view = NULL;
    kvcpy_call_init(&call, state_of(object), self->path, NULL);
    kvcpy_call_work(&call, threads, &work);
    kvcpy_call_begin(&call);
    enum kvc_status status = kvc_reader_map_payload(self->reader, &work, &view, &call.error);
    kvcpy_call_end(&call);
    if (kvcpy_call_check(&call, status) < 0) {
        kvc_view_free(view);
        return NULL;
    }
    uint64_t bytes = 0;
    (void)kvc_view_data(view, &bytes);
    struct kvcpy_memory *memory = kvcpy_memory_of_view(view);
    return memory == NULL ? NULL : kvcpy_payload_new(call.state, memory, bytes);
}

/* read_payload(count, threads) -> bytes: the logical payload, packed */
static PyObject *reader_read_payload(PyObject *object, PyObject *args)
{
    struct reader *self = (struct reader *)object;
    unsigned long long count = 0;
    unsigned threads = 0;
    if (!PyArg_ParseTuple(args, "KI:read_payload", &count, &threads)) {
        return NULL;
    }
    PyObject *data = new_bytes(count);
    if (data == NULL) {
        return NULL;
    }
    struct kvcpy_call call;
    struct kvc_work work;
    kvcpy_call_init(&call, state_of(object), self->path, NULL);
    kvcpy_call_work(&call, threads, &work);
    void *buffer = PyBytes_AsString(data);
    kvcpy_call_begin(&call);
    enum kvc_status status =
        kvc_reader_read_payload(self->reader, &work, buffer, count, &call.error);
    kvcpy_call_end(&call);
    if (kvcpy_call_check(&call, status) < 0) {
        Py_CLEAR(data);
    }
    return data;
}

/* verify(threads, progress, collect) -> list of exceptions, empty when every byte is proven */
static PyObject *reader_verify(PyObject *object, PyObject *args)
{
    struct reader *self = (struct reader *)object;
    unsigned threads = 0;
    PyObject *progress = Py_None;
    int collect = 0;
    if (!PyArg_ParseTuple(args, "IOp:verify", &threads, &progress, &collect)) {
        return NULL;
    }
    PyObject *failures = PyList_New(0);
    if (failures == NULL) {
        return NULL;
    }
    struct kvcpy_call call;
    struct kvc_work work;
    kvcpy_call_init(&call, state_of(object), self->path, progress);
    kvcpy_call_work(&call, threads, &work);
    call.failures = failures;
    kvcpy_call_begin(&call);
    enum kvc_status status =
        kvc_reader_verify(self->reader, &work, collect ? kvcpy_failure : NULL, &call, &call.error);
    kvcpy_call_end(&call);
    int collected = status >= KVC_E_HEADER_CHECK && status <= KVC_E_PADDING &&
                    PyList_Size(failures) > 0 && !call.failed;
    if (!collected && kvcpy_call_check(&call, status) < 0) {
        Py_CLEAR(failures);
    }
    return failures;
}

static PyMethodDef reader_methods[] = {
    {"info", reader_info, METH_NOARGS, NULL},
    {"metadata", reader_metadata, METH_NOARGS, NULL},
    {"tensor", reader_tensor, METH_VARARGS, NULL},
    {"find", reader_find, METH_VARARGS, NULL},
    {"read", reader_read, METH_VARARGS, NULL},
    {"map", reader_map, METH_VARARGS, NULL},
    {"copy", reader_copy, METH_VARARGS, NULL},
    {"map_payload", reader_map_payload, METH_VARARGS, NULL},
    {"read_payload", reader_read_payload, METH_VARARGS, NULL},
    {"verify", reader_verify, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot reader_slots[] = {
    {Py_tp_dealloc, KVCPY_SLOT(reader_dealloc)},
    {Py_tp_methods, reader_methods},
    {Py_tp_doc, KVCPY_TEXT("An open cache, used from any thread; kvcache.Cache wraps it.")},
    {0, NULL},
};

PyType_Spec kvcpy_reader_spec = {
    .name = "kvcache._kvc.Reader",
    .basicsize = (int)sizeof(struct reader),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = reader_slots,
};
