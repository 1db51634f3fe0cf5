"""bad_metadata.py: hostile files whose metadata are wrong, correctly re-signed.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cases import MISSING, Bad, b3, cache, edited, kvc1, pattern, raw_user, small, tensors_of

BIG = 2**53 - 1
MANIFEST = "tensor_manifest"


def signed(text: bytes) -> bytes:
    """Returns an opaque file with any bytes as metadata."""
    return kvc1.parts(text, b"opaque").encode()


# ---- Spelling -----------------------------------------------------------------------------------


def json_whole() -> Iterator[Bad]:
    """Yields texts that are wrong as a whole, or in their structure."""
    text = kvc1.canonical(kvc1.identity())
    whole = {
        "spaces": b"  ",
        "not-closed": text[:-1],
        "byte-after-end": text + b"}",
        "second-object": text + b"{}",
        "newline-after-end": text + b"\n",
        "nul-after-end": text + b"\0",
        "space-before": b" " + text,
        "byte-order-mark": b"\xef\xbb\xbf" + text,
        "utf-16": text.decode().encode("utf-16-le"),
        "utf-16-bom": text.decode().encode("utf-16"),
        "space-after-colon": text.replace(b'":', b'": ', 1),
        "space-after-comma": text.replace(b",", b", ", 1),
        "tab-after-comma": text.replace(b",", b",\t", 1),
        "newline-after-brace": text.replace(b"{", b"{\n", 1),
        "comment": text[:-1] + b"/* */}",
        "comma-at-end": text[:-1] + b",}",
        "comma-at-start": b"{," + text[1:],
        "comma-doubled": text.replace(b",", b",,", 1),
        "comma-missing": text.replace(b",", b"", 1),
        "colon-missing": text.replace(b":", b"", 1),
        "colon-doubled": text.replace(b":", b"::", 1),
        "key-without-quotes": text.replace(b'"dtype"', b"dtype", 1),
        "key-in-single-quotes": text.replace(b'"dtype"', b"'dtype'", 1),
        "key-a-number": b"{1:2," + text[1:],
        "value-missing": text.replace(b'"u8"', b"", 1),
        "brackets-crossed": raw_user(b'{"a":[1}]').metadata,
        "zeros": bytes(64),
        "python-literal": text.replace(b'"u8"', b"None", 1),
    }
    for name, spelled in whole.items():
        yield Bad("json", f"text-{name}", f"metadata text: {name}", signed(spelled))
    members = text[1:-1].split(b",")
    orders = {
        "reversed": members[::-1],
        "two-swapped": [members[1], members[0], *members[2:]],
        "last-first": [members[-1], *members[:-1]],
        "duplicate": [members[0], *members],
        "duplicate-other-value": [members[0], b'"dtype":"f16"', *members[1:]],
    }
    for name, order in orders.items():
        spelled = b"{" + b",".join(order) + b"}"
        yield Bad("json", f"keys-{name}", f"order of keys: {name}", signed(spelled))


def json_keys() -> Iterator[Bad]:
    """Yields keys inside `user` that are not strictly ascending."""
    wrong = {
        "case": '{"a":1,"B":2}',
        "prefix-last": '{"ab":1,"a":2}',
        "empty-last": '{"a":1,"":2}',
        "empty-twice": '{"":1,"":2}',
        "duplicate": '{"a":1,"a":1}',
        "duplicate-far": '{"a":1,"b":2,"c":3,"b":4}',
        "digits-by-value": '{"2":1,"10":2}',
        "utf-16-order": '{"\U0001f600":1,"\uff5e":2}',
        "escape-as-spelled": '{"a":1,"\\n":2}',
        "escape-before-space": '{" ":1,"\\u001f":2}',
        "quote-after-number-sign": '{"#":1,"\\"":2}',
        "composed-equal": '{"e\u0301":1,"e":2}',
        "nested": '{"a":[{"c":1,"b":2}]}',
        "short-after-long": '{"\u00e9a":1,"\u00e9":2}',
    }
    for name, value in wrong.items():
        data = raw_user(value.encode()).encode()
        yield Bad("json", f"user-keys-{name}", f"order of keys in user: {name}", data)


def json_numbers() -> Iterator[Bad]:
    """Yields numbers in another spelling, or out of range."""
    wrong = {
        "integers": "-0 00 01 -01 +1 1_000 0x10 0b1 9007199254740992 -9007199254740992 - --1 1- "
        "18446744073709551617 100000000000000000000000000000000000000000 \u0661",
        "points": "1. .5 -.5 1.00 1.50 0.10 00.5 01.0 1.0.0 1,5 -0.0 -00.0 0.0e+00 +1.0",
        "exponents": "1e16 1E+16 1e+016 1.0e+16 10e+15 1e+15 1e+5 1e5 1e-4 1e-5 1.e-05 1e-005 "
        "1e-05.0 1e 1e+ 0e0 0e+00 1.5E+300 1.50e+300 15e+299 1e-0 100000.0e+00",
        "rounding": "0.1000000000000000055 0.30000000000000000 0.30000000000000001 "
        "9007199254740993.0 10000000000000000.0 123456789012345678.0 0.00001 "
        "1.7976931348623158e+308 4.9e-324 2.2250738585072011e-308 1.0000000000000001 1e+22000",
        "infinite": "1e+309 -1e+309 1.8e+308 1e+999999999999999999999 NaN nan Infinity -Infinity "
        "inf",
        "underflow": "1e-400 2e-324 0.0000000001e-320 -1e-400",
    }
    for group, spellings in wrong.items():
        for i, spelling in enumerate(spellings.split()):
            data = raw_user(b'{"n":' + spelling.encode() + b"}").encode()
            yield Bad("json", f"number-{group}-{i:02}", f"the number {spelling}", data)
    long = "0." + "0" * 30 + "1"
    data = raw_user(b'{"n":' + long.encode() + b"}").encode()
    yield Bad("json", "number-long", "a float of 33 bytes", data)
    data = raw_user(b'{"n":' + b"9" * 6000 + b"}").encode()
    yield Bad("json", "number-6000-digits", "an integer of 6,000 digits", data)
    metadata = kvc1.canonical(kvc1.identity())
    for i, spelling in enumerate(("1e4", "1E4", "10000.00", "-0", "-0.0", "010000")):
        text = metadata.replace(b"10000.0", spelling.encode())
        why = f"rope_theta spelled {spelling}"
        yield Bad("json", f"rope-theta-{i}", why, signed(text))


def json_strings() -> Iterator[Bad]:
    """Yields strings in another spelling, and bytes that are not UTF-8."""
    escaped = {
        "solidus": rb"\/",
        "upper-case": rb"\u001F",
        "letter": rb"\u0041",
        "non-ascii": rb"\u00e9",
        "del": rb"\u007f",
        "quote": rb"\u0022",
        "backslash": rb"\u005c",
        "newline": rb"\u000a",
        "tab": rb"\u0009",
        "backspace": rb"\u0008",
        "form-feed": rb"\u000c",
        "carriage-return": rb"\u000d",
        "nul": rb"\u0000",
        "high-surrogate": rb"\ud800",
        "low-surrogate": rb"\udc00",
        "pair": rb"\ud83d\ude00",
        "pair-reversed": rb"\ude00\ud83d",
        "three-digits": rb"\u001",
        "not-hexadecimal": rb"\u00zz",
        "upper-u": rb"\U0000001f",
        "hexadecimal": rb"\x1f",
        "vertical-tab": rb"\v",
        "bell": rb"\a",
        "single-quote": rb"\'",
        "octal": rb"\012",
        "ended": b"\\",
    }
    for name, value in escaped.items():
        data = raw_user(b'{"s":"a' + value + b'"}').encode()
        yield Bad("json", f"escape-{name}", f"the escape {value.decode()}", data)
    raw = {
        "nul": b"\x00",
        "newline": b"\n",
        "tab": b"\t",
        "unit-separator": b"\x1f",
        "lone-continuation": b"\x80",
        "lead-alone": b"\xc3",
        "lead-and-letter": b"\xc3a",
        "overlong-slash": b"\xc0\xaf",
        "overlong-nul": b"\xc0\x80",
        "overlong-3": b"\xe0\x9f\xbf",
        "overlong-4": b"\xf0\x8f\xbf\xbf",
        "surrogate": b"\xed\xa0\x80",
        "cesu-8": b"\xed\xa0\xbd\xed\xb8\x80",
        "above-10ffff": b"\xf4\x90\x80\x80",
        "five-bytes": b"\xf8\x88\x80\x80\x80",
        "cut-3": b"\xe2\x82",
        "cut-4": b"\xf0\x9f\x98",
        "latin-1": b"\xe9",
        "ff": b"\xff",
    }
    for name, value in raw.items():
        data = raw_user(b'{"s":"a' + value + b'"}').encode()
        yield Bad("json", f"byte-{name}", f"a string with the bytes {value.hex()}", data)
    data = raw_user(b'{"a\xff":1}').encode()
    yield Bad("json", "byte-in-key", "a key that is not UTF-8", data)
    data = raw_user(b'{"\\u0061":1}').encode()
    yield Bad("json", "escape-in-key", "a key with an escape that is not needed", data)


def json_values() -> Iterator[Bad]:
    """Yields literals and containers in another spelling, and the limits of the scanner."""
    wrong = {
        "true-upper": b'{"a":True}',
        "true-cut": b'{"a":tru}',
        "true-longer": b'{"a":truex}',
        "null-upper": b'{"a":NULL}',
        "undefined": b'{"a":undefined}',
        "array-comma-at-end": b'{"a":[1,]}',
        "array-comma-at-start": b'{"a":[,1]}',
        "array-comma-doubled": b'{"a":[1,,2]}',
        "array-comma-missing": b'{"a":[1 2]}',
        "array-space": b'{"a":[ ]}',
        "array-not-closed": b'{"a":[1}',
        "object-space": b'{"a":{ }}',
        "string-not-closed": b'{"a":"b}',
        "value-missing": b'{"a":}',
        "key-alone": b'{"a"}',
    }
    for name, value in wrong.items():
        yield Bad("json", f"value-{name}", f"a value in user: {name}", raw_user(value).encode())
    deep = b'{"deep":' + b"[" * 15 + b"]" * 15 + b"}"
    yield Bad("json", "depth-17", "arrays down to depth 17", raw_user(deep).encode())
    deep = b'{"a":' * 16 + b"1" + b"}" * 16
    yield Bad("json", "depth-17-objects", "objects down to depth 17", raw_user(deep).encode())
    deep = b'{"deep":' + b"[" * 1500 + b"]" * 1500 + b"}"
    yield Bad("json", "depth-1502", "arrays down to depth 1,502", raw_user(deep).encode())
    deep = b"[" * 3000
    yield Bad("json", "depth-not-closed", "3,000 open brackets", signed(deep))
    zeros = b"0," * (16384 - 13)
    many = b'{"many":[' + zeros + b"0]}"
    why = "16,385 JSON values"
    yield Bad("json", "values-16385", why, raw_user(many).encode())
    metadata, tensors = cache(user={"many": [0] * (16384 + 64 - 11 - 7 - 34 - 2 + 1)})
    yield Bad("json", "values-16449", why, kvc1.encode(metadata, tensors))


# ---- Members by themselves ----------------------------------------------------------------------

STRINGS: list[Any] = [7, None, True, ["u8"], {}]
INTEGERS: list[Any] = ["1", 1.0, None, True, [1], {}]

TOP_VALUES: dict[str, list[Any]] = {
    "dtype": [*STRINGS, "", "f64", "F16", "u8 ", "float16", "fp8"],
    "head_dim": [*INTEGERS, 0, -1, 32769, BIG],
    "kv_heads": [*INTEGERS, 0, -1, 32769, BIG],
    "layers": [*INTEGERS, 0, -1, 32769, 2**32 + 1],
    "layout": [*STRINGS, "", "layer-major-v-then-k", "Layer-major-k-then-v"],
    "model_revision": [*STRINGS, "", "x" * 1025, "\u00e9" * 513],
    "rope_theta": ["10000.0", None, False, [10000.0], {}, -1, -0.5, -1e300],
    "sequence_length": [*INTEGERS, 0, -1, 2**31, 2**32 + 3],
    "sequence_start": [*INTEGERS, -1, -BIG],
    "tokenizer_sha256": [*STRINGS, "", "ab" * 31, "ab" * 32 + "a", "AB" * 32, "ag" * 32],
}

MANIFEST_VALUES: dict[str, list[Any]] = {
    "attention_type": [1, None, "", "sliding", "Causal"],
    "batch_size": ["1", 1.0, None, True, 0, -1, 2**31],
    "byte_order": [1, None, "", "big", "Little"],
    "cache_class": [1, None, "", "static", "Dynamic"],
    "tensors": [1, None, "", {}],
    "version": ["1", 1.0, 2.0, None, True, [1], 0, -1],
}

RECORD_VALUES: dict[str, list[Any]] = {
    "dtype": [1, None, "", "f64"],
    "kind": [1, None, "", "query", "Key"],
    "layer": ["0", 0.0, None, False, -1, 32768],
    "name": [1, None, ["layer.0.key"]],
    "nbytes": ["6", 6.0, None, True, 0, -6],
    "offset": ["0", 0.0, None, False, -1],
    "shape": [6, None, "1,1,3,2", {}, [], [1, 1, 3], [1, 1, 3, 2, 1], [1, 1, 3, 2.0],
              [1, 1, 3, "2"], [0, 1, 3, 2], [1, 1, 3, -2], [[1, 1, 3, 2]]],
    "strides": [6, None, "", {}, [], [6, 6, 2], [6, 6, 2, 1, 1], [6, 6, 2, 1.0], [6, 6, 2, None],
                [6, 6, 2, 0], [6, 6, -2, 1]],
}  # fmt: skip


def word(value: Any) -> str:
    """Returns a value as a part of a file name."""
    text = str(value)[:14] if not isinstance(value, str) else value[:10].strip() or "empty"
    kinds = {bool: "bool", int: "integer", float: "float", list: "array", dict: "object"}
    kinds[str] = "text"
    safe = "".join(c if (c.isascii() and c.isalnum()) or c in "+-." else "_" for c in text)
    return f"{kinds.get(type(value), 'null')}-{safe.strip('_') or 'empty'}"


def members(values: dict[str, list[Any]], label: str, *holder: str | int) -> Iterator[Bad]:
    """Yields each member missing, and with each of its wrong values."""
    for name, wrong in values.items():
        seen: dict[str, int] = {}
        for value in (MISSING, *wrong):
            made = edited((*holder, name), value)
            how = "missing" if value is MISSING else word(value)
            seen[how] = seen.get(how, 0) + 1
            how += f"-{seen[how]}" if seen[how] > 1 else ""
            why = f"{name} is " + ("missing" if value is MISSING else f"{value!r}"[:80])
            field = path_text(*holder, name)
            yield Bad("schema", f"{label}-{name}-{how}", why, made.encode(), None, field)


def path_text(*path: str | int) -> str:
    """Returns a path as errors write it."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".")


