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

__all__ = ["CORPUS", "MISSING", "Bad", "Good", "b3", "cache", "edited", "kvc1", "opaque", "pattern"]
__all__ += ["raw_user", "small", "tensors_of"]

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


def edited(path: MemberPath, value: Any = MISSING, **changes: Any) -> kvc1.Parts:
    """Returns the smallest file after one metadata member was set, or removed by MISSING.

    The file is correctly re-signed; `changes` are fields of Parts.
    """
    metadata, tensors = cache()
    holder: Any = metadata
    for step in path[:-1]:
        holder = holder[step]
    if value is MISSING:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return kvc1.parts(metadata, tensors, **changes)


def raw_user(value: bytes) -> kvc1.Parts:
    """Returns an opaque file whose member `user` is spelled `value`."""
    text = kvc1.canonical(kvc1.identity())[:-1] + b',"user":' + value + b"}"
    return kvc1.parts(text, b"opaque")
