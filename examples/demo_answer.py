# demo_answer.py: the demo's second process, which knows nothing but a model and a cache file.
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import demo_model
import numpy
import torch
import torch_kvcache


def main(job_path: Path) -> int:
    """Does the job described in a JSON file and puts answer.json and logits.npy beside it."""
    job = json.loads(job_path.read_text(encoding="utf-8"))
    demo_model.be_quiet()
    torch.set_num_threads(job["threads"])
    model, tokenizer = demo_model.load(Path(job["model"]))
    identity = torch_kvcache.identity_of(model, tokenizer)

    start = time.perf_counter()
    cache, _ = torch_kvcache.read_dynamic_cache(job["cache"], identity)
    load_seconds = time.perf_counter() - start

    answer = demo_model.answer(model, tokenizer, job["ids"], cache, job["new_tokens"])
    numpy.save(job_path.parent / "logits.npy", answer.logits)
    result = {
        "tokens": answer.tokens,
        "load_seconds": load_seconds,
        "first_token_seconds": answer.first_token_seconds,
    }
    (job_path.parent / "answer.json").write_text(json.dumps(result), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
