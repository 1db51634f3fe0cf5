# static.py: layers of a fixed length, allocated before they are filled.
# SPDX-License-Identifier: Apache-2.0
"""StaticLayer, StaticSlidingWindowLayer and StaticIndexedLayer.

Only the tokens that a layer holds are stored. What is loaded is copied into buffers that the layer
allocates itself, since compiled graphs hold on to their addresses. Transformers 4 has no counter in
a StaticLayer and counts the rows of keys that are not zero."""

from typing import Any

import torch
from transformers import cache_utils

from torch_kvcache.kinds.full import (
    BASE,
    INDEXER,
    INDEXER_AXES,
    INITIALISED_BY_KEYS_ALONE,
    attention_record,
    initialise,
    take,
    taken_attention,
)
from torch_kvcache.kinds.record import (
    PREFILL_AGAIN,
    REPORT,
    Flags,
    LayerRecord,
    Part,
    Tensors,
    class_name,
    refuse_load,
    refuse_save,
    require_known_attributes,
    require_plain,
    shape_of,
)

STATIC = BASE | {
    *("max_cache_len", "cumulative_length", "batch_size", "max_batch_size", "num_heads"),
    *("head_dim", "k_head_dim", "v_head_dim"),
}
STATIC_SLIDING = STATIC | {"cumulative_length_int"}

# In Transformers 5 the position is a tensor, and sliding layers have an integer beside it.
COUNTS_IN_TENSOR = isinstance(
    getattr(cache_utils.StaticLayer(max_cache_len=1), "cumulative_length", None), torch.Tensor
)


# ---- From layers -------------------------------------------------------------------------------


def describe_static(where: str, layer: Any) -> LayerRecord:
    """Returns the record of a StaticLayer."""
    require_known_attributes(where, layer, STATIC)
    record = attention_record(where, layer, "static")
    cut_static(where, layer, record)
    return record


def describe_static_sliding(where: str, layer: Any) -> LayerRecord:
    """Returns the record of a StaticSlidingWindowLayer."""
    require_known_attributes(where, layer, STATIC_SLIDING)
    record = attention_record(where, layer, "static_sliding")
    cut_static_sliding(where, layer, record)
    return record


def describe_static_indexed(where: str, layer: Any) -> LayerRecord:
    """Returns the record of a StaticIndexedLayer."""
    require_known_attributes(where, layer, STATIC | INDEXER | {"indexer_cumulative_length"})
    record = attention_record(where, layer, "static_indexed")
    cut_static(where, layer, record)
    if layer.is_indexer_initialized:
        tensor = require_plain(f"{where}: its tensor `indexer_keys`", layer.indexer_keys)
        held = int(layer.indexer_cumulative_length)
        if tensor.ndim != 3 or not 0 <= held <= tensor.shape[1]:
            raise refuse_save(
                f"{where} says that {held} indexer keys are filled, and has {shape_of(tensor)}",
                PREFILL_AGAIN,
            )
        if held and record.state != "filled":
            raise refuse_save(f"{where} has indexer keys and no keys", PREFILL_AGAIN)
        record.parts.append(Part("indexer_key", INDEXER_AXES, tensor[:, :held]))
    return record


def cut_static(where: str, layer: Any, record: LayerRecord) -> None:
    """Reduces the record of a static layer's buffers to the tokens that they hold."""
    record.flags["max_cache_len"] = int(layer.max_cache_len)
    if record.state == "uninitialized":
        return
    seen = int(layer.cumulative_length if COUNTS_IN_TENSOR else layer.get_seq_length())
    if not COUNTS_IN_TENSOR and bool(layer.keys[:, :, seen:].any()):
        raise refuse_save(
            f"{where}: a row of its keys is zero, and this version of Transformers counts the rows "
            f"that are not: it says {seen} tokens, and there are keys after those",
            "Use a DynamicCache, or Transformers 5.",
        )
    _cut(where, layer, record, seen, seen)


def cut_static_sliding(where: str, layer: Any, record: LayerRecord) -> None:
    """Does so for a window, which when it is full holds its last tokens in their order."""
    record.window = int(layer.max_cache_len)
    record.flags["max_cache_len"] = int(layer.max_cache_len)
    seen = int(layer.cumulative_length_int if COUNTS_IN_TENSOR else layer.cumulative_length)
    # The tensor stops counting when the window is full.
    counted = int(layer.cumulative_length) if COUNTS_IN_TENSOR else min(seen, record.window)
    record.flags["cumulative_length"] = counted
    if record.state == "uninitialized":
        if seen or counted:
            raise refuse_save(f"{where} has seen {seen} tokens and holds none", PREFILL_AGAIN)
        return
    _cut(where, layer, record, min(seen, record.window), seen)


def _cut(where: str, layer: Any, record: LayerRecord, stored: int, seen: int) -> None:
    """Sets what a static layer holds, and keeps only that of its buffers."""
    longest = int(layer.max_cache_len)
    if any(part.tensor.ndim != 4 or part.tensor.shape[2] != longest for part in record.parts):
        shapes = [shape_of(part.tensor) for part in record.parts]
        raise refuse_save(
            f"{where}, a {class_name(layer)} of {longest} tokens, has tensors of {shapes}",
            PREFILL_AGAIN,
        )
    if not 0 <= stored <= longest or len({part.tensor.dtype for part in record.parts}) > 1:
        raise refuse_save(
            f"{where}, a {class_name(layer)} of {longest} tokens, says that it holds {stored}, in "
            f"{sorted({str(part.tensor.dtype) for part in record.parts})}",
            PREFILL_AGAIN,
        )
    if record.aliases:
        raise refuse_save(f"{where} has one buffer for keys and values", PREFILL_AGAIN)
    record.parts = [part._replace(tensor=part.tensor[:, :, :stored]) for part in record.parts]
    filled = stored and any(part.tensor.numel() for part in record.parts)
    record.state = "filled" if filled else "empty"
    record.stored_tokens = stored if filled else 0
    record.positions_seen = seen


