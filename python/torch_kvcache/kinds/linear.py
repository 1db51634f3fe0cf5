# linear.py: layers of linear attention and state spaces, alone or beside attention.
# SPDX-License-Identifier: Apache-2.0
"""LinearAttentionLayer and its combinations with full, sliding and static attention.

A layer has one or more states, each a convolution's last inputs [batch, channels, kernel] and a
recurrent state [batch, …], which models update in place. What is loaded is copied into tensors that
the layer allocates itself. Transformers 5.14 was the first to number the states; other versions are
refused."""

from typing import Any

import torch
from transformers import cache_utils

from torch_kvcache.dtypes import DTYPE_NAMES
from torch_kvcache.kinds.full import (
    BASE,
    SLIDING,
    add_window,
    attention_record,
    give_attention,
    give_window,
)
from torch_kvcache.kinds.record import (
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
    shape_of,
)
from torch_kvcache.kinds.static import (
    STATIC,
    STATIC_SLIDING,
    cut_static,
    cut_static_sliding,
    fill_static,
    fill_static_sliding,
)

LINEAR = frozenset(
    {
        *("number_of_states", "conv_states", "recurrent_states", "is_conv_states_initialized"),
        *("is_recurrent_states_initialized", "has_previous_state", "conv_kernel_size"),
        *("device", "dtype", "record_past", "batch_size"),
    }
)
MOST_STATES = 256
_AXES = {
    ("conv_state", 3): ("batch", "channel", "kernel"),
    ("recurrent_state", 3): ("batch", "channel", "state"),
    ("recurrent_state", 4): ("batch", "head", "key_dim", "value_dim"),
}
_NUMBERED = "Use Transformers 5.14 or later."


# ---- From layers -------------------------------------------------------------------------------


def describe_linear(where: str, layer: Any) -> LayerRecord:
    """Returns the record of a LinearAttentionLayer; its position only the cache can tell."""
    require_known_attributes(where, layer, LINEAR)
    record = LayerRecord(type(layer).__name__, "linear", "uninitialized")
    _add_states(where, layer, record)
    if any(part.tensor.numel() for part in record.parts):
        record.state = "filled"
    elif record.parts:
        record.state = "empty"
    else:
        record.positions_seen = 0
    return record


def describe_linear_full(where: str, layer: Any) -> LayerRecord:
    """Returns the record of a LinearAttentionAndFullAttentionLayer."""
    require_known_attributes(where, layer, LINEAR | BASE)
    record = attention_record(where, layer, "linear_full")
    _join(where, layer, record)
    return record


def describe_linear_sliding(where: str, layer: Any) -> LayerRecord:
    """Returns the record of a LinearAttentionAndSlidingWindowAttentionLayer."""
    require_known_attributes(where, layer, LINEAR | SLIDING)
    record = attention_record(where, layer, "linear_sliding")
    add_window(where, layer, record)
    _join(where, layer, record)
    return record


def describe_linear_static(where: str, layer: Any) -> LayerRecord:
    """Returns the record of a LinearAttentionAndStaticFullAttentionLayer."""
    require_known_attributes(where, layer, LINEAR | STATIC)
    record = attention_record(where, layer, "linear_static")
    cut_static(where, layer, record)
    _join(where, layer, record)
    return record


def describe_linear_static_sliding(where: str, layer: Any) -> LayerRecord:
    """Returns the record of a LinearAttentionAndStaticSlidingWindowAttentionLayer."""
    require_known_attributes(where, layer, LINEAR | STATIC_SLIDING)
    record = attention_record(where, layer, "linear_static_sliding")
    cut_static_sliding(where, layer, record)
    _join(where, layer, record)
    return record


def _join(where: str, layer: Any, record: LayerRecord) -> None:
    """Adds the states of a layer to the record of its attention.

    A layer whose states are filled and whose attention is not has key and value of no elements, as
    the format asks for, and the flag `attention_state` says what they stand for.
    """
    attention = record.state
    record.flags["attention_state"] = attention
    keys_and_values = record.parts
    record.parts = []
    _add_states(where, layer, record)
    states = record.parts
    if any(part.tensor.numel() for part in states):
        record.state = "filled"
    elif states and attention == "uninitialized":
        record.state = "empty"
    if record.state == "filled" and attention == "uninitialized":
        nothing = torch.empty(0, dtype=torch.uint8)
        keys_and_values = [Part(role, ("sequence",), nothing) for role in ("key", "value")]
    if record.state == "filled" and attention == "empty":
        keys_and_values = [
            part._replace(axes=("sequence",)) if part.tensor.ndim == 1 else part
            for part in keys_and_values
        ]
    record.parts = keys_and_values + states


