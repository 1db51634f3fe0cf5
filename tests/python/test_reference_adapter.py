# test_reference_adapter.py: the reference adapter for Transformers runs unmodified on kvcache.
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import kvcache
import pytest
from kvcache_cases import ROOT_FOLDER

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

ADAPTER = ROOT_FOLDER.parent / "shared" / "reference" / "torch_kvcache.py"
IDENTITY = {"model_revision": "random", "tokenizer_sha256": "0f" * 32, "rope_theta": 10000.0}


@pytest.fixture(scope="module")
def adapter() -> ModuleType:
    if not ADAPTER.exists():
        pytest.skip("the reference adapter is not beside this repository")
    spec = importlib.util.spec_from_file_location("reference_torch_kvcache", ADAPTER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def small_llama(dtype: Any, heads: int = 2) -> Any:
    torch.manual_seed(7)
    config = transformers.LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=heads,
        max_position_embeddings=256,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    return transformers.LlamaForCausalLM(config).to(dtype).eval()


def continued(model: Any, ids: Any, cache: Any) -> list[int]:
    with torch.no_grad():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            past_key_values=cache,
            max_new_tokens=20,
            do_sample=False,
        )
    return list(out[0, ids.shape[1] :].tolist())


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_generation_continues(tmp_path: Path, adapter: ModuleType, dtype: Any, heads: int) -> None:
    path = tmp_path / "a.kvc"
    model = small_llama(dtype, heads)
    ids = torch.randint(1, 97, (1, 41), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        cache = model(ids[:, :-1], use_cache=True).past_key_values
    metadata = adapter.write_dynamic_cache(path, cache, **IDENTITY)
    expected = continued(model, ids, copy.deepcopy(cache))
    restored, stored = adapter.read_dynamic_cache(path, {**IDENTITY, "layers": 3})
    assert json.loads(json.dumps(stored)) == stored
    assert stored["model_revision"] == metadata["model_revision"]
    assert continued(model, ids, restored) == expected
    for layer, kept in zip(restored.layers, cache.layers, strict=True):
        assert torch.equal(layer.keys[:, :, :40], kept.keys)
    with kvcache.open_cache(path) as opened:
        for index, layer in enumerate(cache.layers):
            key = torch.from_dlpack(opened[f"layer.{index}.key"])
            assert key.dtype == dtype
            assert torch.equal(key, layer.keys)


def test_refusals_reach_the_caller(tmp_path: Path, adapter: ModuleType) -> None:
    path = tmp_path / "a.kvc"
    model = small_llama(torch.float32)
    with torch.no_grad():
        cache = model(torch.tensor([[1, 2, 3]]), use_cache=True).past_key_values
    adapter.write_dynamic_cache(path, cache, **IDENTITY)
    with pytest.raises(kvcache.CacheIdentityError) as caught:
        adapter.read_dynamic_cache(path, {**IDENTITY, "model_revision": "another"})
    assert caught.value.differences == (("model_revision", "another", "random"),)
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)
    with pytest.raises(kvcache.CacheIntegrityError):
        adapter.read_dynamic_cache(path)
    with pytest.raises(kvcache.CacheFormatError, match="at least one layer"):
        adapter.write_dynamic_cache(path, object(), **IDENTITY)
    kvcache.write_cache_stream(path, {**_plain(IDENTITY)}, [b"x"])
    with pytest.raises(kvcache.CacheFormatError, match="tensor_manifest"):
        adapter.read_dynamic_cache(path)


def _plain(identity: dict[str, Any]) -> dict[str, Any]:
    return {
        **identity,
        "layers": 1,
        "kv_heads": 1,
        "head_dim": 1,
        "dtype": "u8",
        "layout": "layer-major-k-then-v",
        "sequence_start": 0,
        "sequence_length": 1,
    }


def test_ragged_strides_of_size_one(tmp_path: Path, adapter: ModuleType) -> None:
    path = tmp_path / "a.kvc"
    big = torch.arange(2 * 1 * 9 * 4, dtype=torch.float32).reshape(1, 2, 9, 4)
    part = big[:, 1:2, 3:5, :]
    cache = transformers.DynamicCache([(part.clone(), part.clone())])
    cache.layers[0].keys = part
    cache.layers[0].values = part
    given = adapter.write_dynamic_cache(path, cache, **IDENTITY)
    record = given["tensor_manifest"]["tensors"][0]
    restored, stored = adapter.read_dynamic_cache(path)
    assert stored["tensor_manifest"]["tensors"][0]["strides"] == [32, 32, 16, 4]
    assert record["strides"] != [32, 32, 16, 4]
    assert torch.equal(restored.layers[0].keys, part)
