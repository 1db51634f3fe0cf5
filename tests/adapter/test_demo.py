# test_demo.py: the demo's promises, tried with a small model of our own.
# SPDX-License-Identifier: Apache-2.0
# mypy: allow-untyped-calls, allow-subclassing-any
from __future__ import annotations

from pathlib import Path
from typing import Any

import kvcache
import pytest
from adapter_help import REPOSITORY, run_python, tiny_llama
from transformers import MistralConfig, MistralForCausalLM, PreTrainedTokenizerFast

DEMO = REPOSITORY / "examples" / "demo.py"


def byte_tokenizer() -> Any:
    """Returns a tokenizer whose tokens are single bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def test_the_demo_keeps_its_promises(tmp_path: Path) -> None:
    tiny_llama(vocab_size=256, max_position_embeddings=1024).save_pretrained(tmp_path / "model")
    byte_tokenizer().save_pretrained(tmp_path / "model")
    done = run_python(
        DEMO, "--model", tmp_path / "model", "--store", tmp_path / "store", "--tokens", "300"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for words in (
        "tokens and logits identical to memory",
        "refused, CacheIntegrityError",
        "refused, CacheIdentityError",
        "Everything is as promised.",
    ):
        assert words in done.stdout
    for field in ("model_revision", "tokenizer_sha256", "rope_theta"):
        assert f"    {field}\n" in done.stdout
    info = kvcache.verify_cache(tmp_path / "store" / "document.kvc")
    assert info.root in done.stdout
    assert f"{info.file_bytes:,} bytes" in done.stdout


def test_the_demo_fails_for_a_model_whose_cache_is_not_stored(tmp_path: Path) -> None:
    config = MistralConfig(
        vocab_size=256, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, sliding_window=64,
    )  # fmt: skip
    MistralForCausalLM(config).save_pretrained(tmp_path / "model")
    byte_tokenizer().save_pretrained(tmp_path / "model")
    done = run_python(
        DEMO, "--model", tmp_path / "model", "--store", tmp_path / "store", "--tokens", "300"
    )
    assert done.returncode == 1
    assert done.stderr.startswith("demo: cannot store this cache: layer 0 of the cache is a ")
    assert "DynamicSlidingWindowLayer" in done.stderr


@pytest.mark.parametrize("name", ["empty", "absent"])
def test_the_demo_says_when_there_is_no_model(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    done = run_python(DEMO, "--model", tmp_path / name, "--store", tmp_path / "store")
    assert done.returncode == 1
    assert "holds no model: it has no config.json" in done.stderr
