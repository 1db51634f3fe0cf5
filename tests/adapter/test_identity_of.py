# test_identity_of.py: identity_of names a model and a tokenizer, and nothing that does not matter.
# SPDX-License-Identifier: Apache-2.0
# mypy: allow-untyped-calls, allow-subclassing-any
from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import kvcache
import pytest
import torch
import torch_kvcache
import transformers
from adapter_help import TRANSFORMERS_5, prefill, read_dynamic_cache, run_python, tiny_llama
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    PreTrainedTokenizerFast,
)

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def word_tokenizer(**changes: Any) -> Any:
    """Returns a fast tokenizer with merges, special and padding tokens."""
    vocabulary = {letter: i for i, letter in enumerate("abcdefgh")} | {"ab": 8, "cd": 9, "</s>": 10}
    backend = Tokenizer(models.BPE(vocabulary | changes, [("a", "b"), ("c", "d")]))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.BPEDecoder()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="</s>", pad_token="</s>", model_max_length=64
    )


def of(model: Any = None, tokenizer: Any = None) -> dict[str, Any]:
    return torch_kvcache.identity_of(model or tiny_llama(), tokenizer or word_tokenizer())


# ---- The whole ---------------------------------------------------------------------------------


def test_it_is_what_saving_takes(tmp_path: Path) -> None:
    model = tiny_llama()
    identity = of(model)
    assert list(identity) == ["model_revision", "tokenizer_sha256", "rope_theta"]
    cache = prefill(model, torch.arange(2, 30).reshape(1, -1))
    torch_kvcache.write_dynamic_cache(tmp_path / "a.kvc", cache, **identity)
    read_dynamic_cache(tmp_path / "a.kvc", identity)
    other = of(tiny_llama(seed=1, rope_theta=5e5), word_tokenizer(x=11))
    with pytest.raises(kvcache.CacheIdentityError) as caught:
        read_dynamic_cache(tmp_path / "a.kvc", other)
    assert {one.field for one in caught.value.differences} == set(identity)


def test_it_is_the_same_in_another_process_with_one_thread(tmp_path: Path) -> None:
    tiny_llama().save_pretrained(tmp_path / "model")
    word_tokenizer().save_pretrained(tmp_path / "model")
    script = tmp_path / "child.py"
    script.write_text(
        "import json, os, sys\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "import torch_kvcache\n"
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        "model = AutoModelForCausalLM.from_pretrained(sys.argv[1])\n"
        "tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])\n"
        "print(json.dumps(torch_kvcache.identity_of(model, tokenizer)))\n"
    )
    done = run_python(script, tmp_path / "model")
    assert done.returncode == 0, done.stderr
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert json.loads(done.stdout) == of(model, tokenizer)


# ---- The weights' digest -----------------------------------------------------------------------


def test_the_digest_is_the_documented_one() -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=7, n_embd=4, n_layer=1, n_head=1, n_positions=8))
    lines = b""
    for name, tensor in sorted(model.state_dict().items()):
        values = hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()
        dtype = str(tensor.dtype).removeprefix("torch.")
        lines += json.dumps([name, dtype, list(tensor.shape), values]).encode() + b"\n"
    assert of(model)["model_revision"] == f"weights-sha256:{hashlib.sha256(lines).hexdigest()}"


def test_equal_weights_have_equal_digests() -> None:
    first, second = tiny_llama(), tiny_llama()
    want = of(first)["model_revision"]
    prefill(first, torch.arange(2, 30).reshape(1, -1))
    first.generate(torch.arange(2, 9).reshape(1, -1), max_new_tokens=3, do_sample=False)
    assert of(first)["model_revision"] == want
    # The same values, registered in another order and laid out otherwise.
    layer = second.model.layers[0].mlp
    for name in ("gate_proj", "up_proj"):
        module = layer._modules.pop(name)
        module.weight.data = module.weight.data.t().contiguous().t()
        layer._modules[name] = module
    assert list(first.state_dict()) != list(second.state_dict())
    assert of(second)["model_revision"] == want


def change_value(model: Any) -> None:
    with torch.no_grad():
        model.model.layers[2].self_attn.v_proj.weight[5, 6] += 1e-6


def change_shape(model: Any) -> None:
    weight = model.model.layers[0].self_attn.o_proj.weight
    weight.data = weight.data.reshape(-1, 24)


