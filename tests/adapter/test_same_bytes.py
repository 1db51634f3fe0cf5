# test_same_bytes.py: five ways to write one content give one file, byte for byte.
# SPDX-License-Identifier: Apache-2.0
# mypy: allow-untyped-calls, allow-subclassing-any
from __future__ import annotations

import ctypes
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import kvcache
import pytest
import torch_kvcache
from adapter_help import (
    DTYPES,
    IDENTITY,
    REFERENCE,
    REPOSITORY,
    random_cache,
    reference_adapter,
)

BUILD = Path(os.environ.get("KVC_BUILD_DIR", REPOSITORY / "build"))
SHAPES = [(1, 1, 1, 1), (2, 3, 5, 7), (1, 2, 513, 64)]


def by_library(path: Path, metadata: dict[str, Any], payload: bytes) -> None:
    """Writes through the functions of include/kvc.h, with default options."""
    library = ctypes.CDLL(str(BUILD / "src" / "libkvc.so.0"))
    writer = ctypes.c_void_p()
    text = json.dumps(metadata).encode()
    root = ctypes.create_string_buffer(32)
    size = ctypes.c_uint64(len(payload))
    create = library.kvc_writer_create_path
    create.argtypes = [
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_void_p,
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.c_void_p,
    ]
    assert create(os.fsencode(path), text, len(text), None, ctypes.byref(writer), None) == 0
    assert library.kvc_writer_write(writer, payload, size, None) == 0
    assert library.kvc_writer_finish(writer, root, None) == 0
    library.kvc_writer_free(writer)


def by_command(path: Path, metadata: dict[str, Any], payload: bytes) -> None:
    spelled = path.with_suffix(".json")
    spelled.write_text(json.dumps(metadata, indent=2))
    raw = path.with_suffix(".payload")
    raw.write_bytes(payload)
    subprocess.run(
        [BUILD / "tools" / "kvc" / "kvc", "pack", spelled, raw, "-o", path],
        check=True,
        capture_output=True,
    )


@pytest.mark.skipif(
    not (BUILD / "src" / "libkvc.so.0").exists(),
    reason="the C library is not built; `make build`, or name its folder in KVC_BUILD_DIR",
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_five_ways_one_file(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    cache, _ = random_cache(shape, DTYPES[dtype], layers=2)
    ours = tmp_path / "adapter.kvc"
    metadata = torch_kvcache.write_dynamic_cache(ours, cache, **IDENTITY)
    payload = bytes(kvcache.read_cache(ours)[1])
    kvcache.write_cache_stream(tmp_path / "kvcache.kvc", metadata, [payload])
    by_library(tmp_path / "library.kvc", metadata, payload)
    by_command(tmp_path / "command.kvc", metadata, payload)
    ways = ["kvcache", "library", "command"]
    if REFERENCE.is_file():
        reference_adapter().write_dynamic_cache(tmp_path / "reference.kvc", cache, **IDENTITY)
        ways.append("reference")
    for way in ways:
        assert (tmp_path / f"{way}.kvc").read_bytes() == ours.read_bytes(), way
