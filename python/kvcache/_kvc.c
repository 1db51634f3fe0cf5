/* _kvc.c: the extension module kvcache._kvc, libkvc for Python; kvcache wraps it.
 * SPDX-License-Identifier: Apache-2.0 */
#include "_kvc.h"

static PyObject *kernel(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyUnicode_FromString(kvc_kernel());
}

static PyObject *version(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyUnicode_FromString(kvc_version());
}

/* parse_root(text) -> 32 bytes, or None when the text is no root */
static PyObject *parse_root(PyObject *module, PyObject *args)
{
    (void)module;
    const char *text = NULL;
    uint8_t root[KVC_DIGEST_BYTES];
    if (!PyArg_ParseTuple(args, "s:parse_root", &text)) {
        return NULL;
    }
    if (kvc_root_parse(text, root) != KVC_OK) {
        Py_RETURN_NONE;
    }
    return PyBytes_FromStringAndSize((const char *)root, KVC_DIGEST_BYTES);
}

static PyObject *exiting(PyObject *module, PyObject *unused)
{
    (void)unused;
    struct kvcpy_state *state = PyModule_GetState(module);
    atomic_store(&state->exiting, 1);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"kernel", kernel, METH_NOARGS,
     "kernel()\n--\n\nReturn the BLAKE3 kernel in use: 'avx512', 'avx2', 'sse41', 'neon' or "
     "'portable'."},
    {"version", version, METH_NOARGS, NULL},
    {"parse_root", parse_root, METH_VARARGS, NULL},
    {"open", kvcpy_open, METH_VARARGS, NULL},
    {"write", kvcpy_write, METH_VARARGS, NULL},
    {"_exiting", exiting, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static int add_type(PyObject *module, PyType_Spec *spec, const char *name, PyTypeObject **ret_type)
{
    *ret_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *ret_type == NULL ? -1 : PyModule_AddObjectRef(module, name, (PyObject *)*ret_type);
}

static PyObject *import_member(const char *module_name, const char *name)
{
    PyObject *module = PyImport_ImportModule(module_name);
    PyObject *member = module == NULL ? NULL : PyObject_GetAttrString(module, name);
    Py_XDECREF(module);
    return member;
}

static int watch_exit(PyObject *module)
{
    PyObject *enter = import_member("atexit", "register");
    PyObject *handler = PyObject_GetAttrString(module, "_exiting");
    PyObject *result = NULL;
    if (enter != NULL && handler != NULL) {
        result = PyObject_CallFunctionObjArgs(enter, handler, NULL);
    }
    Py_XDECREF(enter);
    Py_XDECREF(handler);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static int module_exec(PyObject *module)
{
    struct kvcpy_state *state = PyModule_GetState(module);
    atomic_init(&state->exiting, 0);
    state->make_error = import_member("kvcache.errors", "exception_from_status");
    if (state->make_error == NULL ||
        add_type(module, &kvcpy_reader_spec, "Reader", &state->reader_type) < 0 ||
        add_type(module, &kvcpy_tensor_spec, "CacheTensor", &state->tensor_type) < 0 ||
        add_type(module, &kvcpy_payload_spec, "Payload", &state->payload_type) < 0) {
        return -1;
    }
    if (PyModule_AddIntConstant(module, "DURABILITY_FULL", KVC_DURABILITY_FULL) < 0 ||
        PyModule_AddIntConstant(module, "DURABILITY_FILE", KVC_DURABILITY_FILE) < 0 ||
        PyModule_AddIntConstant(module, "DURABILITY_NONE", KVC_DURABILITY_NONE) < 0) {
        return -1;
    }
    return watch_exit(module);
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    struct kvcpy_state *state = PyModule_GetState(module);
    Py_VISIT(state->make_error);
    Py_VISIT(state->reader_type);
    Py_VISIT(state->tensor_type);
    Py_VISIT(state->payload_type);
    return 0;
}

static int module_clear(PyObject *module)
{
    struct kvcpy_state *state = PyModule_GetState(module);
    Py_CLEAR(state->make_error);
    Py_CLEAR(state->reader_type);
    Py_CLEAR(state->tensor_type);
    Py_CLEAR(state->payload_type);
    return 0;
}

static void module_free(void *module)
{
    (void)module_clear(module);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, KVCPY_SLOT(module_exec)},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "kvcache._kvc",
    .m_doc = "libkvc for Python. Use the kvcache package; this module has no stable interface.",
    .m_size = (Py_ssize_t)sizeof(struct kvcpy_state),
    .m_methods = functions,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__kvc(void);

PyMODINIT_FUNC PyInit__kvc(void)
{
    return PyModuleDef_Init(&definition);
}
