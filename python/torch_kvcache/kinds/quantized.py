# quantized.py: layers whose older tokens are quantised, by optimum-quanto or by HQQ.
# SPDX-License-Identifier: Apache-2.0
"""QuantoQuantizedLayer and HQQQuantizedLayer.

Such a layer holds its older tokens packed, several elements in a byte, and its latest ones, the
residual, as they are: `keys` alone is never the whole. Stored are the packed bytes, their scales
and zero points, and the residual; nothing is quantised or dequantised on the way."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from transformers import cache_utils

from torch_kvcache.dtypes import DTYPE_NAMES, DTYPES
from torch_kvcache.kinds.full import BASE, initialise
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
    shape_of,
)

_SETTINGS = ("nbits", "axis_key", "axis_value", "q_group_size", "residual_length")
_QUANTIZED = BASE | {*_SETTINGS, "cumulative_length", "_quantized_keys", "_quantized_values"}
_QUANTO = _QUANTIZED | {"qtype", "optimizer"}
_HQQ = _QUANTIZED | {"quantizer"}
_QUANTO_CODEC = "quanto"
_HQQ_CODEC = "hqq."
_HQQ_META = frozenset(
    {
        *("nbits", "group_size", "shape", "scale", "zero", "axis", "packing"),
        *("unpack_view_dtype", "view_as_float", "compute_dtype"),
    }
)
_HQQ_PACKINGS = ("8bit_u8", "4bit_u8", "3bit_32", "2bit_u8", "1bit_u8")


# ---- From layers -------------------------------------------------------------------------------


def describe_quanto(where: str, layer: Any) -> LayerRecord:
    """Returns the record of a QuantoQuantizedLayer."""
    require_known_attributes(where, layer, _QUANTO)
    record = _record(where, layer)
    if record.state == "filled":
        _add_quanto(where, record, "key", layer._quantized_keys)
        _add_quanto(where, record, "value", layer._quantized_values)
    return record


def describe_hqq(where: str, layer: Any) -> LayerRecord:
    """Returns the record of an HQQQuantizedLayer."""
    require_known_attributes(where, layer, _HQQ)
    record = _record(where, layer)
    if record.state == "filled":
        _add_hqq(where, record, "key", layer._quantized_keys)
        _add_hqq(where, record, "value", layer._quantized_values)
    return record


def _record(where: str, layer: Any) -> LayerRecord:
    """Returns the record of a quantised layer's settings, counter and residual."""
    seen = int(layer.cumulative_length)
    record = LayerRecord(
        type(layer).__name__, "quantized", "uninitialized", stored_tokens=seen, positions_seen=seen
    )
    group = layer.q_group_size
    record.flags = {name: int(getattr(layer, name)) for name in _SETTINGS if name[0] != "q"}
    record.flags["q_group_size"] = None if group is None else int(group)
    if not layer.is_initialized:
        # After a reset the old packed tokens are still there; the next update drops them unseen.
        record.stored_tokens = record.positions_seen = 0
        return record
    if not seen or not hasattr(layer, "_quantized_keys"):
        raise refuse_save(
            f"{where}, a {class_name(layer)}, says that it has seen {seen} tokens and has no "
            "quantised ones",
            PREFILL_AGAIN,
        )
    record.state = "filled"
    for role, tensor in (("key", layer.keys), ("value", layer.values)):
        tensor = require_plain(f"{where}: its residual {role}", tensor)
        axes = KEY_VALUE_AXES if tensor.ndim == 4 else NO_AXES
        if tensor.ndim != 4 and (tensor.ndim != 1 or tensor.numel()):
            raise refuse_save(f"{where}: its residual {role} has {shape_of(tensor)}", PREFILL_AGAIN)
        record.parts.append(Part(role, axes, tensor))
    return record


def _require_length(where: str, record: LayerRecord, side: str, shape: list[int]) -> None:
    """Refuses packed tokens that with the residual are not as many as the layer has seen."""
    residual = next(part.tensor for part in record.parts if part.role == side)
    count = (shape[2] if len(shape) == 4 else 0) + (residual.shape[2] if residual.ndim == 4 else 0)
    if count != record.positions_seen:
        raise refuse_save(
            f"{where} says that it has seen {record.positions_seen} tokens; its quantised {side} "
            f"and its residual hold {count}",
            PREFILL_AGAIN,
        )


