# test_kinds_states.py: layers made by hand, in every state that a layer can be in.
# SPDX-License-Identifier: Apache-2.0
# mypy: allow-untyped-calls, allow-subclassing-any
from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import kinds_help as kinds
import kvcache
import pytest
import torch
import torch_kvcache
from adapter_help import IDENTITY, TRANSFORMERS_5
from test_kinds_refused import (
    ONLY_5,
    SLIDING,
    cache_of,
    filled,
    layer_set,
    manifest_set,
    rewritten,
    states,
)
from transformers import DynamicCache, EncoderDecoderCache, LlamaConfig, StaticCache, cache_utils


def round_trip(tmp_path: Path, cache: Any, **arguments: Any) -> tuple[Any, dict[str, Any]]:
    """Saves and loads a cache; all layers must come back as they were. Returns it and metadata."""
    metadata = torch_kvcache.save(tmp_path / "a.kvc", cache, identity=IDENTITY, **arguments)
    kvcache.verify_cache(tmp_path / "a.kvc")
    loaded = torch_kvcache.load(tmp_path / "a.kvc")
    for one, other in zip(kinds.layers_of(cache), kinds.layers_of(loaded.cache), strict=True):
        assert kinds.same_state(one, other) == []
    assert len(kinds.layers_of(cache)) == len(kinds.layers_of(loaded.cache))
    return loaded.cache, metadata


def states_of(metadata: dict[str, Any]) -> list[str]:
    return [record["state"] for record in metadata["tensor_manifest"]["layers"]]


def early(layer: Any, batch: int = 1) -> Any:
    """Returns a layer that was set up and given no tokens."""
    pair = states(0, batch)
    layer.lazy_initialization(*(pair if TRANSFORMERS_5 else pair[:1]))
    return layer


def test_three_states_of_layers_that_grow(tmp_path: Path) -> None:
    shaped = early(cache_utils.DynamicLayer())
    shaped.keys, shaped.values = states(0)
    cache = cache_of(
        cache_utils.DynamicLayer(),
        early(cache_utils.DynamicLayer()),
        shaped,
        filled(cache_utils.DynamicLayer()),
        SLIDING(sliding_window=4),
        early(SLIDING(sliding_window=4)),
        filled(SLIDING(sliding_window=4)),
    )
    loaded, metadata = round_trip(tmp_path, cache)
    assert states_of(metadata) == [
        *("uninitialized", "empty", "empty", "filled"),
        *("uninitialized", "empty", "filled"),
    ]
    assert loaded.layers[0].keys is None
    assert list(loaded.layers[1].keys.shape) == [0]
    assert list(loaded.layers[2].keys.shape) == [1, 2, 0, 8]
    for layer in loaded.layers:
        layer.update(*states(2))


def test_states_of_static_layers(tmp_path: Path) -> None:
    make = [
        lambda: cache_utils.StaticLayer(max_cache_len=8),
        lambda: cache_utils.StaticSlidingWindowLayer(max_cache_len=8, sliding_window=4),
    ]
    layers = [state for new in make for state in (new(), early(new()), filled(new(), 3))]
    cache = StaticCache(config=LlamaConfig(num_hidden_layers=1), max_cache_len=8)
    cache.layers = layers
    loaded, metadata = round_trip(tmp_path, cache)
    assert states_of(metadata) == ["uninitialized", "empty", "filled"] * 2
    assert type(loaded).__name__ == "StaticCache"
    assert loaded.layers[1].keys.shape == (1, 2, 8, 8)


@ONLY_5
@pytest.mark.parametrize("static", [False, True])
def test_indexed_layers_with_and_without_an_indexer(tmp_path: Path, static: bool) -> None:
    def new() -> Any:
        if static:
            return cache_utils.StaticIndexedLayer(max_cache_len=8)
        return cache_utils.DynamicIndexedLayer()

    with_index = filled(new())
    with_index.update_indexer(torch.randn(1, 5, 6))
    loaded, metadata = round_trip(tmp_path, cache_of(new(), filled(new()), with_index))
    assert states_of(metadata) == ["uninitialized", "filled", "filled"]
    roles = [record["role"] for record in metadata["tensor_manifest"]["tensors"]]
    assert roles.count("indexer_key") == 1
    assert loaded.layers[1].indexer_keys is None


