# identity_weights.py: digests of a model's tensors, each of which is hashed once.
# SPDX-License-Identifier: Apache-2.0

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import kvcache
import torch

_PIECE_BYTES = 64 * 1024 * 1024


class Weights:
    """The entries of a model's state dict, taken apart into plain tensors.

    These are the parameters and the persistent buffers. Buffers that are not persistent, such as
    the rotary frequencies, follow from the config, and some of them change while a model is used.
    """

    def __init__(self, model: Any) -> None:
        self._parts: dict[str, list[tuple[str, torch.Tensor]]] = {
            key: list(_parts(plain_name(key), value)) for key, value in model.state_dict().items()
        }
        self._digests: dict[tuple[Any, ...], str] = {}

    def __iter__(self) -> Iterator[str]:
        """Yields the keys of the state dict."""
        return iter(self._parts)

    def sha256(self, names: Mapping[str, str], before: Iterable[str] = ()) -> str:
        """Returns the SHA-256 of the lines `before`, and of one line for each tensor of `names`.

        `names` says which entries of the state dict are covered, and by which names. The lines are
        sorted by name: the JSON array [name, dtype, shape, SHA-256 of the row-major bytes].
        """
        tensors = {
            name + suffix: tensor
            for key, name in names.items()
            for suffix, tensor in self._parts[key]
        }
        self._hash(tensors.values())
        total = hashlib.sha256()
        for line in before:
            total.update(line.encode("ascii") + b"\n")
        for name in sorted(tensors):
            tensor = tensors[name]
            dtype = str(tensor.dtype).removeprefix("torch.")
            line = json.dumps([name, dtype, list(tensor.shape), self._digests[_place(tensor)]])
            total.update(line.encode("ascii") + b"\n")
        return total.hexdigest()

    def _hash(self, tensors: Iterable[torch.Tensor]) -> None:
        """Hashes what was not hashed yet, several at once; the order of work has no effect."""
        # Tied weights appear under several names and are hashed once.
        distinct = {_place(tensor): tensor for tensor in tensors}
        todo = {place: one for place, one in distinct.items() if place not in self._digests}
        workers = max(1, min(4, os.cpu_count() or 1))
        with ThreadPoolExecutor(workers, thread_name_prefix="kvc-weights") as pool:
            found = pool.map(_values_sha256, todo.values())
            self._digests.update(zip(todo, found, strict=True))


def plain_name(name: str) -> str:
    """Returns a name without the parts that torch.compile puts into it."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def is_taken_apart(value: Any) -> bool:
    """Whether a tensor is made of several ones, as quantised weights are."""
    return hasattr(value, "__tensor_flatten__") and not _is_distributed(value)


def _parts(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the plain tensors of an entry, each with what its name has after the entry's."""
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        if value.device.type == "meta" or value.layout != torch.strided:
            raise _no_digest(name, f"a tensor on {value.device} with layout {value.layout}")
        yield "", value.detach()
    elif isinstance(value, (bytes, bytearray)):
        yield "", torch.tensor(list(value), dtype=torch.uint8)
    elif is_taken_apart(value):
        for part in value.__tensor_flatten__()[0]:
            inner = f".{type(value).__name__}.{part}"
            for suffix, tensor in _parts(name + inner, getattr(value, part)):
                yield inner + suffix, tensor
    else:
        raise _no_digest(name, f"a {type(value).__module__}.{type(value).__qualname__}")


def _is_distributed(value: Any) -> bool:
    return any(base.__name__ == "DTensor" for base in type(value).__mro__)


def _no_digest(name: str, what: str) -> kvcache.UnsupportedCacheError:
    error = kvcache.UnsupportedCacheError(
        f"cannot name this model by its weights: `{name}` is {what}, whose values are not at hand. "
        "Load the model whole into memory, or pass a model_revision of your own"
    )
    error.found = name
    return error


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Returns where a tensor's values lie; equal places hold equal values."""
    return (
        tensor.device,
        tensor.untyped_storage().data_ptr(),
        tensor.storage_offset(),
        tensor.dtype,
        tuple(tensor.shape),
        tensor.stride(),
    )


def _values_sha256(tensor: torch.Tensor) -> str:
    """Hashes a tensor's row-major bytes; from a device they come in pieces of 64 MiB."""
    digest = hashlib.sha256()
    flat = tensor.resolve_conj().resolve_neg().contiguous()
    flat = flat.as_strided((flat.numel(),), (1,), flat.storage_offset())
    step = max(1, _PIECE_BYTES // flat.element_size())
    for start in range(0, flat.numel(), step):
        digest.update(flat[start : start + step].cpu().view(torch.uint8).numpy().data)
    return digest.hexdigest()
