# test_resume.py: a prompt goes on from what a loaded cache has in common with it, and no further.
# SPDX-License-Identifier: Apache-2.0
# mypy: allow-untyped-calls, allow-subclassing-any
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch_kvcache
from adapter_help import IDENTITY
from kinds_help import (
    WINDOW,
    family_of,
    go_on,
    ids_of,
    layers_of,
    model_of,
    prefill,
    run,
    same_bits,
    same_state,
    twin,
)

CACHED = 15


def model_or_skip(name: str) -> Any:
    missing = family_of(name).missing()
    if missing:
        pytest.skip(missing)
    return model_of(name)


def saved(
    path: Path, name: str, ids: torch.Tensor, mask: torch.Tensor | None = None
) -> tuple[Any, Any, torch_kvcache.LoadedCache]:
    """Returns a model, its cache of ids, and that cache from a file."""
    model = model_or_skip(name)
    inputs = {} if mask is None else {"attention_mask": mask}
    cache = prefill(name, model, ids, **inputs)
    torch_kvcache.save(path / "a.kvc", cache, identity=IDENTITY, token_ids=ids, attention_mask=mask)
    return model, cache, torch_kvcache.load(path / "a.kvc", expected_identity=IDENTITY)


def changed(ids: torch.Tensor, position: int) -> torch.Tensor:
    """Returns ids of which one, in the last row, is another."""
    other = ids.clone()
    other[-1, position] = 2 if ids[-1, position] != 2 else 3
    return other


def generated(model: Any, count: int = 6, **inputs: Any) -> list[list[int]]:
    """Returns the tokens that a model adds to its inputs, greedily."""
    length = inputs["input_ids"].shape[1]
    ids = model.generate(**inputs, max_new_tokens=count, do_sample=False)
    return list(ids[:, length:].tolist())


def shortened(cache: Any, keep: int) -> Any:
    """Returns a copy of a cache of full attention without its last tokens."""
    shorter = twin(cache)
    for layer in shorter.layers:
        layer.keys, layer.values = layer.keys[:, :, :keep], layer.values[:, :, :keep]
        if hasattr(layer, "cumulative_length"):
            layer.cumulative_length = keep
    return shorter


WHOLE = ids_of(CACHED + 6)
PROMPTS: dict[str, tuple[torch.Tensor, int, int | None]] = {
    "longer": (WHOLE, CACHED, None),
    "one token longer": (WHOLE[:, : CACHED + 1], CACHED, None),
    "equal": (WHOLE[:, :CACHED], CACHED - 1, None),
    "shorter": (WHOLE[:, :10], 9, None),
    "longer, differs at 1": (changed(WHOLE, 1), 1, 1),
    "longer, differs at 7": (changed(WHOLE, 7), 7, 7),
    "longer, differs at n - 1": (changed(WHOLE, CACHED - 1), CACHED - 1, CACHED - 1),
    "longer, differs at n": (changed(WHOLE, CACHED), CACHED, None),
    "equal, differs at n - 1": (changed(WHOLE[:, :CACHED], CACHED - 1), CACHED - 1, CACHED - 1),
    "shorter, differs at its end": (changed(WHOLE[:, :10], 9), 9, 9),
}


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("name", ["Llama", "GPT-2", "Mistral", "Gemma 3", "DeepSeek V3"])
def test_a_prompt_goes_on_from_what_it_has_in_common(
    tmp_path: Path, name: str, prompt: str
) -> None:
    ids, covered, difference = PROMPTS[prompt]
    model, cache, loaded = saved(tmp_path, name, WHOLE[:, :CACHED])
    resumed = torch_kvcache.resume(loaded, ids)
    coverage = torch_kvcache.Coverage(ids.shape[1], CACHED, covered, difference, None)
    assert resumed.coverage == coverage == torch_kvcache.coverage_of(loaded, ids)
    assert torch.equal(resumed.new_ids, ids[:, covered:])
    assert resumed.cache.get_seq_length() == covered
    expected = run(model, ids[:, covered:], shortened(cache, covered))[0]
    assert same_bits(run(model, resumed.new_ids, resumed.cache)[0], expected)
    again = torch_kvcache.resume(loaded, ids)
    assert generated(model, **again.inputs) == generated(model, input_ids=ids)