def linear(layer: Any, count: int = 1) -> Any:
    """Returns a layer whose states are filled, in two dtypes."""
    for index in range(count):
        layer.update_conv_state(torch.randn(1, 4, 3, dtype=torch.bfloat16), state_idx=index)
        layer.update_recurrent_state(torch.randn(1, 2, 3, 4), state_idx=index)
    return layer


@ONLY_5
def test_linear_layers_beside_every_kind_of_attention(tmp_path: Path) -> None:
    def new(count: int) -> list[Any]:
        return [
            cache_utils.LinearAttentionLayer(number_of_states=count),
            cache_utils.LinearAttentionAndFullAttentionLayer(number_of_states=count),
            cache_utils.LinearAttentionAndSlidingWindowAttentionLayer(4, number_of_states=count),
            cache_utils.LinearAttentionAndStaticFullAttentionLayer(8, number_of_states=count),
            cache_utils.LinearAttentionAndStaticSlidingWindowAttentionLayer(
                8, 4, number_of_states=count
            ),
        ]

    none = new(2)
    only_states = [linear(layer, 4) for layer in new(4)]
    both = [linear(only_attention) for only_attention in map(filled, new(1)[1:])]
    only_attention = [filled(layer) for layer in new(1)[1:]]
    reset = [linear(layer) for layer in map(filled, new(1)[1:])]
    for layer in reset:
        # What is left are zeros, and the dtype of the attention, which is not that of the states.
        layer.reset()
    begun = [linear(early(layer)) for layer in new(1)[1:]]
    cache = cache_of(*none, *only_states, *both, *only_attention, *begun, *reset)
    loaded, metadata = round_trip(tmp_path, cache, sequence_length=5)
    wanted = ["uninitialized"] * 5 + ["filled"] * 21
    assert states_of(metadata) == wanted
    assert all(layer.has_previous_state[3] for layer in loaded.layers[5:10])
    assert not any(layer.has_previous_state[0] for layer in loaded.layers[:5])


@ONLY_5
def test_states_that_are_reset_or_keep_the_past(tmp_path: Path) -> None:
    backwards: Any = cache_utils.LinearAttentionLayer(number_of_states=2)
    for index, dtype in ((1, torch.float16), (0, torch.bfloat16)):
        backwards.update_conv_state(torch.randn(1, 4, 3, dtype=dtype), state_idx=index)
    recording: Any = cache_utils.LinearAttentionLayer()
    recording.activate_past_recording()
    for _ in range(3):
        recording.update_conv_state(torch.randn(1, 4, 5), conv_kernel_size=3)
    assert recording.conv_states[0].shape[-1] == 15
    fresh = linear(cache_utils.LinearAttentionLayer())
    fresh.reset()
    sliding: Any = SLIDING(sliding_window=4)
    sliding.activate_past_recording()
    filled(sliding, 9)
    assert sliding.keys.shape[2] == 9
    loaded, _ = round_trip(tmp_path, cache_of(recording, fresh, sliding, backwards))
    assert not loaded.layers[1].has_previous_state[0]
    for one in (sliding, loaded.layers[2]):
        one.crop(-2)
    assert kinds.same_state(sliding, loaded.layers[2]) == []


@pytest.mark.parametrize("updated", [{}, {0: True, 1: True}, {0: False}])
def test_encoder_decoder_caches(tmp_path: Path, updated: dict[int, bool]) -> None:
    halves = cache_of(*(filled(cache_utils.DynamicLayer(), 5) for _ in range(2)))
    cross = cache_of(*(filled(cache_utils.DynamicLayer(), 11) for _ in range(2)))
    cache: Any = EncoderDecoderCache(halves, cross)
    cache.is_updated = dict(updated)
    loaded, metadata = round_trip(tmp_path, cache)
    assert loaded.is_updated == updated
    assert metadata["layers"] == 2
    assert metadata["sequence_length"] == 5
    seen = [record["positions_seen"] for record in metadata["tensor_manifest"]["layers"]]
    assert seen == [5, 5, 11, 11]


