# _metadata.py: turns Python values into the JSON text that libkvc judges.
# SPDX-License-Identifier: Apache-2.0
"""Only what depends on Python is judged here: types, NaN, surrogates. Everything that the format
says about metadata is judged by the library, which stores them in their canonical spelling."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from ._arguments import type_name
from .errors import CacheFormatError

# The format allows 16; more than that only has to end, for a dict that contains itself.
_DEPTH_LIMIT = 32
_INTEGER_BITS = 53


def metadata_json(value: Mapping[str, Any], argument: str) -> bytes:
    """Return a mapping as JSON text in UTF-8; it is not changed, and need not be a dict.

    Raises TypeError where a key or value has a type that JSON does not have, and
    CacheFormatError for values that no cache can hold. Both name the path of the value.
    """
    if not isinstance(value, Mapping):
        raise TypeError(f"{argument} must be a dict, not {type_name(value)}")
    plain = _plain(value, argument, "", 1)
    return json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _plain(value: object, argument: str, path: str, depth: int) -> object:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, argument, path)
    if isinstance(value, int):
        if value.bit_length() > _INTEGER_BITS:
            raise _refusal(argument, path, "is an integer outside -(2**53 - 1) ... 2**53 - 1")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _refusal(argument, path, f"is {float(value)}: JSON has only finite numbers")
        return float(value)
    if depth > _DEPTH_LIMIT:
        raise _refusal(argument, path, "is nested too deep, or contains itself")
    if isinstance(value, Mapping):
        return {
            _key(key, argument, path): _plain(member, argument, _member(path, key), depth + 1)
            for key, member in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [
            _plain(item, argument, f"{path}[{index}]", depth + 1)
            for index, item in enumerate(value)
        ]
    raise TypeError(
        f"{_place(argument, path)} is of type {type_name(value)}: use dict, list, tuple, str, int, "
        "float, bool or None"
    )


def _text(value: str, argument: str, path: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _refusal(argument, path, "holds a lone surrogate, which is no text") from None
    return str.__str__(value)


def _key(key: object, argument: str, path: str) -> str:
    if not isinstance(key, str):
        raise TypeError(
            f"{_place(argument, path)} has a key of type {type_name(key)}: keys must be str"
        )
    return _text(key, argument, _member(path, key))


def _member(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _place(argument: str, path: str) -> str:
    if not path:
        return argument
    return f"{argument}: {path.encode('utf-8', 'backslashreplace').decode()}"


def _refusal(argument: str, path: str, problem: str) -> CacheFormatError:
    field = path.encode("utf-8", "backslashreplace").decode()
    return CacheFormatError(f"{_place(argument, path)} {problem}", field=field or None)
