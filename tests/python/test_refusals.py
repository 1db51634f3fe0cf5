# test_refusals.py: damaged, foreign and hostile files are refused, each with its class.
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import kvcache
import pytest
from kvcache_cases import CHUNK_BYTES, ROOT_FOLDER, tensor_bytes, write_case, write_opaque

MAGIC_BYTES = 8
CORPUS = ROOT_FOLDER / "tests" / "corpus"

CLASS_OF_DECADE = {
    "foreign": kvcache.UnsupportedCacheError,
    "version": kvcache.UnsupportedCacheError,
    "feature": kvcache.UnsupportedCacheError,
    "manifest": kvcache.UnsupportedCacheError,
    "empty": kvcache.UnsupportedCacheError,
    "mangled": kvcache.UnsupportedCacheError,
    "truncated": kvcache.CacheIncompleteError,
    "unfinished": kvcache.CacheIncompleteError,
    "structure": kvcache.CacheFormatError,
    "trailing": kvcache.CacheFormatError,
    "json": kvcache.CacheFormatError,
    "schema": kvcache.CacheFormatError,
    "geometry": kvcache.CacheFormatError,
    "header_check": kvcache.CacheIntegrityError,
    "footer_check": kvcache.CacheIntegrityError,
    "root": kvcache.CacheIntegrityError,
    "row": kvcache.CacheIntegrityError,
    "chunk": kvcache.CacheIntegrityError,
    "padding": kvcache.CacheIntegrityError,
    "identity": kvcache.CacheIdentityError,
    "expected_root": kvcache.CacheIdentityError,
    "no_tag": kvcache.CacheIdentityError,
    "tag": kvcache.CacheIdentityError,
}


def refusal(path: Path) -> kvcache.CacheError:
    """Verify a file that must be refused, and return the error."""
    with pytest.raises(kvcache.CacheError) as caught:
        kvcache.verify_cache(path, threads=1)
    error = caught.value
    assert type(error) is CLASS_OF_DECADE[str(error.status)]
    assert str(path) in str(error)
    return error


@contextmanager
def flipped(path: Path, place: int, bit: int = 0) -> Iterator[None]:
    """Change one bit of a file, in place, for a while."""
    file = os.open(path, os.O_RDWR)
    try:
        good = os.pread(file, 1, place)
        os.pwrite(file, bytes([good[0] ^ 1 << bit]), place)
        yield
        os.pwrite(file, good, place)
    finally:
        os.close(file)


def check_all_flips(path: Path, places: range | list[int], bits: range) -> set[str]:
    """Flip each bit of each place, expect the right class, and return the statuses seen."""
    size = path.stat().st_size
    seen = set()
    for place in places:
        for bit in bits:
            with flipped(path, place, bit):
                error = refusal(path)
            seen.add(str(error.status))
            if place < MAGIC_BYTES:
                assert isinstance(error, kvcache.UnsupportedCacheError), (place, bit)
            else:
                assert isinstance(error, kvcache.CacheIntegrityError), (place, bit)
            assert error.offset is None or error.offset < size
    assert kvcache.verify_cache(path).file_bytes == size
    return seen


@pytest.mark.parametrize("align", [1, 64, 4096])
def test_every_bit_of_a_small_file(tmp_path: Path, align: int) -> None:
    path = tmp_path / "a.kvc"
    write_case(path, align=align, dtype="i8", heads=1, head_dim=1, sequence=5)
    size = path.stat().st_size
    # Zeros between the parts are many and alike: one bit of each of their bytes will do.
    padding = range(2048, size - 512)
    head = range(2048)
    tail = range(size - 512, size)
    seen = check_all_flips(path, head, range(8)) | check_all_flips(path, tail, range(8))
    seen |= check_all_flips(path, padding, range(1))
    assert seen >= {"header_check", "footer_check", "root", "padding", "chunk"}


@pytest.mark.parametrize("align", [1, 64, 4096])
def test_bits_of_a_file_with_rows(tmp_path: Path, align: int) -> None:
    path = tmp_path / "a.kvc"
    write_case(path, align=align, dtype="u8", heads=1, head_dim=1, sequence=2 * CHUNK_BYTES + 7)
    info = kvcache.verify_cache(path)
    trailer = range(info.payload_offset + info.payload_span, info.file_bytes)
    seen = check_all_flips(path, trailer, range(8))
    assert seen >= {"row", "root", "footer_check"}
    payload = range(info.payload_offset, trailer.start)
    edges = [
        info.payload_offset + place + around
        for place in range(0, info.payload_span, CHUNK_BYTES)
        for around in (-1, 0, 1)
        if payload.start <= info.payload_offset + place + around < payload.stop
    ]
    seen = check_all_flips(path, edges + list(payload[::1777]), range(0, 8, 7))
    assert "chunk" in seen


def test_every_truncation(tmp_path: Path) -> None:
    path = tmp_path / "a.kvc"
    write_case(path, dtype="i8", heads=1, head_dim=1, sequence=5)
    for size in range(path.stat().st_size - 1, -1, -1):
        os.truncate(path, size)
        error = refusal(path)
        if size == 0:
            assert error.status == "empty"
        else:
            assert error.status == "truncated", size


