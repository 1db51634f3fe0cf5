"""Compares the library's BLAKE3 with the `blake3` package on every kernel of this processor.

The C program `blake3_tool` answers requests on its standard input, so one process serves
thousands of lengths. It is looked for in the folder KVC_BUILD_DIR (default: build).
SPDX-License-Identifier: Apache-2.0
"""

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
AROUND = sorted(
    {(1 << power) + delta for power in range(12, 25) for delta in (-1025, -1024, -65, -1, 0, 1, 64, 1025)}
)


def make_input() -> bytes:
    """Return the 17 MiB that make_input in blake3_tool.c makes, by the same rule."""
    words = bytearray()
    for i in range((17 << 20) // 4):
        word = i * 2654435761 & 0xFFFFFFFF
        words += (word ^ word >> 15).to_bytes(4, "little")
    return bytes(words)


@pytest.fixture(scope="module")
def data() -> bytes:
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
    """A kernel name, skipped where this processor or this build does not have the kernel."""
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
    assert len(found) == len(wanted)
    wrong = [r for r, f, w in zip(requests, found, wanted, strict=True) if f != w]
    assert not wrong, f"{len(wrong)} of {len(requests)} differ, first: {wrong[:5]}"


def test_default_kernel_is_known_and_unknown_names_are_ignored() -> None:
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
    """A tensor's row of chunk values proves its digest, for any length of two grid chunks or more."""
    lengths = sorted(
        {GRID * chunks + delta for chunks in (1, 2, 3, 5, 7, 8, 31, 64, 100, 255) for delta in (1, 1023, 1025, GRID)}
        | {GRID * chunks + 5 for chunks in range(1, 130)}
        | {n for n in AROUND if n > GRID}
    )
    requests = [f"combine {n}" for n in lengths]
    compare(requests, ask(kernel, requests), [expected("hash", data, n) for n in lengths])


def test_row_equals_single_values(kernel: str, data: bytes) -> None:
    """One call for a run of grid chunks gives what one call for each gives."""
    for count, last, first in ((1, 1, 0), (1, GRID, 7), (4, GRID, 0), (5, 1000, 3), (9, 40000, 1 << 40)):
        total = (count - 1) * GRID + last
        (row,) = ask(kernel, [f"row {total} {first}"])
        values = [row[i : i + 64] for i in range(0, len(row), 64)]
        assert len(values) == count
        # The tool's inputs all start at the same byte, so only the first value has a twin there;
        # the others are held to the official hash by combining, as long as the row starts at 0.
        assert ask(kernel, [f"subtree {min(total, GRID)} {first} 3"]) == values[:1]
    portable = ask("portable", [f"row {n} {n}" for n in (70000, 300000, 1 << 20)])
    assert ask(kernel, [f"row {n} {n}" for n in (70000, 300000, 1 << 20)]) == portable


def test_large_counters_agree_with_the_portable_path(kernel: str, data: bytes) -> None:
    """Counters that cross 2^32 inside one grid chunk cannot be reached by any real input here."""
    grids = (0, 1, (1 << 26) - 1, 1 << 26, (1 << 32) + 5, (1 << 53) + 1)
    requests = [f"subtree {n} {g} {s}" for n in (1, 1024, 5000, GRID) for g in grids for s in (0, 1, 63)]
    assert ask(kernel, requests) == ask("portable", requests)