def _add_states(where: str, layer: Any, record: LayerRecord) -> None:
    """Adds the states of a layer to its record, with all that it knows about them."""
    count = layer.number_of_states
    numbered = isinstance(layer.conv_states, dict) and isinstance(layer.has_previous_state, dict)
    if not numbered or not 1 <= count <= MOST_STATES:
        raise refuse_save(
            f"{where}, a {class_name(layer)}, keeps its states otherwise than Transformers 5.14 "
            "and later",
            _NUMBERED,
        )
    record.flags |= {
        "number_of_states": int(count),
        "has_previous_state": [bool(layer.has_previous_state[index]) for index in range(count)],
        "conv_kernel_size": [_size(layer.conv_kernel_size[index]) for index in range(count)],
        "record_past": bool(layer.record_past),
        "dtype": None if layer.dtype is None else DTYPE_NAMES[layer.dtype],
    }
    for role, states, filled in (
        ("conv_state", layer.conv_states, layer.is_conv_states_initialized),
        ("recurrent_state", layer.recurrent_states, layer.is_recurrent_states_initialized),
    ):
        for index in range(count):
            if filled[index]:
                tensor = require_plain(f"{where}: its {role} {index}", states[index])
                axes = _AXES.get((role, tensor.ndim)) or _batch_axes(where, role, tensor)
                record.parts.append(Part(role, axes, tensor, index))
            elif states[index] is not None:
                raise refuse_save(
                    f"{where} has a {role} {index} that says that it was never initialised",
                    PREFILL_AGAIN,
                )
    _require_kernel(where, record)


def _size(value: Any) -> int | None:
    return None if value is None else int(value)


def _batch_axes(where: str, role: str, tensor: torch.Tensor) -> tuple[str, ...]:
    if tensor.ndim == 0:
        raise refuse_save(f"{where}: its {role} has no dimension for the batch", PREFILL_AGAIN)
    return ("batch", *(f"dim_{axis}" for axis in range(1, tensor.ndim)))


def _require_kernel(where: str, record: LayerRecord) -> None:
    """Refuses a convolution's state that is not as long as its kernel."""
    for part in record.parts:
        if part.role != "conv_state" or record.flags["record_past"]:
            continue
        kernel = record.flags["conv_kernel_size"][part.number]
        if part.tensor.shape[-1] != kernel:
            raise refuse_save(
                f"{where}: its conv_state {part.number} has {shape_of(part.tensor)}, and its "
                f"kernel {kernel}",
                PREFILL_AGAIN,
            )


# ---- To layers ---------------------------------------------------------------------------------


def rebuild_linear(where: str, record: LayerRecord, tensors: Tensors, device: torch.device) -> Any:
    """Returns a LinearAttentionLayer with the values in tensors of its own."""
    flags = Flags(where, record.flags)
    count = flags.integer("number_of_states", 1, MOST_STATES)
    layer: Any = cache_utils.LinearAttentionLayer(number_of_states=count)
    _give_states(where, layer, tensors, device, flags)
    flags.close()
    return layer


def rebuild_linear_full(
    where: str, record: LayerRecord, tensors: Tensors, device: torch.device
) -> Any:
    """Returns a LinearAttentionAndFullAttentionLayer."""
    flags = Flags(where, record.flags)
    count = flags.integer("number_of_states", 1, MOST_STATES)
    layer: Any = cache_utils.LinearAttentionAndFullAttentionLayer(number_of_states=count)
    give_attention(where, layer, record, _attention(flags, tensors), device)
    _give_states(where, layer, tensors, device, flags)
    flags.close()
    return layer


