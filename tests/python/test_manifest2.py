"""test_manifest2.py: caches of manifest version 2, whose tensors differ, as Python objects.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import kvcache
import numpy
import pytest
import torch
from kvcache_cases import base_metadata

# For each dtype: bytes of an element, format of the buffer, numpy's and torch's name.
DTYPES: dict[str, tuple[int, str | None, str | None, torch.dtype | None]] = {
    "f16": (2, "e", "<f2", torch.float16),
    "bf16": (2, None, None, torch.bfloat16),
    "f32": (4, "f", "<f4", torch.float32),
    "f64": (8, "d", "<f8", torch.float64),
    "f8_e4m3fn": (1, None, None, None),
    "f8_e5m2": (1, None, None, None),
    "f8_e4m3fnuz": (1, None, None, None),
    "f8_e5m2fnuz": (1, None, None, None),
    "f8_e8m0": (1, None, None, None),
    "i8": (1, "b", "|i1", torch.int8),
    "i16": (2, "h", "<i2", torch.int16),
    "i32": (4, "i", "<i4", torch.int32),
    "i64": (8, "q", "<i8", torch.int64),
    "u8": (1, "B", "|u1", torch.uint8),
    "u16": (2, "H", "<u2", torch.uint16),
    "u32": (4, "I", "<u4", torch.uint32),
    "bool": (1, "?", "|b1", torch.bool),
}
NAME = "layer.0.conv_state.0"


def record(name: str, role: str, layer: int | None, **facts: Any) -> dict[str, Any]:
    """Return a tensor record; `index`, `dtype` and `shape` are in `facts`."""
    shape = list(facts["shape"])
    return {
        "axes": facts.get("axes", [f"dim_{k}" for k in range(len(shape))]),
        "dtype": facts["dtype"],
        "index": facts.get("index", 0),
        "layer": layer,
        "name": name,
        "nbytes": math.prod(shape) * DTYPES[facts["dtype"]][0],
        "offset": 0,
        "packing": None,
        "role": role,
        "shape": shape,
    }


def metadata_of(records: list[dict[str, Any]], **top: Any) -> dict[str, Any]:
    """Return metadata of one linear layer with these tensors."""
    offset = 0
    for entry in records:
        entry["offset"] = offset
        offset += entry["nbytes"]
    layer = {
        "aliases": {},
        "cache": "self",
        "class": "LinearLayer",
        "flags": {},
        "kind": "linear",
        "layer": 0,
        "positions_seen": 3,
        "state": "filled",
        "stored_tokens": 0,
        "window": None,
    }
    manifest = {
        "batch_size": 1,
        "byte_order": "little",
        "cache_class": "HybridCache",
        "framework": {"name": "test", "version": "1"},
        "info": {},
        "layers": [layer],
        "state_schema": "test/linear",
        "tensors": records,
        "version": 2,
        "wrapper": "none",
    }
    empty = {"dtype": None, "head_dim": None, "kv_heads": None}
    return {
        **base_metadata(**empty, layers=1, sequence_length=3, **top),
        "tensor_manifest": manifest,
    }


def write(path: Path, metadata: dict[str, Any], align: int | None = None) -> bytes:
    """Write a file and return its logical payload, bytes of 0 and 1, which every dtype can hold."""
    size = sum(entry["nbytes"] for entry in metadata["tensor_manifest"]["tensors"])
    payload = bytes(value % 2 for value in range(size))
    kvcache.write_cache_stream(path, metadata, [payload], align=align, durability="none")
    return payload


@pytest.mark.parametrize("copy", [False, True], ids=["map", "copy"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(tmp_path: Path, dtype: str, copy: bool) -> None:
    size, buffer_format, typestr, torch_dtype = DTYPES[dtype]
    path = tmp_path / "a.kvc"
    payload = write(path, metadata_of([record(NAME, "conv_state", 0, dtype=dtype, shape=[2, 3])]))
    with kvcache.open_cache(path, copy=copy) as cache:
        tensor = cache[NAME]
        facts = cache.tensors[NAME]
    assert (tensor.dtype, tensor.shape, tensor.nbytes) == (dtype, (2, 3), 6 * size)
    assert (facts.dtype, facts.shape, facts.kind, facts.layer) == (dtype, (2, 3), "conv_state", 0)
    view = memoryview(tensor)
    assert bytes(view) == payload
    assert (view.format, view.itemsize) == (buffer_format or "B", size if buffer_format else 1)
    assert view.shape == ((2, 3) if buffer_format else (6 * size,))
    if typestr is None:
        with pytest.raises(AttributeError, match=dtype):
            _ = tensor.__array_interface__
    else:
        array = numpy.asarray(tensor)
        assert (array.dtype.str, array.shape, array.tobytes()) == (typestr, (2, 3), payload)
        assert tensor.__array_interface__["typestr"] == typestr
    if torch_dtype is None:
        with pytest.raises(BufferError, match=f"DLPack 1.0 has no type for {dtype}"):
            tensor.__dlpack__()
        raw = torch.frombuffer(tensor, dtype=torch.uint8)
        assert bytes(raw.tolist()) == payload
    else:
        moved = torch.utils.dlpack.from_dlpack(tensor)
        assert (moved.dtype, tuple(moved.shape)) == (torch_dtype, (2, 3))
        assert bytes(moved.contiguous().view(torch.uint8).flatten().tolist()) == payload


@pytest.mark.parametrize("copy", [False, True], ids=["map", "copy"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f8_e5m2", "i64"])
def test_no_bytes_and_no_dimensions(tmp_path: Path, dtype: str, copy: bool) -> None:
    path = tmp_path / "a.kvc"
    size = DTYPES[dtype][0]
    scalar, empty, huge = (f"layer.0.conv_state.{index}" for index in (0, 1, 2))
    records = [
        record(scalar, "conv_state", 0, dtype=dtype, shape=[]),
        record(empty, "conv_state", 0, dtype=dtype, shape=[2, 0, 3], index=1),
        record(huge, "conv_state", 0, dtype=dtype, shape=[2**53 - 1, 2**53 - 1, 0], index=2),
    ]
    payload = write(path, metadata_of(records))
    with kvcache.open_cache(path, copy=copy) as cache:
        tensors = [cache[name] for name in (scalar, empty, huge)]
        assert [tensor.nbytes for tensor in tensors] == [size, 0, 0]
        assert [tensor.shape for tensor in tensors] == [(), (2, 0, 3), (2**53 - 1, 2**53 - 1, 0)]
        assert [bytes(tensor) for tensor in tensors] == [payload, b"", b""]
        assert [cache.read(name) for name in (scalar, empty, huge)] == [payload, b"", b""]
        assert bytes(cache.payload()) == payload
        assert cache.tensors[empty].chunk_count == 0
    if DTYPES[dtype][1] is not None:
        assert memoryview(tensors[0]).ndim == 0
        assert numpy.asarray(tensors[0]).shape == ()
        assert numpy.asarray(tensors[1]).shape == (2, 0, 3)
    if DTYPES[dtype][3] is not None:
        assert tuple(torch.utils.dlpack.from_dlpack(tensors[0]).shape) == ()
        assert tuple(torch.utils.dlpack.from_dlpack(tensors[1]).shape) == (2, 0, 3)
    assert kvcache.verify_cache(path).payload_bytes == size


def test_facts(tmp_path: Path) -> None:
    path = tmp_path / "a.kvc"
    records = [
        record(NAME, "conv_state", 0, dtype="u8", shape=[5]),
        record(
            "token_ids", "token_ids", None, dtype="i32", shape=[1, 3], axes=["batch", "sequence"]
        ),
    ]
    metadata = metadata_of(records, rope={"factor": 2.0})
    payload = write(path, metadata)
    info = kvcache.verify_cache(path, {"rope": {"factor": 2}})
    assert (info.version, info.incompat, info.manifest_version) == ((1, 1), 1, 2)
    assert (info.dtype, info.kv_heads, info.head_dim, info.batch_size) == ("", 0, 0, 1)
    assert (info.align, info.payload_bytes, info.payload_span) == (64, 17, 76)
    with kvcache.open_cache(path) as cache:
        assert list(cache) == [NAME, "token_ids"]
        tokens = cache["token_ids"]
        assert (tokens.kind, tokens.layer, tokens.offset) == ("token_ids", None, 5)
        assert cache.tensors["token_ids"].layer is None
        assert cache.tensors["token_ids"].file_offset == info.payload_offset + 64
        assert bytes(cache.payload()) == payload
        assert cache.metadata == metadata
        with pytest.raises(KeyError):
            _ = cache["layer.0.conv_state"]


def test_segment(tmp_path: Path) -> None:
    path = tmp_path / "a.kvc"
    parent = "kvc1:" + 64 * "a"
    info = kvcache.write_cache_stream(
        path, base_metadata(sequence_start=9, parent_root=parent), [b"tokens"]
    )
    assert (info.version, info.incompat, info.align) == ((1, 1), 2, 1)
    assert kvcache.verify_cache(path, {"parent_root": parent}).sequence_start == 9
    with pytest.raises(kvcache.CacheFormatError) as caught:
        kvcache.write_cache_stream(path, base_metadata(parent_root=parent), [b"tokens"])
    assert (caught.value.status, caught.value.field) == ("geometry", "sequence_start")


@pytest.mark.parametrize("align", [None, 1, 64, 4096])
def test_alignment(tmp_path: Path, align: int | None) -> None:
    path = tmp_path / "a.kvc"
    records = [
        record(f"layer.0.conv_state.{index}", "conv_state", 0, dtype="u8", shape=[5], index=index)
        for index in range(3)
    ]
    payload = write(path, metadata_of(records), align)
    step = align or 64
    with kvcache.open_cache(path) as cache:
        assert (cache.info.align, cache.info.incompat) == (step, 1)
        assert cache.info.payload_span == 2 * -(-5 // step) * step + 5
        assert bytes(cache.payload()) == payload
        for facts in cache.tensors.values():
            assert (facts.file_offset - cache.info.payload_offset) % step == 0


def test_a_refusal_names_its_place(tmp_path: Path) -> None:
    metadata = metadata_of([record(NAME, "conv_state", 0, dtype="u8", shape=[5, 2])])
    metadata["tensor_manifest"]["tensors"][0]["shape"][1] = -1
    with pytest.raises(kvcache.CacheFormatError) as caught:
        kvcache.write_cache_stream(tmp_path / "a.kvc", metadata, [])
    error = caught.value
    assert (error.status, error.field) == ("schema", "tensor_manifest.tensors[0].shape[1]")
    assert not (tmp_path / "a.kvc").exists()
