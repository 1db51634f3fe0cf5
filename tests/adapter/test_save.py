# test_save.py: what write_dynamic_cache puts into the file.
# SPDX-License-Identifier: Apache-2.0
# mypy: allow-untyped-calls, allow-subclassing-any
from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import kvcache
import numpy
import pytest
import torch
import torch_kvcache
from adapter_help import (
    DTYPES,
    IDENTITY,
    bits,
    cache_of,
    random_cache,
    read_dynamic_cache,
    run_python,
)
from torch_kvcache.write import row_major_bytes

SHAPES = [
    (1, 1, 1, 1),
    (1, 1, 1, 64),
    (1, 8, 1, 1),
    (2, 3, 5, 7),
    (1, 1, 17, 3),
    (3, 1, 1, 5),
]


def test_metadata_say_everything(tmp_path: Path) -> None:
    cache, _ = random_cache((2, 3, 5, 7), torch.float16, layers=2)
    metadata = torch_kvcache.write_dynamic_cache(
        tmp_path / "a.kvc", cache, **IDENTITY, sequence_start=40
    )
    records = []
    for index, (layer, kind) in enumerate([(0, "key"), (0, "value"), (1, "key"), (1, "value")]):
        records.append(
            {
                "name": f"layer.{layer}.{kind}",
                "kind": kind,
                "layer": layer,
                "shape": [2, 3, 5, 7],
                "strides": [210, 70, 14, 2],
                "offset": index * 420,
                "nbytes": 420,
                "dtype": "f16",
            }
        )
    assert metadata == {
        "model_revision": "test-model",
        "tokenizer_sha256": "0123456789abcdef" * 4,
        "rope_theta": 10000.0,
        "layers": 2,
        "kv_heads": 3,
        "head_dim": 7,
        "dtype": "f16",
        "layout": "layer-major-k-then-v",
        "sequence_start": 40,
        "sequence_length": 5,
        "tensor_manifest": {
            "version": 1,
            "byte_order": "little",
            "batch_size": 2,
            "cache_class": "dynamic",
            "attention_type": "causal",
            "tensors": records,
        },
    }
    stored, _ = kvcache.read_cache(tmp_path / "a.kvc")
    assert stored == metadata
    assert isinstance(metadata["rope_theta"], float)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_round_trip(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    cache, payload = random_cache(shape, DTYPES[dtype], layers=3)
    written = torch_kvcache.write_dynamic_cache(tmp_path / "a.kvc", cache, **IDENTITY)
    _, stored = kvcache.read_cache(tmp_path / "a.kvc")
    assert bytes(stored) == payload
    loaded, metadata = read_dynamic_cache(tmp_path / "a.kvc", IDENTITY)
    assert metadata == written
    assert type(loaded).__name__ == "DynamicCache"
    assert len(loaded.layers) == 3
    tensors = [tensor for layer in loaded.layers for tensor in (layer.keys, layer.values)]
    assert b"".join(map(bits, tensors)) == payload
    for tensor in tensors:
        assert tensor.dtype is DTYPES[dtype]
        assert tensor.shape == shape
        assert tensor.stride() == torch.empty(shape).stride()
        assert not tensor.requires_grad


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tensor_bytes", [65536, 131072])
@pytest.mark.parametrize("step", [-1, 0, 1])
def test_round_trip_around_chunk_borders(
    tmp_path: Path, dtype: str, tensor_bytes: int, step: int
) -> None:
    shape = (1, 1, tensor_bytes // DTYPES[dtype].itemsize + step, 1)
    cache, payload = random_cache(shape, DTYPES[dtype], layers=1)
    torch_kvcache.write_dynamic_cache(tmp_path / "a.kvc", cache, **IDENTITY)
    loaded, _ = read_dynamic_cache(tmp_path / "a.kvc")
    layer = loaded.layers[0]
    assert bits(layer.keys) + bits(layer.values) == payload


def one_buffer(base: torch.Tensor) -> torch.Tensor:
    """Half of a buffer that holds keys and values interleaved, as fused projections make it."""
    return torch.stack([base, -base], dim=3).flatten(3)[..., : base.shape[3]]


def size_one_strides(base: torch.Tensor) -> torch.Tensor:
    """One head of many: the dimension of size 1 keeps the stride of the parent."""
    parent = torch.cat([base, base], dim=1).transpose(0, 1).contiguous().transpose(0, 1)
    return parent[:, :1]


def odd_place(base: torch.Tensor) -> torch.Tensor:
    """Contiguous, in the middle of a larger storage."""
    return torch.cat([base.reshape(-1)[:3], base.reshape(-1)])[3:].reshape(base.shape)


def with_history(base: torch.Tensor) -> torch.Tensor:
    return base.clone().requires_grad_() * 1.0


def inference(base: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return base.clone()


def negated(base: torch.Tensor) -> torch.Tensor:
    """A view that stands for the negative of the numbers in memory."""
    view = torch.complex(base, base).conj().imag
    assert view.is_neg()
    return view


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda base: base.transpose(1, 2).contiguous().transpose(1, 2),
    "reversed order": lambda base: base.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
    "every second number": lambda base: base.repeat_interleave(2, dim=3)[..., ::2],
    "cropped": lambda base: torch.cat([base, base], dim=2)[..., : base.shape[2], :],
    "expanded batch": lambda base: base[:1].expand(4, -1, -1, -1),
    "expanded tokens": lambda base: base[:, :, :1].expand(-1, -1, 6, -1),
    "one buffer for both": one_buffer,
    "strides of size 1": size_one_strides,
    "odd place": odd_place,
    "channels last": lambda base: base.contiguous(memory_format=torch.channels_last),
    "requires_grad": lambda base: base.clone().requires_grad_(),
    "with history": with_history,
    "parameter": lambda base: torch.nn.Parameter(base.clone()),
    "inference mode": inference,
    "negated": negated,
    "negated where it lies": torch._neg_view,
    "one number a head": lambda base: base[:, :, :1, :1],
    "one number": lambda base: base[:1, 1:2, 1:2, 1:2],
}


# PyTorch has no complex numbers of two bf16 to make a negated view of.
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(kind, torch.float32) for kind in VIEWS]
    + [(kind, torch.bfloat16) for kind in VIEWS if kind != "negated"],
)
def test_views_are_stored_by_their_content(tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    numbers = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5)
    keys, values = VIEWS[kind](numbers.to(dtype)), VIEWS[kind]((numbers + 0.5).to(dtype))
    # The oracle goes through Python's floats, number by number, and knows no strides.
    payload = b""
    for tensor in (keys, values, values, keys):
        exact = numpy.array(tensor.tolist(), dtype=numpy.float32)
        payload += (
            (exact.view(numpy.uint32) >> 16).astype(numpy.uint16).tobytes()
            if dtype is torch.bfloat16
            else exact.tobytes()
        )
    cache = cache_of([(keys, values), (values, keys)])
    metadata = torch_kvcache.write_dynamic_cache(tmp_path / "a.kvc", cache, **IDENTITY)
    stored, data = kvcache.read_cache(tmp_path / "a.kvc")
    assert bytes(data) == payload
    assert stored == metadata
    assert metadata["tensor_manifest"]["tensors"][0]["strides"] == [
        stride * dtype.itemsize for stride in torch.empty(keys.shape).stride()
    ]
    loaded, _ = read_dynamic_cache(tmp_path / "a.kvc")
    assert torch.equal(loaded.layers[1].values, keys)


