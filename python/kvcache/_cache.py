# _cache.py: writes, opens, reads and verifies cache files.
# SPDX-License-Identifier: Apache-2.0
"""The functions of kvcache and the class Cache."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, SupportsIndex

from . import _arguments as arguments
from . import _kvc
from ._arguments import Progress, StrPath
from ._facts import CacheInfo, TensorInfo
from ._kvc import CacheTensor
from ._metadata import metadata_json
from .errors import CacheIntegrityError

if TYPE_CHECKING:
    from typing_extensions import Buffer


def write_cache_stream(
    path: StrPath,
    metadata: Mapping[str, Any],
    chunks: Iterable[Buffer],
    *,
    durability: str = "full",
    align: int | None = None,
    key: Buffer | None = None,
    progress: Progress | None = None,
    threads: int | None = None,
) -> CacheInfo:
    """Write a cache file, and return its facts once it stands at `path`.

    The file appears whole, in the place of an older one, or not at all: when anything fails, the
    older file is untouched and nothing is left behind. One exception is named in its message: when
    only the last fsync of the folder fails, the new file is there and may be lost by a power cut.

    Args:
        path: Where the file shall appear. A symbolic link there is replaced, not followed.
        metadata: What docs/FORMAT.md asks for, as a dict; it is not changed. Private data go
            under "user".
        chunks: The payload: all tensors in the order of the manifest, row-major and
            little-endian, in pieces of any length, as an iterable of C-contiguous bytes-like
            objects. It is consumed lazily; each piece is released before the next is asked for.
            Its bytes must not change while they are written.
        durability: "full": the file and its name survive a power cut. "file": the bytes do.
            "none": as the operating system pleases.
        align: 1 packs the tensors. 64 or 4096 starts each at a multiple of that many bytes. None
            is 64 for manifest version 2, whose tensors differ in size, and otherwise 1.
        key: 32 bytes; adds a tag that only this key can make.
        progress: Called as progress(done_bytes, total_bytes), payload bytes, in this thread, about
            twenty times a second; what it raises cancels the write and is passed on. Without a
            manifest the total is not known, and total_bytes is what was given so far.
        threads: 1 to 256; None leaves it to the library. Threads end before this returns.

    Raises:
        CacheFormatError: metadata that are wrong, or do not fit the length of the payload.
        TypeError, ValueError: an argument of a wrong type or value; both name it. A piece that is
            not C-contiguous is a ValueError.
        OSError: the system refused; errno and filename say what.
        MemoryError: no memory. Whatever the iterable or `progress` raises is passed on.

    Example:
        >>> info = kvcache.write_cache_stream("prefix.kvc", metadata, [keys, values])
        >>> info.root
        'kvc1:8c0b…'
    """
    path_bytes, shown = arguments.path_argument(path)
    durability_level = arguments.durability_argument(durability)
    align_bytes = arguments.align_argument(align)
    key_bytes = arguments.key_argument(key)
    callback = arguments.progress_argument(progress)
    thread_count = arguments.threads_argument(threads)
    pieces = arguments.chunks_argument(chunks)
    facts = _kvc.write(
        path_bytes,
        shown,
        metadata_json(metadata, "metadata"),
        pieces,
        durability_level,
        align_bytes,
        key_bytes,
        callback,
        thread_count,
    )
    return CacheInfo(**facts)


def open_cache(
    path: StrPath,
    expected_identity: Mapping[str, Any] | None = None,
    *,
    expected_root: str | Buffer | None = None,
    key: Buffer | None = None,
    copy: bool = False,
    threads: int | None = None,
) -> Cache:
    """Open a cache file. Header, metadata, tensor digests and footer are proven; no payload is
    read, so the cost does not depend on its size.

    Args:
        path: The file; symbolic links are followed.
        expected_identity: Members that the metadata must have, with these values. Numbers compare
            by value, lists whole, dicts member by member; None is JSON's null.
        expected_root: The only root to accept: "kvc1:" and 64 hexadecimal digits, the digits
            alone, or 32 bytes.
        key: 32 bytes; the file must carry a tag made with it.
        copy: False maps tensors into memory without copying them; bytes are proven when they are
            first handed out. It is safe against programs that replace files, as this one does.
            True reads tensors into memory of their own, which nobody else can change; use it where
            other programs may write into the file itself, or cut it.
        threads: 1 to 256, for each call on the cache; None leaves it to the library.

    Raises:
        UnsupportedCacheError: another format, a newer version, an unknown feature.
        CacheIncompleteError: the file is truncated or was never finished.
        CacheFormatError: its structure is corrupt.
        CacheIntegrityError: its bytes do not match their digests.
        CacheIdentityError: it is whole, but not what was asked for; `.differences` lists every
            differing field.
        OSError: the system refused. TypeError, ValueError: an argument is wrong.

    Example:
        >>> with kvcache.open_cache("prefix.kvc", {"model_revision": revision}) as cache:
        ...     keys = torch.from_dlpack(cache["layer.0.key"])
    """
    return Cache(
        path,
        expected_identity,
        expected_root=expected_root,
        key=key,
        copy=copy,
        threads=threads,
    )


def read_cache(
    path: StrPath,
    expected_identity: Mapping[str, Any] | None = None,
    *,
    expected_root: str | Buffer | None = None,
    key: Buffer | None = None,
    copy: bool = False,
    threads: int | None = None,
) -> tuple[dict[str, Any], memoryview]:
    """Prove a whole cache file, and return (metadata, payload).

    The payload is a read-only memoryview of the tensors' bytes, packed in the order of the
    manifest: tensor `t` is `payload[t["offset"] : t["offset"] + t["nbytes"]]`. With copy=False it
    lies on a private mapping of the file, which lives until the last view on it is gone; a file
    whose tensors have gaps between them is copied. With copy=True it lies on bytes that were
    proven after they were read.

    Some consumers, torch.frombuffer among them, keep the memoryview but not the memory alive when
    you call its release(): do not. Tensors from open_cache have no such trap.

    Args and Raises: as open_cache, and everything that verifying the payload may raise.

    Example:
        >>> metadata, payload = kvcache.read_cache("prefix.kvc")
    """
    with open_cache(
        path,
        expected_identity,
        expected_root=expected_root,
        key=key,
        copy=copy,
        threads=threads,
    ) as cache:
        return cache.metadata, cache.payload()


def verify_cache(
    path: StrPath,
    expected_identity: Mapping[str, Any] | None = None,
    *,
    expected_root: str | Buffer | None = None,
    key: Buffer | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    errors: str = "first",
) -> CacheInfo:
    """Read a whole cache file, prove every byte, and return its facts.

    Args:
        progress: Called as progress(done_bytes, total_bytes); what it raises cancels and is
            passed on.
        errors: "first" raises at the first damage. "collect" goes on to the end, and raises one
            CacheIntegrityError whose `.failures` has one exception for each damaged tensor or gap.

    The other arguments, and what is raised: as open_cache.

    Example:
        >>> kvcache.verify_cache("prefix.kvc").file_bytes
        138520704
    """
    arguments.progress_argument(progress)
    arguments.errors_argument(errors)
    with open_cache(
        path, expected_identity, expected_root=expected_root, key=key, threads=threads
    ) as cache:
        return cache.verify(progress, errors)


class Cache:
    """An open cache file, made by open_cache.

    Use it in a with statement, or call close(). Tensors and payloads that came from it stay valid
    after that. It may be used from several threads at once, and closed while others still read;
    only calls that start later raise ValueError.

    `cache[name]` is a CacheTensor, `cache.tensors` says what there is; iteration gives the names
    in file order. A file without a manifest has one tensor of bytes, with the name "".
    """

    def __init__(
        self,
        path: StrPath,
        expected_identity: Mapping[str, Any] | None = None,
        *,
        expected_root: str | Buffer | None = None,
        key: Buffer | None = None,
        copy: bool = False,
        threads: int | None = None,
    ) -> None:
        self._open: _kvc.Reader | None = None
        path_bytes, self._path = arguments.path_argument(path)
        root_bytes = arguments.root_argument(expected_root)
        key_bytes = arguments.key_argument(key)
        self._copy = arguments.copy_argument(copy)
        self._threads = arguments.threads_argument(threads)
        identity = None
        if expected_identity is not None:
            identity = metadata_json(expected_identity, "expected_identity")
        reader = _kvc.open(path_bytes, self._path, identity, root_bytes, key_bytes)
        self._info = CacheInfo(**reader.info())
        self._metadata: dict[str, Any] | None = None
        self._tensors: Mapping[str, TensorInfo] | None = None
        self._open = reader

    def _reader(self) -> _kvc.Reader:
        # The caller's reference keeps the file open when another thread closes the cache.
        reader = self._open
        if reader is None:
            raise ValueError(f"the cache {os.fsdecode(self._path)!r} is closed")
        return reader

    @property
    def path(self) -> str | bytes:
        """The path, as it was given."""
        return self._path

    @property
    def info(self) -> CacheInfo:
        """The facts of the file; also after close()."""
        return self._info

    @property
    def root(self) -> str:
        """`kvc1:` and 64 hexadecimal digits, the name of the content; also after close()."""
        return self._info.root

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._open is None

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata as a dict, always the same one; changing it changes nothing in the file."""
        reader = self._reader()
        if self._metadata is None:
            self._metadata = json.loads(reader.metadata())
        return self._metadata

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """What the file says about its tensors, by name, in file order; read-only."""
        reader = self._reader()
        if self._tensors is None:
            facts = [TensorInfo(*reader.tensor(index)) for index in range(self._count())]
            self._tensors = MappingProxyType({tensor.name: tensor for tensor in facts})
        return self._tensors

    def _count(self) -> int:
        return max(self._info.tensor_count, 1)

    def __getitem__(self, name: str) -> CacheTensor:
        """Return a tensor, proven: on the shared private mapping, or in memory of its own where
        the cache was opened with copy=True. KeyError when there is none of that name."""
        reader = self._reader()
        index = self._index(reader, name)
        return (reader.copy if self._copy else reader.map)(index, self._threads)

    @staticmethod
    def _index(reader: _kvc.Reader, name: str) -> int:
        if not isinstance(name, str):
            raise TypeError(f"tensor names are str, not {arguments.type_name(name)}")
        try:
            return reader.find(name)
        except UnicodeEncodeError:
            raise KeyError(name) from None

    def __contains__(self, name: object) -> bool:
        reader = self._reader()
        if not isinstance(name, str):
            return False
        try:
            self._index(reader, name)
        except KeyError:
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        self._reader()
        return self._count()

    def read(self, name: str, start: SupportsIndex = 0, stop: SupportsIndex | None = None) -> bytes:
        """Return bytes [start, stop) of a tensor, read from the file and proven.

        Args:
            name: The tensor.
            start, stop: 0 <= start <= stop <= nbytes of the tensor; None is its end. Unlike in
                slices nothing counts from the end, and nothing is cut. Only the pieces of 64 KiB
                that the range touches are read.

        Raises:
            KeyError: no tensor of that name. ValueError: the range lies outside the tensor.
            CacheIntegrityError: damaged bytes.
        """
        reader = self._reader()
        index = self._index(reader, name)
        size: int = reader.tensor(index)[3]
        first = operator.index(start)
        last = size if stop is None else operator.index(stop)
        if not 0 <= first <= last <= size:
            raise ValueError(
                f"start and stop must be 0 <= start <= stop <= {size}, the size of "
                f"{name!r} in bytes, not {first} and {last}"
            )
        if first == last:
            return b""
        return reader.read(index, first, last - first, self._threads)

    def payload(self) -> memoryview:
        """Return the whole payload, proven, as a read-only memoryview; see read_cache."""
        reader = self._reader()
        if self._copy or self._info.payload_span != self._info.payload_bytes:
            return memoryview(reader.read_payload(self._info.payload_bytes, self._threads))
        return reader.map_payload(self._threads)

    def prove(self) -> None:
        """Prove every tensor, and the gaps between them, in the memory that tensors lie on.

        All threads share the work, and taking a tensor then costs nothing more. With copy=True
        tensors lie on no common memory, and this is the same as verify().
        """
        if self._copy:
            self.verify()
        else:
            self._reader().map_payload(self._threads)

    def verify(self, progress: Progress | None = None, errors: str = "first") -> CacheInfo:
        """Read the whole file and prove every byte of it; see verify_cache.

        It looks at the file, never at memory that a user of a tensor changed.
        """
        callback = arguments.progress_argument(progress)
        collect = arguments.errors_argument(errors)
        failures = self._reader().verify(self._threads, callback, collect)
        if failures:
            raise _collected(failures)
        return self._info

    def close(self) -> None:
        """Close the file; closing twice is no error. Tensors and payloads stay valid."""
        self._open = None

    def __enter__(self) -> Cache:
        self._reader()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> str:
        raise TypeError(
            "a Cache cannot be pickled: it is an open file of this process; pass the path and "
            "open it again"
        )

    def __repr__(self) -> str:
        state = "closed " if self.closed else ""
        return f"<{state}kvcache.Cache {os.fsdecode(self._path)!r} {self.root}>"


def _collected(failures: list[CacheIntegrityError]) -> CacheIntegrityError:
    first = failures[0]
    message = str(first)
    if len(failures) > 1:
        message = f"{len(failures)} damaged places, all in .failures; the first: {message}"
    return CacheIntegrityError(
        message,
        status=first.status,
        path=first.path,
        offset=first.offset,
        field=first.field,
        tensor=first.tensor,
        expected=first.expected,
        found=first.found,
        failures=failures,
    )