@pytest.mark.parametrize("extra", [1, 7, 64, 128, 4096, 70_000])
def test_extensions(tmp_path: Path, extra: int) -> None:
    path = tmp_path / "a.kvc"
    write_case(path)
    for data in (bytes(extra), path.read_bytes()[-128:] * (extra // 128 + 1)):
        longer = tmp_path / "b.kvc"
        longer.write_bytes(path.read_bytes() + data[:extra])
        error = refusal(longer)
        assert error.status == "trailing"
        assert str(extra) in str(error)


def test_unfinished(tmp_path: Path) -> None:
    path = tmp_path / "a.kvc"
    write_case(path)
    data = path.read_bytes()
    path.write_bytes(data[:-128] + bytes(128))
    assert refusal(path).status == "unfinished"


def test_swapped_tensors(tmp_path: Path) -> None:
    path = tmp_path / "a.kvc"
    metadata, payload = write_case(path, sequence=16)
    half = len(payload) // 2
    data = bytearray(path.read_bytes())
    offset = kvcache.verify_cache(path).payload_offset
    data[offset : offset + 2 * half] = payload[half:] + payload[:half]
    path.write_bytes(data)
    error = refusal(path)
    assert error.status == "chunk"
    assert error.tensor == "layer.0.key"
    assert tensor_bytes(metadata, payload, "layer.0.key") == payload[:half]


@pytest.mark.parametrize(
    ("head", "word"),
    [
        (b"GGUF\x03\0\0\0", "GGUF"),
        (b"PK\x03\x04", "zip"),
        (b"\x93NUMPY\x01\0", "umpy"),
        (b"\x89HDF\r\n\x1a\n", "HDF5"),
        (b"plain text that is no cache", "KVC"),
    ],
)
def test_foreign_files(tmp_path: Path, head: bytes, word: str) -> None:
    path = tmp_path / "a.kvc"
    path.write_bytes(head + bytes(8192))
    error = refusal(path)
    assert error.status == "foreign"
    assert word in str(error)


def test_text_mode_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.kvc"
    write_case(path)
    path.write_bytes(path.read_bytes().replace(b"\r\n", b"\n"))
    assert refusal(path).status == "mangled"


def test_newer_major(tmp_path: Path) -> None:
    blake3 = pytest.importorskip("blake3")
    path = tmp_path / "a.kvc"
    write_case(path)
    data = bytearray(path.read_bytes())
    data[8] = 2
    data[120:128] = blake3.blake3(bytes(data[:120])).digest()[:8]
    path.write_bytes(data)
    error = refusal(path)
    assert error.status == "version"
    assert "2" in str(error)


def test_places_of_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.kvc"
    write_case(path, dtype="u8", heads=1, head_dim=1, sequence=3 * CHUNK_BYTES)
    info = kvcache.verify_cache(path)
    place = info.payload_offset + 4 * CHUNK_BYTES + 5
    with flipped(path, place):
        error = refusal(path)
        assert error.status == "chunk"
        assert error.tensor == "layer.0.value"
        assert error.offset == info.payload_offset + 4 * CHUNK_BYTES
        assert error.path == str(path)
        with kvcache.open_cache(path) as cache:
            assert len(cache["layer.0.key"].digest) == 64
            with pytest.raises(kvcache.CacheIntegrityError):
                cache["layer.0.value"]
            assert len(cache.read("layer.0.value", 0, CHUNK_BYTES)) == CHUNK_BYTES
            with pytest.raises(kvcache.CacheIntegrityError):
                cache.read("layer.0.value", CHUNK_BYTES, CHUNK_BYTES + 1)
            with pytest.raises(kvcache.CacheIntegrityError):
                cache.payload()
        for mode in (False, True):
            with pytest.raises(kvcache.CacheIntegrityError):
                kvcache.read_cache(path, copy=mode)
            with (
                kvcache.open_cache(path, copy=mode) as cache,
                pytest.raises(kvcache.CacheIntegrityError),
            ):
                cache["layer.0.value"]


def collected(path: Path, *places: int) -> list[tuple[str | None, str | None]]:
    """Damage these places, and return (status, tensor) of everything that is collected."""
    with ExitStack() as damage:
        for place in places:
            damage.enter_context(flipped(path, place))
        with pytest.raises(kvcache.CacheIntegrityError) as first:
            kvcache.verify_cache(path)
        assert first.value.failures == ()
        with pytest.raises(kvcache.CacheIntegrityError) as caught:
            kvcache.verify_cache(path, errors="collect")
    error = caught.value
    assert all(type(failure) is kvcache.CacheIntegrityError for failure in error.failures)
    head = error.failures[0]
    for name in ("status", "tensor", "offset", "field", "path"):
        assert getattr(error, name) == getattr(head, name) == getattr(first.value, name)
    assert str(head) in str(error)
    if len(error.failures) > 1:
        assert f"{len(error.failures)} damaged places" in str(error)
    return [(failure.status, failure.tensor) for failure in error.failures]


@pytest.fixture
def three_layers(tmp_path: Path) -> tuple[Path, list[int]]:
    """A file of six tensors of 70,000 bytes with gaps between them, and where they begin."""
    path = tmp_path / "a.kvc"
    write_case(path, align=4096, dtype="u8", heads=1, head_dim=1, sequence=70_000, layers=3)
    with kvcache.open_cache(path) as cache:
        assert cache.verify(errors="collect") == cache.info
        return path, [tensor.file_offset for tensor in cache.tensors.values()]


def test_collecting_all_damage(three_layers: tuple[Path, list[int]]) -> None:
    path, starts = three_layers
    assert collected(path, starts[1] + 69_999) == [("chunk", "layer.0.value")]
    assert collected(
        path, starts[0] + 3, starts[1] + 69_999, starts[2] + 70_001, starts[4] + 66_000
    ) == [
        ("chunk", "layer.0.key"),
        ("chunk", "layer.0.value"),
        ("padding", None),
        ("chunk", "layer.2.key"),
    ]
    # Two bad chunks of one tensor are one damaged place.
    assert collected(path, starts[5], starts[5] + 69_000) == [("chunk", "layer.2.value")]


def test_collecting_a_tensor_and_the_gap_behind_it(three_layers: tuple[Path, list[int]]) -> None:
    path, starts = three_layers
    assert collected(path, starts[1] + 69_999, starts[1] + 70_001) == [
        ("chunk", "layer.0.value"),
        ("padding", None),
    ]


def test_collecting_damaged_rows(three_layers: tuple[Path, list[int]]) -> None:
    path, _ = three_layers
    info = kvcache.verify_cache(path)
    row = -(-(info.payload_offset + info.payload_span) // 64) * 64
    assert collected(path, row, row + 5 * 64) == [("row", "layer.0.key"), ("row", "layer.2.value")]


def test_collecting_damage_outside_the_payload(tmp_path: Path) -> None:
    path = tmp_path / "a.kvc"
    write_case(path)
    with flipped(path, 200), pytest.raises(kvcache.CacheIntegrityError) as caught:
        kvcache.verify_cache(path, errors="collect")
    assert caught.value.status == "root"


def test_file_that_shrinks_while_open(tmp_path: Path) -> None:
    path = tmp_path / "a.kvc"
    write_case(path, dtype="u8", heads=1, head_dim=1, sequence=3 * CHUNK_BYTES)
    with kvcache.open_cache(path, copy=True) as cache:
        os.truncate(path, 8192)
        with pytest.raises(OSError, match="shorter") as caught:
            cache.read("layer.0.value")
        assert caught.value.errno == errno.EIO
        assert caught.value.filename == str(path)
        with pytest.raises(OSError, match="shorter"):
            cache.payload()
        with pytest.raises((OSError, kvcache.CacheIncompleteError)):
            cache.verify()


def test_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "a.kvc"
    for given in (path, str(path), os.fsencode(path)):
        for function in (kvcache.open_cache, kvcache.read_cache, kvcache.verify_cache):
            with pytest.raises(FileNotFoundError) as caught:
                function(given)
            assert caught.value.filename == os.fspath(given)
            assert caught.value.errno == errno.ENOENT


def test_not_a_regular_file(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError) as caught:
        kvcache.open_cache(tmp_path)
    assert caught.value.filename == str(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="fifo") as fifo:
        kvcache.open_cache(tmp_path / "fifo")
    assert fifo.value.filename == str(tmp_path / "fifo")
    with pytest.raises(OSError, match="/dev/null"):
        kvcache.open_cache("/dev/null")
    os.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        with pytest.raises(OSError, match="socket"):
            kvcache.open_cache("socket")


def test_opaque_damage_has_the_empty_name(tmp_path: Path) -> None:
    path = tmp_path / "a.kvc"
    write_opaque(path)
    with flipped(path, kvcache.verify_cache(path).payload_offset):
        error = refusal(path)
    assert (error.status, error.tensor, error.field) == ("chunk", "", None)


def corpus_cases(part: str) -> list[Path]:
    return sorted((CORPUS / part).glob("**/*.kvc"))


def test_corpus_is_there() -> None:
    assert len(corpus_cases("bad")) >= 100
    assert corpus_cases("good")


@pytest.mark.parametrize(
    "path", corpus_cases("bad"), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_bad_corpus(path: Path) -> None:
    status = path.parent.name
    with pytest.raises(kvcache.CacheError) as caught:
        kvcache.verify_cache(path)
    assert caught.value.status == status
    assert type(caught.value) is CLASS_OF_DECADE[status]
    for mode in (False, True):
        with pytest.raises(CLASS_OF_DECADE[status]):
            kvcache.read_cache(path, copy=mode)


@pytest.mark.parametrize("path", corpus_cases("good"), ids=lambda path: path.stem)
def test_good_corpus(path: Path) -> None:
    info = kvcache.verify_cache(path)
    assert info.file_bytes == path.stat().st_size
    _, mapped = kvcache.read_cache(path)
    _, copied = kvcache.read_cache(path, copy=True)
    assert mapped == copied
    assert len(mapped) == info.payload_bytes