def schema_members() -> Iterator[Bad]:
    """Yields every member missing, of a wrong type, and out of range."""
    yield from members(TOP_VALUES, "top")
    yield from members(MANIFEST_VALUES, "manifest", MANIFEST)
    yield from members(RECORD_VALUES, "record-0", MANIFEST, "tensors", 0)
    yield from members({name: [] for name in RECORD_VALUES}, "record-1", MANIFEST, "tensors", 1)


def schema_shape() -> Iterator[Bad]:
    """Yields unknown members, other top values and what is too long."""
    for name, text in {"array": b"[]", "string": b'"a"', "number": b"10", "null": b"null"}.items():
        yield Bad("schema", f"top-{name}", f"the metadata are {text.decode()}", signed(text))
    yield Bad("schema", "top-empty", "the metadata are {}", signed(b"{}"))
    for name in ("", "Dtype", "a", "dtyp", "tensor_manifes", "users", "weights_digest", "zzz"):
        case = f"top-unknown-{name or 'empty'}"
        why = f"the unknown member {name!r}"
        data = edited((name,), 1, version_minor=0).encode()
        yield Bad("schema", case, why, data, None, name or None)
    metadata, tensors = cache()
    metadata.update(weights=1, layers=0)
    data = kvc1.encode(metadata, tensors, version_minor=2)
    why = "layers is 0, in a file of a later minor version with an unknown member"
    yield Bad("schema", "minor-2-known-member", why, data, None, "layers")
    not_objects: tuple[Any, ...] = (1, None, "a", [], True)
    for name, path in {
        "user": ("user",),
        "manifest": (MANIFEST,),
        "record": (MANIFEST, "tensors", 1),
    }.items():
        for i, value in enumerate(not_objects):
            data = edited(path, value).encode()
            why = f"{name} is {value!r}"
            yield Bad("schema", f"{name}-{i}", why, data, None, path_text(*path))
    data = edited((MANIFEST,), {}).encode()
    yield Bad("schema", "manifest-empty", "an empty manifest", data)
    for minor in (0, 1, 2):
        for name, path in {
            "manifest": (MANIFEST, "sliding_window"),
            "record": (MANIFEST, "tensors", 1, "scale"),
        }.items():
            data = edited(path, 1, version_minor=minor).encode()
            case = f"{name}-unknown-minor-{minor}"
            yield Bad("schema", case, "an unknown member", data, None, path_text(*path))
    metadata = {**kvc1.identity(), "user": {"pad": ""}}
    metadata["user"]["pad"] = "x" * (262145 - len(kvc1.canonical(metadata)))
    why = "262,145 bytes of metadata outside the manifest"
    yield Bad("schema", "loose-262145", why, kvc1.encode(metadata, b"opaque"))