def change_name(model: Any) -> None:
    model.model.extra = model.model._modules.pop("norm")


def change_dtype(model: Any) -> None:
    model.model.norm.half()


def swap_values(model: Any) -> None:
    one, two = model.model.layers[0], model.model.layers[1]
    one.input_layernorm, two.input_layernorm = two.input_layernorm, one.input_layernorm
    one.mlp, two.mlp = two.mlp, one.mlp


def add_buffer(model: Any) -> None:
    model.register_buffer("scale", torch.ones(1))


CHANGES = [change_value, change_shape, change_name, change_dtype, swap_values, add_buffer]


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_gives_another_digest(change: Any) -> None:
    model = tiny_llama()
    before = of(model)["model_revision"]
    change(model)
    after = of(model)["model_revision"]
    assert after.startswith("weights-sha256:")
    assert after != before


def test_signs_of_zero_and_nans_count() -> None:
    model = tiny_llama()
    weight = model.model.norm.weight
    digests = set()
    for value in (0.0, -0.0, float("nan")):
        with torch.no_grad():
            weight[0] = value
        digests.add(of(model)["model_revision"])
    assert len(digests) == 3


def test_tied_weights() -> None:
    tied = tiny_llama(tie_word_embeddings=True)
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
    before = of(tied)["model_revision"]
    tied.lm_head.weight = torch.nn.Parameter(tied.lm_head.weight.detach().clone())
    assert of(tied)["model_revision"] == before


def test_quantised_weights_of_quanto() -> None:
    quanto = pytest.importorskip("optimum.quanto", reason="optimum-quanto is not installed here")
    digests = set()
    for weights in (quanto.qint8, quanto.qint4):
        model = tiny_llama(hidden_size=128, intermediate_size=128)
        quanto.quantize(model, weights=weights)
        quanto.freeze(model)
        digests.add(of(model)["model_revision"])
        digests.add(of(model)["model_revision"])
        with torch.no_grad():
            model.model.layers[0].mlp.up_proj.weight._scale[0] *= 2
        digests.add(of(model)["model_revision"])
    assert len(digests) == 4


def test_weights_made_of_several_tensors() -> None:
    digests = set()
    for last in (3.0, 4.0):
        model = tiny_llama()
        rows = [torch.ones(2), torch.tensor([1.0, 2.0, last])]
        model.register_buffer("ragged", torch.nested.nested_tensor(rows, layout=torch.jagged))
        digests |= {of(model)["model_revision"], of(model)["model_revision"]}
    assert len(digests) == 2


def test_weights_that_are_elsewhere_are_refused() -> None:
    with torch.device("meta"):
        model = tiny_llama()
    with pytest.raises(kvcache.UnsupportedCacheError, match="pass a model_revision") as caught:
        of(model)
    assert "meta" in str(caught.value)


