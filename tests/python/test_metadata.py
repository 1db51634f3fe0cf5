# test_metadata.py: Python values become JSON, or are refused with their path.
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import enum
from collections import OrderedDict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import kvcache
import pytest
from kvcache_cases import base_metadata, manifest_metadata, names_in, patched, payload_bytes


def write(path: Path, metadata: Any) -> kvcache.CacheInfo:
    payload = payload_bytes(metadata) if "tensor_manifest" in metadata else b"x"
    return kvcache.write_cache_stream(path, metadata, [payload], durability="none")


class Name(str, enum.Enum):  # noqa: UP042 - str subclasses are the point
    F16 = "f16"


class Number(enum.IntEnum):
    ONE = 1


@pytest.mark.parametrize(
    "user",
    [
        {},
        {"a": None, "b": True, "c": False, "d": 0, "e": -5, "f": 1.5, "g": "text", "h": []},
        {"big": 2**53 - 1, "small": -(2**53) + 1},
        {"floats": [1e16, 1e-5, 5e-324, 1.7976931348623157e308, 0.1, 123456789.125, -2.5]},
        {"text": 'quotes " \\ \b\f\n\r\t \x01\x7f é € 😀 \u2028'},
        {"é": 1, "z": 2, "a": 3, "😀": 4, "\uffff": 5},
        {"nested": {"a": [{"b": [[[]]]}]}},
        {"": "empty name"},
    ],
    ids=ascii,
)
def test_values_go_round(tmp_path: Path, user: dict[str, Any]) -> None:
    path = tmp_path / "a.kvc"
    write(path, base_metadata(user=user))
    stored = kvcache.read_cache(path)[0]["user"]
    assert stored == user
    assert repr(sorted(stored.items())) == repr(sorted(user.items()))


def test_kinds_of_values(tmp_path: Path) -> None:
    path = tmp_path / "a.kvc"
    metadata = base_metadata(
        dtype=Name.F16,
        layers=Number.ONE,
        user=MappingProxyType({"tuple": (1, (2,)), "ordered": OrderedDict(z=1, a=2)}),
    )
    write(path, MappingProxyType(metadata))
    stored = kvcache.read_cache(path)[0]
    assert stored == base_metadata(user={"tuple": [1, [2]], "ordered": {"z": 1, "a": 2}})
    assert type(stored["dtype"]) is str


def test_order_of_members_does_not_matter(tmp_path: Path) -> None:
    metadata = base_metadata(user={"b": 1, "a": 2})
    write(tmp_path / "a.kvc", metadata)
    turned = dict(reversed(metadata.items()))
    turned["user"] = {"a": 2, "b": 1}
    write(tmp_path / "b.kvc", turned)
    assert (tmp_path / "a.kvc").read_bytes() == (tmp_path / "b.kvc").read_bytes()


def contains_itself() -> dict[str, Any]:
    result: dict[str, Any] = {}
    result["again"] = result
    return result


