# wrapper.py: whole caches: a list of layers, or the two caches of an encoder-decoder model.
# SPDX-License-Identifier: Apache-2.0
"""DynamicCache, StaticCache, QuantizedCache, and EncoderDecoderCache of two of them.

Offloading is a choice of the process that runs a model: it is not stored, and what was offloaded
comes back on the device that the reader asks for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import cache_utils
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache

from torch_kvcache.kinds import describe
from torch_kvcache.kinds.record import (
    LayerRecord,
    class_name,
    refuse_load,
    refuse_save,
    require_known_attributes,
)

_PLAIN = ("DynamicCache", "StaticCache", "QuantizedCache")
_WRAPPER = "EncoderDecoderCache"
# Gemma 3n leaves `shared_layers` behind in Transformers 4; each step writes it before it reads it.
CACHE_STATE = frozenset(
    {
        *("layers", "layer_class_to_replicate", "offloading", "only_non_sliding"),
        *("prefetch_stream", "shared_layers"),
    }
)
_WRAPPER_STATE = frozenset({"self_attention_cache", "cross_attention_cache", "is_updated"})
_LOST = {
    "MtpCache": "the shift of each layer's positions",
    "DFlashCache": "the number of tokens accepted last",
    "MiniMaxCache": "the states of its linear attention",
    "SlidingWindowCache": "nothing, but is a deprecated name of StaticCache",
}
_LOST_OF_MODEL = "the states that this class of one model's own keeps"
_LOST_OF_UNKNOWN = "whatever it holds beyond the classes that this version knows"
_KNOWN = (
    "Stored are DynamicCache, StaticCache, QuantizedCache, and EncoderDecoderCache of these; "
    "Transformers 5.14 and later use them for most models that had a cache class of their own. For "
    "others keep the token ids and prefill again."
)


@dataclass
class CacheRecord:
    """What a file says about a whole cache."""

    class_name: str
    """`DynamicCache`, or with a wrapper `EncoderDecoderCache[DynamicCache,DynamicCache]`."""
    wrapper: str
    """`none` or `encoder_decoder`."""
    own: list[LayerRecord]
    """The layers of the cache, or of the wrapper's self-attention cache."""
    cross: list[LayerRecord]
    """The layers of the wrapper's cross-attention cache; empty without a wrapper."""

    def layers(self) -> Iterator[tuple[str, int, LayerRecord]]:
        """Yields all layers in the order of a file: (`self` or `cross`, number, record)."""
        for cache, records in (("self", self.own), ("cross", self.cross)):
            for number, record in enumerate(records):
                yield cache, number, record


def describe_cache(cache: Any) -> CacheRecord:
    """Returns the record of a cache; its tensors are the cache's own, none of them copied.

    Raises kvcache.UnsupportedCacheError for a cache, or a layer, that a file would not hold whole.
    """
    if type(cache) is EncoderDecoderCache:
        require_known_attributes("the cache", cache, _WRAPPER_STATE | CACHE_STATE)
        halves = (cache.self_attention_cache, cache.cross_attention_cache)
        names = [_plain_name(half) for half in halves]
        own, cross = _layers("layer", halves[0]), _layers("cross layer", halves[1])
        _add_updated(cache.is_updated, cross)
        record = CacheRecord(f"{_WRAPPER}[{','.join(names)}]", "encoder_decoder", own, cross)
    else:
        record = CacheRecord(_plain_name(cache), "none", _layers("layer", cache), [])
    if not record.own:
        raise refuse_save(
            f"the {class_name(cache)} has no layers yet",
            "Run the model once, with use_cache=True, before saving.",
        )
    return record


def _plain_name(cache: Any) -> str:
    """Returns the name of a cache of layers, or refuses its class."""
    name = type(cache).__name__
    if name not in _PLAIN or type(cache) is not getattr(cache_utils, name):
        raise refuse_save(
            f"the cache is a {class_name(cache)}, of which a KVC1 file would lose {_lost(cache)}",
            _KNOWN,
            found=class_name(cache),
        )
    require_known_attributes("the cache", cache, CACHE_STATE)
    return name


def _lost(cache: Any) -> str:
    """Returns what would be lost of a cache, going by the nearest of its classes in the table."""
    names = (base.__name__ for base in type(cache).__mro__)
    unknown = _LOST_OF_MODEL if from_model(cache) else _LOST_OF_UNKNOWN
    return next((_LOST[name] for name in names if name in _LOST), unknown)


def from_model(cache: Any) -> bool:
    """Whether a cache's class is one model's own, as those of state spaces in Transformers 4."""
    return type(cache).__module__.startswith("transformers.models.")


def _layers(what: str, cache: Any) -> list[LayerRecord]:
    return [
        describe(f"{what} {number} of the cache", layer)
        for number, layer in enumerate(cache.layers)
    ]


def _add_updated(updated: Any, cross: Sequence[LayerRecord]) -> None:
    """Adds to cross-attention layers whether the model has filled them from its encoder."""
    if not isinstance(updated, dict) or not set(updated) <= set(range(len(cross))):
        raise refuse_save(
            f"`is_updated` of the cache names layers that its cross-attention cache of "
            f"{len(cross)} layers does not have: {sorted(updated)}",
            "Run the model once, with use_cache=True, before saving.",
        )
    for number, value in updated.items():
        cross[number].flags["is_updated"] = bool(value)


def require_cache(record: CacheRecord) -> None:
    """Refuses the record of a cache that this version cannot make."""
    known = dict.fromkeys(_PLAIN, "none") | {
        f"{_WRAPPER}[{own},{cross}]": "encoder_decoder" for own in _PLAIN for cross in _PLAIN
    }
    if known.get(record.class_name) != record.wrapper:
        raise refuse_load(
            f"it is a {record.class_name!r} with the wrapper {record.wrapper!r}, which this "
            "version of torch_kvcache does not make",
            "Use a later version.",
            found=record.class_name,
        )


def take_updated(record: CacheRecord) -> dict[int, bool]:
    """Returns which layers of the cross-attention cache are filled, and takes their flags away."""
    updated = {}
    for number, layer in enumerate(record.cross):
        if "is_updated" in layer.flags:
            value = layer.flags.pop("is_updated")
            if not isinstance(value, bool):
                raise refuse_load(f"cross layer {number}: `is_updated` is {value!r}", _KNOWN)
            updated[number] = value
    return updated


def rebuild_cache(
    record: CacheRecord, own: list[Any], cross: list[Any], updated: dict[int, bool]
) -> Any:
    """Returns the cache of a record, made of its layers."""
    if record.wrapper == "none":
        return _plain_cache(record.class_name, own)
    names = record.class_name.removeprefix(f"{_WRAPPER}[").removesuffix("]").split(",")
    whole: Any = EncoderDecoderCache(_plain_cache(names[0], own), _plain_cache(names[1], cross))
    # What the constructor found out by the lengths is not always what the model had said.
    whole.is_updated = updated
    return whole


def _plain_cache(name: str, layers: list[Any]) -> Any:
    """Returns a cache of layers; no constructor but DynamicCache's works without a config."""
    if name == "DynamicCache":
        cache: Any = DynamicCache()
        if layers:
            # A cache that has its layers does not grow more of them, as one made from a config.
            cache.layer_class_to_replicate = None
            cache.layers = layers
        return cache
    kind = getattr(cache_utils, name)
    cache = kind.__new__(kind)
    Cache.__init__(cache, layers=layers)
    return cache
