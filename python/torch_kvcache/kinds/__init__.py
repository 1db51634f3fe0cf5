# __init__.py: the kinds of layers that this version stores, by the names of their classes.
# SPDX-License-Identifier: Apache-2.0
"""One table says which classes are known. A layer is looked up in it by its exact class, and a name
in a file by itself; a file never chooses what is imported."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import transformers
from transformers import cache_utils

from torch_kvcache.kinds.full import (
    describe_full,
    describe_indexed,
    describe_sliding,
    rebuild_full,
    rebuild_indexed,
    rebuild_sliding,
)
from torch_kvcache.kinds.linear import (
    describe_linear,
    describe_linear_full,
    describe_linear_sliding,
    describe_linear_static,
    describe_linear_static_sliding,
    rebuild_linear,
    rebuild_linear_full,
    rebuild_linear_sliding,
    rebuild_linear_static,
    rebuild_linear_static_sliding,
)
from torch_kvcache.kinds.quantized import (
    describe_hqq,
    describe_quanto,
    rebuild_hqq,
    rebuild_quanto,
)
from torch_kvcache.kinds.record import (
    Describe,
    LayerRecord,
    Rebuild,
    Tensors,
    class_name,
    refuse_load,
    refuse_save,
)
from torch_kvcache.kinds.static import (
    describe_static,
    describe_static_indexed,
    describe_static_sliding,
    rebuild_static,
    rebuild_static_indexed,
    rebuild_static_sliding,
)


class Family(NamedTuple):
    """How layers of one class go into a file and come back."""

    kinds: tuple[str, ...]
    """The kinds of docs/FORMAT.md that the class stands for."""
    describe: Describe
    rebuild: Rebuild


FAMILIES: Mapping[str, Family] = {
    "DynamicLayer": Family(("full",), describe_full, rebuild_full),
    "DynamicSlidingWindowLayer": Family(("sliding", "chunked"), describe_sliding, rebuild_sliding),
    "DynamicIndexedLayer": Family(("indexed",), describe_indexed, rebuild_indexed),
    "StaticLayer": Family(("static",), describe_static, rebuild_static),
    "StaticSlidingWindowLayer": Family(
        ("static_sliding",), describe_static_sliding, rebuild_static_sliding
    ),
    "StaticIndexedLayer": Family(
        ("static_indexed",), describe_static_indexed, rebuild_static_indexed
    ),
    "LinearAttentionLayer": Family(("linear",), describe_linear, rebuild_linear),
    "LinearAttentionAndFullAttentionLayer": Family(
        ("linear_full",), describe_linear_full, rebuild_linear_full
    ),
    "LinearAttentionAndSlidingWindowAttentionLayer": Family(
        ("linear_sliding",), describe_linear_sliding, rebuild_linear_sliding
    ),
    "LinearAttentionAndStaticFullAttentionLayer": Family(
        ("linear_static",), describe_linear_static, rebuild_linear_static
    ),
    "LinearAttentionAndStaticSlidingWindowAttentionLayer": Family(
        ("linear_static_sliding",), describe_linear_static_sliding, rebuild_linear_static_sliding
    ),
    "QuantoQuantizedLayer": Family(("quantized",), describe_quanto, rebuild_quanto),
    "HQQQuantizedLayer": Family(("quantized",), describe_hqq, rebuild_hqq),
}

# What a file would lose of classes that are not stored, by their own names.
_LOST = {
    "DeepseekV4HCACache": "its compressed keys, its buffers and their counts",
    "DeepseekV4CSACache": "its compressed keys, its buffers and their counts",
    "MiniMaxM3VLSparseCacheLayer": "its index keys",
    "MiniMaxM3VLSparseStaticCacheLayer": "its index keys and how much of them is filled",
    "SlidingWindowLayer": "nothing, but is a deprecated name of StaticSlidingWindowLayer",
    "ChunkedSlidingLayer": "nothing, but is a deprecated name of StaticSlidingWindowLayer",
    "QuantizedLayer": "how its tokens are packed",
}
_LOST_OF_UNKNOWN = "whatever it holds beyond the classes that this version knows"
_ADVICE = "Keep the token ids and prefill again."


def describe(where: str, layer: Any) -> LayerRecord:
    """Returns the record of a layer of a known class; the record's tensors are the layer's own.

    `where` names the layer in messages. Raises kvcache.UnsupportedCacheError for a layer of any
    other class, for a subclass, and for a layer that holds more than its class does, or less.
    """
    name = type(layer).__name__
    family = FAMILIES.get(name)
    if family is None or type(layer) is not getattr(cache_utils, name, None):
        raise refuse_save(
            f"{where} is a {class_name(layer)}, of which a KVC1 file would lose {_lost(layer)}",
            _ADVICE,
            found=class_name(layer),
        )
    return family.describe(where, layer)


def _lost(layer: Any) -> str:
    """Returns what would be lost of a layer, going by the nearest of its classes in the table."""
    names = (base.__name__ for base in type(layer).__mro__)
    return next((_LOST[name] for name in names if name in _LOST), _LOST_OF_UNKNOWN)


def require_class(where: str, record: LayerRecord) -> Family:
    """Returns how to make the layer of a record, or refuses a class that there is not here."""
    family = FAMILIES.get(record.class_name)
    if family is None or record.kind not in family.kinds:
        raise refuse_load(
            f"{where} is a {record.class_name!r} of kind {record.kind!r}, which this version of "
            "torch_kvcache does not make",
            "Use a later version.",
            found=record.class_name,
        )
    if not hasattr(cache_utils, record.class_name):
        raise refuse_load(
            f"{where} is a {record.class_name}, which Transformers {transformers.__version__} does "
            "not have",
            "Use the version of Transformers that the file was written with, or a later one.",
            found=record.class_name,
        )
    return family


def rebuild(where: str, record: LayerRecord, tensors: Tensors, device: torch.device) -> Any:
    """Returns the layer of a record on a device.

    Raises kvcache.UnsupportedCacheError where flags, shapes and lengths do not make such a layer.
    """
    return require_class(where, record).rebuild(where, record, tensors, device)
