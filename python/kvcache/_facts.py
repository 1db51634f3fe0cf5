# _facts.py: the facts of a cache file and of its tensors, as plain values.
# SPDX-License-Identifier: Apache-2.0
"""CacheInfo and TensorInfo."""

from __future__ import annotations

from dataclasses import dataclass


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
    """0 where the metadata say None, as they may with manifest version 2."""
    head_dim: int
    """The same."""
    batch_size: int
    """0 for an opaque payload."""
    dtype: str
    """`f16`, `bf16`, `f32`, `i8` or `u8`; with manifest version 2 any dtype of the format, and
    empty where the metadata say None."""
    rope_theta: float
    sequence_start: int
    """Position of the first token held."""
    sequence_length: int
    """Tokens held; with manifest version 2, tokens that the cache has seen."""
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
    """As in docs/FORMAT.md: `f16`, `bf16`, `i64`, `f8_e4m3fn`, ..."""
    shape: tuple[int, ...]
    """Elements: (batch, kv_heads, sequence, head_dim) in manifest version 1."""
    nbytes: int
    offset: int
    """Bytes from the start of the logical payload."""
    file_offset: int
    """Bytes from the start of the file."""
    chunk_count: int
    """Pieces of 64 KiB that are proven on their own."""
    layer: int | None
    """Counted from 0, with manifest version 2 in the order of its `layers`; None for a tensor of
    the cache as a whole, and for an opaque payload."""
    kind: str | None
    """The role: `key`, `value`, with manifest version 2 others too; None for an opaque payload."""
    digest: str
    """BLAKE3 of the tensor's bytes, 64 hexadecimal digits."""