def test_a_decoder_without_an_encoder(tmp_path: Path) -> None:
    cache: Any = EncoderDecoderCache(cache_of(filled(cache_utils.DynamicLayer())), DynamicCache())
    loaded, _ = round_trip(tmp_path, cache)
    assert len(loaded.cross_attention_cache.layers) == 0
    loaded.cross_attention_cache.update(*states(3), 0)


def test_encoder_decoder_with_a_static_half(tmp_path: Path) -> None:
    static = StaticCache(config=LlamaConfig(num_hidden_layers=1), max_cache_len=8)
    static.layers = [filled(cache_utils.StaticLayer(max_cache_len=8))]
    cache: Any = EncoderDecoderCache(static, cache_of(filled(cache_utils.DynamicLayer(), 7)))
    loaded, metadata = round_trip(tmp_path, cache)
    assert type(loaded.self_attention_cache) is StaticCache
    assert type(loaded.cross_attention_cache) is DynamicCache
    assert metadata["tensor_manifest"]["wrapper"] == "encoder_decoder"


def test_tied_keys_and_values_come_back_tied(tmp_path: Path) -> None:
    layer = filled(cache_utils.DynamicLayer())
    layer.values = layer.keys
    view = filled(SLIDING(sliding_window=9))
    view.values = view.keys[:]
    apart = filled(cache_utils.DynamicLayer())
    apart.values = apart.keys.clone()
    loaded, metadata = round_trip(tmp_path, cache_of(layer, view, apart))
    manifest = metadata["tensor_manifest"]
    assert [record["aliases"] for record in manifest["layers"]] == [
        {"value": "key"}, {"value": "key"}, {},
    ]  # fmt: skip
    assert len(manifest["tensors"]) == 4
    for index, tied in ((0, True), (1, True), (2, False)):
        assert (loaded.layers[index].values is loaded.layers[index].keys) is tied


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.float64, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz),
        *(
            torch.float8_e5m2fnuz,
            torch.float8_e8m0fnu,
            torch.int16,
            torch.int32,
            torch.int64,
            torch.uint16,
        ),
        *(torch.uint32, torch.bool, torch.bfloat16, torch.int8),
    ],
)
def test_every_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    layer = filled(cache_utils.DynamicLayer(), 9)
    data = torch.randint(0, 2, (1, 2, 9, 8 * dtype.itemsize), dtype=torch.uint8)
    layer.keys = data.view(dtype)
    layer.values = layer.values.to(torch.float32)
    layer.dtype = dtype
    loaded, metadata = round_trip(tmp_path, cache_of(layer))
    assert loaded.layers[0].keys.dtype == dtype
    assert metadata["dtype"] is None
    assert metadata["head_dim"] == 8


def test_heads_and_lengths_that_differ_by_layer(tmp_path: Path) -> None:
    """As in Gemma 4: other heads, head sizes and lengths in each layer, and two dtypes."""
    one: Any = cache_utils.DynamicLayer()
    one.update(torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8))
    other: Any = SLIDING(sliding_window=4)
    other.update(*(torch.randn(1, 1, 9, 16, dtype=torch.bfloat16) for _ in range(2)))
    _, metadata = round_trip(tmp_path, cache_of(one, other))
    names = ("dtype", "kv_heads", "head_dim")
    assert [metadata[name] for name in names] == [None, None, None]


def test_views_of_any_strides(tmp_path: Path) -> None:
    layer = filled(SLIDING(sliding_window=20))
    base = torch.randn(2, 9, 2, 16)
    layer.keys = base[:1, 2:7, :, ::2].transpose(1, 2).requires_grad_()
    layer.values = base[1:, :5, :, :8].transpose(1, 2).neg().conj()
    torch_kvcache.save(tmp_path / "a.kvc", cache_of(layer), identity=IDENTITY)
    loaded = torch_kvcache.load(tmp_path / "a.kvc").cache.layers[0]
    assert torch.equal(loaded.keys, layer.keys)
    assert torch.equal(loaded.values, layer.values)
    assert loaded.keys.is_contiguous()
    assert not loaded.keys.requires_grad


