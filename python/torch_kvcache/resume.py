# resume.py: goes on from a loaded cache with a prompt that begins as the cache does.
# SPDX-License-Identifier: Apache-2.0

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import kvcache
import torch

from torch_kvcache.crop import cropped, why_not_cropped
from torch_kvcache.kinds.record import LayerRecord
from torch_kvcache.loading import LoadedCache, build


@dataclass(frozen=True)
class Coverage:
    """How far a cache serves a prompt. Lengths and positions are tokens, the same in every row."""

    prompt_tokens: int
    """Length of the prompt."""
    cached_tokens: int
    """Tokens that the cache has seen."""
    covered_tokens: int
    """Tokens of the prompt that need no computation: at most prompt_tokens - 1, since a model must
    be given at least one token."""
    first_difference: int | None
    """The first position at which a row of the prompt, or of its mask, is not that of the cache;
    None where one is the beginning of the other."""
    refusal: str | None
    """Why the cache cannot be used for this prompt; None where it can."""


class PromptError(kvcache.CacheError, ValueError):
    """A loaded cache does not serve a prompt; `coverage` says how far it would have."""

    coverage: Coverage


@dataclass(frozen=True)
class Resumed:
    """A cache that holds the beginning of a prompt, and what a model must be given with it."""

    cache: Any
    """A new cache of `coverage.covered_tokens` tokens; the loaded one stays as it is."""
    coverage: Coverage
    input_ids: torch.Tensor
    """The whole prompt, [batch, tokens]."""
    attention_mask: torch.Tensor
    """The mask over the whole prompt, [batch, tokens]."""
    new_ids: torch.Tensor
    """The tokens that the cache does not hold, at least one, for a call of the model itself."""
    encoder_decoder: bool
    """Whether the prompt is the decoder's."""

    @property
    def inputs(self) -> dict[str, Any]:
        """The arguments for `generate`: model.generate(**resumed.inputs, max_new_tokens=…)."""
        prefix = "decoder_" if self.encoder_decoder else ""
        return {
            f"{prefix}input_ids": self.input_ids,
            f"{prefix}attention_mask": self.attention_mask,
            "past_key_values": self.cache,
        }


def coverage_of(loaded: LoadedCache, prompt_ids: Any, attention_mask: Any = None) -> Coverage:
    """Says how far a loaded cache serves a prompt, without making anything.

    `prompt_ids` and `attention_mask` are [batch, tokens], or one row without the batch dimension;
    no mask is a mask of ones. Raises ValueError where they are no such thing.
    """
    ids, mask = _prompt(prompt_ids, attention_mask)
    tokens = ids.shape[1]
    cached = int(loaded.metadata["sequence_length"])
    problem = _incomparable(loaded, ids)
    if problem is not None:
        return Coverage(tokens, cached, 0, None, problem)
    difference = _first_difference(loaded, ids, mask, cached)
    same = min(tokens, cached) if difference is None else difference
    covered = min(same, tokens - 1)
    return Coverage(tokens, cached, covered, difference, _refusal(loaded, covered, difference))


def resume(loaded: LoadedCache, prompt_ids: Any, attention_mask: Any = None) -> Resumed:
    """Returns a cache that holds the beginning of a prompt, ready for `generate`.

    The prompt may be equal to the cached text, longer, shorter, or differ from some position on:
    the new cache holds what both have in common, less one token where that is the whole prompt.
    Tensors are shared with the loaded cache as far as layers never write into them.

    Args:
        loaded: What `load` or `join` returned, of a file that was saved with its token_ids.
        prompt_ids: The whole prompt, [batch, tokens], integers; of an encoder-decoder model the
            decoder's. Padding counts as tokens.
        attention_mask: The mask over the whole prompt; needed where the batch is padded.

    Raises:
        PromptError: the prompt begins otherwise, or the cache would have to give tokens back and
            its kind cannot. The message says at which position, in which layer, and what to do;
            its `coverage` has the numbers. Nothing is ever computed again unasked.
        ValueError: prompt_ids or attention_mask are no [batch, tokens] of integers.
    """
    ids, mask = _prompt(prompt_ids, attention_mask)
    coverage = coverage_of(loaded, prompt_ids, attention_mask)
    if coverage.refusal is not None:
        error = PromptError(
            f"{loaded.path}: cannot go on from this cache: {coverage.refusal}. Prefill the prompt "
            "without it"
        )
        error.coverage = coverage
        raise error
    keep = coverage.covered_tokens
    pairs = [
        cropped(record, tensors, keep) if which == "self" else (record, tensors)
        for (which, _, record), tensors in zip(
            loaded.material.layout.cache.layers(), loaded.material.tensors, strict=True
        )
    ]
    cache = build(loaded.material, [record for record, _ in pairs], [held for _, held in pairs])
    wrapped = loaded.material.layout.cache.wrapper != "none"
    return Resumed(cache, coverage, ids, mask, ids[:, keep:], wrapped)