def rebuild_linear_sliding(
    where: str, record: LayerRecord, tensors: Tensors, device: torch.device
) -> Any:
    """Returns a LinearAttentionAndSlidingWindowAttentionLayer."""
    flags = Flags(where, record.flags)
    layer: Any = cache_utils.LinearAttentionAndSlidingWindowAttentionLayer(
        sliding_window=record.window or 1,
        number_of_states=flags.integer("number_of_states", 1, MOST_STATES),
    )
    # One attribute says for both parts of the layer whether they keep the past.
    past = Flags(where, {"record_past": record.flags.get("record_past")})
    give_window(where, layer, record, past)
    give_attention(where, layer, record, _attention(flags, tensors), device)
    _give_states(where, layer, tensors, device, flags)
    flags.close()
    return layer


def rebuild_linear_static(
    where: str, record: LayerRecord, tensors: Tensors, device: torch.device
) -> Any:
    """Returns a LinearAttentionAndStaticFullAttentionLayer."""
    flags = Flags(where, record.flags)
    layer: Any = cache_utils.LinearAttentionAndStaticFullAttentionLayer(
        max_cache_len=flags.integer("max_cache_len", 1),
        number_of_states=flags.integer("number_of_states", 1, MOST_STATES),
    )
    fill_static(where, layer, record, _attention(flags, tensors), device)
    _give_states(where, layer, tensors, device, flags)
    flags.close()
    return layer


def rebuild_linear_static_sliding(
    where: str, record: LayerRecord, tensors: Tensors, device: torch.device
) -> Any:
    """Returns a LinearAttentionAndStaticSlidingWindowAttentionLayer."""
    flags = Flags(where, record.flags)
    longest = flags.integer("max_cache_len", 1)
    layer: Any = cache_utils.LinearAttentionAndStaticSlidingWindowAttentionLayer(
        max_cache_len=longest,
        sliding_window=record.window or longest,
        number_of_states=flags.integer("number_of_states", 1, MOST_STATES),
    )
    fill_static_sliding(where, layer, record, _attention(flags, tensors), device, flags)
    _give_states(where, layer, tensors, device, flags)
    flags.close()
    return layer


def _attention(flags: Flags, tensors: Tensors) -> Tensors:
    """Returns the keys and values of a layer, without those that only fill the format's places."""
    state = flags.word("attention_state", ("uninitialized", "empty", "filled"))
    if state == "uninitialized":
        return {}
    return {place: tensors[place] for place in tensors if place[0] in ("key", "value")}


def _give_states(
    where: str, layer: Any, tensors: Tensors, device: torch.device, flags: Flags
) -> None:
    """Lets a layer allocate its states, copies the tensors into them, and sets what it knows.

    Without `has_previous_state` a model would take its next step for a prefill.
    """
    count = layer.number_of_states
    kernels = flags.optional_integers("conv_kernel_size", count)
    layer.record_past = flags.boolean("record_past")
    for (role, index), stored in tensors.items():
        if role not in ("conv_state", "recurrent_state"):
            continue
        if index >= count:
            raise refuse_load(f"{where} has {count} states, and a {role} {index}", REPORT)
        if role == "conv_state":
            _give_conv_state(where, layer, stored, index, kernels[index], device)
        else:
            like = torch.empty_like(stored.tensor, device=device)
            layer.lazy_initialization(recurrent_states=like, state_idx=index)
            layer.recurrent_states[index].copy_(stored.tensor)
    for index, previous in enumerate(flags.booleans("has_previous_state", count)):
        layer.has_previous_state[index] = previous
        layer.conv_kernel_size[index] = kernels[index]
    layer.dtype = flags.optional_dtype("dtype")
    layer.device = None if layer.dtype is None else device


def _give_conv_state(
    where: str,
    layer: Any,
    stored: Stored,
    index: int,
    kernel: int | None,
    device: torch.device,
) -> None:
    """Fills one convolution's state, [batch, channels, kernel] or longer where the past is kept."""
    tensor = stored.tensor
    if kernel is None or tensor.ndim < 2 or (tensor.shape[-1] != kernel and not layer.record_past):
        raise refuse_load(
            f"{where}: its conv_state {index} has {shape_of(tensor)}, and its kernel {kernel}",
            REPORT,
        )
    layer.lazy_initialization(
        conv_states=torch.empty_like(tensor, device=device),
        state_idx=index,
        conv_kernel_size=kernel,
    )
    if tensor.shape[-1] == kernel:
        layer.conv_states[index].copy_(tensor)
    else:
        # A copy in any case: what lies in the file's mapping would be written to in place.
        layer.conv_states[index] = tensor.to(device, copy=True)