def test_dropped_tokens_keep_their_position(tmp_path: Path) -> None:
    """A compressed cache holds fewer tokens than it has seen; the caller says how many."""
    cache = cache_of(filled(cache_utils.DynamicLayer(), 5), filled(cache_utils.DynamicLayer(), 3))
    _, metadata = round_trip(tmp_path, cache, sequence_length=40)
    records = metadata["tensor_manifest"]["layers"]
    assert metadata["sequence_length"] == 40
    assert [record["positions_seen"] for record in records] == [40, 40]
    assert [record["stored_tokens"] for record in records] == [5, 3]


def test_devices_by_layer(tmp_path: Path) -> None:
    cache = cache_of(*(filled(SLIDING(sliding_window=4)) for _ in range(2)))
    torch_kvcache.save(tmp_path / "a.kvc", cache, identity=IDENTITY)
    asked: list[int] = []

    def device_of(layer: int) -> str:
        asked.append(layer)
        return "cpu"

    for device in ("cpu", torch.device("cpu"), {0: "cpu", 1: "cpu"}, device_of):
        loaded = torch_kvcache.load(tmp_path / "a.kvc", device=device).cache
        assert torch.equal(loaded.layers[1].keys, cache.layers[1].keys)
    assert asked == [0, 1]
    with pytest.raises(ValueError, match="layer 1"):
        torch_kvcache.load(tmp_path / "a.kvc", device={0: "cpu"})
    meta = torch_kvcache.load(tmp_path / "a.kvc", device={0: "meta", 1: "cpu"}).cache
    assert [layer.keys.device.type for layer in meta.layers] == ["meta", "cpu"]
    assert [layer.device.type for layer in meta.layers] == ["meta", "cpu"]


def test_info_and_identity_come_back(tmp_path: Path) -> None:
    more = {
        "rope": {"type": "default"}, "attention": {"window": 4}, "compute_dtype": "float32",
        "adapters": [], "kv_quantization": None, "user": {"tenant": 7},
        "weights_digest": "x:1",
    }  # fmt: skip
    plain = cache_of(filled(cache_utils.DynamicLayer()))
    for arguments in ({}, {"info": {"note": [1, None]}}):
        torch_kvcache.save(
            tmp_path / "a.kvc", plain, identity=IDENTITY | more, sequence_start=5, **arguments
        )
        metadata = torch_kvcache.load(
            tmp_path / "a.kvc", expected_identity=IDENTITY | more
        ).metadata
        assert {name: metadata[name] for name in more} == more
        assert metadata["sequence_start"] == 5
        version = 2 if arguments else 1
        assert metadata["tensor_manifest"]["version"] == version
        if arguments:
            assert metadata["tensor_manifest"]["info"] == {"note": [1, None]}


def test_token_ids_of_every_form(tmp_path: Path) -> None:
    cache = cache_of(filled(cache_utils.DynamicLayer(), 3))
    forms: list[Any] = [
        torch.tensor([[4, 5, 6]]), torch.tensor([4, 5, 6], dtype=torch.int32), [4, 5, 6],
        [[4, 5, 6]], torch.tensor([[4, 5, 6], [0, 0, 0]]).T.reshape(2, 3)[:1] * 0 + 4,
    ]  # fmt: skip
    for form in forms:
        torch_kvcache.save(tmp_path / "a.kvc", cache, identity=IDENTITY, token_ids=form)
        ids = torch_kvcache.load(tmp_path / "a.kvc").token_ids
        assert ids is not None
        assert ids.tolist() == torch.as_tensor(form).reshape(1, 3).tolist()
    mask = torch.tensor([[False, True, True]])
    torch_kvcache.save(tmp_path / "a.kvc", cache, identity=IDENTITY, attention_mask=mask)
    found = torch_kvcache.load(tmp_path / "a.kvc").attention_mask
    assert found is not None
    assert torch.equal(found, mask)


