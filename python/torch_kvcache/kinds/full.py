# full.py: layers that grow: full attention, sliding windows, indexed attention.
# SPDX-License-Identifier: Apache-2.0
"""DynamicLayer, DynamicSlidingWindowLayer and DynamicIndexedLayer.

Keys and values are [batch, heads, tokens, head_dim]; the size of a head may differ between keys and
values. A window of w keeps the last w - 1 tokens, and counts all that it has seen."""

import inspect
from typing import Any

import torch
from transformers import cache_utils

from torch_kvcache.kinds.record import (
    KEY_VALUE_AXES,
    NO_AXES,
    PREFILL_AGAIN,
    REPORT,
    Flags,
    LayerRecord,
    Part,
    Stored,
    Tensors,
    class_name,
    refuse_load,
    refuse_save,
    require_known_attributes,
    require_plain,
    same_place,
    shape_of,
)

BASE = frozenset({"keys", "values", "is_initialized", "dtype", "device"})
SLIDING = BASE | {"sliding_window", "cumulative_length", "_sliding_window_tensor", "record_past"}
INDEXER = frozenset({"indexer_keys", "is_indexer_initialized", "indexer_dtype", "indexer_device"})
INDEXER_AXES = ("batch", "sequence", "head_dim")

# Transformers 4 makes both buffers of a layer from the keys alone.
_PARAMETERS = inspect.signature(cache_utils.DynamicLayer.lazy_initialization).parameters
INITIALISED_BY_KEYS_ALONE = len(_PARAMETERS) == 2
RECORDS_PAST = hasattr(cache_utils.DynamicSlidingWindowLayer, "activate_past_recording")


