# manifest.py: the tables of manifest version 2, from the records of a cache and back.
# SPDX-License-Identifier: Apache-2.0

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import kvcache
import torch
import transformers

from torch_kvcache.dtypes import DTYPE_NAMES
from torch_kvcache.kinds.record import LayerRecord, Part, refuse_load, refuse_save, shape_of
from torch_kvcache.kinds.wrapper import CacheRecord

NUMBERED_ROLES = ("conv_state", "recurrent_state")
CACHE_AXES = ("batch", "sequence")
FRAMEWORK = "transformers"
# Kinds whose layers are told nothing when a compressed cache drops some of their tokens.
_DROPPING = ("full", "indexed", "linear_full")


class Extras(NamedTuple):
    """The tensors that belong to a cache and to no layer, [batch, tokens]; None: not given."""

    token_ids: torch.Tensor | None
    attention_mask: torch.Tensor | None


# ---- From records ------------------------------------------------------------------------------


def set_positions(cache: CacheRecord, given: int | None, tokens: int | None) -> int:
    """Completes the records' positions, and returns the tokens that the cache has seen.

    `given` is what the caller says, `tokens` the number of token ids, both or either None. Layers
    of linear attention count nothing themselves: they have seen what the others have. Where the
    caller gives more than layers of full attention hold, tokens were dropped from these, as
    compression of a cache does: then they have seen all that the caller says.

    Raises kvcache.UnsupportedCacheError where nothing tells, or two sources differ.
    """
    counts = [record.positions_seen for record in cache.own if record.positions_seen is not None]
    longest = max(counts, default=0)
    length = given if given is not None else (longest or tokens)
    if length is None:
        raise refuse_save(
            "no layer counts the tokens that it has seen: all are of linear attention",
            "Pass token_ids, or sequence_length.",
        )
    if isinstance(length, bool) or not isinstance(length, int) or length < 1:
        raise refuse_save(
            f"the cache has seen {length!r} tokens",
            "Run the model once, with use_cache=True, before saving.",
        )
    if tokens is not None and tokens != length:
        raise refuse_save(
            f"token_ids has {tokens} tokens in each row, and the cache has seen {length}",
            f"Pass the {length} tokens that it was made from, without the next one.",
            expected=str(length),
            found=str(tokens),
        )
    for record in cache.own:
        dropped = given is not None and record.kind in _DROPPING and record.state == "filled"
        if record.positions_seen is None or dropped:
            record.positions_seen = length
    for record in cache.cross:
        if record.positions_seen is None:
            record.positions_seen = length
    found = max(record.positions_seen or 0 for record in cache.own)
    short = any((record.positions_seen or 0) < record.stored_tokens for record in cache.own)
    if found != length or short:
        raise refuse_save(
            f"sequence_length is {length}, and the cache has seen {longest} tokens",
            "Pass no sequence_length, unless tokens were dropped from layers of full attention.",
            expected=str(longest),
            found=str(length),
        )
    return length


