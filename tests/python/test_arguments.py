# test_arguments.py: wrong arguments are named, with what would be right, and touch no file.
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import array
import os
from pathlib import Path
from typing import Any

import kvcache
import pytest
from kvcache import _kvc
from kvcache_cases import base_metadata, names_in, write_opaque

READERS = [kvcache.open_cache, kvcache.read_cache, kvcache.verify_cache]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_opaque(tmp_path / "a.kvc")
    return tmp_path / "a.kvc"


ROOT_TEXT = (
    r'expected_root must be "kvc1:" and 64 hexadecimal digits, the digits alone, or 32 bytes'
)
READER_MISTAKES = [
    ({"key": "k" * 32}, TypeError, "key must be None or 32 bytes, not str"),
    ({"key": 32}, TypeError, "key must be None or 32 bytes, not int"),
    ({"key": b"k" * 31}, ValueError, "key must be 32 bytes long, not 31"),
    ({"key": b""}, ValueError, "key must be 32 bytes long, not 0"),
    ({"expected_root": "kvc1:12"}, ValueError, ROOT_TEXT + ", not 'kvc1:12'"),
    ({"expected_root": "kvc2:" + "0" * 64}, ValueError, ROOT_TEXT),
    ({"expected_root": "g" * 64}, ValueError, ROOT_TEXT),
    ({"expected_root": "0" * 64 + "\0"}, ValueError, ROOT_TEXT),
    ({"expected_root": "é" * 64}, ValueError, ROOT_TEXT),
    ({"expected_root": "\ud800"}, ValueError, ROOT_TEXT),
    ({"expected_root": ""}, ValueError, ROOT_TEXT),
    ({"expected_root": b"0" * 64}, ValueError, ROOT_TEXT + ", not 64 bytes"),
    ({"expected_root": 5}, TypeError, ROOT_TEXT + ", not int"),
    ({"threads": 0}, ValueError, "threads must be None or an integer from 1 to 256, not 0"),
    ({"threads": 257}, ValueError, "threads must be None or an integer from 1 to 256, not 257"),
    ({"threads": -1}, ValueError, "threads must be None or an integer from 1 to 256, not -1"),
    ({"threads": 2**70}, ValueError, "threads must be None or an integer from 1 to 256"),
    ({"threads": True}, TypeError, "threads must be None or an integer from 1 to 256, not bool"),
    ({"threads": 2.0}, TypeError, "threads must be None or an integer from 1 to 256, not float"),
    ({"threads": "2"}, TypeError, "threads must be None or an integer from 1 to 256, not str"),
    ({"expected_identity": []}, TypeError, "expected_identity must be a dict, not list"),
    ({"expected_identity": "{}"}, TypeError, "expected_identity must be a dict, not str"),
    ({"expected_identity": {1: 2}}, TypeError, "expected_identity has a key of type int"),
    (
        {"expected_identity": {"user": {"a": [b"x"]}}},
        TypeError,
        r"expected_identity: user\.a\[0\] is of type bytes",
    ),
    (
        {"expected_identity": {"rope_theta": float("nan")}},
        kvcache.CacheFormatError,
        "expected_identity: rope_theta is nan",
    ),
]


