# adapter_help.py: what the tests of torch_kvcache share.
# SPDX-License-Identifier: Apache-2.0
# mypy: allow-untyped-calls, allow-subclassing-any
from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import kvcache
import numpy
import pytest
import torch
import torch_kvcache
import transformers
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

REPOSITORY = Path(__file__).resolve().parents[2]
REFERENCE = REPOSITORY.parent / "shared" / "reference" / "torch_kvcache.py"
TRANSFORMERS_5 = int(transformers.__version__.partition(".")[0]) >= 5

IDENTITY: dict[str, Any] = {
    "model_revision": "test-model",
    "tokenizer_sha256": "0123456789abcdef" * 4,
    "rope_theta": 10000.0,
}
DTYPES = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "i8": torch.int8,
    "u8": torch.uint8,
}


# Transformers declares a cache's layers as a union of everything that there is.
read_dynamic_cache: Callable[..., tuple[Any, dict[str, Any]]] = torch_kvcache.read_dynamic_cache


def reference_adapter() -> ModuleType:
    """Loads the seed's adapter, which is not part of this repository, or skips the test."""
    if not REFERENCE.is_file():
        pytest.skip("the reference adapter is not beside this checkout; nothing to compare with")
    spec = importlib.util.spec_from_file_location("reference_torch_kvcache", REFERENCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def random_bytes(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> bytes:
    """Returns bytes for a tensor: any bit pattern is a value, NaNs included."""
    count = int(numpy.prod(shape)) * dtype.itemsize
    return numpy.random.default_rng(seed).bytes(count)


def tensor_of(data: bytes, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Returns a contiguous tensor in memory of its own."""
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)


def cache_of(pairs: list[Any]) -> Any:
    """Returns a cache that holds exactly these tensors, views included, uncopied."""
    small = torch.zeros(1, 1, 1, 1, dtype=pairs[0][0].dtype)
    cache: Any = DynamicCache([(small, small) for _ in pairs])
    for layer, (keys, values) in zip(cache.layers, pairs, strict=True):
        layer.keys, layer.values = keys, values
    return cache


def random_cache(
    shape: tuple[int, ...], dtype: torch.dtype = torch.float32, layers: int = 2, seed: int = 1
) -> tuple[Any, bytes]:
    """Returns a cache and the bytes that its payload must have."""
    chunks = [random_bytes(shape, dtype, seed * 1000 + index) for index in range(2 * layers)]
    tensors = [tensor_of(chunk, shape, dtype) for chunk in chunks]
    pairs = list(zip(tensors[0::2], tensors[1::2], strict=True))
    return cache_of(pairs), b"".join(chunks)


def bits(tensor: torch.Tensor) -> bytes:
    """Returns a tensor's elements, in row-major order, as bytes; NaNs compare by their bits."""
    flat = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


def tiny_llama(seed: int = 0, **changes: Any) -> Any:
    """Returns a random Llama of 3 layers with grouped heads, in f32."""
    facts: dict[str, Any] = {
        "vocab_size": 97,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rope_theta": 10000.0,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": None,
    }
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**(facts | changes))).eval()


def prefill(model: Any, ids: torch.Tensor, **kwargs: Any) -> Any:
    """Runs the model over ids [batch, tokens] and returns the cache that it makes."""
    with torch.no_grad():
        return model(ids, use_cache=True, **kwargs).past_key_values


def run_python(
    *arguments: str | Path, path: list[str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a new Python that finds the same kvcache and torch_kvcache as this one."""
    folders = [str(Path(kvcache.__file__).parents[1])] if path is None else path
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(folders), HF_HUB_OFFLINE="1")
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
