# test_write.py: writing either succeeds as a whole or leaves everything as it was.
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import array
import ctypes
import errno
import gc
import itertools
import mmap
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kvcache
import pytest
from kvcache_cases import base_metadata, manifest_metadata, names_in, payload_bytes, write_case

METADATA = manifest_metadata(layers=2, sequence=5)
PAYLOAD = payload_bytes(METADATA)


class OwnError(Exception):
    pass


def failing_iterator(after: int) -> Iterator[bytes]:
    for index in range(len(PAYLOAD)):
        if index == after:
            raise OwnError(f"piece {index}")
        yield PAYLOAD[index : index + 1]


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("after", [0, 1, len(PAYLOAD) - 1])
def test_iterator_that_raises(tmp_path: Path, old: bool, after: int) -> None:
    path = tmp_path / "a.kvc"
    if old:
        path.write_bytes(b"the old file")
    with pytest.raises(OwnError, match=f"piece {after}"):
        kvcache.write_cache_stream(path, METADATA, failing_iterator(after))
    assert names_in(tmp_path) == (["a.kvc"] if old else [])
    if old:
        assert path.read_bytes() == b"the old file"


@pytest.mark.parametrize("change", [-1, 1, -len(PAYLOAD), 70_000])
def test_wrong_length(tmp_path: Path, change: int) -> None:
    path = tmp_path / "a.kvc"
    path.write_bytes(b"the old file")
    payload = (PAYLOAD + bytes(max(change, 0)))[: len(PAYLOAD) + change]
    with pytest.raises(kvcache.CacheFormatError) as caught:
        kvcache.write_cache_stream(path, METADATA, [payload])
    assert type(caught.value) is kvcache.CacheFormatError
    assert caught.value.status == "length"
    assert str(len(PAYLOAD)) in str(caught.value)
    assert names_in(tmp_path) == ["a.kvc"]
    assert path.read_bytes() == b"the old file"


def test_empty_opaque_payload(tmp_path: Path) -> None:
    with pytest.raises(kvcache.CacheFormatError) as caught:
        kvcache.write_cache_stream(tmp_path / "a.kvc", base_metadata(), [])
    assert caught.value.status == "length"
    assert names_in(tmp_path) == []