def metadata_of(
    cache: CacheRecord, extras: Extras, length: int, schema: str, info: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the metadata that follow from a cache, without the identity of its model.

    Raises kvcache.UnsupportedCacheError where the layers have different batch sizes.
    """
    batch = _batch_size(cache, extras)
    return {
        "layers": len(cache.own),
        "kv_heads": _common(cache, "head"),
        "head_dim": _common(cache, "head_dim"),
        "dtype": _common_dtype(cache),
        "layout": "layer-major-k-then-v",
        "sequence_length": length,
        "tensor_manifest": {
            "version": 2,
            "byte_order": "little",
            "batch_size": batch,
            "cache_class": cache.class_name,
            "framework": {"name": FRAMEWORK, "version": transformers.__version__},
            "state_schema": schema,
            "wrapper": cache.wrapper,
            "info": dict(info),
            "layers": [
                _layer_member(which, number, record) for which, number, record in cache.layers()
            ],
            "tensors": _tensor_members(cache, extras),
        },
    }


def parts_of(cache: CacheRecord, extras: Extras) -> Iterator[tuple[int | None, str, Part]]:
    """Yields the tensors of a file in its order: (index of the layer record, name, tensor)."""
    for position, (which, number, record) in enumerate(cache.layers()):
        prefix = "layer" if which == "self" else "cross"
        for part in record.parts:
            numbered = f".{part.number}" if part.role in NUMBERED_ROLES else ""
            yield position, f"{prefix}.{number}.{part.role}{numbered}", part
    for role, tensor in zip(Extras._fields, extras, strict=True):
        if tensor is not None:
            yield None, role, Part(role, CACHE_AXES, tensor)


def _layer_member(which: str, number: int, record: LayerRecord) -> dict[str, Any]:
    return {
        "aliases": record.aliases,
        "cache": which,
        "class": record.class_name,
        "flags": record.flags,
        "kind": record.kind,
        "layer": number,
        "positions_seen": record.positions_seen,
        "state": record.state,
        "stored_tokens": record.stored_tokens,
        "window": record.window,
    }


def _tensor_members(cache: CacheRecord, extras: Extras) -> list[dict[str, Any]]:
    members, offset = [], 0
    for position, name, part in parts_of(cache, extras):
        shape = list(part.tensor.shape)
        nbytes = math.prod(shape) * part.tensor.element_size()
        members.append(
            {
                "axes": list(part.axes),
                "dtype": DTYPE_NAMES[part.tensor.dtype],
                "index": part.number,
                "layer": position,
                "name": name,
                "nbytes": nbytes,
                "offset": offset,
                "packing": part.packing,
                "role": part.role,
                "shape": shape,
            }
        )
        offset += nbytes
    return members


def _sizes(cache: CacheRecord, extras: Extras, axis: str) -> Iterator[tuple[str, int]]:
    """Yields the size of an axis in each tensor that has it, with the tensor's name."""
    for _, name, part in parts_of(cache, extras):
        if axis in part.axes:
            yield name, part.tensor.shape[part.axes.index(axis)]
        if axis == "batch" and part.packing and len(part.packing["shape"]) == 4:
            yield name, part.packing["shape"][0]


def _batch_size(cache: CacheRecord, extras: Extras) -> int:
    """Returns the batch size, which all tensors must have."""
    sizes = list(_sizes(cache, extras, "batch"))
    if not sizes:
        raise refuse_save("no tensor of it has a batch size", "Run the model once before saving.")
    first, size = sizes[0]
    for name, other in sizes:
        if other != size:
            raise refuse_save(
                f"`{first}` has a batch of {size}, and `{name}` one of {other}",
                "Bring all layers, token_ids and attention_mask to one batch size first.",
                expected=str(size),
                found=str(other),
            )
    return size


def _keys_and_values(cache: CacheRecord) -> Iterator[Part]:
    for _, _, record in cache.layers():
        yield from (part for part in record.parts if part.role in ("key", "value"))


def _common(cache: CacheRecord, axis: str) -> int | None:
    """Returns the size of an axis where all keys and values have the same, else None."""
    sizes = {
        part.tensor.shape[part.axes.index(axis)]
        for part in _keys_and_values(cache)
        if axis in part.axes
    }
    return sizes.pop() if len(sizes) == 1 and 0 not in sizes else None


def _common_dtype(cache: CacheRecord) -> str | None:
    """Returns the dtype where all keys and values that hold something have the same, else None."""
    dtypes = {part.tensor.dtype for part in _keys_and_values(cache) if part.tensor.numel()}
    return DTYPE_NAMES[dtypes.pop()] if len(dtypes) == 1 else None


def extra_tensor(name: str, value: Any) -> torch.Tensor | None:
    """Returns token ids or a mask as a tensor [batch, tokens] of integers or booleans, or None.

    Takes a tensor, or nested lists of integers; one row may come without the batch dimension.
    Raises kvcache.UnsupportedCacheError for anything else.
    """
    if value is None:
        return None
    tensor = value if isinstance(value, torch.Tensor) else torch.tensor(value)
    if tensor.ndim == 1:
        tensor = tensor.unsqueeze(0)
    whole = tensor.dtype == torch.bool or not (
        tensor.dtype.is_floating_point or tensor.dtype.is_complex
    )
    if tensor.ndim != 2 or not whole or not tensor.numel() or tensor.dtype not in DTYPE_NAMES:
        raise refuse_save(
            f"{name} has {shape_of(tensor)} of {tensor.dtype}; it must be [batch, tokens] of "
            "integers or booleans",
            "Pass what the model was given.",
        )
    return tensor


# ---- To records --------------------------------------------------------------------------------


class Layout(NamedTuple):
    """What a manifest says, as records; the tensors are named, not read."""

    cache: CacheRecord
    schema: str
    framework_version: str
    tensors: list[dict[str, Any]]


def layout_of(path: str, metadata: Mapping[str, Any]) -> Layout:
    """Returns the records of a file of manifest version 2, which the library has judged.

    Raises kvcache.UnsupportedCacheError for a cache of another framework.
    """
    manifest = metadata["tensor_manifest"]
    framework = manifest["framework"]
    if framework["name"] != FRAMEWORK:
        raise refuse_load(
            f"{path} holds a cache of {framework['name']!r}, not of {FRAMEWORK!r}",
            "Use the program that wrote it.",
            expected=FRAMEWORK,
            found=str(framework["name"]),
        )
    halves: dict[str, list[LayerRecord]] = {"self": [], "cross": []}
    for member in manifest["layers"]:
        halves[member["cache"]].append(
            LayerRecord(
                member["class"],
                member["kind"],
                member["state"],
                stored_tokens=member["stored_tokens"],
                positions_seen=member["positions_seen"],
                window=member["window"],
                flags=dict(member["flags"]),
                aliases=dict(member["aliases"]),
            )
        )
    cache = CacheRecord(
        manifest["cache_class"], manifest["wrapper"], halves["self"], halves["cross"]
    )
    return Layout(cache, manifest["state_schema"], framework["version"], manifest["tensors"])


def require_manifest(path: str, metadata: Mapping[str, Any]) -> int:
    """Returns the version of a file's manifest, or refuses a file without one."""
    manifest = metadata.get("tensor_manifest")
    if manifest is None:
        raise kvcache.CacheFormatError(
            f"{path}: a tensor_manifest is required to construct a cache; this file holds an "
            "opaque payload. Read it with kvcache.read_cache"
        )
    return int(manifest["version"])
