"""kvc1.py: builds KVC1 files from explicit parts, every one of which can be made wrong.

SPDX-License-Identifier: Apache-2.0

A second implementation of the writing side, from docs/FORMAT.md and the standard library alone.
`Parts` holds every field of a file. What is left at None is computed from the rest, so a file in
which one thing is wrong still has correct checks, digests and root: it is re-signed. Nothing here
judges what it is given; kvc1_reader.py does.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from b3 import blake3, blake3_derive, blake3_keyed, combine, subtree

MAGIC = b"\x89KVC1\r\n\x1a"
END_MAGIC = MAGIC[::-1]
HEADER_BYTES = 128
FOOTER_BYTES = 128
PAYLOAD_ALIGN = 4096
TRAILER_ALIGN = 64
GRID_BYTES = 65536
DIGEST_BYTES = 32
ROOT_CONTEXT = "KVC1 1.0 root"
TAG_CONTEXT = "KVC1 1.0 tag"
ITEM_BYTES = {"f16": 2, "bf16": 2, "f32": 4, "i8": 1, "u8": 1}
# What manifest version 2 allows, in the order of section 2.
ITEM_BYTES_2 = {
    "f16": 2, "f32": 4, "f64": 8, "bf16": 2, "f8_e4m3fn": 1, "f8_e5m2": 1, "f8_e4m3fnuz": 1,
    "f8_e5m2fnuz": 1, "f8_e8m0": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "u8": 1, "u16": 2,
    "u32": 4, "bool": 1,
}  # fmt: skip

# Bits of `incompat`.
MANIFEST_2 = 1
SEGMENT = 2

NAMES_1_1 = (
    "adapters",
    "attention",
    "compute_dtype",
    "kv_quantization",
    "parent_root",
    "rope",
    "weights_digest",
)

MAX_INTEGER = 2**53 - 1


def round_up(value: int, step: int) -> int:
    """Returns the smallest multiple of `step` that is not below `value`."""
    return -(-value // step) * step


# ---- Digests ------------------------------------------------------------------------------------


def grid(data: bytes) -> list[bytes]:
    """Cuts a tensor into its grid chunks of 64 KiB."""
    return [data[i : i + GRID_BYTES] for i in range(0, len(data), GRID_BYTES)]


def chunk_values(data: bytes) -> list[bytes]:
    """Returns a tensor's row: one value for each grid chunk, none where there is only one."""
    pieces = grid(data)
    if len(pieces) < 2:
        return []
    return [subtree(piece, 64 * i) for i, piece in enumerate(pieces)]


def tensor_digest(data: bytes, row: Sequence[bytes] | None = None) -> bytes:
    """Returns the BLAKE3 of a tensor, from its row where that is known already."""
    return combine(row) if row else blake3(data)


def root_of(metadata: bytes, digests: Sequence[bytes]) -> bytes:
    """Returns the 32 bytes that name a file's content."""
    material = struct.pack("<QQ", len(metadata), len(digests)) + metadata + b"".join(digests)
    return blake3_derive(ROOT_CONTEXT, material)


def tag_of(root: bytes, key: bytes) -> bytes:
    """Returns the keyed tag over a root."""
    return blake3_keyed(blake3_derive(TAG_CONTEXT, key), root)


def root_text(root: bytes) -> str:
    """Returns a root as people write it."""
    return "kvc1:" + root.hex()


# ---- Metadata -----------------------------------------------------------------------------------


def canonical(value: Any) -> bytes:
    """Returns the canonical JSON of a value; ValueError when it has none."""
    _refuse_unspellable(value)
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return text.encode("utf-8")


def _refuse_unspellable(value: Any) -> None:
    if isinstance(value, float):
        if not math.isfinite(value) or (value == 0 and math.copysign(1, value) < 0):
            raise ValueError(f"{value!r} has no canonical spelling")
    elif isinstance(value, bool) or value is None:
        return
    elif isinstance(value, int):
        if abs(value) > MAX_INTEGER:
            raise ValueError(f"{value} is outside -(2^53 - 1) ... 2^53 - 1")
    elif isinstance(value, str):
        if "\0" in value:
            raise ValueError("U+0000 has no canonical spelling")
    elif isinstance(value, Mapping):
        for key, member in value.items():
            _refuse_unspellable(key)
            _refuse_unspellable(member)
    else:
        for member in value:
            _refuse_unspellable(member)


