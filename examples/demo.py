# demo.py: saves a real model's KV cache, proves it, and goes on from it in another process.
# SPDX-License-Identifier: Apache-2.0
"""A document is read by the model once, and the KV cache of that is saved. A new process verifies
and loads the file, and answers a question about the document. Its tokens and logits must equal
those of going on in memory, bit for bit. Then one byte is changed, and another model's identity is
tried: both must be refused. Ends with 0 when everything was so, and with 1 when it was not."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import demo_model
import kvcache
import numpy
import torch
import torch_kvcache
from demo_model import Answer, DemoError

REPOSITORY = Path(__file__).resolve().parents[1]
STORE = REPOSITORY / ".cache" / "demo"
# The first of these that is there is read; the format's specification is what it is meant to be.
DOCUMENTS = ("docs/FORMAT.md", "README.md", "include/kvc.h")
QUESTION = "What is the size of the header in bytes?"
NEW_TOKENS = 24


class Prompt(NamedTuple):
    """The prompt's ids, and how many of them belong to the part that is saved."""

    ids: list[int]
    prefix_tokens: int
    document: str


class Run(NamedTuple):
    """The answers of the three ways, and what was measured."""

    memory: Answer
    loaded: Answer
    cold: Answer
    prefill_seconds: float
    save_seconds: float
    load_seconds: float
    info: kvcache.CacheInfo


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Saves a model's KV cache, proves it, and continues it in another process."
    )
    parser.add_argument(
        "--model",
        default=os.environ.get("MODEL") or None,
        help="folder of a causal model (default: $MODEL, else SmolLM2-135M-Instruct)",
    )
    parser.add_argument("--tokens", type=int, default=3000, help="tokens of the document to read")
    parser.add_argument(
        "--store", type=Path, default=STORE, help="folder for the model and the cache file"
    )
    return parser.parse_args()


def make_store(store: Path) -> None:
    """Makes the folder, which git is told to ignore."""
    store.mkdir(parents=True, exist_ok=True)
    (store / ".gitignore").write_text("*\n", encoding="utf-8")


def make_prompt(model: Any, tokenizer: Any, document_tokens: int) -> Prompt:
    """Turns document and question into ids, once; the saved part is a beginning of these ids.

    Two texts that are tokenised apart do not always give the ids of the whole, since a token may
    reach over the border.
    """
    room = getattr(model.config, "max_position_embeddings", None) or document_tokens + 256
    limit = max(1, min(document_tokens, room - 256))
    name = next(name for name in DOCUMENTS if (REPOSITORY / name).is_file())
    text = (REPOSITORY / name).read_text(encoding="utf-8")
    places = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    text = text[: places["offset_mapping"][:limit][-1][1]]
    message = f"Read this document.\n\n{text}\n\n{QUESTION}"
    if tokenizer.chat_template:
        message = tokenizer.apply_chat_template(
            [{"role": "user", "content": message}], tokenize=False, add_generation_prompt=True
        )
    whole = tokenizer(
        message, add_special_tokens=not tokenizer.chat_template, return_offsets_mapping=True
    )
    border = message.rindex(QUESTION)
    prefix = next(i for i, (_, end) in enumerate(whole["offset_mapping"]) if end > border)
    return Prompt(list(whole["input_ids"]), prefix, f"{name}, {limit:,} tokens of it")


def prefill_and_save(
    model: Any, prompt: Prompt, identity: dict[str, Any], path: Path
) -> tuple[Any, float, float]:
    """Returns the cache in memory, and the seconds that prefill and save took."""
    start = time.perf_counter()
    with torch.no_grad():
        output = model(
            torch.tensor([prompt.ids[: prompt.prefix_tokens]]), use_cache=True, logits_to_keep=1
        )
    prefilled = time.perf_counter()
    torch_kvcache.write_dynamic_cache(path, output.past_key_values, **identity)
    return output.past_key_values, prefilled - start, time.perf_counter() - prefilled


