# test_refused.py: every cache that a KVC1 file would not hold whole is refused, and says why.
# SPDX-License-Identifier: Apache-2.0
# mypy: allow-untyped-calls, allow-subclassing-any
from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import kvcache
import pytest
import torch
import torch_kvcache
import transformers
from adapter_help import IDENTITY, TRANSFORMERS_5, cache_of, prefill, random_cache, tiny_llama
from transformers import (
    DynamicCache,
    EncoderDecoderCache,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    MistralForCausalLM,
    StaticCache,
    T5Config,
    T5ForConditionalGeneration,
    cache_utils,
)

IDS = torch.arange(2, 22).reshape(1, -1)
ONLY_5 = pytest.mark.skipif(not TRANSFORMERS_5, reason="Transformers 4 has no such class")


def states(tokens: int = 5, width: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(1, 2, tokens, width), torch.randn(1, 2, tokens, width)


def fill(cache: Any, layers: int = 2, tokens: int = 5) -> Any:
    for index in range(layers):
        cache.update(*states(tokens), index)
    return cache


def refused(tmp_path: Path, cache: Any, *words: str) -> kvcache.UnsupportedCacheError:
    """Checks that a cache is refused with all of `words`, and that nothing was written."""
    with pytest.raises(kvcache.UnsupportedCacheError) as caught:
        torch_kvcache.write_dynamic_cache(tmp_path / "a.kvc", cache, **IDENTITY)
    for word in (*words, "Nothing was written"):
        assert word in str(caught.value)
    assert os.listdir(tmp_path) == []
    return caught.value


# ---- Classes of caches -------------------------------------------------------------------------


def test_static_cache(tmp_path: Path) -> None:
    config = LlamaConfig(
        num_hidden_layers=2, hidden_size=16, num_attention_heads=2, num_key_value_heads=2
    )
    cache = StaticCache(config=config, max_cache_len=8)
    where: Any = {} if TRANSFORMERS_5 else {"cache_kwargs": {"cache_position": torch.arange(5)}}
    for index in range(2):
        cache.update(*states(), index, **where)
    error = refused(tmp_path, cache, "transformers.cache_utils.StaticCache", "allocated")
    assert error.found == "transformers.cache_utils.StaticCache"


def test_encoder_decoder_cache(tmp_path: Path) -> None:
    cache = EncoderDecoderCache(fill(DynamicCache()), fill(DynamicCache()))
    refused(tmp_path, cache, "transformers.cache_utils.EncoderDecoderCache", "cross-attention")


def test_encoder_decoder_cache_of_a_model(tmp_path: Path) -> None:
    config = T5Config(
        vocab_size=50, d_model=16, d_kv=8, d_ff=16, num_layers=2, num_heads=2, dropout_rate=0.0
    )
    model = T5ForConditionalGeneration(config).eval()
    with torch.no_grad():
        output = model(IDS, decoder_input_ids=IDS[:, :3], use_cache=True)
    refused(tmp_path, output.past_key_values, "EncoderDecoderCache")


@ONLY_5
@pytest.mark.parametrize("name", ["MtpCache", "DFlashCache"])
def test_speculative_caches(tmp_path: Path, name: str) -> None:
    cache = fill(getattr(cache_utils, name)())
    refused(tmp_path, cache, f"transformers.cache_utils.{name}")


class MyCache(DynamicCache):
    """A class that nobody here knows."""


def test_unknown_subclass_of_dynamic_cache(tmp_path: Path) -> None:
    refused(tmp_path, fill(MyCache()), "MyCache", "besides keys and values")


def test_other_cache_of_dynamic_layers(tmp_path: Path) -> None:
    layers = fill(DynamicCache()).layers
    refused(tmp_path, cache_utils.Cache(layers=layers), "transformers.cache_utils.Cache,")


def test_pairs_of_tensors_and_old_caches(tmp_path: Path) -> None:
    pair = states()
    refused(tmp_path, (pair, pair), "builtins.tuple", "4.53", "DynamicCache(")
    old = SimpleNamespace(key_cache=[pair[0]], value_cache=[pair[1]])
    refused(tmp_path, old, "SimpleNamespace", "4.53")


@pytest.mark.parametrize("what", [None, "text", 7, {"layers": 1}])
def test_no_cache_at_all(tmp_path: Path, what: object) -> None:
    refused(tmp_path, what, "must expose at least one layer", type(what).__name__)


# ---- Classes of layers -------------------------------------------------------------------------


def test_sliding_layers_of_a_model(tmp_path: Path) -> None:
    config = MistralConfig(
        vocab_size=97, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, sliding_window=8,
    )  # fmt: skip
    model = MistralForCausalLM(config).eval()
    cache = prefill(model, IDS, past_key_values=DynamicCache(config=config))
    assert cache.layers[0].keys.shape[2] == 7
    refused(
        tmp_path, cache, "layer 0", "transformers.cache_utils.DynamicSlidingWindowLayer", "window"
    )


def test_one_sliding_layer_among_full_ones(tmp_path: Path) -> None:
    cache = fill(DynamicCache(), layers=3)
    sliding = cache_utils.DynamicSlidingWindowLayer(sliding_window=100)
    sliding.update(*states())
    cache.layers[2] = sliding
    error = refused(tmp_path, cache, "layer 2", "DynamicSlidingWindowLayer")
    assert error.expected == "transformers.cache_utils.DynamicLayer"


def test_static_layers_in_a_dynamic_cache(tmp_path: Path) -> None:
    cache = fill(DynamicCache())
    layer = cache_utils.StaticLayer(max_cache_len=8)
    layer.keys, layer.values = states(8)
    cache.layers[1] = layer
    refused(tmp_path, cache, "layer 1", "transformers.cache_utils.StaticLayer", "allocated")


@ONLY_5
@pytest.mark.parametrize(
    ("name", "lost"),
    [
        ("LinearAttentionLayer", "recurrent states"),
        ("LinearAttentionAndFullAttentionLayer", "recurrent states"),
        ("DynamicIndexedLayer", "indexer keys"),
    ],
)
def test_layers_of_other_attention(tmp_path: Path, name: str, lost: str) -> None:
    cache = fill(DynamicCache())
    layer = getattr(cache_utils, name)()
    if name != "LinearAttentionLayer":
        layer.update(*states())
    cache.layers[1] = layer
    refused(tmp_path, cache, "layer 1", f"transformers.cache_utils.{name}", lost)


class HalvedLayer(cache_utils.QuantizedLayer):
    """A quantised layer that needs no package: the tokens are kept in 8 bits."""

    def _quantize(self, tensor: torch.Tensor, axis: int) -> torch.Tensor:
        return torch.clamp(tensor * 16, -127, 127).to(torch.int8)

    def _dequantize(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.float() / 16


@pytest.mark.parametrize("steps", [0, 3])
def test_quantised_layers(tmp_path: Path, steps: int) -> None:
    cache = fill(DynamicCache())
    layer: Any = HalvedLayer(residual_length=64)
    layer.update(*states())
    for _ in range(steps):
        layer.update(*states(1))
    if steps:
        assert layer.keys.shape == (1, 2, 3, 8)  # only the residual: 3 of 8 tokens
    cache.layers = [layer, layer]
    refused(tmp_path, cache, "layer 0", "HalvedLayer", "only the most recent")


@pytest.mark.parametrize("steps", [0, 3])
def test_quanto_layers(tmp_path: Path, steps: int) -> None:
    pytest.importorskip("optimum.quanto", reason="optimum-quanto is not installed here")
    cache: Any = cache_utils.QuantizedCache(
        backend="quanto",
        config=LlamaConfig(num_hidden_layers=2, hidden_size=256, num_attention_heads=2),
        residual_length=32,
    )
    for tokens in [16, *[1] * steps]:
        for index in range(2):
            cache.update(*states(tokens, 128), index)
    refused(tmp_path, cache, "transformers.cache_utils.QuantizedCache")
    inside = DynamicCache()
    inside.layers = cache.layers
    refused(tmp_path, inside, "layer 0", "transformers.cache_utils.QuantoQuantizedLayer")
    if steps == 0:
        packed = cache.layers[0]._quantized_keys
        plain = SimpleNamespace(layers=[SimpleNamespace(keys=packed, values=packed)])
        refused(tmp_path, plain, "layer 0", "optimum.quanto", "dequantise")


class MyLayer(cache_utils.DynamicLayer):
    """A class that nobody here knows."""


def test_unknown_subclass_of_dynamic_layer(tmp_path: Path) -> None:
    cache = fill(DynamicCache())
    cache.layers[1] = MyLayer()
    cache.layers[1].update(*states())
    refused(tmp_path, cache, "layer 1", "MyLayer", "besides keys and values")


def test_state_put_on_a_layer(tmp_path: Path) -> None:
    cache = fill(DynamicCache())
    cache.layers[1].masked_key_indices = torch.tensor([1])
    refused(tmp_path, cache, "layer 1", "`masked_key_indices`", "delete it")
    del cache.layers[1].masked_key_indices
    torch_kvcache.write_dynamic_cache(tmp_path / "a.kvc", cache, **IDENTITY)


class Slotted:
    """A layer that keeps its state outside __dict__."""

    __slots__ = ("keys", "scale", "values")

    def __init__(self, scale: float) -> None:
        self.keys, self.values = states()
        self.scale = scale


class Pair(NamedTuple):
    keys: torch.Tensor
    values: torch.Tensor
    scale: float


def test_state_of_plain_objects(tmp_path: Path) -> None:
    scaled = SimpleNamespace(keys=states()[0], values=states()[1], scale=0.5)
    for layer in (scaled, Slotted(0.5), Pair(*states(), 0.5)):
        refused(tmp_path, SimpleNamespace(layers=[layer]), "layer 0", "`scale`")
    plain = SimpleNamespace(keys=states()[0], values=states()[1])
    refused(tmp_path, SimpleNamespace(layers=[plain], window=4), "the cache, a", "`window`")


# ---- Layers without tokens, and tensors of other shapes ----------------------------------------


def test_a_cache_without_layers(tmp_path: Path) -> None:
    refused(tmp_path, DynamicCache(), "must expose at least one layer", "use_cache=True")


def test_layers_that_were_never_filled(tmp_path: Path) -> None:
    cache = fill(DynamicCache())
    cache.layers.append(cache_utils.DynamicLayer())
    refused(tmp_path, cache, "layer 2", "holds no tokens")
    config = LlamaConfig(num_hidden_layers=2, hidden_size=16, num_attention_heads=2)
    refused(tmp_path, DynamicCache(config=config), "layer 0" if TRANSFORMERS_5 else "layer")


def test_layers_that_are_empty(tmp_path: Path) -> None:
    cache = fill(DynamicCache())
    new = cache_utils.DynamicLayer()
    new.lazy_initialization(*(states() if TRANSFORMERS_5 else states()[:1]))
    cache.layers[1] = new
    refused(tmp_path, cache, "layer 1", "holds no tokens")
    cache.layers[1].keys, cache.layers[1].values = states(0)
    refused(tmp_path, cache, "layer 1", "holds no tokens", "[1, 2, 0, 8]")


def test_latent_attention(tmp_path: Path) -> None:
    cache = DynamicCache([(torch.randn(1, 1, 5, 16), torch.randn(1, 1, 5, 4))] * 2)
    refused(tmp_path, cache, "layer 0", "must have the same shape", "[1, 1, 5, 16]", "DeepSeek")


def test_layers_that_differ(tmp_path: Path) -> None:
    cache = cache_of([states(5), states(4)])
    refused(tmp_path, cache, "layer 1", "same shape as layer 0", "[1, 2, 4, 8]")
    half = tuple(tensor.half() for tensor in states(5))
    cache = cache_of([states(5), half])
    refused(tmp_path, cache, "layer 1", "same dtype as layer 0", "torch.float16")
    cache = cache_of([(states(5)[0], half[1])])
    refused(tmp_path, cache, "layer 0", "must have the same dtype")


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.int64, torch.bool, torch.float8_e4m3fn, torch.complex64], ids=str
)
def test_dtypes_that_are_not_stored(tmp_path: Path, dtype: torch.dtype) -> None:
    cache = cache_of([tuple(tensor.to(dtype) for tensor in states())])
    refused(tmp_path, cache, "unsupported torch cache dtype", str(dtype))


