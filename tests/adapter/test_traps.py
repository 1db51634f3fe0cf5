# test_traps.py: one test for each way in which a cache comes back wrong without anybody noticing.
# SPDX-License-Identifier: Apache-2.0
# mypy: allow-untyped-calls, allow-subclassing-any
"""The numbers are those of the project's list of traps. Not here: 10 and 40, which are about other
programs, 6 for other programs than Transformers, and 24 on a GPU."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import kinds_help as kinds
import kvcache
import pytest
import torch
import torch_kvcache
from adapter_help import IDENTITY, TRANSFORMERS_5, run_python
from kinds_help import WINDOW
from torch_kvcache import schema
from transformers import DynamicCache, EncoderDecoderCache, cache_utils

ONLY_5 = pytest.mark.skipif(not TRANSFORMERS_5, reason="Transformers 4 has no such layers")
PREFIX = 3 * WINDOW


def made(name: str, tokens: int = PREFIX, batch: int = 1) -> tuple[Any, torch.Tensor, Any]:
    """Returns a model, ids one longer than the cache, and the cache."""
    model, ids = kinds.model_of(name), kinds.ids_of(tokens + 1, batch)
    return model, ids, kinds.prefill(name, model, ids[:, :tokens], **kinds.inputs_of(model, batch))


def there_and_back(tmp_path: Path, cache: Any, **arguments: Any) -> Any:
    """Saves a cache and returns the one that is loaded."""
    torch_kvcache.save(tmp_path / "a.kvc", cache, identity=IDENTITY, **arguments)
    return torch_kvcache.load(tmp_path / "a.kvc").cache


def plain_layer(tokens: int = 5, batch: int = 1) -> Any:
    """Returns a DynamicLayer with tokens."""
    layer: Any = cache_utils.DynamicLayer()
    layer.update(torch.randn(batch, 2, tokens, 8), torch.randn(batch, 2, tokens, 8))
    return layer


def cache_of(*layers: Any) -> Any:
    """Returns a DynamicCache of exactly these layers."""
    cache: Any = DynamicCache()
    cache.layers = list(layers)
    return cache


def first_logits(model: Any, cache: Any, ids: torch.Tensor, **inputs: Any) -> torch.Tensor:
    """Returns the logits of one step, [batch, vocabulary]; the cache moves on."""
    return kinds.run(model, ids[:, -1:], cache, **inputs)[0]


# ---- Position and identity ---------------------------------------------------------------------


def test_trap_01_sliding_restored_as_plain(tmp_path: Path) -> None:
    model, ids, cache = made("Gemma 3")
    loaded = there_and_back(tmp_path, cache)
    assert [type(layer) for layer in loaded.layers] == [type(layer) for layer in cache.layers]
    assert loaded.is_sliding == cache.is_sliding == [True, True, False, False]
    assert loaded.get_seq_length(0) == PREFIX
    plain = cache_of(*(copy.copy(layer) for layer in cache.layers))
    for index in range(2):
        plain.layers[index] = plain_layer()
        plain.layers[index].keys = cache.layers[index].keys
        plain.layers[index].values = cache.layers[index].values
    want = first_logits(model, kinds.twin(cache), ids)
    assert not torch.equal(first_logits(model, plain, ids), want)
    assert torch.equal(first_logits(model, loaded, ids), want)


def test_trap_02_cumulative_length_lost_by_update(tmp_path: Path) -> None:
    _, _, cache = made("Mistral")
    for layer in there_and_back(tmp_path, cache).layers:
        assert layer.cumulative_length == PREFIX
        assert layer.keys.shape[2] == WINDOW - 1
        updated = cache_utils.DynamicSlidingWindowLayer(sliding_window=WINDOW)
        updated.update(layer.keys, layer.values)
        assert updated.cumulative_length == WINDOW - 1


def test_trap_03_iterating_a_cache_is_no_way_back(tmp_path: Path) -> None:
    """The pairs that a cache yields do not say what it is; the adapter does not go through them."""
    model, ids, cache = made("Mistral")
    want = first_logits(model, kinds.twin(cache), ids)
    by_pairs: Any = DynamicCache(list(cache))
    assert by_pairs.get_seq_length() == WINDOW - 1
    loaded = there_and_back(tmp_path, cache)
    assert loaded.get_seq_length() == PREFIX
    assert torch.equal(first_logits(model, loaded, ids), want)


def test_trap_04_length_of_the_cache_depends_on_the_first_layer(tmp_path: Path) -> None:
    _, _, cache = made("Gemma 3")
    metadata = torch_kvcache.save(tmp_path / "a.kvc", cache, identity=IDENTITY)
    assert metadata["sequence_length"] == PREFIX
    if TRANSFORMERS_5:
        _, _, cache = made("Mamba")
        with pytest.raises(ValueError, match="LinearAttention"):
            cache.get_seq_length()
        with pytest.raises(kvcache.UnsupportedCacheError, match="sequence_length"):
            there_and_back(tmp_path, cache)
        there_and_back(tmp_path, cache, sequence_length=PREFIX)


def test_trap_05_position_is_not_the_number_of_stored_tokens(tmp_path: Path) -> None:
    for name in ("Mistral", "Llama 4", "StaticCache of Gemma 3", "StaticCache of Llama"):
        _, _, cache = made(name)
        metadata = torch_kvcache.save(
            tmp_path / "a.kvc", cache, identity=IDENTITY, sequence_start=7
        )
        assert (metadata["sequence_start"], metadata["sequence_length"]) == (7, PREFIX)
        for record, layer in zip(metadata["tensor_manifest"]["layers"], cache.layers, strict=True):
            assert record["positions_seen"] == int(layer.get_seq_length()) == PREFIX
            held = {"sliding": WINDOW - 1, "static_sliding": WINDOW}.get(record["kind"], PREFIX)
            assert record["stored_tokens"] == held
    pressed = cache_of(plain_layer(5))
    metadata = torch_kvcache.save(
        tmp_path / "a.kvc", pressed, identity=IDENTITY, sequence_length=40
    )
    record = metadata["tensor_manifest"]["layers"][0]
    assert (record["positions_seen"], record["stored_tokens"]) == (40, 5)


def test_trap_06_deepseek_means_another_thing_in_another_version(tmp_path: Path) -> None:
    _, _, cache = made("DeepSeek V3")
    metadata = torch_kvcache.save(tmp_path / "a.kvc", cache, identity=IDENTITY)
    here = schema.LATENT if TRANSFORMERS_5 else schema.EXPANDED
    assert metadata["tensor_manifest"]["state_schema"] == here
    assert schema.caches_latents("5.15.0")
    assert not schema.caches_latents("5.14.2")
    for name in (schema.LATENT, schema.EXPANDED, "hf/other"):
        if name != here:
            with pytest.raises(kvcache.UnsupportedCacheError, match=name):
                schema.require_schema(name, "5.0")


def test_trap_07_rope_theta_alone_is_no_rotary_embedding(tmp_path: Path) -> None:
    """The whole configuration goes into the identity, and a file of another one is refused."""
    cache = cache_of(plain_layer())
    whole = IDENTITY | {"rope": {"type": "yarn", "factor": 4.0, "partial": 1.0}}
    torch_kvcache.save(tmp_path / "a.kvc", cache, identity=whole)
    torch_kvcache.load(tmp_path / "a.kvc", expected_identity=whole)
    other = IDENTITY | {"rope": {"type": "yarn", "factor": 8.0, "partial": 1.0}}
    with pytest.raises(kvcache.CacheIdentityError, match=r"rope\.factor"):
        torch_kvcache.load(tmp_path / "a.kvc", expected_identity=other)


@pytest.mark.parametrize(
    ("name", "value", "other"),
    [
        ("adapters", [{"digest": "a", "scale": 1.0}], []),
        ("kv_quantization", {"bits": 4}, None),
        ("compute_dtype", "bfloat16", "float32"),
        ("attention", {"sinks": True}, {"sinks": False}),
        ("weights_digest", "sha256:1", "sha256:2"),
    ],
)
def test_trap_08_what_changes_values_and_no_shapes(
    tmp_path: Path, name: str, value: Any, other: Any
) -> None:
    cache = cache_of(plain_layer())
    torch_kvcache.save(tmp_path / "a.kvc", cache, identity=IDENTITY | {name: value})
    torch_kvcache.load(tmp_path / "a.kvc", expected_identity=IDENTITY | {name: value})
    with pytest.raises(kvcache.CacheIdentityError, match=name):
        torch_kvcache.load(tmp_path / "a.kvc", expected_identity=IDENTITY | {name: other})


def test_trap_09_left_padding_needs_its_mask(tmp_path: Path) -> None:
    model, ids = kinds.model_of("Llama"), kinds.ids_of(21, 2)
    mask = torch.ones(2, 20, dtype=torch.int64)
    mask[0, :6] = 0
    cache = kinds.prefill("Llama", model, ids[:, :20], attention_mask=mask)
    torch_kvcache.save(
        tmp_path / "a.kvc", cache, identity=IDENTITY, token_ids=ids[:, :20], attention_mask=mask
    )
    loaded = torch_kvcache.load(tmp_path / "a.kvc")
    assert loaded.attention_mask is not None
    assert loaded.token_ids is not None
    more = torch.cat([loaded.attention_mask, mask.new_ones(2, 1)], dim=1)
    want = first_logits(model, kinds.twin(cache), ids, attention_mask=more)
    without = first_logits(model, kinds.twin(cache), ids)
    assert torch.equal(first_logits(model, loaded.cache, ids, attention_mask=more), want)
    assert not torch.equal(without, want)
    assert torch.equal(loaded.token_ids, ids[:, :20])


# ---- Structure ---------------------------------------------------------------------------------


def test_trap_11_shapes_that_differ(tmp_path: Path) -> None:
    other: Any = cache_utils.DynamicLayer()
    other.update(torch.randn(1, 3, 7, 24), torch.randn(1, 3, 7, 16))
    cache = cache_of(plain_layer(5), other)
    schema_here = {} if TRANSFORMERS_5 else {"state_schema": schema.ATTENTION}
    loaded = there_and_back(tmp_path, cache, **schema_here)
    for one, two in zip(cache.layers, loaded.layers, strict=True):
        assert kinds.same_state(one, two) == []


def test_trap_12_dtypes_that_differ(tmp_path: Path) -> None:
    layer = plain_layer()
    layer.values = layer.values.to(torch.bfloat16)
    cache = cache_of(layer, plain_layer())
    cache.layers[1].keys = cache.layers[1].keys.to(torch.float16)
    cache.layers[1].values = cache.layers[1].values.to(torch.float16)
    cache.layers[1].dtype = torch.float16
    if TRANSFORMERS_5:
        linear = cache_utils.LinearAttentionLayer()
        linear.update_conv_state(torch.randn(1, 4, 3, dtype=torch.bfloat16))
        linear.update_recurrent_state(torch.randn(1, 2, 3, 4))
        cache.layers.append(linear)
    loaded = there_and_back(tmp_path, cache)
    for one, two in zip(cache.layers, loaded.layers, strict=True):
        assert kinds.same_state(one, two) == []


def test_trap_13_fewer_layers_than_the_model_has(tmp_path: Path) -> None:
    model, ids, cache = made("Gemma 3n")
    assert len(cache.layers) == 2 < model.config.num_hidden_layers
    loaded = there_and_back(tmp_path, cache)
    assert len(loaded.layers) == 2
    want = first_logits(model, cache, ids)
    assert torch.equal(first_logits(model, loaded, ids), want)
    with pytest.raises(kvcache.UnsupportedCacheError, match="no layers"):
        there_and_back(tmp_path, DynamicCache())
    with pytest.raises(kvcache.UnsupportedCacheError, match="NoneType"):
        there_and_back(tmp_path, cache_of(plain_layer(), None))


@ONLY_5
def test_trap_13_placeholder_layers(tmp_path: Path) -> None:
    """Layers that need no cache have an empty one in its place."""
    cache = cache_of(cache_utils.LinearAttentionLayer(), plain_layer())
    loaded = there_and_back(tmp_path, cache)
    assert kinds.same_state(cache.layers[0], loaded.layers[0]) == []
    assert loaded.get_seq_length() == 5


def test_trap_14_three_ways_to_hold_nothing(tmp_path: Path) -> None:
    flat, shaped = plain_layer(), plain_layer()
    flat.keys, flat.values = torch.tensor([]), torch.tensor([])
    shaped.keys, shaped.values = shaped.keys[:, :, :0], shaped.values[:, :, :0]
    cache = cache_of(plain_layer(), cache_utils.DynamicLayer(), flat, shaped)
    loaded = there_and_back(tmp_path, cache)
    assert loaded.layers[1].keys is None
    assert not loaded.layers[1].is_initialized
    assert [list(layer.keys.shape) for layer in loaded.layers[2:]] == [[0], [1, 2, 0, 8]]
    assert all(layer.is_initialized for layer in loaded.layers[2:])


def test_trap_15_encoder_decoder_caches(tmp_path: Path) -> None:
    model, ids, cache = made("T5")
    assert not hasattr(cache, "layers")
    loaded = there_and_back(tmp_path, cache)
    assert type(loaded) is EncoderDecoderCache
    assert loaded.is_updated == {0: True, 1: True}
    lengths = [layer.keys.shape[2] for layer in kinds.layers_of(loaded)]
    assert lengths == [PREFIX, PREFIX, 11, 11]
    inputs = kinds.inputs_of(model)
    want = first_logits(model, cache, ids, **inputs)
    assert torch.equal(first_logits(model, loaded, ids, **inputs), want)
    alone: Any = EncoderDecoderCache(cache_of(plain_layer()), DynamicCache())
    assert len(there_and_back(tmp_path, alone).cross_attention_cache.layers) == 0


@ONLY_5
def test_trap_16_linear_layers(tmp_path: Path) -> None:
    model, ids, cache = made("Qwen3-Next")
    assert not hasattr(cache.layers[0], "keys")
    loaded = there_and_back(tmp_path, cache)
    assert loaded.layers[0].has_previous_state == {0: True}
    want = first_logits(model, kinds.twin(cache), ids)
    forgetful = kinds.twin(loaded)
    for layer in forgetful.layers[:3]:
        layer.has_previous_state[0] = False
    assert torch.equal(first_logits(model, loaded, ids), want)
    assert not torch.equal(first_logits(model, forgetful, ids), want)


@pytest.mark.parametrize("backend", ["quanto", "HQQ"])
def test_trap_17_keys_of_quantised_layers_are_only_the_residual(
    tmp_path: Path, backend: str
) -> None:
    name = f"QuantizedCache by {backend}"
    if kinds.family_of(name).missing():
        pytest.skip(kinds.family_of(name).missing())
    model, ids, cache = made(name, 32)
    for place in range(3):
        kinds.run(model, ids[:, place : place + 1], cache)
    assert cache.layers[0].keys.shape[2] == 3
    metadata = torch_kvcache.save(tmp_path / "a.kvc", cache, identity=IDENTITY)
    record = metadata["tensor_manifest"]["layers"][0]
    assert (record["positions_seen"], record["stored_tokens"]) == (35, 35)
    loaded = torch_kvcache.load(tmp_path / "a.kvc").cache
    assert kinds.same_state(cache.layers[0], loaded.layers[0]) == []
    with pytest.raises(kvcache.UnsupportedCacheError, match="Quantized"):
        torch_kvcache.write_dynamic_cache(tmp_path / "b.kvc", cache, **IDENTITY)


def test_trap_17_quantised_tensors_in_plain_layers(tmp_path: Path) -> None:
    """They say that they are tensors of floats, and are not."""

    class Quantised(torch.Tensor):
        pass

    layer = plain_layer()
    layer.keys = layer.keys.as_subclass(Quantised)
    with pytest.raises(kvcache.UnsupportedCacheError, match="Quantised"):
        there_and_back(tmp_path, cache_of(layer))


def test_trap_18_tied_tensors(tmp_path: Path) -> None:
    tied, sliced = plain_layer(), plain_layer()
    tied.values = tied.keys
    both = torch.randn(1, 2, 5, 16)
    sliced.keys, sliced.values = both[..., :8], both[..., 8:]
    metadata = torch_kvcache.save(tmp_path / "a.kvc", cache_of(tied, sliced), identity=IDENTITY)
    assert len(metadata["tensor_manifest"]["tensors"]) == 3
    loaded = torch_kvcache.load(tmp_path / "a.kvc").cache
    assert loaded.layers[0].values is loaded.layers[0].keys
    assert torch.equal(loaded.layers[1].values, both[..., 8:])
    assert torch.equal(loaded.layers[1].keys, both[..., :8])


def test_trap_19_attributes_of_subclasses(tmp_path: Path) -> None:
    class Indexed(cache_utils.DynamicLayer):  # type: ignore[misc]
        pass

    layer: Any = Indexed()
    layer.update(torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8))
    layer.idx_keys = torch.zeros(1)
    with pytest.raises(kvcache.UnsupportedCacheError, match="Indexed"):
        there_and_back(tmp_path, cache_of(layer))
    plain = plain_layer()
    plain.idx_keys = torch.zeros(1)
    with pytest.raises(kvcache.UnsupportedCacheError, match="idx_keys"):
        there_and_back(tmp_path, cache_of(plain))


def test_trap_20_counters_of_static_layers(tmp_path: Path) -> None:
    _, _, cache = made("StaticCache of Gemma 3")
    loaded = there_and_back(tmp_path, cache)
    window, full = loaded.layers[0], loaded.layers[2]
    assert int(full.get_seq_length()) == int(window.get_seq_length()) == PREFIX
    if TRANSFORMERS_5:
        assert isinstance(full.cumulative_length, torch.Tensor)
        # The tensor stopped when the window was full; the integer is the position.
        assert window.cumulative_length_int == PREFIX
        assert int(window.cumulative_length) == int(cache.layers[0].cumulative_length) < PREFIX
        return
    metadata, payload = kvcache.read_cache(tmp_path / "a.kvc")
    place = metadata["tensor_manifest"]["tensors"][4]
    row = place["offset"] + 3 * 8 * 4
    spoiled = payload[:row].tobytes() + bytes(8 * 4) + payload[row + 8 * 4 :].tobytes()
    kvcache.write_cache_stream(tmp_path / "a.kvc", metadata, [spoiled])
    with pytest.raises(kvcache.UnsupportedCacheError, match=r"cannot load.*keys is zero"):
        torch_kvcache.load(tmp_path / "a.kvc")
    cache.layers[2].keys[:, :, 3] = 0
    with pytest.raises(kvcache.UnsupportedCacheError, match=r"cannot store.*keys is zero"):
        torch_kvcache.save(tmp_path / "a.kvc", cache, identity=IDENTITY)


# ---- Tensors -----------------------------------------------------------------------------------


def test_trap_21_views_are_stored_by_their_content(tmp_path: Path) -> None:
    layer = plain_layer(9)
    layer.keys = torch.randn(1, 2, 9, 8).expand(3, 2, 9, 8)
    layer.values = torch.randn(3, 2, 30, 8)[:, :, 4:13]
    torch_kvcache.save(tmp_path / "a.kvc", cache_of(layer), identity=IDENTITY, info={})
    info = kvcache.verify_cache(tmp_path / "a.kvc")
    assert info.payload_bytes == 2 * 3 * 2 * 9 * 8 * 4
    loaded = torch_kvcache.load(tmp_path / "a.kvc").cache.layers[0]
    assert torch.equal(loaded.keys, layer.keys)
    assert torch.equal(loaded.values, layer.values)


def test_trap_22_strides_of_dimensions_of_one(tmp_path: Path) -> None:
    layer = plain_layer(9)
    layer.keys = torch.randn(1, 1, 30, 8)[:, :, :9]
    layer.values = torch.randn(1, 1, 30, 8)[:, :, 5:14]
    assert layer.keys.is_contiguous()
    assert layer.keys.stride() != torch.empty(1, 1, 9, 8).stride()
    by_version: list[dict[str, Any]] = [{}, {"info": {}}]
    for arguments in by_version:
        loaded = there_and_back(tmp_path, cache_of(layer), **arguments).layers[0]
        assert loaded.keys.stride() == torch.empty(1, 1, 9, 8).stride()
        assert torch.equal(loaded.keys, layer.keys)
        assert torch.equal(loaded.values, layer.values)


def test_trap_23_gradients(tmp_path: Path) -> None:
    layer = plain_layer()
    layer.keys = (layer.keys.requires_grad_() * 2).requires_grad_()
    with torch.inference_mode():
        layer.values = layer.values + 1
    loaded = there_and_back(tmp_path, cache_of(layer), info={}).layers[0]
    assert not loaded.keys.requires_grad
    assert not loaded.values.is_inference()
    assert torch.equal(loaded.keys, layer.keys.detach())
    loaded.values.add_(1)


def test_trap_25_tensors_without_values(tmp_path: Path) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    layer = plain_layer()
    layer.keys = layer.keys.to("meta")
    with pytest.raises(kvcache.UnsupportedCacheError, match="meta device"):
        there_and_back(tmp_path, cache_of(layer), info={})
    with FakeTensorMode():
        layer.keys = torch.randn(1, 2, 5, 8)
    with pytest.raises(kvcache.UnsupportedCacheError, match="FakeTensor"):
        there_and_back(tmp_path, cache_of(layer), info={})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_trap_26_dtypes_that_numpy_does_not_have(tmp_path: Path, dtype: torch.dtype) -> None:
    layer = plain_layer()
    layer.keys, layer.values = layer.keys.to(dtype), layer.values.to(dtype)
    layer.dtype = dtype
    loaded = there_and_back(tmp_path, cache_of(layer)).layers[0]
    assert kinds.same_state(layer, loaded) == []


def test_trap_27_layers_on_several_devices(tmp_path: Path) -> None:
    """A file says nothing about devices; who loads it says where each layer shall be."""
    there_and_back(tmp_path, cache_of(plain_layer(), plain_layer()))
    assert b"cpu" not in (tmp_path / "a.kvc").read_bytes()
    loaded = torch_kvcache.load(tmp_path / "a.kvc", device=lambda layer: ["cpu", "meta"][layer])
    assert [layer.keys.device.type for layer in loaded.cache.layers] == ["cpu", "meta"]


def test_trap_28_byte_order(tmp_path: Path) -> None:
    cache = cache_of(plain_layer())
    metadata = torch_kvcache.save(tmp_path / "a.kvc", cache, identity=IDENTITY, info={})
    assert metadata["tensor_manifest"]["byte_order"] == sys.byteorder == "little"
    child = "import sys; sys.byteorder = 'big'; import torch_kvcache"
    done = run_python("-c", child)
    assert done.returncode != 0
    assert "big-endian" in done.stderr


def test_trap_29_a_file_is_a_snapshot(tmp_path: Path) -> None:
    """What a model does to a cache after it was saved, in place or not, is not in the file."""
    model, ids, cache = made("StaticCache of Llama", 9)
    torch_kvcache.save(tmp_path / "a.kvc", cache, identity=IDENTITY)
    before = kinds.twin(cache)
    kinds.go_on(model, cache, ids[:, -1:])
    loaded = torch_kvcache.load(tmp_path / "a.kvc").cache
    for one, two in zip(before.layers, loaded.layers, strict=True):
        assert kinds.same_state(one, two) == []


def test_trap_30_static_addresses(tmp_path: Path) -> None:
    """A layer allocates its own buffers, marks them for compiled graphs, and keeps them."""
    model, ids, cache = made("StaticCache of Gemma 3")
    loaded = there_and_back(tmp_path, cache)
    places = [(layer.keys.data_ptr(), layer.values.data_ptr()) for layer in loaded.layers]
    for layer in loaded.layers:
        assert layer.keys._dynamo_static_input_type == "unguarded"
        assert layer.keys.shape[2] == layer.max_cache_len
    kinds.go_on(model, loaded, ids[:, -1:])
    assert places == [(layer.keys.data_ptr(), layer.values.data_ptr()) for layer in loaded.layers]


# ---- Zero copy and files -----------------------------------------------------------------------


def test_trap_31_tensors_outlive_everything(tmp_path: Path) -> None:
    cache = cache_of(plain_layer())
    keys = there_and_back(tmp_path, cache).layers[0].keys
    (tmp_path / "a.kvc").unlink()
    gc.collect()
    assert torch.equal(keys, cache.layers[0].keys)


def test_trap_32_writing_in_place_never_reaches_the_file(tmp_path: Path) -> None:
    loaded = there_and_back(tmp_path, cache_of(plain_layer()))
    before = (tmp_path / "a.kvc").read_bytes()
    loaded.layers[0].keys.zero_()
    loaded.layers[0].values.fill_(3)
    assert (tmp_path / "a.kvc").read_bytes() == before
    again = torch_kvcache.load(tmp_path / "a.kvc").cache
    assert again.layers[0].keys.any()


def test_trap_33_copies_survive_what_is_done_to_the_file(tmp_path: Path) -> None:
    cache = cache_of(plain_layer())
    there_and_back(tmp_path, cache)
    loaded = torch_kvcache.load(tmp_path / "a.kvc", copy=True).cache
    os.truncate(tmp_path / "a.kvc", 0)
    assert torch.equal(loaded.layers[0].keys, cache.layers[0].keys)
    with pytest.raises(kvcache.CacheFormatError):
        torch_kvcache.load(tmp_path / "a.kvc")


def test_trap_34_pickling_one_tensor(tmp_path: Path) -> None:
    """Each tensor has a storage of its own size: pickling it does not write the whole file."""
    loaded = there_and_back(tmp_path, cache_of(*(plain_layer(50) for _ in range(20))))
    keys = loaded.layers[3].keys
    assert keys.untyped_storage().nbytes() == keys.numel() * 4
    assert len(pickle.dumps(keys)) < 2 * keys.numel() * 4


def test_trap_35_alignment(tmp_path: Path) -> None:
    """Tensors of odd sizes follow each other, and each is aligned for its elements all the same."""
    layer = plain_layer(1)
    layer.keys = torch.ones(1, 1, 1, 3, dtype=torch.uint8)
    layer.values = torch.randn(1, 1, 1, 3, dtype=torch.float64)
    cache = cache_of(layer, plain_layer(1))
    for align, step in ((None, 64), (64, 64), (4096, 4096)):
        torch_kvcache.save(tmp_path / "a.kvc", cache, identity=IDENTITY, align=align)
        loaded = torch_kvcache.load(tmp_path / "a.kvc").cache
        assert all(
            tensor.data_ptr() % step == 0
            for layer in loaded.layers
            for tensor in (layer.keys, layer.values)
        )
        assert torch.equal(loaded.layers[0].values, layer.values)
    torch_kvcache.save(tmp_path / "a.kvc", cache, identity=IDENTITY, align=1)
    packed = torch_kvcache.load(tmp_path / "a.kvc").cache
    assert torch.equal(packed.layers[0].values, layer.values)


def test_trap_36_the_file_that_was_proven_is_the_one_that_is_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another file of the same name, put there after opening, is not looked at."""
    first, second = cache_of(plain_layer()), cache_of(plain_layer())
    for name, cache in (("a.kvc", first), ("b.kvc", second)):
        torch_kvcache.save(tmp_path / name, cache, identity=IDENTITY)
    opened = kvcache.open_cache

    def open_and_replace(*arguments: Any, **options: Any) -> kvcache.Cache:
        source = opened(*arguments, **options)
        if (tmp_path / "b.kvc").exists():
            os.replace(tmp_path / "b.kvc", tmp_path / "a.kvc")
        return source

    monkeypatch.setattr(kvcache, "open_cache", open_and_replace)
    loaded = torch_kvcache.load(tmp_path / "a.kvc").cache
    assert torch.equal(loaded.layers[0].keys, first.layers[0].keys)
    again = torch_kvcache.load(tmp_path / "a.kvc").cache
    assert torch.equal(again.layers[0].keys, second.layers[0].keys)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_trap_37_a_forked_process_reads_on(tmp_path: Path) -> None:
    child = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import torch, torch_kvcache