def initialise(layer: Any, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Lets a layer set itself up for tensors like these, as its first `update` would."""
    if INITIALISED_BY_KEYS_ALONE:
        layer.lazy_initialization(keys)
    else:
        layer.lazy_initialization(keys, values)


# ---- From layers -------------------------------------------------------------------------------


def describe_full(where: str, layer: Any) -> LayerRecord:
    """Returns the record of a DynamicLayer."""
    require_known_attributes(where, layer, BASE)
    return attention_record(where, layer, "full")


def describe_sliding(where: str, layer: Any) -> LayerRecord:
    """Returns the record of a DynamicSlidingWindowLayer."""
    require_known_attributes(where, layer, SLIDING)
    record = attention_record(where, layer, "sliding")
    add_window(where, layer, record)
    return record


def describe_indexed(where: str, layer: Any) -> LayerRecord:
    """Returns the record of a DynamicIndexedLayer."""
    require_known_attributes(where, layer, BASE | INDEXER)
    record = attention_record(where, layer, "indexed")
    if layer.is_indexer_initialized:
        tensor = require_plain(f"{where}: its tensor `indexer_keys`", layer.indexer_keys)
        axes = _axes_of(where, "indexer_keys", tensor, INDEXER_AXES)
        record.parts.append(Part("indexer_key", axes, tensor))
        if record.state != "filled" and tensor.numel():
            raise refuse_save(f"{where} has indexer keys and no keys", PREFILL_AGAIN)
    return record


def attention_record(where: str, layer: Any, kind: str) -> LayerRecord:
    """Returns the record of a layer's keys and values, whatever else the layer holds."""
    record = LayerRecord(type(layer).__name__, kind, "uninitialized", positions_seen=0)
    if not layer.is_initialized:
        if layer.keys is not None or layer.values is not None:
            raise refuse_save(
                f"{where}, a {class_name(layer)}, holds tensors and says that it was never "
                "initialised",
                "Set them to None, or `is_initialized` to True.",
            )
        return record
    keys = require_plain(f"{where}: its tensor `keys`", layer.keys)
    values = require_plain(f"{where}: its tensor `values`", layer.values)
    record.state = "filled" if keys.numel() or values.numel() else "empty"
    if record.state == "filled":
        _require_attention_shapes(where, keys, values)
        record.stored_tokens = record.positions_seen = keys.shape[2]
        record.parts.append(Part("key", KEY_VALUE_AXES, keys))
        if same_place(keys, values):
            record.aliases = {"value": "key"}
        else:
            record.parts.append(Part("value", KEY_VALUE_AXES, values))
    else:
        for role, tensor in (("key", keys), ("value", values)):
            axes = _axes_of(where, f"{role}s", tensor, KEY_VALUE_AXES)
            record.parts.append(Part(role, axes, tensor))
    return record


def add_window(where: str, layer: Any, record: LayerRecord) -> None:
    """Adds a sliding layer's window and position, or refuses tensors that do not fit them."""
    window, seen = int(layer.sliding_window), int(layer.cumulative_length)
    past = bool(getattr(layer, "record_past", False))
    record.window = window
    record.flags["record_past"] = past
    stored = record.stored_tokens
    record.positions_seen = seen
    # A window of one token keeps everything: [-1 + 1:] is the whole.
    least = min(seen, window - 1) if window > 1 else seen
    if not (least <= stored <= seen) or (stored > least and not past):
        raise refuse_save(
            f"{where}, a {class_name(layer)} with a window of {window}, says that it has seen "
            f"{seen} tokens and holds {stored}; going on from it needs {least}",
            "The cache was changed by hand or reset; fill it anew.",
            expected=str(least),
            found=str(stored),
        )


def _axes_of(where: str, name: str, tensor: torch.Tensor, full: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the names of a tensor's dimensions: `full`, or those of one without a shape yet."""
    if tensor.ndim == len(full):
        return full
    if tensor.ndim == 1 and tensor.numel() == 0:
        return NO_AXES
    raise refuse_save(
        f"{where}: its tensor `{name}` must have [{', '.join(full)}] shape; it has "
        f"{shape_of(tensor)}",
        PREFILL_AGAIN,
        found=shape_of(tensor),
    )


def _require_attention_shapes(where: str, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Refuses filled tensors that are not [batch, heads, tokens, head_dim] of as many tokens."""
    if keys.ndim != 4 or values.ndim != 4 or keys.shape[0] != values.shape[0]:
        problem = "must have [batch, heads, tokens, head_dim] shape"
    elif keys.shape[2] != values.shape[2]:
        problem = "must hold as many tokens"
    else:
        return
    raise refuse_save(
        f"{where}: its tensors `keys` and `values` {problem}; they have {shape_of(keys)} and "
        f"{shape_of(values)}",
        PREFILL_AGAIN,
        expected=shape_of(keys),
        found=shape_of(values),
    )


# ---- To layers ---------------------------------------------------------------------------------


def rebuild_full(where: str, record: LayerRecord, tensors: Tensors, device: torch.device) -> Any:
    """Returns a DynamicLayer on the tensors; on the CPU they are used where they lie."""
    layer: Any = cache_utils.DynamicLayer()  # type: ignore[no-untyped-call]
    Flags(where, record.flags).close()
    give_attention(where, layer, record, tensors, device)
    return layer


def rebuild_sliding(where: str, record: LayerRecord, tensors: Tensors, device: torch.device) -> Any:
    """Returns a DynamicSlidingWindowLayer; a chunk is a window with another mask."""
    layer: Any = cache_utils.DynamicSlidingWindowLayer(sliding_window=record.window or 1)
    flags = Flags(where, record.flags)
    give_window(where, layer, record, flags)
    flags.close()
    give_attention(where, layer, record, tensors, device)
    return layer


def rebuild_indexed(where: str, record: LayerRecord, tensors: Tensors, device: torch.device) -> Any:
    """Returns a DynamicIndexedLayer."""
    layer: Any = cache_utils.DynamicIndexedLayer()  # type: ignore[no-untyped-call]
    Flags(where, record.flags).close()
    give_attention(where, layer, record, tensors, device)
    stored = tensors.get(("indexer_key", 0))
    if stored is not None:
        keys = take(where, "indexer_key", stored, INDEXER_AXES).to(device)
        layer.lazy_initialization_indexer(keys)
        layer.indexer_keys = keys
    return layer


def give_attention(
    where: str, layer: Any, record: LayerRecord, tensors: Tensors, device: torch.device
) -> None:
    """Sets a new layer's keys and values by assignment: `update` would copy them, and count them.

    Does nothing where there are none, as in a layer that was never initialised.
    """
    keys, values = taken_attention(where, record, tensors)
    if keys is None or values is None:
        return
    tied = keys is values
    keys = keys.to(device)
    values = keys if tied else values.to(device)
    initialise(layer, keys, values)
    layer.keys, layer.values = keys, values


def taken_attention(
    where: str, record: LayerRecord, tensors: Tensors
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Returns keys and values on the CPU, one object where the file says so; or None and None."""
    if not set(record.aliases.items()) <= {("value", "key")}:
        raise refuse_load(f"{where} has the aliases {record.aliases}", REPORT)
    if ("key", 0) not in tensors:
        return None, None
    keys = take(where, "key", tensors["key", 0], KEY_VALUE_AXES)
    if "value" in record.aliases:
        return keys, keys
    if ("value", 0) not in tensors:
        raise refuse_load(f"{where} has keys and no values", REPORT)
    return keys, take(where, "value", tensors["value", 0], KEY_VALUE_AXES)


def take(where: str, role: str, stored: Stored, axes: tuple[str, ...]) -> torch.Tensor:
    """Returns a stored tensor whose axes are these, or which has no elements and one axis."""
    if stored.axes != axes and not (stored.tensor.ndim == 1 and stored.tensor.numel() == 0):
        raise refuse_load(
            f"{where}: its tensor `{role}` has the axes {list(stored.axes)}; this version of "
            f"torch_kvcache makes layers of {list(axes)}",
            REPORT,
        )
    return stored.tensor


def give_window(where: str, layer: Any, record: LayerRecord, flags: Flags) -> None:
    """Sets a sliding layer's position and what it keeps, or refuses what does not fit."""
    window, seen, stored = record.window or 1, record.positions_seen or 0, record.stored_tokens
    past = flags.boolean("record_past")
    least = min(seen, window - 1) if window > 1 else seen
    if not (least <= stored <= seen) or (stored > least and not past):
        raise refuse_load(
            f"{where} has a window of {window}, has seen {seen} tokens and holds {stored}; going "
            f"on from it needs {least}",
            REPORT,
        )
    if past and not RECORDS_PAST:
        raise refuse_load(
            f"{where} keeps tokens beyond its window, which sliding layers of this version of "
            "Transformers do not",
            "Use a later version of Transformers.",
        )
    if RECORDS_PAST:
        layer.record_past = past
    layer.cumulative_length = seen