# ---- To layers ---------------------------------------------------------------------------------


def rebuild_static(where: str, record: LayerRecord, tensors: Tensors, device: torch.device) -> Any:
    """Returns a StaticLayer with the tensors' values in buffers of its own."""
    flags = Flags(where, record.flags)
    layer: Any = cache_utils.StaticLayer(max_cache_len=flags.integer("max_cache_len", 1))
    flags.close()
    fill_static(where, layer, record, tensors, device)
    return layer


def rebuild_static_sliding(
    where: str, record: LayerRecord, tensors: Tensors, device: torch.device
) -> Any:
    """Returns a StaticSlidingWindowLayer likewise."""
    flags = Flags(where, record.flags)
    longest = flags.integer("max_cache_len", 1)
    layer: Any = cache_utils.StaticSlidingWindowLayer(
        max_cache_len=longest, sliding_window=record.window or longest
    )
    fill_static_sliding(where, layer, record, tensors, device, flags)
    flags.close()
    return layer


def rebuild_static_indexed(
    where: str, record: LayerRecord, tensors: Tensors, device: torch.device
) -> Any:
    """Returns a StaticIndexedLayer likewise."""
    flags = Flags(where, record.flags)
    layer: Any = cache_utils.StaticIndexedLayer(max_cache_len=flags.integer("max_cache_len", 1))
    flags.close()
    fill_static(where, layer, record, tensors, device)
    stored = tensors.get(("indexer_key", 0))
    if stored is not None:
        keys = take(where, "indexer_key", stored, INDEXER_AXES)
        if keys.ndim != 3 or keys.shape[1] > layer.max_cache_len:
            raise refuse_load(f"{where}: its indexer keys have {shape_of(keys)}", REPORT)
        layer.lazy_initialization_indexer(keys.to(device))
        layer.indexer_keys[:, : keys.shape[1]].copy_(keys)
        layer.indexer_cumulative_length.fill_(keys.shape[1])
    return layer


def fill_static(
    where: str, layer: Any, record: LayerRecord, tensors: Tensors, device: torch.device
) -> None:
    """Fills a static layer's own buffers, and sets its position."""
    if record.positions_seen != record.stored_tokens:
        raise refuse_load(
            f"{where} has seen {record.positions_seen} tokens and holds {record.stored_tokens}, "
            "which a static layer cannot",
            REPORT,
        )
    if not _fill(where, layer, record, tensors, device):
        return
    if COUNTS_IN_TENSOR:
        layer.cumulative_length.fill_(record.stored_tokens)
    elif int(layer.get_seq_length()) != record.stored_tokens:
        raise refuse_load(
            f"{where}: a row of its keys is zero, and this version of Transformers counts the rows "
            f"that are not: it would take {record.stored_tokens} tokens for "
            f"{int(layer.get_seq_length())}",
            "Use Transformers 5.",
        )


def fill_static_sliding(
    where: str,
    layer: Any,
    record: LayerRecord,
    tensors: Tensors,
    device: torch.device,
    flags: Flags,
) -> None:
    """Fills a window's own buffers, and sets its position and what its tensor counts."""
    seen = record.positions_seen or 0
    counted = flags.integer("cumulative_length", 0)
    window = int(layer.max_cache_len)
    if record.window != window or record.stored_tokens != min(seen, window):
        raise refuse_load(
            f"{where} has a window of {record.window} in a length of {layer.max_cache_len}, has "
            f"seen {seen} tokens and holds {record.stored_tokens}",
            REPORT,
        )
    _fill(where, layer, record, tensors, device)
    if COUNTS_IN_TENSOR:
        layer.cumulative_length_int = seen
        layer.cumulative_length.fill_(counted)
    else:
        layer.cumulative_length = seen


def _fill(
    where: str, layer: Any, record: LayerRecord, tensors: Tensors, device: torch.device
) -> bool:
    """Lets a layer allocate its buffers and copies the tensors there, if there are any."""
    keys, values = taken_attention(where, record, tensors)
    if keys is None or values is None:
        return False
    stored = record.stored_tokens
    like = keys.ndim == values.ndim == 4 and keys.dtype == values.dtype
    if not like or stored > layer.max_cache_len or keys is values:
        raise refuse_load(
            f"{where}: a static layer of {layer.max_cache_len} tokens cannot be made of tensors of "
            f"{shape_of(keys)} and {shape_of(values)}",
            REPORT,
        )
    if INITIALISED_BY_KEYS_ALONE and keys.shape[-1] != values.shape[-1]:
        raise refuse_load(
            f"{where}: its heads have {keys.shape[-1]} elements in keys and {values.shape[-1]} in "
            "values, and static layers of this version of Transformers have one size for both",
            "Use Transformers 5.",
        )
    # Tensors without tokens tell a layer all that it has to know, and cost nothing.
    initialise(layer, keys[:, :, :0].to(device), values[:, :, :0].to(device))
    layer.keys[:, :, :stored].copy_(keys)
    layer.values[:, :, :stored].copy_(values)
    return True
