# test_reference.py: this adapter and the seed's write the same files and read each other's.
# SPDX-License-Identifier: Apache-2.0
# mypy: allow-untyped-calls, allow-subclassing-any
from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch_kvcache
from adapter_help import (
    DTYPES,
    IDENTITY,
    bits,
    cache_of,
    random_cache,
    read_dynamic_cache,
    reference_adapter,
)

SHAPES = [(1, 1, 1, 1), (1, 8, 1, 64), (2, 3, 5, 7), (1, 2, 300, 64)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_same_file_and_same_metadata(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    reference = reference_adapter()
    cache, _ = random_cache(shape, DTYPES[dtype], layers=3)
    theirs = reference.write_dynamic_cache(
        tmp_path / "theirs.kvc", cache, **IDENTITY, sequence_start=9
    )
    ours = torch_kvcache.write_dynamic_cache(
        tmp_path / "ours.kvc", cache, **IDENTITY, sequence_start=9
    )
    assert ours == theirs
    assert (tmp_path / "ours.kvc").read_bytes() == (tmp_path / "theirs.kvc").read_bytes()


def test_same_file_where_strides_say_nothing(tmp_path: Path) -> None:
    reference = reference_adapter()
    parent = torch.randn(1, 5, 6, 8)
    cache = cache_of([(parent[:, 1:2, :, :], parent[:, 2:3, :, :])])
    assert cache.layers[0].keys[:, :, :3].is_contiguous()
    cache.layers[0].keys = cache.layers[0].keys[:, :, :3]
    cache.layers[0].values = cache.layers[0].values[:, :, :3]
    reference.write_dynamic_cache(tmp_path / "theirs.kvc", cache, **IDENTITY)
    torch_kvcache.write_dynamic_cache(tmp_path / "ours.kvc", cache, **IDENTITY)
    assert (tmp_path / "ours.kvc").read_bytes() == (tmp_path / "theirs.kvc").read_bytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_cache_is_read(tmp_path: Path, dtype: str) -> None:
    reference = reference_adapter()
    cache, _ = random_cache((2, 3, 50, 8), DTYPES[dtype], layers=3)
    torch_kvcache.write_dynamic_cache(tmp_path / "a.kvc", cache, **IDENTITY)
    theirs, their_metadata = reference.read_dynamic_cache(tmp_path / "a.kvc", IDENTITY)
    ours, our_metadata = read_dynamic_cache(tmp_path / "a.kvc", IDENTITY)
    assert our_metadata == their_metadata
    assert type(ours) is type(theirs)
    assert ours.get_seq_length() == theirs.get_seq_length() == 50
    assert vars(ours).keys() == vars(theirs).keys()
    assert ours.layer_class_to_replicate is theirs.layer_class_to_replicate
    for our_layer, their_layer in zip(ours.layers, theirs.layers, strict=True):
        assert type(our_layer) is type(their_layer)
        assert vars(our_layer).keys() == vars(their_layer).keys()
        assert our_layer.is_initialized is their_layer.is_initialized is True
        assert our_layer.dtype is their_layer.dtype
        assert our_layer.device == their_layer.device
        for name in ("keys", "values"):
            our_tensor, their_tensor = getattr(our_layer, name), getattr(their_layer, name)
            assert bits(our_tensor) == bits(their_tensor)
            assert our_tensor.stride() == their_tensor.stride()
