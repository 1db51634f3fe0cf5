"""b3.py: BLAKE3 in plain Python, with the subtree chaining values that KVC1 stores.

SPDX-License-Identifier: Apache-2.0

Written from the BLAKE3 paper, as the second implementation that the C library is judged against;
only the standard library is used. To be quick enough for files of a few hundred kilobytes, chunks
are compressed side by side: one Python integer holds the same state word of many chunks, 64 bits
apart, so that one addition adds all of them. The 32 spare bits of a lane catch carries and rotated
bits until they are masked off.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

CHUNK_BYTES = 1024
BLOCK_BYTES = 64
OUT_BYTES = 32

IV = (
    0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A,
    0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19,
)  # fmt: skip
PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)

CHUNK_START = 1
CHUNK_END = 2
PARENT = 4
ROOT = 8
KEYED_HASH = 16
DERIVE_KEY_CONTEXT = 32
DERIVE_KEY_MATERIAL = 64

WORD = 0xFFFFFFFF
LANE_BITS = 64

# Columns, then diagonals, of the 4 x 4 state; each with the pair of message words it takes.
QUARTERS = (
    (0, 4, 8, 12, 0), (1, 5, 9, 13, 2), (2, 6, 10, 14, 4), (3, 7, 11, 15, 6),
    (0, 5, 10, 15, 8), (1, 6, 11, 12, 10), (2, 7, 8, 13, 12), (3, 4, 9, 14, 14),
)  # fmt: skip

Words = tuple[int, ...]


def _schedule() -> tuple[Words, ...]:
    rows = [tuple(range(16))]
    for _ in range(6):
        rows.append(tuple(rows[-1][i] for i in PERMUTATION))
    return tuple(rows)


SCHEDULE = _schedule()


def _spread(word: int, lanes: int) -> int:
    """Returns an integer that holds `word` in each of `lanes` lanes."""
    return word * _ones(lanes)


_ONES: dict[int, int] = {}


def _ones(lanes: int) -> int:
    if lanes not in _ONES:
        _ONES[lanes] = sum(1 << (LANE_BITS * i) for i in range(lanes))
    return _ONES[lanes]


def _lanes_of(words: Sequence[int]) -> int:
    """Packs one word per lane."""
    packed = array("Q", words)
    if sys.byteorder == "big":
        packed.byteswap()
    return int.from_bytes(packed.tobytes(), "little")


def _words_of(lanes_value: int, lanes: int) -> list[int]:
    packed = array("Q", lanes_value.to_bytes(lanes * 8, "little"))
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tolist()


def _compress(
    cv: Sequence[int],
    m: Sequence[int],
    counter: tuple[int, int],
    length: int,
    flags: int,
    lanes: int,
) -> list[int]:
    """Compresses one block in each lane and returns the first half of the output, 8 words.

    `cv`, `m` and the two halves of `counter` are packed; `length` and `flags` are the same in all.
    """
    mask = _spread(WORD, lanes)
    v = list(cv)
    v += [_spread(word, lanes) for word in IV[:4]]
    v += [counter[0], counter[1], _spread(length, lanes), _spread(flags, lanes)]
    for row in SCHEDULE:
        for a, b, c, d, k in QUARTERS:
            va = (v[a] + v[b] + m[row[k]]) & mask
            x = v[d] ^ va
            vd = (x >> 16 | x << 16) & mask
            vc = (v[c] + vd) & mask
            x = v[b] ^ vc
            vb = (x >> 12 | x << 20) & mask
            va = (va + vb + m[row[k + 1]]) & mask
            x = vd ^ va
            vd = (x >> 8 | x << 24) & mask
            vc = (vc + vd) & mask
            x = vb ^ vc
            v[a], v[b], v[c], v[d] = va, (x >> 7 | x << 25) & mask, vc, vd
    return [v[i] ^ v[i + 8] for i in range(8)]


def _block_words(block: bytes) -> Words:
    padded = block.ljust(BLOCK_BYTES, b"\0")
    return tuple(int.from_bytes(padded[i : i + 4], "little") for i in range(0, BLOCK_BYTES, 4))


def _chunk(data: bytes, key: Sequence[int], counter: int, flags: int, last: int) -> Words:
    """Returns the chaining value of one chunk of 0 to 1,024 bytes; `last` is ROOT or 0."""
    blocks = [data[i : i + BLOCK_BYTES] for i in range(0, len(data), BLOCK_BYTES)] or [b""]
    cv: Sequence[int] = key
    halves = (counter & WORD, counter >> 32)
    for i, block in enumerate(blocks):
        f = flags | (CHUNK_START if i == 0 else 0)
        if i == len(blocks) - 1:
            f |= CHUNK_END | last
        cv = _compress(cv, _block_words(block), halves, len(block), f, 1)
    return tuple(cv)


def _full_chunks(data: bytes, key: Sequence[int], counter: int, flags: int) -> list[Words]:
    """Returns the chaining values of whole chunks, computed side by side."""
    lanes = len(data) // CHUNK_BYTES
    words = array("I", data)
    if words.itemsize != 4:
        raise RuntimeError("array type I is not 4 bytes here")
    if sys.byteorder == "big":
        words.byteswap()
    counters = [counter + i for i in range(lanes)]
    halves = (_lanes_of([c & WORD for c in counters]), _lanes_of([c >> 32 for c in counters]))
    cv = [_spread(word, lanes) for word in key]
    for block in range(16):
        m = [_lanes_of(words[block * 16 + w :: 256]) for w in range(16)]
        f = flags | (CHUNK_START if block == 0 else 0) | (CHUNK_END if block == 15 else 0)
        cv = _compress(cv, m, halves, BLOCK_BYTES, f, lanes)
    columns = [_words_of(word, lanes) for word in cv]
    return [tuple(column[i] for column in columns) for i in range(lanes)]


def _leaves(data: bytes, key: Sequence[int], counter: int, flags: int) -> list[Words]:
    """Returns the chaining values of all chunks of an input that has at least two."""
    full = len(data) // CHUNK_BYTES
    cvs: list[Words] = []
    for start in range(0, full, 256):
        stop = min(start + 256, full)
        part = data[start * CHUNK_BYTES : stop * CHUNK_BYTES]
        cvs += _full_chunks(part, key, counter + start, flags)
    if len(data) % CHUNK_BYTES:
        cvs.append(_chunk(data[full * CHUNK_BYTES :], key, counter + full, flags, 0))
    return cvs


def _parents(cvs: Sequence[Words], key: Sequence[int], flags: int) -> list[Words]:
    """Joins neighbours; an odd one out goes up as it is.

    Repeating this gives BLAKE3's tree, whose left subtrees are the largest powers of two.
    """
    lanes = len(cvs) // 2
    m = [_lanes_of([cvs[2 * i + w // 8][w % 8] for i in range(lanes)]) for w in range(16)]
    packed_key = [_spread(word, lanes) for word in key]
    out = _compress(packed_key, m, (0, 0), BLOCK_BYTES, flags | PARENT, lanes)
    columns = [_words_of(word, lanes) for word in out]
    joined: list[Words] = [tuple(column[i] for column in columns) for i in range(lanes)]
    return joined + list(cvs[2 * lanes :])


def _join(cvs: Sequence[Words], key: Sequence[int], flags: int, last: int) -> Words:
    """Joins two or more chaining values to one; `last` is ROOT or 0."""
    while len(cvs) > 2:
        cvs = _parents(cvs, key, flags)
    return tuple(_parents(cvs, key, flags | last)[0])


def _bytes_of(words: Sequence[int]) -> bytes:
    return b"".join(word.to_bytes(4, "little") for word in words)


def _key_words(key: bytes) -> Words:
    if len(key) != 32:
        raise ValueError(f"a BLAKE3 key has 32 bytes, this one has {len(key)}")
    return tuple(int.from_bytes(key[i : i + 4], "little") for i in range(0, 32, 4))


def _hash(data: bytes, key: Sequence[int], flags: int) -> bytes:
    if len(data) <= CHUNK_BYTES:
        return _bytes_of(_chunk(data, key, 0, flags, ROOT))
    return _bytes_of(_join(_leaves(data, key, 0, flags), key, flags, ROOT))


def blake3(data: bytes) -> bytes:
    """Returns the 32-byte hash of `data`."""
    return _hash(bytes(data), IV, 0)


def blake3_keyed(key: bytes, data: bytes) -> bytes:
    """Returns the 32-byte keyed hash of `data`."""
    return _hash(bytes(data), _key_words(key), KEYED_HASH)


def blake3_derive(context: str, material: bytes) -> bytes:
    """Returns the 32-byte key that derives from `material` in `context`."""
    context_key = _hash(context.encode(), IV, DERIVE_KEY_CONTEXT)
    return _hash(bytes(material), _key_words(context_key), DERIVE_KEY_MATERIAL)


def subtree(data: bytes, counter: int) -> bytes:
    """Returns the chaining value of a subtree of the hash, never the root.

    `counter` is the number of the subtree's first 1,024-byte chunk in the whole input.
    """
    if len(data) <= CHUNK_BYTES:
        return _bytes_of(_chunk(bytes(data), IV, counter, 0, 0))
    return _bytes_of(_join(_leaves(bytes(data), IV, counter, 0), IV, 0, 0))


def combine(values: Sequence[bytes]) -> bytes:
    """Returns the hash whose tree has `values`, two or more, as its subtrees from left to right.

    All subtrees but the last must cover the same power of two of chunks, the last at most that.
    """
    if len(values) < 2:
        raise ValueError("a row has two values or more")
    return _bytes_of(_join([_key_words(value) for value in values], IV, 0, ROOT))
