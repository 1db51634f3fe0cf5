# _facts.py: the facts of a cache file and of its tensors, as plain values.
# SPDX-License-Identifier: Apache-2.0
"""CacheInfo and TensorInfo, and the facts of a file that was just written."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class CacheInfo:
    """The facts of a cache file. Sizes are bytes."""

    root: str
    """`kvc1:` and 64 hexadecimal digits: names the metadata and the tensor bytes."""
    version: tuple[int, int]
    """Major and minor version of the format."""
    file_bytes: int
    metadata_bytes: int
    payload_bytes: int
    """The logical payload: the tensors' bytes without gaps."""
    payload_span: int
    """The payload in the file, gaps between tensors included."""
    payload_offset: int
    """Where the payload begins in the file."""
    tensor_count: int
    """Tensors in the manifest; 0 for an opaque payload."""
    chunk_count: int
    """Pieces of 64 KiB that are proven on their own, in all tensors."""
    align: int
    """1, 64 or 4096: each tensor starts at a multiple of it."""
    has_tag: bool
    """The file carries a tag, checked or not."""
    tag_checked: bool
    """A key was given, and the tag was made with it."""
    manifest_version: int
    """0 for an opaque payload."""
    layers: int
    kv_heads: int
    head_dim: int
    batch_size: int
    """0 for an opaque payload."""
    dtype: str
    """`f16`, `bf16`, `f32`, `i8` or `u8`."""
    rope_theta: float
    sequence_start: int
    """Position of the first token held."""
    sequence_length: int
    """Tokens held."""
    incompat: int = 0
    """Feature bits that a reader must know."""
    ro_compat: int = 0
    """Feature bits that a program that rewrites the file must know."""
    compat: int = 0
    """Feature bits that may be ignored."""


@dataclass(frozen=True)
class TensorInfo:
    """What a file says about one tensor."""

    name: str
    """`layer.0.key`; empty for an opaque payload."""
    dtype: str
    shape: tuple[int, ...]
    """Elements: (batch, kv_heads, sequence, head_dim)."""
    nbytes: int
    offset: int
    """Bytes from the start of the logical payload."""
    file_offset: int
    """Bytes from the start of the file."""
    chunk_count: int
    """Pieces of 64 KiB that are proven on their own."""
    layer: int | None
    """None for an opaque payload."""
    kind: str | None
    """`key` or `value`; None for an opaque payload."""
    digest: str
    """BLAKE3 of the tensor's bytes, 64 hexadecimal digits."""


# The layout of docs/FORMAT.md as far as the sizes of a new file follow from it. The writer does
# not report them, and the path may already name another file.
_VERSION = (1, 0)
_HEADER_BYTES = 128
_FOOTER_BYTES = 128
_DIGEST_BYTES = 32
_PAYLOAD_ALIGN = 4096
_TRAILER_ALIGN = 64
_CHUNK_BYTES = 65536


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def written_info(
    root: str, metadata_json: bytes, payload_bytes: int, align: int, has_tag: bool
) -> CacheInfo:
    """Return the facts of a file that was just written from these."""
    metadata: dict[str, Any] = json.loads(metadata_json)
    manifest = metadata.get("tensor_manifest")
    records = [] if manifest is None else manifest["tensors"]
    sizes = [record["nbytes"] for record in records] or [payload_bytes]
    span = 0
    for size in sizes:
        span = _round_up(span, align) + size
    chunks = [_round_up(size, _CHUNK_BYTES) // _CHUNK_BYTES for size in sizes]
    payload_offset = _round_up(_HEADER_BYTES + len(metadata_json), _PAYLOAD_ALIGN)
    trailer_bytes = _DIGEST_BYTES * (sum(count for count in chunks if count > 1) + len(sizes))
    return CacheInfo(
        root=root,
        version=_VERSION,
        file_bytes=_round_up(payload_offset + span, _TRAILER_ALIGN) + trailer_bytes + _FOOTER_BYTES,
        metadata_bytes=len(metadata_json),
        payload_bytes=payload_bytes,
        payload_span=span,
        payload_offset=payload_offset,
        tensor_count=len(records),
        chunk_count=sum(chunks),
        align=align,
        has_tag=has_tag,
        tag_checked=has_tag,
        manifest_version=0 if manifest is None else manifest["version"],
        layers=metadata["layers"],
        kv_heads=metadata["kv_heads"],
        head_dim=metadata["head_dim"],
        batch_size=0 if manifest is None else manifest["batch_size"],
        dtype=metadata["dtype"],
        rope_theta=float(metadata["rope_theta"]),
        sequence_start=metadata["sequence_start"],
        sequence_length=metadata["sequence_length"],
    )
