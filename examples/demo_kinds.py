# demo_kinds.py: caches of two real models go to files of several kinds, and on in a new process.
# SPDX-License-Identifier: Apache-2.0
# mypy: allow-untyped-calls
"""SmolLM2-135M (full attention) and Gemma 3 270M (sliding windows of 512 and full attention) read
the beginning of docs/FORMAT.md, up to lengths around the window. Each cache is saved; one new
process for each model loads the files and goes on. The logits of every step must be those of going
on in memory, bit for bit. Ends with a status other than 0 where one is not."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import demo_model
import kvcache
import numpy
import torch
import torch_kvcache
from demo_model import DemoError
from transformers import DynamicCache, StaticCache

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "FORMAT.md"
STORE = ROOT / ".cache" / "demo"
WINDOW = 512
LENGTHS = (WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW)
STEPS = 8
LONGEST = 2048

MODELS: dict[str, Callable[[Path], Path]] = {
    "SmolLM2-135M-Instruct": demo_model.smollm2,
    "Gemma 3 270M": demo_model.gemma3,
}


def go_on(model: Any, cache: Any, token: int) -> numpy.ndarray[Any, Any]:
    """Goes on greedily from a cache with one token; returns the logits, [steps, vocabulary]."""
    steps = []
    with torch.no_grad():
        for _ in range(STEPS):
            output = model(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            logits = output.logits[0, -1]
            token = int(logits.argmax())
            steps.append(logits.float().numpy())
    return numpy.stack(steps)


def empty_cache(kind: str, model: Any) -> Any:
    if kind == "StaticCache":
        return StaticCache(config=model.config, max_cache_len=LONGEST)
    return DynamicCache(config=model.config)


def save_all(model: Any, tokenizer: Any, folder: Path) -> list[dict[str, Any]]:
    """Writes a file for each kind of cache and length, and what memory goes on with beside it."""
    identity = torch_kvcache.full_identity_of(model, tokenizer)
    ids = tokenizer(DOCUMENT.read_text(encoding="utf-8"), return_tensors="pt").input_ids
    jobs = []
    for kind in ("DynamicCache", "StaticCache"):
        for length in LENGTHS:
            prompt, token = ids[:, :length], int(ids[0, length])
            with torch.no_grad():
                cache = model(prompt, past_key_values=empty_cache(kind, model)).past_key_values
            path = folder / f"{kind}-{length}.kvc"
            torch_kvcache.save(path, cache, identity=identity, token_ids=prompt)
            numpy.save(path.with_suffix(".memory.npy"), go_on(model, cache, token))
            jobs.append({"path": str(path), "kind": kind, "length": length, "token": token})
    return jobs


def answer_jobs(model_folder: Path, jobs_path: Path) -> None:
    """The second process: loads each file and goes on from it."""
    model, tokenizer = demo_model.load(model_folder)
    identity = torch_kvcache.full_identity_of(model, tokenizer)
    for job in json.loads(jobs_path.read_text(encoding="utf-8")):
        loaded = torch_kvcache.load(job["path"], expected_identity=identity)
        logits = go_on(model, loaded.cache, job["token"])
        numpy.save(Path(job["path"]).with_suffix(".file.npy"), logits)


def layer_kinds(path: str) -> str:
    """Returns the kinds of a file's layers with their numbers: `15 sliding, 3 full`."""
    with kvcache.open_cache(path) as file:
        manifest = file.metadata["tensor_manifest"]
    kinds = [layer["kind"] for layer in manifest.get("layers", [])]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))


def try_model(name: str, model_folder: Path, threads: int) -> bool:
    """Prints one line for each file of a model; returns whether all went on exactly."""
    model, tokenizer = demo_model.load(model_folder)
    good = True
    with tempfile.TemporaryDirectory(prefix="kinds-", dir=STORE) as work:
        jobs = save_all(model, tokenizer, Path(work))
        jobs_path = Path(work) / "jobs.json"
        jobs_path.write_text(json.dumps(jobs), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, __file__, str(model_folder), str(jobs_path), str(threads)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise DemoError(f"the new process failed:\n{done.stderr}")
        for job in jobs:
            path = Path(job["path"])
            memory, file = (
                numpy.load(path.with_suffix(f".{way}.npy")) for way in ("memory", "file")
            )
            same = memory.tobytes() == file.tobytes()
            good = good and same
            print(
                f"{name:<22} {job['kind']:<13} {layer_kinds(job['path']):<34} {job['length']:>6} "
                f"{path.stat().st_size:>12,}  {'yes' if same else 'NO'}",
                flush=True,
            )
    return good


def main() -> int:
    demo_model.be_quiet()
    threads = torch.get_num_threads()
    if len(sys.argv) == 4:
        torch.set_num_threads(int(sys.argv[3]))
        answer_jobs(Path(sys.argv[1]), Path(sys.argv[2]))
        return 0
    STORE.mkdir(parents=True, exist_ok=True)
    folders = {name: unpacked(STORE) for name, unpacked in MODELS.items()}
    print(
        f"{'model':<22} {'cache':<13} {'layers':<34} {'tokens':>6} {'file bytes':>12}  "
        f"{STEPS} steps exact"
    )
    results = [try_model(name, folder, threads) for name, folder in folders.items()]
    good = all(results)
    print(f"\n{'Everything is exact' if good else 'NOT everything is exact'}.")
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (DemoError, kvcache.CacheError, OSError) as failure:
        print(f"demo: {failure}", file=sys.stderr)
        sys.exit(1)