@pytest.mark.parametrize("shape", [(), (5,), (2, 5, 8), (1, 1, 2, 5, 8)], ids=str)
def test_other_ranks(tmp_path: Path, shape: tuple[int, ...]) -> None:
    cache = cache_of([(torch.ones(shape), torch.ones(shape))])
    refused(tmp_path, cache, "[batch, heads, sequence, head_dim]", str(list(shape)))


@pytest.mark.parametrize("what", [None, [1.0], "text"])
def test_layers_without_tensors(tmp_path: Path, what: object) -> None:
    plain = SimpleNamespace(layers=[SimpleNamespace(keys=what, values=torch.ones(1, 1, 1, 1))])
    refused(tmp_path, plain, "layer 0", "must expose key and value tensors", type(what).__name__)


# ---- Tensors that are not plain ----------------------------------------------------------------


class Marked(torch.Tensor):
    """A subclass whose bytes may mean anything."""


@contextmanager
def one_process() -> Iterator[None]:
    store: Any = torch._C._distributed_c10d.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def test_subclasses_of_tensors(tmp_path: Path) -> None:
    keys, values = states()
    refused(tmp_path, cache_of([(keys.as_subclass(Marked), values)]), "layer 0", "`keys`", "Marked")


def test_tensors_without_values(tmp_path: Path) -> None:
    keys, values = states()
    refused(tmp_path, cache_of([(keys, values.to("meta"))]), "layer 0", "`values`", "meta device")
    with torch._subclasses.FakeTensorMode():
        fake = torch.ones(1, 2, 5, 8)
    refused(tmp_path, cache_of([(fake, values)]), "layer 0", "`keys`", "FakeTensor")