def _add_quanto(where: str, record: LayerRecord, side: str, packed: Any) -> None:
    """Takes one of quanto's tensors apart: packed bytes, scales, and shifts."""
    from optimum.quanto.tensor.packed import PackedTensor
    from optimum.quanto.tensor.weights.qbits import WeightQBitsTensor

    if type(packed) is not WeightQBitsTensor or type(packed._data) is not PackedTensor:
        raise refuse_save(
            f"{where}: its quantised {side} is a {class_name(packed)}, whose packing this version "
            "does not know",
            PREFILL_AGAIN,
            expected=f"{WeightQBitsTensor.__module__}.{WeightQBitsTensor.__qualname__}",
            found=class_name(packed),
        )
    shape, group = list(packed.shape), packed._group_size
    _require_length(where, record, side, shape)
    if list(packed._data.shape) != _quanto_shape(shape, packed._axis, group):
        raise refuse_save(
            f"{where}: the elements of its quantised {side} have {shape_of(packed._data)}",
            PREFILL_AGAIN,
        )
    packing = {
        "axis": int(packed._axis),
        "bits": int(packed._data._bits),
        "codec": _QUANTO_CODEC,
        "dtype": "u8",
        "group_size": None if group is None else int(group),
        "scale": f"{side}_scale",
        "shape": shape,
        "zero": f"{side}_zero",
    }
    parts = (packed._data._data, packed._scale, packed._shift)
    _add_packed(where, record, side, parts, packing)


def _quanto_shape(shape: list[int], axis: int, group: int | None) -> list[int]:
    """Returns the shape in which quanto packs a tensor: along its first dimension."""
    if group is None:
        return shape
    groups = math.prod(shape) // group
    return [groups, group] if axis == 0 else [group, groups]


def _add_hqq(where: str, record: LayerRecord, side: str, packed: Any) -> None:
    """Takes one of HQQ's pairs apart: packed elements, scales, and zero points."""
    tensor, meta = packed
    unknown = set(meta) ^ _HQQ_META
    if unknown or meta["packing"] not in _HQQ_PACKINGS or meta["view_as_float"]:
        raise refuse_save(
            f"{where}: its quantised {side} is packed by HQQ as {meta.get('packing')!r}, with "
            f"settings that this version does not know: {sorted(unknown) or 'view_as_float'}",
            PREFILL_AGAIN,
        )
    shape = list(meta["shape"])
    _require_length(where, record, side, shape)
    record.flags[f"{side}_compute_dtype"] = DTYPE_NAMES[meta["compute_dtype"]]
    group = meta["group_size"]
    packing = {
        "axis": int(meta["axis"]),
        "bits": int(meta["nbits"]),
        "codec": f"{_HQQ_CODEC}{meta['packing']}",
        "dtype": DTYPE_NAMES[meta["unpack_view_dtype"]],
        "group_size": None if group is None else int(group),
        "scale": f"{side}_scale",
        "shape": shape,
        "zero": f"{side}_zero",
    }
    _add_packed(where, record, side, (tensor, meta["scale"], meta["zero"]), packing)


def _add_packed(
    where: str,
    record: LayerRecord,
    side: str,
    tensors: tuple[torch.Tensor, ...],
    packing: dict[str, Any],
) -> None:
    """Adds a packed tensor with its scales and zero points; groups lie as the codec has them."""
    groups_first = packing["axis"] == (1 if packing["codec"].startswith(_HQQ_CODEC) else 0)
    pair = ("group", "element") if groups_first else ("element", "group")
    for role, tensor in zip(
        (f"packed_{side}", f"{side}_scale", f"{side}_zero"), tensors, strict=True
    ):
        plain = require_plain(f"{where}: its {role}", tensor)
        axes = pair if plain.ndim == 2 else tuple(f"dim_{axis}" for axis in range(plain.ndim))
        of_part = packing if role == f"packed_{side}" else None
        record.parts.append(Part(role, axes, plain, packing=of_part))


# ---- To layers ---------------------------------------------------------------------------------


def rebuild_quanto(where: str, record: LayerRecord, tensors: Tensors, device: torch.device) -> Any:
    """Returns a QuantoQuantizedLayer on the packed bytes."""
    layer = _layer(where, record, cache_utils.QuantoQuantizedLayer, "optimum-quanto")
    if record.state == "filled":
        _give_residual(where, layer, tensors, device)
        layer._quantized_keys = _quanto_tensor(where, layer, "key", tensors, device)
        layer._quantized_values = _quanto_tensor(where, layer, "value", tensors, device)
    Flags(where, _others(record.flags)).close()
    return layer


def rebuild_hqq(where: str, record: LayerRecord, tensors: Tensors, device: torch.device) -> Any:
    """Returns an HQQQuantizedLayer on the packed elements."""
    layer = _layer(where, record, cache_utils.HQQQuantizedLayer, "hqq")
    flags = Flags(where, _others(record.flags))
    if record.state == "filled":
        _give_residual(where, layer, tensors, device)
        layer._quantized_keys = _hqq_pair(where, layer, "key", tensors, device, flags)
        layer._quantized_values = _hqq_pair(where, layer, "value", tensors, device, flags)
    flags.close()
    return layer


