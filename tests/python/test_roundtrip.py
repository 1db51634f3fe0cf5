# test_roundtrip.py: what was written is what is read, in every mode, shape and spelling.
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import kvcache
import pytest
from kvcache_cases import (
    CHUNK_BYTES,
    ITEM_BYTES,
    base_metadata,
    manifest_metadata,
    payload_bytes,
    tensor_bytes,
    write_case,
    write_opaque,
)

DTYPES = list(ITEM_BYTES)
SHAPES = [
    {"layers": 1, "batch": 1, "heads": 1, "sequence": 1, "head_dim": 1},
    {"layers": 3, "batch": 1, "heads": 1, "sequence": 7, "head_dim": 5},
    {"layers": 2, "batch": 2, "heads": 3, "sequence": 1, "head_dim": 7},
    {"layers": 1, "batch": 2, "heads": 2, "sequence": 33, "head_dim": 1},
]


def check_file(path: Path, metadata: dict[str, Any], payload: bytes, align: int) -> None:
    for mode in (False, True):
        stored, view = kvcache.read_cache(path, copy=mode)
        assert stored == metadata
        assert isinstance(view, memoryview)
        assert view.readonly
        assert view.format == "B"
        assert view == payload
        with kvcache.open_cache(path, copy=mode) as cache:
            assert cache.metadata == metadata
            assert cache.info.align == align
            assert cache.info.payload_bytes == len(payload)
            for name in cache:
                expected = tensor_bytes(metadata, payload, name)
                assert bytes(cache[name]) == expected
                assert cache.read(name) == expected
                assert cache[name].nbytes == len(expected)
            assert cache.payload() == payload
    assert kvcache.verify_cache(path).payload_bytes == len(payload)


@pytest.mark.parametrize("align", [1, 64, 4096])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape.values())))
def test_awkward_shapes(tmp_path: Path, dtype: str, shape: dict[str, int], align: int) -> None:
    path = tmp_path / "a.kvc"
    metadata, payload = write_case(path, align=align, dtype=dtype, **shape)
    check_file(path, metadata, payload, align)


@pytest.mark.parametrize("align", [1, 64, 4096])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("difference", [-1, 0, 1])
@pytest.mark.parametrize("chunks", [1, 2])
def test_sizes_around_chunks(
    tmp_path: Path, dtype: str, difference: int, chunks: int, align: int
) -> None:
    path = tmp_path / "a.kvc"
    sequence = chunks * CHUNK_BYTES // ITEM_BYTES[dtype] + difference
    metadata, payload = write_case(
        path, align=align, dtype=dtype, layers=1, heads=1, head_dim=1, sequence=sequence
    )
    check_file(path, metadata, payload, align)
    with kvcache.open_cache(path) as cache:
        expected = chunks if difference <= 0 else chunks + 1
        assert [tensor.chunk_count for tensor in cache.tensors.values()] == [expected, expected]


