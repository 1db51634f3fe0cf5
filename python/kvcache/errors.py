# errors.py: the exceptions of kvcache, and how failures of libkvc become exceptions.
# SPDX-License-Identifier: Apache-2.0
"""The exceptions of kvcache.

    CacheError                      everything below
      CacheFormatError              corrupt structure; bad metadata or a wrong length at a writer
        CacheIncompleteError        truncated or never finished
        CacheIntegrityError         bytes that do not match their digest
        CacheIdentityError          not the file that was asked for: fields, root or tag differ
        UnsupportedCacheError       another format, a newer version, an unknown feature

Failures of the environment are Python's own: OSError and its subclasses with errno and filename
(FileNotFoundError, PermissionError, IsADirectoryError, ...), MemoryError. A file that becomes
shorter while it is open is an OSError with errno EIO. Wrong Python types are TypeError, wrong
values of arguments ValueError, an unknown tensor KeyError.
"""

from __future__ import annotations

import enum
import errno
import json
import os
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple


class Missing(enum.Enum):
    """The type of `MISSING`."""

    MISSING = "MISSING"

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing.MISSING
"""`Difference.found` of a member that the file does not have; None is JSON's null."""


class Difference(NamedTuple):
    """One member of the expected identity that the file does not have, or has otherwise."""

    field: str
    """Path of the member: `rope_theta`, `user.tenant`."""
    expected: Any
    """The value that was expected, as Python's json reads it."""
    found: Any
    """The value in the file, or `MISSING`."""


class CacheError(Exception):
    """A cache that cannot be read, or cannot be written as it was given.

    Attributes: `status` is the name of the failure (`chunk`, `truncated`, `identity`, ...), None
    when Python code raised the error; `path` the file; `offset` the byte in the file; `field` the
    metadata path, tensor or header field; `tensor` the tensor whose bytes are damaged; `expected`
    and `found` short texts; `differences` the differing fields of an identity; `failures` the
    exceptions for all damaged places, where `errors="collect"` asked for them. What does not
    apply is None or an empty tuple.
    """

    def __init__(
        self,
        message: str = "",
        *,
        status: str | None = None,
        path: str | bytes | None = None,
        offset: int | None = None,
        field: str | None = None,
        tensor: str | None = None,
        expected: str | None = None,
        found: str | None = None,
        differences: Iterable[Difference] = (),
        failures: Iterable[CacheError] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.path = path
        self.offset = offset
        self.field = field
        self.tensor = tensor
        self.expected = expected
        self.found = found
        self.differences: tuple[Difference, ...] = tuple(differences)
        self.failures: tuple[CacheError, ...] = tuple(failures)


class CacheFormatError(CacheError):
    """The structure of a file is corrupt, or metadata or payload given to a writer are wrong."""


class CacheIncompleteError(CacheFormatError):
    """The file is truncated, or its writer never finished it."""


class CacheIntegrityError(CacheFormatError):
    """Bytes of the file do not match their digest."""


class CacheIdentityError(CacheFormatError):
    """Not the file that was asked for: fields, root or tag differ."""


class UnsupportedCacheError(CacheFormatError):
    """Not a file that this version reads, or a cache of a class that is not stored."""


_BY_CLASS: Final[dict[str, type[CacheError]]] = {
    "unsupported": UnsupportedCacheError,
    "incomplete": CacheIncompleteError,
    "corrupt": CacheFormatError,
    "digest": CacheIntegrityError,
    "identity": CacheIdentityError,
}

# errno for failures that no system call reported.
_ERRNO_BY_STATUS: Final[dict[str, int]] = {
    "no_space": errno.ENOSPC,
    "changed": errno.EIO,
    "not_regular": errno.EINVAL,
    "limit": errno.EFBIG,
    "not_mappable": errno.ENODEV,
}

# Texts of a file may hold control characters, which would reach the terminal of a traceback.
_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}


def printable(text: str) -> str:
    """Return the text with control characters escaped and lone surrogates replaced."""
    return text.translate(_CONTROLS).encode("utf-8", "backslashreplace").decode("utf-8")


def _system_error(status: str, number: int, path: str | bytes, message: str) -> OSError:
    if number == 0:
        number = _ERRNO_BY_STATUS.get(status, errno.EIO)
    return OSError(number, message, path)


def exception_from_status(
    status: str,
    status_class: str,
    sys_errno: int,
    offset: int | None,
    field: str,
    expected: str,
    found: str,
    message: str,
    path: str | bytes,
    differences: Sequence[tuple[str, bytes, bytes | None]] | None,
) -> BaseException:
    """Return the exception for a failure of the library; called by the extension module."""
    message = printable(message)
    if status == "no_memory":
        return MemoryError(message)
    if status_class == "environment":
        return _system_error(status, sys_errno, path, message)
    message = f"{printable(os.fsdecode(path))}: {message}"
    if status == "not_found":
        return KeyError(message)
    error_type = CacheFormatError if status == "length" else _BY_CLASS.get(status_class)
    if error_type is None:
        return ValueError(message)
    return error_type(
        message,
        status=status,
        path=path,
        offset=offset,
        field=field or None,
        tensor=field if status in ("row", "chunk") else None,
        expected=expected or None,
        found=found or None,
        differences=[
            Difference(name, _value(wanted), MISSING if got is None else _value(got))
            for name, wanted, got in differences or ()
        ],
    )


def _value(text: bytes | str) -> Any:
    return json.loads(text)