def _others(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the flags that are no settings of the layer."""
    return {name: value for name, value in flags.items() if name not in _SETTINGS}


def _layer(where: str, record: LayerRecord, kind: type, package: str) -> Any:
    """Returns a new layer with the settings of the record."""
    flags = Flags(where, record.flags)
    settings = {
        "nbits": flags.integer("nbits", 1, 8),
        "axis_key": flags.integer("axis_key", -1, 1),
        "axis_value": flags.integer("axis_value", -1, 1),
        "q_group_size": flags.optional_integer("q_group_size", 1),
        "residual_length": flags.integer("residual_length", 0),
    }
    try:
        layer: Any = kind(**settings)
    except (ImportError, ValueError) as error:
        raise refuse_load(
            f"{where} is a {kind.__name__}: {error}", f"Install it with: pip install {package}"
        ) from error
    layer.cumulative_length = record.positions_seen or 0
    return layer


def _give_residual(where: str, layer: Any, tensors: Tensors, device: torch.device) -> None:
    """Sets the latest tokens; right after a prefill there are none, and their tensors say so."""
    if ("key", 0) not in tensors or ("value", 0) not in tensors:
        raise refuse_load(f"{where} has no residual keys and values", REPORT)
    keys, values = tensors["key", 0].tensor.to(device), tensors["value", 0].tensor.to(device)
    for tensor in (keys, values):
        if tensor.ndim != 4 and (tensor.ndim != 1 or tensor.numel()):
            raise refuse_load(f"{where}: its residual has {shape_of(tensor)}", REPORT)
    initialise(layer, keys, values)
    layer.keys, layer.values = keys, values


def _packed(
    where: str, layer: Any, side: str, tensors: Tensors
) -> tuple[Mapping[str, Any], list[Stored]]:
    """Returns one side's packing and its three tensors, or refuses what does not fit the layer."""
    roles = (f"packed_{side}", f"{side}_scale", f"{side}_zero")
    missing = [role for role in roles if (role, 0) not in tensors]
    if missing:
        raise refuse_load(f"{where} has no {' and no '.join(missing)}", REPORT)
    stored = [tensors[role, 0] for role in roles]
    packing = stored[0].packing or {}
    axis = layer.axis_key if side == "key" else layer.axis_value
    found = (packing.get("bits"), packing.get("group_size"), packing.get("axis"))
    if found != (layer.nbits, layer.q_group_size, axis):
        raise refuse_load(
            f"{where}: its {roles[0]} has bits, group size and axis {found}; the layer has "
            f"{(layer.nbits, layer.q_group_size, axis)}",
            REPORT,
        )
    return packing, stored


def _quanto_tensor(
    where: str, layer: Any, side: str, tensors: Tensors, device: torch.device
) -> Any:
    """Returns quanto's tensor on the packed bytes, scales and shifts."""
    from optimum.quanto.tensor.packed import PackedTensor
    from optimum.quanto.tensor.weights.qbits import WeightQBitsTensor

    packing, stored = _packed(where, layer, side, tensors)
    bits, group, shape = packing["bits"], packing["group_size"], list(packing["shape"])
    inner = _quanto_shape(shape, packing["axis"], group)
    per_byte = 8 // bits
    rows = [-(-inner[0] // per_byte), *inner[1:]] if inner else []
    data, scale, shift = (one.tensor.to(device) for one in stored)
    if packing["codec"] != _QUANTO_CODEC or list(data.shape) != rows or data.dtype != torch.uint8:
        raise refuse_load(
            f"{where}: its packed_{side} has {shape_of(data)} by {packing['codec']!r}", REPORT
        )
    elements = PackedTensor(data, bits, torch.Size(inner), _strides(inner))
    return WeightQBitsTensor(
        layer.qtype,
        packing["axis"],
        group,
        torch.Size(shape),
        _strides(shape),
        elements,
        scale,
        shift,
    )


def _strides(shape: list[int]) -> tuple[int, ...]:
    """Returns the row-major strides of a shape, in elements."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _hqq_pair(
    where: str, layer: Any, side: str, tensors: Tensors, device: torch.device, flags: Flags
) -> Any:
    """Returns HQQ's pair of packed elements and what it says about them."""
    packing, stored = _packed(where, layer, side, tensors)
    name = str(packing["codec"]).removeprefix(_HQQ_CODEC)
    if name not in _HQQ_PACKINGS:
        raise refuse_load(f"{where}: its packed_{side} is packed by {packing['codec']!r}", REPORT)
    data, scale, zero = (one.tensor.to(device) for one in stored)
    meta = {
        "nbits": packing["bits"],
        "group_size": packing["group_size"],
        "shape": torch.Size(packing["shape"]),
        "scale": scale,
        "zero": zero,
        "axis": packing["axis"],
        "packing": name,
        "unpack_view_dtype": DTYPES[packing["dtype"]],
        "view_as_float": False,
        "compute_dtype": flags.optional_dtype(f"{side}_compute_dtype"),
    }
    return data, meta
