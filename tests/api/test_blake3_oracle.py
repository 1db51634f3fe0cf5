# test_blake3_oracle.py: every BLAKE3 kernel of this processor against the `blake3` package.
# SPDX-License-Identifier: Apache-2.0
"""The C program `blake3_tool` answers requests on its standard input, so one process serves
thousands of lengths. It is looked for in the folder KVC_BUILD_DIR (default: build)."""

from __future__ import annotations

import os
import pathlib
import subprocess
from collections.abc import Iterable, Sequence

import pytest

blake3 = pytest.importorskip("blake3").blake3

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("KVC_BUILD_DIR", "build")
CONTEXT = "KVC1 tests 2025 derive"
GRID = 65536
KERNELS = ("portable", "sse41", "avx2", "avx512", "neon")
MODES = ("update", "keyed", "derive")
SMALL = range(5001)
DELTAS = (-1025, -1024, -65, -1, 0, 1, 64, 1025)
AROUND = sorted((1 << power) + delta for power in range(13, 25) for delta in DELTAS)


def make_input() -> bytes:
    """Return the 17 MiB that make_input in blake3_tool.c makes, by the same rule."""
    words = bytearray()
    for i in range((17 << 20) // 4):
        word = i * 2654435761 & 0xFFFFFFFF
        words += (word ^ word >> 15).to_bytes(4, "little")
    return bytes(words)


@pytest.fixture(scope="module")
def data() -> bytes:
    """Return the tool's input."""
    return make_input()


def find_tool() -> pathlib.Path:
    """Return the path of blake3_tool, which Meson may put in any folder below the build folder."""
    for path in sorted(BUILD.rglob("blake3_tool")):
        if path.is_file() and os.access(path, os.X_OK):
            return path
    pytest.skip(f"blake3_tool is not built in {BUILD}")


def ask(kernel: str, requests: Iterable[str]) -> list[str]:
    """Return the answer lines of one tool process that was told to use `kernel`."""
    run = subprocess.run(
        [find_tool()],
        input="".join(f"{request}\n" for request in requests),
        env={**os.environ, "KVC_BLAKE3_KERNEL": kernel},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    return run.stdout.splitlines()


@pytest.fixture(scope="module", params=KERNELS)
def kernel(request: pytest.FixtureRequest) -> str:
    """Return a kernel name, or skip where this processor or build does not have the kernel."""
    name: str = request.param
    if ask(name, ["kernel"]) != [name]:
        pytest.skip(f"no {name} kernel here")
    return name


def expected(mode: str, data: bytes, length: int) -> str:
    """Return the package's digest of the first `length` bytes in one of the three modes."""
    piece = memoryview(data)[:length]
    if mode == "keyed":
        return str(blake3(piece, key=data[:32]).hexdigest())
    if mode == "derive":
        return str(blake3(piece, derive_key_context=CONTEXT).hexdigest())
    return str(blake3(piece).hexdigest())


def compare(requests: Sequence[str], found: Sequence[str], wanted: Sequence[str]) -> None:
    """Fail with the first requests whose answers differ."""
    assert len(found) == len(wanted)
    wrong = [r for r, f, w in zip(requests, found, wanted, strict=True) if f != w]
    assert not wrong, f"{len(wrong)} of {len(requests)} differ, first: {wrong[:5]}"


def test_default_kernel_is_known_and_unknown_names_are_ignored() -> None:
    """The choice that a user's environment gets wrong falls back to the best kernel."""
    best = ask("", ["kernel"])
    assert best[0] in KERNELS
    assert ask("no-such-kernel", ["kernel"]) == best


@pytest.mark.parametrize("mode", MODES)
def test_pieces_of_any_size(kernel: str, data: bytes, mode: str) -> None:
    """Every length 0..5000 and around the powers of two to 16 MiB, cut in uneven pieces."""
    requests = [f"{mode} {n} {(1, 63, 1000, 3000, 5000)[n % 5]}" for n in SMALL]
    requests += [f"{mode} {n} {(1021, 9000, 70001, 1 << 25)[i % 4]}" for i, n in enumerate(AROUND)]
    wanted = [expected(mode, data, int(r.split()[1])) for r in requests]
    compare(requests, ask(kernel, requests), wanted)


def test_one_call(kernel: str, data: bytes) -> None:
    """The same lengths in one call, and every number of chunks to 600, at odd addresses."""
    lengths = [*SMALL, *AROUND, *(1024 * chunks + chunks % 3 for chunks in range(5, 601))]
    requests = [f"hash {n} {n % 64}" for n in lengths]
    compare(requests, ask(kernel, requests), [expected("hash", data, n) for n in lengths])


def test_grid_values_combine_to_the_official_hash(kernel: str, data: bytes) -> None:
    """A row of chunk values proves a tensor's digest, at any length of two grid chunks or more."""
    grids = (1, 2, 3, 5, 7, 8, 31, 64, 100, 255)
    lengths = [GRID * grid + delta for grid in grids for delta in (1, 1023, 1025, GRID)]
    lengths += [GRID * grid + 5 for grid in range(1, 130)]
    lengths += [n for n in AROUND if n > GRID]
    requests = [f"combine {n}" for n in lengths]
    compare(requests, ask(kernel, requests), [expected("hash", data, n) for n in lengths])


def test_row_equals_single_values(kernel: str) -> None:
    """One call for a run of grid chunks gives what the portable kernel gives, one by one.

    The tool's inputs all start at the same byte, so only the first value of a row has a twin among
    the single ones; the others are held to the official hash by the test before this one.
    """
    rows = ((1, 0), (GRID, 7), (4 * GRID, 0), (4 * GRID + 1000, 3), (9 * GRID - 9, 1 << 40))
    row_requests = [f"row {n} {first}" for n, first in rows]
    found = ask(kernel, row_requests)
    assert found == ask("portable", row_requests)
    assert [len(row) for row in found] == [64 * -(-n // GRID) for n, _ in rows]
    single = ask(kernel, [f"subtree {min(n, GRID)} {first} 3" for n, first in rows])
    assert single == [row[:64] for row in found]


def test_large_counters_agree_with_the_portable_kernel(kernel: str) -> None:
    """Chunk counters beyond 32 bits belong to inputs larger than any here."""
    grids = (0, 1, (1 << 26) - 1, 1 << 26, (1 << 32) + 5, (1 << 53) + 1)
    requests = [
        f"subtree {n} {grid} {shift}"
        for n in (1, 1024, 5000, GRID)
        for grid in grids
        for shift in (0, 1, 63)
    ]
    assert ask(kernel, requests) == ask("portable", requests)
