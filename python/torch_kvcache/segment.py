# segment.py: saves what was added to a cache since another file, and joins such files.
# SPDX-License-Identifier: Apache-2.0
"""A segment holds the tokens after those of its parent, and names the parent by its root. Layers of
full attention give only their new tokens; a window gives what it still holds of them; a recurrent
state, which is not made of tokens, is written whole."""

import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import kvcache
import torch

from torch_kvcache.kinds.record import PREFILL_AGAIN, LayerRecord, Stored, Tensors, refuse_save
from torch_kvcache.kinds.wrapper import CacheRecord, describe_cache
from torch_kvcache.loading import Devices, LoadedCache, Opened, finish, read_file
from torch_kvcache.manifest import Extras, extra_tensor, metadata_of, parts_of, set_positions
from torch_kvcache.saving import identity_members
from torch_kvcache.schema import state_schema
from torch_kvcache.write import tensor_bytes, wait_for_devices

if TYPE_CHECKING:
    from typing_extensions import Buffer

_BY_TOKEN = ("key", "value", "indexer_key")
_WINDOWS = ("sliding", "chunked", "linear_sliding")
_STATIC_WINDOWS = ("static_sliding", "linear_static_sliding")


class _Parent(NamedTuple):
    name: str
    root: str
    metadata: Mapping[str, Any]
    token_ids: torch.Tensor | None


# ---- Saving a segment --------------------------------------------------------------------------


def append(
    path: str | os.PathLike[str],
    cache: Any,
    *,
    parent: LoadedCache | str | os.PathLike[str],
    identity: Mapping[str, Any],
    token_ids: Any = None,
    attention_mask: Any = None,
    info: Mapping[str, Any] | None = None,
    durability: str = "full",
    align: int | None = None,
    key: "Buffer | None" = None,
    progress: Callable[[int, int], object] | None = None,
) -> dict[str, Any]:
    """Saves what a cache holds beyond its parent, and returns the metadata of the new file.

    The new file is of use only with its parent: `join([parent, path])` gives the whole cache.

    Args:
        path: Where the new file shall appear.
        cache: The whole cache, which went on from what the parent holds.
        parent: The file that it continues, by its path, or as `load` or `join` returned it.
        identity: As for `save`; it must be that of the parent.
        token_ids: All tokens that the cache was made from, [batch, tokens], the parent's included;
            they are compared with the parent's, and the new ones are written.
        attention_mask: The mask over all of them.
        info, durability, align, key, progress: As for `save`.

    Raises:
        kvcache.UnsupportedCacheError: the cache has nothing new, does not begin as the parent, or
            is of a kind whose new tokens cannot be told apart.
        kvcache.CacheIdentityError: the parent is of another model.
        kvcache.CacheFormatError, OSError: As for `save`.
    """
    members = identity_members(identity)
    origin = _parent_of(parent, members)
    whole = Extras(
        extra_tensor("token_ids", token_ids), extra_tensor("attention_mask", attention_mask)
    )
    record = describe_cache(cache)
    tokens = None if whole.token_ids is None else whole.token_ids.shape[1]
    given = None if whole.token_ids is None else tokens
    length = set_positions(record, given, tokens)
    old = int(origin.metadata["sequence_length"])
    _require_continuation(origin, record, whole, length, old)
    newer = CacheRecord(
        record.class_name,
        record.wrapper,
        [_newer(f"layer {number} of the cache", layer, old) for number, layer in _numbered(record)],
        [],
    )
    extras = Extras(*(None if tensor is None else tensor[:, old:].contiguous() for tensor in whole))
    meaning = state_schema((layer for _, layer in _numbered(record)), None)
    metadata = metadata_of(newer, extras, length - old, meaning, info or {}) | members
    metadata["sequence_start"] = origin.metadata["sequence_start"] + old
    metadata["parent_root"] = origin.root
    tensors = [part.tensor for _, _, part in parts_of(newer, extras) if part.tensor.numel()]
    wait_for_devices(tensors)
    kvcache.write_cache_stream(
        path,
        metadata,
        tensor_bytes(tensors),
        durability=durability,
        align=align,
        key=key,
        progress=progress,
    )
    return metadata


def _numbered(record: CacheRecord) -> Iterable[tuple[int, LayerRecord]]:
    return enumerate(record.own)


def _parent_of(
    parent: LoadedCache | str | os.PathLike[str], identity: Mapping[str, Any]
) -> _Parent:
    """Returns what must be known of a parent, whose identity is compared."""
    if isinstance(parent, LoadedCache):
        _require_identity(os.fspath(parent.path), parent.metadata, identity)
        return _Parent(os.fspath(parent.path), parent.root, parent.metadata, parent.token_ids)
    with kvcache.open_cache(parent, identity) as source:
        return _Parent(os.fspath(parent), source.root, source.metadata, None)