@pytest.mark.parametrize("prompt", [name for name in PROMPTS if "longer" in name])
def test_a_static_cache_goes_on(tmp_path: Path, prompt: str) -> None:
    ids, covered, _ = PROMPTS[prompt]
    for name in ("StaticCache of Llama", "StaticCache of Gemma 3"):
        model, _, loaded = saved(tmp_path, name, WHOLE[:, :CACHED])
        resumed = torch_kvcache.resume(loaded, ids)
        fresh = prefill(name, model, ids[:, :covered])
        for one, other in zip(layers_of(fresh), layers_of(resumed.cache), strict=True):
            assert set(same_state(one, other)) <= {type(other).__name__, "keys", "values"}
        expected = go_on(model, fresh, ids[:, covered:])[1]
        assert go_on(model, resumed.cache, resumed.new_ids)[1] == expected


def test_a_prompt_that_differs_at_once_is_refused(tmp_path: Path) -> None:
    _, _, loaded = saved(tmp_path, "Llama", WHOLE[:, :CACHED])
    with pytest.raises(torch_kvcache.PromptError, match="differs from it at position 0") as caught:
        torch_kvcache.resume(loaded, changed(WHOLE, 0))
    assert caught.value.coverage.covered_tokens == 0
    assert caught.value.coverage.first_difference == 0
    with pytest.raises(torch_kvcache.PromptError, match="the prompt has one token"):
        torch_kvcache.resume(loaded, WHOLE[:, :1])


def test_the_last_row_of_a_batch_decides(tmp_path: Path) -> None:
    ids = ids_of(CACHED + 3, batch=3)
    model, _, loaded = saved(tmp_path, "Llama", ids[:, :CACHED])
    resumed = torch_kvcache.resume(loaded, changed(ids, 4))
    assert (resumed.coverage.covered_tokens, resumed.coverage.first_difference) == (4, 4)
    assert generated(model, **resumed.inputs) == generated(model, input_ids=changed(ids, 4))
    with pytest.raises(torch_kvcache.PromptError, match="a batch of 3, and the prompt has 2"):
        torch_kvcache.resume(loaded, ids[:2])


def test_left_padding_needs_its_mask(tmp_path: Path) -> None:
    ids = ids_of(CACHED + 4, batch=2)
    mask = torch.ones_like(ids)
    ids[0, :5], mask[0, :5] = 0, 0
    model, _, loaded = saved(tmp_path, "Llama", ids[:, :CACHED], mask[:, :CACHED])
    resumed = torch_kvcache.resume(loaded, ids, mask)
    assert resumed.coverage.covered_tokens == CACHED
    expected = generated(model, input_ids=ids, attention_mask=mask)
    assert generated(model, **resumed.inputs) == expected
    with pytest.raises(torch_kvcache.PromptError, match="pass attention_mask"):
        torch_kvcache.resume(loaded, ids)
    with pytest.raises(ValueError, match="both must cover the whole prompt"):
        torch_kvcache.resume(loaded, ids, mask[:, 1:])


@pytest.mark.parametrize("cached", [WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW])
def test_a_window_gives_nothing_back_that_it_dropped(tmp_path: Path, cached: int) -> None:
    ids = ids_of(cached + 5)
    model, _, loaded = saved(tmp_path, "Gemma 3", ids[:, :cached])
    resumed = torch_kvcache.resume(loaded, ids)
    assert generated(model, **resumed.inputs) == generated(model, input_ids=ids)
    shorter = ids[:, :10]
    if cached < WINDOW:
        resumed = torch_kvcache.resume(loaded, shorter)
        assert generated(model, **resumed.inputs) == generated(model, input_ids=shorter)
        return
    with pytest.raises(torch_kvcache.PromptError, match="layer 0, of the kind sliding") as caught:
        torch_kvcache.resume(loaded, shorter)
    assert caught.value.coverage.covered_tokens == 9


