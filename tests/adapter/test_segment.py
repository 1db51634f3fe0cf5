# test_segment.py: a turn is appended as a file of its new tokens, and joined to what it continues.
# SPDX-License-Identifier: Apache-2.0
# mypy: allow-untyped-calls, allow-subclassing-any
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kvcache
import pytest
import torch
import torch_kvcache
from adapter_help import IDENTITY
from kinds_help import (
    WINDOW,
    family_of,
    go_on,
    ids_of,
    inputs_of,
    layers_of,
    model_of,
    prefill,
    run,
    same_bits,
    same_state,
    twin,
)

FAMILIES = [
    *("Llama", "Mistral", "Gemma 3", "Gemma 3n", "DeepSeek V3", "GLM-DSA", "Qwen3-Next", "Jamba"),
    *("Mamba", "Falcon-H1", "LFM2", "StaticCache of Llama", "StaticCache of Gemma 3"),
    *("StaticCache of Falcon-H1", "StaticCache of GLM-DSA"),
]


def model_or_skip(name: str) -> Any:
    missing = family_of(name).missing()
    if missing:
        pytest.skip(missing)
    return model_of(name)


def write_chain(
    folder: Path, name: str, ends: Sequence[int], ids: torch.Tensor
) -> tuple[Any, Any, list[Path]]:
    """Runs a model over ids, and writes a file at each of the ends; returns model, cache, files."""
    model = model_or_skip(name)
    cache: Any = None
    paths: list[Path] = []
    start = 0
    for end in ends:
        if cache is None:
            cache = prefill(name, model, ids[:, :end])
        else:
            cache = run(model, ids[:, start:end], cache)[1]
        path = folder / f"{len(paths)}.kvc"
        so_far = ids[:, :end]
        if paths:
            parent = torch_kvcache.join(paths)
            torch_kvcache.append(path, cache, parent=parent, identity=IDENTITY, token_ids=so_far)
        else:
            torch_kvcache.save(path, cache, identity=IDENTITY, token_ids=so_far)
        paths.append(path)
        start = end
    return model, cache, paths


@pytest.mark.parametrize("ends", [(5, 9), (10, 12, 40), (40, 42), (20, 60), (WINDOW, 2 * WINDOW)])
@pytest.mark.parametrize("name", FAMILIES)
def test_joined_files_are_the_cache_in_memory(
    tmp_path: Path, name: str, ends: tuple[int, ...]
) -> None:
    ids = ids_of(ends[-1] + 1)
    model, cache, paths = write_chain(tmp_path, name, ends, ids)
    joined = torch_kvcache.join(paths, expected_identity=IDENTITY)
    assert joined.root == kvcache.verify_cache(paths[-1]).root
    assert joined.metadata["sequence_length"] == ends[-1]
    assert joined.token_ids is not None
    assert torch.equal(joined.token_ids, ids[:, : ends[-1]])
    for one, other in zip(layers_of(cache), layers_of(joined.cache), strict=True):
        assert same_state(one, other) == []
    resumed = joined if "Mamba" in name else torch_kvcache.resume(joined, ids)
    expected, tokens = go_on(model, twin(cache), ids[:, -1:])
    logits, found = go_on(model, resumed.cache, ids[:, -1:])
    assert same_bits(logits, expected)
    assert found == tokens


def test_a_segment_holds_the_new_tokens_only(tmp_path: Path) -> None:
    _, _, paths = write_chain(tmp_path, "Llama", (100, 103), ids_of(103))
    with kvcache.open_cache(paths[1]) as file:
        assert file.metadata["sequence_start"] == 100
        assert file.metadata["sequence_length"] == 3
        assert file.metadata["parent_root"] == kvcache.verify_cache(paths[0]).root
        assert file.info.payload_bytes == 4 * 2 * (2 * 3 * 8 * 4) + 3 * 8
        assert file.info.incompat == 0b11


def test_a_file_of_version_1_can_be_continued(tmp_path: Path) -> None:
    model, ids = model_or_skip("Llama"), ids_of(30)
    cache = prefill("Llama", model, ids[:, :20])
    torch_kvcache.save(tmp_path / "a.kvc", cache, identity=IDENTITY)
    cache = run(model, ids[:, 20:], cache)[1]
    torch_kvcache.append(tmp_path / "b.kvc", cache, parent=tmp_path / "a.kvc", identity=IDENTITY)
    joined = torch_kvcache.join([tmp_path / "a.kvc", tmp_path / "b.kvc"])
    assert joined.token_ids is None
    for one, other in zip(cache.layers, joined.cache.layers, strict=True):
        assert same_state(one, other) == []


def test_a_batch_keeps_its_mask(tmp_path: Path) -> None:
    model, ids = model_or_skip("Gemma 3"), ids_of(31, batch=2)
    mask = torch.ones_like(ids)
    ids[0, :4], mask[0, :4] = 0, 0
    cache = prefill("Gemma 3", model, ids[:, :20], attention_mask=mask[:, :20])
    torch_kvcache.save(
        tmp_path / "a.kvc",
        cache,
        identity=IDENTITY,
        token_ids=ids[:, :20],
        attention_mask=mask[:, :20],
    )
    cache = run(model, ids[:, 20:30], cache, attention_mask=mask[:, :30])[1]
    torch_kvcache.append(
        tmp_path / "b.kvc",
        cache,
        parent=tmp_path / "a.kvc",
        identity=IDENTITY,
        token_ids=ids[:, :30],
    )
    joined = torch_kvcache.join([tmp_path / "a.kvc", tmp_path / "b.kvc"])
    assert joined.attention_mask is not None
    assert torch.equal(joined.attention_mask, mask[:, :30])
    resumed = torch_kvcache.resume(joined, ids, mask)
    expected = run(model, ids[:, 30:], cache, attention_mask=mask)[0]
    assert same_bits(run(model, resumed.new_ids, resumed.cache, attention_mask=mask)[0], expected)


