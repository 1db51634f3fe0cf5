# test_kinds.py: every kind of cache goes on from a file exactly as from memory.
# SPDX-License-Identifier: Apache-2.0
# mypy: allow-untyped-calls, allow-subclassing-any
from __future__ import annotations

from pathlib import Path
from typing import Any

import kinds_help as kinds
import kvcache
import pytest
import torch
import torch_kvcache
from adapter_help import IDENTITY, TRANSFORMERS_5, run_python
from kinds_help import FAMILIES, WINDOW, Family
from transformers import QuantizedCache, cache_utils

PREFIX = 40


def names(*words: str) -> list[str]:
    """Returns the names of the families that have a kind with one of these words in it."""
    return [
        family.name
        for family in FAMILIES
        if any(word in kind for kind in family.kinds for word in words)
    ]


def family_of(name: str) -> Family:
    """Returns a family that can be tested here, or skips the test."""
    family = kinds.family_of(name)
    if family.missing():
        pytest.skip(family.missing())
    return family


def saved(path: Path, cache: Any, **arguments: Any) -> list[dict[str, Any]]:
    """Saves a cache; returns the layer records of its metadata."""
    metadata = torch_kvcache.save(path, cache, identity=IDENTITY, **arguments)
    layers: list[dict[str, Any]] = metadata["tensor_manifest"].get("layers", [])
    return layers


def assert_goes_on(
    tmp_path: Path, family: Family, tokens: int, batch: int = 1, more: int = 1
) -> tuple[Any, Any]:
    """Saves, loads and goes on with both; returns the cache that was saved and the loaded one."""
    model, ids = kinds.model_of(family), kinds.ids_of(tokens + more, batch)
    inputs = kinds.inputs_of(model, batch)
    cache = kinds.prefill(family, model, ids[:, :tokens], **inputs)
    want = kinds.go_on(model, kinds.twin(cache), ids[:, tokens:], **inputs)
    records = saved(tmp_path / "a.kvc", cache, token_ids=ids[:, :tokens])
    assert tuple(record["kind"] for record in records) == family.kinds_here
    loaded = torch_kvcache.load(tmp_path / "a.kvc", expected_identity=IDENTITY)
    assert loaded.token_ids is not None
    assert loaded.token_ids.tolist() == ids[:, :tokens].tolist()
    assert type(loaded.cache) is type(cache)
    both = list(zip(kinds.layers_of(cache), kinds.layers_of(loaded.cache), strict=True))
    assert [kinds.same_state(one, other) for one, other in both] == [[]] * len(family.kinds_here)
    again = kinds.twin(loaded.cache)
    got = kinds.go_on(model, loaded.cache, ids[:, tokens:], **inputs)
    assert kinds.same_bits(got[0], want[0])
    assert got[1] == want[1]
    return cache, again


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", [family.name for family in FAMILIES])
def test_every_family_goes_on_identically(tmp_path: Path, name: str, batch: int) -> None:
    assert_goes_on(tmp_path, family_of(name), PREFIX, batch)


@pytest.mark.parametrize("name", [family.name for family in FAMILIES])
def test_what_is_compared_depends_on_the_cache(name: str) -> None:
    """The test above would not pass with any other cache: another prefix gives other logits."""
    family = family_of(name)
    model, ids = kinds.model_of(family), kinds.ids_of(PREFIX + 1)
    inputs = kinds.inputs_of(model)
    results = []
    for prefix in (ids[:, :PREFIX], ids.flip(1)[:, :PREFIX]):
        cache = kinds.prefill(family, model, prefix, **inputs)
        results.append(kinds.go_on(model, cache, ids[:, PREFIX:], **inputs)[0])
    assert not torch.equal(results[0][0], results[1][0])


@pytest.mark.parametrize("tokens", [1, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW])
@pytest.mark.parametrize("name", names("sliding"))
def test_windows_at_their_edges(tmp_path: Path, name: str, tokens: int) -> None:
    cache, loaded = assert_goes_on(tmp_path, family_of(name), tokens)
    for one, other in zip(cache.layers, loaded.layers, strict=True):
        assert int(one.get_seq_length()) == int(other.get_seq_length()) == tokens


@pytest.mark.parametrize("tokens", [1, 2, 3, 100])
@pytest.mark.parametrize("name", names("linear"))
def test_recurrent_states_after_few_and_many_tokens(tmp_path: Path, name: str, tokens: int) -> None:
    assert_goes_on(tmp_path, family_of(name), tokens)