@pytest.mark.parametrize("function", READERS)
@pytest.mark.parametrize(("options", "error", "text"), READER_MISTAKES, ids=str)
def test_reader_mistakes(
    path: Path, function: Any, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        function(path, **options)


WRITER_MISTAKES = [
    ({"align": 2}, ValueError, "align must be 1, 64 or 4096, not 2"),
    ({"align": 0}, ValueError, "align must be 1, 64 or 4096, not 0"),
    ({"align": "64"}, TypeError, "align must be 1, 64 or 4096, not str"),
    ({"align": True}, TypeError, "align must be 1, 64 or 4096, not bool"),
    (
        {"durability": "sync"},
        ValueError,
        'durability must be "full", "file" or "none", not \'sync\'',
    ),
    (
        {"durability": None},
        TypeError,
        'durability must be "full", "file" or "none", not NoneType',
    ),
    ({"durability": 0}, TypeError, 'durability must be "full", "file" or "none", not int'),
    ({"key": "k" * 32}, TypeError, "key must be None or 32 bytes, not str"),
    ({"key": b"k" * 33}, ValueError, "key must be 32 bytes long, not 33"),
    ({"threads": 0}, ValueError, "threads must be None or an integer from 1 to 256, not 0"),
    ({"progress": 5}, TypeError, "progress must be None or a function .* not int"),
    ({"metadata": None}, TypeError, "metadata must be a dict, not NoneType"),
    ({"metadata": [("a", 1)]}, TypeError, "metadata must be a dict, not list"),
]


@pytest.mark.parametrize(("options", "error", "text"), WRITER_MISTAKES, ids=str)
def test_writer_mistakes(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    given = {"metadata": base_metadata(), "chunks": [b"x"], **options}
    with pytest.raises(error, match=text):
        kvcache.write_cache_stream(tmp_path / "a.kvc", **given)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"errors": "all"}, ValueError, 'errors must be "first" or "collect", not \'all\''),
        ({"errors": None}, TypeError, 'errors must be "first" or "collect", not NoneType'),
        ({"progress": "x"}, TypeError, "progress must be None or a function .* not str"),
    ],
    ids=str,
)
def test_verify_mistakes(
    path: Path, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        kvcache.verify_cache(path, **options)
    with kvcache.open_cache(path) as cache, pytest.raises(error, match=text):
        cache.verify(**options)


@pytest.mark.parametrize("function", [kvcache.open_cache, kvcache.read_cache])
@pytest.mark.parametrize("copy", [None, 1, "yes"])
def test_copy_mistakes(path: Path, function: Any, copy: Any) -> None:
    with pytest.raises(TypeError, match="copy must be True or False, not"):
        function(path, copy=copy)


def write(path: Any) -> object:
    return kvcache.write_cache_stream(path, base_metadata(), [b"x"])


@pytest.mark.parametrize("function", [*READERS, write])
def test_path_mistakes(function: Any) -> None:
    wrong: Any
    for wrong in (None, 5, 1.5, ["a"], bytearray(b"a")):
        with pytest.raises(TypeError, match=r"path must be str, bytes or os\.PathLike, not"):
            function(wrong)
    for wrong in ("a\0b", b"a\0b"):
        with pytest.raises(ValueError, match="path must not contain a NUL character"):
            function(wrong)
    with pytest.raises(FileNotFoundError):
        function("")


def test_kinds_of_paths(path: Path) -> None:
    class Own:
        def __fspath__(self) -> str:
            return str(path)

    root = kvcache.verify_cache(path).root
    for given in (path, str(path), os.fsencode(path), Own()):
        assert kvcache.verify_cache(given).root == root
    strange = path.parent / os.fsdecode(b"b\xff\n.kvc")
    write_opaque(strange)
    with kvcache.open_cache(strange) as cache:
        assert cache.root == root
        assert "a.kvc" not in repr(cache)
    strange.write_bytes(b"x" * 200)
    with pytest.raises(kvcache.UnsupportedCacheError) as caught:
        kvcache.open_cache(strange)
    assert "\n" not in str(caught.value)
    str(caught.value).encode()


def test_numbers_of_other_types(path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    assert kvcache.verify_cache(path, threads=numpy.int64(2)).align == 1
    info = kvcache.write_cache_stream(path, base_metadata(), [b"x"], align=numpy.int32(64))
    assert info.align == 64


def test_keys_of_other_types(path: Path) -> None:
    key = array.array("Q", [1, 2, 3, 4])
    kvcache.write_cache_stream(path, base_metadata(), [b"x"], key=key)
    assert kvcache.verify_cache(path, key=key.tobytes()).tag_checked


def test_tensor_names(path: Path) -> None:
    with kvcache.open_cache(path) as cache:
        for wrong in (0, None, b"", ("a",)):
            with pytest.raises(TypeError, match="tensor names are str"):
                cache[wrong]  # type: ignore[index]
            with pytest.raises(TypeError, match="tensor names are str"):
                cache.read(wrong)  # type: ignore[arg-type]
        for unknown in ("layer.0.key", "x\0y", "\ud800", "x" * 10_000):
            with pytest.raises(KeyError):
                cache[unknown]
            with pytest.raises(KeyError):
                cache.read(unknown)
            assert unknown not in cache


def test_closed(path: Path) -> None:
    cache = kvcache.open_cache(path)
    info = cache.info
    assert not cache.closed
    cache.close()
    cache.close()
    assert cache.closed
    calls: list[Any] = [
        lambda: cache.metadata,
        lambda: cache.tensors,
        lambda: cache[""],
        lambda: "" in cache,
        lambda: list(cache),
        lambda: len(cache),
        lambda: cache.read(""),
        lambda: cache.payload(),
        lambda: cache.verify(),
        lambda: cache.__enter__(),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="is closed"):
            call()
    assert cache.info == info
    assert cache.root == info.root
    assert repr(cache).startswith("<closed kvcache.Cache")
    with kvcache.open_cache(path) as other:
        pass
    assert other.closed


def test_nothing_can_be_made_by_hand() -> None:
    kind: Any
    for kind in (kvcache.CacheTensor, _kvc.Reader, _kvc.Payload):
        with pytest.raises(TypeError, match="cannot create"):
            kind()
        with pytest.raises(TypeError):
            kind.extra = 1
        with pytest.raises(TypeError):
            type("Sub", (kind,), {})
