# test_lifetime.py: whatever is closed, deleted, forked or written to, nothing crashes or leaks,
# and no file changes.
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kvcache
import pytest
from kvcache_cases import (
    CHUNK_BYTES,
    base_metadata,
    manifest_metadata,
    payload_bytes,
    tensor_bytes,
    write_case,
)

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
NAME = "layer.1.value"


@pytest.fixture
def case(tmp_path: Path) -> tuple[Path, bytes, bytes]:
    """A file of a few hundred KiB: its path, its bytes, and the bytes of the tensor NAME."""
    path = tmp_path / "a.kvc"
    metadata, payload = write_case(path, dtype="f32", layers=2, heads=2, head_dim=8, sequence=2000)
    return path, path.read_bytes(), tensor_bytes(metadata, payload, NAME)


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE_BYTES


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def mappings_of(path: Path) -> int:
    with open("/proc/self/maps") as file:
        return sum(str(path) in line for line in file)


@pytest.mark.parametrize("copy", [False, True])
def test_everything_outlives_the_cache(case: tuple[Path, bytes, bytes], copy: bool) -> None:
    path, data, expected = case
    cache = kvcache.open_cache(path, copy=copy)
    tensor = cache[NAME]
    view = memoryview(cache[NAME])
    payload = cache.payload()
    part = payload[100:200]
    cache.close()
    del cache
    gc.collect()
    path.unlink()
    assert bytes(tensor) == expected
    assert bytes(view) == expected
    assert payload[-len(expected) :] == expected
    wanted = bytes(payload[100:200])
    payload.release()
    gc.collect()
    assert bytes(part) == wanted
    assert wanted in data


def test_mapping_goes_with_its_last_user(case: tuple[Path, bytes, bytes]) -> None:
    path, _, expected = case
    assert mappings_of(path) == 0
    cache = kvcache.open_cache(path)
    files = open_files()
    tensor = cache[NAME]
    view = memoryview(cache["layer.0.key"])
    capsule = cache["layer.0.value"].__dlpack__()
    _, payload = kvcache.read_cache(path)
    assert mappings_of(path) > 0
    cache.close()
    assert open_files() == files - 1
    del tensor
    del payload
    assert mappings_of(path) > 0
    del view
    assert mappings_of(path) > 0
    del capsule
    assert mappings_of(path) == 0
    assert len(expected) > 0


def test_writing_into_tensors(case: tuple[Path, bytes, bytes]) -> None:
    path, data, expected = case
    with kvcache.open_cache(path) as cache:
        view = memoryview(cache[NAME]).cast("B")
        view[:] = bytes(len(expected))
        # Tensors of one cache share their pages.
        assert bytes(cache[NAME]) == bytes(len(expected))
        # What is read and verified is the file.
        assert cache.read(NAME) == expected
        assert cache.verify().root == cache.root
        with kvcache.open_cache(path) as other:
            assert bytes(other[NAME]) == expected
    with kvcache.open_cache(path, copy=True) as cache:
        view = memoryview(cache[NAME]).cast("B")
        view[:] = bytes(len(expected))
        assert bytes(cache[NAME]) == expected
    assert path.read_bytes() == data


def test_damage_is_seen_behind_changed_pages(case: tuple[Path, bytes, bytes]) -> None:
    path, data, expected = case
    with kvcache.open_cache(path) as cache:
        info = cache.tensors[NAME]
        view = memoryview(cache[NAME]).cast("B")
        view[0] ^= 1
        file = os.open(path, os.O_RDWR)
        os.pwrite(file, bytes([expected[1] ^ 1]), info.file_offset + 1)
        os.close(file)
        with pytest.raises(kvcache.CacheIntegrityError):
            cache.verify()
        with pytest.raises(kvcache.CacheIntegrityError):
            cache.read(NAME)
    assert len(data) == path.stat().st_size


def test_replacing_a_mapped_file(case: tuple[Path, bytes, bytes]) -> None:
    path, _, expected = case
    with kvcache.open_cache(path) as cache:
        tensor = cache[NAME]
        kvcache.write_cache_stream(path, base_metadata(), [b"something else"])
        assert bytes(tensor) == expected
        assert cache.read(NAME) == expected
        cache.verify()
    assert kvcache.read_cache(path)[1] == b"something else"


def test_writing_a_cache_onto_itself(case: tuple[Path, bytes, bytes]) -> None:
    path, data, _ = case
    with kvcache.open_cache(path) as cache:
        kvcache.write_cache_stream(path, cache.metadata, (cache[name] for name in cache))
    assert path.read_bytes() == data