def test_distributed_tensors(tmp_path: Path) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    keys, values = states()
    with one_process():
        mesh = init_device_mesh("cpu", (1,))
        shards = [distribute_tensor(tensor, mesh, [Shard(1)]) for tensor in (keys, values)]
        refused(
            tmp_path, cache_of([(shards[0], shards[1])]), "layer 0", "`keys`", "DTensor", "gather"
        )


def test_sparse_tensors(tmp_path: Path) -> None:
    keys, values = states()
    refused(tmp_path, cache_of([(keys.to_sparse(), values)]), "layer 0", "`keys`", "to_dense")


# ---- Caches that models with full attention make are not refused -------------------------------


MODELS: dict[str, Callable[[], Any]] = {
    "llama": tiny_llama,
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        GPT2Config(vocab_size=97, n_embd=16, n_layer=2, n_head=2, n_positions=64)
    ).eval(),
    "qwen2": lambda: transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(
            vocab_size=97, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1,
        )
    ).eval(),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_plain_models_are_stored(tmp_path: Path, name: str) -> None:
    cache = prefill(MODELS[name](), IDS)
    metadata = torch_kvcache.write_dynamic_cache(tmp_path / "a.kvc", cache, **IDENTITY)
    assert metadata["sequence_length"] == 20


def test_reset_empties_a_cache(tmp_path: Path) -> None:
    if not TRANSFORMERS_5:
        pytest.skip("Transformers 4 zeroes the tensors in place and keeps the length")
    cache, _ = random_cache((1, 2, 5, 8))
    cache.reset()
    refused(tmp_path, cache, "layer 0", "holds no tokens")
