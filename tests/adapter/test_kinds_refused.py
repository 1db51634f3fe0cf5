# test_kinds_refused.py: what cannot be stored or made again is refused, and named.
# SPDX-License-Identifier: Apache-2.0
# mypy: allow-untyped-calls, allow-subclassing-any
from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kinds_help as kinds
import kvcache
import pytest
import torch
import torch_kvcache
import transformers
from adapter_help import IDENTITY, TRANSFORMERS_5, random_cache
from torch_kvcache import kinds as table
from torch_kvcache import schema
from torch_kvcache.dtypes import DTYPES
from transformers import DynamicCache, EncoderDecoderCache, cache_utils

ONLY_5 = pytest.mark.skipif(not TRANSFORMERS_5, reason="Transformers 4 has no such class")
ONLY_4 = pytest.mark.skipif(TRANSFORMERS_5, reason="Transformers 5 has no such class")
SLIDING = cache_utils.DynamicSlidingWindowLayer


def states(tokens: int = 5, batch: int = 1, width: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(batch, 2, tokens, width), torch.randn(batch, 2, tokens, width)


def filled(layer: Any, tokens: int = 5, batch: int = 1) -> Any:
    """Returns a layer that has been given tokens."""
    where = {} if TRANSFORMERS_5 else {"cache_kwargs": {"cache_position": torch.arange(tokens)}}
    layer.update(*states(tokens, batch), **where)
    return layer


def cache_of(*layers: Any) -> Any:
    """Returns a DynamicCache of exactly these layers."""
    cache: Any = DynamicCache()
    cache.layers = list(layers)
    return cache


def refused(
    tmp_path: Path, cache: Any, *words: str, **arguments: Any
) -> kvcache.UnsupportedCacheError:
    """Checks that a cache is refused with all of `words`, and that nothing was written."""
    with pytest.raises(kvcache.UnsupportedCacheError) as caught:
        torch_kvcache.save(tmp_path / "a.kvc", cache, identity=IDENTITY, **arguments)
    for word in (*words, "Nothing was written"):
        assert word in str(caught.value)
    assert os.listdir(tmp_path) == []
    return caught.value


# ---- Classes -----------------------------------------------------------------------------------


class MyLayer(SLIDING):
    """A class that nobody here knows, with a name of its own."""


class MyCache(DynamicCache):
    """Likewise."""


def test_subclasses(tmp_path: Path) -> None:
    error = refused(tmp_path, cache_of(filled(MyLayer(sliding_window=4))), "layer 0", "MyLayer")
    assert error.found is not None
    assert error.found.endswith("test_kinds_refused.MyLayer")
    mine = MyCache()
    mine.layers = [filled(SLIDING(sliding_window=4))]
    refused(tmp_path, mine, "MyCache", "DynamicCache, StaticCache")


def test_a_class_of_the_same_name(tmp_path: Path) -> None:
    """It is the class that counts, and not what it is called."""
    impostor = type("DynamicSlidingWindowLayer", (SLIDING,), {})
    refused(tmp_path, cache_of(filled(impostor(sliding_window=4))), "layer 0", "would lose")
    impostor = type("DynamicCache", (DynamicCache,), {})
    cache = impostor()
    cache.layers = [filled(SLIDING(sliding_window=4))]
    refused(tmp_path, cache, "would lose")


@ONLY_5
@pytest.mark.parametrize("name", ["DeepseekV4HCACache", "DeepseekV4CSACache"])
def test_layers_of_deepseek_v4(tmp_path: Path, name: str) -> None:
    from transformers.models.deepseek_v4 import modeling_deepseek_v4 as deepseek

    layer = getattr(deepseek, name).__new__(getattr(deepseek, name))
    refused(tmp_path, cache_of(layer), "layer 0", name, "compressed keys", "prefill again")


@ONLY_5
@pytest.mark.parametrize(
    "name", ["MiniMaxM3VLSparseCacheLayer", "MiniMaxM3VLSparseStaticCacheLayer"]
)
def test_layers_of_minimax_m3(tmp_path: Path, name: str) -> None:
    from transformers.models.minimax_m3_vl import modeling_minimax_m3_vl as minimax

    layer = getattr(minimax, name).__new__(getattr(minimax, name))
    refused(tmp_path, cache_of(layer), "layer 0", name, "index keys")


def test_the_cache_of_minimax(tmp_path: Path) -> None:
    from transformers.models.minimax.modeling_minimax import MiniMaxCache

    cache: Any = MiniMaxCache()
    cache.layers = [filled(cache_utils.DynamicLayer())]
    refused(tmp_path, cache, "MiniMaxCache", "linear attention")


@ONLY_5
@pytest.mark.parametrize("name", ["MtpCache", "DFlashCache"])
def test_speculative_caches(tmp_path: Path, name: str) -> None:
    cache = getattr(cache_utils, name)()
    cache.update(*states(), 0)
    refused(tmp_path, cache, f"transformers.cache_utils.{name}")


@ONLY_4
@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("jamba", "HybridMambaAttentionDynamicCache"),
        ("mamba", "MambaCache"),
        ("falcon_h1", "FalconHybridMambaAttentionDynamicCache"),
        ("lfm2", "Lfm2HybridConvCache"),
        ("qwen3_next", "Qwen3NextDynamicCache"),
    ],
)
def test_caches_of_a_models_own(tmp_path: Path, model: str, name: str) -> None:
    module = __import__(f"transformers.models.{model}.modeling_{model}", fromlist=[name])
    cache = getattr(module, name).__new__(getattr(module, name))
    refused(tmp_path, cache, name, "one model's own", "Transformers 5.14")


