# test_tensor.py: tensors as memory for Python, numpy and torch.
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
import ctypes
import pickle
from pathlib import Path
from typing import Any

import kvcache
import pytest
from kvcache_cases import tensor_bytes, write_case

FORMATS = {"f16": "e", "bf16": "B", "f32": "f", "i8": "b", "u8": "B"}
SHAPE = {"batch": 2, "heads": 3, "sequence": 5, "head_dim": 7}
NAME = "layer.0.value"


@pytest.fixture(params=["f16", "bf16", "f32", "i8", "u8"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["mapped", "copied"])
def copied(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def open_case(folder: Path, dtype: str, copied: bool) -> tuple[kvcache.CacheTensor, bytes]:
    path = folder / "a.kvc"
    metadata, payload = write_case(path, dtype=dtype, **SHAPE)
    with kvcache.open_cache(path, copy=copied) as cache:
        return cache[NAME], tensor_bytes(metadata, payload, NAME)


def test_buffer(tmp_path: Path, dtype: str, copied: bool) -> None:
    tensor, expected = open_case(tmp_path, dtype, copied)
    view = memoryview(tensor)
    assert view.format == FORMATS[dtype]
    assert not view.readonly
    assert view.c_contiguous
    assert view.nbytes == tensor.nbytes == len(expected)
    if dtype == "bf16":
        assert view.shape == (len(expected),)
        assert view.strides == (1,)
    else:
        assert view.shape == tensor.shape == (2, 3, 5, 7)
        item = view.itemsize
        assert view.strides == (105 * item, 35 * item, 7 * item, item)
    assert view.tobytes() == bytes(tensor) == expected
    assert view.obj is tensor
    flat = view.cast("B")
    flat[3] = flat[3] ^ 255
    assert bytes(tensor)[3] == expected[3] ^ 255


def buffer_of(tensor: object, flags: int) -> tuple[Any, ...]:
    """Ask for a Py_buffer with these flags, and return what was filled in."""

    class Buffer(ctypes.Structure):
        _fields_ = (
            ("buf", ctypes.c_void_p),
            ("obj", ctypes.c_void_p),
            ("len", ctypes.c_ssize_t),
            ("itemsize", ctypes.c_ssize_t),
            ("readonly", ctypes.c_int),
            ("ndim", ctypes.c_int),
            ("format", ctypes.c_char_p),
            ("shape", ctypes.c_void_p),
            ("strides", ctypes.c_void_p),
            ("suboffsets", ctypes.c_void_p),
            ("internal", ctypes.c_void_p),
        )

    view = Buffer()
    get = ctypes.pythonapi.PyObject_GetBuffer
    get.argtypes = [ctypes.py_object, ctypes.POINTER(Buffer), ctypes.c_int]
    release = ctypes.pythonapi.PyBuffer_Release
    release.argtypes = [ctypes.POINTER(Buffer)]
    get(tensor, view, flags)
    result = (view.len, view.ndim, view.format, bool(view.shape), bool(view.strides))
    release(view)
    return result


def test_buffer_flags(tmp_path: Path) -> None:
    simple, writable, with_format, nd, strides = 0, 1, 4, 8, 0x18
    c_contiguous, f_contiguous, any_contiguous = 0x20 | strides, 0x40 | strides, 0x80 | strides
    tensor, expected = open_case(tmp_path, "f32", False)
    size = len(expected)
    assert buffer_of(tensor, simple) == (size, 1, None, False, False)
    assert buffer_of(tensor, writable) == (size, 1, None, False, False)
    assert buffer_of(tensor, nd) == (size, 4, None, True, False)
    assert buffer_of(tensor, strides | with_format) == (size, 4, b"f", True, True)
    assert buffer_of(tensor, c_contiguous) == (size, 4, None, True, True)
    assert buffer_of(tensor, any_contiguous) == (size, 4, None, True, True)
    with pytest.raises(BufferError, match="row-major"):
        buffer_of(tensor, f_contiguous)
    flat, _ = open_case(tmp_path, "bf16", False)
    assert buffer_of(flat, f_contiguous) == (210 * 2, 1, None, True, True)


def test_payload_is_read_only(tmp_path: Path, copied: bool) -> None:
    path = tmp_path / "a.kvc"
    _, payload = write_case(path)
    view = kvcache.read_cache(path, copy=copied)[1]
    with pytest.raises(TypeError):
        view[0] = 1
    with pytest.raises(BufferError):
        buffer_of(view, 1)
    assert view[3:9] == payload[3:9]
    assert hash(view) == hash(payload)


def test_numpy(tmp_path: Path, dtype: str, copied: bool) -> None:
    numpy = pytest.importorskip("numpy")
    tensor, expected = open_case(tmp_path, dtype, copied)
    array = numpy.asarray(tensor)
    assert array.tobytes() == expected
    assert array.flags.writeable
    if dtype == "bf16":
        assert array.dtype == numpy.uint8
        assert not hasattr(tensor, "__array_interface__")
        with pytest.raises(AttributeError, match="numpy has no dtype for bf16"):
            tensor.__array_interface__  # noqa: B018
        return
    names = {"f16": "float16", "f32": "float32", "i8": "int8", "u8": "uint8"}
    assert array.dtype == numpy.dtype(names[dtype])
    assert array.shape == (2, 3, 5, 7)
    array.reshape(-1).view("u1")[0] ^= 1
    assert bytes(tensor)[0] == expected[0] ^ 1
    imported = numpy.from_dlpack(tensor)
    assert imported.dtype == array.dtype
    assert imported.ctypes.data == array.ctypes.data

    class Interface:
        __array_interface__ = tensor.__array_interface__

    holder = Interface()
    described = numpy.asarray(holder)
    assert described.ctypes.data == array.ctypes.data
    assert (described.dtype, described.shape) == (array.dtype, array.shape)


def test_torch(tmp_path: Path, dtype: str, copied: bool) -> None:
    torch = pytest.importorskip("torch")
    tensor, expected = open_case(tmp_path, dtype, copied)
    kinds = {
        "f16": torch.float16,
        "bf16": torch.bfloat16,
        "f32": torch.float32,
        "i8": torch.int8,
        "u8": torch.uint8,
    }
    imported = torch.from_dlpack(tensor)
    assert imported.dtype == kinds[dtype]
    assert imported.shape == (2, 3, 5, 7)
    assert imported.is_contiguous()
    assert imported.view(torch.uint8).numpy().tobytes() == expected
    imported.zero_()
    assert bytes(tensor) == bytes(len(expected))
    again = torch.frombuffer(tensor, dtype=kinds[dtype]).reshape(2, 3, 5, 7)
    assert again.data_ptr() == imported.data_ptr()
    old = torch.utils.dlpack.from_dlpack(tensor.__dlpack__())
    assert old.data_ptr() == imported.data_ptr()


def test_capsules(tmp_path: Path) -> None:
    tensor, expected = open_case(tmp_path, "f32", False)
    assert tensor.__dlpack_device__() == (1, 0)
    for version in (None, (0, 8)):
        assert '"dltensor"' in repr(tensor.__dlpack__(max_version=version))
    for version in ((1, 0), (1, 3), (2, 0)):
        assert '"dltensor_versioned"' in repr(tensor.__dlpack__(max_version=version))
    assert tensor.__dlpack__(dl_device=(1, 0), copy=False, stream=None) is not None
    with pytest.raises(BufferError, match=r"dl_device is \(2, 0\)"):
        tensor.__dlpack__(dl_device=(2, 0))
    with pytest.raises(ValueError, match="stream must be None"):
        tensor.__dlpack__(stream=1)
    with pytest.raises(TypeError, match="max_version must be None or a tuple"):
        tensor.__dlpack__(max_version=1)
    with pytest.raises(TypeError, match="dl_device must be None or a tuple"):
        tensor.__dlpack__(dl_device="cpu")
    with pytest.raises(TypeError):
        tensor.__dlpack__(None)
    numpy = pytest.importorskip("numpy")
    separate = numpy.from_dlpack(tensor, copy=True)
    separate[:] = 0
    assert bytes(tensor) == expected


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    )


def take(capsule: object) -> Versioned:
    """Consume a versioned capsule as another library would."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype = ctypes.c_void_p
    get.argtypes = [ctypes.py_object, ctypes.c_char_p]
    rename = ctypes.pythonapi.PyCapsule_SetName
    rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
    address = get(capsule, b"dltensor_versioned")
    rename(capsule, b"used_dltensor_versioned")
    return Versioned.from_address(address)


@pytest.mark.parametrize("copies", [False, True])
def test_what_a_capsule_says(tmp_path: Path, dtype: str, copies: bool) -> None:
    tensor, expected = open_case(tmp_path, dtype, False)
    managed = take(tensor.__dlpack__(max_version=(1, 0), copy=copies))
    codes = {"f16": (2, 16), "bf16": (4, 16), "f32": (2, 32), "i8": (0, 8), "u8": (1, 8)}
    assert (managed.major, managed.minor) == (1, 0)
    assert managed.flags == (2 if copies else 0)
    described = managed.tensor
    assert (described.code, described.bits) == codes[dtype]
    assert (described.device_type, described.device_id, described.lanes) == (1, 0, 1)
    assert described.shape[: described.ndim] == [2, 3, 5, 7]
    assert described.strides[: described.ndim] == [105, 35, 7, 1]
    assert described.byte_offset == 0
    del tensor
    assert ctypes.string_at(described.data, len(expected)) == expected
    # A function of ctypes runs without the GIL, as another library's thread would.
    managed.deleter(ctypes.addressof(managed))


def test_copied_memory_is_aligned(tmp_path: Path) -> None:
    path = tmp_path / "a.kvc"
    write_case(path, dtype="u8", heads=1, head_dim=1, sequence=13, layers=4)
    with kvcache.open_cache(path, copy=True) as cache:
        for name in cache:
            address = cache[name].__array_interface__["data"][0]
            assert address % 64 == 0


def test_no_pickles_no_deep_copies(tmp_path: Path) -> None:
    tensor, _ = open_case(tmp_path, "f16", False)
    with kvcache.open_cache(tmp_path / "a.kvc") as cache:
        for thing, text in ((tensor, "CacheTensor cannot be"), (cache, "Cache cannot be pickled")):
            for function in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(TypeError, match=text):
                    function(thing)


def test_repr(tmp_path: Path) -> None:
    tensor, _ = open_case(tmp_path, "bf16", False)
    assert repr(tensor) == "<kvcache.CacheTensor 'layer.0.value' bf16 (2, 3, 5, 7), 420 bytes>"
