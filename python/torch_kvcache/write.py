# write.py: writes a cache of manifest version 1, one tensor at a time.
# SPDX-License-Identifier: Apache-2.0

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import kvcache
import torch

from torch_kvcache.cache import LayerTensors, cache_layers
from torch_kvcache.dtypes import TORCH_TO_KVC


def write_dynamic_cache(
    path: str | os.PathLike[str],
    cache: Any,
    *,
    model_revision: str,
    tokenizer_sha256: str,
    rope_theta: float,
    sequence_start: int = 0,
) -> dict[str, Any]:
    """Saves a `transformers.DynamicCache` and returns the metadata that describe it.

    The three identity arguments are what `identity_of` returns. `sequence_start` is the absolute
    position of the first token held. Tensors may be views, on any device, of any strides, or part
    of an autograd graph: their logical content is stored. A contiguous tensor in CPU memory is
    written from where it lies; of any other one a copy is made, one tensor at a time.

    The file appears under its name when it is complete and on disk; until then, and after any
    failure, an older file of that name stays as it was. The caller keeps the cache still: tensors
    that are changed in place meanwhile are stored as they are when their turn comes.

    Raises kvcache.UnsupportedCacheError for a cache that a KVC1 file cannot hold whole,
    kvcache.CacheFormatError for identity arguments that the format does not allow, and OSError.
    """
    identity = {
        "model_revision": model_revision,
        "tokenizer_sha256": tokenizer_sha256,
        "rope_theta": rope_theta,
    }
    return write_layers(path, cache_layers(cache), identity, sequence_start)


def write_layers(
    path: str | os.PathLike[str],
    layers: Sequence[LayerTensors],
    identity: Mapping[str, Any],
    sequence_start: int,
    **options: Any,
) -> dict[str, Any]:
    """Writes layers that are all alike, and returns the metadata; `options` go to kvcache."""
    metadata = _describe(layers) | dict(identity)
    metadata["sequence_start"] = sequence_start
    tensors = [tensor for layer in layers for tensor in layer]
    wait_for_devices(tensors)
    kvcache.write_cache_stream(path, metadata, tensor_bytes(tensors), **options)
    return metadata


def _describe(layers: Sequence[LayerTensors]) -> dict[str, Any]:
    """Returns the metadata that follow from the tensors, manifest included."""
    sample = layers[0].keys
    batch_size, kv_heads, sequence_length, head_dim = sample.shape
    dtype = TORCH_TO_KVC[sample.dtype]
    return {
        "layers": len(layers),
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "dtype": dtype,
        "layout": "layer-major-k-then-v",
        "sequence_length": sequence_length,
        "tensor_manifest": {
            "version": 1,
            "byte_order": "little",
            "batch_size": batch_size,
            "cache_class": "dynamic",
            "attention_type": "causal",
            "tensors": _records(len(layers), list(sample.shape), sample.element_size(), dtype),
        },
    }


def _records(layers: int, shape: list[int], item_bytes: int, dtype: str) -> list[dict[str, Any]]:
    """Returns one manifest record for each tensor, packed in the order layer 0 key, value, …

    Strides follow from the shape. A tensor's own strides would not do: where a dimension is 1 they
    are arbitrary, and the stored bytes are row-major whatever the tensor in memory was.
    """
    strides = [item_bytes] * len(shape)
    for axis in reversed(range(len(shape) - 1)):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    tensor_bytes = strides[0] * shape[0]
    names = [(layer, kind) for layer in range(layers) for kind in ("key", "value")]
    return [
        {
            "name": f"layer.{layer}.{kind}",
            "kind": kind,
            "layer": layer,
            "shape": list(shape),
            "strides": list(strides),
            "offset": index * tensor_bytes,
            "nbytes": tensor_bytes,
            "dtype": dtype,
        }
        for index, (layer, kind) in enumerate(names)
    ]


def tensor_bytes(tensors: Iterable[torch.Tensor]) -> Iterator[memoryview]:
    """Yields the bytes of each tensor; nothing here keeps them when the next one is asked for."""
    for tensor in tensors:
        yield row_major_bytes(tensor)


def row_major_bytes(tensor: torch.Tensor) -> memoryview:
    """Returns a tensor's elements in row-major order as bytes, without a copy where they lie so."""
    plain = tensor.detach().resolve_neg()
    # One dimension with stride 1, since a contiguous tensor may have any stride where it has one
    # element, and such strides must not reach a view of another item size.
    plain = plain.contiguous()
    flat = plain.as_strided((plain.numel(),), (1,), plain.storage_offset())
    data: memoryview = flat.cpu().view(torch.uint8).numpy().data
    return data


def wait_for_devices(tensors: Sequence[torch.Tensor]) -> None:
    """Waits for work in flight on every device whose results the tensors are.

    An offloaded cache copies to pinned CPU memory without waiting, so pinned tensors count.
    """
    devices = {tensor.device for tensor in tensors if tensor.device.type != "cpu"}
    # Without a device in use no tensor can be pinned, and asking would start the device.
    in_use: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if in_use and any(tensor.device.type == "cpu" and tensor.is_pinned() for tensor in tensors):
        devices |= {torch.device("cuda", index) for index in range(torch.cuda.device_count())}
    for device in devices:
        torch.accelerator.synchronize(device)
