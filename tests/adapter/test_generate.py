# test_generate.py: a model goes on from a loaded cache exactly as from the one in memory.
# SPDX-License-Identifier: Apache-2.0
# mypy: allow-untyped-calls, allow-subclassing-any
from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_kvcache
import transformers
from adapter_help import IDENTITY, prefill, read_dynamic_cache, run_python, tiny_llama
from transformers import GPT2Config, Qwen2Config

PREFIX, MORE = 60, 7


def gpt2() -> Any:
    config = GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=2, n_positions=256)
    torch.manual_seed(3)
    return transformers.GPT2LMHeadModel(config).eval()


def qwen2() -> Any:
    config = Qwen2Config(
        vocab_size=97, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=1,
    )  # fmt: skip
    torch.manual_seed(3)
    return transformers.Qwen2ForCausalLM(config).eval()


MODELS: dict[str, Callable[[], Any]] = {
    "llama": tiny_llama,
    "llama in bf16": lambda: tiny_llama().to(torch.bfloat16),
    "llama in f16": lambda: tiny_llama().to(torch.float16),
    "gpt2": gpt2,
    "qwen2": qwen2,
}


def ids_of(batch: int) -> torch.Tensor:
    numbers = torch.Generator().manual_seed(5)
    return torch.randint(2, 97, (batch, PREFIX + MORE), generator=numbers)


def go_on(model: Any, ids: torch.Tensor, cache: Any, **kwargs: Any) -> tuple[Any, torch.Tensor]:
    """Returns the tokens of a greedy continuation and the logits of every step."""
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), past_key_values=cache, max_new_tokens=20,
        do_sample=False, pad_token_id=0, return_dict_in_generate=True, output_logits=True, **kwargs,
    )  # fmt: skip
    return output.sequences.tolist(), torch.stack(output.logits)


@pytest.mark.parametrize(("name", "batch"), [("llama", 1), *((name, 3) for name in MODELS)])
def test_generate_goes_on_identically(tmp_path: Path, name: str, batch: int) -> None:
    model, ids = MODELS[name](), ids_of(batch)
    cache = prefill(model, ids[:, :PREFIX])
    torch_kvcache.write_dynamic_cache(tmp_path / "a.kvc", cache, **IDENTITY)
    loaded, metadata = read_dynamic_cache(tmp_path / "a.kvc", IDENTITY)
    assert metadata["sequence_length"] == loaded.get_seq_length() == PREFIX
    tokens, logits = go_on(model, ids, cache)
    loaded_tokens, loaded_logits = go_on(model, ids, loaded)
    assert len(tokens[0]) == PREFIX + MORE + 20
    assert loaded_tokens == tokens
    assert torch.equal(loaded_logits.view(torch.uint8), logits.view(torch.uint8))
    assert float(logits.float().abs().max()) > 0


def test_the_loaded_cache_matters(tmp_path: Path) -> None:
    """What the tests above compare depends on the cache: another prefix gives other logits."""
    model, ids = tiny_llama(), ids_of(1)
    torch_kvcache.write_dynamic_cache(
        tmp_path / "a.kvc", prefill(model, ids.flip(1)[:, :PREFIX]), **IDENTITY
    )
    other, _ = read_dynamic_cache(tmp_path / "a.kvc")
    _, logits = go_on(model, ids, prefill(model, ids[:, :PREFIX]))
    _, other_logits = go_on(model, ids, other)
    assert not torch.equal(logits[0], other_logits[0])


def test_one_file_serves_several_continuations(tmp_path: Path) -> None:
    model, ids = tiny_llama(), ids_of(1)
    torch_kvcache.write_dynamic_cache(
        tmp_path / "a.kvc", prefill(model, ids[:, :PREFIX]), **IDENTITY
    )
    first, _ = read_dynamic_cache(tmp_path / "a.kvc")
    second = copy.deepcopy(first)
    go_on(model, ids.flip(1).roll(1), first)
    again, _ = read_dynamic_cache(tmp_path / "a.kvc")
    want = go_on(model, ids, prefill(model, ids[:, :PREFIX]))
    for cache in (second, again):
        got = go_on(model, ids, cache)
        assert got[0] == want[0]
        assert torch.equal(got[1], want[1])


def test_a_continued_and_cropped_cache_is_saved_again(tmp_path: Path) -> None:
    model, ids = tiny_llama(), ids_of(1)
    torch_kvcache.write_dynamic_cache(
        tmp_path / "a.kvc", prefill(model, ids[:, :PREFIX]), **IDENTITY
    )
    loaded, _ = read_dynamic_cache(tmp_path / "a.kvc")
    go_on(model, ids, loaded)
    loaded.crop(PREFIX - loaded.get_seq_length())
    torch_kvcache.write_dynamic_cache(tmp_path / "b.kvc", loaded, **IDENTITY)
    assert (tmp_path / "a.kvc").read_bytes() == (tmp_path / "b.kvc").read_bytes()


def test_beams_and_batches_go_on(tmp_path: Path) -> None:
    model, ids = tiny_llama(), ids_of(2)
    cache = prefill(model, ids[:, :PREFIX])
    torch_kvcache.write_dynamic_cache(tmp_path / "a.kvc", cache, **IDENTITY)
    loaded, _ = read_dynamic_cache(tmp_path / "a.kvc")
    for one in (cache, loaded):
        one.batch_repeat_interleave(2)
        one.reorder_cache(torch.tensor([3, 0, 1, 1]))
    wide = ids.repeat_interleave(2, 0)[torch.tensor([3, 0, 1, 1])]
    want, got = go_on(model, wide, cache), go_on(model, wide, loaded)
    assert got[0] == want[0]
    assert torch.equal(got[1], want[1])


CHILD = """
import json, sys
sys.path.insert(0, sys.argv[1])
import torch, torch_kvcache
from pathlib import Path
from test_generate import go_on, ids_of
from transformers import LlamaForCausalLM
folder = Path(sys.argv[2])
model = LlamaForCausalLM.from_pretrained(folder / "model").eval()
torch.set_num_threads(int(sys.argv[3]))
cache, _ = torch_kvcache.read_dynamic_cache(folder / "a.kvc")
tokens, logits = go_on(model, ids_of(2), cache)
torch.save(logits, folder / "logits.pt")
(folder / "tokens.json").write_text(json.dumps(tokens))
"""


def test_a_new_process_goes_on_identically(tmp_path: Path) -> None:
    tiny_llama().save_pretrained(tmp_path / "model")
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "model").eval()
    ids = ids_of(2)
    cache = prefill(model, ids[:, :PREFIX])
    torch_kvcache.write_dynamic_cache(tmp_path / "a.kvc", cache, **IDENTITY)
    (tmp_path / "child.py").write_text(CHILD)
    done = run_python(
        tmp_path / "child.py", Path(__file__).parent, tmp_path, str(torch.get_num_threads())
    )
    assert done.returncode == 0, done.stderr
    tokens, logits = go_on(model, ids, cache)
    assert json.loads((tmp_path / "tokens.json").read_text()) == tokens
    child_logits = torch.load(tmp_path / "logits.pt", weights_only=True)
    assert torch.equal(child_logits.view(torch.uint8), logits.view(torch.uint8))