def row_major(shape: Sequence[int], item_bytes: int) -> list[int]:
    """Returns the strides in bytes of a packed tensor, last dimension fastest."""
    strides = [item_bytes]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return strides


def identity(**changes: Any) -> dict[str, Any]:
    """Returns the required top-level members for a very small cache, with `changes` made."""
    members: dict[str, Any] = {
        "model_revision": "example/model@0123456789abcdef",
        "tokenizer_sha256": "ab" * 32,
        "rope_theta": 10000.0,
        "layers": 1,
        "kv_heads": 1,
        "head_dim": 2,
        "dtype": "u8",
        "layout": "layer-major-k-then-v",
        "sequence_start": 0,
        "sequence_length": 3,
    }
    members.update(changes)
    return members


def with_manifest(members: Mapping[str, Any], batch_size: int = 1) -> dict[str, Any]:
    """Returns the members and the version 1 manifest that follows from them."""
    shape = [batch_size, members["kv_heads"], members["sequence_length"], members["head_dim"]]
    item_bytes = ITEM_BYTES[members["dtype"]]
    nbytes = math.prod(shape) * item_bytes
    records = []
    for index in range(2 * members["layers"]):
        kind = ("key", "value")[index % 2]
        records.append(
            {
                "name": f"layer.{index // 2}.{kind}",
                "kind": kind,
                "layer": index // 2,
                "shape": list(shape),
                "strides": row_major(shape, item_bytes),
                "offset": index * nbytes,
                "nbytes": nbytes,
                "dtype": members["dtype"],
            }
        )
    manifest = {
        "version": 1,
        "byte_order": "little",
        "batch_size": batch_size,
        "cache_class": "dynamic",
        "attention_type": "causal",
        "tensors": records,
    }
    return {**members, "tensor_manifest": manifest}


# ---- Manifest version 2 --------------------------------------------------------------------------

ROLES = (
    *("key", "value", "indexer_key", "conv_state", "recurrent_state", "packed_key", "key_scale"),
    *("key_zero", "packed_value", "value_scale", "value_zero", "token_ids", "attention_mask"),
)
STATES = ("conv_state", "recurrent_state")

# The names of axes, by role and number of dimensions; everything else gets dim_0, dim_1, ...
AXES = {
    **{(role, 4): ("batch", "head", "sequence", "head_dim") for role in ROLES[:3]},
    ("conv_state", 3): ("batch", "channel", "kernel"),
    ("recurrent_state", 4): ("batch", "head", "key_dim", "value_dim"),
    ("token_ids", 2): ("batch", "sequence"),
    ("attention_mask", 2): ("batch", "sequence"),
}


@dataclass
class Tensor:
    """A tensor of manifest version 2, before its layer gives it a name and an offset."""

    role: str
    shape: Sequence[int]
    axes: Sequence[str] | None = None
    dtype: str = "u8"
    index: int = 0
    packing: Mapping[str, Any] | None = None

    def nbytes(self) -> int:
        """Returns its size."""
        return math.prod(self.shape) * ITEM_BYTES_2[self.dtype]

    def record(self, layer: int | None) -> dict[str, Any]:
        """Returns its record, in which `place` has yet to set what depends on other records."""
        axes = self.axes
        if axes is None:
            rank = len(self.shape)
            axes = AXES.get((self.role, rank), [f"dim_{k}" for k in range(rank)])
        return {
            "axes": list(axes),
            "dtype": self.dtype,
            "index": self.index,
            "layer": layer,
            "name": "",
            "nbytes": 0,
            "offset": 0,
            "packing": None if self.packing is None else dict(self.packing),
            "role": self.role,
            "shape": list(self.shape),
        }


