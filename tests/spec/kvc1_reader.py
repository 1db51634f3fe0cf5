"""kvc1_reader.py: judges a KVC1 file by the steps of docs/FORMAT.md, section 11.

SPDX-License-Identifier: Apache-2.0

A second reader, from the specification and the standard library alone. It takes a whole file in
memory and does the steps in their order, in the plainest way; it is made to be compared, not to be
fast or to hold off large files. Caller's limits, expected roots, keys and identities are left out.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from b3 import blake3, combine, subtree
from kvc1 import (
    END_MAGIC,
    FOOTER_BYTES,
    HEADER_BYTES,
    ITEM_BYTES,
    MAGIC,
    MAX_INTEGER,
    PAYLOAD_ALIGN,
    TRAILER_ALIGN,
    canonical,
    grid,
    root_of,
    round_up,
    row_major,
)


class Refused(Exception):
    """A file that is not valid, with the status and the place of the violation."""

    def __init__(self, status: str, place: int | str, message: str) -> None:
        super().__init__(f"{status} at {place}: {message}")
        self.status = status
        self.place = place


def _refuse_unless(condition: bool, status: str, place: int | str, message: str) -> None:
    if not condition:
        raise Refused(status, place, message)


@dataclass
class File:
    """A file that was found valid."""

    version_minor: int = 0
    incompat: int = 0
    ro_compat: int = 0
    compat: int = 0
    file_bytes: int = 0
    metadata_bytes: int = 0
    payload_span: int = 0
    tensor_count: int = 0
    align_log2: int = 0
    root: bytes = b""
    tag: bytes = b""
    metadata_text: bytes = b""
    metadata: dict[str, Any] = field(default_factory=dict)
    digests: list[bytes] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)

    @property
    def payload_offset(self) -> int:
        """P."""
        return round_up(HEADER_BYTES + self.metadata_bytes, PAYLOAD_ALIGN)

    @property
    def trailer_offset(self) -> int:
        """T."""
        return round_up(self.payload_offset + self.payload_span, TRAILER_ALIGN)

    @property
    def stored_tensors(self) -> int:
        """D."""
        return max(1, self.tensor_count)


# ---- Steps 2 to 16: the frame -------------------------------------------------------------------

MANGLED = (
    b"\x89KVC1",
    b"\x09KVC1",
    b"\xc2\x89KVC1",
    b"\xe2\x80\xb0KVC1",
    b"\xef\xbf\xbdKVC1",
    b"?KVC1",
    b"KVC1\r\n",
    b"KVC1\n",
)


def _u(data: bytes, offset: int, size: int) -> int:
    return int.from_bytes(data[offset : offset + size], "little")


def _read_magic(data: bytes) -> None:
    _refuse_unless(len(data) > 0, "empty", 0, "no bytes")
    if data[:8] != MAGIC[: len(data)]:
        status = "mangled" if data.startswith(MANGLED) else "foreign"
        raise Refused(status, 0, f"begins with {data[:8].hex()}")
    _refuse_unless(len(data) >= HEADER_BYTES, "truncated", len(data), "cut inside the header")


def _read_header(data: bytes) -> File:
    check = blake3(data[:120])[:8]
    _refuse_unless(data[120:128] == check, "header_check", 120, "does not match")
    _refuse_unless(_u(data, 8, 2) == 1, "version", 8, f"major {_u(data, 8, 2)}")
    _refuse_unless(_u(data, 16, 8) == 0, "feature", 16, f"incompat {_u(data, 16, 8):#x}")
    for name, offset, known in (
        ("digest_alg", 68, (1,)),
        ("chunk_log2", 69, (16,)),
        ("align_log2", 70, (0, 6, 12)),
    ):
        _refuse_unless(data[offset] in known, "feature", offset, f"{name} {data[offset]}")
    file = File(
        version_minor=_u(data, 10, 2),
        ro_compat=_u(data, 24, 8),
        compat=_u(data, 32, 8),
        file_bytes=_u(data, 40, 8),
        metadata_bytes=_u(data, 48, 8),
        payload_span=_u(data, 56, 8),
        tensor_count=_u(data, 64, 4),
        align_log2=data[70],
    )
    _refuse_unless(_u(data, 12, 4) == HEADER_BYTES, "structure", 12, "header_bytes")
    _refuse_zero(data, 71, 120, "structure")
    _refuse_unless(file.file_bytes <= MAX_INTEGER, "structure", 40, "file_bytes")
    _refuse_unless(2 <= file.metadata_bytes <= 16 << 20, "structure", 48, "metadata_bytes")
    _refuse_unless(file.payload_span >= 1, "structure", 56, "payload_span")
    _refuse_unless(file.tensor_count <= 65536, "structure", 64, "tensor_count")
    least = file.trailer_offset + 32 * file.stored_tensors + FOOTER_BYTES
    _refuse_unless(least <= file.file_bytes, "structure", 40, f"{least} bytes are needed")
    return file


def _refuse_zero(data: bytes, start: int, stop: int, status: str) -> None:
    rest = data[start:stop].lstrip(b"\0")
    _refuse_unless(not rest, status, stop - len(rest), "not zero")


def _read_footer(data: bytes, file: File) -> None:
    size = len(data)
    _refuse_unless(size >= file.file_bytes, "truncated", size, f"of {file.file_bytes}")
    _refuse_unless(size <= file.file_bytes, "trailing", file.file_bytes, f"{size} bytes")
    at = size - FOOTER_BYTES
    footer = data[at:]
    _refuse_unless(any(footer), "unfinished", at, "the footer is zero")
    check = blake3(footer[:112])[:8]
    _refuse_unless(footer[112:120] == check, "footer_check", at + 112, "does not match")
    _refuse_unless(footer[120:] == END_MAGIC, "footer_check", at + 120, "end magic")
    _refuse_zero(data, at + 72, at + 112, "structure")
    _refuse_unless(_u(footer, 64, 8) == size, "structure", at + 64, "file_bytes again")
    file.root, file.tag = footer[:32], footer[32:64]


def _read_digests(data: bytes, file: File) -> None:
    metadata_end = HEADER_BYTES + file.metadata_bytes
    _refuse_zero(data, metadata_end, file.payload_offset, "padding")
    payload_end = file.payload_offset + file.payload_span
    _refuse_zero(data, payload_end, file.trailer_offset, "padding")
    first = file.file_bytes - FOOTER_BYTES - 32 * file.stored_tensors
    file.digests = [data[first + 32 * i : first + 32 * i + 32] for i in range(file.stored_tensors)]
    file.metadata_text = data[HEADER_BYTES:metadata_end]
    root = root_of(file.metadata_text, file.digests)
    _refuse_unless(root == file.root, "root", file.file_bytes - FOOTER_BYTES, "does not match")


# ---- Step 20: canonical JSON --------------------------------------------------------------------


def _depth(text: bytes) -> int:
    """Returns the deepest nesting, counted without parsing: strings are cut out first."""
    bare = re.sub(rb'"(?:[^"\\]|\\.)*"', b"", text, flags=re.DOTALL)
    depth = deepest = 0
    for byte in bare:
        if byte in b"{[":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"}]":
            depth -= 1
    return deepest


def _values(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(_values(member) for member in value.values())
    if isinstance(value, list):
        return 1 + sum(_values(member) for member in value)
    return 1


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def read_json(text: bytes, tensor_count: int) -> Any:
    """Returns the value of canonical JSON, which is the JSON that its own value spells."""
    _refuse_unless(_depth(text) <= 16, "json", HEADER_BYTES, "deeper than 16")
    try:
        value = json.loads(text.decode("utf-8"), parse_constant=_no_constant)
        spelled = canonical(value)
    except (ValueError, RecursionError) as error:
        raise Refused("json", HEADER_BYTES, str(error)) from error
    _refuse_unless(spelled == text, "json", HEADER_BYTES, "not the canonical spelling")
    most = 16384 + 32 * tensor_count
    _refuse_unless(_values(value) <= most, "json", HEADER_BYTES, f"more than {most} values")
    return value


# ---- Steps 21 and 22: every member by itself ----------------------------------------------------


def _is_integer(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _integer(least: int, most: int) -> Any:
    return lambda value: _is_integer(value, least, most)


def _one_of(*choices: str) -> Any:
    return lambda value: isinstance(value, str) and value in choices


def _is_rope_theta(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0


def _four(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 4
        and all(_is_integer(entry, 1, MAX_INTEGER) for entry in value)
    )


TOP = {
    "dtype": _one_of(*ITEM_BYTES),
    "head_dim": _integer(1, 32768),
    "kv_heads": _integer(1, 32768),
    "layers": _integer(1, 32768),
    "layout": _one_of("layer-major-k-then-v"),
    "model_revision": lambda v: isinstance(v, str) and 1 <= len(v.encode()) <= 1024,
    "rope_theta": _is_rope_theta,
    "sequence_length": _integer(1, 2**31 - 1),
    "sequence_start": _integer(0, MAX_INTEGER),
    "tokenizer_sha256": lambda v: isinstance(v, str) and re.fullmatch("[0-9a-f]{64}", v),
}
OPTIONAL = {
    "tensor_manifest": lambda v: isinstance(v, dict),
    "user": lambda v: isinstance(v, dict),
}
MANIFEST = {
    "attention_type": _one_of("causal"),
    "batch_size": _integer(1, 2**31 - 1),
    "byte_order": _one_of("little"),
    "cache_class": _one_of("dynamic"),
    "tensors": lambda v: isinstance(v, list),
    "version": _integer(1, 1),
}
RECORD = {
    "dtype": _one_of(*ITEM_BYTES),
    "kind": _one_of("key", "value"),
    "layer": _integer(0, 32767),
    "name": lambda v: isinstance(v, str),
    "nbytes": _integer(1, MAX_INTEGER),
    "offset": _integer(0, MAX_INTEGER),
    "shape": _four,
    "strides": _four,
}


def _judge_members(
    value: Any, rules: dict[str, Any], optional: dict[str, Any], path: str, closed: bool
) -> None:
    _refuse_unless(isinstance(value, dict), "schema", path, "not an object")
    dot = path + "." if path else ""
    for name in sorted(set(rules) - set(value)):
        raise Refused("schema", dot + name, "missing")
    for name, member in value.items():
        rule = rules.get(name, optional.get(name))
        _refuse_unless(rule is not None or not closed, "schema", dot + name, "unknown")
        if rule is not None:
            _refuse_unless(bool(rule(member)), "schema", dot + name, f"{member!r}"[:80])


def _judge_schema(file: File) -> None:
    top = file.metadata
    _refuse_unless(isinstance(top, dict), "schema", "", "the top value is not an object")
    manifest = top.get("tensor_manifest")
    if isinstance(manifest, dict):
        version = manifest.get("version")
        newer = _is_integer(version, 2, MAX_INTEGER)
        _refuse_unless(not newer, "manifest", "tensor_manifest.version", f"{version}")
    _judge_members(top, TOP, OPTIONAL, "", file.version_minor == 0)
    loose = file.metadata_bytes
    if manifest is not None:
        loose -= len(canonical(manifest))
        _judge_members(manifest, MANIFEST, {}, "tensor_manifest", True)
        for i, record in enumerate(manifest["tensors"]):
            _judge_members(record, RECORD, {}, f"tensor_manifest.tensors[{i}]", True)
    _refuse_unless(loose <= 262144, "schema", "", f"{loose} bytes outside the manifest")


# ---- Step 23: relations -------------------------------------------------------------------------


def _judge_records(file: File) -> None:
    top = file.metadata
    manifest = top["tensor_manifest"]
    records = manifest["tensors"]
    path = "tensor_manifest.tensors"
    _refuse_unless(len(records) == 2 * top["layers"], "geometry", path, f"{len(records)} records")
    shape = [manifest["batch_size"], top["kv_heads"], top["sequence_length"], top["head_dim"]]
    item_bytes = ITEM_BYTES[top["dtype"]]
    nbytes = math.prod(shape) * item_bytes
    for i, record in enumerate(records):
        kind = ("key", "value")[i % 2]
        right = {
            "dtype": top["dtype"],
            "kind": kind,
            "layer": i // 2,
            "name": f"layer.{i // 2}.{kind}",
            "nbytes": nbytes,
            "offset": i * nbytes,
            "shape": shape,
            "strides": row_major(shape, item_bytes),
        }
        for name, value in right.items():
            message = f"{record[name]!r} instead of {value!r}"
            _refuse_unless(record[name] == value, "geometry", f"{path}[{i}].{name}", message)
    total = nbytes * len(records)
    _refuse_unless(total <= MAX_INTEGER, "geometry", path, f"{total} bytes of payload")
    file.sizes = [nbytes] * len(records)


def _judge_geometry(file: File) -> None:
    has_manifest = "tensor_manifest" in file.metadata
    _refuse_unless(has_manifest == (file.tensor_count > 0), "geometry", "tensor_count", "manifest")
    if has_manifest:
        _judge_records(file)
        count = len(file.sizes)
        _refuse_unless(file.tensor_count == count, "geometry", "tensor_count", f"not {count}")
    else:
        file.sizes = [file.payload_span]
    end, step = 0, 1 << file.align_log2
    for nbytes in file.sizes:
        file.starts.append(round_up(end, step))
        end = file.starts[-1] + nbytes
    _refuse_unless(file.payload_span == end, "geometry", "payload_span", f"not {end}")
    counts = [-(-nbytes // 65536) for nbytes in file.sizes]
    values = sum(count for count in counts if count >= 2)
    right = file.trailer_offset + 32 * (values + file.stored_tensors) + FOOTER_BYTES
    _refuse_unless(file.file_bytes == right, "geometry", "file_bytes", f"not {right}")


# ---- Steps 25 to 27: the payload ----------------------------------------------------------------


def _verify_tensor(data: bytes, at: int, row: Sequence[bytes], row_at: int, digest: bytes) -> None:
    if row:
        _refuse_unless(combine(row) == digest, "row", row_at, "does not give the tensor digest")
        for i, piece in enumerate(grid(data)):
            good = subtree(piece, 64 * i) == row[i]
            _refuse_unless(good, "chunk", at + 65536 * i, "does not match")
    else:
        _refuse_unless(blake3(data) == digest, "chunk", at, "does not match")


def _verify_payload(data: bytes, file: File) -> None:
    row_at = file.trailer_offset
    end = file.payload_offset
    for start, nbytes, digest in zip(file.starts, file.sizes, file.digests, strict=True):
        at = file.payload_offset + start
        _refuse_zero(data, end, at, "padding")
        end = at + nbytes
        tensor = data[at:end]
        count = -(-nbytes // 65536) if nbytes > 65536 else 0
        row = [data[row_at + 32 * i : row_at + 32 * i + 32] for i in range(count)]
        _verify_tensor(tensor, at, row, row_at, digest)
        row_at += 32 * count


def read(data: bytes) -> File:
    """Returns what a file holds; raises Refused where it is not valid."""
    _read_magic(data)
    file = _read_header(data)
    _read_footer(data, file)
    _read_digests(data, file)
    file.metadata = read_json(file.metadata_text, file.tensor_count)
    _judge_schema(file)
    _judge_geometry(file)
    _verify_payload(data, file)
    return file