def manifests() -> Iterator[Bad]:
    """Yields manifest versions that a reader of format 1.1 does not know."""
    field = f"{MANIFEST}.version"
    for version in (3, 255, 2**32 + 1, 2**32 + 2, BIG):
        data = edited((MANIFEST, "version"), version).encode()
        why = f"manifest version {version}, without a feature bit"
        yield Bad("manifest", f"version-{version}", why, data, None, field)
    data = edited((MANIFEST,), {"layers": [], "tensors": [], "version": 3}).encode()
    why = "manifest version 3 with other members"
    yield Bad("manifest", "version-3-other-members", why, data, None, field)
    metadata, tensors = cache()
    metadata.update(kv_heads=None, head_dim=None, dtype=None)
    metadata[MANIFEST]["version"] = 3
    why = "manifest version 3 and null at the top, which is judged after the version"
    data = kvc1.encode(metadata, tensors)
    yield Bad("manifest", "version-3-null-at-top", why, data, None, field)


# ---- Relations ----------------------------------------------------------------------------------


def records() -> Iterator[Bad]:
    """Yields records that contradict the top level, each other, or their place."""
    wrong: dict[str, tuple[int, dict[str, Any]]] = {
        "dtype-i8": (0, {"dtype": "i8"}),
        "dtype-f32": (1, {"dtype": "f32"}),
        "kind-value": (0, {"kind": "value"}),
        "kind-key": (1, {"kind": "key"}),
        "layer-1": (1, {"layer": 1}),
        "name-other": (0, {"name": "layer.0.keys"}),
        "name-empty": (0, {"name": ""}),
        "name-of-other": (0, {"name": "layer.0.value"}),
        "name-leading-zero": (0, {"name": "layer.00.key"}),
        "name-longer": (0, {"name": "layer.0.key\u0001"}),
        "name-path": (0, {"name": "../../layer.0.key"}),
        "nbytes-less": (0, {"nbytes": 5}),
        "nbytes-more": (1, {"nbytes": 7}),
        "nbytes-most": (0, {"nbytes": BIG}),
        "offset-not-0": (0, {"offset": 1}),
        "offset-overlap": (1, {"offset": 5}),
        "offset-same": (1, {"offset": 0}),
        "offset-gap": (1, {"offset": 7}),
        "offset-aligned": (1, {"offset": 64}),
        "offset-most": (1, {"offset": BIG}),
        "shape-transposed": (0, {"shape": [1, 1, 2, 3]}),
        "shape-joined": (0, {"shape": [1, 1, 1, 6]}),
        "shape-batch": (0, {"shape": [2, 1, 3, 2]}),
        "shape-most": (1, {"shape": [BIG, BIG, BIG, BIG]}),
        "strides-column-major": (0, {"strides": [1, 1, 1, 3]}),
        "strides-elements": (0, {"strides": [6, 6, 2, 2]}),
        "strides-size-1-dimension": (0, {"strides": [1, 6, 2, 1]}),
        "strides-padded": (1, {"strides": [8, 8, 4, 1]}),
        "strides-most": (0, {"strides": [BIG, BIG, BIG, BIG]}),
    }
    for case, (index, changes) in wrong.items():
        ((name, value),) = changes.items()
        path = (MANIFEST, "tensors", index, name)
        why = f"record {index} says {changes!r}"
        data = edited(path, value).encode()
        yield Bad("geometry", f"record-{case}", why, data, None, path_text(*path))