def test_a_chunked_layer_is_a_window(tmp_path: Path) -> None:
    """Transformers has one class for both, which goes into files as a window; another writer may
    say which of the two it is."""
    torch_kvcache.save(
        tmp_path / "a.kvc", cache_of(*(filled(SLIDING(sliding_window=4)) for _ in "ab")),
        identity=IDENTITY,
    )  # fmt: skip
    changed = rewritten(tmp_path / "a.kvc", layer_set("kind", "chunked"))
    loaded = torch_kvcache.load(changed).cache
    assert type(loaded.layers[1]) is SLIDING
    assert loaded.layers[1].sliding_window == 4


# ---- Two versions of Transformers --------------------------------------------------------------


def test_files_that_name_the_other_version_are_read(tmp_path: Path) -> None:
    cache = cache_of(filled(SLIDING(sliding_window=4)))
    torch_kvcache.save(tmp_path / "a.kvc", cache, identity=IDENTITY)
    other = "4.57.6" if TRANSFORMERS_5 else "5.18.0"
    changed = rewritten(
        tmp_path / "a.kvc",
        manifest_set("framework", {"name": "transformers", "version": other}),
    )
    assert torch_kvcache.load(changed).cache.layers[0].cumulative_length == 5


OTHER = """
import json, sys
sys.path.insert(0, sys.argv[1])
import torch_kvcache, kinds_help as kinds
from adapter_help import IDENTITY
tokens = {}
for name in json.loads(sys.argv[3]):
    family = kinds.family_of(name)
    if family.missing():
        continue
    model, ids, inputs = kinds.model_of(name), kinds.ids_of(41), {}
    inputs = kinds.inputs_of(model)
    cache = kinds.prefill(family, model, ids[:, :40], **inputs)
    torch_kvcache.save(f"{sys.argv[2]}/{name}", cache, identity=IDENTITY, token_ids=ids[:, :40])
    tokens[name] = kinds.go_on(model, cache, ids[:, 40:], **inputs)[1]
print(json.dumps(tokens))
"""
SAME = [
    *("Llama", "Mistral", "Gemma 2", "Gemma 3", "gpt-oss", "Llama 4", "Whisper", "GPT-2"),
    *("StaticCache of Llama", "StaticCache of Gemma 3", "QuantizedCache by HQQ"),
]
DIFFERENT = {"DeepSeek V3": "DeepSeek's attention", "Qwen3-Next": "does not have"}


@pytest.fixture(scope="module")
def other_version(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Returns a folder of files that the other Transformers wrote, and how it went on from them.

    KVC_OTHER_PYTHON names a Python with that version.
    """
    python, folder = os.environ.get("KVC_OTHER_PYTHON"), tmp_path_factory.mktemp("other")
    if not python:
        pytest.skip("KVC_OTHER_PYTHON names no Python with another Transformers")
    (folder / "other.py").write_text(OTHER)
    names = json.dumps([*SAME, *DIFFERENT])
    done = subprocess.run(
        [python, folder / "other.py", Path(__file__).parent, folder, names],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", SAME)
def test_files_that_the_other_version_wrote(
    other_version: tuple[Path, dict[str, Any]], name: str
) -> None:
    folder, tokens = other_version
    if name not in tokens or kinds.family_of(name).missing():
        pytest.skip("one of the two cannot make the cache")
    model, ids = kinds.model_of(name), kinds.ids_of(41)
    loaded = torch_kvcache.load(folder / name)
    version = loaded.metadata["tensor_manifest"]["framework"]["version"]
    assert version.startswith("4." if TRANSFORMERS_5 else "5.")
    inputs = kinds.inputs_of(model)
    assert kinds.go_on(model, loaded.cache, ids[:, 40:], **inputs)[1] == tokens[name]


@pytest.mark.parametrize("name", DIFFERENT)
def test_files_of_the_other_version_that_mean_something_else(
    other_version: tuple[Path, dict[str, Any]], name: str
) -> None:
    folder, tokens = other_version
    if name not in tokens:
        pytest.skip("the other version has no such layers")
    with pytest.raises(kvcache.UnsupportedCacheError, match=DIFFERENT[name]):
        torch_kvcache.load(folder / name)
