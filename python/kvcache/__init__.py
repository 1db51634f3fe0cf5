# __init__.py: kvcache, KVC1 cache files for Python.
# SPDX-License-Identifier: Apache-2.0
"""KVC1 cache files: the key/value cache of a transformer model, bound to its model and proven.

    info = kvcache.write_cache_stream(path, metadata, chunks)
    metadata, payload = kvcache.read_cache(path, expected_identity)
    with kvcache.open_cache(path, expected_identity) as cache:
        keys = torch.from_dlpack(cache["layer.0.key"])
    kvcache.verify_cache(path)

Every byte that is handed out was proven against the file's digests first. All functions may be
called from any thread; the GIL is released while they read, hash and write, and Ctrl-C ends them.
Memory that a file was mapped into is private to the process, and lives until the last tensor,
array or memoryview on it is gone.
"""

import sysconfig

if sysconfig.get_config_var("Py_GIL_DISABLED"):
    raise ImportError(
        "kvcache does not support free-threaded builds of Python yet: use a build with the GIL"
    )

from ._cache import Cache, open_cache, read_cache, verify_cache, write_cache_stream
from ._facts import CacheInfo, TensorInfo
from ._kvc import CacheTensor, kernel
from ._kvc import version as _version
from .errors import (
    MISSING,
    CacheError,
    CacheFormatError,
    CacheIdentityError,
    CacheIncompleteError,
    CacheIntegrityError,
    Difference,
    UnsupportedCacheError,
)

__version__: str = _version()

__all__ = [
    "MISSING",
    "Cache",
    "CacheError",
    "CacheFormatError",
    "CacheIdentityError",
    "CacheIncompleteError",
    "CacheInfo",
    "CacheIntegrityError",
    "CacheTensor",
    "Difference",
    "TensorInfo",
    "UnsupportedCacheError",
    "__version__",
    "kernel",
    "open_cache",
    "read_cache",
    "verify_cache",
    "write_cache_stream",
]
