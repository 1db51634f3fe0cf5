# loading.py: makes a Transformers cache of any known kind from a KVC1 file.
# SPDX-License-Identifier: Apache-2.0

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import kvcache
import torch
from torch.utils.dlpack import from_dlpack

from torch_kvcache.dtypes import DTYPE_NAMES, DTYPES
from torch_kvcache.kinds import rebuild, require_class
from torch_kvcache.kinds.record import LayerRecord, Stored, Tensors, refuse_load
from torch_kvcache.kinds.wrapper import CacheRecord, rebuild_cache, require_cache, take_updated
from torch_kvcache.manifest import Layout, layout_of, require_manifest
from torch_kvcache.schema import require_schema

if TYPE_CHECKING:
    from typing_extensions import Buffer

Device = str | int | torch.device
Devices = Device | Mapping[int, Device] | Callable[[int], Device] | None


class Opened(NamedTuple):
    """A file whose bytes are proven, before anything is made of it."""

    path: str | os.PathLike[str]
    root: str
    metadata: dict[str, Any]
    layout: Layout
    tensors: Sequence[Tensors]
    """Those of each layer record."""
    extras: Mapping[str, torch.Tensor]
    """Those of the cache, by role."""


class Material(NamedTuple):
    """What a cache is made of: from it another one can be made, of the same mapping."""

    layout: Layout
    tensors: Sequence[Tensors]
    """Those of each layer record."""
    places: Sequence[torch.device]
    """Where each layer shall be."""
    updated: Mapping[int, bool]
    """Which layers of a cross-attention cache are filled."""


@dataclass(frozen=True)
class LoadedCache:
    """A cache from a file, and what belongs to it."""

    cache: Any
    """The cache, for `past_key_values`."""
    metadata: dict[str, Any]
    """The metadata of the file. Where sequence_start is not 0, or tokens were dropped, the
    positions of new tokens must be given to the model."""
    token_ids: torch.Tensor | None
    """The tokens that the cache was made from, [batch, tokens], on the CPU; or None."""
    attention_mask: torch.Tensor | None
    """The mask that the model was given, [batch, tokens], on the CPU; or None."""
    root: str
    """`kvc1:` and 64 hexadecimal digits: the name of the content."""
    path: str | os.PathLike[str]
    """The file, as it was named."""
    material: Material = field(repr=False)
    """What the cache was made of, for resume."""


def load(
    path: str | os.PathLike[str],
    *,
    expected_identity: Mapping[str, Any] | None = None,
    expected_dtype: str | torch.dtype | None = None,
    device: Devices = None,
    copy: bool = False,
    key: "Buffer | None" = None,
    expected_root: "str | Buffer | None" = None,
) -> LoadedCache:
    """Loads a cache that `save` or `write_dynamic_cache` wrote. All or nothing.

    Every byte of the file is proven before a layer is made. On the CPU, layers that grow lie on a
    private mapping of the file, without a copy: what is written to them never reaches the file, and
    they stay valid when it is deleted or replaced; truncating it in place is what they do not
    survive. Static and linear layers get the values in buffers of their own.

    Args:
        path: The file.
        expected_identity: Members that the metadata must have, as identity_of returns them.
        expected_dtype: The dtype that all keys and values must have: `bf16`, torch.bfloat16, …
        device: Where the layers shall be: None is the CPU; a device; or a mapping from layer
            numbers to devices, or a function that returns the device of a layer number.
        copy: True reads tensors into memory of their own, for files that others may write into.
        key: 32 bytes; the file must carry a tag made with it.
        expected_root: The only root to accept.

    To go on, hand the model the ids that the cache was made from plus at least one new id, the
    cache as `past_key_values`, and an attention mask over all of them.

    Raises:
        kvcache.CacheIdentityError: the file is for another model, or of another dtype.
        kvcache.CacheIntegrityError, CacheIncompleteError, CacheFormatError: it is damaged.
        kvcache.UnsupportedCacheError: it holds what this version, or this version of Transformers,
            does not make; the message names it.
        ValueError: `device` has no answer for a layer, or `expected_dtype` is no dtype.
        OSError: the system refused.
    """
    opened = read_file(
        path,
        expected_identity=expected_identity,
        expected_dtype=expected_dtype,
        copy=copy,
        key=key,
        expected_root=expected_root,
    )
    return finish(opened, device)


def read_file(
    path: str | os.PathLike[str],
    *,
    expected_identity: Mapping[str, Any] | None,
    expected_dtype: str | torch.dtype | None,
    copy: bool,
    key: "Buffer | None",
    expected_root: "str | Buffer | None" = None,
    segment: bool = False,
) -> Opened:
    """Returns what a file holds, all of it proven; `segment` says whether it must be one."""
    identity = _expected(expected_identity, expected_dtype)
    with kvcache.open_cache(
        path, identity, expected_root=expected_root, key=key, copy=copy
    ) as source:
        metadata: dict[str, Any] = source.metadata
        layout = _layout(os.fspath(path), metadata, segment)
        # Proves all of it at once, by all threads; the tensors are then taken from it.
        source.prove()
        layers, extras = _tensors(source, layout)
        return Opened(path, source.root, metadata, layout, layers, extras)