def _require_identity(name: str, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    different = sorted(member for member in expected if found.get(member) != expected[member])
    if different:
        raise kvcache.CacheIdentityError(
            f"{name}: it is of another model; these differ: {', '.join(different)}. A cache goes "
            "on only from its own"
        )


def _require_continuation(
    parent: _Parent, record: CacheRecord, whole: Extras, length: int, old: int
) -> None:
    """Refuses a cache that does not go on from its parent."""
    if record.wrapper != "none":
        raise refuse_save(
            "it is that of an encoder-decoder model, whose cross-attention is not made of new "
            "tokens",
            "Save it whole.",
        )
    if length <= old:
        raise refuse_save(
            f"it has seen {length} tokens, and its parent {parent.name} has {old}: there is "
            "nothing new in it",
            "Run the model on, or save the cache whole.",
            expected=f"more than {old}",
            found=str(length),
        )
    if whole.attention_mask is not None and whole.attention_mask.shape[1] != length:
        raise refuse_save(
            f"attention_mask covers {whole.attention_mask.shape[1]} tokens, and the cache has "
            f"seen {length}",
            "Pass the mask over all of them.",
        )
    if whole.token_ids is None or parent.token_ids is None:
        return
    if not torch.equal(whole.token_ids[:, :old].cpu(), parent.token_ids.to(whole.token_ids.dtype)):
        raise refuse_save(
            f"its first {old} tokens are not those of its parent {parent.name}",
            "Name the file that it goes on from, or save it whole.",
        )


def _newer(where: str, record: LayerRecord, old: int) -> LayerRecord:
    """Returns a layer's record without the tokens that its parent holds."""
    seen = record.positions_seen or 0
    if record.state != "filled" or record.kind == "linear":
        return replace(record, positions_seen=max(0, seen - old))
    if record.kind == "quantized":
        raise refuse_save(
            f"{where} is quantised, and its new tokens are packed in groups with old ones",
            "Save it whole.",
        )
    window = record.kind in _WINDOWS + _STATIC_WINDOWS
    if seen <= old or (not window and record.stored_tokens != seen):
        raise refuse_save(
            f"{where} has seen {seen} tokens and holds {record.stored_tokens}; the parent has "
            f"{old}",
            PREFILL_AGAIN,
        )
    stored = min(record.stored_tokens, seen - old)
    parts = [
        part._replace(tensor=_last(part.tensor, part.axes, stored))
        if part.role in _BY_TOKEN
        else part
        for part in record.parts
    ]
    return replace(record, stored_tokens=stored, positions_seen=seen - old, parts=parts)


def _last(tensor: torch.Tensor, axes: Sequence[str], count: int) -> torch.Tensor:
    axis = list(axes).index("sequence")
    return tensor.narrow(axis, tensor.shape[axis] - count, count)


# ---- Joining -----------------------------------------------------------------------------------


def join(
    paths: Sequence[str | os.PathLike[str]],
    *,
    expected_identity: Mapping[str, Any] | None = None,
    expected_dtype: str | torch.dtype | None = None,
    device: Devices = None,
    copy: bool = False,
    key: "Buffer | None" = None,
) -> LoadedCache:
    """Loads a file and the segments that continue it, in their order, as one cache.

    Every byte of every file is proven. Each file after the first must name the one before it by
    its root, begin where that ends, and be of the same model. Keys and values are copied once, into
    tensors of their own. The result's root is that of the last file, which the chain of roots
    leads back from; its metadata have no tensor_manifest, which no single file has.

    Args: As for `load`; `paths` is a list, the first being a file that continues no other.

    Raises: What `load` raises; kvcache.CacheIdentityError where a file does not continue the one
        before it; ValueError without paths.
    """
    if isinstance(paths, (str, os.PathLike)) or not paths:
        raise ValueError("paths must be a list of at least one file")
    files = [
        read_file(
            path,
            expected_identity=expected_identity,
            expected_dtype=expected_dtype,
            copy=copy,
            key=key,
            segment=number > 0,
        )
        for number, path in enumerate(paths)
    ]
    for before, after in itertools.pairwise(files):
        _require_chain(before, after)
    joined = [
        _joined(
            [file.layout.cache.own[number] for file in files],
            [file.tensors[number] for file in files],
        )
        for number in range(len(files[0].layout.cache.own))
    ]
    whole = files[-1]
    if len(files) > 1:
        record = replace(whole.layout.cache, own=[record for record, _ in joined])
        whole = whole._replace(
            metadata=_joined_metadata(files),
            layout=whole.layout._replace(cache=record),
            tensors=[tensors for _, tensors in joined],
            extras=_joined_extras(files),
        )
    return finish(whole, device)


def _require_chain(before: Opened, after: Opened) -> None:
    """Refuses a file that does not continue the one before it."""
    name, older = os.fspath(after.path), os.fspath(before.path)
    if after.metadata["parent_root"] != before.root:
        error = kvcache.CacheIdentityError(
            f"{name}: it continues {after.metadata['parent_root']}, and {older} is {before.root}. "
            "Name the files in their order, each after the one that it continues"
        )
        error.field = "parent_root"
        error.expected, error.found = before.root, after.metadata["parent_root"]
        raise error
    end = before.metadata["sequence_start"] + before.metadata["sequence_length"]
    names: tuple[str, ...] = (
        "model_revision",
        "tokenizer_sha256",
        "rope_theta",
        "adapters",
        "attention",
    )
    names += ("compute_dtype", "kv_quantization", "rope", "weights_digest")
    expected = {member: before.metadata[member] for member in names if member in before.metadata}
    _require_identity(name, after.metadata, expected | {"sequence_start": end})
    one, other = (_kinds(file.layout.cache) for file in (before, after))
    if one != other or before.layout.schema != after.layout.schema:
        raise kvcache.CacheIdentityError(
            f"{name}: its layers are of other kinds than those of {older}, which it continues"
        )


def _kinds(record: CacheRecord) -> list[tuple[str, str, int | None]]:
    return [(layer.class_name, layer.kind, layer.window) for layer in record.own]


def _joined(records: Sequence[LayerRecord], held: Sequence[Tensors]) -> tuple[LayerRecord, Tensors]:
    """Returns the record and tensors of one layer of all the files together."""
    filled = [number for number, record in enumerate(records) if record.state == "filled"]
    seen = sum(record.positions_seen or 0 for record in records)
    if len(records) == 1 or not filled:
        return replace(records[-1], positions_seen=seen), held[-1]
    last = records[filled[-1]]
    tensors = dict(held[filled[-1]])
    stored = sum(records[number].stored_tokens for number in filled)
    kept = _kept(last, stored)
    for place in [place for place in tensors if place[0] in _BY_TOKEN]:
        pieces = [held[number][place] for number in filled if place in held[number]]
        tensors[place] = _cat(pieces, kept)
    return replace(last, stored_tokens=kept, positions_seen=seen), tensors


def _kept(record: LayerRecord, stored: int) -> int:
    """Returns how many of the joined tokens a layer holds."""
    window = record.window or 0
    if record.kind in _STATIC_WINDOWS:
        return min(stored, window)
    if record.kind in _WINDOWS and window > 1:
        return min(stored, window - 1)
    return stored


def _cat(pieces: Sequence[Stored], kept: int) -> Stored:
    filled = [piece for piece in pieces if piece.tensor.numel()]
    if not filled:
        return pieces[-1]
    axes = filled[-1].axes
    joined = torch.cat([piece.tensor for piece in filled], dim=axes.index("sequence"))
    return filled[-1]._replace(tensor=_last(joined, axes, kept))


def _joined_metadata(files: Sequence[Opened]) -> dict[str, Any]:
    metadata = dict(files[-1].metadata)
    metadata.pop("parent_root")
    metadata.pop("tensor_manifest")
    metadata["sequence_start"] = files[0].metadata["sequence_start"]
    metadata["sequence_length"] = sum(file.metadata["sequence_length"] for file in files)
    return metadata


def _joined_extras(files: Sequence[Opened]) -> dict[str, torch.Tensor]:
    """Returns the token ids of all files, if each has its own, and the mask, ones where it is
    missing."""
    extras: dict[str, torch.Tensor] = {}
    ids = [file.extras.get("token_ids") for file in files]
    if all(tensor is not None for tensor in ids):
        extras["token_ids"] = torch.cat([tensor.long() for tensor in ids if tensor is not None], 1)
    if any("attention_mask" in file.extras for file in files):
        extras["attention_mask"] = torch.cat([_mask(file) for file in files], 1)
    return extras


def _mask(file: Opened) -> torch.Tensor:
    mask = file.extras.get("attention_mask")
    if mask is not None:
        return mask.long()
    batch = next(stored.tensor.shape[0] for tensors in file.tensors for stored in tensors.values())
    return torch.ones(batch, file.metadata["sequence_length"], dtype=torch.long)