cache = torch_kvcache.load({str(tmp_path / "a.kvc")!r}).cache
total = float(cache.layers[0].keys.sum())
if os.fork() == 0:
    os._exit(0 if float(cache.layers[0].keys.sum()) == total else 1)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
cache.layers[0].keys.zero_()
"""
    there_and_back(tmp_path, cache_of(plain_layer()))
    (tmp_path / "child.py").write_text(child)
    done = run_python(tmp_path / "child.py")
    assert done.returncode == 0, done.stderr


def test_trap_38_one_prefix_used_twice(tmp_path: Path) -> None:
    """deepcopy gives a cache of its own, and so does loading again."""
    model, ids, cache = made("Gemma 3")
    first = there_and_back(tmp_path, cache)
    second, third = copy.deepcopy(first), torch_kvcache.load(tmp_path / "a.kvc").cache
    want = kinds.go_on(model, cache, ids[:, -1:])
    for one in (first, second, third):
        got = kinds.go_on(model, one, ids[:, -1:])
        assert kinds.same_bits(got[0], want[0])
        assert got[1] == want[1]


def test_trap_39_names_in_a_file_choose_no_code(tmp_path: Path) -> None:
    torch_kvcache.save(tmp_path / "a.kvc", cache_of(plain_layer()), identity=IDENTITY, info={})
    metadata, payload = kvcache.read_cache(tmp_path / "a.kvc")
    for name in ("os.system", "builtins.eval", "CacheLayerMixin", "QuantizedLayer", "Cache"):
        metadata["tensor_manifest"]["layers"][0]["class"] = name
        kvcache.write_cache_stream(tmp_path / "a.kvc", metadata, [payload])
        with pytest.raises(kvcache.UnsupportedCacheError, match=name):
            torch_kvcache.load(tmp_path / "a.kvc")
    metadata["tensor_manifest"]["layers"][0]["class"] = "DynamicLayer"
    for name in ("Cache", "MtpCache", "EncoderDecoderCache", "__class__"):
        metadata["tensor_manifest"]["cache_class"] = name
        kvcache.write_cache_stream(tmp_path / "a.kvc", metadata, [payload])
        with pytest.raises(kvcache.UnsupportedCacheError, match=name):
            torch_kvcache.load(tmp_path / "a.kvc")
