# kvcache_cases.py: metadata, payloads and files that the tests of kvcache share.
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
import os
import random
from pathlib import Path
from typing import Any

import kvcache

ROOT_FOLDER = Path(__file__).resolve().parents[2]
ITEM_BYTES = {"f16": 2, "bf16": 2, "f32": 4, "i8": 1, "u8": 1}
CHUNK_BYTES = 65536


def base_metadata(**changes: Any) -> dict[str, Any]:
    """Return metadata without a manifest: the payload is opaque bytes."""
    metadata: dict[str, Any] = {
        "model_revision": "0123456789abcdef",
        "tokenizer_sha256": "ab" * 32,
        "rope_theta": 10000.0,
        "layers": 1,
        "kv_heads": 2,
        "head_dim": 4,
        "dtype": "f16",
        "layout": "layer-major-k-then-v",
        "sequence_start": 0,
        "sequence_length": 3,
    }
    metadata.update(changes)
    return metadata


def manifest_metadata(
    dtype: str = "f16",
    *,
    layers: int = 1,
    batch: int = 1,
    heads: int = 2,
    sequence: int = 3,
    head_dim: int = 4,
    **changes: Any,
) -> dict[str, Any]:
    """Return metadata with a manifest of 2 * layers tensors of the shape that is given."""
    metadata = base_metadata(
        dtype=dtype, layers=layers, kv_heads=heads, head_dim=head_dim, sequence_length=sequence
    )
    shape = [batch, heads, sequence, head_dim]
    strides = [ITEM_BYTES[dtype]] * 4
    for axis in (2, 1, 0):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    nbytes = strides[0] * batch
    tensors = []
    for index in range(2 * layers):
        kind = ("key", "value")[index % 2]
        tensors.append(
            {
                "name": f"layer.{index // 2}.{kind}",
                "kind": kind,
                "layer": index // 2,
                "shape": list(shape),
                "strides": list(strides),
                "offset": index * nbytes,
                "nbytes": nbytes,
                "dtype": dtype,
            }
        )
    metadata["tensor_manifest"] = {
        "version": 1,
        "byte_order": "little",
        "batch_size": batch,
        "cache_class": "dynamic",
        "attention_type": "causal",
        "tensors": tensors,
    }
    metadata.update(changes)
    return metadata


def payload_bytes(metadata: dict[str, Any], seed: int = 1) -> bytes:
    """Return random payload bytes of the length that the manifest asks for."""
    records = metadata["tensor_manifest"]["tensors"]
    return random.Random(seed).randbytes(sum(record["nbytes"] for record in records))


def tensor_bytes(metadata: dict[str, Any], payload: bytes, name: str) -> bytes:
    """Return the bytes of one tensor out of a logical payload."""
    for record in metadata["tensor_manifest"]["tensors"]:
        if record["name"] == name:
            return payload[record["offset"] : record["offset"] + record["nbytes"]]
    raise AssertionError(f"no tensor {name} in the case")


def write_case(path: Path, *, seed: int = 1, align: int = 1, **shape: Any) -> tuple[Any, bytes]:
    """Write a file with a manifest, and return (metadata, payload)."""
    metadata = manifest_metadata(**shape)
    payload = payload_bytes(metadata, seed)
    kvcache.write_cache_stream(path, metadata, [payload], align=align, durability="none")
    return metadata, payload


def write_opaque(path: Path, payload: bytes = b"opaque payload", **options: Any) -> dict[str, Any]:
    """Write a file without a manifest, and return its metadata."""
    metadata = base_metadata()
    kvcache.write_cache_stream(path, metadata, [payload], durability="none", **options)
    return metadata


def names_in(folder: Path) -> list[str]:
    """Return what lies in a folder, hidden files included."""
    return sorted(os.listdir(folder))


def patched(metadata: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a copy with the member at a dotted path set; numbers are list positions."""
    result = copy.deepcopy(metadata)
    place: Any = result
    *parents, last = path.split(".")
    for part in parents:
        place = place[int(part) if part.isdigit() else part]
    place[int(last) if last.isdigit() else last] = value
    return result