def test_a_contiguous_tensor_is_not_copied() -> None:
    base = torch.arange(240, dtype=torch.bfloat16).reshape(2, 3, 8, 5)
    for tensor in (base, base.requires_grad_(), size_one_strides(base[:1])[:, :, 1:]):
        data = numpy.frombuffer(row_major_bytes(tensor), dtype=numpy.uint8)
        assert data.ctypes.data == tensor.data_ptr()
        assert data.nbytes == tensor.nbytes


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_tensors_of_a_device_are_stored(tmp_path: Path) -> None:
    cache, payload = random_cache((2, 3, 40, 16), torch.bfloat16)
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys.cuda(), layer.values.cuda()
        layer.values = layer.values.transpose(1, 2).contiguous().transpose(1, 2)
    torch_kvcache.write_dynamic_cache(tmp_path / "a.kvc", cache, **IDENTITY)
    assert bytes(kvcache.read_cache(tmp_path / "a.kvc")[1]) == payload


def test_a_plain_object_of_layers_is_stored(tmp_path: Path) -> None:
    cache, payload = random_cache((1, 2, 3, 4))
    plain = SimpleNamespace(
        layers=tuple(SimpleNamespace(keys=one.keys, values=one.values) for one in cache.layers)
    )
    torch_kvcache.write_dynamic_cache(tmp_path / "a.kvc", plain, **IDENTITY)
    torch_kvcache.write_dynamic_cache(tmp_path / "b.kvc", cache, **IDENTITY)
    assert bytes(kvcache.read_cache(tmp_path / "a.kvc")[1]) == payload
    assert (tmp_path / "a.kvc").read_bytes() == (tmp_path / "b.kvc").read_bytes()


