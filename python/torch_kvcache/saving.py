# saving.py: stores a Transformers cache of any known kind as a KVC1 file.
# SPDX-License-Identifier: Apache-2.0

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import kvcache
from transformers.cache_utils import Cache, DynamicCache

from torch_kvcache.cache import LayerTensors, cache_layers
from torch_kvcache.kinds.record import refuse_save, require_known_attributes, same_place
from torch_kvcache.kinds.wrapper import CACHE_STATE, CacheRecord, describe_cache, from_model
from torch_kvcache.manifest import Extras, extra_tensor, metadata_of, parts_of, set_positions
from torch_kvcache.schema import ATTENTION, state_schema
from torch_kvcache.write import tensor_bytes, wait_for_devices, write_layers

if TYPE_CHECKING:
    from typing_extensions import Buffer

_REQUIRED = ("model_revision", "tokenizer_sha256", "rope_theta")
_OPTIONAL = (
    *("adapters", "attention", "compute_dtype", "kv_quantization", "rope", "user"),
    "weights_digest",
)


def save(
    path: str | os.PathLike[str],
    cache: Any,
    *,
    identity: Mapping[str, Any],
    token_ids: Any = None,
    attention_mask: Any = None,
    sequence_start: int = 0,
    sequence_length: int | None = None,
    state_schema: str | None = None,
    info: Mapping[str, Any] | None = None,
    durability: str = "full",
    align: int | None = None,
    key: "Buffer | None" = None,
    progress: Callable[[int, int], object] | None = None,
) -> dict[str, Any]:
    """Saves a Transformers cache, and returns the metadata that describe it.

    Stored are DynamicCache, StaticCache, QuantizedCache and EncoderDecoderCache, with layers of
    exactly the classes that the adapter's table names, whole: what `load` returns goes on as the
    cache in memory would. Every other class, and every attribute that a restored cache would not
    have, is refused. Tensors may be views, on any device, of any strides; one copy is held at a
    time. The file appears under its name when it is complete. The caller keeps the cache still.

    Args:
        path: Where the file shall appear.
        cache: The cache, as a model returns it in `past_key_values`.
        identity: What identity_of returns, and where they are known adapters, attention,
            compute_dtype, kv_quantization, rope, user and weights_digest.
        token_ids: The tokens that the cache was made from, [batch, tokens], integers.
        attention_mask: The mask that the model was given, [batch, tokens], integers or booleans;
            a batch that is padded on the left cannot be continued without it.
        sequence_start: Absolute position of the first token held.
        sequence_length: Tokens that the cache has seen, where no layer counts them and no
            token_ids are given, or where tokens were dropped from layers of full attention.
        state_schema: What keys and values mean, where their shapes do not tell; section 8.4.4 of
            docs/FORMAT.md has the names.
        info: Anything that JSON can hold: kept in the file, covered by its root, never judged.
        durability, align, key, progress: As kvcache.write_cache_stream.

    A cache of full attention whose tensors are all alike, without token_ids, attention_mask and
    info, becomes a file of manifest version 1, the same bytes that write_dynamic_cache writes.

    Raises:
        kvcache.UnsupportedCacheError: the cache cannot be stored whole; the message says what is
            missing and what to do instead. Nothing was written.
        kvcache.CacheFormatError: identity or info that the format does not allow.
        OSError: the system refused.
    """
    members = identity_members(identity)
    options: dict[str, Any] = {
        "durability": durability,
        "key": key,
        "progress": progress,
        "align": align,
    }
    extras = Extras(
        extra_tensor("token_ids", token_ids), extra_tensor("attention_mask", attention_mask)
    )
    if extras == (None, None) and info is None and state_schema in (None, ATTENTION):
        alike = _layers_alike(cache, sequence_length)
        if alike is not None:
            return write_layers(path, alike, members, sequence_start, **options)
    record, metadata = _described(cache, extras, sequence_length, state_schema, info or {})
    metadata |= members
    metadata["sequence_start"] = sequence_start
    tensors = [part.tensor for _, _, part in parts_of(record, extras) if part.tensor.numel()]
    wait_for_devices(tensors)
    kvcache.write_cache_stream(path, metadata, tensor_bytes(tensors), **options)
    return metadata


def identity_members(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the identity as members of the metadata, or refuses what has no place there."""
    missing = [name for name in _REQUIRED if name not in identity]
    unknown = sorted(set(identity) - {*_REQUIRED, *_OPTIONAL})
    if missing or unknown:
        error = kvcache.CacheFormatError(
            f"identity must have {', '.join(_REQUIRED)}, and may have {', '.join(_OPTIONAL)}; "
            f"missing: {', '.join(missing) or 'nothing'}; unknown: {', '.join(unknown) or 'none'}. "
            "Pass what identity_of(model, tokenizer) returns; private data go under `user`"
        )
        error.field = (missing or unknown)[0]
        raise error
    return dict(identity)


def _layers_alike(cache: Any, sequence_length: int | None) -> list[LayerTensors] | None:
    """Returns the tensors of a cache that manifest version 1 can express, else None."""
    try:
        layers = cache_layers(cache)
    except kvcache.UnsupportedCacheError:
        # A list of pairs, and other objects of no Transformers class, have no other form either.
        if not isinstance(cache, Cache) and not from_model(cache):
            raise
        return None
    if type(cache) is DynamicCache:
        require_known_attributes("the cache", cache, CACHE_STATE)
    held = layers[0].keys.shape[2]
    if sequence_length not in (None, held) or any(same_place(*layer) for layer in layers):
        return None
    return layers


def _described(
    cache: Any,
    extras: Extras,
    sequence_length: int | None,
    schema: str | None,
    info: Mapping[str, Any],
) -> tuple[CacheRecord, dict[str, Any]]:
    """Returns the record of a cache and the metadata that follow from it."""
    record = describe_cache(cache)
    tokens = None if extras.token_ids is None else extras.token_ids.shape[1]
    length = set_positions(record, sequence_length, tokens)
    _require_mask(record, extras, length)
    meaning = state_schema((layer for _, _, layer in record.layers()), schema)
    return record, metadata_of(record, extras, length, meaning, info)


def _require_mask(record: CacheRecord, extras: Extras, length: int) -> None:
    """Refuses a mask that is not that of the tokens; an encoder's mask may come instead."""
    if extras.attention_mask is None:
        return
    allowed = {length} | {layer.stored_tokens for layer in record.cross}
    found = extras.attention_mask.shape[1]
    if found not in allowed:
        raise refuse_save(
            f"attention_mask covers {found} tokens, and the cache has seen {length}",
            "Pass the part of the mask that belongs to these tokens.",
            expected=str(length),
            found=str(found),
        )