# ---- Commits -----------------------------------------------------------------------------------


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """A hub cache that holds one commit of one model."""
    repository = tmp_path / "hub" / "models--someone--tiny"
    tiny_llama().save_pretrained(repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    return tmp_path / "hub"


def snapshot(hub: Path) -> Path:
    return hub / "models--someone--tiny" / "snapshots" / COMMIT


def test_a_model_of_a_snapshot_folder_has_its_commit(hub: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(snapshot(hub))
    assert of(model)["model_revision"] == COMMIT


def test_a_model_of_the_hub(hub: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained("someone/tiny", cache_dir=hub)
    if TRANSFORMERS_5:
        # The loaded model does not know its commit: no guess is made.
        assert of(model) == of(tiny_llama())
    else:
        assert model.config._commit_hash == COMMIT
        assert of(model)["model_revision"] == COMMIT


def test_a_commit_can_be_forgotten(hub: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(snapshot(hub))
    change_value(model)
    assert of(model)["model_revision"] == COMMIT
    model.config._commit_hash = None
    model.config._name_or_path = ""
    assert of(model)["model_revision"].startswith("weights-sha256:")


@pytest.mark.parametrize("commit", ["main", "v1.0", COMMIT[:-1], COMMIT.upper(), 7])
def test_what_is_no_commit_is_not_trusted(commit: object) -> None:
    model = tiny_llama()
    model.config._commit_hash = commit
    assert of(model)["model_revision"].startswith("weights-sha256:")


@pytest.mark.parametrize("merged", [False, True])
def test_a_commit_is_not_trusted_with_an_adapter(hub: Path, merged: bool) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed here")
    model = AutoModelForCausalLM.from_pretrained(snapshot(hub))
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    torch.manual_seed(1)
    adapted = peft.get_peft_model(model, config)
    if merged:
        adapted.merge_adapter()
    first = of(adapted)["model_revision"]
    assert first.startswith("weights-sha256:")
    assert first != of(tiny_llama())["model_revision"]
    assert of(adapted.get_base_model())["model_revision"].startswith("weights-sha256:")
    with torch.no_grad():
        next(p for name, p in adapted.named_parameters() if "lora_B" in name)[0, 0] += 1
    assert of(adapted)["model_revision"] != first


def test_the_active_adapter_and_its_strength_count() -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed here")
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(tiny_llama(), config, adapter_name="fr")
    adapted.add_adapter("de", config)
    names = set()
    for name in ("fr", "de"):
        adapted.set_adapter(name)
        names.add(of(adapted)["model_revision"])
    with adapted.disable_adapter():
        names.add(of(adapted)["model_revision"])
    for module in adapted.modules():
        if isinstance(getattr(module, "scaling", None), dict):
            module.scaling["de"] *= 3
    names.add(of(adapted)["model_revision"])
    assert len(names) == 4


def test_compiling_changes_nothing() -> None:
    model = tiny_llama()
    before = of(model)
    model.model.layers[0] = torch.compile(model.model.layers[0])
    assert of(model) == before


def test_a_commit_is_not_trusted_with_an_adapter_of_transformers(hub: Path) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed here")
    model = AutoModelForCausalLM.from_pretrained(snapshot(hub))
    model.add_adapter(peft.LoraConfig(r=2, target_modules=["q_proj"]))
    assert of(model)["model_revision"].startswith("weights-sha256:")
    model.disable_adapters()
    assert of(model)["model_revision"].startswith("weights-sha256:")


def test_a_commit_is_not_trusted_with_injected_layers(hub: Path) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed here")
    model = AutoModelForCausalLM.from_pretrained(snapshot(hub))
    peft.inject_adapter_in_model(peft.LoraConfig(r=2, target_modules=["q_proj"]), model)
    if hasattr(model, "peft_config"):
        del model.peft_config
    assert of(model)["model_revision"].startswith("weights-sha256:")


def test_a_commit_is_not_trusted_with_quantised_weights(hub: Path) -> None:
    pytest.importorskip("optimum.quanto", reason="optimum-quanto is not installed here")
    pytest.importorskip("accelerate", reason="accelerate is not installed here")
    model = AutoModelForCausalLM.from_pretrained(
        snapshot(hub), quantization_config=transformers.QuantoConfig(weights="int8")
    )
    assert of(model)["model_revision"].startswith("weights-sha256:")


# ---- The tokenizer -----------------------------------------------------------------------------


def digest(tokenizer: Any) -> str:
    value: str = of(tiny_llama(), tokenizer)["tokenizer_sha256"]
    assert len(value) == 64
    return value


def test_use_with_padding_or_truncation_changes_nothing() -> None:
    tokenizer = word_tokenizer()
    before = digest(tokenizer)
    untouched = tokenizer.backend_tokenizer.to_str()
    tokenizer(["ab cd", "a"], padding=True)
    assert tokenizer.backend_tokenizer.to_str() != untouched
    assert digest(tokenizer) == before
    tokenizer(["ab cd a b", "a"], padding="max_length", truncation=True, max_length=3)
    assert digest(tokenizer) == before
    tokenizer.padding_side = "left"
    tokenizer.model_max_length = 7
    assert digest(tokenizer) == before
    assert tokenizer.backend_tokenizer.padding is not None


def test_the_folder_does_not_matter(tmp_path: Path) -> None:
    first = word_tokenizer()
    first.save_pretrained(tmp_path / "one")
    first.save_pretrained(tmp_path / "another" / "place")
    want = digest(AutoTokenizer.from_pretrained(tmp_path / "one"))
    assert digest(AutoTokenizer.from_pretrained(tmp_path / "another" / "place")) == want
    assert digest(first.backend_tokenizer) == digest(first)


def test_a_chat_template_does_not_matter() -> None:
    tokenizer = word_tokenizer()
    before = digest(tokenizer)
    tokenizer.chat_template = "{{ messages }}"
    assert digest(tokenizer) == before


def test_what_gives_other_ids_gives_another_digest() -> None:
    digests = {digest(word_tokenizer())}
    digests.add(digest(word_tokenizer(x=11)))
    digests.add(digest(word_tokenizer(a=1, b=0)))
    added = word_tokenizer()
    added.add_tokens(["gh"])
    digests.add(digest(added))
    special = word_tokenizer()
    special.add_special_tokens({"additional_special_tokens": ["<x>"]})
    digests.add(digest(special))
    other = word_tokenizer()
    other.backend_tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    digests.add(digest(other))
    assert len(digests) == 6


def test_merges_count() -> None:
    vocabulary = {letter: i for i, letter in enumerate(["a", "b", "c", "ab", "bc", "abc"])}
    first = Tokenizer(models.BPE(vocabulary, [("a", "b"), ("b", "c")]))
    second = Tokenizer(models.BPE(vocabulary, [("b", "c"), ("a", "b")]))
    assert first.encode("abc").ids != second.encode("abc").ids
    assert digest(first) != digest(second)


@pytest.mark.parametrize("kind", ["slow", "none", "text"])
def test_tokenizers_without_a_pipeline_are_refused(tmp_path: Path, kind: str) -> None:
    tokenizer: Any = {"none": None, "text": "ab"}.get(kind)
    if kind == "slow":
        (tmp_path / "vocab.txt").write_text("[UNK]\n[PAD]\n[CLS]\n[SEP]\n[MASK]\nab\n")
        tokenizer = transformers.models.canine.tokenization_canine.CanineTokenizer()
    with pytest.raises(kvcache.UnsupportedCacheError, match="tokenizer_sha256"):
        torch_kvcache.identity_of(tiny_llama(), tokenizer)


# ---- The rotary embedding ----------------------------------------------------------------------


@pytest.mark.parametrize("theta", [10000.0, 500000, 1e6])
def test_theta_of_a_config(theta: float) -> None:
    value = of(tiny_llama(rope_theta=theta))["rope_theta"]
    assert value == theta
    assert isinstance(value, float)


def test_theta_of_the_older_field() -> None:
    class OldConfig(LlamaConfig):
        """A config whose only field is the older one."""

    model = tiny_llama()
    config = OldConfig()
    if TRANSFORMERS_5:
        config.rope_parameters = None
    config.rope_theta = 12345.0
    model.config = config
    assert of(model)["rope_theta"] == 12345.0


def test_no_rotary_embedding_is_zero() -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=7, n_embd=4, n_layer=1, n_head=1, n_positions=8))
    value = of(model)["rope_theta"]
    assert value == 0
    assert isinstance(value, float)


def test_several_thetas_give_that_of_full_attention() -> None:
    config = transformers.Gemma3TextConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=6,
        num_attention_heads=1, num_key_value_heads=1, head_dim=16, sliding_window=8,
    )  # fmt: skip
    model = transformers.Gemma3ForCausalLM(config)
    assert of(model)["rope_theta"] == 1e6


@pytest.mark.skipif(not TRANSFORMERS_5, reason="Transformers 4 has one theta in a config")
def test_thetas_that_differ_and_have_no_plain_one() -> None:
    model = tiny_llama()
    model.config.rope_parameters = {"a": {"rope_theta": 1.0}, "b": {"rope_theta": 2.0}}
    with pytest.raises(kvcache.UnsupportedCacheError, match="Pass a rope_theta"):
        of(model)
    model.config.rope_parameters = {"a": {"rope_theta": 2.0}, "b": {"rope_theta": 2.0}}
    assert of(model)["rope_theta"] == 2.0


def test_a_rotary_embedding_without_a_base_is_refused() -> None:
    config = transformers.GPTJConfig(
        vocab_size=7, n_embd=8, n_layer=1, n_head=1, rotary_dim=4, n_positions=8
    )
    if getattr(config, "rope_parameters", None):
        pytest.skip("this config names its base")
    with pytest.raises(kvcache.UnsupportedCacheError, match="does not name the base"):
        of(transformers.GPTJForCausalLM(config))


def test_nothing_is_asked_of_a_hub() -> None:
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert of()["rope_theta"] == 10000.0