@ONLY_4
def test_static_layers_of_two_head_sizes(tmp_path: Path) -> None:
    """Transformers 4 makes both buffers of a static layer in the size of the keys."""
    layer = filled(cache_utils.StaticLayer(max_cache_len=8))
    layer.values = layer.values[..., :4]
    torch_kvcache.save(tmp_path / "a.kvc", cache_of(layer), identity=IDENTITY)
    with pytest.raises(kvcache.UnsupportedCacheError, match="8 elements in keys and 4 in values"):
        torch_kvcache.load(tmp_path / "a.kvc")


@ONLY_4
def test_deprecated_names_of_caches_and_layers(tmp_path: Path) -> None:
    deprecated: Any = cache_utils
    layer = deprecated.SlidingWindowLayer(max_cache_len=8, sliding_window=4)
    refused(tmp_path, cache_of(filled(layer)), "SlidingWindowLayer", "StaticSlidingWindowLayer")


@pytest.mark.parametrize("what", [None, 7, "text", ([1], [2])])
def test_no_cache_at_all(tmp_path: Path, what: object) -> None:
    advice = "DynamicCache(list of (keys, values))" if isinstance(what, tuple) else "`layers`"
    refused(tmp_path, what, type(what).__name__, advice)


def test_no_layers(tmp_path: Path) -> None:
    refused(tmp_path, DynamicCache(), "no layers yet", "Run the model once")
    whole = EncoderDecoderCache(DynamicCache(), DynamicCache())
    refused(tmp_path, whole, "no layers yet")


# ---- Attributes --------------------------------------------------------------------------------


def test_attributes_that_nobody_knows(tmp_path: Path) -> None:
    layer = filled(SLIDING(sliding_window=4))
    layer.compressed = torch.zeros(1)
    refused(tmp_path, cache_of(layer), "layer 0", "`compressed`", "delete it")
    cache = cache_of(filled(SLIDING(sliding_window=4)))
    cache.position_ids = torch.zeros(1)
    refused(tmp_path, cache, "the cache", "`position_ids`")
    plain, _ = random_cache((1, 2, 5, 8))
    plain.position_ids = torch.zeros(1)
    refused(tmp_path, plain, "the cache", "`position_ids`")


@pytest.mark.parametrize("stored", [2, 4])
def test_a_window_that_does_not_fit_its_position(tmp_path: Path, stored: int) -> None:
    layer = filled(SLIDING(sliding_window=4), 9)
    layer.keys, layer.values = states(stored)
    refused(tmp_path, cache_of(layer), "window of 4", "seen 9", f"holds {stored}", "needs 3")


