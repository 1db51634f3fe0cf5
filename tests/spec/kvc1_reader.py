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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from b3 import blake3, combine, subtree
from kvc1 import (
    END_MAGIC,
    FOOTER_BYTES,
    HEADER_BYTES,
    ITEM_BYTES,
    ITEM_BYTES_2,
    MAGIC,
    MANIFEST_2,
    MAX_INTEGER,
    PAYLOAD_ALIGN,
    SEGMENT,
    TRAILER_ALIGN,
    canonical,
    grid,
    root_of,
    round_up,
    row_major,
)

# The highest minor version, and the bits of `incompat`, that this reader knows.
KNOWN_MINOR = 1
KNOWN_INCOMPAT = MANIFEST_2 | SEGMENT


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
    incompat = _u(data, 16, 8)
    _refuse_unless(incompat & ~KNOWN_INCOMPAT == 0, "feature", 16, f"incompat {incompat:#x}")
    for name, offset, known in (
        ("digest_alg", 68, (1,)),
        ("chunk_log2", 69, (16,)),
        ("align_log2", 70, (0, 6, 12)),
    ):
        _refuse_unless(data[offset] in known, "feature", offset, f"{name} {data[offset]}")
    file = File(
        version_minor=_u(data, 10, 2),
        incompat=incompat,
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


# A rule says whether a value is one that a member may have.
Rule = Callable[[Any], bool]


def _integer(least: int, most: int) -> Rule:
    return lambda value: _is_integer(value, least, most)


def _one_of(*choices: str) -> Rule:
    return lambda value: isinstance(value, str) and value in choices


def _text(most: int) -> Rule:
    return lambda value: isinstance(value, str) and 1 <= len(value.encode()) <= most


def _or_null(rule: Rule) -> Rule:
    return lambda value: value is None or rule(value)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_array(value: Any) -> bool:
    return isinstance(value, list)


def _is_rope_theta(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0


def _array(rule: Rule, least: int, most: int) -> Rule:
    return lambda value: _is_array(value) and least <= len(value) <= most and all(map(rule, value))


TOP: dict[str, Rule] = {
    "dtype": _one_of(*ITEM_BYTES),
    "head_dim": _integer(1, 32768),
    "kv_heads": _integer(1, 32768),
    "layers": _integer(1, 32768),
    "layout": _one_of("layer-major-k-then-v"),
    "model_revision": _text(1024),
    "rope_theta": _is_rope_theta,
    "sequence_length": _integer(1, 2**31 - 1),
    "sequence_start": _integer(0, MAX_INTEGER),
    "tokenizer_sha256": lambda v: isinstance(v, str) and bool(re.fullmatch("[0-9a-f]{64}", v)),
}
# With manifest version 2, some members have more values.
TOP_2: dict[str, Rule] = {
    **TOP,
    "dtype": _or_null(_one_of(*ITEM_BYTES_2)),
    "head_dim": _or_null(TOP["head_dim"]),
    "kv_heads": _or_null(TOP["kv_heads"]),
}
OPTIONAL: dict[str, Rule] = {"tensor_manifest": _is_object, "user": _is_object}
OPTIONAL_1: dict[str, Rule] = {
    **OPTIONAL,
    "adapters": _array(_is_object, 0, MAX_INTEGER),
    "attention": _is_object,
    "compute_dtype": _text(64),
    "kv_quantization": _or_null(_is_object),
    "parent_root": lambda v: isinstance(v, str) and bool(re.fullmatch("kvc1:[0-9a-f]{64}", v)),
    "rope": _is_object,
    "weights_digest": _text(256),
}

MANIFEST: dict[str, Rule] = {
    "attention_type": _one_of("causal"),
    "batch_size": _integer(1, 2**31 - 1),
    "byte_order": _one_of("little"),
    "cache_class": _one_of("dynamic"),
    "tensors": _is_array,
    "version": _integer(1, 1),
}
_four = _array(_integer(1, MAX_INTEGER), 4, 4)
RECORD: dict[str, Rule] = {
    "dtype": _one_of(*ITEM_BYTES),
    "kind": _one_of("key", "value"),
    "layer": _integer(0, 32767),
    "name": lambda v: isinstance(v, str),
    "nbytes": _integer(1, MAX_INTEGER),
    "offset": _integer(0, MAX_INTEGER),
    "shape": _four,
    "strides": _four,
}

# ---- Manifest version 2: section 8.4 -------------------------------------------------------------

ROLES = (
    *("key", "value", "indexer_key", "conv_state", "recurrent_state", "packed_key", "key_scale"),
    *("key_zero", "packed_value", "value_scale", "value_zero", "token_ids", "attention_mask"),
)
CACHE_ROLES = ("token_ids", "attention_mask")
INDEXED_ROLES = ("conv_state", "recurrent_state")

_KEYS = ("key", "value")
_INDEXED = (*_KEYS, "indexer_key")
_STATES = ("conv_state", "recurrent_state")
_PACKED = ("packed_key", "key_scale", "key_zero", "packed_value", "value_scale", "value_zero")
# For each kind: whether it has a window, and its roles.
KINDS = {
    "full": (False, _KEYS),
    "sliding": (True, _KEYS),
    "chunked": (True, _KEYS),
    "static": (False, _KEYS),
    "static_sliding": (True, _KEYS),
    "indexed": (False, _INDEXED),
    "static_indexed": (False, _INDEXED),
    "linear": (False, _STATES),
    "linear_full": (False, _KEYS + _STATES),
    "linear_static": (False, _KEYS + _STATES),
    "linear_sliding": (True, _KEYS + _STATES),
    "linear_static_sliding": (True, _KEYS + _STATES),
    "quantized": (False, _KEYS + _PACKED),
}
INTEGER_DTYPES = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "bool")


def _are_axes(value: Any) -> bool:
    name = re.compile("[a-z][a-z0-9_]{0,31}")
    return (
        _is_array(value)
        and all(isinstance(axis, str) and name.fullmatch(axis) for axis in value)
        and len(set(value)) == len(value)
    )


def _are_aliases(value: Any) -> bool:
    return _is_object(value) and all(map(_one_of(*ROLES), [*value, *value.values()]))


_shape = _array(_integer(0, MAX_INTEGER), 0, 8)

MANIFEST_TABLE: dict[str, Rule] = {
    "batch_size": _integer(1, 2**31 - 1),
    "byte_order": _one_of("little"),
    "cache_class": _text(128),
    "framework": _is_object,
    "info": _is_object,
    "layers": _array(lambda _: True, 1, MAX_INTEGER),
    "state_schema": _text(128),
    "tensors": _array(lambda _: True, 1, MAX_INTEGER),
    "version": _integer(2, 2),
    "wrapper": _one_of("none", "encoder_decoder"),
}
FRAMEWORK: dict[str, Rule] = {"name": _text(64), "version": _text(64)}
LAYER: dict[str, Rule] = {
    "aliases": _are_aliases,
    "cache": _one_of("self", "cross"),
    "class": _text(128),
    "flags": _is_object,
    "kind": _one_of(*KINDS),
    "layer": _integer(0, 32767),
    "positions_seen": _integer(0, 2**31 - 1),
    "state": _one_of("uninitialized", "empty", "filled"),
    "stored_tokens": _integer(0, 2**31 - 1),
    "window": _or_null(_integer(1, 2**31 - 1)),
}
TENSOR: dict[str, Rule] = {
    "axes": _are_axes,
    "dtype": _one_of(*ITEM_BYTES_2),
    "index": _integer(0, 255),
    "layer": _or_null(_integer(0, MAX_INTEGER)),
    "name": lambda v: isinstance(v, str),
    "nbytes": _integer(0, MAX_INTEGER),
    "offset": _integer(0, MAX_INTEGER),
    "packing": _or_null(_is_object),
    "role": _one_of(*ROLES),
    "shape": _shape,
}
PACKING: dict[str, Rule] = {
    "axis": _integer(-1, 7),
    "bits": _integer(1, 8),
    "codec": _text(64),
    "dtype": _one_of(*ITEM_BYTES_2),
    "group_size": _or_null(_integer(1, 2**31 - 1)),
    "scale": _one_of("key_scale", "value_scale"),
    "shape": _shape,
    "zero": _or_null(_one_of("key_zero", "value_zero")),
}


def _judge_members(
    value: Any,
    rules: Mapping[str, Rule],
    path: str,
    optional: Mapping[str, Rule] | None = None,
    closed: bool = True,
) -> None:
    _refuse_unless(isinstance(value, dict), "schema", path, "not an object")
    dot = path + "." if path else ""
    for name in sorted(set(rules) - set(value)):
        raise Refused("schema", dot + name, "missing")
    for name, member in value.items():
        rule = rules.get(name, (optional or {}).get(name))
        _refuse_unless(rule is not None or not closed, "schema", dot + name, "unknown")
        if rule is not None:
            _refuse_unless(rule(member), "schema", dot + name, f"{member!r}"[:80])


def _judge_manifest_1(manifest: dict[str, Any]) -> None:
    path = "tensor_manifest"
    _judge_members(manifest, MANIFEST, path)
    for i, record in enumerate(manifest["tensors"]):
        _judge_members(record, RECORD, f"{path}.tensors[{i}]")


def _judge_manifest_2(manifest: dict[str, Any]) -> None:
    path = "tensor_manifest"
    _judge_members(manifest, MANIFEST_TABLE, path)
    _judge_members(manifest["framework"], FRAMEWORK, f"{path}.framework")
    for i, layer in enumerate(manifest["layers"]):
        _judge_members(layer, LAYER, f"{path}.layers[{i}]")
    for i, record in enumerate(manifest["tensors"]):
        place = f"{path}.tensors[{i}]"
        _judge_members(record, TENSOR, place)
        if record["packing"] is not None:
            _judge_members(record["packing"], PACKING, f"{place}.packing")


def _has_table(manifest: Any) -> bool:
    """Whether a manifest is of version 2."""
    return isinstance(manifest, dict) and _is_integer(manifest.get("version"), 2, 2)


def _judge_schema(file: File) -> None:
    top = file.metadata
    _refuse_unless(isinstance(top, dict), "schema", "", "the top value is not an object")
    manifest = top.get("tensor_manifest")
    if isinstance(manifest, dict):
        version = manifest.get("version")
        newer = _is_integer(version, 3, MAX_INTEGER)
        _refuse_unless(not newer, "manifest", "tensor_manifest.version", f"{version}")
    rules = TOP_2 if _has_table(manifest) else TOP
    optional = OPTIONAL if file.version_minor == 0 else OPTIONAL_1
    _judge_members(top, rules, "", optional, file.version_minor <= KNOWN_MINOR)
    loose = file.metadata_bytes
    if manifest is not None:
        loose -= len(canonical(manifest))
        judge = _judge_manifest_2 if _has_table(manifest) else _judge_manifest_1
        judge(manifest)
    _refuse_unless(loose <= 262144, "schema", "", f"{loose} bytes outside the manifest")


# ---- Step 23: relations -------------------------------------------------------------------------


def _relate(condition: bool, place: str, message: str) -> None:
    _refuse_unless(condition, "geometry", place, message)


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


def _judge_layer(record: dict[str, Any], place: str) -> None:
    """Judges the members of a layer record against each other."""
    kind, seen, stored = record["kind"], record["positions_seen"], record["stored_tokens"]
    _relate(stored <= seen, f"{place}.stored_tokens", f"{stored} of {seen}")
    _relate(stored == 0 or kind != "linear", f"{place}.stored_tokens", f"{stored} in linear")
    has_window = record["window"] is not None
    _relate(has_window == KINDS[kind][0], f"{place}.window", f"{record['window']} in {kind}")
    if record["state"] == "uninitialized":
        _relate(seen == 0, f"{place}.positions_seen", f"{seen} in an uninitialized layer")
    if record["state"] != "filled":
        _relate(stored == 0, f"{place}.stored_tokens", f"{stored} in a layer that is not filled")
        _relate(not record["aliases"], f"{place}.aliases", "in a layer that is not filled")


def _judge_layers(file: File) -> None:
    """Judges the table of layers by itself and against the top level."""
    top, manifest = file.metadata, file.metadata["tensor_manifest"]
    path, layers = "tensor_manifest.layers", manifest["layers"]
    own = [record for record in layers if record["cache"] == "self"]
    for i, record in enumerate(layers):
        cache, number = ("self", i) if i < len(own) else ("cross", i - len(own))
        _relate(record["cache"] == cache, f"{path}[{i}].cache", f"instead of {cache}")
        _relate(record["layer"] == number, f"{path}[{i}].layer", f"instead of {number}")
        _judge_layer(record, f"{path}[{i}]")
    _relate(len(own) > 0, path, "there is no layer of self")
    cross = len(layers) > len(own)
    _relate(not cross or manifest["wrapper"] == "encoder_decoder", f"{path}", "cross in none")
    _relate(top["layers"] == len(own), "layers", f"not {len(own)}")
    seen = max(record["positions_seen"] for record in own)
    _relate(top["sequence_length"] == seen, "sequence_length", f"not {seen}")


def _judge_place(manifest: dict[str, Any], record: dict[str, Any], place: str) -> None:
    """Judges what ties a tensor record to its layer: role, index, name, packing."""
    role, layer = record["role"], record["layer"]
    layers = manifest["layers"]
    _relate((layer is None) == (role in CACHE_ROLES), f"{place}.layer", f"{layer} for {role}")
    name = role
    if layer is not None:
        _relate(layer < len(layers), f"{place}.layer", f"{layer} of {len(layers)}")
        owner = layers[layer]
        _relate(role in KINDS[owner["kind"]][1], f"{place}.role", f"in {owner['kind']}")
        prefix = {"self": "layer", "cross": "cross"}[owner["cache"]]
        name = f"{prefix}.{owner['layer']}.{role}"
    if role in INDEXED_ROLES:
        name += f".{record['index']}"
    else:
        _relate(record["index"] == 0, f"{place}.index", f"{record['index']} for {role}")
    _relate(record["name"] == name, f"{place}.name", f"not {name}")
    packed = role in ("packed_key", "packed_value")
    _relate((record["packing"] is not None) == packed, f"{place}.packing", f"for {role}")


def _judge_axes(manifest: dict[str, Any], record: dict[str, Any], place: str) -> None:
    """Judges the shape of a tensor."""
    role, axes, shape = record["role"], record["axes"], record["shape"]
    _relate(len(axes) == len(shape), f"{place}.axes", f"{len(axes)} for {len(shape)} dimensions")
    sizes = dict(zip(axes, shape, strict=True))
    batch = sizes.get("batch", manifest["batch_size"])
    _relate(batch == manifest["batch_size"], f"{place}.shape", f"a batch of {batch}")
    if role in CACHE_ROLES:
        _relate(axes == ["batch", "sequence"], f"{place}.axes", f"of {role}")
        _relate(record["dtype"] in INTEGER_DTYPES, f"{place}.dtype", f"of {role}")
    if role in ("key", "value"):
        layer = manifest["layers"][record["layer"]]
        stored, found = layer["stored_tokens"], sizes.get("sequence")
        if layer["kind"] == "quantized":
            _relate((found or 0) <= stored, f"{place}.shape", f"{found} of {stored} tokens")
        elif layer["state"] == "filled":
            _relate(found == stored, f"{place}.shape", f"{found} instead of {stored} tokens")


def _judge_tensors(file: File) -> None:
    """Judges the table of tensors, one after the other."""
    manifest = file.metadata["tensor_manifest"]
    before: tuple[float, int, int] = (-1, 0, 0)
    total = 0
    for i, record in enumerate(manifest["tensors"]):
        place = f"tensor_manifest.tensors[{i}]"
        _judge_place(manifest, record, place)
        _judge_axes(manifest, record, place)
        layer = math.inf if record["layer"] is None else record["layer"]
        rank = (layer, ROLES.index(record["role"]), record["index"])
        _relate(before < rank, place, "out of order, or a second one")
        before = rank
        nbytes = math.prod(record["shape"]) * ITEM_BYTES_2[record["dtype"]]
        _relate(record["nbytes"] == nbytes, f"{place}.nbytes", f"not {nbytes}")
        _relate(record["offset"] == total, f"{place}.offset", f"not {total}")
        file.sizes.append(nbytes)
        total += nbytes
    _relate(total > 0, "tensor_manifest.tensors", "no tensor has bytes")
    _relate(total <= MAX_INTEGER, "tensor_manifest.tensors", f"{total} bytes of payload")


def _judge_contents(manifest: dict[str, Any]) -> None:
    """Judges what each layer holds: state, aliases, and what must or must not be together."""
    held: list[dict[str, dict[str, Any]]] = [{} for _ in manifest["layers"]]
    filled = set()
    for record in manifest["tensors"]:
        if record["layer"] is not None:
            held[record["layer"]][record["role"]] = record
            if record["nbytes"] > 0:
                filled.add(record["layer"])
    for i, layer in enumerate(manifest["layers"]):
        place = f"tensor_manifest.layers[{i}]"
        state, kind, has = layer["state"], layer["kind"], held[i]
        _relate((state == "filled") == (i in filled), f"{place}.state", f"{state}")
        _relate(state != "uninitialized" or not has, f"{place}.state", "it has tensors")
        for first, second in layer["aliases"].items():
            for role in (first, second):
                fits = role in KINDS[kind][1] and role not in INDEXED_ROLES
                _relate(fits, f"{place}.aliases", f"{role} in {kind}")
            _relate(first not in has, f"{place}.aliases", f"{first} is there itself")
            _relate(second in has, f"{place}.aliases", f"{second} is not there")
        if state == "filled" and kind == "quantized":
            _relate("packed_key" in has and "packed_value" in has, place, "not packed")
        elif state == "filled" and kind != "linear":
            both = {"key", "value"} <= set(has) | set(layer["aliases"])
            _relate(both, place, "no key or no value")
        _judge_packed(has, place)


def _judge_packed(has: dict[str, dict[str, Any]], place: str) -> None:
    """Judges that packed tensors, scales and zeros of a layer belong together."""
    for kind in ("key", "value"):
        packed = has.get(f"packed_{kind}")
        scale = zero = False
        if packed is not None:
            packing = packed["packing"]
            scale, zero = True, packing["zero"] is not None
            right = (packing["scale"], packing["zero"] or f"{kind}_zero")
            _relate(right == (f"{kind}_scale", f"{kind}_zero"), place, f"{right} for {kind}")
        _relate((f"{kind}_scale" in has) == scale, place, f"{kind}_scale")
        _relate((f"{kind}_zero" in has) == zero, place, f"{kind}_zero")


def _judge_bits(file: File) -> None:
    """Judges the feature bits against the members that they go with."""
    table = _has_table(file.metadata.get("tensor_manifest"))
    bit = bool(file.incompat & MANIFEST_2)
    _relate(bit == table, "tensor_manifest.version", f"MANIFEST_2 is {bit:d}")
    parent, bit = "parent_root" in file.metadata, bool(file.incompat & SEGMENT)
    # A later minor version may let an unknown name pass, but this name is known in all of them.
    _relate(bit == parent, "parent_root", f"SEGMENT is {bit:d}")
    start = file.metadata["sequence_start"]
    _relate(not parent or start >= 1, "sequence_start", f"{start} in a segment")


def _judge_geometry(file: File) -> None:
    has_manifest = "tensor_manifest" in file.metadata
    _refuse_unless(has_manifest == (file.tensor_count > 0), "geometry", "tensor_count", "manifest")
    _judge_bits(file)
    if has_manifest:
        if file.incompat & MANIFEST_2:
            _judge_layers(file)
            _judge_tensors(file)
            _judge_contents(file.metadata["tensor_manifest"])
        else:
            _judge_records(file)
        count = len(file.sizes)
        _refuse_unless(file.tensor_count == count, "geometry", "tensor_count", f"not {count}")
    else:
        file.sizes = [file.payload_span]
    end, step = 0, 1 << file.align_log2
    for nbytes in file.sizes:
        # A tensor of no bytes has no place, and nothing is aligned for it.
        start = round_up(end, step) if nbytes > 0 else end
        file.starts.append(start)
        end = start + nbytes
    _refuse_unless(file.payload_span == end, "geometry", "payload_span", f"not {end}")
    counts = [-(-nbytes // 65536) for nbytes in file.sizes]
    values = sum(count for count in counts if count >= 2)
    right = file.trailer_offset + 32 * (values + file.stored_tensors) + FOOTER_BYTES
    _refuse_unless(file.file_bytes == right, "geometry", "file_bytes", f"not {right}")


# ---- Steps 23a and 25 to 27: the payload ---------------------------------------------------------


def _judge_empty(file: File) -> None:
    """Judges the digests of tensors without bytes, which no use of the payload would touch."""
    for i, (nbytes, digest) in enumerate(zip(file.sizes, file.digests, strict=True)):
        place = file.file_bytes - FOOTER_BYTES - 32 * (file.stored_tensors - i)
        _refuse_unless(nbytes > 0 or digest == blake3(b""), "chunk", place, "not of no bytes")


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
        if nbytes == 0:
            continue
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
    _judge_empty(file)
    _verify_payload(data, file)
    return file