def test_a_segment_alone_is_refused(tmp_path: Path) -> None:
    _, _, paths = write_chain(tmp_path, "Llama", (9, 12), ids_of(12))
    with pytest.raises(kvcache.UnsupportedCacheError, match=r"continues another file, kvc1:"):
        torch_kvcache.load(paths[1])
    with pytest.raises(kvcache.UnsupportedCacheError, match=r"torch_kvcache\.join"):
        torch_kvcache.join(paths[1:])
    with pytest.raises(kvcache.UnsupportedCacheError, match="continues no other file"):
        torch_kvcache.join([paths[0], paths[0]])
    no_lists: list[Any] = [[], str(paths[0])]
    for nothing in no_lists:
        with pytest.raises(ValueError, match="a list of at least one file"):
            torch_kvcache.join(nothing)


def test_another_parent_is_refused(tmp_path: Path) -> None:
    _, _, paths = write_chain(tmp_path, "Llama", (9, 12, 15), ids_of(15))
    with pytest.raises(kvcache.CacheIdentityError, match="in their order"):
        torch_kvcache.join([paths[0], paths[2]])
    with pytest.raises(kvcache.CacheIdentityError, match="in their order"):
        torch_kvcache.join([paths[0], paths[1], paths[1]])


def test_another_model_is_refused(tmp_path: Path) -> None:
    _, cache, paths = write_chain(tmp_path, "Llama", (9, 12), ids_of(12))
    other = IDENTITY | {"model_revision": "another"}
    parents = [paths[0], torch_kvcache.load(paths[0])]
    for parent in parents:
        with pytest.raises(kvcache.CacheIdentityError, match="model_revision"):
            torch_kvcache.append(tmp_path / "c.kvc", cache, parent=parent, identity=other)
    assert not (tmp_path / "c.kvc").exists()
    with pytest.raises(kvcache.CacheIdentityError, match="model_revision"):
        torch_kvcache.join(paths, expected_identity=other)


@pytest.mark.parametrize(
    "change", [{"model_revision": "another"}, {"rope_theta": 5.0}, {"sequence_start": 8}]
)
def test_a_segment_of_another_model_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    _, _, paths = write_chain(tmp_path, "Llama", (9, 12), ids_of(12))
    metadata, payload = kvcache.read_cache(paths[1])
    other = tmp_path / "other.kvc"
    kvcache.write_cache_stream(other, metadata | change, [payload])
    with pytest.raises(kvcache.CacheIdentityError, match=next(iter(change))):
        torch_kvcache.join([paths[0], other])


def test_what_does_not_go_on_from_its_parent_is_refused(tmp_path: Path) -> None:
    ids = ids_of(12)
    _, cache, paths = write_chain(tmp_path, "Llama", (9, 12), ids)
    parent = torch_kvcache.load(paths[0])
    shorter = torch_kvcache.resume(parent, ids[:, :9]).cache
    others = ids.clone()
    others[0, 3] = 2 if ids[0, 3] != 2 else 3
    for wrong, tokens, words in (
        (shorter, None, "there is nothing new in it"),
        (parent.cache, None, "there is nothing new in it"),
        (cache, others, "its first 9 tokens are not those of its parent"),
    ):
        with pytest.raises(kvcache.UnsupportedCacheError, match=words):
            torch_kvcache.append(
                tmp_path / "c.kvc", wrong, parent=parent, identity=IDENTITY, token_ids=tokens
            )
    assert not (tmp_path / "c.kvc").exists()


def test_an_encoder_decoder_cache_is_refused(tmp_path: Path) -> None:
    model, ids = model_or_skip("T5"), ids_of(12)
    inputs = inputs_of(model)
    cache = prefill("T5", model, ids[:, :9], **inputs)
    torch_kvcache.save(tmp_path / "a.kvc", cache, identity=IDENTITY, token_ids=ids[:, :9])
    cache = run(model, ids[:, 9:], cache, **inputs)[1]
    with pytest.raises(kvcache.UnsupportedCacheError, match="encoder-decoder"):
        torch_kvcache.append(
            tmp_path / "b.kvc", cache, parent=tmp_path / "a.kvc", identity=IDENTITY
        )


@pytest.mark.parametrize("damaged", [0, 1])
def test_damage_in_any_file_is_found(tmp_path: Path, damaged: int) -> None:
    _, _, paths = write_chain(tmp_path, "Llama", (9, 12), ids_of(12))
    info = kvcache.verify_cache(paths[damaged])
    data = bytearray(paths[damaged].read_bytes())
    data[info.payload_offset + info.payload_span - 1] ^= 1
    paths[damaged].write_bytes(data)
    with pytest.raises(kvcache.CacheIntegrityError, match=f"{damaged}.kvc"):
        torch_kvcache.join(paths)