@pytest.mark.parametrize("name", names("static"))
@pytest.mark.parametrize("tokens", [1, 255])
def test_static_layers_almost_empty_and_almost_full(tmp_path: Path, name: str, tokens: int) -> None:
    family = family_of(name)
    model, ids = kinds.model_of(family), kinds.ids_of(tokens)
    cache = kinds.prefill(family, model, ids)
    saved(tmp_path / "a.kvc", cache)
    loaded = torch_kvcache.load(tmp_path / "a.kvc").cache
    for one, other in zip(cache.layers, loaded.layers, strict=True):
        assert kinds.same_state(one, other) == []
        assert other.keys.shape[2] == one.keys.shape[2] > 0
    want = kinds.go_on(model, cache, ids[:, :1], steps=0)
    assert kinds.same_bits(kinds.go_on(model, loaded, ids[:, :1], steps=0)[0], want[0])


PADDED = ["Llama", "Gemma 3", "DeepSeek V3", "Qwen3-Next", "Falcon-H1", "StaticCache of Gemma 3"]


@pytest.mark.parametrize("name", PADDED)
def test_a_batch_with_padding_on_the_left(tmp_path: Path, name: str) -> None:
    family = family_of(name)
    model, ids = kinds.model_of(family), kinds.ids_of(PREFIX + 1, 2)
    mask = torch.ones(2, PREFIX, dtype=torch.int64)
    mask[1, :7] = 0
    ids[1, :7] = 0
    cache = kinds.prefill(family, model, ids[:, :PREFIX], attention_mask=mask)
    last = ids[:, PREFIX:]
    want = kinds.go_on(model, kinds.twin(cache), last, attention_mask=mask)
    saved(tmp_path / "a.kvc", cache, token_ids=ids[:, :PREFIX], attention_mask=mask)
    loaded = torch_kvcache.load(tmp_path / "a.kvc")
    assert loaded.attention_mask is not None
    assert torch.equal(loaded.attention_mask, mask)
    again = kinds.twin(loaded.cache)
    got = kinds.go_on(model, loaded.cache, last, attention_mask=loaded.attention_mask)
    assert kinds.same_bits(got[0], want[0])
    assert got[1] == want[1]
    without = kinds.go_on(model, again, last, attention_mask=torch.ones_like(mask))
    assert not torch.equal(without[0][0], want[0][0])


@pytest.mark.parametrize("name", [*names("full"), "Mistral", "Mamba"])
def test_batches_are_reordered_after_loading(tmp_path: Path, name: str) -> None:
    family = family_of(name)
    model, ids = kinds.model_of(family), kinds.ids_of(PREFIX + 1, 3)
    inputs = kinds.inputs_of(model, 3)
    cache = kinds.prefill(family, model, ids[:, :PREFIX], **inputs)
    saved(tmp_path / "a.kvc", cache, token_ids=ids[:, :PREFIX])
    loaded = torch_kvcache.load(tmp_path / "a.kvc").cache
    order = torch.tensor([2, 0, 2])
    for one in (cache, loaded):
        one.reorder_cache(order)
    want = kinds.go_on(model, cache, ids[order, PREFIX:], **inputs)
    got = kinds.go_on(model, loaded, ids[order, PREFIX:], **inputs)
    assert kinds.same_bits(got[0], want[0])
    assert got[1] == want[1]


@pytest.mark.parametrize("name", ["Llama", "Mistral", "Gemma 3", "DeepSeek V3", "Qwen3-Next"])
def test_beam_search_goes_on_identically(tmp_path: Path, name: str) -> None:
    family = family_of(name)
    model, ids = kinds.model_of(family), kinds.ids_of(PREFIX + 1)
    # Beam search widens the ids by itself, and takes the cache to be as wide.
    cache = kinds.prefill(family, model, ids[:, :PREFIX].expand(3, -1))
    saved(tmp_path / "a.kvc", cache)
    results = []
    for one in (cache, torch_kvcache.load(tmp_path / "a.kvc").cache):
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), past_key_values=one, num_beams=3,
            max_new_tokens=kinds.MORE, do_sample=False, pad_token_id=0,
            return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
        results.append((output.sequences.tolist(), output.sequences_scores, output.scores))
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])
    assert all(torch.equal(*pair) for pair in zip(results[0][2], results[1][2], strict=True))


CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
import torch, torch_kvcache, kinds_help as kinds
torch.set_num_threads(int(sys.argv[4]))
name, folder = sys.argv[3], sys.argv[2]
model = kinds.model_of(name)
loaded = torch_kvcache.load(folder + "/a.kvc")
ids = torch.load(folder + "/ids.pt", weights_only=True)
result = kinds.go_on(model, loaded.cache, ids, **kinds.inputs_of(model))
torch.save({"logits": result[0], "tokens": result[1]}, folder + "/result.pt")
"""


@pytest.mark.parametrize(
    "name", ["Gemma 3", "DeepSeek V3", "Qwen3-Next", "T5", "StaticCache of Gemma 3"]
)
def test_a_new_process_goes_on_identically(tmp_path: Path, name: str) -> None:
    family = family_of(name)
    model, ids = kinds.model_of(family), kinds.ids_of(PREFIX + 1)
    inputs = kinds.inputs_of(model)
    cache = kinds.prefill(family, model, ids[:, :PREFIX], **inputs)
    saved(tmp_path / "a.kvc", cache)
    torch.save(ids[:, PREFIX:].clone(), tmp_path / "ids.pt")
    (tmp_path / "child.py").write_text(CHILD)
    threads = str(torch.get_num_threads())
    done = run_python(tmp_path / "child.py", Path(__file__).parent, tmp_path, name, threads)
    assert done.returncode == 0, done.stderr
    want = kinds.go_on(model, cache, ids[:, PREFIX:], **inputs)
    got = torch.load(tmp_path / "result.pt", weights_only=True)
    assert kinds.same_bits(got["logits"], want[0])
    assert got["tokens"] == want[1]


@pytest.mark.parametrize("name", ["Mistral", "Gemma 3", "Qwen3-Next", "QuantizedCache by quanto"])
def test_a_continued_cache_is_saved_again(tmp_path: Path, name: str) -> None:
    family = family_of(name)
    model, ids = kinds.model_of(family), kinds.ids_of(PREFIX + 1)
    cache = kinds.prefill(family, model, ids[:, :PREFIX])
    saved(tmp_path / "a.kvc", cache)
    loaded = torch_kvcache.load(tmp_path / "a.kvc").cache
    for one, file in ((cache, "b.kvc"), (loaded, "c.kvc")):
        kinds.go_on(model, one, ids[:, PREFIX:])
        saved(tmp_path / file, one)
    assert (tmp_path / "b.kvc").read_bytes() == (tmp_path / "c.kvc").read_bytes()
    assert (tmp_path / "a.kvc").read_bytes() != (tmp_path / "b.kvc").read_bytes()


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize(("key_axis", "value_axis"), [(0, 0), (-1, -1), (0, -1)])
def test_quanto_with_every_setting(
    tmp_path: Path, bits: int, key_axis: int, value_axis: int
) -> None:
    settings = {"nbits": bits, "axis_key": key_axis, "axis_value": value_axis}
    assert_quantised(tmp_path, family_of("QuantizedCache by quanto"), "quanto", settings)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("axis", [0, 1])
def test_hqq_with_every_setting(tmp_path: Path, bits: int, axis: int) -> None:
    family = family_of("QuantizedCache by HQQ")
    if (bits, axis) == (3, 1):
        pytest.skip("HQQ itself cannot unpack four dimensions of 3 bits on axis 1")
    settings = {"nbits": bits, "axis_key": axis, "axis_value": axis}
    assert_quantised(tmp_path, family, "hqq", settings)


def assert_quantised(
    tmp_path: Path, family: Family, backend: str, settings: dict[str, Any]
) -> None:
    """Goes on from right after a prefill, and from when a residual has gathered."""
    model, ids = kinds.model_of(family), kinds.ids_of(PREFIX + 1, 2)
    cache = QuantizedCache(backend, model.config, q_group_size=32, residual_length=8, **settings)
    kinds.run(model, ids[:, :32], cache)
    for tokens in (32, PREFIX):
        if tokens > 32:
            for place in range(32, 37):
                kinds.run(model, ids[:, place : place + 1], cache)
        saved(tmp_path / "a.kvc", cache)
        loaded = torch_kvcache.load(tmp_path / "a.kvc").cache
        for one, other in zip(cache.layers, loaded.layers, strict=True):
            assert kinds.same_state(one, other) == []
        want = kinds.go_on(model, kinds.twin(cache), ids[:, PREFIX:])
        got = kinds.go_on(model, loaded, ids[:, PREFIX:])
        assert kinds.same_bits(got[0], want[0])
        assert got[1] == want[1]


@pytest.mark.parametrize("name", names("full", "sliding"))
def test_layers_that_grow_lie_on_the_file(tmp_path: Path, name: str) -> None:
    family = family_of(name)
    if family.cache == "static":
        pytest.skip("static layers have buffers of their own")
    model, ids = kinds.model_of(family), kinds.ids_of(PREFIX)
    cache = kinds.prefill(family, model, ids, **kinds.inputs_of(model))
    saved(tmp_path / "a.kvc", cache, token_ids=ids)
    loaded = torch_kvcache.load(tmp_path / "a.kvc").cache
    maps = mapped_ranges(tmp_path / "a.kvc")
    for layer in kinds.layers_of(loaded):
        for tensor in (getattr(layer, "keys", None), getattr(layer, "values", None)):
            if tensor is not None:
                place = tensor.data_ptr()
                assert any(start <= place < stop for start, stop in maps)
    copied = torch_kvcache.load(tmp_path / "a.kvc", copy=True).cache
    for one, other in zip(kinds.layers_of(loaded), kinds.layers_of(copied), strict=True):
        assert kinds.same_state(one, other) == []


def mapped_ranges(path: Path) -> list[tuple[int, int]]:
    """Returns where a file is mapped in this process, or skips the test."""
    maps = Path("/proc/self/maps")
    if not maps.is_file():
        pytest.skip("there is no /proc here that says what is mapped")
    lines = [line for line in maps.read_text().splitlines() if line.endswith(str(path))]
    return [
        (int(start, 16), int(stop, 16))
        for start, stop in (line.split()[0].split("-") for line in lines)
    ]


@pytest.mark.parametrize("name", ["StaticCache of Gemma 3", "Qwen3-Next"])
def test_layers_of_a_fixed_size_have_memory_of_their_own(tmp_path: Path, name: str) -> None:
    family = family_of(name)
    model, ids = kinds.model_of(family), kinds.ids_of(PREFIX + 1)
    saved(tmp_path / "a.kvc", kinds.prefill(family, model, ids[:, :PREFIX]))
    loaded = torch_kvcache.load(tmp_path / "a.kvc").cache
    maps = mapped_ranges(tmp_path / "a.kvc")
    layer = loaded.layers[0]
    tensors = (
        [layer.keys, layer.values]
        if family.cache == "static"
        else [layer.conv_states[0], layer.recurrent_states[0]]
    )
    before = [tensor.data_ptr() for tensor in tensors]
    assert not any(start <= place < stop for start, stop in maps for place in before)
    kinds.go_on(model, loaded, ids[:, PREFIX:])
    after = (
        [layer.keys, layer.values]
        if family.cache == "static"
        else [layer.conv_states[0], layer.recurrent_states[0]]
    )
    assert [tensor.data_ptr() for tensor in after] == before


def test_plain_attention_is_the_file_of_write_dynamic_cache(tmp_path: Path) -> None:
    model, ids = kinds.model_of("Llama"), kinds.ids_of(PREFIX + 1)
    cache = kinds.prefill("Llama", model, ids[:, :PREFIX])
    torch_kvcache.write_dynamic_cache(tmp_path / "a.kvc", cache, sequence_start=3, **IDENTITY)
    torch_kvcache.save(tmp_path / "b.kvc", cache, identity=IDENTITY, sequence_start=3)
    assert (tmp_path / "a.kvc").read_bytes() == (tmp_path / "b.kvc").read_bytes()
    loaded = torch_kvcache.load(tmp_path / "a.kvc", expected_identity=IDENTITY)
    assert (loaded.token_ids, loaded.attention_mask) == (None, None)
    assert loaded.metadata["tensor_manifest"]["version"] == 1
    assert loaded.root == kvcache.verify_cache(tmp_path / "a.kvc").root
    want = kinds.go_on(model, cache, ids[:, PREFIX:])
    assert kinds.same_bits(kinds.go_on(model, loaded.cache, ids[:, PREFIX:])[0], want[0])


def test_the_table_names_every_class(tmp_path: Path) -> None:
    """Every class of the adapter's table that Transformers has is in some family, or in a test."""
    from torch_kvcache import kinds as adapter

    covered = {kind for family in FAMILIES for kind in family.kinds}
    by_hand = {"chunked", "linear_sliding", "linear_static_sliding"}
    known = {kind for family in adapter.FAMILIES.values() for kind in family.kinds}
    assert known == covered | by_hand
    assert not TRANSFORMERS_5 or all(hasattr(cache_utils, name) for name in adapter.FAMILIES)
    assert TRANSFORMERS_5 or not hasattr(cache_utils, "LinearAttentionLayer")