def orders() -> Iterator[Bad]:
    """Yields records that are permuted, repeated, missing or too many."""

    def arranged(name: str, order: list[int], why: str) -> Bad:
        metadata, tensors = cache(layers=2)
        original = metadata[MANIFEST]["tensors"]
        metadata[MANIFEST]["tensors"] = [original[i] for i in order]
        return Bad("geometry", f"order-{name}", why, kvc1.encode(metadata, tensors))

    yield arranged("value-first", [1, 0, 2, 3], "value before key")
    yield arranged("layers-swapped", [2, 3, 0, 1], "layer 1 before layer 0")
    yield arranged("keys-first", [0, 2, 1, 3], "all keys, then all values")
    yield arranged("repeated", [0, 1, 0, 1], "the records of layer 0 twice")
    yield arranged("missing-last", [0, 1, 2], "one record too few")
    yield arranged("missing-first", [1, 2, 3], "one record too few, at the start")
    yield arranged("none", [], "no records")
    yield arranged("extra", [0, 1, 2, 3, 3], "one record too many")
    metadata, tensors = cache(layers=2)
    metadata["layers"] = 1
    why = "four records for one layer"
    yield Bad("geometry", "layers-too-few", why, kvc1.encode(metadata, tensors))
    for layers in (3, 32768):
        metadata["layers"] = layers
        why = f"four records for {layers} layers"
        yield Bad("geometry", f"layers-{layers}", why, kvc1.encode(metadata, tensors))