@pytest.mark.parametrize("size", [1, 63, 4096, CHUNK_BYTES, CHUNK_BYTES + 1, 5 * CHUNK_BYTES - 3])
def test_opaque_payloads(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.kvc"
    payload = bytes(range(251)) * (size // 251 + 1)
    payload = payload[:size]
    metadata = write_opaque(path, payload)
    for mode in (False, True):
        assert kvcache.read_cache(path, copy=mode) == (metadata, payload)
        with kvcache.open_cache(path, copy=mode) as cache:
            assert list(cache) == [""]
            assert len(cache) == 1
            tensor = cache[""]
            assert (tensor.name, tensor.layer, tensor.kind) == ("", None, None)
            assert (tensor.dtype, tensor.shape) == ("u8", (size,))
            assert bytes(tensor) == payload
            assert cache.info.tensor_count == 0


def pieces_of(payload: bytes, sizes: itertools.cycle[int]) -> list[bytes]:
    pieces = []
    place = 0
    while place < len(payload):
        size = next(sizes)
        pieces.append(payload[place : place + size])
        place += size
    return pieces


@pytest.mark.parametrize("align", [1, 64, 4096])
@pytest.mark.parametrize(
    "sizes",
    [[1], [0, 3], [7, 64, 1], [4095], [CHUNK_BYTES], [CHUNK_BYTES - 1, 2], [1 << 20], [200_000]],
    ids=str,
)
def test_pieces_do_not_matter(tmp_path: Path, sizes: list[int], align: int) -> None:
    heads, sequence = (2, 150) if sizes[0] < 2 else (3, 11_001)
    metadata = manifest_metadata("f16", layers=2, heads=heads, sequence=sequence, head_dim=3)
    payload = payload_bytes(metadata)
    whole, pieces = tmp_path / "whole.kvc", tmp_path / "pieces.kvc"
    first = kvcache.write_cache_stream(whole, metadata, [payload], align=align)
    second = kvcache.write_cache_stream(
        pieces, metadata, pieces_of(payload, itertools.cycle(sizes)), align=align, threads=1
    )
    assert whole.read_bytes() == pieces.read_bytes()
    assert first == second


@pytest.mark.parametrize("align", [1, 64, 4096])
@pytest.mark.parametrize("key", [None, bytes(range(32))])
@pytest.mark.parametrize("sequence", [1, 4096, 8192, 8193, 40_000])
def test_write_returns_what_a_reader_sees(
    tmp_path: Path, align: int, key: bytes | None, sequence: int
) -> None:
    path = tmp_path / "a.kvc"
    metadata = manifest_metadata("f16", layers=2, heads=1, sequence=sequence, head_dim=9)
    written = kvcache.write_cache_stream(
        path, metadata, [payload_bytes(metadata)], align=align, key=key
    )
    assert written == kvcache.verify_cache(path, key=key)
    assert written.file_bytes == path.stat().st_size
    assert written.tag_checked is (key is not None)


@pytest.mark.parametrize("size", [1, 64, CHUNK_BYTES, CHUNK_BYTES * 3 + 1])
@pytest.mark.parametrize("align", [1, 64, 4096])
def test_write_of_opaque_returns_what_a_reader_sees(tmp_path: Path, size: int, align: int) -> None:
    path = tmp_path / "a.kvc"
    written = kvcache.write_cache_stream(path, base_metadata(), [b"x" * size], align=align)
    assert written == kvcache.verify_cache(path)
    assert written.file_bytes == path.stat().st_size


def test_root_names_content_not_layout(tmp_path: Path) -> None:
    metadata = manifest_metadata(layers=2, sequence=5)
    payload = payload_bytes(metadata)
    roots = set()
    for align, key in itertools.product((1, 64, 4096), (None, b"k" * 32)):
        path = tmp_path / "a.kvc"
        info = kvcache.write_cache_stream(path, metadata, [payload], align=align, key=key)
        roots.add(info.root)
    assert len(roots) == 1
    changed = bytes([payload[0] ^ 1]) + payload[1:]
    assert kvcache.write_cache_stream(path, metadata, [changed]).root not in roots


def test_digests_are_plain_blake3(tmp_path: Path) -> None:
    blake3 = pytest.importorskip("blake3")
    path = tmp_path / "a.kvc"
    metadata, payload = write_case(path, dtype="f32", layers=2, sequence=9000)
    with kvcache.open_cache(path) as cache:
        for name, info in cache.tensors.items():
            expected = blake3.blake3(tensor_bytes(metadata, payload, name)).hexdigest()
            assert info.digest == expected
            assert cache[name].digest == expected


def test_tensor_facts(tmp_path: Path) -> None:
    path = tmp_path / "a.kvc"
    metadata, payload = write_case(path, align=64, dtype="f32", layers=2, batch=2, sequence=5)
    data = path.read_bytes()
    with kvcache.open_cache(path) as cache:
        assert len(cache) == 4
        assert list(cache) == [r["name"] for r in metadata["tensor_manifest"]["tensors"]]
        assert "layer.1.value" in cache
        assert "layer.2.key" not in cache
        assert 3 not in cache
        for record, (name, info) in zip(
            metadata["tensor_manifest"]["tensors"], cache.tensors.items(), strict=True
        ):
            tensor = cache[name]
            for facts in (info, tensor):
                assert facts.name == name == record["name"]
                assert facts.layer == record["layer"]
                assert facts.kind == record["kind"]
                assert facts.dtype == record["dtype"]
                assert facts.shape == tuple(record["shape"])
                assert facts.nbytes == record["nbytes"]
                assert facts.offset == record["offset"]
            end = info.file_offset + info.nbytes
            assert data[info.file_offset : end] == tensor_bytes(metadata, payload, name)
            assert info.file_offset % 64 == 0
        with pytest.raises(TypeError):
            cache.tensors["x"] = info  # type: ignore[index]


def test_read_of_ranges(tmp_path: Path) -> None:
    path = tmp_path / "a.kvc"
    metadata, payload = write_case(path, align=64, dtype="u8", heads=1, sequence=70_001, head_dim=3)
    expected = tensor_bytes(metadata, payload, "layer.0.value")
    size = len(expected)
    edges = [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, size - 1, size]
    with kvcache.open_cache(path) as cache:
        for start, stop in itertools.product(edges, edges):
            if start <= stop:
                assert cache.read("layer.0.value", start, stop) == expected[start:stop]
        assert cache.read("layer.0.value", 5) == expected[5:]
        outside: list[tuple[int, int | None]] = [(-1, 2), (3, 2), (0, size + 1), (size + 1, None)]
        for first, last in outside:
            with pytest.raises(ValueError, match="0 <= start <= stop <= 210003"):
                cache.read("layer.0.value", first, last)
        with pytest.raises(TypeError):
            cache.read("layer.0.value", 0.5)  # type: ignore[arg-type]


def test_metadata_of_the_caller_are_not_changed(tmp_path: Path) -> None:
    metadata = manifest_metadata(heads=1, sequence=4, user={"z": 1, "a": [1.5, None, "é"]})
    for record in metadata["tensor_manifest"]["tensors"]:
        # What tensor libraries report for a dimension of size 1.
        record["strides"][0] = 12345
        record["strides"][1] = 99
    before = copy.deepcopy(metadata)
    path = tmp_path / "a.kvc"
    kvcache.write_cache_stream(path, metadata, [payload_bytes(metadata)])
    assert metadata == before
    stored, _ = kvcache.read_cache(path)
    assert stored["tensor_manifest"]["tensors"][0]["strides"] == [32, 32, 8, 2]
    assert stored["user"] == before["user"]


def test_kernel_and_version() -> None:
    assert kvcache.kernel() in {"avx512", "avx2", "sse41", "neon", "portable"}
    assert kvcache.__version__.count(".") == 2
