# compare.py: saving and loading one cache by KVC1, torch and safetensors, side by side in one run.
# SPDX-License-Identifier: Apache-2.0
# mypy: allow-untyped-calls
"""Measures each way in a fresh process, in shuffled rounds, and prints ratios and a table.

    python bench/compare.py                     512 MiB, 9 rounds
    python bench/compare.py --mib 64 --rounds 5 a quick look
    python bench/compare.py --json out.json     the raw figures too

A ratio is taken inside a round and its median and minimum are printed. Rounds that disagree by
more than half are marked. Loading is measured with the file in the page cache; saving ends with
fsync of the file and its folder. Before each timed step the process touches and frees more memory
than the step needs, and the disk is idle.
"""

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LAYERS, KV_HEADS, HEAD_DIM = 32, 8, 128  # Llama 3 8B, in bf16: 128 KiB for each token
TOKEN_BYTES = LAYERS * 2 * KV_HEADS * HEAD_DIM * 2
IDENTITY: dict[str, Any] = {
    "model_revision": "bench",
    "tokenizer_sha256": "0" * 64,
    "rope_theta": 500000.0,
}

LOADS = {
    "kvc1": "KVC1, verified",
    "torch": "torch.load",
    "torch-mmap": "torch.load(mmap=True)",
    "safetensors": "safetensors",
    "safetensors-sha256": "safetensors + SHA-256 of the file",
}
SAVES = {"kvc1": "KVC1", "torch": "torch.save", "safetensors": "safetensors"}

# The aims: (what, subject, peer, at most).
TARGETS = [
    ("load", "kvc1", "torch", 1 / 3),
    ("load", "kvc1", "safetensors-sha256", 1 / 4),
    ("save", "kvc1", "safetensors", 1.05),
]


def pages_warm(extra_bytes: int) -> None:
    """Takes fresh pages from the system and gives them back, so that a timed step need not."""
    block = bytearray(extra_bytes)
    block[::4096] = b"\1" * len(block[::4096])
    del block


def peak_anonymous_bytes(step: Callable[[], Any]) -> tuple[float, int, Any]:
    """Runs the step; returns its seconds, the growth of the process's peak, and its result."""
    Path("/proc/self/clear_refs").write_text("5")
    before = status_bytes("VmRSS")
    start = time.perf_counter()
    result = step()
    seconds = time.perf_counter() - start
    return seconds, status_bytes("VmHWM") - before, result


