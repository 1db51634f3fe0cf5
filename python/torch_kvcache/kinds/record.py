# record.py: what one layer of a cache is, between the objects of Transformers and a file.
# SPDX-License-Identifier: Apache-2.0
"""The records that the modules of this package make of layers, and make layers of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import kvcache
import torch

from torch_kvcache.dtypes import DTYPE_NAMES

KEY_VALUE_AXES = ("batch", "head", "sequence", "head_dim")
# One axis that is named after nothing, for a tensor that was made without a shape.
NO_AXES = ("dim_0",)


class Part(NamedTuple):
    """One tensor of a layer, as it goes into a file."""

    role: str
    """`key`, `value`, `conv_state`, … as docs/FORMAT.md names them."""
    axes: tuple[str, ...]
    """One name for each dimension."""
    tensor: torch.Tensor
    """The elements: a plain tensor on any device, of any strides."""
    number: int = 0
    """Number of the state, for the states of linear attention."""
    packing: dict[str, Any] | None = None
    """How quantised elements are packed; None for all other tensors."""


@dataclass
class LayerRecord:
    """What a file says about one layer. Lengths are tokens."""

    class_name: str
    """The layer's class, by its name in transformers.cache_utils."""
    kind: str
    """`full`, `sliding`, … as docs/FORMAT.md names them."""
    state: str
    """`uninitialized`, `empty` or `filled`."""
    stored_tokens: int = 0
    """Tokens whose keys the tensors hold."""
    positions_seen: int | None = None
    """Tokens that went through the layer; None where only the rest of the cache can tell."""
    window: int | None = None
    """The window of the kinds that have one."""
    flags: dict[str, Any] = field(default_factory=dict)
    """What else the layer must be given back."""
    aliases: dict[str, str] = field(default_factory=dict)
    """Roles whose tensor is that of another role."""
    parts: list[Part] = field(default_factory=list)
    """The tensors, in the order of the format; empty in a record that was read from a file."""


class Stored(NamedTuple):
    """One tensor of a file: its elements on the CPU, proven, and what the file says about it."""

    tensor: torch.Tensor
    axes: tuple[str, ...]
    packing: Mapping[str, Any] | None


Tensors = Mapping[tuple[str, int], Stored]
"""The tensors of one layer of a file, by role and index of the state."""

Describe = Callable[[str, Any], LayerRecord]
"""Makes the record of a layer: (where it is in the cache, the layer)."""

Rebuild = Callable[[str, LayerRecord, Tensors, torch.device], Any]
"""Makes the layer of a record: (where it is in the file, record, tensors, device)."""


def refuse_save(
    reason: str, advice: str, *, expected: str | None = None, found: str | None = None
) -> kvcache.UnsupportedCacheError:
    """Returns the error for a cache that cannot be stored; `advice` says what to do instead."""
    error = kvcache.UnsupportedCacheError(
        f"cannot store this cache: {reason}. Nothing was written. {advice}"
    )
    error.expected, error.found = expected, found
    return error


def refuse_load(
    reason: str, advice: str, *, expected: str | None = None, found: str | None = None
) -> kvcache.UnsupportedCacheError:
    """Returns the error for a file from which no cache can be made; `advice` as above."""
    error = kvcache.UnsupportedCacheError(f"cannot load this cache: {reason}. {advice}")
    error.expected, error.found = expected, found
    return error


PREFILL_AGAIN = "Keep the token ids and prefill again."
REPORT = "The file is whole, but not one that this version writes; use the program that wrote it."


def class_name(value: object) -> str:
    """Returns the full name of an object's class."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def shape_of(tensor: torch.Tensor) -> str:
    """Returns a tensor's shape as text."""
    return str(list(tensor.shape))


def require_known_attributes(where: str, layer: Any, known: frozenset[str]) -> None:
    """Refuses an object with instance attributes that a restored one would not have."""
    for name in sorted(set(vars(layer)) - known):
        raise refuse_save(
            f"{where}, a {class_name(layer)}, has an attribute `{name}`, which this version does "
            "not know and would lose",
            "If it is not needed to go on, delete it before saving.",
            found=name,
        )


