# test_readme.py: the Python of README.md runs as it stands, on a small model.
# SPDX-License-Identifier: Apache-2.0
# mypy: allow-untyped-calls, allow-subclassing-any
from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_help import REPOSITORY
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def save_model(folder: Path) -> None:
    """Saves a random Llama and a tokenizer of single bytes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=len(letters),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)


def test_the_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    block = re.search(r"```python\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
    assert block is not None
    save_model(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {
        "NAME": str(tmp_path / "model"),
        "document": "A KVC1 file begins with a header of 128 bytes.",
        "question": " How long is the header?",
    }
    exec(compile(block.group(1), "README.md", "exec"), names)
    printed = capsys.readouterr().out
    cold = names["model"].generate(names["ids"], max_new_tokens=50)
    assert cold.shape[1] == names["ids"].shape[1] + 50
    assert printed == names["tokenizer"].decode(cold[0, -50:]) + "\n"
    assert (tmp_path / "doc.kvc").is_file()
