# test_errors.py: the exceptions themselves: hierarchy, attributes, pickles, texts.
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import kvcache
import pytest
from kvcache_cases import write_case

CLASSES = [
    kvcache.CacheError,
    kvcache.CacheFormatError,
    kvcache.CacheIncompleteError,
    kvcache.CacheIntegrityError,
    kvcache.CacheIdentityError,
    kvcache.UnsupportedCacheError,
]


def test_hierarchy() -> None:
    assert [kind.__mro__[1] for kind in CLASSES] == [
        Exception,
        kvcache.CacheError,
        kvcache.CacheFormatError,
        kvcache.CacheFormatError,
        kvcache.CacheFormatError,
        kvcache.CacheFormatError,
    ]


@pytest.mark.parametrize("kind", CLASSES)
def test_one_message_is_enough(kind: type[kvcache.CacheError]) -> None:
    error = kind("what went wrong")
    assert str(error) == "what went wrong"
    assert repr(error) == f"{kind.__name__}('what went wrong')"
    assert error.args == ("what went wrong",)
    assert error.status is error.offset is error.tensor is error.field is error.path is None
    assert error.expected is error.found is None
    assert error.differences == error.failures == ()
    assert str(kind()) == ""


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles(kind: type[kvcache.CacheError], protocol: int) -> None:
    inner = kvcache.CacheIntegrityError("inner", status="chunk", tensor="t")
    error = kind(
        "message",
        status="identity",
        path=b"p",
        offset=5,
        field="f",
        tensor="t",
        expected="e",
        found="g",
        differences=[kvcache.Difference("a", [1], kvcache.MISSING)],
        failures=[inner],
    )
    for other in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error)):
        assert type(other) is kind
        assert other.args == error.args
        assert other.differences == (("a", [1], kvcache.MISSING),)
        assert other.differences[0].found is kvcache.MISSING
        assert other.failures[0].tensor == "t"
        for name in ("status", "path", "offset", "field", "tensor", "expected", "found"):
            assert getattr(other, name) == getattr(error, name)


def test_errors_of_the_library_pickle(tmp_path: Path) -> None:
    path = tmp_path / "a.kvc"
    write_case(path, sequence=3)
    data = bytearray(path.read_bytes())
    data[kvcache.verify_cache(path).payload_offset] ^= 1
    path.write_bytes(data)
    (tmp_path / "b.kvc").write_bytes(b"")
    calls: list[tuple[Any, str]] = [
        (kvcache.verify_cache, "a.kvc"),
        (kvcache.open_cache, "b.kvc"),
        (kvcache.open_cache, "missing.kvc"),
        (kvcache.open_cache, "."),
    ]
    for function, name in calls:
        with pytest.raises((kvcache.CacheError, OSError)) as caught:
            function(tmp_path / name)
        again = pickle.loads(pickle.dumps(caught.value))
        assert type(again) is type(caught.value)
        assert str(again) == str(caught.value)
        assert again.__dict__ == caught.value.__dict__
        assert repr(again) == repr(caught.value)


def test_missing_is_one_object() -> None:
    assert repr(kvcache.MISSING) == "MISSING"
    assert copy.deepcopy(kvcache.MISSING) is kvcache.MISSING
    assert pickle.loads(pickle.dumps(kvcache.MISSING)) is kvcache.MISSING


def test_control_characters_do_not_reach_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "\x1b[31mred\x9b.kvc"
    write_case(path)
    with pytest.raises(kvcache.CacheIdentityError) as caught:
        kvcache.open_cache(path, {"model_revision": "\x1b]0;title\x07"})
    text = str(caught.value)
    assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in text)
    assert "\\x1b[31mred\\x9b.kvc" in text
    assert caught.value.differences[0].expected == "\x1b]0;title\x07"
    with kvcache.open_cache(path) as cache, pytest.raises(KeyError) as unknown:
        cache["\x1b[0m"]
    assert "\x1b" not in str(unknown.value.args[0])