def test_chunks_are_consumed_lazily_and_released(tmp_path: Path) -> None:
    living: list[weakref.ref[Any]] = []

    class Piece(array.array):  # type: ignore[type-arg]
        pass

    def pieces() -> Iterator[Any]:
        for index in range(len(PAYLOAD) // 2):
            assert not any(reference() for reference in living)
            piece = Piece("B", PAYLOAD[2 * index : 2 * index + 2])
            living.append(weakref.ref(piece))
            yield piece
            # A buffer that is still exported refuses to grow.
            piece.append(0)
            del piece

    kvcache.write_cache_stream(tmp_path / "a.kvc", METADATA, pieces())
    assert len(living) == len(PAYLOAD) // 2
    assert kvcache.read_cache(tmp_path / "a.kvc")[1] == PAYLOAD


def test_every_kind_of_buffer(tmp_path: Path) -> None:
    anonymous = mmap.mmap(-1, 8)
    anonymous[:] = b"mmapmmap"
    pieces = [
        b"bytes",
        bytearray(b"bytearray"),
        memoryview(b"memoryview"),
        memoryview(b"abcdef").cast("B", [2, 3]),
        array.array("i", [1, 2, 3]),
        (ctypes.c_uint16 * 2)(7, 8),
        anonymous,
        b"",
    ]
    expected = b"".join(bytes(memoryview(piece).cast("B")) for piece in pieces)
    kvcache.write_cache_stream(tmp_path / "a.kvc", base_metadata(), pieces)
    assert kvcache.read_cache(tmp_path / "a.kvc")[1] == expected


def test_numpy_pieces(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    data = numpy.arange(24, dtype="<f4").reshape(2, 3, 4)
    kvcache.write_cache_stream(tmp_path / "a.kvc", base_metadata(), [data, data[1]])
    assert kvcache.read_cache(tmp_path / "a.kvc")[1] == data.tobytes() + data[1].tobytes()
    path = tmp_path / "b.kvc"
    for bad in (data[:, :, ::2], data.T, numpy.asfortranarray(data)):
        with pytest.raises(ValueError, match=r"chunks\[1\] is not C-contiguous"):
            kvcache.write_cache_stream(path, base_metadata(), [b"x", bad])
    with pytest.raises(TypeError, match=r"chunks\[0\] holds Python objects"):
        kvcache.write_cache_stream(path, base_metadata(), [numpy.array([None, 1], dtype=object)])
    with pytest.raises(TypeError, match="put it in a list"):
        kvcache.write_cache_stream(path, base_metadata(), data)
    assert names_in(tmp_path) == ["a.kvc"]


@pytest.mark.parametrize(
    ("pieces", "error", "text"),
    [
        ([b"a", "text"], TypeError, r"chunks\[1\] must be a bytes-like object, not .*str.*encode"),
        ([b"a", b"b", 3], TypeError, r"chunks\[2\] must be a bytes-like object, not .*int"),
        ([None], TypeError, r"chunks\[0\] must be a bytes-like object, not .*NoneType"),
        ({"a": b"x"}, TypeError, r"chunks\[0\] must be a bytes-like"),
        ([memoryview(b"abcd")[::2]], ValueError, r"chunks\[0\] is not C-contiguous"),
        (b"bytes", TypeError, r"not one bytes: put it in a list, \[data\]"),
        (bytearray(b"x"), TypeError, r"not one bytearray: put it in a list"),
        (memoryview(b"x"), TypeError, r"not one memoryview: put it in a list"),
        ("text", TypeError, "an iterable of bytes-like objects, not str"),
        (None, TypeError, "an iterable of bytes-like objects, not NoneType"),
        (7, TypeError, "an iterable of bytes-like objects, not int"),
    ],
)
def test_wrong_chunks(tmp_path: Path, pieces: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        kvcache.write_cache_stream(tmp_path / "a.kvc", base_metadata(), pieces)
    assert names_in(tmp_path) == []


def test_old_sequence_protocol(tmp_path: Path) -> None:
    class Pieces:
        def __getitem__(self, index: int) -> bytes:
            if index == 3:
                raise IndexError
            return bytes([index])

    pieces: Any = Pieces()
    kvcache.write_cache_stream(tmp_path / "a.kvc", base_metadata(), pieces)
    assert kvcache.read_cache(tmp_path / "a.kvc")[1] == b"\0\1\2"


def test_iterator_that_calls_back(tmp_path: Path) -> None:
    other = tmp_path / "other.kvc"

    def pieces() -> Iterator[bytes]:
        kvcache.write_cache_stream(other, base_metadata(), [b"inner"])
        yield bytes(kvcache.read_cache(other)[1])
        # The file that is being written is not there yet, nor in the way of itself.
        with pytest.raises(FileNotFoundError):
            kvcache.open_cache(tmp_path / "a.kvc")
        kvcache.write_cache_stream(tmp_path / "a.kvc", base_metadata(), [b"first"])
        yield b" and outer"

    kvcache.write_cache_stream(tmp_path / "a.kvc", base_metadata(), pieces())
    assert kvcache.read_cache(tmp_path / "a.kvc")[1] == b"inner and outer"
    assert names_in(tmp_path) == ["a.kvc", "other.kvc"]


def test_generator_is_closed_after_a_failure(tmp_path: Path) -> None:
    closed = []

    def pieces() -> Iterator[bytes]:
        try:
            yield PAYLOAD
            yield b"too much"
            yield b"never asked for"
        finally:
            closed.append(True)

    with pytest.raises(kvcache.CacheFormatError):
        kvcache.write_cache_stream(tmp_path / "a.kvc", METADATA, pieces())
    gc.collect()
    assert closed == [True]


@pytest.mark.parametrize("durability", ["full", "file", "none"])
def test_durability_does_not_change_the_file(tmp_path: Path, durability: str) -> None:
    path = tmp_path / "a.kvc"
    write_case(tmp_path / "b.kvc", layers=2, sequence=5)
    kvcache.write_cache_stream(path, METADATA, [PAYLOAD], durability=durability)
    assert path.read_bytes() == (tmp_path / "b.kvc").read_bytes()


def test_replaces_a_symbolic_link(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    (tmp_path / "a.kvc").symlink_to(target)
    kvcache.write_cache_stream(tmp_path / "a.kvc", METADATA, [PAYLOAD])
    assert target.read_bytes() == b"precious"
    assert not (tmp_path / "a.kvc").is_symlink()


def test_missing_folder(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "a.kvc"
    with pytest.raises(FileNotFoundError) as caught:
        kvcache.write_cache_stream(path, METADATA, [PAYLOAD])
    assert caught.value.errno == errno.ENOENT
    assert caught.value.filename == str(path)


def test_folder_in_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.kvc").mkdir()
    with pytest.raises(OSError, match=r"a\.kvc") as caught:
        kvcache.write_cache_stream(tmp_path / "a.kvc", METADATA, [PAYLOAD])
    assert caught.value.errno in (errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST)
    assert names_in(tmp_path) == ["a.kvc"]
    assert (tmp_path / "a.kvc").is_dir()


def run_unprivileged(code: str, *arguments: str) -> str:
    """Run Python code as a user who may be refused something, and return what it prints."""
    script = (
        "import os, sys\n"
        "import kvcache\n"
        "from kvcache_cases import *\n"
        "if os.getuid() == 0:\n"
        "    os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
    )
    folder = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", script + code, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, folder])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def open_folder(tmp_path: Path) -> Path:
    """A folder that an unprivileged user can reach, as far as tmp_path's parents are ours."""
    for parent in [tmp_path, *tmp_path.parents]:
        if parent.owner() == tmp_path.owner() and str(parent) not in ("/", "/tmp"):
            parent.chmod(0o755)
    return tmp_path


def test_folder_without_permission(open_folder: Path) -> None:
    write_case(open_folder / "a.kvc", layers=2, sequence=5)
    before = (open_folder / "a.kvc").read_bytes()
    (open_folder / "a.kvc").chmod(0o644)
    open_folder.chmod(0o555)
    printed = run_unprivileged(
        "path = sys.argv[1]\n"
        "metadata = manifest_metadata()\n"
        "try:\n"
        "    kvcache.write_cache_stream(path, metadata, [payload_bytes(metadata)])\n"
        "except PermissionError as error:\n"
        "    print(error.errno, error.filename)\n",
        str(open_folder / "a.kvc"),
    )
    open_folder.chmod(0o755)
    assert printed == f"{errno.EACCES} {open_folder / 'a.kvc'}"
    assert names_in(open_folder) == ["a.kvc"]
    assert (open_folder / "a.kvc").read_bytes() == before


def test_file_without_permission(open_folder: Path) -> None:
    write_case(open_folder / "a.kvc")
    (open_folder / "a.kvc").chmod(0)
    printed = run_unprivileged(
        "try:\n"
        "    kvcache.open_cache(sys.argv[1])\n"
        "except PermissionError as error:\n"
        "    print(error.errno, error.filename)\n",
        str(open_folder / "a.kvc"),
    )
    assert printed == f"{errno.EACCES} {open_folder / 'a.kvc'}"


def test_file_too_large_for_the_limit(tmp_path: Path) -> None:
    code = (
        "import resource, signal, sys\n"
        "import kvcache\n"
        "from kvcache_cases import *\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "try:\n"
        "    kvcache.write_cache_stream(sys.argv[1], base_metadata(), [b'x' * 65536] * 64)\n"
        "except OSError as error:\n"
        "    print(error.errno, error.filename)\n"
    )
    path = tmp_path / "a.kvc"
    path.write_bytes(b"the old file")
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parent)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{errno.EFBIG} {path}"
    assert names_in(tmp_path) == ["a.kvc"]
    assert path.read_bytes() == b"the old file"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_path_that_is_a_device(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"/dev/full/a\.kvc") as caught:
        kvcache.write_cache_stream("/dev/full/a.kvc", METADATA, [PAYLOAD])
    assert caught.value.errno == errno.ENOTDIR


def test_many_small_pieces_in_one_generator(tmp_path: Path) -> None:
    count = 50_000
    kvcache.write_cache_stream(
        tmp_path / "a.kvc", base_metadata(), itertools.repeat(b"ab", count), durability="none"
    )
    assert kvcache.read_cache(tmp_path / "a.kvc")[1] == b"ab" * count