@pytest.mark.parametrize("copy", [False, True])
def test_forks(case: tuple[Path, bytes, bytes], copy: bool) -> None:
    path, data, expected = case
    with kvcache.open_cache(path, copy=copy) as cache:
        tensor = cache[NAME]
        payload = cache.payload()
        child = os.fork()
        if child == 0:
            # The child only leaves by _exit: pytest must not go on in it.
            try:
                good = bytes(tensor) == expected
                memoryview(tensor).cast("B")[:] = bytes(len(expected))
                good = good and cache.read(NAME) == expected
                good = good and bytes(payload[:0]) == b""
                cache.verify()
                cache.close()
                del cache, tensor, payload
                gc.collect()
                with kvcache.open_cache(path) as own:
                    good = good and bytes(own[NAME]) == expected
                os._exit(0 if good else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert bytes(tensor) == expected
        cache.verify()
    assert path.read_bytes() == data


def test_threads_and_close(case: tuple[Path, bytes, bytes]) -> None:
    path, data, expected = case
    outcomes: list[str] = []

    def work(cache: kvcache.Cache, seed: int, start: threading.Barrier) -> None:
        choice = random.Random(seed)
        jobs: list[Callable[[], bool]] = [
            lambda: bytes(cache[NAME]) == expected,
            lambda: cache.read(NAME, 1000, 70_000) == expected[1000:70_000],
            lambda: cache.payload()[-len(expected) :] == expected,
            lambda: cache.verify() == cache.info,
            lambda: len(cache.tensors) == 4,
        ]
        start.wait()
        for _ in range(20):
            try:
                outcomes.append("good" if choice.choice(jobs)() else "wrong")
            except ValueError as error:
                outcomes.append("closed" if "is closed" in str(error) else "wrong")

    for turn in range(20):
        cache = kvcache.open_cache(path, copy=turn % 2 == 1, threads=1 + turn % 3)
        start = threading.Barrier(5)
        workers = [
            threading.Thread(target=work, args=(cache, 100 * turn + number, start))
            for number in range(4)
        ]
        for worker in workers:
            worker.start()
        start.wait()
        if turn % 4:
            while len(outcomes) < 80 * turn + 5 * (turn % 4) and any(w.is_alive() for w in workers):
                pass
            cache.close()
        for worker in workers:
            worker.join()
    assert len(outcomes) == 20 * 4 * 20
    assert outcomes.count("wrong") == 0
    assert outcomes.count("good") > 0
    assert outcomes.count("closed") > 0
    assert path.read_bytes() == data


KEY = b"k" * 32
METADATA = manifest_metadata()
PAYLOAD = payload_bytes(METADATA)


def refused(function: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    try:
        function(*arguments, **options)
    except (kvcache.CacheError, OSError, TypeError, ValueError, KeyError, ZeroDivisionError):
        return
    raise AssertionError("this must be refused")


def use_mapped(path: Path) -> None:
    with kvcache.open_cache(path) as cache:
        for name in cache:
            tensor = cache[name]
            memoryview(tensor)
            tensor.__dlpack__()
            tensor.__dlpack__(max_version=(1, 0))
            tensor.__dlpack__(max_version=(1, 0), copy=True)
            _ = (tensor.name, tensor.shape, tensor.digest, tensor.layer, tensor.kind)
            _ = (tensor.__array_interface__, repr(tensor), tensor.offset, tensor.dtype)
        cache.payload()


def use_copied(path: Path) -> None:
    with kvcache.open_cache(path, copy=True) as cache:
        _ = [cache[name] for name in cache]
        cache.payload()
        cache.read(NAME, 5, 10)
        _ = ("x" in cache, cache.metadata)


def use_read(path: Path) -> None:
    kvcache.read_cache(path)


def use_verify(path: Path) -> None:
    kvcache.verify_cache(path, progress=lambda done, total: None)


def use_write(path: Path) -> None:
    target = path.parent / "new.kvc"
    kvcache.write_cache_stream(target, METADATA, [PAYLOAD], durability="none", key=KEY)


def refuse_chunks(path: Path) -> None:
    write, target = kvcache.write_cache_stream, path.parent / "new.kvc"
    refused(write, target, METADATA, [PAYLOAD, "text"])
    refused(write, target, METADATA, [memoryview(PAYLOAD)[::2]])
    refused(write, target, METADATA, (1 / 0 for _ in range(1)))
    refused(write, target, METADATA, [PAYLOAD, b"more"])
    refused(write, target, {}, [PAYLOAD])


def refuse_whole_file(path: Path) -> None:
    refused(kvcache.open_cache, path, {"layers": 9, "user": {"x": [1]}})
    refused(kvcache.open_cache, path, expected_root="00" * 32)
    refused(kvcache.open_cache, path, key=KEY)
    refused(kvcache.open_cache, __file__)
    refused(kvcache.open_cache, path.parent / "missing")
    refused(kvcache.open_cache(path).__getitem__, "nothing")
    refused(kvcache.verify_cache, path, progress=lambda done, total: 1 / 0)


def refuse_damage(path: Path) -> None:
    damaged = path.parent / "damaged.kvc"
    refused(kvcache.verify_cache, damaged)
    refused(kvcache.verify_cache, damaged, errors="collect")
    refused(kvcache.read_cache, damaged)
    refused(kvcache.read_cache, damaged, copy=True)
    refused(kvcache.open_cache(damaged).__getitem__, "layer.0.key")
    refused(kvcache.open_cache(damaged, copy=True).__getitem__, "layer.0.key")


@pytest.mark.skipif(sys.platform != "linux", reason="measures memory in /proc")
@pytest.mark.parametrize(
    "use",
    [
        use_mapped,
        use_copied,
        use_read,
        use_verify,
        use_write,
        refuse_chunks,
        refuse_whole_file,
        refuse_damage,
    ],
)
def test_memory_does_not_grow(tmp_path: Path, use: Callable[[Path], None]) -> None:
    path = tmp_path / "a.kvc"
    write_case(path, dtype="u8", layers=2, heads=1, head_dim=1, sequence=CHUNK_BYTES + 1)
    offset = kvcache.verify_cache(path).payload_offset
    data = bytearray(path.read_bytes())
    for place in (0, 2 * CHUNK_BYTES):
        data[offset + place] ^= 1
    (tmp_path / "damaged.kvc").write_bytes(data)
    for _ in range(300):
        use(path)
    gc.collect()
    before, files = resident_bytes(), open_files()
    for _ in range(1500):
        use(path)
    gc.collect()
    # 1500 turns that lose 400 bytes each are over the limit.
    assert resident_bytes() - before < 600_000
    assert open_files() == files
    assert mappings_of(path) == 0


def run_python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    folder = str(Path(__file__).parent)
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*sys.path, folder]),
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_exit_with_everything_alive(case: tuple[Path, bytes, bytes]) -> None:
    code = """
import sys, kvcache
cache = kvcache.open_cache(sys.argv[1])
tensor = cache["layer.0.key"]
capsule = tensor.__dlpack__()
payload = cache.payload()
cycle = [cache, tensor, payload]
cycle.append(cycle)
sys.kept = cycle
"""
    done = run_python(code, str(case[0]))
    assert (done.returncode, done.stderr) == (0, "")