def require_plain(where: str, tensor: Any) -> torch.Tensor:
    """Returns a tensor whose bytes are simply the values that it stands for, or refuses it."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise refuse_save(
            f"{where} is a {class_name(tensor)}; only plain tensors can be stored",
            "Turn it into one first: gather a distributed tensor, dequantise a quantised one.",
            expected="torch.Tensor",
            found=class_name(tensor),
        )
    plain: torch.Tensor = tensor
    if plain.device.type == "meta":
        raise refuse_save(
            f"{where} lies on the meta device and has no values",
            "Run the model on a device with memory.",
            found="meta",
        )
    if plain.layout != torch.strided:
        raise refuse_save(
            f"{where} has the layout {plain.layout}; only dense tensors can be stored",
            "Turn it into one first with .to_dense().",
            expected=str(torch.strided),
            found=str(plain.layout),
        )
    if plain.dtype not in DTYPE_NAMES:
        raise refuse_save(
            f"{where} has the dtype {plain.dtype}, for which KVC1 has no name",
            "Convert the cache to another dtype first.",
            found=str(plain.dtype),
        )
    return plain


def same_place(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are one: the same elements of the same memory, in the same order."""
    if one is other:
        return True
    return (
        one.numel() > 0
        and one.device == other.device
        and one.dtype == other.dtype
        and one.shape == other.shape
        and one.stride() == other.stride()
        and one.data_ptr() == other.data_ptr()
    )


class Flags:
    """Reads the flags of a layer in a file, which no reader has judged yet.

    Every method names the flag and raises kvcache.UnsupportedCacheError where it is missing or of
    another type; `close` does so where there is a flag that nobody asked for.
    """

    def __init__(self, where: str, flags: Mapping[str, Any]) -> None:
        self._where = where
        self._left = dict(flags)

    def _take(self, name: str, what: str, right: Callable[[Any], bool]) -> Any:
        value = self._left.pop(name, None)
        if not right(value):
            raise refuse_load(
                f"{self._where}: the flag `{name}` must be {what}; it is {value!r}", REPORT
            )
        return value

    def has(self, name: str) -> bool:
        """Whether there is a flag of that name, still to be read."""
        return name in self._left

    def integer(self, name: str, least: int, most: int = 2**31 - 1) -> int:
        """Returns an integer from `least` to `most`."""
        right = _integer_between(least, most)
        return int(self._take(name, f"an integer from {least} to {most}", right))

    def optional_integer(self, name: str, least: int) -> int | None:
        """Returns an integer of at least `least`, or None where the flag is null."""
        right = _integer_between(least, 2**31 - 1)
        value: int | None = self._take(
            name, f"null or an integer from {least} up", lambda value: value is None or right(value)
        )
        return value

    def boolean(self, name: str) -> bool:
        """Returns True or False."""
        return bool(self._take(name, "true or false", lambda value: isinstance(value, bool)))

    def word(self, name: str, allowed: Sequence[str]) -> str:
        """Returns one of the allowed words."""
        what = "one of " + ", ".join(allowed)
        return str(self._take(name, what, lambda value: value in allowed))

    def optional_dtype(self, name: str) -> torch.dtype | None:
        """Returns the dtype of a name of KVC1, or None where the flag is null."""
        by_name = {name: dtype for dtype, name in DTYPE_NAMES.items()}
        value = self._take(name, "null or a dtype", lambda value: value is None or value in by_name)
        return None if value is None else by_name[value]

    def booleans(self, name: str, count: int) -> list[bool]:
        """Returns a list of `count` booleans."""
        return list(self._take(name, f"{count} booleans", _list_of(count, _is_boolean)))

    def optional_integers(self, name: str, count: int) -> list[int | None]:
        """Returns a list of `count` integers of at least 0, None where an element is null."""
        right = _integer_between(0, 2**31 - 1)
        check = _list_of(count, lambda value: value is None or right(value))
        return list(self._take(name, f"{count} integers or nulls", check))

    def close(self) -> None:
        """Refuses what is left: a flag that a layer would have to be given back."""
        for name in sorted(self._left):
            raise refuse_load(
                f"{self._where} has a flag `{name}`, which this version of torch_kvcache does not "
                "know",
                "Use a later version.",
                found=name,
            )


def _is_boolean(value: object) -> bool:
    return isinstance(value, bool)


def _integer_between(least: int, most: int) -> Callable[[Any], bool]:
    def right(value: Any) -> bool:
        return type(value) is int and least <= value <= most

    return right


def _list_of(count: int, right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def check(value: Any) -> bool:
        return isinstance(value, list) and len(value) == count and all(map(right, value))

    return check
