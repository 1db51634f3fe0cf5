# __init__.py: saves and loads the KV caches of Hugging Face Transformers as KVC1 files.
# SPDX-License-Identifier: Apache-2.0
"""Saves and loads the KV caches of Hugging Face Transformers as KVC1 files.

    identity = torch_kvcache.identity_of(model, tokenizer)
    torch_kvcache.save("prefix.kvc", cache, identity=identity, token_ids=ids)
    loaded = torch_kvcache.load("prefix.kvc", expected_identity=identity)
    model.generate(all_ids, past_key_values=loaded.cache)

`all_ids` are the ids that the cache was made from, followed by at least one new id: a model that
is handed a cache looks only at the ids after those that the cache already holds.
"""

import sys

try:
    import torch as _torch
except ModuleNotFoundError as _error:
    if _error.name != "torch":
        raise
    raise ImportError(
        "torch_kvcache needs PyTorch, which is not installed here. "
        "Install both packages that it works with: pip install torch transformers",
        name="torch",
    ) from _error

try:
    import transformers as _transformers
except ModuleNotFoundError as _error:
    if _error.name != "transformers":
        raise
    raise ImportError(
        "torch_kvcache needs Transformers, which is not installed here. "
        "Install it with: pip install transformers",
        name="transformers",
    ) from _error

try:
    from transformers.cache_utils import DynamicCache as _DynamicCache
    from transformers.cache_utils import DynamicLayer as _DynamicLayer
except ImportError as _error:
    raise ImportError(
        f"torch_kvcache needs Transformers 4.56 or later, whose caches are made of layers; "
        f"{_transformers.__version__} is installed here. "
        "Update it with: pip install --upgrade transformers",
        name="transformers",
    ) from _error

if sys.byteorder != "little":
    raise ImportError(
        "torch_kvcache does not run on this machine: KVC1 files are little-endian and tensors are "
        "used where they lie in the file, and this processor is big-endian."
    )

del _torch, _transformers, _DynamicCache, _DynamicLayer

from torch_kvcache.identity import full_identity_of, identity_of  # noqa: E402
from torch_kvcache.loading import LoadedCache, load  # noqa: E402
from torch_kvcache.restore import read_dynamic_cache  # noqa: E402
from torch_kvcache.resume import Coverage, PromptError, Resumed, coverage_of, resume  # noqa: E402
from torch_kvcache.saving import save  # noqa: E402
from torch_kvcache.segment import append, join  # noqa: E402
from torch_kvcache.write import write_dynamic_cache  # noqa: E402

__all__ = [
    "Coverage",
    "LoadedCache",
    "PromptError",
    "Resumed",
    "append",
    "coverage_of",
    "full_identity_of",
    "identity_of",
    "join",
    "load",
    "read_dynamic_cache",
    "resume",
    "save",
    "write_dynamic_cache",
]
