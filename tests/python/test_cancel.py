# test_cancel.py: progress, cancellation, signals, and the GIL.
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import itertools
import operator
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import kvcache
import pytest
from kvcache_cases import base_metadata, names_in

PIECE = bytes(1 << 20)
LARGE_MEBIBYTES = 96


class Stop(BaseException):
    pass


def write_zeros(path: Path, mebibytes: int) -> None:
    kvcache.write_cache_stream(
        path, base_metadata(), itertools.repeat(PIECE, mebibytes), durability="none"
    )


def test_progress_of_verify(tmp_path: Path) -> None:
    path = tmp_path / "a.kvc"
    write_zeros(path, 16)
    calls: list[tuple[int, int]] = []
    thread = threading.get_ident()

    def progress(done: int, total: int) -> None:
        assert threading.get_ident() == thread
        calls.append((done, total))

    kvcache.verify_cache(path, progress=progress)
    assert calls[-1] == (16 << 20, 16 << 20)
    assert all(total == 16 << 20 for _, total in calls)
    assert calls == sorted(calls)
    with kvcache.open_cache(path) as cache:
        cache.verify(lambda done, total: calls.clear())
    assert calls == []


def test_progress_of_write(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    kvcache.write_cache_stream(
        tmp_path / "a.kvc",
        base_metadata(),
        itertools.repeat(PIECE, 16),
        progress=lambda done, total: calls.append((done, total)),
    )
    assert calls
    assert all(0 <= done <= 16 << 20 for done, _ in calls)
    assert calls == sorted(calls)


@pytest.mark.parametrize("error", [Stop, KeyboardInterrupt, ZeroDivisionError, MemoryError])
def test_progress_that_raises(tmp_path: Path, error: type[BaseException]) -> None:
    def progress(done: int, total: int) -> None:
        raise error("from progress")

    path = tmp_path / "a.kvc"
    with pytest.raises(error, match="from progress"):
        kvcache.write_cache_stream(
            path, base_metadata(), itertools.repeat(PIECE, 16), progress=progress
        )
    assert names_in(tmp_path) == []
    write_zeros(path, 16)
    before = path.read_bytes()
    with pytest.raises(error, match="from progress"):
        kvcache.verify_cache(path, progress=progress)
    with kvcache.open_cache(path) as cache:
        for errors in ("first", "collect"):
            with pytest.raises(error, match="from progress"):
                cache.verify(progress, errors)
        cache.verify()
    with pytest.raises(error, match="from progress"):
        kvcache.write_cache_stream(path, base_metadata(), [PIECE] * 16, progress=progress)
    assert path.read_bytes() == before
    assert names_in(tmp_path) == ["a.kvc"]


def test_progress_that_calls_back(tmp_path: Path) -> None:
    path = tmp_path / "a.kvc"
    write_zeros(path, 4)
    inner = []
    with kvcache.open_cache(path) as cache:
        cache.verify(lambda done, total: inner.append(len(cache.read("", 0, 5))))
        cache.verify(lambda done, total: cache.close())
        assert cache.closed
    assert set(inner) == {5}


def raise_stop(signal_number: int, frame: object) -> None:
    raise Stop


@pytest.mark.parametrize("piece", [b"x" * 1000, b""], ids=["bytes", "nothing"])
def test_signal_ends_a_write_of_c_iterators(tmp_path: Path, piece: bytes) -> None:
    # The iterator is C code, so only the writer itself can notice the signal.
    pieces = itertools.repeat(piece, 3_000_000 if piece else 100_000_000)
    previous = signal.signal(signal.SIGALRM, raise_stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(Stop):
            kvcache.write_cache_stream(
                tmp_path / "a.kvc", base_metadata(), pieces, durability="none"
            )
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert operator.length_hint(pieces) > 0
    assert names_in(tmp_path) == []


SLOW_VERIFY = """
import signal, sys, time
import kvcache

class Stop(Exception):
    pass

def handler(number, frame):
    raise Stop

signal.signal(signal.SIGALRM, handler)
start = time.perf_counter()
kvcache.verify_cache(sys.argv[1], threads=1)
whole = time.perf_counter() - start
start = time.perf_counter()
signal.setitimer(signal.ITIMER_REAL, whole / 100)
try:
    kvcache.verify_cache(sys.argv[1], threads=1)
    print("not interrupted")
except Stop:
    print("soon" if time.perf_counter() - start < 0.6 * whole else "late")
"""


def run_slowly(code: str, *arguments: str) -> str:
    """Run Python code with the slowest BLAKE3 kernel, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parent)]),
            "KVC_BLAKE3_KERNEL": "portable",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def large_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "a.kvc"
    write_zeros(path, LARGE_MEBIBYTES)
    return path


def test_signal_ends_a_verify(large_file: Path) -> None:
    assert run_slowly(SLOW_VERIFY, str(large_file)) == "soon"


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell starts what runs in its background with SIGINT ignored, and Python leaves it so."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_keyboard_interrupt_from_the_iterator(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield PIECE
        os.kill(os.getpid(), signal.SIGINT)
        yield PIECE

    with pytest.raises(KeyboardInterrupt):
        kvcache.write_cache_stream(tmp_path / "a.kvc", base_metadata(), pieces())
    assert names_in(tmp_path) == []


LONGEST_PAUSE = """
import sys, threading, time
import kvcache
from kvcache_cases import base_metadata

name, path, mebibytes = sys.argv[1], sys.argv[2], int(sys.argv[3])
piece = bytes(mebibytes << 20)
jobs = {
    "verify": lambda: kvcache.verify_cache(path, threads=1),
    "read": lambda: kvcache.read_cache(path, threads=1),
    "copy": lambda: kvcache.read_cache(path, copy=True, threads=1),
    "tensor": lambda: kvcache.open_cache(path, threads=1)[""],
    "copied tensor": lambda: kvcache.open_cache(path, threads=1, copy=True)[""],
    "range": lambda: kvcache.open_cache(path, threads=1).read("", 1),
    "write": lambda: kvcache.write_cache_stream(
        path + ".new", base_metadata(), [piece], threads=1, durability="none"
    ),
}
seconds = []

def work():
    start = time.perf_counter()
    jobs[name]()
    seconds.append(time.perf_counter() - start)

def longest_pause():
    thread = threading.Thread(target=work)
    longest = 0.0
    last = time.perf_counter()
    thread.start()
    while thread.is_alive():
        now = time.perf_counter()
        longest = max(longest, now - last)
        last = now
    return longest / seconds[-1]

print(min(longest_pause() for _ in range(3)))
"""


@pytest.mark.parametrize(
    "name", ["verify", "read", "copy", "tensor", "copied tensor", "range", "write"]
)
def test_gil_is_released(large_file: Path, name: str) -> None:
    # A busy machine may pause the watching thread too; one good run out of three shows enough.
    share = run_slowly(LONGEST_PAUSE, name, str(large_file), str(LARGE_MEBIBYTES))
    assert float(share) < 0.5
