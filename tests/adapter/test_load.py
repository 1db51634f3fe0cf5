# test_load.py: what read_dynamic_cache gives, and what it refuses.
# SPDX-License-Identifier: Apache-2.0
# mypy: allow-untyped-calls, allow-subclassing-any
from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Any

import kvcache
import pytest
import torch
import torch_kvcache
from adapter_help import IDENTITY, bits, prefill, random_cache, read_dynamic_cache, tiny_llama

SHAPE = (1, 4, 600, 64)  # 600 KiB a tensor in f32: many chunks


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, bytes]:
    """A file of two layers, and its payload."""
    cache, payload = random_cache(SHAPE)
    path = tmp_path / "a.kvc"
    torch_kvcache.write_dynamic_cache(path, cache, **IDENTITY)
    return path, payload


def payload_of(cache: Any) -> bytes:
    return b"".join(bits(one) for layer in cache.layers for one in (layer.keys, layer.values))


@pytest.mark.skipif(sys.platform != "linux", reason="the list of mappings is Linux's")
def test_tensors_lie_in_the_mapped_file(saved: tuple[Path, bytes]) -> None:
    cache, _ = read_dynamic_cache(saved[0])
    ranges = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(str(saved[0])):
            start, _, end = line.split()[0].partition("-")
            ranges.append((int(start, 16), int(end, 16)))
            assert line.split()[1] == "rw-p"
    assert ranges
    for layer in cache.layers:
        for tensor in (layer.keys, layer.values):
            place = tensor.data_ptr()
            assert any(start <= place < end for start, end in ranges)
            assert tensor.untyped_storage().nbytes() == tensor.nbytes


def test_writing_into_tensors_does_not_reach_the_file(saved: tuple[Path, bytes]) -> None:
    path, payload = saved
    before = path.read_bytes()
    cache, _ = read_dynamic_cache(path)
    for layer in cache.layers:
        layer.keys.zero_()
        layer.values.add_(1.0)
    assert float(cache.layers[1].keys.abs().sum()) == 0.0
    assert path.read_bytes() == before
    again, _ = read_dynamic_cache(path)
    assert payload_of(again) == payload


@pytest.mark.parametrize("what", ["deleted", "replaced"])
def test_a_cache_outlives_its_file(saved: tuple[Path, bytes], what: str) -> None:
    path, payload = saved
    cache, _ = read_dynamic_cache(path)
    if what == "deleted":
        path.unlink()
    else:
        other, _ = random_cache(SHAPE, seed=7)
        torch_kvcache.write_dynamic_cache(path, other, **IDENTITY)
    gc.collect()
    assert payload_of(cache) == payload


def test_one_tensor_keeps_the_mapping(saved: tuple[Path, bytes]) -> None:
    path, payload = saved
    cache, _ = read_dynamic_cache(path)
    last = cache.layers[-1].values[:, -1:]
    del cache
    gc.collect()
    assert bits(last) == payload[-600 * 64 * 4 :]


def test_saving_over_the_file_that_the_cache_lies_in(saved: tuple[Path, bytes]) -> None:
    path, payload = saved
    before = path.read_bytes()
    cache, _ = read_dynamic_cache(path)
    torch_kvcache.write_dynamic_cache(path, cache, **IDENTITY)
    assert path.read_bytes() == before
    assert payload_of(cache) == payload


def test_further_tokens_do_not_change_the_file(tmp_path: Path) -> None:
    model = tiny_llama()
    ids = torch.arange(2, 60).reshape(1, -1)
    path = tmp_path / "a.kvc"
    torch_kvcache.write_dynamic_cache(path, prefill(model, ids[:, :50]), **IDENTITY)
    before = path.read_bytes()
    cache, _ = read_dynamic_cache(path)
    model.generate(ids, past_key_values=cache, max_new_tokens=8, do_sample=False)
    assert cache.get_seq_length() > 58
    assert path.read_bytes() == before


def test_a_loaded_cache_is_like_one_that_a_model_made(saved: tuple[Path, bytes]) -> None:
    model = tiny_llama()
    made = prefill(model, torch.arange(2, 20).reshape(1, -1))
    loaded, _ = read_dynamic_cache(saved[0])
    assert type(loaded) is type(made)
    assert vars(loaded).keys() == vars(made).keys()
    assert loaded.layer_class_to_replicate is made.layer_class_to_replicate is None
    assert type(loaded.layers[0]) is type(made.layers[0])
    assert vars(loaded.layers[0]).keys() == vars(made.layers[0]).keys()
    assert loaded.layers[0].is_initialized is True
    assert loaded.layers[0].device == made.layers[0].device
    assert loaded.layers[0].dtype is made.layers[0].dtype
    loaded.crop(-100 if hasattr(loaded.layers[0], "get_max_length") else 500)
    assert loaded.get_seq_length() == 500