def _prompt(prompt_ids: Any, attention_mask: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns prompt and mask as tensors [batch, tokens] of integers, where they lie."""
    ids = _rows("prompt_ids", prompt_ids)
    if attention_mask is None:
        return ids, torch.ones_like(ids)
    mask = _rows("attention_mask", attention_mask)
    if mask.shape != ids.shape:
        raise ValueError(
            f"attention_mask is {list(mask.shape)} and prompt_ids is {list(ids.shape)}: both must "
            "cover the whole prompt"
        )
    return ids, mask


def _rows(name: str, value: Any) -> torch.Tensor:
    tensor = value if isinstance(value, torch.Tensor) else torch.tensor(value)
    if tensor.ndim == 1:
        tensor = tensor.unsqueeze(0)
    whole = not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)
    if tensor.ndim != 2 or not whole or not tensor.numel():
        raise ValueError(
            f"{name} must be [batch, tokens] of integers; it is {list(tensor.shape)} of "
            f"{tensor.dtype}"
        )
    return tensor


def _own_layers(loaded: LoadedCache) -> Iterator[tuple[int, LayerRecord]]:
    for which, number, record in loaded.material.layout.cache.layers():
        if which == "self":
            yield number, record


def _incomparable(loaded: LoadedCache, ids: torch.Tensor) -> str | None:
    """Returns why nothing can be said about a prompt, or None."""
    start = loaded.metadata["sequence_start"]
    if loaded.token_ids is None:
        return "the file holds no token ids, so nothing shows what it was made from; save with them"
    if start != 0:
        return f"it begins with token {start} of its text, and what came before is not in it"
    if loaded.token_ids.shape[0] != ids.shape[0]:
        return f"it holds a batch of {loaded.token_ids.shape[0]}, and the prompt has {ids.shape[0]}"
    for number, record in _own_layers(loaded):
        if record.kind in ("full", "indexed", "linear_full") and record.state == "filled":
            seen, held = record.positions_seen, record.stored_tokens
            if seen != held:
                return (
                    f"layer {number} has seen {seen} tokens and was reduced to {held}, so that "
                    "positions must be given to the model by hand"
                )
    return None


def _first_difference(
    loaded: LoadedCache, ids: torch.Tensor, mask: torch.Tensor, cached: int
) -> int | None:
    """Returns the first position where any row differs in a token or in its mask."""
    assert loaded.token_ids is not None
    shared = min(ids.shape[1], cached)
    stored = loaded.attention_mask
    if stored is None or stored.shape[1] != loaded.token_ids.shape[1]:
        # Without a mask, or with that of an encoder, every cached token was looked at.
        stored = torch.ones_like(loaded.token_ids)
    unequal = ids[:, :shared].cpu() != loaded.token_ids[:, :shared]
    unequal |= mask[:, :shared].cpu().bool() != stored[:, :shared].bool()
    places = unequal.any(0).nonzero()
    return int(places[0]) if len(places) else None


def _refusal(loaded: LoadedCache, covered: int, difference: int | None) -> str | None:
    """Returns why a cache that covers so many tokens cannot be used, or None."""
    where = "" if difference is None else f"the prompt differs from it at position {difference}, "
    if covered == 0:
        if difference is None:
            return "the prompt has one token, which the model must be given anyway"
        return where + _both(loaded, difference) + "so nothing of it can be used"
    for number, record in _own_layers(loaded):
        reason = why_not_cropped(record, covered)
        if reason is not None:
            return (
                f"{where}{covered} tokens of it can be used, and layer {number}, of the kind "
                f"{record.kind}, cannot go back to them: {reason}"
            )
    return None


def _both(loaded: LoadedCache, position: int) -> str:
    padded = loaded.attention_mask is not None and not bool(loaded.attention_mask.all())
    if padded and position == 0:
        return "or its mask does (the cached batch is padded: pass attention_mask), "
    return ""
