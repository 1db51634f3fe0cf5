# test_identity.py: expected identities, roots and keys, and what is said when they differ.
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pickle
from pathlib import Path
from types import MappingProxyType
from typing import Any

import kvcache
import pytest
from kvcache_cases import manifest_metadata, payload_bytes

METADATA = manifest_metadata(user={"tenant": "a", "n": None, "list": [1, 2.5, {"x": True}]})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    result = tmp_path / "a.kvc"
    kvcache.write_cache_stream(result, METADATA, [payload_bytes(METADATA)], durability="none")
    return result


@pytest.mark.parametrize(
    "expected",
    [
        {},
        {"model_revision": "0123456789abcdef"},
        {"rope_theta": 10000},
        {"rope_theta": 1e4, "layers": 1.0},
        {"user": {"tenant": "a"}},
        {"user": {"n": None, "list": (1.0, 2.5, {"x": True})}},
        MappingProxyType({"dtype": "f16"}),
        METADATA,
        None,
    ],
    ids=repr,
)
def test_what_fits(path: Path, expected: Any) -> None:
    assert kvcache.read_cache(path, expected)[0] == METADATA
    kvcache.verify_cache(path, expected)
    kvcache.open_cache(path, expected).close()


@pytest.mark.parametrize(
    ("expected", "differences"),
    [
        ({"model_revision": "x"}, [("model_revision", "x", "0123456789abcdef")]),
        ({"layers": 2, "dtype": "f32"}, [("dtype", "f32", "f16"), ("layers", 2, 1)]),
        ({"layers": True}, [("layers", True, 1)]),
        ({"user": {"n": 0}}, [("user.n", 0, None)]),
        ({"user": {"m": None}}, [("user.m", None, kvcache.MISSING)]),
        ({"user": {"list": [1, 2.5]}}, [("user.list", [1, 2.5], [1, 2.5, {"x": True}])]),
        ({"tenant": {"a": 1}}, [("tenant", {"a": 1}, kvcache.MISSING)]),
        ({"rope_theta": "10000.0"}, [("rope_theta", "10000.0", 10000.0)]),
        ({"user": {"tenant": "ä\n"}}, [("user.tenant", "ä\n", "a")]),
        ({"user": 7}, [("user", 7, METADATA["user"])]),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_what_differs(path: Path, expected: dict[str, Any], differences: list[Any]) -> None:
    for function in (kvcache.open_cache, kvcache.read_cache, kvcache.verify_cache):
        with pytest.raises(kvcache.CacheIdentityError) as caught:
            function(path, expected)
        error = caught.value
        assert error.status == "identity"
        assert [tuple(difference) for difference in error.differences] == differences
        assert type(error.differences) is tuple
        for difference in error.differences:
            assert difference.field in str(error)
        assert all(ord(character) >= 32 for character in str(error))


def test_hundreds_of_differences(path: Path) -> None:
    expected = {"user": {f"field{number:03}": number for number in range(500)}}
    with pytest.raises(kvcache.CacheIdentityError) as caught:
        kvcache.open_cache(path, expected)
    assert len(caught.value.differences) == 500
    assert caught.value.differences[499] == ("user.field499", 499, kvcache.MISSING)
    assert "500" in str(caught.value)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert copy.differences[0].found is kvcache.MISSING


def test_identity_is_compared_before_the_payload(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[kvcache.verify_cache(path).payload_offset] ^= 1
    path.write_bytes(data)
    with pytest.raises(kvcache.CacheIdentityError):
        kvcache.read_cache(path, {"layers": 2})
    with pytest.raises(kvcache.CacheIntegrityError):
        kvcache.read_cache(path, {"layers": 1})


def test_expected_root(path: Path) -> None:
    root = kvcache.verify_cache(path).root
    assert root.startswith("kvc1:")
    raw = bytes.fromhex(root[5:])
    for good in (root, root[5:], root.upper().replace("KVC1:", "kvc1:"), raw, bytearray(raw)):
        assert kvcache.verify_cache(path, expected_root=good).root == root
    wrong = "kvc1:" + "00" * 32
    for function in (kvcache.open_cache, kvcache.read_cache, kvcache.verify_cache):
        with pytest.raises(kvcache.CacheIdentityError) as caught:
            function(path, expected_root=wrong)
        assert caught.value.status == "expected_root"
        assert root[5:] in str(caught.value)


def test_tags(tmp_path: Path) -> None:
    key = bytes(range(32))
    path = tmp_path / "a.kvc"
    written = kvcache.write_cache_stream(
        path, METADATA, [payload_bytes(METADATA)], key=bytearray(key)
    )
    assert written.has_tag
    assert written.tag_checked
    plain = kvcache.verify_cache(path)
    assert plain.has_tag
    assert not plain.tag_checked
    assert kvcache.verify_cache(path, key=memoryview(key)).tag_checked
    for function in (kvcache.open_cache, kvcache.read_cache, kvcache.verify_cache):
        with pytest.raises(kvcache.CacheIdentityError) as caught:
            function(path, key=b"x" * 32)
        assert caught.value.status == "tag"
    kvcache.write_cache_stream(path, METADATA, [payload_bytes(METADATA)])
    assert not kvcache.verify_cache(path).has_tag
    with pytest.raises(kvcache.CacheIdentityError) as caught:
        kvcache.read_cache(path, key=key)
    assert caught.value.status == "no_tag"
