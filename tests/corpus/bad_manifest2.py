"""bad_manifest2.py: hostile files with a manifest of version 2, a parent, or names of format 1.1.

SPDX-License-Identifier: Apache-2.0

Here are those that are wrong by themselves: members that are missing, unknown, of a wrong type or
out of range, and versions and bits. Each breaks one rule and is correctly re-signed. What
contradicts something else is in bad_tables.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bad_metadata import path_text, word
from cases import (
    MISSING,
    Bad,
    MemberPath,
    cache,
    changed_2,
    full_2,
    kvc1,
    quantized_2,
    set_member,
    tensors_of,
    tokens_2,
    two_2,
)

BIG = 2**53 - 1
MANIFEST = "tensor_manifest"
PARENT = "kvc1:" + "0123456789abcdef" * 4

Base = Callable[[], dict[str, Any]]

# ---- Members by themselves -----------------------------------------------------------------------

MANIFEST_VALUES: dict[str, list[Any]] = {
    "batch_size": ["1", 1.0, None, 0, 2**31],
    "byte_order": [1, None, "big"],
    "cache_class": [1, None, "", "c" * 129],
    "framework": [1, None, "example 1.0", []],
    "info": [1, None, "", []],
    "layers": [1, None, {}, []],
    "state_schema": [1, None, "", "\u00e9" * 65],
    "tensors": [1, None, {}, []],
    "version": ["2", 2.0, None, True, 0],
    "wrapper": [1, None, "", "decoder", "None"],
}
FRAMEWORK_VALUES: dict[str, list[Any]] = {
    "name": [1, None, "", "n" * 65],
    "version": [1.0, None, "", "v" * 65],
}
LAYER_VALUES: dict[str, list[Any]] = {
    "aliases": [None, [], "value"],
    "cache": [1, None, "", "both", "Self"],
    "class": [1, None, "", "c" * 129],
    "flags": [1, None, []],
    "kind": [1, None, "", "Full", "mamba"],
    "layer": ["0", 0.0, None, False, -1, 32768],
    "positions_seen": ["3", 3.0, None, True, -1],
    "state": [1, None, "", "Filled", "used"],
    "stored_tokens": ["3", 3.0, None, True, -1],
}
WINDOW_VALUES = {"window": ["8", 8.0, False, 0, -1, 2**31, [8]]}
TENSOR_VALUES: dict[str, list[Any]] = {
    "axes": [None, {}, "batch", [1, 2, 3, 4], ["", "b", "c", "d"], ["a" * 33, "b", "c", "d"],
             ["Batch", "b", "c", "d"], ["1a", "b", "c", "d"], ["_a", "b", "c", "d"],
             ["a-b", "b", "c", "d"], ["a\u00e9", "b", "c", "d"],
             ["batch", "head", "sequence", "head"], [None, "b", "c", "d"], ["a\n", "b", "c", "d"]],
    "dtype": [1, None, "", "u64", "f8_e4m3", "F16", "float16"],
    "index": ["0", 0.0, None, False, -1, 256],
    "layer": ["0", 0.0, False, -1, []],
    "name": [1, None, []],
    "nbytes": ["6", 6.0, None, True, -6],
    "offset": ["0", 0.0, None, False, -6],
    "packing": [1, "", [], False],
    "role": [1, None, "", "keys", "Key"],
    "shape": [6, None, {}, "1,1,3,2", [1, 1, 3, 2.0], [1, 1, 3, "2"], [1, 1, 3, -2],
              [1, 1, 3, None], [1, 1, 3, True], [[1, 1, 3, 2]], [1, 1, 1, 1, 1, 1, 1, 3, 2]],
}  # fmt: skip
PACKING_VALUES: dict[str, list[Any]] = {
    "axis": ["0", 0.0, None, True, -2, 8],
    "bits": ["4", 4.0, None, True, 0, 9],
    "codec": [1, None, "", "c" * 65],
    "dtype": [1, None, "", "u64", "int4"],
    "group_size": ["32", 32.0, True, 0, -1, 2**31],
    "scale": [1, None, "", "scale", "key", "key_zero"],
    "shape": [1, None, {}, [1, -1], [1.0], ["1"], [1] * 9],
    "zero": [1, False, "", "zero", "value", "key_scale"],
}


def members(
    values: Mapping[str, Sequence[Any]], label: str, base: Base, holder: MemberPath = ()
) -> Iterator[Bad]:
    """Yields each member missing, and with each of its wrong values, and one unknown."""
    for name, wrong in values.items():
        seen: dict[str, int] = {}
        for value in (MISSING, *wrong):
            path = (*holder, name)
            made = changed_2(base(), (path, value), settle=False, incompat=kvc1.MANIFEST_2)
            how = "missing" if value is MISSING else word(value)
            seen[how] = seen.get(how, 0) + 1
            how += f"-{seen[how]}" if seen[how] > 1 else ""
            why = f"{name} is " + ("missing" if value is MISSING else f"{value!r}"[:80])
            # With another version, other members are wrong too.
            field = None if path == ("version",) else path_text(MANIFEST, *path)
            yield Bad("schema", f"m2-{label}-{name}-{how}", why, made.encode(), None, field)
    for name in ("", "zzz"):
        path = (*holder, name)
        data = changed_2(base(), (path, 1), settle=False).encode()
        field = path_text(MANIFEST, *path) if name else None
        case = f"m2-{label}-unknown-{name or 'empty'}"
        yield Bad("schema", case, f"the unknown member {name!r}", data, None, field)


def schema() -> Iterator[Bad]:
    """Yields the members of the manifest and of what is in it."""
    yield from members(MANIFEST_VALUES, "manifest", full_2)
    yield from members(FRAMEWORK_VALUES, "framework", full_2, ("framework",))
    yield from members(LAYER_VALUES, "layer", full_2, ("layers", 0))
    yield from members(WINDOW_VALUES, "sliding", two_2, ("layers", 1))
    yield from members(TENSOR_VALUES, "tensor", full_2, ("tensors", 1))
    yield from members(PACKING_VALUES, "packing", quantized_2, ("tensors", 0, "packing"))
    changes: dict[str, tuple[Base, MemberPath, Any]] = {
        "layer-1": (two_2, ("layers", 1), None),
        "layer-1-kind": (two_2, ("layers", 1, "kind"), "paged"),
        "layer-1-state": (two_2, ("layers", 1, "state"), MISSING),
        "layer-v1-member": (full_2, ("layers", 0, "dtype"), "u8"),
        "tensor-0": (full_2, ("tensors", 0), []),
        "tensor-v1-strides": (full_2, ("tensors", 0, "strides"), [6, 6, 2, 1]),
        "tensor-v1-kind": (full_2, ("tensors", 1, "kind"), "value"),
        "tensor-last-role": (tokens_2, ("tensors", 3, "role"), "position_ids"),
        "manifest-v1-member": (full_2, ("attention_type",), "causal"),
        "packing-value": (quantized_2, ("tensors", 3, "packing", "bits"), 16),
        "packing-value-zero-missing": (quantized_2, ("tensors", 3, "packing", "zero"), MISSING),
        "packing-empty": (quantized_2, ("tensors", 3, "packing"), {}),
    }
    for name, (base, path, value) in changes.items():
        data = changed_2(base(), (path, value), settle=False).encode()
        field = None if value == {} else path_text(MANIFEST, *path)
        why = f"{path[-1]} is " + ("missing" if value is MISSING else f"{value!r}")
        yield Bad("schema", f"m2-{name}", why, data, None, field)
    aliases: dict[str, Any] = {
        "value-integer": {"value": 1},
        "value-null": {"value": None},
        "value-array": {"value": ["key"]},
        "value-no-role": {"value": "keys"},
        "key-no-role": {"values": "key"},
        "key-empty": {"": "key"},
    }
    for name, value in aliases.items():
        data = changed_2(full_2(), (("layers", 0, "aliases"), value)).encode()
        yield Bad("schema", f"m2-aliases-{name}", f"aliases are {value}", data)


def tops() -> Iterator[Bad]:
    """Yields top-level members that a manifest of version 2 does not make looser, or not so far."""
    wrong: dict[str, list[Any]] = {
        "dtype": ["u64", "", 1, MISSING],
        "head_dim": [0, 32769, 1.0, MISSING],
        "kv_heads": [0, 32769, "1", MISSING],
        "layers": [None, 0, 32769],
        "layout": [None, "contiguous", MISSING],
        "model_revision": [None, ""],
        "rope_theta": [None, -1],
        "sequence_length": [None, 0, 2**31],
        "sequence_start": [None, -1],
        "tokenizer_sha256": [None, ""],
        "user": [None, 1],
    }
    for name, values in wrong.items():
        for i, value in enumerate(values):
            metadata = full_2()
            tensors = tensors_of(metadata)
            metadata.setdefault(name, {})
            set_member(metadata, (name,), value)
            data = kvc1.encode(metadata, tensors)
            why = f"{name} is " + ("missing" if value is MISSING else f"{value!r}")
            yield Bad("schema", f"m2-top-{name}-{i}", why, data, None, name)
    for dtype in ("f64", "f8_e4m3fn", "bool", "i16"):
        metadata, tensors = cache(dtype="i8")
        metadata["dtype"] = dtype
        why = f"{dtype} at the top, with a manifest of version 1"
        data = kvc1.encode(metadata, tensors)
        yield Bad("schema", f"manifest-1-dtype-{dtype}", why, data, None, "dtype")
    for name in ("dtype", "head_dim", "kv_heads"):
        data = kvc1.encode(kvc1.identity(**{name: None}), b"opaque")
        yield Bad("schema", f"opaque-{name}-null", f"{name} is null", data, None, name)
    metadata = full_2()
    tensors = tensors_of(metadata)
    metadata["user"] = {"pad": ""}
    loose = len(kvc1.canonical(metadata)) - len(kvc1.canonical(metadata[MANIFEST]))
    metadata["user"]["pad"] = "x" * (262145 - loose)
    why = "262,145 bytes of metadata outside the manifest of version 2"
    yield Bad("schema", "m2-loose-262145", why, kvc1.encode(metadata, tensors))


NAME_VALUES: dict[str, list[Any]] = {
    "adapters": [None, {}, "lora", [1], [{}, None], [[]]],
    "attention": [None, [], "sdpa", 1],
    "compute_dtype": [None, 1, "", "c" * 65, ["f16"]],
    "kv_quantization": [False, [], "int4", 4],
    "rope": [None, [], 10000.0],
    "weights_digest": [None, 1, "", "w" * 257, {"alg": "blake3"}],
}
NAME_GOOD: dict[str, Any] = {
    "adapters": [],
    "attention": {},
    "compute_dtype": "f16",
    "kv_quantization": None,
    "rope": {},
    "weights_digest": "blake3:00",
}


def names() -> Iterator[Bad]:
    """Yields names of format 1.1 with wrong values, or where they are unknown; unknown names."""
    for name, values in NAME_VALUES.items():
        for i, value in enumerate(values):
            data = kvc1.encode({**kvc1.identity(), name: value}, b"opaque")
            why = f"{name} is {value!r}"[:80]
            yield Bad("schema", f"name-{name}-{i}", why, data, None, name)
        metadata = {**kvc1.identity(), name: values[0]}
        data = kvc1.encode(metadata, b"opaque", version_minor=2)
        why = f"{name} is {values[0]!r}, which a later minor version does not make looser"
        yield Bad("schema", f"name-{name}-minor-2", why, data, None, name)
        metadata = {**kvc1.identity(), name: NAME_GOOD[name]}
        data = kvc1.encode(metadata, b"opaque", version_minor=0)
        why = f"{name} in minor version 0"
        yield Bad("schema", f"name-{name}-minor-0", why, data, None, name)
    metadata = {**full_2(), "rope": {}}
    data = kvc1.encode(metadata, tensors_of(metadata), version_minor=0)
    yield Bad("schema", "m2-name-minor-0", "rope in minor version 0", data, None, "rope")
    for name in ("Rope", "adapter", "parent", "weights", "zzz"):
        metadata = {**kvc1.identity(), name: {}}
        data = kvc1.encode(metadata, b"opaque", version_minor=1)
        why = f"{name} in minor version 1"
        yield Bad("schema", f"minor-1-unknown-{name.lower()}", why, data, None, name)


def parents() -> Iterator[Bad]:
    """Yields parents that are spelled wrong, or without their bit, or at the start."""
    wrong: dict[str, Any] = {
        "null": None, "integer": 1, "empty": "", "short": PARENT[:-1], "long": PARENT + "0",
        "upper-case": PARENT.upper(), "digits-upper-case": "kvc1:" + "AB" * 32,
        "no-prefix": PARENT[5:], "other-prefix": "kvc2:" + PARENT[5:], "object": {"root": PARENT},
        "newline": PARENT + "\n", "not-hexadecimal": PARENT[:-1] + "g",
    }  # fmt: skip
    start = {"sequence_start": 1}
    for name, value in wrong.items():
        metadata = {**kvc1.identity(**start), "parent_root": value}
        data = kvc1.encode(metadata, b"opaque")
        why = f"parent_root is {value!r}"[:80]
        yield Bad("schema", f"parent-{name}", why, data, None, "parent_root")
    metadata = {**kvc1.identity(**start), "parent_root": PARENT}
    data = kvc1.encode(metadata, b"opaque", version_minor=0)
    why = "parent_root and its bit in minor version 0"
    yield Bad("schema", "parent-minor-0", why, data, None, "parent_root")
    one, tensors = cache()
    bases: dict[str, tuple[dict[str, Any], list[bytes] | bytes]] = {
        "opaque": (kvc1.identity(), b"opaque"),
        "manifest-1": (one, tensors),
        "manifest-2": (full_2(), tensors_of(full_2())),
    }
    for name, (base, payload) in bases.items():
        bits = kvc1.bits_of(base)
        metadata = {**base, "parent_root": PARENT, **start}
        data = kvc1.encode(metadata, payload, incompat=bits)
        why = "parent_root without the bit SEGMENT"
        yield Bad("geometry", f"parent-without-bit-{name}", why, data)
        data = kvc1.encode({**base, **start}, payload, incompat=bits | kvc1.SEGMENT)
        why = "the bit SEGMENT without parent_root"
        yield Bad("geometry", f"segment-without-parent-{name}", why, data)
        data = kvc1.encode({**metadata, "sequence_start": 0}, payload)
        why = "a segment that begins at 0"
        yield Bad("geometry", f"segment-at-0-{name}", why, data)
    metadata = {**kvc1.identity(**start), "parent_root": PARENT}
    data = kvc1.encode(metadata, b"opaque", version_minor=2, incompat=0)
    why = "parent_root without its bit, in a later minor version"
    yield Bad("geometry", "parent-without-bit-minor-2", why, data)


def versions() -> Iterator[Bad]:
    """Yields versions and bits that do not go together, and versions that are not known."""
    metadata = full_2()
    tensors = tensors_of(metadata)
    data = kvc1.encode(metadata, tensors, incompat=0)
    yield Bad("geometry", "m2-without-bit", "version 2 without the bit MANIFEST_2", data)
    data = kvc1.encode(metadata, tensors, incompat=kvc1.SEGMENT)
    yield Bad("geometry", "m2-other-bit", "version 2 with the bit SEGMENT instead", data)
    one, bodies = cache()
    data = kvc1.encode(one, bodies, incompat=kvc1.MANIFEST_2)
    yield Bad("geometry", "manifest-1-with-bit", "version 1 with the bit MANIFEST_2", data)
    data = kvc1.encode(kvc1.identity(), b"opaque", incompat=kvc1.MANIFEST_2)
    yield Bad("geometry", "opaque-with-bit", "the bit MANIFEST_2 without a manifest", data)
    data = kvc1.encode(one, bodies, incompat=kvc1.MANIFEST_2 | 4)
    why = "a known bit that does not fit, and an unknown one: the unknown one is judged first"
    yield Bad("feature", "incompat-1-and-4", why, data, 16, "incompat")
    for bit in (2, 3, 63):
        data = kvc1.encode(metadata, tensors, incompat=kvc1.MANIFEST_2 | 1 << bit)
        why = f"bit {bit} of incompat beside MANIFEST_2"
        yield Bad("feature", f"m2-incompat-bit-{bit}", why, data, 16, "incompat")
    field = f"{MANIFEST}.version"
    for name, fields in {"with-bit": {"incompat": 1}, "without-bit": {"incompat": 0}}.items():
        data = changed_2(full_2(), (("version",), 3), **fields).encode()
        why = f"version 3 with the members of version 2, {name.replace('-', ' ')} MANIFEST_2"
        yield Bad("manifest", f"m2-version-3-{name}", why, data, None, field)
    metadata = {**full_2(), "layers": None, "unknown": 1, "rope": []}
    metadata[MANIFEST] = {"version": 3}
    data = kvc1.encode(metadata, tensors, version_minor=1)
    why = "version 3, and wrong members at the top, which are judged after it"
    yield Bad("manifest", "m2-version-3-first", why, data, None, field)
    for version, bits in ((1, 0), (1, 1)):
        data = changed_2(full_2(), (("version",), version), incompat=bits).encode()
        why = f"the members of version 2 and version {version}"
        yield Bad("schema", f"m2-members-version-{version}-bit-{bits}", why, data)
    one[MANIFEST]["version"] = 2
    data = kvc1.encode(one, bodies)
    yield Bad("schema", "manifest-1-members-version-2", "the members of version 1", data)


def spelling() -> Iterator[Bad]:
    """Yields what is no canonical JSON inside a manifest of version 2."""
    deep: Any = 1
    for _ in range(14):
        deep = [deep]
    for name, path in {"info": ("info",), "flags": ("layers", 0, "flags")}.items():
        data = changed_2(full_2(), ((*path, "deep"), deep)).encode()
        yield Bad("json", f"m2-{name}-depth-17", f"depth 17 or more in {name}", data)
        made = changed_2(full_2(), ((*path, "a"), 1.5))
        made.metadata = made.metadata.replace(b'{"a":1.5}', b'{"a":1.50}')
        yield Bad("json", f"m2-{name}-number", f"the number 1.50 in {name}", made.encode())
        made.metadata = made.metadata.replace(b'{"a":1.50}', b'{"b":1,"a":2}')
        yield Bad("json", f"m2-{name}-keys", f"keys out of order in {name}", made.encode())
    made = changed_2(full_2(), (("version",), 3))
    made.metadata = made.metadata.replace(b'"self"', b'"\\u0073elf"')
    why = "an escape that is not needed, in version 3: the spelling is judged first"
    yield Bad("json", "m2-version-3-escape", why, made.encode())
    metadata = full_2()
    tensors = tensors_of(metadata)
    metadata[MANIFEST]["info"] = {"many": [0] * 16445}
    why = "more than 16,448 JSON values, most of them in info"
    yield Bad("json", "m2-values", why, kvc1.encode(metadata, tensors))


def cases() -> Iterator[Bad]:
    """Yields all files of this module."""
    for group in (schema, tops, names, parents, versions, spelling):
        yield from group()