def test_tensors_without_values_or_bytes(tmp_path: Path) -> None:
    layer = filled(SLIDING(sliding_window=8))
    layer.keys = layer.keys.to("meta")
    refused(tmp_path, cache_of(layer), "`keys`", "meta device")
    layer = filled(SLIDING(sliding_window=8))
    layer.values = layer.values.to_sparse()
    refused(tmp_path, cache_of(layer), "`values`", "sparse", ".to_dense()")
    layer = filled(SLIDING(sliding_window=8))
    layer.values = layer.values.to(torch.complex64)
    refused(tmp_path, cache_of(layer), "complex64")


def test_shapes_that_do_not_fit_each_other(tmp_path: Path) -> None:
    layer = filled(SLIDING(sliding_window=8))
    layer.values = layer.values[:, :, 1:]
    refused(tmp_path, cache_of(layer), "as many tokens")
    layer = filled(SLIDING(sliding_window=8))
    layer.keys, layer.values = layer.keys[0], layer.values[0]
    refused(tmp_path, cache_of(layer), "[batch, heads, tokens, head_dim]")
    layer = filled(SLIDING(sliding_window=8))
    layer.keys = layer.keys.expand(3, -1, -1, -1)
    refused(tmp_path, cache_of(layer), "[batch, heads, tokens, head_dim]")
    pair = (filled(SLIDING(sliding_window=8)), filled(SLIDING(sliding_window=8), batch=2))
    refused(tmp_path, cache_of(*pair), "batch of 1", "`layer.1.key`", "of 2")


def test_tokens_and_masks_that_do_not_fit(tmp_path: Path) -> None:
    cache = cache_of(filled(SLIDING(sliding_window=4), 9))
    ids = torch.zeros(1, 10, dtype=torch.int64)
    refused(tmp_path, cache, "10 tokens in each row", "seen 9", token_ids=ids)
    refused(tmp_path, cache, "covers 10 tokens", attention_mask=ids)
    refused(tmp_path, cache, "token_ids", "float32", token_ids=torch.zeros(1, 9))
    refused(tmp_path, cache, "batch of 1", "`token_ids`", token_ids=ids[:, :9].expand(2, 9))
    refused(tmp_path, cache, "sequence_length is 8", sequence_length=8)
    refused(tmp_path, cache, "sequence_length is 10", sequence_length=10)


@ONLY_5
def test_linear_layers_alone_need_to_be_told_their_length(tmp_path: Path) -> None:
    model, ids = kinds.model_of("Mamba"), kinds.ids_of(9)
    cache = kinds.prefill("Mamba", model, ids)
    refused(tmp_path, cache, "all are of linear attention", "token_ids, or sequence_length")
    metadata = torch_kvcache.save(tmp_path / "a.kvc", cache, identity=IDENTITY, sequence_length=9)
    assert metadata["sequence_length"] == 9
    assert metadata["tensor_manifest"]["layers"][0]["positions_seen"] == 9
    assert (metadata["dtype"], metadata["kv_heads"], metadata["head_dim"]) == (None, None, None)


@ONLY_5
def test_states_of_older_versions(tmp_path: Path) -> None:
    layer: Any = cache_utils.LinearAttentionLayer()
    layer.conv_states = torch.zeros(1, 4, 4)
    refused(tmp_path, cache_of(layer), "Transformers 5.14", sequence_length=3)


@pytest.mark.parametrize("name", ["no_such_state", "hf/other"])
def test_state_schemas_that_nobody_knows(tmp_path: Path, name: str) -> None:
    cache = cache_of(filled(SLIDING(sliding_window=4)))
    refused(tmp_path, cache, name, "hf/mla-latent", state_schema=name)


def test_state_schema_of_another_version(tmp_path: Path) -> None:
    cache = cache_of(filled(SLIDING(sliding_window=4)))
    other = schema.EXPANDED if TRANSFORMERS_5 else schema.LATENT
    refused(tmp_path, cache, other, "does not make", state_schema=other)


def test_state_schema_that_shapes_do_not_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer: Any = cache_utils.DynamicLayer()
    layer.update(torch.randn(1, 1, 5, 8), torch.randn(1, 1, 5, 4))
    monkeypatch.setattr(schema, "caches_latents", lambda: False)
    refused(tmp_path, cache_of(layer), "one head each", "Pass state_schema='hf/mla-expanded'")
    for name in (schema.EXPANDED, schema.ATTENTION):
        metadata = torch_kvcache.save(
            tmp_path / "a.kvc", cache_of(layer), identity=IDENTITY, state_schema=name
        )
        assert metadata["tensor_manifest"]["state_schema"] == name