def test_exit_while_a_thread_verifies(tmp_path: Path) -> None:
    path = tmp_path / "a.kvc"
    kvcache.write_cache_stream(path, base_metadata(), [bytes(1 << 20)] * 32, durability="none")
    code = """
import atexit, sys, threading, kvcache
started = threading.Event()
def work():
    while True:
        kvcache.verify_cache(sys.argv[1], progress=lambda done, total: started.set())
for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
started.wait()
atexit.register(lambda: kvcache.verify_cache(sys.argv[1]))
"""
    for _ in range(3):
        done = run_python(code, str(path), KVC_BLAKE3_KERNEL="portable")
        assert (done.returncode, done.stderr) == (0, "")


def test_no_progress_once_python_exits(case: tuple[Path, bytes, bytes]) -> None:
    # Handlers run in the opposite order of their registration.
    code = """
import atexit, sys
def late():
    calls = []
    info = kvcache.verify_cache(sys.argv[1], progress=lambda done, total: calls.append(done))
    print(info.file_bytes, calls)
atexit.register(late)
import kvcache
"""
    done = run_python(code, str(case[0]))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == f"{len(case[1])} []"


def test_a_thread_lets_go_of_the_last_tensor(case: tuple[Path, bytes, bytes]) -> None:
    path = case[0]
    with kvcache.open_cache(path) as cache:
        kept = [cache[NAME].__dlpack__()]
    thread = threading.Thread(target=kept.clear)
    thread.start()
    thread.join()
    assert mappings_of(path) == 0


def test_numpy_and_torch_keep_memory(case: tuple[Path, bytes, bytes]) -> None:
    numpy = pytest.importorskip("numpy")
    torch = pytest.importorskip("torch")
    path, data, expected = case
    with kvcache.open_cache(path) as cache:
        kept = [
            numpy.asarray(cache[NAME]),
            numpy.from_dlpack(cache[NAME]),
            torch.from_dlpack(cache[NAME]),
            torch.frombuffer(cache[NAME], dtype=torch.float32),
            torch.from_numpy(numpy.asarray(cache[NAME])),
        ]
    gc.collect()
    for array in kept:
        assert bytes(numpy.asarray(array).reshape(-1).view("u1")) == expected
    kept[2].zero_()
    assert not kept[0].any()
    parts = [array.reshape(-1)[5:9] for array in kept]
    del kept, array
    gc.collect()
    assert all(part.sum() == 0 for part in parts)
    assert mappings_of(path) > 0
    while parts:
        assert mappings_of(path) > 0
        parts.pop()
        part = None
        gc.collect()
    assert mappings_of(path) == 0
    assert part is None
    assert path.read_bytes() == data
