/* _kvc_dlpack.c: hands tensors to other libraries through DLPack, old and new capsules.
 * SPDX-License-Identifier: Apache-2.0 */
#include "_kvc.h"

#include <stdlib.h>
#include <string.h>

/* The structs of DLPack 1.0, whose layout is an ABI. */
#define DLPACK_MAJOR 1
#define DLPACK_MINOR 0
#define DLPACK_CPU 1
#define DLPACK_IS_COPIED (UINT64_C(1) << 1)

struct dl_tensor {
    void *data;
    int32_t device_type;
    int32_t device_id;
    int32_t ndim;
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
    int64_t *shape;
    int64_t *strides; /* elements */
    uint64_t byte_offset;
};

struct dl_managed {
    struct dl_tensor tensor;
    void *manager_context;
    void (*deleter)(struct dl_managed *self);
};

struct dl_managed_versioned {
    uint32_t major;
    uint32_t minor;
    void *manager_context;
    void (*deleter)(struct dl_managed_versioned *self);
    uint64_t flags;
    struct dl_tensor tensor;
};

/* One export. Consumers call a deleter from any thread, without the GIL, perhaps after Python has
 * ended: it touches nothing of Python. */
struct handout {
    struct kvcpy_memory *memory;
    union {
        struct dl_managed old;
        struct dl_managed_versioned versioned;
    } managed;
    int64_t shape[KVCPY_MAX_RANK];
    int64_t strides[KVCPY_MAX_RANK];
};

static const char old_name[] = "dltensor";
static const char versioned_name[] = "dltensor_versioned";

static void handout_free(struct handout *handout)
{
    kvcpy_memory_release(handout->memory);
    free(handout);
}

static void old_deleter(struct dl_managed *self)
{
    handout_free(self->manager_context);
}

static void versioned_deleter(struct dl_managed_versioned *self)
{
    handout_free(self->manager_context);
}

/* A consumer renames the capsule that it took; one that still has its name was never used. */
static void old_capsule_free(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, old_name)) {
        old_deleter(PyCapsule_GetPointer(capsule, old_name));
    }
}

static void versioned_capsule_free(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, versioned_name)) {
        versioned_deleter(PyCapsule_GetPointer(capsule, versioned_name));
    }
}

static void describe(struct handout *handout, const struct kvcpy_tensor *tensor,
                     struct dl_tensor *ret_tensor)
{
    for (int i = 0; i < tensor->rank; i++) {
        handout->shape[i] = tensor->shape[i];
        handout->strides[i] = tensor->strides[i] / tensor->dtype->item_bytes;
    }
    ret_tensor->data = kvcpy_memory_data(handout->memory);
    ret_tensor->device_type = DLPACK_CPU;
    ret_tensor->device_id = 0;
    ret_tensor->ndim = tensor->rank;
    ret_tensor->code = tensor->dtype->dlpack_code;
    ret_tensor->bits = (uint8_t)(8 * tensor->dtype->item_bytes);
    ret_tensor->lanes = 1;
    ret_tensor->shape = handout->shape;
    ret_tensor->strides = handout->strides;
    ret_tensor->byte_offset = 0;
}

static PyObject *capsule_new(struct handout *handout, const struct kvcpy_tensor *tensor,
                             int versioned, uint64_t flags)
{
    PyObject *capsule = NULL;
    if (versioned) {
        struct dl_managed_versioned *managed = &handout->managed.versioned;
        managed->major = DLPACK_MAJOR;
        managed->minor = DLPACK_MINOR;
        managed->manager_context = handout;
        managed->deleter = versioned_deleter;
        managed->flags = flags;
        describe(handout, tensor, &managed->tensor);
        capsule = PyCapsule_New(managed, versioned_name, versioned_capsule_free);
    } else {
        struct dl_managed *managed = &handout->managed.old;
        managed->manager_context = handout;
        managed->deleter = old_deleter;
        describe(handout, tensor, &managed->tensor);
        capsule = PyCapsule_New(managed, old_name, old_capsule_free);
    }
    if (capsule == NULL) {
        handout_free(handout);
    }
    return capsule;
}