@dataclass
class Layer:
    """A layer of manifest version 2 and its tensors. None means: what the tensors suggest."""

    kind: str = "full"
    tensors: Sequence[Tensor] = ()
    cache: str = "self"
    stored_tokens: int | None = None
    positions_seen: int | None = None
    state: str | None = None
    window: int | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, Any] = field(default_factory=dict)
    class_name: str = "DynamicLayer"

    def record(self, number: int, tokens: int) -> dict[str, Any]:
        """Returns its record; `tokens` is what the cache has seen."""
        state, stored, seen = self.state, self.stored_tokens, self.positions_seen
        if state is None:
            filled = any(tensor.nbytes() > 0 for tensor in self.tensors)
            state = "filled" if filled else "empty" if self.tensors or seen else "uninitialized"
        if stored is None:
            sizes = [
                dict(zip(tensor.record(0)["axes"], tensor.shape, strict=True)).get("sequence", 0)
                for tensor in self.tensors
                if tensor.role == "key"
            ]
            stored = sizes[0] if sizes and state == "filled" else 0
        if seen is None:
            seen = 0 if state == "uninitialized" else max(stored, tokens)
        return {
            "aliases": dict(self.aliases),
            "cache": self.cache,
            "class": self.class_name,
            "flags": dict(self.flags),
            "kind": self.kind,
            "layer": number,
            "positions_seen": seen,
            "state": state,
            "stored_tokens": stored,
            "window": self.window,
        }


def key_value(
    tokens: int = 3, heads: int = 1, head_dim: int = 2, batch_size: int = 1, dtype: str = "u8"
) -> list[Tensor]:
    """Returns the keys and values of a layer."""
    shape = [batch_size, heads, tokens, head_dim]
    return [Tensor(role, shape, dtype=dtype) for role in ("key", "value")]


def packing_of(role: str, shape: Sequence[int], bits: int, zero: bool = True) -> dict[str, Any]:
    """Returns the packing of `packed_key` or `packed_value`; `shape` is the unpacked one."""
    kind = role.removeprefix("packed_")
    return {
        "axis": -1,
        "bits": bits,
        "codec": "example/groups",
        "dtype": "f16",
        "group_size": 32,
        "scale": f"{kind}_scale",
        "shape": list(shape),
        "zero": f"{kind}_zero" if zero else None,
    }