def tops() -> Iterator[Bad]:
    """Yields top-level members that the records contradict."""
    changes: dict[str, Any] = {
        "head_dim": 3,
        "kv_heads": 2,
        "sequence_length": 4,
        "dtype": "i8",
    }
    for name, value in changes.items():
        why = f"the top level says {name} {value!r}, the records do not"
        yield Bad("geometry", f"top-{name}", why, edited((name,), value).encode())
    why = "batch_size 2, records of one sequence"
    yield Bad("geometry", "batch-size-2", why, edited((MANIFEST, "batch_size"), 2).encode())


def headers() -> Iterator[Bad]:
    """Yields headers and sizes that contradict the metadata."""
    yield from counts()
    metadata, tensors = cache()
    why = "payload_span is 13 for 12 bytes, and the file has them"
    longer = kvc1.parts(metadata, tensors, payload=b"".join(tensors) + b"\0")
    yield Bad("geometry", "span-1-more", why, longer.encode(), None, "payload_span")
    shorter = kvc1.parts(metadata, tensors, payload=b"".join(tensors)[:-1])
    why = "payload_span is 11 for 12 bytes"
    yield Bad("geometry", "span-1-less", why, shorter.encode(), None, "payload_span")
    page = kvc1.parts(metadata, tensors, payload=b"".join(tensors).ljust(8192, b"\0"))
    why = "payload_span is two pages"
    yield Bad("geometry", "span-page", why, page.encode(), None, "payload_span")
    packed = kvc1.parts(metadata, tensors, align_log2=6, payload=b"".join(tensors))
    why = "the header says align 64, the tensors are packed"
    yield Bad("geometry", "align-64-packed", why, packed.encode(), None, "payload_span")
    spaced = kvc1.parts(metadata, tensors, align_log2=6)
    spaced.payload = spaced.stored_payload()
    spaced.align_log2 = 0
    why = "the header says packed, the tensors are aligned to 64"
    yield Bad("geometry", "align-1-spaced", why, spaced.encode(), None, "payload_span")
    full = kvc1.parts(metadata, tensors, align_log2=6)
    full.payload = full.stored_payload() + bytes(58)
    why = "a gap after the last tensor"
    yield Bad("geometry", "align-64-gap-at-end", why, full.encode(), None, "payload_span")
    for extra in (1, 2, 1000):
        made = small(rows=[[bytes(32)] * extra, []])
        made.digests = [b3.blake3(tensor) for tensor in tensors]
        why = f"{extra} chunk values, where none are stored"
        case = f"chunk-values-{extra}-more"
        yield Bad("geometry", case, why, made.encode(), None, "file_bytes")
    body = pattern(65537, 5)
    digest = [kvc1.tensor_digest(body)]
    made = kvc1.parts(kvc1.identity(), body, rows=[[]], digests=digest)
    why = "no chunk values for a tensor of two chunks"
    yield Bad("geometry", "chunk-values-missing", why, made.encode(), None, "file_bytes")
    row = kvc1.chunk_values(body)
    for name, values in {"1": row[:1], "3": [*row, row[0]]}.items():
        made = kvc1.parts(kvc1.identity(), body, rows=[values], digests=digest)
        why = f"{name} chunk values for two chunks"
        yield Bad("geometry", f"chunk-values-{name}-for-2", why, made.encode(), None, "file_bytes")
    gap = small(tail_padding=bytes(52) + bytes(64))
    why = "64 zeros more before the trailer"
    yield Bad("geometry", "trailer-64-late", why, gap.encode(), None, "file_bytes")
    odd = small(tail_padding=bytes(52) + b"\1")
    why = "one byte more before the digests"
    yield Bad("geometry", "trailer-1-late", why, odd.encode(), None, "file_bytes")