@pytest.mark.parametrize(
    ("identity", "words"),
    [
        ({"model_revision": "r", "rope_theta": 1.0}, "missing: tokenizer_sha256"),
        (IDENTITY | {"owner": "me"}, "unknown: owner"),
        (IDENTITY | {"layers": 3}, "unknown: layers"),
        (IDENTITY | {"parent_root": "kvc1:" + "0" * 64}, "unknown: parent_root"),
    ],
)
def test_identities_with_other_members(
    tmp_path: Path, identity: dict[str, Any], words: str
) -> None:
    cache = cache_of(filled(SLIDING(sliding_window=4)))
    with pytest.raises(kvcache.CacheFormatError, match=words):
        torch_kvcache.save(tmp_path / "a.kvc", cache, identity=identity)
    assert os.listdir(tmp_path) == []


# ---- Files -------------------------------------------------------------------------------------


def rewritten(path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Writes a file anew beside itself, with other metadata and the same payload."""
    metadata, payload = kvcache.read_cache(path)
    change(metadata)
    other = path.with_suffix(".changed")
    kvcache.write_cache_stream(other, metadata, [payload])
    return other


def sliding_file(tmp_path: Path) -> Path:
    path = tmp_path / "a.kvc"
    cache = cache_of(filled(SLIDING(sliding_window=4), 9), filled(SLIDING(sliding_window=4), 9))
    torch_kvcache.save(path, cache, identity=IDENTITY)
    return path


def layer_of(metadata: dict[str, Any], index: int = 0) -> dict[str, Any]:
    record: dict[str, Any] = metadata["tensor_manifest"]["layers"][index]
    return record


def manifest_set(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda metadata: metadata["tensor_manifest"].__setitem__(name, value)


def layer_set(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda metadata: layer_of(metadata, 1).__setitem__(name, value)


def flag_set(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda metadata: layer_of(metadata, 1)["flags"].__setitem__(name, value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (manifest_set("cache_class", "os.system"), "'os.system'"),
        (manifest_set("cache_class", "MtpCache"), "'MtpCache'"),
        (manifest_set("state_schema", "vllm/paged"), "'vllm/paged'"),
        (manifest_set("framework", {"name": "mlx", "version": "1"}), "'mlx'"),
        (layer_set("class", "os.system"), "layer 1 of the file is a 'os.system'"),
        (layer_set("class", "DynamicLayer"), "'DynamicLayer' of kind 'sliding'"),
        (layer_set("window", 5), "layer 1 of the file has a window of 5"),
        (flag_set("record_past", 1), "`record_past` must be true or false"),
        (flag_set("spare", None), "a flag `spare`"),
    ],
)
def test_files_that_say_something_else(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    path = sliding_file(tmp_path)
    torch_kvcache.load(path)
    with pytest.raises(kvcache.UnsupportedCacheError) as caught:
        torch_kvcache.load(rewritten(path, change))
    assert words in str(caught.value)


def test_files_of_windows_that_hold_too_little(tmp_path: Path) -> None:
    """The format lets three tokens of nine be stored; a window of nine needs eight to go on."""

    def change(metadata: dict[str, Any]) -> None:
        layer_of(metadata, 1)["window"] = 9

    with pytest.raises(kvcache.UnsupportedCacheError, match="holds 3; going on from it needs 8"):
        torch_kvcache.load(rewritten(sliding_file(tmp_path), change))


def test_damage_anywhere_gives_no_cache(tmp_path: Path) -> None:
    """One wrong byte, in the first tensor or the last, and nothing is made."""
    path = sliding_file(tmp_path)
    whole = path.read_bytes()
    info = kvcache.verify_cache(path)
    for place in (info.payload_offset, info.payload_offset + info.payload_span - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        for copy in (False, True):
            with pytest.raises(kvcache.CacheIntegrityError):
                torch_kvcache.load(path, copy=copy)
    path.write_bytes(whole[:-1])
    with pytest.raises(kvcache.CacheIncompleteError):
        torch_kvcache.load(path)


def test_another_identity_dtype_root_or_key(tmp_path: Path) -> None:
    path = sliding_file(tmp_path)
    root = kvcache.verify_cache(path).root
    assert torch_kvcache.load(path, expected_root=root, expected_dtype="f32").root == root
    assert torch_kvcache.load(path, expected_dtype=torch.float32).path == path
    with pytest.raises(kvcache.CacheIdentityError, match="model_revision"):
        torch_kvcache.load(path, expected_identity=IDENTITY | {"model_revision": "other"})
    with pytest.raises(kvcache.CacheIdentityError, match="dtype"):
        torch_kvcache.load(path, expected_dtype="bf16")
    with pytest.raises(kvcache.CacheIdentityError):
        torch_kvcache.load(path, expected_root="kvc1:" + "0" * 64)
    with pytest.raises(kvcache.CacheIdentityError):
        torch_kvcache.load(path, key=bytes(32))
    with pytest.raises(ValueError, match="expected_dtype must be"):
        torch_kvcache.load(path, expected_dtype="float32")
    with pytest.raises(ValueError, match="expected_identity has dtype"):
        torch_kvcache.load(path, expected_dtype="f32", expected_identity={"dtype": "bf16"})


def test_a_key_goes_into_the_file(tmp_path: Path) -> None:
    cache, _ = random_cache((1, 2, 5, 8))
    for extra in ({}, {"info": {"note": 1}}):
        torch_kvcache.save(
            tmp_path / "a.kvc", cache, identity=IDENTITY, key=bytes(range(32)), **extra
        )
        assert torch_kvcache.load(tmp_path / "a.kvc", key=bytes(range(32))).cache.layers
        with pytest.raises(kvcache.CacheIdentityError):
            torch_kvcache.load(tmp_path / "a.kvc", key=bytes(32))


def test_opaque_files(tmp_path: Path) -> None:
    metadata = IDENTITY | {
        "layers": 1, "kv_heads": 1, "head_dim": 1, "dtype": "f32", "sequence_length": 1,
        "sequence_start": 0, "layout": "layer-major-k-then-v",
    }  # fmt: skip
    kvcache.write_cache_stream(tmp_path / "a.kvc", metadata, [b"bytes"])
    with pytest.raises(kvcache.CacheFormatError, match="opaque payload"):
        torch_kvcache.load(tmp_path / "a.kvc")


def test_classes_that_this_transformers_does_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sliding_file(tmp_path)
    monkeypatch.delattr(cache_utils, "DynamicSlidingWindowLayer")
    with pytest.raises(kvcache.UnsupportedCacheError, match=transformers.__version__):
        torch_kvcache.load(path)


def test_dtypes_that_this_pytorch_does_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sliding_file(tmp_path)
    monkeypatch.delitem(DTYPES, "f32")
    with pytest.raises(kvcache.UnsupportedCacheError, match=r"layer\.0\.key.*f32.*PyTorch"):
        torch_kvcache.load(path)


def test_deepseek_files_of_the_other_meaning(tmp_path: Path) -> None:
    model, ids = kinds.model_of("DeepSeek V3"), kinds.ids_of(9)
    cache = kinds.prefill("DeepSeek V3", model, ids)
    torch_kvcache.save(tmp_path / "a.kvc", cache, identity=IDENTITY)
    here, other = schema.LATENT, schema.EXPANDED
    if not TRANSFORMERS_5:
        here, other = other, here
    metadata, _ = kvcache.read_cache(tmp_path / "a.kvc")
    assert metadata["tensor_manifest"]["state_schema"] == here
    changed = rewritten(tmp_path / "a.kvc", manifest_set("state_schema", other))
    with pytest.raises(kvcache.UnsupportedCacheError, match="DeepSeek's attention") as caught:
        torch_kvcache.load(changed)
    assert (caught.value.expected, caught.value.found) == (here, other)


def test_names_in_a_file_choose_no_code() -> None:
    """What is made comes from the table: the names in it, and nothing that they could import."""
    for name in table.FAMILIES:
        assert name.isidentifier()
        assert not hasattr(cache_utils, name) or isinstance(getattr(cache_utils, name), type)