def finish(opened: Opened, device: Devices) -> LoadedCache:
    """Makes the cache of an opened file."""
    updated = take_updated(opened.layout.cache)
    places = [_device_of(device, number) for _, number, _ in opened.layout.cache.layers()]
    material = Material(opened.layout, opened.tensors, places, updated)
    records = [record for _, _, record in opened.layout.cache.layers()]
    cache = build(material, records, opened.tensors)
    ids, mask = opened.extras.get("token_ids"), opened.extras.get("attention_mask")
    return LoadedCache(cache, opened.metadata, ids, mask, opened.root, opened.path, material)


def build(material: Material, records: Sequence[LayerRecord], tensors: Sequence[Tensors]) -> Any:
    """Returns a new cache of records and tensors that follow from a file's, layer by layer."""
    whole = material.layout.cache
    made = [
        rebuild(_where(which, number), record, held, place)
        for (which, number, _), record, held, place in zip(
            whole.layers(), records, tensors, material.places, strict=True
        )
    ]
    own = len(whole.own)
    return rebuild_cache(whole, made[:own], made[own:], dict(material.updated))


def _where(which: str, number: int) -> str:
    return f"{'layer' if which == 'self' else 'cross layer'} {number} of the file"


def _expected(
    identity: Mapping[str, Any] | None, dtype: str | torch.dtype | None
) -> Mapping[str, Any] | None:
    """Returns the identity to expect, the dtype with it: it is a member of the metadata."""
    if dtype is None:
        return identity
    name = DTYPE_NAMES.get(dtype) if isinstance(dtype, torch.dtype) else dtype
    if name not in DTYPES:
        raise ValueError(
            f"expected_dtype must be a dtype of torch or one of {', '.join(DTYPES)}, not {dtype!r}"
        )
    both = dict(identity or {})
    if both.setdefault("dtype", name) != name:
        raise ValueError(
            f"expected_dtype is {name!r}, and expected_identity has dtype {both['dtype']!r}"
        )
    return both


def _layout(path: str, metadata: Mapping[str, Any], segment: bool) -> Layout:
    """Returns what a file holds, or refuses what cannot become a cache here."""
    version = require_manifest(path, metadata)
    if "parent_root" in metadata and not segment:
        raise refuse_load(
            f"{path} continues another file, {metadata['parent_root']}, and holds only what was "
            "added to that",
            "Load both with torch_kvcache.join, the other one first.",
            found=str(metadata["parent_root"]),
        )
    if segment and "parent_root" not in metadata:
        raise refuse_load(
            f"{path} continues no other file",
            "In a list for torch_kvcache.join only the first one does not.",
        )
    layout = _layout_of_version_1(metadata) if version == 1 else layout_of(path, metadata)
    require_schema(layout.schema, layout.framework_version)
    require_cache(layout.cache)
    for which, number, record in layout.cache.layers():
        require_class(_where(which, number), record)
    return layout


def _layout_of_version_1(metadata: Mapping[str, Any]) -> Layout:
    """Returns a file of manifest version 1 as if it were of version 2."""
    length = metadata["sequence_length"]
    records = [
        LayerRecord("DynamicLayer", "full", "filled", stored_tokens=length, positions_seen=length)
        for _ in range(metadata["layers"])
    ]
    tensors = [
        {
            **record,
            "role": record["kind"],
            "index": 0,
            "axes": ["batch", "head", "sequence", "head_dim"],
            "packing": None,
        }
        for record in metadata["tensor_manifest"]["tensors"]
    ]
    return Layout(CacheRecord("DynamicCache", "none", records, []), "hf/attention", "", tensors)


def _device_of(device: Devices, number: int) -> torch.device:
    """Returns where a layer shall be."""
    if isinstance(device, Mapping):
        if number not in device:
            raise ValueError(f"device is a mapping without an entry for layer {number}")
        return torch.device(device[number])
    if device is None:
        return torch.device("cpu")
    return torch.device(device(number) if callable(device) else device)


def _tensors(
    source: kvcache.Cache, layout: Layout
) -> tuple[list[Tensors], dict[str, torch.Tensor]]:
    """Returns the tensors of each layer, and those of the cache; all are proven by being taken."""
    layers: list[dict[tuple[str, int], Stored]] = [{} for _ in layout.cache.layers()]
    extras: dict[str, torch.Tensor] = {}
    for record in layout.tensors:
        tensor = _tensor(source, record)
        if record["layer"] is None:
            extras[record["role"]] = tensor
        else:
            place = (record["role"], record["index"])
            axes = tuple(record["axes"])
            layers[record["layer"]][place] = Stored(tensor, axes, record["packing"])
    return list(layers), extras


def _tensor(source: kvcache.Cache, record: Mapping[str, Any]) -> torch.Tensor:
    """Returns a proven tensor on the CPU; one without elements has no place in the file."""
    dtype, shape = DTYPES.get(record["dtype"]), tuple(record["shape"])
    if dtype is None:
        raise refuse_load(
            f"its tensor `{record['name']}` has the dtype {record['dtype']}, which this version of "
            "PyTorch does not have",
            "Use a later version of PyTorch.",
            found=str(record["dtype"]),
        )
    if not record["nbytes"]:
        return torch.empty(shape, dtype=dtype)
    held = source[record["name"]]
    if record["dtype"].startswith("f8_"):
        # DLPack has no name for these. The tensor keeps the object alive, and that the memory.
        return torch.frombuffer(held, dtype=torch.uint8).view(dtype).reshape(shape)
    return from_dlpack(held)
