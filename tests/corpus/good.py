"""good.py: the valid files of the corpus.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cases import Good, cache, kvc1, opaque, pattern

KEY = bytes(range(32))
BIG = 2**53 - 1


def nested(depth: int) -> Any:
    """Returns arrays in arrays, `depth` of them."""
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def plain(name: str, note: str, batch_size: int = 1, **changes: Any) -> Good:
    """Returns a good file with a manifest; `parts` among the changes are fields of Parts."""
    fields = changes.pop("parts", {})
    metadata, tensors = cache(batch_size, **changes)
    return Good(name, note, kvc1.parts(metadata, tensors, **fields))


def with_user(name: str, note: str, user: Any) -> Good:
    """Returns a good opaque file with private data."""
    metadata = {**kvc1.identity(), "user": user}
    return Good(name, note, kvc1.parts(metadata, b"opaque"))


def layouts() -> Iterator[Good]:
    """Yields dtypes, alignments and shapes."""
    yield Good("example", "the worked example of FORMAT.md", example())
    for dtype in ("f16", "bf16", "f32", "i8", "u8"):
        shape = {"layers": 2, "kv_heads": 2, "head_dim": 4, "sequence_length": 5}
        yield plain(f"dtype-{dtype}", f"four tensors of {dtype}", dtype=dtype, **shape)
    odd = {"layers": 2, "kv_heads": 3, "head_dim": 5, "sequence_length": 7}
    for log2 in (0, 6, 12):
        note = f"four tensors of 105 bytes at multiples of {1 << log2}"
        yield plain(f"align-{1 << log2}", note, parts={"align_log2": log2}, **odd)
    even = {"layers": 2, "kv_heads": 1, "head_dim": 8, "sequence_length": 8}
    note = "aligned to 64 without a gap, since each tensor has 64 bytes"
    yield plain("align-64-no-gaps", note, parts={"align_log2": 6}, **even)
    ones = {"layers": 1, "kv_heads": 1, "head_dim": 1, "sequence_length": 1}
    yield plain("size-1-dimensions", "every dimension has size 1", **ones)
    yield plain("batch-2", "two sequences", batch_size=2, head_dim=3)
    yield plain("layers-64", "metadata over several pages", layers=64, head_dim=1)
    padded = {"layers": 1, "kv_heads": 4, "head_dim": 8, "sequence_length": 1}
    metadata, tensors = cache(**padded)
    room = 4096 - 128 - len(kvc1.canonical(metadata))
    metadata["model_revision"] += "x" * (room % 1000)
    metadata["user"] = {"pad": ""}
    room = 4096 - 128 - len(kvc1.canonical(metadata))
    metadata["user"]["pad"] = "x" * room
    note = "metadata end at P and the payload at T, so there is no padding"
    yield Good("no-padding", note, kvc1.parts(metadata, tensors))


def example() -> kvc1.Parts:
    """Returns the worked example."""
    return kvc1.parts(kvc1.with_manifest(kvc1.identity()), [b"key 01", b"value2"])


def edges() -> Iterator[Good]:
    """Yields tensors around the chunk grid."""
    for length in (65535, 65536, 65537, 131072, 131073):
        note = f"two tensors of {length} bytes"
        yield plain(f"edge-{length}", note, head_dim=1, sequence_length=length)
    note = "two tensors of two grid chunks and a gap"
    fields = {"align_log2": 12}
    yield plain("edge-gap", note, parts=fields, head_dim=1, sequence_length=65540)
    for length in (65536, 65537, 5 * 65536 + 1):
        note = f"an opaque payload of {length} bytes"
        yield Good(f"opaque-{length}", note, opaque(pattern(length, 3)))


def frames() -> Iterator[Good]:
    """Yields tags, opaque payloads, versions and feature bits."""
    yield plain("tag", "a tag made with the key 00 01 02 ... 1f", parts={"key": KEY})
    yield Good("opaque-1", "an opaque payload of one byte", opaque(b"\x00"))
    yield Good("opaque-tag", "an opaque payload and a tag", opaque(key=KEY))
    for log2 in (6, 12):
        note = "an alignment that has no effect on an opaque payload"
        yield Good(f"opaque-align-{1 << log2}", note, opaque(pattern(100, 0), align_log2=log2))
    metadata, tensors = cache()
    metadata["weights_order"] = {"alg": "blake3", "none": None, "yes": True}
    note = "a top-level name of a later minor version"
    yield Good("minor-2-member", note, kvc1.parts(metadata, tensors, version_minor=2))
    yield plain("minor-1", "minor version 1 without its names", parts={"version_minor": 1})
    yield plain("minor-65535", "the highest minor version", parts={"version_minor": 65535})
    every = 2**64 - 1
    yield plain("compat-bits", "all bits of compat", parts={"compat": every})
    yield plain("ro-compat-bits", "all bits of ro_compat", parts={"ro_compat": every})


def limits() -> Iterator[Good]:
    """Yields what lies exactly on a limit."""
    most = {
        "layers": 32768,
        "kv_heads": 32768,
        "head_dim": 32768,
        "sequence_start": BIG,
        "sequence_length": 2**31 - 1,
        "rope_theta": BIG,
    }
    metadata = {**kvc1.identity(**most), "user": {"least": -BIG, "most": BIG}}
    yield Good("largest-integers", "every integer at its limit", kvc1.parts(metadata, b"opaque"))
    yield plain("rope-theta-0", "no rotary embedding", rope_theta=0)
    yield plain("rope-theta-float", "the largest float", rope_theta=1.7976931348623157e308)
    yield plain("revision-1024", "a revision of 1,024 bytes", model_revision="\u00e9" * 512)
    yield with_user("depth-16", "arrays down to depth 16", {"deep": nested(14)})
    identity_values = len(kvc1.identity()) + 1
    zeros = [0] * (16384 - identity_values - 2)
    yield with_user("values-16384", "16,384 JSON values without tensors", {"many": zeros})
    zeros = [0] * (16384 + 32 * 2 - identity_values - 2 - 7 - 2 * 17)
    yield plain("values-16448", "16,448 JSON values with two tensors", user={"many": zeros})
    metadata = {**kvc1.identity(), "user": {"pad": ""}}
    metadata["user"]["pad"] = "x" * (262144 - len(kvc1.canonical(metadata)))
    yield Good("loose-262144", "262,144 bytes of metadata", kvc1.parts(metadata, b"opaque"))


def spellings() -> Iterator[Good]:
    """Yields strings, keys and numbers that are easily spelled wrong."""
    odd = "\u007f\u0080\ue000\ufeff\ufffe\uffff\U0001f600\U0010ffff"
    user = {"": "the empty key", "\uff5e": 1, "\U0001f600": 2, odd: odd, "e\u0301": "\u00e9"}
    note = "code points that are unusual, keys in the order of code points, not of UTF-16"
    yield with_user("unicode", note, user)
    control = "".join(chr(code) for code in range(1, 32)) + '"\\/'
    user = {control: control, **{chr(code): code for code in range(1, 128)}}
    note = "all escapes, and keys in order of what they mean, not of how they are spelled"
    yield with_user("escapes", note, user)
    floats = [0.0, 0.1, -0.1, 1.0, -1.5, 1e-4, 1e-5, 1.5e-5, 1e15, 1e16, 1.5e16, 123456789.125]
    floats += [9999999999999998.0, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308]
    floats += [-1.2345678901234567e-300, 2.0**53, 2.0**-1074, 1e22, 1e23, 9007199254740993.0]
    note = "floats in every form, and integers"
    yield with_user("numbers", note, {"floats": floats, "integers": [0, 1, -1, BIG, -BIG]})
    user = {"a": {}, "b": [], "c": [None, True, False, {"d": ""}], "d": {"a": 1, "aa": 2}}
    yield with_user("literals", "empty containers, literals, a key that begins another", user)
    yield with_user("user-empty", "no private data", {})


def cases() -> Iterator[Good]:
    """Yields all valid files."""
    for group in (layouts, edges, frames, limits, spellings):
        yield from group()
