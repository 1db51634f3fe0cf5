"""cases.py: what the corpus modules share: the specification's modules, cases, and test bytes.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).resolve().parent
sys.path.insert(0, str(CORPUS.parent / "spec"))

import b3  # noqa: E402
import kvc1  # noqa: E402

__all__ = [
    "CORPUS", "MISSING", "Bad", "Change", "Good", "MemberPath", "b3", "cache", "changed_2",
    "cross_2", "edited", "empties_2", "full_2", "kvc1", "linear_2", "opaque", "pattern",
    "quantized_2", "raw_user", "set_member", "small", "states_2", "tensors_of", "tokens_2", "two_2",
]  # fmt: skip

# The value of a member that is removed.
MISSING = object()


@dataclass(frozen=True)
class Good:
    """A valid file. `key` is the secret of its tag, where it has one."""

    name: str
    note: str
    parts: kvc1.Parts


@dataclass(frozen=True)
class Bad:
    """A file that must be refused.

    `offset` is the byte that the error should name, `field` the member, header field or array
    concerned; None where the specification leaves it open.
    """

    status: str
    name: str
    why: str
    data: bytes
    offset: int | None = None
    field: str | None = None


def pattern(count: int, seed: int) -> bytes:
    """Returns bytes without a period that divides 64 KiB, which still compress well."""
    period = bytes(range(251))
    return (period * (count // 251 + 2))[seed % 251 :][:count]


def tensors_of(metadata: dict[str, Any], seed: int = 0) -> list[bytes]:
    """Returns test bytes for every record of a manifest."""
    records = metadata["tensor_manifest"]["tensors"]
    return [pattern(record["nbytes"], seed + 17 * i) for i, record in enumerate(records)]


def cache(batch_size: int = 1, **changes: Any) -> tuple[dict[str, Any], list[bytes]]:
    """Returns the metadata and the tensors of a small cache."""
    extra = {name: changes.pop(name) for name in ("user",) if name in changes}
    metadata = {**kvc1.with_manifest(kvc1.identity(**changes), batch_size), **extra}
    return metadata, tensors_of(metadata)


def small(**changes: Any) -> kvc1.Parts:
    """Returns the parts of the smallest file with a manifest; `changes` are fields of Parts."""
    metadata, tensors = cache()
    return kvc1.parts(metadata, tensors, **changes)


def opaque(data: bytes = b"opaque", **changes: Any) -> kvc1.Parts:
    """Returns the parts of a file without a manifest."""
    return kvc1.parts(kvc1.identity(), data, **changes)


MemberPath = tuple[str | int, ...]


def set_member(metadata: Any, path: MemberPath, value: Any = MISSING) -> None:
    """Sets one member or element inside metadata, or removes it by MISSING."""
    holder = metadata
    for step in path[:-1]:
        holder = holder[step]
    if value is MISSING:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value


def edited(path: MemberPath, value: Any = MISSING, **changes: Any) -> kvc1.Parts:
    """Returns the smallest file after one metadata member was set, or removed by MISSING.

    The file is correctly re-signed; `changes` are fields of Parts.
    """
    metadata, tensors = cache()
    set_member(metadata, path, value)
    return kvc1.parts(metadata, tensors, **changes)


# ---- Manifest version 2 --------------------------------------------------------------------------


def full_2() -> dict[str, Any]:
    """Returns the metadata of one layer of full attention."""
    return kvc1.with_manifest_2(kvc1.identity(), [kvc1.Layer("full", kvc1.key_value())])


def two_2() -> dict[str, Any]:
    """Returns two layers, one of them with a window."""
    layers = [
        kvc1.Layer("full", kvc1.key_value()),
        kvc1.Layer("sliding", kvc1.key_value(tokens=2), window=2),
    ]
    return kvc1.with_manifest_2(kvc1.identity(), layers)


def cross_2() -> dict[str, Any]:
    """Returns two layers of an encoder and decoder: one of `self`, one of `cross`."""
    layers = [
        kvc1.Layer("full", kvc1.key_value()),
        kvc1.Layer("full", kvc1.key_value(tokens=5), cache="cross"),
    ]
    return kvc1.with_manifest_2(kvc1.identity(), layers)


def states_2() -> dict[str, Any]:
    """Returns a layer with keys, values and states of a recurrence."""
    tensors = [
        *kvc1.key_value(),
        kvc1.Tensor("conv_state", [1, 4, 3]),
        kvc1.Tensor("conv_state", [1, 4, 3], index=1),
        kvc1.Tensor("recurrent_state", [1, 1, 2, 2], dtype="f32"),
    ]
    return kvc1.with_manifest_2(kvc1.identity(), [kvc1.Layer("linear_full", tensors)])


def linear_2() -> dict[str, Any]:
    """Returns a layer with states alone."""
    layer = kvc1.Layer("linear", [kvc1.Tensor("conv_state", [1, 4, 3])])
    return kvc1.with_manifest_2(kvc1.identity(), [layer])


def quantized_2(zero: bool = True) -> dict[str, Any]:
    """Returns a layer with packed keys and values, all of its tokens packed."""
    layer = kvc1.Layer("quantized", kvc1.packed(zero=zero), stored_tokens=4)
    return kvc1.with_manifest_2(kvc1.identity(), [layer])


def tokens_2() -> dict[str, Any]:
    """Returns a layer, the tokens that it was made from, and their mask."""
    both = [
        kvc1.Tensor("token_ids", [1, 3], dtype="i32"),
        kvc1.Tensor("attention_mask", [1, 3], dtype="bool"),
    ]
    return kvc1.with_manifest_2(kvc1.identity(), [kvc1.Layer("full", kvc1.key_value())], both)


def empties_2() -> dict[str, Any]:
    """Returns tensors of no bytes before, between and after others."""
    layers = [
        kvc1.Layer("full", kvc1.key_value(tokens=0)),
        kvc1.Layer("full", kvc1.key_value()),
        kvc1.Layer("full", kvc1.key_value(tokens=0)),
        kvc1.Layer("full", kvc1.key_value()),
    ]
    last = [kvc1.Tensor("token_ids", [1, 0], dtype="i64")]
    return kvc1.with_manifest_2(kvc1.identity(), layers, last)


# A change sets a member of the manifest, or removes it by MISSING.
Change = tuple[MemberPath, Any]


def changed_2(
    metadata: dict[str, Any], *changes: Change, settle: bool = True, **fields: Any
) -> kvc1.Parts:
    """Returns a file after changes to its manifest of version 2, correctly re-signed.

    Where the manifest is settled, names, sizes and offsets follow from what was changed, so that
    they break no rule of their own. `fields` are fields of Parts.
    """
    tensors = tensors_of(metadata)
    for path, value in changes:
        set_member(metadata["tensor_manifest"], path, value)
    if settle:
        kvc1.place(metadata["tensor_manifest"])
        tensors = tensors_of(metadata)
    return kvc1.parts(metadata, tensors, **fields)


def raw_user(value: bytes) -> kvc1.Parts:
    """Returns an opaque file whose member `user` is spelled `value`."""
    text = kvc1.canonical(kvc1.identity())[:-1] + b',"user":' + value + b"}"
    return kvc1.parts(text, b"opaque")