static struct kvcpy_memory *copied_memory(const struct kvcpy_tensor *tensor)
{
    struct kvcpy_memory *memory = kvcpy_memory_allocate((uint64_t)tensor->tensor_bytes);
    if (memory != NULL) {
        Py_BEGIN_ALLOW_THREADS
        memcpy(kvcpy_memory_data(memory), kvcpy_memory_data(tensor->memory),
               (size_t)tensor->tensor_bytes);
        Py_END_ALLOW_THREADS
    }
    return memory;
}

static int check_device(PyObject *device)
{
    if (device == Py_None) {
        return 0;
    }
    int type = 0;
    int number = 0;
    if (!PyTuple_Check(device)) {
        PyErr_SetString(PyExc_TypeError, "dl_device must be None or a tuple (type, number)");
        return -1;
    }
    if (!PyArg_ParseTuple(device, "ii;dl_device must be None or a tuple (type, number)", &type,
                          &number)) {
        return -1;
    }
    if (type != DLPACK_CPU || number != 0) {
        PyErr_Format(PyExc_BufferError,
                     "dl_device is (%d, %d), and a CacheTensor lies on the CPU, (1, 0): take it "
                     "there and move it with your library",
                     type, number);
        return -1;
    }
    return 0;
}

/* Returns 1 for a versioned capsule, 0 for the old one, -1 with an exception. */
static int wants_versioned(PyObject *max_version)
{
    int major = 0;
    int minor = 0;
    if (max_version == Py_None) {
        return 0;
    }
    if (!PyTuple_Check(max_version)) {
        PyErr_SetString(PyExc_TypeError, "max_version must be None or a tuple (major, minor)");
        return -1;
    }
    if (!PyArg_ParseTuple(max_version, "ii;max_version must be None or a tuple (major, minor)",
                          &major, &minor)) {
        return -1;
    }
    return major >= DLPACK_MAJOR;
}

PyObject *kvcpy_dlpack(PyObject *self, PyObject *args, PyObject *keywords)
{
    /* PyArg_ParseTupleAndKeywords takes names that are not const, and only reads them. */
    static char stream_name[] = "stream";
    static char max_version_name[] = "max_version";
    static char device_name[] = "dl_device";
    static char copy_name[] = "copy";
    char *names[] = {stream_name, max_version_name, device_name, copy_name, NULL};
    const struct kvcpy_tensor *tensor = (const struct kvcpy_tensor *)self;
    PyObject *stream = Py_None;
    PyObject *max_version = Py_None;
    PyObject *device = Py_None;
    PyObject *copy = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|$OOOO:__dlpack__", names, &stream,
                                     &max_version, &device, &copy)) {
        return NULL;
    }
    if (stream != Py_None) {
        PyErr_SetString(PyExc_ValueError, "stream must be None: the memory of a CPU has no stream");
        return NULL;
    }
    int versioned = wants_versioned(max_version);
    int copies = copy == Py_None ? 0 : PyObject_IsTrue(copy);
    if (versioned < 0 || copies < 0 || check_device(device) < 0) {
        return NULL;
    }
    if (tensor->dtype->dlpack_code == KVCPY_NO_DLPACK) {
        return PyErr_Format(PyExc_BufferError,
                            "DLPack %d.%d has no type for %s: take the raw bytes, as in "
                            "torch.frombuffer(tensor, dtype=torch.uint8)",
                            DLPACK_MAJOR, DLPACK_MINOR, tensor->dtype->name);
    }
    struct handout *handout = calloc(1, sizeof(*handout));
    if (handout == NULL) {
        return PyErr_NoMemory();
    }
    handout->memory = copies ? copied_memory(tensor) : kvcpy_memory_hold(tensor->memory);
    if (handout->memory == NULL) {
        free(handout);
        return NULL;
    }
    return capsule_new(handout, tensor, versioned, copies ? DLPACK_IS_COPIED : 0);
}

PyObject *kvcpy_dlpack_device(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    return Py_BuildValue("(ii)", DLPACK_CPU, 0);
}