def answer_in_new_process(folder: Path, prompt: Prompt, path: Path) -> tuple[Answer, float]:
    """Returns the answer of demo_answer.py, and the seconds that load and verify took."""
    with tempfile.TemporaryDirectory(prefix="kvc-demo-") as work:
        job = Path(work) / "job.json"
        facts = {
            "model": os.fspath(folder),
            "cache": os.fspath(path),
            "ids": prompt.ids,
            "new_tokens": NEW_TOKENS,
            "threads": torch.get_num_threads(),
        }
        job.write_text(json.dumps(facts), encoding="utf-8")
        script = Path(__file__).with_name("demo_answer.py")
        done = subprocess.run(
            [sys.executable, os.fspath(script), os.fspath(job)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise DemoError(f"the new process failed:\n{done.stderr}")
        result = json.loads((job.parent / "answer.json").read_text(encoding="utf-8"))
        logits = numpy.load(job.parent / "logits.npy")
    answer = Answer(result["tokens"], logits, result["first_token_seconds"])
    return answer, result["load_seconds"]


def same_bits(left: Answer, right: Answer) -> bool:
    """Whether tokens and the logits of every step are equal, bit for bit."""
    return left.tokens == right.tokens and left.logits.tobytes() == right.logits.tobytes()


def compare_cold(memory: Answer, cold: Answer) -> str:
    """Says how a run without reuse compares; a prefill in one piece may round otherwise."""
    tokens = "yes" if memory.tokens == cold.tokens else "no"
    if memory.logits[0].tobytes() == cold.logits[0].tobytes():
        return f"tokens {tokens}, next-step logits yes"
    largest = float(numpy.abs(memory.logits[0] - cold.logits[0]).max())
    return f"tokens {tokens}, next-step logits differ by at most {largest:.1e}"


def say(step: str) -> None:
    """Tells what is going on, at once: some steps take as long as a prefill."""
    print(f"... {step}", flush=True)


def run(folder: Path, model: Any, tokenizer: Any, prompt: Prompt, path: Path) -> Run:
    identity = torch_kvcache.identity_of(model, tokenizer)
    say(f"prefilling {prompt.prefix_tokens:,} tokens, and saving the cache")
    cache, prefill_seconds, save_seconds = prefill_and_save(model, prompt, identity, path)
    info = kvcache.verify_cache(path, identity)
    say("answering in a new process, from the file")
    loaded, load_seconds = answer_in_new_process(folder, prompt, path)
    say("answering here, from the cache in memory")
    memory = demo_model.answer(model, tokenizer, prompt.ids, cache, NEW_TOKENS)
    say("answering here, without a cache\n")
    cold = demo_model.answer(model, tokenizer, prompt.ids, None, NEW_TOKENS)
    return Run(memory, loaded, cold, prefill_seconds, save_seconds, load_seconds, info)


def print_table(result: Run, prompt: Prompt) -> bool:
    """Prints what was measured; returns whether the loaded cache went on as the one in memory."""
    identical = same_bits(result.memory, result.loaded)
    with_file = result.load_seconds + result.loaded.first_token_seconds
    rows = [
        (f"prefill of {prompt.prefix_tokens:,} tokens", f"{result.prefill_seconds:.2f} s"),
        ("save, with fsync", f"{result.save_seconds:.2f} s"),
        ("load and verify in a new process", f"{result.load_seconds:.3f} s"),
        ("first token with the file, loading included", f"{with_file:.2f} s"),
        ("first token without it", f"{result.cold.first_token_seconds:.2f} s"),
        ("file", f"{result.info.file_bytes:,} bytes"),
        ("root", result.info.root),
        ("tokens and logits identical to memory", "yes" if identical else "NO"),
        ("identical to a cold run", compare_cold(result.memory, result.cold)),
    ]
    print("Each time is that of one run: other work on this machine makes it longer.\n")
    width = max(len(name) for name, _ in rows) + 2
    for name, value in rows:
        print(f"  {name:<{width}}{value}")
    return identical


def try_changed_byte(path: Path, info: kvcache.CacheInfo, identity: dict[str, Any]) -> bool:
    """Changes one bit of a copy; returns whether the copy is refused as damaged."""
    place = info.payload_offset + info.payload_span // 2
    with tempfile.TemporaryDirectory(prefix="changed-", dir=path.parent) as work:
        changed = Path(shutil.copy(path, work))
        with changed.open("r+b") as file:
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ 1]))
        print(f"\nOne bit of byte {place} changed, in a copy:")
        try:
            torch_kvcache.read_dynamic_cache(changed, identity)
        except kvcache.CacheIntegrityError as error:
            print(f"  refused, {type(error).__name__}: {error}".replace(f"{work}/", ""))
            return True
    print("  NOT refused")
    return False


def other_identity(identity: dict[str, Any]) -> dict[str, Any]:
    """Returns the identity of a small random model with a tokenizer of its own."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import LlamaConfig, LlamaForCausalLM

    theta = 500000.0 if identity["rope_theta"] == 10000.0 else 10000.0
    facts: dict[str, Any] = {
        "vocab_size": 8,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "rope_theta": theta,
    }
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(LlamaConfig(**facts))  # type: ignore[no-untyped-call]
    words = Tokenizer(WordLevel({"yes": 0, "no": 1}, unk_token="no"))
    return torch_kvcache.identity_of(model, words)


def try_other_model(path: Path, identity: dict[str, Any]) -> bool:
    """Loads the file as another model would; returns whether all three fields are named."""
    other = other_identity(identity)
    print("\nAsked for by another model, whose identity is the expected one:")
    try:
        torch_kvcache.read_dynamic_cache(path, other)
    except kvcache.CacheIdentityError as error:
        print(f"  refused, {type(error).__name__}:")
        for difference in error.differences:
            print(f"    {difference.field}")
            print(f"      expected  {difference.expected}")
            print(f"      found     {difference.found}")
        return {difference.field for difference in error.differences} == set(other)
    print("  NOT refused")
    return False


def main() -> int:
    options = arguments()
    demo_model.be_quiet()
    make_store(options.store)
    folder = Path(options.model) if options.model else demo_model.smollm2(options.store)
    model, tokenizer = demo_model.load(folder)
    prompt = make_prompt(model, tokenizer, options.tokens)
    path = options.store / "document.kvc"
    print(f"model     {folder.name}, f32, {torch.get_num_threads()} threads")
    print(f"document  {prompt.document}")
    print(f"question  {QUESTION}\n", flush=True)
    result = run(folder, model, tokenizer, prompt, path)
    good = print_table(result, prompt)
    text = tokenizer.decode(result.loaded.tokens, skip_special_tokens=True)
    first, _, _ = text.strip().partition("\n")
    print(f"\nAnswer from the loaded cache, its first line:\n  {first}")
    identity = torch_kvcache.identity_of(model, tokenizer)
    good = try_changed_byte(path, result.info, identity) and good
    good = try_other_model(path, identity) and good
    print(f"\n{'Everything is as promised' if good else 'NOT everything is as promised'}.")
    tool = Path(sys.executable).with_name("kvc")
    command = os.path.relpath(tool) if tool.exists() else "kvc"
    print(f"The file stays for you to look at: {command} inspect {os.path.relpath(path)}")
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (DemoError, kvcache.CacheError, OSError) as failure:
        print(f"demo: {failure}", file=sys.stderr)
        sys.exit(1)