def status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def make_pairs(mib: int) -> list[tuple[Any, Any]]:
    import torch

    tokens = mib * 2**20 // TOKEN_BYTES
    shape = (1, KV_HEADS, tokens, HEAD_DIM)
    generator = torch.Generator().manual_seed(7)
    block = torch.randn(1, KV_HEADS, 64, HEAD_DIM, generator=generator).to(torch.bfloat16)
    pairs = []
    for layer in range(LAYERS):
        keys, values = (block.repeat(1, 1, tokens // 64, 1) + layer + half for half in (0, 0.5))
        pairs.append((keys, values))
    assert pairs[0][0].shape == shape
    return pairs


def as_cache(pairs: list[tuple[Any, Any]]) -> Any:
    """Makes a DynamicCache on the tensors themselves, so that no peer pays for a copy."""
    from transformers.cache_utils import DynamicCache, DynamicLayer

    cache = DynamicCache()
    for keys, values in pairs:
        layer = DynamicLayer()
        layer.dtype, layer.device = keys.dtype, keys.device
        layer.keys, layer.values, layer.is_initialized = keys, values, True
        cache.layers.append(layer)
    return cache


def named(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
    return {
        f"layer.{index}.{kind}": tensor
        for index, pair in enumerate(pairs)
        for kind, tensor in zip(("key", "value"), pair, strict=True)
    }


def unnamed(tensors: dict[str, Any]) -> list[tuple[Any, Any]]:
    return [
        (tensors[f"layer.{index}.key"], tensors[f"layer.{index}.value"]) for index in range(LAYERS)
    ]


def load(way: str, path: Path) -> Any:
    import hashlib

    import safetensors.torch
    import torch
    import torch_kvcache

    if way == "kvc1":
        return torch_kvcache.read_dynamic_cache(path, IDENTITY)[0]
    if way == "torch":
        return as_cache(torch.load(path, weights_only=True))
    if way == "torch-mmap":
        return as_cache(torch.load(path, weights_only=True, mmap=True))
    if way == "safetensors-sha256":
        with path.open("rb") as file:
            hashlib.file_digest(file, "sha256").hexdigest()
    return as_cache(unnamed(safetensors.torch.load_file(path)))


def save(way: str, cache: Any, path: Path) -> None:
    import safetensors.torch
    import torch
    import torch_kvcache

    if way == "kvc1":
        torch_kvcache.write_dynamic_cache(path, cache, **IDENTITY)
        return
    pairs = [(layer.keys, layer.values) for layer in cache.layers]
    if way == "torch":
        torch.save(pairs, path)
    else:
        safetensors.torch.save_file(named(pairs), path)
    for name, flags in ((path, os.O_RDONLY), (path.parent, os.O_RDONLY | os.O_DIRECTORY)):
        descriptor = os.open(name, flags)
        os.fsync(descriptor)
        os.close(descriptor)


def use(cache: Any) -> int:
    """Reads every byte once."""
    import torch

    return sum(
        int(tensor.view(torch.int64).sum())
        for layer in cache.layers
        for tensor in (layer.keys, layer.values)
    )


def run_step(step: str, way: str, path: Path, mib: int) -> dict[str, float]:
    """The body of a fresh process: one timed step."""
    import safetensors.torch  # noqa: F401
    import torch  # noqa: F401
    import torch_kvcache  # noqa: F401
    import transformers.cache_utils  # noqa: F401

    if step == "save":
        cache = as_cache(make_pairs(mib))
        pages_warm(mib * 2**20 + 2**26)
        os.sync()
        seconds, growth, _ = peak_anonymous_bytes(lambda: save(way, cache, path))
        return {"seconds": seconds, "growth_mib": growth / 2**20}
    with path.open("rb") as file:
        while file.read(2**24):
            pass
    pages_warm(mib * 2**20 + 2**26)
    os.sync()
    seconds, growth, cache = peak_anonymous_bytes(lambda: load(way, path))
    start = time.perf_counter()
    use(cache)
    used = seconds + time.perf_counter() - start
    return {"seconds": seconds, "used_seconds": used, "growth_mib": growth / 2**20}


def fresh(step: str, way: str, path: Path, mib: int) -> dict[str, float]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    command = [sys.executable, __file__, "--step", step, way, str(path), "--mib", str(mib)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"bench: {step} by {way} failed:\n{done.stderr}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(mib: int, rounds: int, folder: Path) -> dict[str, dict[str, list[dict[str, float]]]]:
    files = {way: folder / f"{way}.cache" for way in SAVES}
    files |= {"torch-mmap": files["torch"], "safetensors-sha256": files["safetensors"]}
    for way in SAVES:
        fresh("save", way, files[way], mib)
    figures: dict[str, dict[str, list[dict[str, float]]]] = {
        "load": {way: [] for way in LOADS},
        "save": {way: [] for way in SAVES},
    }
    work = [("load", way) for way in LOADS] + [("save", way) for way in SAVES]
    for number in range(rounds):
        random.Random(number).shuffle(work)
        for step, way in work:
            path = files[way] if step == "load" else folder / "saved.cache"
            figures[step][way].append(fresh(step, way, path, mib))
            if step == "save":
                path.unlink()
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return figures


def ratios(subject: list[dict[str, float]], peer: list[dict[str, float]]) -> list[float]:
    return [a["seconds"] / b["seconds"] for a, b in zip(subject, peer, strict=True)]


def disagree(values: list[float]) -> bool:
    """True when the middle half of the rounds spreads over more than half of their median."""
    low, _, high = statistics.quantiles(values, n=4)
    return (high - low) > 0.5 * statistics.median(values)


def table(figures: dict[str, dict[str, list[dict[str, float]]]], mib: int) -> str:
    lines = [
        f"| {mib} MiB | save + fsync, s | load, ready, s | load, every byte used, s | "
        "peak growth at load, MiB |",
        "|---|---|---|---|---|",
    ]
    for way, title in LOADS.items():
        runs = figures["load"][way]
        saves = figures["save"].get(way)
        cells = [
            f"{statistics.median(r['seconds'] for r in saves):.3f}" if saves else "",
            f"{statistics.median(r['seconds'] for r in runs):.3f}",
            f"{statistics.median(r['used_seconds'] for r in runs):.3f}",
            f"{statistics.median(r['growth_mib'] for r in runs):.0f}",
        ]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def report(figures: dict[str, dict[str, list[dict[str, float]]]], mib: int) -> bool:
    print(table(figures, mib), "\n")
    all_held = True
    for step, subject, peer, most in TARGETS:
        values = ratios(figures[step][subject], figures[step][peer])
        median = statistics.median(values)
        held = median <= most
        all_held &= held
        print(
            f"{step}: KVC1 / {peer} = {median:.3f} (least {min(values):.3f}), at most {most:.3f}: "
            + ("held" if held else "NOT held")
            + (", but the rounds disagree too much to say" if disagree(values) else "")
        )
    tensor_mib = mib / (2 * LAYERS)
    for step, most in (("load", mib + 16), ("save", tensor_mib + 16)):
        growth = statistics.median(run["growth_mib"] for run in figures[step]["kvc1"])
        held = growth <= most
        all_held &= held
        print(
            f"{step}: the peak grew by {growth:.1f} MiB, at most {most:.0f}: "
            + ("held" if held else "NOT held")
        )
    return all_held


def machine() -> str:
    import kvcache

    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return f"{os.cpu_count()} CPUs, {model}, {platform.release()}, BLAKE3 by {kvcache.kernel()}"


def main() -> int:
    parser = argparse.ArgumentParser(description="KVC1, torch and safetensors side by side")
    parser.add_argument("--mib", type=int, default=512, help="size of the cache; a multiple of 8")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="where to write the raw figures")
    parser.add_argument("--folder", type=Path, help="where to keep the files; on a real disk")
    parser.add_argument("--step", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        step, way, path = options.step
        print(json.dumps(run_step(step, way, Path(path), options.mib)))
        return 0
    if options.mib % 8 or options.mib < 8 or options.rounds < 3:
        parser.error("--mib must be a multiple of 8, and --rounds at least 3")
    folder = options.folder or Path(__file__).resolve().parent.parent / "build"
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        figures = measure(options.mib, options.rounds, Path(scratch))
    print(machine(), "\n")
    held = report(figures, options.mib)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
