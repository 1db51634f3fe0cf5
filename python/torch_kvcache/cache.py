# cache.py: decides whether a cache can be stored, and names its key and value tensors.
# SPDX-License-Identifier: Apache-2.0
"""Manifest version 1 of KVC1 holds keys and values of full causal attention, and nothing else. A
cache that holds more than that would come back wrong without anybody noticing, so this module goes
by exact classes: what it does not know, it refuses."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import kvcache
import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer

from torch_kvcache.dtypes import TORCH_TO_KVC


class LayerTensors(NamedTuple):
    """One layer's tensors, [batch, heads, sequence, head_dim], as the cache holds them."""

    keys: torch.Tensor
    values: torch.Tensor


# What a file of manifest version 1 would lose of each class, by the class's own name.
_LOST_WITH_CACHE = {
    "EncoderDecoderCache": "its cross-attention cache, and which layers of that are filled",
    "StaticCache": "the length that was allocated and how much of it is filled",
    "QuantizedCache": "the quantised tokens; keys and values hold only the most recent ones",
    "MtpCache": "the shift of each layer's positions",
    "DFlashCache": "the number of tokens accepted last",
}
_LOST_WITH_LAYER = {
    "DynamicSlidingWindowLayer": "its window and the number of tokens that it has seen",
    "DynamicIndexedLayer": "its indexer keys",
    "StaticLayer": "the length that was allocated and how much of it is filled",
    "StaticSlidingWindowLayer": "its window and the number of tokens that it has seen",
    "StaticIndexedLayer": "its indexer keys and its fill level",
    "SlidingWindowLayer": "its window and the number of tokens that it has seen",
    "ChunkedSlidingLayer": "its chunk and the number of tokens that it has seen",
    "QuantizedLayer": "the quantised tokens; keys and values hold only the most recent ones",
    "QuantoQuantizedLayer": "the quantised tokens; keys and values hold only the most recent ones",
    "HQQQuantizedLayer": "the quantised tokens; keys and values hold only the most recent ones",
    "LinearAttentionLayer": "its convolution and recurrent states",
    "LinearAttentionAndFullAttentionLayer": "its convolution and recurrent states",
    "LinearAttentionAndSlidingWindowAttentionLayer": "its states, its window and its position",
}
_LOST_WITH_UNKNOWN = "whatever it holds besides keys and values"

_ADVICE = (
    "Nothing was written. write_dynamic_cache stores a transformers DynamicCache whose layers are "
    "all DynamicLayer, as models with full attention in every layer make it; torch_kvcache.save "
    "stores other kinds too. For those that it refuses keep the token ids and prefill again."
)

# Instance attributes of a DynamicLayer that a restored layer gets back, and of objects like it.
_LAYER_STATE = frozenset({"keys", "values", "is_initialized", "dtype", "device"})
# Those of a cache: its layers, and how it grows and where its layers wait between uses.
_CACHE_STATE = frozenset(
    {"layers", "layer_class_to_replicate", "offloading", "only_non_sliding", "prefetch_stream"}
)
_ABSENT = object()


def cache_layers(cache: Any) -> list[LayerTensors]:
    """Returns the tensors of `cache`, layer by layer, none of them copied.

    Accepts an object of exactly `transformers.DynamicCache` with layers of exactly `DynamicLayer`,
    and a plain object of no Transformers class with a list `layers` of objects that hold `keys` and
    `values` and nothing else. Raises kvcache.UnsupportedCacheError for every other object, and for
    layers that hold no tokens, tensors that are not plain, and shapes or dtypes that differ.
    """
    raw_layers = _raw_layers(cache)
    layers = [_layer_tensors(index, layer) for index, layer in enumerate(raw_layers)]
    first = layers[0].keys
    for index, layer in enumerate(layers):
        if layer.keys.shape != first.shape:
            raise _refusal(
                f"layer {index} of the cache: its tensors must have the same shape as layer 0, "
                f"{_shape(first)}; they have {_shape(layer.keys)}",
                expected=_shape(first),
                found=_shape(layer.keys),
            )
        if layer.keys.dtype != first.dtype:
            raise _refusal(
                f"layer {index} of the cache: its tensors must have the same dtype as layer 0, "
                f"{first.dtype}; they have {layer.keys.dtype}",
                expected=str(first.dtype),
                found=str(layer.keys.dtype),
            )
    if first.dtype not in TORCH_TO_KVC:
        raise _refusal(
            f"unsupported torch cache dtype: {first.dtype}; KVC1 stores float16, bfloat16, "
            "float32, int8 and uint8",
            found=str(first.dtype),
        )
    return layers


def _raw_layers(cache: Any) -> list[Any]:
    """Returns the layer objects of a cache whose own class is acceptable."""
    if isinstance(cache, Cache) and type(cache) is not DynamicCache:
        raise _refusal(
            f"the cache is a {_class(cache)}, of which a KVC1 file would lose "
            f"{_lost(cache, _LOST_WITH_CACHE)}",
            expected=_name(DynamicCache),
            found=_class(cache),
        )
    if isinstance(cache, (list, tuple)) or hasattr(cache, "key_cache"):
        raise _refusal(
            f"the cache is a {_class(cache)} in the form of Transformers 4.53 and older; make a "
            "DynamicCache of it with a later Transformers: DynamicCache(list of (keys, values))",
            expected=_name(DynamicCache),
            found=_class(cache),
        )
    raw_layers = getattr(cache, "layers", None)
    if not isinstance(raw_layers, (list, tuple)) or not raw_layers:
        raise _refusal(
            f"the dynamic cache must expose at least one layer in `layers`; this {_class(cache)} "
            "has none. Run the model once, with use_cache=True, before saving",
            found=_class(cache),
        )
    if type(cache) is not DynamicCache:
        _require_known_state("the cache", cache, _CACHE_STATE, None)
    return list(raw_layers)


