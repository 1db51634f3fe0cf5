# restore.py: builds a Transformers cache on the mapped tensors of a KVC1 file.
# SPDX-License-Identifier: Apache-2.0

import os
from collections.abc import Mapping
from typing import Any

import kvcache
from torch.utils.dlpack import from_dlpack
from transformers.cache_utils import DynamicCache, DynamicLayer


def read_dynamic_cache(
    path: str | os.PathLike[str],
    expected_identity: Mapping[str, Any] | None = None,
) -> tuple[DynamicCache, dict[str, Any]]:
    """Loads a KVC1 file as a new `transformers.DynamicCache`, and returns it with its metadata.

    Every byte of the file is proven before anything is returned: the cache comes whole or not at
    all. `expected_identity` holds the metadata members that the file must have, as `identity_of`
    returns them; without it, a cache of any model is accepted.

    The tensors lie in CPU memory, [batch, heads, sequence, head_dim], on a private mapping of the
    file: no copy is made, what is written to them never reaches the file, and they stay valid when
    the file is deleted or replaced. Truncating the file in place is what they do not survive.

    To go on, hand the model the ids that the cache was made from plus at least one new id, and the
    cache as `past_key_values`. Where metadata["sequence_start"] is not 0, the positions of new
    tokens must be given to the model as well.

    Raises kvcache.CacheIdentityError when the file is for another model, listing all differences;
    kvcache.CacheIntegrityError, CacheIncompleteError or CacheFormatError when it is damaged;
    kvcache.UnsupportedCacheError when it holds a cache of another kind; and OSError.
    """
    with kvcache.open_cache(path, expected_identity) as source:
        metadata: dict[str, Any] = source.metadata
        _require_dynamic(path, metadata)
        # Proves the whole payload at once, by all threads; the tensors are then taken from it.
        source.prove()
        layers: list[Any] = [_layer(source, index) for index in range(metadata["layers"])]
    cache = DynamicCache()
    # A cache that has its layers does not grow more of them, as one made from a model's config.
    cache.layer_class_to_replicate = None
    cache.layers = layers
    return cache, metadata


def _require_dynamic(path: str | os.PathLike[str], metadata: Mapping[str, Any]) -> None:
    """Refuses a file from which a cache of DynamicLayer cannot be made."""
    manifest = metadata.get("tensor_manifest")
    if manifest is None:
        raise kvcache.CacheFormatError(
            f"{os.fspath(path)}: a tensor_manifest is required to construct a dynamic cache; this "
            "file holds an opaque payload. Read it with kvcache.read_cache"
        )
    for name, value in (("version", 1), ("cache_class", "dynamic"), ("attention_type", "causal")):
        if manifest.get(name) != value:
            error = kvcache.UnsupportedCacheError(
                f"{os.fspath(path)}: tensor_manifest.{name} is {manifest.get(name)!r}, and this "
                f"version of torch_kvcache loads only {value!r}. Use a later version"
            )
            error.expected = str(value)
            error.found = str(manifest.get(name))
            raise error


def _layer(source: kvcache.Cache, index: int) -> DynamicLayer:
    """Returns a filled layer, by assignment: `update` would copy what it is given."""
    keys = from_dlpack(source[f"layer.{index}.key"])
    values = from_dlpack(source[f"layer.{index}.value"])
    layer = DynamicLayer()  # type: ignore[no-untyped-call]
    layer.dtype, layer.device = keys.dtype, keys.device
    layer.keys, layer.values = keys, values
    layer.is_initialized = True
    return layer