@pytest.mark.parametrize("name", ["Qwen3-Next", "Falcon-H1"])
def test_a_state_gives_nothing_back(tmp_path: Path, name: str) -> None:
    model, _, loaded = saved(tmp_path, name, WHOLE[:, :CACHED])
    resumed = torch_kvcache.resume(loaded, WHOLE)
    assert generated(model, **resumed.inputs) == generated(model, input_ids=WHOLE)
    with pytest.raises(torch_kvcache.PromptError, match="layer 0, of the kind linear"):
        torch_kvcache.resume(loaded, WHOLE[:, :CACHED])


def test_the_loaded_cache_stays_as_it_is(tmp_path: Path) -> None:
    for name in ("Gemma 3", "StaticCache of Llama"):
        model, cache, loaded = saved(tmp_path, name, WHOLE[:, :CACHED])
        for _ in range(2):
            resumed = torch_kvcache.resume(loaded, changed(WHOLE, 7))
            go_on(model, resumed.cache, resumed.new_ids)
        for one, other in zip(layers_of(cache), layers_of(loaded.cache), strict=True):
            assert same_state(one, other) == []


def test_a_file_without_token_ids_is_refused(tmp_path: Path) -> None:
    model = model_or_skip("Llama")
    cache = prefill("Llama", model, WHOLE)
    torch_kvcache.save(tmp_path / "a.kvc", cache, identity=IDENTITY)
    loaded = torch_kvcache.load(tmp_path / "a.kvc")
    with pytest.raises(torch_kvcache.PromptError, match="holds no token ids"):
        torch_kvcache.resume(loaded, WHOLE)


def test_a_file_that_begins_later_is_refused(tmp_path: Path) -> None:
    cache = prefill("Llama", model_or_skip("Llama"), WHOLE)
    torch_kvcache.save(
        tmp_path / "a.kvc", cache, identity=IDENTITY, token_ids=WHOLE, sequence_start=3
    )
    with pytest.raises(torch_kvcache.PromptError, match="begins with token 3"):
        torch_kvcache.resume(torch_kvcache.load(tmp_path / "a.kvc"), WHOLE)


@pytest.mark.parametrize("ids", [torch.rand(1, 4), torch.ones(1, 2, 3, dtype=torch.long), []])
def test_no_prompt(tmp_path: Path, ids: Any) -> None:
    _, _, loaded = saved(tmp_path, "Llama", WHOLE[:, :CACHED])
    with pytest.raises(ValueError, match=r"prompt_ids must be \[batch, tokens\] of integers"):
        torch_kvcache.resume(loaded, ids)


def test_an_encoder_decoder_prompt_is_the_decoders(tmp_path: Path) -> None:
    from kinds_help import inputs_of

    model = model_or_skip("T5")
    inputs = inputs_of(model)
    cache = prefill("T5", model, WHOLE[:, :CACHED], **inputs)
    torch_kvcache.save(tmp_path / "a.kvc", cache, identity=IDENTITY, token_ids=WHOLE[:, :CACHED])
    resumed = torch_kvcache.resume(torch_kvcache.load(tmp_path / "a.kvc"), WHOLE[:, :10])
    assert set(resumed.inputs) == {
        "decoder_input_ids", "decoder_attention_mask", "past_key_values",
    }  # fmt: skip
    expected = go_on(model, prefill("T5", model, WHOLE[:, :9], **inputs), WHOLE[:, 9:10], **inputs)
    assert go_on(model, resumed.cache, resumed.new_ids, **inputs)[1] == expected[1]