@pytest.mark.parametrize("index", range(4))
def test_damage_in_any_tensor_gives_nothing(saved: tuple[Path, bytes], index: int) -> None:
    path, _ = saved
    place = kvcache.verify_cache(path).payload_offset + index * 600 * 4 * 64 * 4 + 70_000
    data = bytearray(path.read_bytes())
    data[place] ^= 0x10
    path.write_bytes(data)
    with pytest.raises(kvcache.CacheIntegrityError) as caught:
        read_dynamic_cache(path)
    assert caught.value.tensor == f"layer.{index // 2}.{('key', 'value')[index % 2]}"


@pytest.mark.parametrize("kept", [0, 100, 5000, -1])
def test_a_cut_file_gives_nothing(saved: tuple[Path, bytes], kept: int) -> None:
    path, _ = saved
    path.write_bytes(path.read_bytes()[:kept])
    error = kvcache.UnsupportedCacheError if kept == 0 else kvcache.CacheIncompleteError
    with pytest.raises(error):
        read_dynamic_cache(path)


def test_another_identity_lists_all_differences(saved: tuple[Path, bytes]) -> None:
    other = {"model_revision": "x", "tokenizer_sha256": "f" * 64, "rope_theta": 5e5, "layers": 2}
    with pytest.raises(kvcache.CacheIdentityError) as caught:
        read_dynamic_cache(saved[0], other)
    found = {one.field: (one.expected, one.found) for one in caught.value.differences}
    assert found == {
        "model_revision": ("x", IDENTITY["model_revision"]),
        "tokenizer_sha256": ("f" * 64, IDENTITY["tokenizer_sha256"]),
        "rope_theta": (5e5, IDENTITY["rope_theta"]),
    }


@pytest.mark.parametrize("align", [1, 64, 4096])
@pytest.mark.parametrize("shape", [(1, 3, 5, 7), (2, 2, 700, 33)], ids=str)
def test_every_alignment_is_read(tmp_path: Path, align: int, shape: tuple[int, ...]) -> None:
    cache, payload = random_cache(shape, torch.float16)
    path = tmp_path / "a.kvc"
    metadata = torch_kvcache.write_dynamic_cache(path, cache, **IDENTITY)
    kvcache.write_cache_stream(path, metadata, [payload], align=align)
    loaded, _ = read_dynamic_cache(path)
    assert payload_of(loaded) == payload


def test_damage_between_tensors_gives_nothing(tmp_path: Path) -> None:
    cache, payload = random_cache((1, 3, 5, 7))
    path = tmp_path / "a.kvc"
    metadata = torch_kvcache.write_dynamic_cache(path, cache, **IDENTITY)
    info = kvcache.write_cache_stream(path, metadata, [payload], align=4096)
    data = bytearray(path.read_bytes())
    data[info.payload_offset + 3000] = 1
    path.write_bytes(data)
    with pytest.raises(kvcache.CacheIntegrityError):
        read_dynamic_cache(path)


def test_an_opaque_payload_is_no_cache(tmp_path: Path) -> None:
    cache, payload = random_cache((1, 3, 5, 7))
    path = tmp_path / "a.kvc"
    metadata = torch_kvcache.write_dynamic_cache(path, cache, **IDENTITY)
    del metadata["tensor_manifest"]
    kvcache.write_cache_stream(path, metadata, [payload])
    with pytest.raises(kvcache.CacheFormatError, match="tensor_manifest is required"):
        read_dynamic_cache(path)


def test_the_position_of_the_first_token_is_kept(tmp_path: Path) -> None:
    cache, _ = random_cache((1, 3, 5, 7))
    torch_kvcache.write_dynamic_cache(tmp_path / "a.kvc", cache, **IDENTITY, sequence_start=77)
    _, metadata = read_dynamic_cache(tmp_path / "a.kvc", {"sequence_start": 77})
    assert metadata["sequence_start"] == 77


def test_no_file_is_an_oserror(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        read_dynamic_cache(tmp_path / "none.kvc")
    assert caught.value.filename in (tmp_path / "none.kvc", os.fspath(tmp_path / "none.kvc"))
