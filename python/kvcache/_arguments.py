# _arguments.py: judges the arguments of kvcache's functions.
# SPDX-License-Identifier: Apache-2.0
"""Each function returns the argument in the form that the extension module takes, or raises
TypeError for a wrong type and ValueError for a wrong value, naming the argument and what is
accepted."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

from . import _kvc

if TYPE_CHECKING:
    from typing_extensions import Buffer

StrPath: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Progress: TypeAlias = Callable[[int, int], object]

DIGEST_BYTES = 32
MAX_THREADS = 256
ALIGNMENTS = (1, 64, 4096)
DURABILITIES = {
    "full": _kvc.DURABILITY_FULL,
    "file": _kvc.DURABILITY_FILE,
    "none": _kvc.DURABILITY_NONE,
}


def type_name(value: object) -> str:
    """Return the name of a value's type as it is written in Python."""
    kind = type(value)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def path_argument(path: StrPath) -> tuple[bytes, str | bytes]:
    """Return the path as bytes for the system, and as the caller wrote it for errors."""
    try:
        shown = os.fspath(path)
    except TypeError:
        raise TypeError(f"path must be str, bytes or os.PathLike, not {type_name(path)}") from None
    encoded = os.fsencode(shown)
    if b"\0" in encoded:
        raise ValueError(f"path must not contain a NUL character: {shown!r}")
    if not encoded:
        raise FileNotFoundError(2, "the path is empty", shown)
    return encoded, shown


def _integer(name: str, value: object, accepted: str) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{name} must be {accepted}, not bool")
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} must be {accepted}, not {type_name(value)}") from None


def threads_argument(threads: int | None) -> int:
    """Return the number of threads, 0 where the library chooses."""
    if threads is None:
        return 0
    accepted = f"None or an integer from 1 to {MAX_THREADS}"
    count = _integer("threads", threads, accepted)
    if not 1 <= count <= MAX_THREADS:
        raise ValueError(f"threads must be {accepted}, not {count}")
    return count


def align_argument(align: int | None) -> int:
    """Return the alignment in bytes, 0 where the format chooses."""
    if align is None:
        return 0
    value = _integer("align", align, "1, 64 or 4096")
    if value not in ALIGNMENTS:
        raise ValueError(f"align must be 1, 64 or 4096, not {value}")
    return value


def durability_argument(durability: str) -> int:
    """Return the number of a durability level."""
    if not isinstance(durability, str):
        raise TypeError(f'durability must be "full", "file" or "none", not {type_name(durability)}')
    if durability not in DURABILITIES:
        raise ValueError(f'durability must be "full", "file" or "none", not {durability!r}')
    return DURABILITIES[durability]


def key_argument(key: Buffer | None) -> bytes | None:
    """Return the 32 bytes of a key."""
    if key is None:
        return None
    data = _bytes_of(key)
    if data is None:
        raise TypeError(f"key must be None or {DIGEST_BYTES} bytes, not {type_name(key)}")
    if len(data) != DIGEST_BYTES:
        raise ValueError(f"key must be {DIGEST_BYTES} bytes long, not {len(data)}")
    return data


def root_argument(root: str | Buffer | None) -> bytes | None:
    """Return the 32 bytes of an expected root."""
    accepted = f'"kvc1:" and 64 hexadecimal digits, the digits alone, or {DIGEST_BYTES} bytes'
    if root is None:
        return None
    if isinstance(root, str):
        parsed = None if "\0" in root or not root.isascii() else _kvc.parse_root(root)
        if parsed is None:
            raise ValueError(f"expected_root must be {accepted}, not {root!r}")
        return parsed
    data = _bytes_of(root)
    if data is None:
        raise TypeError(f"expected_root must be {accepted}, not {type_name(root)}")
    if len(data) != DIGEST_BYTES:
        raise ValueError(f"expected_root must be {accepted}, not {len(data)} bytes")
    return data


def _bytes_of(value: object) -> bytes | None:
    if isinstance(value, str):
        return None
    try:
        return memoryview(value).tobytes()  # type: ignore[arg-type]
    except TypeError:
        return None


def progress_argument(progress: Progress | None) -> Progress | None:
    """Return the callback."""
    if progress is not None and not callable(progress):
        raise TypeError(
            "progress must be None or a function of (done_bytes, total_bytes), "
            f"not {type_name(progress)}"
        )
    return progress


def errors_argument(errors: str) -> bool:
    """Return whether all damaged places are to be collected."""
    if not isinstance(errors, str):
        raise TypeError(f'errors must be "first" or "collect", not {type_name(errors)}')
    if errors not in ("first", "collect"):
        raise ValueError(f'errors must be "first" or "collect", not {errors!r}')
    return errors == "collect"


def copy_argument(copy: bool) -> bool:
    """Return whether bytes are to be copied."""
    if not isinstance(copy, bool):
        raise TypeError(f"copy must be True or False, not {type_name(copy)}")
    return copy


def chunks_argument(chunks: Iterable[Buffer]) -> Iterable[Buffer]:
    """Return the iterable; a single buffer in its place is a mistake with long consequences."""
    name = type_name(chunks)
    if isinstance(chunks, str):
        raise TypeError("chunks must be an iterable of bytes-like objects, not str")
    try:
        memoryview(chunks)  # type: ignore[arg-type]
    except TypeError:
        pass
    except (BufferError, ValueError):
        raise TypeError(
            f"chunks must be an iterable of bytes-like objects, not one {name}"
        ) from None
    else:
        raise TypeError(
            f"chunks must be an iterable of bytes-like objects, not one {name}: "
            "put it in a list, [data]"
        )
    if not isinstance(chunks, Iterable) and not hasattr(chunks, "__getitem__"):
        raise TypeError(f"chunks must be an iterable of bytes-like objects, not {name}")
    return chunks