def test_a_tensor_that_fails_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    cache, _ = random_cache((1, 4, 600, 64), layers=3)
    torch_kvcache.write_dynamic_cache(tmp_path / "a.kvc", cache, **IDENTITY)
    old = (tmp_path / "a.kvc").read_bytes()
    lost = cache.layers[2].keys = cache.layers[2].keys.clone()
    lost.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="storage"):
        torch_kvcache.write_dynamic_cache(tmp_path / "a.kvc", cache, **IDENTITY)
    assert os.listdir(tmp_path) == ["a.kvc"]
    assert (tmp_path / "a.kvc").read_bytes() == old


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("model_revision", "", kvcache.CacheFormatError),
        ("tokenizer_sha256", "ABCD", kvcache.CacheFormatError),
        ("rope_theta", float("nan"), kvcache.CacheFormatError),
        ("rope_theta", -1.0, kvcache.CacheFormatError),
        ("sequence_start", -1, kvcache.CacheFormatError),
        ("model_revision", b"bytes", TypeError),
    ],
)
def test_wrong_identity_arguments_write_nothing(
    tmp_path: Path, name: str, value: object, error: type[Exception]
) -> None:
    cache, _ = random_cache((1, 2, 3, 4))
    with pytest.raises(error, match=name):
        torch_kvcache.write_dynamic_cache(tmp_path / "a.kvc", cache, **(IDENTITY | {name: value}))
    assert os.listdir(tmp_path) == []


def test_the_file_does_not_depend_on_threads(tmp_path: Path) -> None:
    script = tmp_path / "save.py"
    script.write_text(
        "import os, sys\n"
        "if sys.argv[2] == 'one':\n"
        "    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import torch, torch_kvcache\n"
        "from adapter_help import IDENTITY, random_cache\n"
        "if sys.argv[2] == 'one':\n"
        "    torch.set_num_threads(1)\n"
        "cache, _ = random_cache((2, 4, 700, 64), layers=4)\n"
        "cache.layers[1].keys = cache.layers[1].keys.transpose(1, 2).contiguous().transpose(1, 2)\n"
        "torch_kvcache.write_dynamic_cache(sys.argv[1], cache, **IDENTITY)\n"
        "loaded, _ = torch_kvcache.read_dynamic_cache(sys.argv[1])\n"
        "assert all(torch.equal(a.keys.view(torch.uint8), b.keys.view(torch.uint8))\n"
        "           for a, b in zip(loaded.layers, cache.layers))\n"
    )
    for name in ("one", "all"):
        done = run_python(script, tmp_path / f"{name}.kvc", name)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "one.kvc").read_bytes() == (tmp_path / "all.kvc").read_bytes()