def _layer_tensors(index: int, layer: Any) -> LayerTensors:
    """Returns the tensors of one layer, or refuses the layer."""
    where = f"layer {index} of the cache"
    plain = type(layer) is DynamicLayer
    if not plain and _is_transformers_layer(layer):
        raise _refusal(
            f"{where} is a {_class(layer)}, of which a KVC1 file would lose "
            f"{_lost(layer, _LOST_WITH_LAYER)}",
            expected=_name(DynamicLayer),
            found=_class(layer),
        )
    keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
    if plain and (keys is None or not layer.is_initialized):
        raise _refusal(
            f"{where} holds no tokens: it was never filled. Run the model once, with "
            "use_cache=True, before saving"
        )
    if not isinstance(keys, torch.Tensor) or not isinstance(values, torch.Tensor):
        raise _refusal(
            f"{where}, a {_class(layer)}, must expose key and value tensors in `keys` and "
            f"`values`; they are a {_class(keys)} and a {_class(values)}"
        )
    _require_known_state(where, layer, _LAYER_STATE, _new_layer() if plain else None)
    _require_plain_tensor(f"{where}: its tensor `keys`", keys)
    _require_plain_tensor(f"{where}: its tensor `values`", values)
    _require_geometry(where, keys, values)
    return LayerTensors(keys, values)


def _require_geometry(where: str, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Refuses a layer whose tensors do not have one shape of four dimensions, or hold no tokens."""
    if keys.numel() == 0 or values.numel() == 0:
        raise _refusal(
            f"{where} holds no tokens: its tensors have the shapes {_shape(keys)} and "
            f"{_shape(values)}. Run the model once, with use_cache=True, before saving"
        )
    if keys.shape != values.shape:
        raise _refusal(
            f"{where}: its key and value tensors must have the same shape; they have "
            f"{_shape(keys)} and {_shape(values)}, as models with latent attention (DeepSeek) "
            "make them",
            expected=_shape(keys),
            found=_shape(values),
        )
    if keys.dtype != values.dtype:
        raise _refusal(
            f"{where}: its key and value tensors must have the same dtype; they have {keys.dtype} "
            f"and {values.dtype}",
            expected=str(keys.dtype),
            found=str(values.dtype),
        )
    if keys.ndim != 4:
        raise _refusal(
            f"{where}: its tensors must have [batch, heads, sequence, head_dim] shape; they have "
            f"{_shape(keys)}",
            found=_shape(keys),
        )


def _require_plain_tensor(where: str, tensor: torch.Tensor) -> None:
    """Refuses tensors whose bytes are not simply the values that they stand for."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise _refusal(
            f"{where} is a {_class(tensor)}; only plain tensors can be stored. Turn it into one "
            "first: gather a distributed tensor, dequantise a quantised one",
            expected="torch.Tensor",
            found=_class(tensor),
        )
    if tensor.device.type == "meta":
        raise _refusal(f"{where} lies on the meta device and has no values", found="meta")
    if tensor.layout != torch.strided:
        raise _refusal(
            f"{where} has the layout {tensor.layout}; only dense tensors can be stored. Turn it "
            "into one first with .to_dense()",
            expected=str(torch.strided),
            found=str(tensor.layout),
        )


def _require_known_state(where: str, owner: Any, known: frozenset[str], fresh: Any) -> None:
    """Refuses an object with instance attributes that a restored one would not have.

    `fresh` is a new object of the same class, or None: what it has from its making is no state.
    """
    for name in sorted(set(_state_names(owner)) - known):
        if fresh is not None and getattr(fresh, name, _ABSENT) is getattr(owner, name, None):
            continue
        raise _refusal(
            f"{where}, a {_class(owner)}, has an attribute `{name}`, which has no place in a KVC1 "
            "file; if it is not needed to go on, delete it before saving",
            found=name,
        )


def _state_names(owner: Any) -> Iterator[str]:
    """Yields the names of everything that an object holds, wherever its class keeps it."""
    yield from getattr(owner, "__dict__", ())
    yield from getattr(type(owner), "_fields", ())
    for base in type(owner).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(owner, name):
                yield name


def _new_layer() -> DynamicLayer:
    return DynamicLayer()  # type: ignore[no-untyped-call]


def _lost(owner: object, table: Mapping[str, str]) -> str:
    """Returns what would be lost of an object, going by the nearest of its classes in `table`."""
    names = (base.__name__ for base in type(owner).__mro__)
    return next((table[name] for name in names if name in table), _LOST_WITH_UNKNOWN)


def _is_transformers_layer(layer: Any) -> bool:
    """Whether an object is a layer of any Transformers cache, linear attention included."""
    return isinstance(layer, CacheLayerMixin) or any(
        base.__module__.partition(".")[0] == "transformers" for base in type(layer).__mro__
    )


def _refusal(
    reason: str, *, expected: str | None = None, found: str | None = None
) -> kvcache.UnsupportedCacheError:
    error = kvcache.UnsupportedCacheError(f"cannot store this cache: {reason}. {_ADVICE}")
    error.expected = expected
    error.found = found
    return error


def _class(value: object) -> str:
    return _name(type(value))


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _shape(tensor: torch.Tensor) -> str:
    return str(list(tensor.shape))