def counts() -> Iterator[Bad]:
    """Yields numbers of tensors that contradict the manifest."""
    metadata, tensors = cache()
    digests = [b3.blake3(tensor) for tensor in tensors]
    cases = {
        "1": (1, digests[:1], "tensor_count is 1 for two records"),
        "3": (3, [*digests, bytes(32)], "tensor_count is 3 for two records"),
        "0-with-manifest": (0, digests[:1], "a manifest, and tensor_count 0"),
    }
    for name, (count, stored, why) in cases.items():
        made = kvc1.parts(metadata, tensors, tensor_count=count, digests=stored)
        yield Bad("geometry", f"tensor-count-{name}", why, made.encode(), None, "tensor_count")
    for count in (1, 2):
        stored = [b3.blake3(b"opaque")] * count
        made = kvc1.parts(kvc1.identity(), b"opaque", tensor_count=count, digests=stored)
        why = f"no manifest, and tensor_count {count}"
        case = f"tensor-count-{count}-without-manifest"
        yield Bad("geometry", case, why, made.encode(), None, "tensor_count")


def overflows() -> Iterator[Bad]:
    """Yields geometry whose products or sums exceed 2^53 - 1, or wrap around."""

    def huge(name: str, why: str, batch: int, stored: int, **changes: Any) -> Bad:
        """A manifest in which everything agrees modulo 2^64; `stored` bytes per tensor exist."""
        metadata = kvc1.with_manifest(kvc1.identity(**changes), batch)
        for i, record in enumerate(metadata[MANIFEST]["tensors"]):
            record["nbytes"] = stored
            record["offset"] = i * stored
            record["strides"] = [min(stride % 2**64, BIG) or 1 for stride in record["strides"]]
        return Bad("geometry", name, why, kvc1.encode(metadata, tensors_of(metadata)))

    wraps = {"kv_heads": 8, "head_dim": 1}
    yield huge(
        "product-wraps-to-32", "the product of shape is 2^64 + 32", 1263665316, 32,
        sequence_length=1824726041, **wraps,
    )  # fmt: skip
    yield huge(
        "product-wraps-to-64", "the product of shape is 2^64 + 64", 1073807362, 64,
        sequence_length=2147352580, **wraps,
    )  # fmt: skip
    yield huge(
        "product-wraps-to-0", "the product of shape is 2^70", 2**30, 16,
        sequence_length=2**30, kv_heads=2**10, head_dim=1,
    )  # fmt: skip
    yield huge(
        "product-2-power-92", "the product of shape is near 2^92", 2**31 - 1, 16,
        sequence_length=2**31 - 1, kv_heads=2**15, head_dim=2**15,
    )  # fmt: skip
    yield huge(
        "product-32-bits", "the product of shape is 2^32 + 2^16", 1, 65536,
        sequence_length=65537, kv_heads=256, head_dim=256,
    )  # fmt: skip
    yield huge(
        "product-31-bits", "the product of shape is 2^31 + 8", 1, 8,
        sequence_length=268435457, kv_heads=8, head_dim=1,
    )  # fmt: skip
    true_bytes = 2**52
    metadata = kvc1.with_manifest(
        kvc1.identity(kv_heads=2**15, head_dim=2**15, sequence_length=2**22)
    )
    assert metadata[MANIFEST]["tensors"][0]["nbytes"] == true_bytes
    why = "two tensors of 2^52 bytes each, in agreement, and 12 bytes of payload"
    data = kvc1.encode(metadata, [b"key 01", b"value2"])
    yield Bad("geometry", "sum-2-power-53", why, data)
    metadata = kvc1.with_manifest(kvc1.identity(sequence_length=2**31 - 1))
    why = "tensors of 4 GiB in agreement, and 12 bytes of payload"
    data = kvc1.encode(metadata, [b"key 01", b"value2"])
    yield Bad("geometry", "payload-missing", why, data, None, "payload_span")


def cases() -> Iterator[Bad]:
    """Yields all files of this module."""
    for group in (
        json_whole, json_keys, json_numbers, json_strings, json_values,
        schema_members, schema_shape, manifests,
        records, orders, tops, headers, overflows,
    ):  # fmt: skip
        yield from group()