@pytest.mark.parametrize(
    ("user", "error", "text"),
    [
        ({"a": {1: 2}}, TypeError, r"metadata: user\.a has a key of type int: keys must be str"),
        ({"a": {None: 2}}, TypeError, r"metadata: user\.a has a key of type NoneType"),
        ({"a": [0, b"x"]}, TypeError, r"metadata: user\.a\[1\] is of type bytes: use dict"),
        ({"a": {1, 2}}, TypeError, r"metadata: user\.a is of type set"),
        ({"a": object()}, TypeError, r"metadata: user\.a is of type object"),
        ({"a": 1j}, TypeError, r"metadata: user\.a is of type complex"),
        ({"a": Path("x")}, TypeError, r"metadata: user\.a is of type pathlib\.PosixPath"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_types(tmp_path: Path, user: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        write(tmp_path / "a.kvc", base_metadata(user=user))
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    ("user", "field", "text"),
    [
        ({"a": [1.0, float("nan")]}, "user.a[1]", "is nan: JSON has only finite"),
        ({"a": float("inf")}, "user.a", "is inf: JSON has only finite"),
        ({"a": -float("inf")}, "user.a", "is -inf: JSON has only finite"),
        ({"a": "x\ud800"}, "user.a", "holds a lone surrogate"),
        ({"\udfff": 1}, "user.\\udfff", "holds a lone surrogate"),
        ({"a": 2**53}, "user.a", "is an integer outside"),
        ({"a": -(1 << 20000)}, "user.a", "is an integer outside"),
        (contains_itself(), None, "nested too deep, or contains itself"),
    ],
    ids=lambda value: "value" if isinstance(value, dict) else str(value),
)
def test_wrong_values(tmp_path: Path, user: Any, field: str | None, text: str) -> None:
    with pytest.raises(kvcache.CacheFormatError, match=text) as caught:
        write(tmp_path / "a.kvc", base_metadata(user=user))
    if field is not None:
        assert caught.value.field == field
    assert names_in(tmp_path) == []
    str(caught.value).encode()


def nested(depth: int) -> Any:
    return [] if depth == 1 else [nested(depth - 1)]


MANIFEST = manifest_metadata(layers=2)


@pytest.mark.parametrize(
    ("metadata", "status", "word"),
    [
        (patched(MANIFEST, "layers", 3), "geometry", "layers"),
        (patched(MANIFEST, "layers", True), "schema", "layers"),
        (patched(MANIFEST, "layers", 0), "schema", "layers"),
        (patched(MANIFEST, "layers", 1.0), "schema", "layers"),
        (patched(MANIFEST, "dtype", "f8"), "schema", "dtype"),
        (patched(MANIFEST, "rope_theta", -1.0), "schema", "rope_theta"),
        (patched(MANIFEST, "tokenizer_sha256", "AB" * 32), "schema", "tokenizer_sha256"),
        (patched(MANIFEST, "model_revision", ""), "schema", "model_revision"),
        (patched(MANIFEST, "extra", 1), "schema", "extra"),
        (patched(MANIFEST, "user", []), "schema", "user"),
        (patched(MANIFEST, "tensor_manifest", None), "schema", "tensor_manifest"),
        (patched(MANIFEST, "tensor_manifest.version", 3), "manifest", "3"),
        (patched(MANIFEST, "tensor_manifest.byte_order", "big"), "schema", "byte_order"),
        (patched(MANIFEST, "tensor_manifest.tensors.1.offset", 1), "geometry", "offset"),
        (patched(MANIFEST, "tensor_manifest.tensors.0.strides.2", 2), "geometry", "strides"),
        (patched(MANIFEST, "tensor_manifest.tensors.2.name", "x"), "geometry", "name"),
        (patched(MANIFEST, "tensor_manifest.tensors.2.nbytes", 5), "geometry", "nbytes"),
        (patched(MANIFEST, "tensor_manifest.tensors.0.extra", 5), "schema", "extra"),
        (base_metadata(user={"a": nested(15)}), "json", "deep"),
        (base_metadata(user={"a": "x" * 300_000}), "schema", ""),
        (base_metadata(user={"a": [0] * 20_000}), "json", ""),
        (base_metadata(user={"a": "\0"}), "json", ""),
        ({}, "schema", ""),
    ],
    ids=lambda value: ascii(value)[-40:],
)
def test_what_the_library_judges(
    tmp_path: Path, metadata: dict[str, Any], status: str, word: str
) -> None:
    path = tmp_path / "a.kvc"
    with pytest.raises(kvcache.CacheError) as caught:
        kvcache.write_cache_stream(path, metadata, [payload_bytes(MANIFEST)])
    assert isinstance(caught.value, kvcache.CacheFormatError | kvcache.UnsupportedCacheError)
    assert caught.value.status == status
    assert word in str(caught.value)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("member", list(base_metadata()))
def test_every_member_is_required(tmp_path: Path, member: str) -> None:
    metadata = base_metadata()
    del metadata[member]
    with pytest.raises(kvcache.CacheFormatError) as caught:
        write(tmp_path / "a.kvc", metadata)
    assert caught.value.status == "schema"
    assert member in str(caught.value)
    assert names_in(tmp_path) == []


def test_numpy_scalars(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    with pytest.raises(TypeError, match=r"metadata: layers is of type numpy\.int64"):
        write(tmp_path / "a.kvc", base_metadata(layers=numpy.int64(1)))
    # A numpy.float64 is a float.
    write(tmp_path / "a.kvc", base_metadata(rope_theta=numpy.float64(1e6)))
    assert kvcache.verify_cache(tmp_path / "a.kvc").rope_theta == 1e6