def packed(
    tokens: int = 4, head_dim: int = 4, bits: int = 4, zero: bool = True, batch_size: int = 1
) -> list[Tensor]:
    """Returns the packed keys and values of a layer, their scales, and their zeros where asked."""
    shape = [batch_size, 1, tokens, head_dim]
    elements = math.prod(shape)
    tensors = []
    for kind in ("key", "value"):
        role = f"packed_{kind}"
        packing = packing_of(role, shape, bits, zero)
        size = -(-elements * bits // 8)
        tensors.append(Tensor(role, [1, size], ["group", "element"], packing=packing))
        tensors.append(Tensor(f"{kind}_scale", [1, 1], ["group", "element"], "f16"))
        if zero:
            tensors.append(Tensor(f"{kind}_zero", [1, 1], ["group", "element"], "f16"))
    return tensors


def place(manifest: Mapping[str, Any]) -> None:
    """Sets name, nbytes and offset of every record of a manifest of version 2 from the rest."""
    offset = 0
    for record in manifest["tensors"]:
        name = record["role"]
        if record["layer"] is not None:
            layer = manifest["layers"][record["layer"]]
            prefix = "cross" if layer["cache"] == "cross" else "layer"
            name = f"{prefix}.{layer['layer']}.{name}"
        if record["role"] in STATES:
            name += f".{record['index']}"
        nbytes = math.prod(record["shape"]) * ITEM_BYTES_2[record["dtype"]]
        record.update(name=name, nbytes=nbytes, offset=offset)
        offset += nbytes


def with_manifest_2(
    members: Mapping[str, Any],
    layers: Sequence[Layer],
    cache_tensors: Sequence[Tensor] = (),
    batch_size: int = 1,
    **changes: Any,
) -> dict[str, Any]:
    """Returns the members and a manifest of version 2; `changes` are members of the manifest.

    The layers and the tensors of each are in the order that they are to have. The top-level
    `layers` and `sequence_length` follow from them; a layer for which nothing else is said has seen
    as many tokens as the given `sequence_length`.
    """
    rows: list[dict[str, Any]] = []
    records: list[dict[str, Any]] = []
    counts = {"self": 0, "cross": 0}
    for layer in layers:
        number = counts[layer.cache]
        counts[layer.cache] += 1
        records += [tensor.record(len(rows)) for tensor in layer.tensors]
        rows.append(layer.record(number, members["sequence_length"]))
    records += [tensor.record(None) for tensor in cache_tensors]
    manifest: dict[str, Any] = {
        "batch_size": batch_size,
        "byte_order": "little",
        "cache_class": "DynamicCache",
        "framework": {"name": "example", "version": "1.0"},
        "info": {},
        "layers": rows,
        "state_schema": "hf/attention",
        "tensors": records,
        "version": 2,
        "wrapper": "encoder_decoder" if counts["cross"] else "none",
    }
    manifest.update(changes)
    place(manifest)
    seen = [row["positions_seen"] for row in rows if row["cache"] == "self"]
    top = {"layers": len(seen), "sequence_length": max(seen, default=0)}
    return {**members, **top, "tensor_manifest": manifest}


def bits_of(metadata: Mapping[str, Any]) -> int:
    """Returns the bits of `incompat` that metadata ask for."""
    manifest = metadata.get("tensor_manifest")
    second = isinstance(manifest, Mapping) and repr(manifest.get("version")) == "2"
    return MANIFEST_2 * second | SEGMENT * ("parent_root" in metadata)


# ---- File ---------------------------------------------------------------------------------------


@dataclass
class Parts:
    """A KVC1 file in parts. None means: compute it from the others.

    `tensors` are the stored tensors' bytes, in order. `tensor_count` None writes their number,
    except that an opaque payload, one tensor without a manifest, is made with tensor_count=0.
    """

    metadata: bytes
    tensors: list[bytes]

    magic: bytes = MAGIC
    version_major: int = 1
    version_minor: int = 0
    header_bytes: int = HEADER_BYTES
    incompat: int = 0
    ro_compat: int = 0
    compat: int = 0
    file_bytes: int | None = None
    metadata_bytes: int | None = None
    payload_span: int | None = None
    tensor_count: int | None = None
    digest_alg: int = 1
    chunk_log2: int = 16
    align_log2: int = 0
    header_reserved: bytes = bytes(49)
    header_check: bytes | None = None

    head_padding: bytes | None = None
    payload: bytes | None = None
    tail_padding: bytes | None = None
    rows: list[list[bytes]] | None = None
    digests: list[bytes] | None = None

    root: bytes | None = None
    key: bytes | None = None
    tag: bytes | None = None
    footer_file_bytes: int | None = None
    footer_reserved: bytes = bytes(40)
    footer_check: bytes | None = None
    end_magic: bytes = END_MAGIC
    footer: bytes | None = None
    trailing: bytes = b""

    def payload_offset(self) -> int:
        """P: where the payload begins."""
        return round_up(HEADER_BYTES + len(self.metadata), PAYLOAD_ALIGN)

    def starts(self) -> list[int]:
        """Returns where each tensor begins, counted from P; one of no bytes begins nowhere."""
        step = 1 << self.align_log2 if self.align_log2 < 64 else 1
        starts, end = [], 0
        for data in self.tensors:
            if data:
                end = round_up(end, step)
            starts.append(end)
            end += len(data)
        return starts

    def stored_payload(self) -> bytes:
        """Returns the payload with its gaps."""
        if self.payload is not None:
            return self.payload
        out = bytearray()
        for start, data in zip(self.starts(), self.tensors, strict=True):
            if data:
                out += bytes(start - len(out)) + data
        return bytes(out)

    def trailer_offset(self) -> int:
        """T: where the trailer begins."""
        return round_up(self.payload_offset() + len(self.stored_payload()), TRAILER_ALIGN)

    def stored_rows(self) -> list[list[bytes]]:
        """Returns the chunk values of every tensor, an empty row where none are stored."""
        if self.rows is None:
            self.rows = [chunk_values(data) for data in self.tensors]
        return self.rows

    def stored_digests(self) -> list[bytes]:
        """Returns the digests of the tensors; a given row is combined, as a forger would."""
        if self.digests is None:
            rows = self.stored_rows()
            self.digests = [
                tensor_digest(data, row) for data, row in zip(self.tensors, rows, strict=True)
            ]
        return self.digests

    def stored_root(self) -> bytes:
        """Returns the root in the footer."""
        if self.root is not None:
            return self.root
        return root_of(self.metadata, self.stored_digests())

    def header(self, file_bytes: int) -> bytes:
        """Returns the 128 bytes at the start."""
        span = self.payload_span
        count = self.tensor_count
        body = self.magic + struct.pack(
            "<HHIQQQQQQIBBB",
            self.version_major,
            self.version_minor,
            self.header_bytes,
            self.incompat,
            self.ro_compat,
            self.compat,
            file_bytes if self.file_bytes is None else self.file_bytes,
            len(self.metadata) if self.metadata_bytes is None else self.metadata_bytes,
            len(self.stored_payload()) if span is None else span,
            len(self.tensors) if count is None else count,
            self.digest_alg,
            self.chunk_log2,
            self.align_log2,
        )
        body += self.header_reserved
        return body + (blake3(body)[:8] if self.header_check is None else self.header_check)

    def footer_of(self, file_bytes: int) -> bytes:
        """Returns the 128 bytes at the end."""
        if self.footer is not None:
            return self.footer
        tag = self.tag
        root = self.stored_root()
        if tag is None:
            tag = bytes(32) if self.key is None else tag_of(root, self.key)
        again = self.footer_file_bytes
        if again is None:
            again = file_bytes if self.file_bytes is None else self.file_bytes
        body = root + tag + struct.pack("<Q", again) + self.footer_reserved
        check = blake3(body)[:8] if self.footer_check is None else self.footer_check
        return body + check + self.end_magic

    def encode(self) -> bytes:
        """Returns the whole file."""
        payload = self.stored_payload()
        head = self.head_padding
        if head is None:
            head = bytes(self.payload_offset() - HEADER_BYTES - len(self.metadata))
        tail = self.tail_padding
        if tail is None:
            tail = bytes(self.trailer_offset() - self.payload_offset() - len(payload))
        middle = self.metadata + head + payload + tail
        middle += b"".join(value for row in self.stored_rows() for value in row)
        middle += b"".join(self.stored_digests())
        file_bytes = HEADER_BYTES + len(middle) + FOOTER_BYTES
        return self.header(file_bytes) + middle + self.footer_of(file_bytes) + self.trailing


def encode(
    metadata: Mapping[str, Any] | bytes, tensors: Sequence[bytes] | bytes, **changes: Any
) -> bytes:
    """Returns a file: `tensors` is one bytes object for an opaque payload, else a list of them."""
    return parts(metadata, tensors, **changes).encode()


def parts(
    metadata: Mapping[str, Any] | bytes, tensors: Sequence[bytes] | bytes, **changes: Any
) -> Parts:
    """The same, in parts. Version and feature bits are those that the metadata ask for."""
    if isinstance(metadata, Mapping):
        changes.setdefault("incompat", bits_of(metadata))
        changes.setdefault("version_minor", int(any(name in metadata for name in NAMES_1_1)))
    text = metadata if isinstance(metadata, bytes) else canonical(metadata)
    if isinstance(tensors, bytes):
        changes.setdefault("tensor_count", 0)
        tensors = [tensors]
    return Parts(text, list(tensors), **changes)
