# test_full_identity.py: full_identity_of names each setting that changes a cache, and no other.
# SPDX-License-Identifier: Apache-2.0
# mypy: allow-untyped-calls, allow-subclassing-any
from __future__ import annotations

import copy
import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import kvcache
import pytest
import torch
import torch_kvcache
import transformers
from adapter_help import TRANSFORMERS_5, prefill, run_python, tiny_llama
from tokenizers import Tokenizer, models, pre_tokenizers
from torch_kvcache.dtypes import DTYPES
from torch_kvcache.identity import full_identity_of
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

COMMIT = "0123456789abcdef0123456789abcdef01234567"
THREE = ["model_revision", "tokenizer_sha256", "rope_theta"]
REST = ["weights_digest", "rope", "attention", "adapters", "kv_quantization", "compute_dtype"]

SMALL: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip
CONFIGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "gemma3": (
        transformers.Gemma3TextConfig,
        SMALL | {"head_dim": 8, "num_hidden_layers": 6, "sliding_window": 16},
    ),
    "gpt2": (
        transformers.GPT2Config,
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 64},
    ),
    "gpt_oss": (
        transformers.GptOssConfig,
        SMALL | {"head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
    "deepseek_v3": (
        transformers.DeepseekV3Config,
        SMALL | {
            "moe_intermediate_size": 8, "n_routed_experts": 4, "n_group": 2, "topk_group": 1,
            "num_experts_per_tok": 2, "first_k_dense_replace": 1, "kv_lora_rank": 8,
            "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8,
            "num_key_value_heads": 4,
        },
    ),
    "llama": (transformers.LlamaConfig, SMALL),
    "qwen3": (transformers.Qwen3Config, SMALL), "mistral": (transformers.MistralConfig, SMALL),
    "phi3": (transformers.Phi3Config, SMALL), "gpt_neox": (transformers.GPTNeoXConfig, SMALL),
    "olmo3": (transformers.Olmo3Config, SMALL), "smollm3": (transformers.SmolLM3Config, SMALL),
    "bart": (
        transformers.BartConfig,
        {
            "d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 8,
            "encoder_attention_heads": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 8,
            "vocab_size": 64,
        },
    ),
}  # fmt: skip


def make(kind: str, **changes: Any) -> Any:
    """Returns a tiny random model of one kind, with the same weights at every call."""
    config, facts = CONFIGS[kind]
    # A config keeps and changes the mappings that it is given.
    whole = config(**copy.deepcopy(facts | changes))
    torch.manual_seed(0)
    if kind == "bart":
        return transformers.BartForConditionalGeneration(whole).eval()
    return AutoModelForCausalLM.from_config(whole).eval()


def word_tokenizer() -> Any:
    backend = Tokenizer(models.BPE({letter: i for i, letter in enumerate("abcdefgh")}, []))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="a")


TOKENIZER = word_tokenizer()


def of(model: Any, **kwargs: Any) -> dict[str, Any]:
    identity: dict[str, Any] = full_identity_of(model, TOKENIZER, **kwargs)
    # Whatever it returns, the format can hold.
    assert json.loads(json.dumps(identity, allow_nan=False)) == identity
    return identity


def differing(one: Any, other: Any, path: str = "") -> set[str]:
    """Returns the paths at which two identities differ, as an expected identity is compared."""
    if isinstance(one, dict) and isinstance(other, dict):
        found = set()
        for key in one:
            inner = f"{path}.{key}" if path else key
            found |= differing(one[key], other.get(key, differing), inner)
        return found
    return set() if one == other and isinstance(one, bool) == isinstance(other, bool) else {path}


def changed(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    """Returns where two identities differ, whichever of them is the expected one.

    An expected object may lack members that the file has, so that both directions must show the
    difference. The revision of a model without a commit is a digest, and changes with the weights.
    """
    there, back = (differing(*pair) - {"model_revision"} for pair in ((one, other), (other, one)))
    assert bool(there) == bool(back), (there, back)
    return there | back


# ---- The whole ---------------------------------------------------------------------------------


def test_it_holds_the_three_and_the_rest() -> None:
    model = tiny_llama()
    identity = of(model)
    assert list(identity) == THREE + REST
    three = torch_kvcache.identity_of(model, TOKENIZER)
    assert list(three) == THREE
    assert {name: identity[name] for name in THREE} == three
    rest = (identity["adapters"], identity["kv_quantization"], identity["compute_dtype"])
    assert rest == ([], None, "f32")


def test_it_is_the_same_in_another_process_and_folder(tmp_path: Path) -> None:
    script = tmp_path / "child.py"
    script.write_text(
        "import json, os, sys\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from torch_kvcache.identity import full_identity_of\n"
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        "model = AutoModelForCausalLM.from_pretrained(sys.argv[1])\n"
        "tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])\n"
        "print(json.dumps(full_identity_of(model, tokenizer)))\n"
    )
    for folder in ("one", "another place"):
        make("gemma3").save_pretrained(tmp_path / folder)
        TOKENIZER.save_pretrained(tmp_path / folder)
    done = run_python(script, tmp_path / "another place")
    assert done.returncode == 0, done.stderr
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "one")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "one")
    assert json.loads(done.stdout) == full_identity_of(model, tokenizer)


@pytest.mark.parametrize("kind", sorted(set(CONFIGS) - {"bart"}))
def test_it_survives_saving_loading_and_use(tmp_path: Path, kind: str) -> None:
    changes = {"phi3": LONGROPE, "deepseek_v3": DEEPSEEK}.get(kind, {})
    model = make(kind, **changes)
    before = of(model)
    ids = torch.arange(1, 41).reshape(2, 20)
    mask = torch.ones_like(ids)
    mask[0, :7] = 0
    prefill(model, ids, attention_mask=mask)
    model.generate(ids, attention_mask=mask, max_new_tokens=3, do_sample=False, pad_token_id=0)
    TOKENIZER(["a b", "a"], padding=True)
    assert of(model) == before
    model.save_pretrained(tmp_path)
    assert of(AutoModelForCausalLM.from_pretrained(tmp_path)) == before


def test_a_dynamic_rope_that_has_grown_is_the_same() -> None:
    model = make("llama", rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    before = of(model)
    prefill(model, torch.randint(1, 64, (1, 300)))
    assert of(model) == before


def test_what_changes_no_value_changes_nothing() -> None:
    before = of(make("llama"))
    model = make("llama")
    model.config._attn_implementation = "eager"
    model.config.use_cache = False
    model.config.attention_dropout = 0.5
    model.config.initializer_range = 0.5
    model.config.final_logit_softcapping = 30.0
    model.generation_config.temperature = 0.1
    model.requires_grad_(False)
    assert of(model) == before
    if TRANSFORMERS_5:
        model.model.layers[0] = torch.compile(model.model.layers[0])
        assert of(model) == before


# ---- The rotary embedding ----------------------------------------------------------------------

DEFAULT: dict[str, Any] = {
    "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0,
    "mrope_section": None, "mrope_interleaved": False, "others": [],
}  # fmt: skip
BESIDE = dict.fromkeys(("layer_rope_theta", "no_rope_layers", "rope_interleave", "rotary_dim"))
FLAT = DEFAULT | BESIDE
YARN: dict[str, Any] = {
    "rope_type": "yarn", "factor": 40.0, "attention_factor": None, "beta_fast": 32.0,
    "beta_slow": 1.0, "mscale": None, "mscale_all_dim": None, "truncate": True,
    "original_max_position_embeddings": 64,
}  # fmt: skip
DEEPSEEK = {
    "rope_scaling": {
        "type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
        "mscale_all_dim": 0.5, "original_max_position_embeddings": 64,
    }
}  # fmt: skip
FACTORS: dict[str, Any] = {"short_factor": [1.0] * 4, "long_factor": [2.5] * 4}
LONGROPE: dict[str, Any] = {
    "rope_scaling": {"type": "longrope", **FACTORS},
    "original_max_position_embeddings": 64,
}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "factor": 8.0}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}
LENGTH = "original_max_position_embeddings"
# Kinds of models, changes to them, and their rope: the same literals for every Transformers.
ROPES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "none": ("gpt2", {}, {}),
    "default": ("llama", {"rope_theta": 5e5}, FLAT | {"rope_theta": 5e5}),
    "linear": ("llama", {"rope_scaling": {"type": "linear", "factor": 8}}, FLAT | LINEAR),
    "dynamic": (
        "llama", {"rope_scaling": DYNAMIC}, FLAT | DYNAMIC | {"max_position_embeddings": 256},
    ),
    "llama3": ("llama", {"rope_scaling": LLAMA3}, FLAT | LLAMA3),
    "yarn": (
        "gpt_oss", {},
        FLAT | YARN | {"rope_theta": 150000.0, "factor": 32.0, "truncate": False, LENGTH: 4096},
    ),
    "mla": (
        "deepseek_v3", DEEPSEEK,
        FLAT | YARN | {"mscale": 1.0, "mscale_all_dim": 0.5, "rope_interleave": True},
    ),
    "longrope": (
        "phi3", LONGROPE,
        FLAT | FACTORS
        | {"rope_type": "longrope", "factor": 4.0, "attention_factor": None, LENGTH: 64},
    ),
    "partial": ("gpt_neox", {"rotary_pct": 0.5}, FLAT | {"partial_rotary_factor": 0.5}),
    "per layer": (
        "gemma3", {"rope_scaling": LINEAR},
        BESIDE | {"full_attention": DEFAULT | LINEAR | {"rope_theta": 1e6}}
        | {"sliding_attention": DEFAULT, "others": []},
    ),
    # Transformers 5 hands the base of such a config to full attention alone.
    "scaled in full attention only": (
        "olmo3", {"rope_theta": 2e4, "rope_scaling": LINEAR},
        BESIDE | {"full_attention": DEFAULT | LINEAR | {"rope_theta": 2e4}, "others": []}
        | {"sliding_attention": DEFAULT | {"rope_theta": 5e5 if TRANSFORMERS_5 else 2e4}},
    ),
    "not in all layers": (
        "smollm3", {"no_rope_layers": [1, 0]},
        FLAT | {"no_rope_layers": [1, 0], "rope_theta": 2e6},
    ),
    "sections": (
        "llama",
        {"rope_scaling": {"rope_type": "default", "mrope_section": [2, 1, 1], "odd": {"b": 1}}},
        FLAT | {"mrope_section": [2, 1, 1], "others": [["odd", {"b": 1}]]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROPES)
def test_the_rope_is_the_whole_configuration(name: str) -> None:
    kind, changes, want = ROPES[name]
    rope = of(make(kind, **changes))["rope"]
    assert rope == want
    floats = ("rope_theta", "partial_rotary_factor", "factor", "beta_fast")
    assert all(isinstance(rope[name], float) for name in floats if name in rope)


def scaled(**changes: Any) -> dict[str, Any]:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    return {"rope_scaling": yarn | changes}


ROPE_CHANGES: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("llama", {"rope_theta": 1e4}, {"rope_theta": 1e5}, "rope.rope_theta"),
    ("llama", {}, scaled(), "rope.rope_type"),
    ("llama", scaled(), scaled(factor=8.0), "rope.factor"),
    ("llama", scaled(), scaled(beta_fast=16.0), "rope.beta_fast"),
    ("llama", scaled(), scaled(beta_slow=2.0), "rope.beta_slow"),
    ("llama", scaled(), scaled(attention_factor=1.5), "rope.attention_factor"),
    ("llama", scaled(), scaled(truncate=False), "rope.truncate"),
    ("llama", scaled(), scaled(mscale=0.7), "rope.mscale"),
    ("llama", scaled(), scaled(mscale_all_dim=0.7), "rope.mscale_all_dim"),
    ("llama", scaled(), scaled(**{LENGTH: 32}), f"rope.{LENGTH}"),
    ("llama", scaled(), scaled(unheard_of=1), "rope.others"),
    ("gpt_neox", {"rotary_pct": 0.25}, {"rotary_pct": 0.5}, "rope.partial_rotary_factor"),
    ("phi3", LONGROPE, {**LONGROPE, "max_position_embeddings": 512}, "rope.factor"),
    ("deepseek_v3", {}, {"rope_interleave": False}, "rope.rope_interleave"),
    ("smollm3", {"no_rope_layers": [1, 0]}, {"no_rope_layers": [1, 1]}, "rope.no_rope_layers"),
    ("gemma3", {}, {"rope_scaling": LINEAR}, "rope.full_attention.rope_type"),
    ("gemma3", {}, {"rope_local_base_freq": 5e4}, "rope.sliding_attention.rope_theta"),
]


@pytest.mark.parametrize(("kind", "before", "after", "path"), ROPE_CHANGES)
def test_every_setting_of_the_rope_counts(
    kind: str, before: dict[str, Any], after: dict[str, Any], path: str
) -> None:
    paths = changed(of(make(kind, **before)), of(make(kind, **after)))
    assert path in paths
    assert all(one.startswith("rope") for one in paths)


def test_the_length_counts_where_the_rope_depends_on_it() -> None:
    one = of(make("llama", rope_scaling=DYNAMIC))
    other = of(make("llama", rope_scaling=DYNAMIC, max_position_embeddings=128))
    assert changed(one, other) == {"rope.max_position_embeddings"}
    one, other = of(make("llama")), of(make("llama", max_position_embeddings=128))
    assert one == other


def test_what_is_not_given_is_like_its_default() -> None:
    defaults = scaled(beta_fast=32, beta_slow=1, truncate=True, mscale=None)
    assert of(make("llama", **scaled())) == of(make("llama", **defaults))


def test_a_config_of_the_other_version_is_read_as_the_model_reads_it() -> None:
    model = make("llama")
    if TRANSFORMERS_5:
        model.config.rope_theta = 77.0
    else:
        model.config.rope_parameters = {"rope_type": "default", "rope_theta": 77.0}
    assert of(model)["rope"] == FLAT


@pytest.mark.skipif(not TRANSFORMERS_5, reason="Transformers 4 has one rope for all layers")
def test_layers_without_rotation() -> None:
    model = make("gemma3")
    before = of(model)
    model.config.rope_parameters["full_attention"] = None
    after = of(model)
    assert after["rope"]["full_attention"] is None
    assert "rope.full_attention" in changed(before, after)


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, object(), "a\0", "\ud800", 2**53, torch.ones(1)]
)
def test_what_the_format_cannot_hold_is_refused_by_name(value: object) -> None:
    model = make("llama")
    parameters = model.config.rope_parameters if TRANSFORMERS_5 else {}
    parameters = dict(parameters) | {"rope_type": "linear", "factor": value}
    if TRANSFORMERS_5:
        model.config.rope_parameters = parameters
    else:
        model.config.rope_scaling = parameters
    with pytest.raises(kvcache.UnsupportedCacheError, match=r"`rope\.factor`") as caught:
        full_identity_of(model, TOKENIZER)
    assert caught.value.field == "rope.factor"


def test_nothing_is_nested_without_end() -> None:
    model = make("llama")
    loop: list[Any] = []
    loop.append(loop)
    model.config.clip_qkv = loop
    with pytest.raises(kvcache.UnsupportedCacheError, match=r"`attention\.clip_qkv\[0\]"):
        full_identity_of(model, TOKENIZER)


# ---- Attention ---------------------------------------------------------------------------------

ATTENTION_CHANGES: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("mistral", {"sliding_window": 16}, {"sliding_window": 32}, "sliding_window"),
    ("mistral", {"sliding_window": 16}, {"sliding_window": None}, "sliding_window"),
    ("mistral", {"sliding_window": 16}, {"sliding_window": None}, "layer_types"),
    ("qwen3", {}, {"layer_types": ["sliding_attention", "full_attention"]}, "layer_types"),
    ("llama", {}, {"attention_chunk_size": 8}, "layer_types"),
    ("llama", {}, {"attention_chunk_size": 8}, "attention_chunk_size"),
    ("llama", {}, {"num_kv_shared_layers": 1}, "num_kv_shared_layers"),
    ("llama", {}, {"rms_norm_eps": 1e-3}, "rms_norm_eps"),
    ("llama", {}, {"hidden_act": "gelu"}, "hidden_act"),
    ("gemma3", {}, {"query_pre_attn_scalar": 8}, "query_pre_attn_scalar"),
    ("gemma3", {}, {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    ("gemma3", {}, {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("gpt2", {}, {"scale_attn_weights": False}, "scale_attn_weights"),
    ("gpt2", {}, {"n_head": 2}, "num_attention_heads"),
    ("gpt2", {}, {"n_head": 2}, "head_dim"),
    ("gpt2", {}, {"activation_function": "relu"}, "activation_function"),
    ("deepseek_v3", {}, {"num_experts_per_tok": 1}, "num_experts_per_tok"),
    ("deepseek_v3", {}, {"routed_scaling_factor": 1.0}, "routed_scaling_factor"),
]


@pytest.mark.parametrize(("kind", "before", "after", "name"), ATTENTION_CHANGES)
def test_every_setting_of_attention_counts(
    kind: str, before: dict[str, Any], after: dict[str, Any], name: str
) -> None:
    paths = changed(of(make(kind, **before)), of(make(kind, **after)))
    assert f"attention.{name}" in paths
    assert all(one.startswith("attention.") for one in paths)


def test_attention_is_a_closed_list() -> None:
    names = {tuple(of(make(kind))["attention"]) for kind in ("llama", "gpt2", "gemma3", "gpt_oss")}
    assert len(names) == 1
    model = make("llama")
    before = of(model)
    model.config.unheard_of = 7
    assert of(model) == before


FULL, SLIDING = "full_attention", "sliding_attention"
COMPUTED: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma3": {
        "model_type": "gemma3_text", "layer_types": [SLIDING] * 5 + [FULL], "sliding_window": 16,
    },
    "qwen3": {"head_dim": 128},
    "mistral": {"layer_types": [SLIDING] * 2, "sliding_window": 4096},
    "gpt2": {"num_key_value_heads": 4},
    "gpt_oss": {
        "sinks": True, "attention_bias": True, "layer_types": [SLIDING, FULL],
        "sliding_window": 128,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", COMPUTED)
def test_attention_is_what_the_model_computes_with(kind: str) -> None:
    attention = of(make(kind))["attention"]
    usual = {
        "model_type": kind, "layer_types": [FULL] * 2, "head_dim": 8, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_kv_shared_layers": 0, "sinks": False, "sliding_window": None,
        "attention_bias": False, "use_bidirectional_attention": None,
    }  # fmt: skip
    want = usual | COMPUTED[kind]
    assert {name: attention[name] for name in want} == want


def test_the_decoder_of_an_encoder_and_decoder_is_meant() -> None:
    attention = of(make("bart"))["attention"]
    assert attention["num_attention_heads"] == 4
    assert attention["layer_types"] == ["full_attention"] * 2


@pytest.mark.skipif(not TRANSFORMERS_5, reason="Transformers 4 has one config for all layers")
def test_layers_with_configs_of_their_own() -> None:
    model = make("llama")
    model.config.per_layer_config = {1: {"num_key_value_heads": 4, "attention_bias": True}}
    attention = of(model)["attention"]
    assert attention["num_key_value_heads"] == [2, 4]
    assert attention["attention_bias"] == [False, True]


# ---- Weights and dtypes ------------------------------------------------------------------------


def test_the_weights_count_and_are_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_kvcache import identity_weights

    hashed: list[int] = []
    plain = identity_weights._values_sha256

    def counted(tensor: torch.Tensor) -> str:
        hashed.append(tensor.data_ptr())
        return plain(tensor)

    monkeypatch.setattr(identity_weights, "_values_sha256", counted)
    model = tiny_llama(tie_word_embeddings=True)
    before = of(model)
    assert len(hashed) == len({p.data_ptr() for p in model.parameters()}) == len(set(hashed))
    method, _, value = before["weights_digest"].partition(":")
    assert (method, len(value)) == ("weights-sha256", 64)
    with torch.no_grad():
        model.model.norm.weight[3] += 1
    after = of(model)
    assert changed(before, after) == {"weights_digest"}
    untied = tiny_llama(tie_word_embeddings=True)
    untied.lm_head.weight = torch.nn.Parameter(untied.lm_head.weight.detach().clone())
    assert of(untied) == before


def test_buffers_count_where_they_are_kept() -> None:
    model = tiny_llama()
    before = of(model)
    model.model.rotary_emb.register_buffer("scratch", torch.ones(1), persistent=False)
    assert of(model) == before
    model.model.register_buffer("kept", torch.ones(1))
    assert changed(before, of(model)) == {"weights_digest"}


def test_a_commit_and_the_weights(tmp_path: Path) -> None:
    folder = tmp_path / "hub" / "models--someone--tiny" / "snapshots" / COMMIT
    tiny_llama().save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    identity = of(model)
    assert identity["model_revision"] == COMMIT
    assert identity["weights_digest"] == of(tiny_llama())["weights_digest"]
    # Without the digest no weight is looked at, so that they can be elsewhere.
    with torch.device("meta"):
        elsewhere = tiny_llama()
    elsewhere.config._commit_hash = COMMIT
    with pytest.raises(kvcache.UnsupportedCacheError, match="meta"):
        of(elsewhere)
    without = of(elsewhere, weights_digest=False)
    assert without == {name: identity[name] for name in identity if name != "weights_digest"}


@pytest.mark.parametrize("want", ["bf16", "f16", "f64", "bf16+f32"])
def test_the_dtype_counts(want: str) -> None:
    model = tiny_llama()
    before = of(model)
    part = model.model.norm if "+" in want else model
    part.to(DTYPES[want.partition("+")[0]])
    after = of(model)
    assert after["compute_dtype"] == want
    assert changed(before, after) == {"compute_dtype", "weights_digest"}


def test_quantised_weights_of_quanto() -> None:
    quanto = pytest.importorskip("optimum.quanto", reason="optimum-quanto is not installed here")
    plain = of(make("llama", hidden_size=128, intermediate_size=128))
    found = [plain]
    for weights in (quanto.qint8, quanto.qint4):
        model = make("llama", hidden_size=128, intermediate_size=128)
        quanto.quantize(model, weights=weights)
        quanto.freeze(model)
        one = of(model)
        assert "Weight" in one["kv_quantization"]["method"]
        assert one["compute_dtype"] == "f32"
        assert all({"kv_quantization", "weights_digest"} <= tops(changed(one, x)) for x in found)
        with torch.no_grad():
            model.model.layers[0].mlp.up_proj.weight._scale[0] *= 2
        assert changed(one, of(model)) == {"weights_digest"}
        found.append(one)


def tops(paths: set[str]) -> set[str]:
    return {path.partition(".")[0] for path in paths}


def test_a_quantisation_config_is_named_by_its_settings() -> None:
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}
    model = make("llama")
    model.config.quantization_config = gptq | {"dataset": ["a"], "use_exllama": True}
    one = of(model)
    settings = {"bits": 4, "group_size": 128}
    want = {"method": "gptq", "settings": settings | {"desc_act": False}} | settings
    assert one["kv_quantization"] == want
    assert "kv_quantization" in tops(changed(of(make("llama")), one))
    for name, value in (("bits", 8), ("group_size", 64), ("quant_method", "awq")):
        model.config.quantization_config = gptq | {name: value}
        path = "method" if name == "quant_method" else name
        assert f"kv_quantization.{path}" in changed(one, of(model))
    model.config.quantization_config = gptq | {"desc_act": True}
    assert changed(one, of(model)) == {"kv_quantization.settings.desc_act"}
    model.config.quantization_config = transformers.QuantoConfig(weights="int4")
    found = of(model)["kv_quantization"]
    assert (found["method"], found["bits"]) == ("quanto", "int4")


# ---- Adapters ----------------------------------------------------------------------------------


def lora(**changes: Any) -> Any:
    peft = pytest.importorskip("peft", reason="peft is not installed here")
    facts = {"r": 2, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False}
    return peft.LoraConfig(**(facts | changes))


def adapted(model: Any = None, name: str = "default", **changes: Any) -> Any:
    peft = pytest.importorskip("peft", reason="peft is not installed here")
    torch.manual_seed(5)
    return peft.get_peft_model(model or make("llama"), lora(**changes), adapter_name=name)


def test_peft_is_not_imported_without_an_adapter(tmp_path: Path) -> None:
    script = tmp_path / "child.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_full_identity import make, of\n"
        "of(make('llama'))\n"
        "sys.exit('peft' in sys.modules)\n"
    )
    done = run_python(script)
    assert done.returncode == 0, done.stderr


def test_an_adapter_is_named_and_leaves_the_weights_alone() -> None:
    base = of(make("llama"))
    model = adapted(lora_alpha=8)
    identity = of(model)
    (one,) = identity["adapters"]
    assert of(adapted(name="fr", lora_alpha=8))["adapters"] == [one | {"name": "fr"}]
    assert sorted(one) == ["digest", "name", "scale", "type"]
    assert (one["name"], one["type"], one["scale"]) == ("default", "LORA", 4.0)
    assert one["digest"].startswith("adapter-sha256:")
    assert identity["model_revision"] != base["model_revision"]
    assert changed(base, identity) == {"adapters"}
    prefill(model, torch.arange(1, 9).reshape(1, -1))
    assert of(model) == identity
    # The model inside is the same one, and its config still says which adapters it has.
    assert of(model.get_base_model())["weights_digest"] == base["weights_digest"]


def test_every_part_of_an_adapter_counts() -> None:
    before = of(adapted())
    changes: list[dict[str, Any]] = [{"lora_alpha": 16}, {"r": 4}, {"target_modules": ["q_proj"]}]
    changes += [{"use_rslora": True}, {"use_dora": True}, {"alora_invocation_tokens": [3]}]
    for one in changes:
        assert changed(before, of(adapted(**one))) == {"adapters"}
    model = adapted()
    with torch.no_grad():
        next(p for name, p in model.named_parameters() if "lora_B" in name)[0, 0] += 1
    assert changed(before, of(model)) == {"adapters"}
    model = adapted()
    for module in model.modules():
        if isinstance(getattr(module, "scaling", None), dict):
            module.scaling["default"] *= 3
    # How it was trained does not.
    trained = adapted(lora_dropout=0.5, bias="none", task_type="CAUSAL_LM")
    assert of(trained)["adapters"] == before["adapters"]
    (entry,) = of(model)["adapters"]
    assert (entry["scale"], entry["digest"]) == (12.0, before["adapters"][0]["digest"])


def test_scales_that_differ_are_by_module() -> None:
    model = adapted(lora_alpha=8, alpha_pattern={"q_proj": 2})
    (one,) = of(model)["adapters"]
    assert one["scale"] == {
        f"model.layers.{layer}.self_attn.{name}": scale
        for layer in (0, 1)
        for name, scale in (("q_proj", 1.0), ("v_proj", 4.0))
    }


def test_only_adapters_with_an_effect_are_listed() -> None:
    base = of(make("llama"))
    model = adapted(name="fr")
    model.add_adapter("de", lora())
    fr = of(model)["adapters"]
    assert [one["name"] for one in fr] == ["fr"]
    model.set_adapter("de")
    assert [one["name"] for one in of(model)["adapters"]] == ["de"]
    model.base_model.set_adapter(["fr", "de"])
    de, *rest = of(model)["adapters"]
    assert (de["name"], rest) == ("de", fr)
    with model.disable_adapter():
        assert of(model)["adapters"] == []
        assert of(model)["weights_digest"] == base["weights_digest"]


def test_a_merged_adapter_is_in_the_weights() -> None:
    base = of(make("llama"))
    model = adapted()
    model.merge_adapter()
    merged = of(model)
    assert merged["adapters"] == []
    assert changed(base, merged) == {"weights_digest"}
    for module in model.modules():
        if hasattr(type(module), "enable_adapters"):
            module._disable_adapters = True
    with pytest.raises(kvcache.UnsupportedCacheError, match="merged into the weights and disabled"):
        of(model)
    alone = adapted().merge_and_unload()
    assert of(alone)["weights_digest"] == merged["weights_digest"]
    assert of(alone)["adapters"] == []


def test_wrappers_and_the_integration_of_transformers_agree(tmp_path: Path) -> None:
    wrapped = adapted(lora_alpha=8)
    want = of(wrapped)
    wrapped.save_pretrained(tmp_path / "lora")
    model = make("llama")
    model.load_adapter(str(tmp_path / "lora"))
    found = of(model)
    assert found["adapters"] == want["adapters"]
    assert changed(found, want) == set()
    model.disable_adapters()
    assert of(model)["adapters"] == []
    peft = pytest.importorskip("peft", reason="peft is not installed here")
    again = peft.PeftModel.from_pretrained(make("llama"), tmp_path / "lora")
    assert of(again)["adapters"] == want["adapters"]


def test_whole_modules_that_an_adapter_replaces() -> None:
    base = of(make("llama"))
    model = adapted(modules_to_save=["norm"])
    before = of(model)
    assert before["weights_digest"] == base["weights_digest"]
    assert before["adapters"] != of(adapted())["adapters"]
    with torch.no_grad():
        model.base_model.model.model.norm.modules_to_save["default"].weight[0] += 1
    assert changed(before, of(model)) == {"adapters"}


def test_tokens_that_an_adapter_trains() -> None:
    base = of(make("llama"))
    model = adapted(trainable_token_indices=[3, 4])
    before = of(model)
    assert before["weights_digest"] == base["weights_digest"]
    deltas = [p for n, p in model.named_parameters() if "trainable_tokens_delta" in n]
    with torch.no_grad():
        deltas[0][0, 0] += 1
    assert changed(before, of(model)) == {"adapters"}
    assert changed(before, of(adapted(trainable_token_indices=[3, 5]))) == {"adapters"}


def test_other_kinds_of_adapters() -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed here")
    base = of(make("llama"))
    targets = ["q_proj", "v_proj"]
    configs = {
        "VERA": peft.VeraConfig(r=2, target_modules=["q_proj", "o_proj"]),
        "IA3": peft.IA3Config(target_modules=targets, feedforward_modules=[]),
        "LOHA": peft.LoHaConfig(r=2, target_modules=targets),
        "PREFIX_TUNING": peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
        "PROMPT_TUNING": peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    }
    for kind, config in configs.items():
        torch.manual_seed(5)
        model = peft.get_peft_model(make("llama"), config)
        identity = of(model)
        assert [one["type"] for one in identity["adapters"]] == [kind]
        assert changed(base, identity) == {"adapters"}, kind
        # VeRA's matrices are not trained, and all layers share them.
        shared = [buffer for name, buffer in model.named_buffers() if "vera_A" in name]
        with torch.no_grad():
            (shared or [p for p in model.parameters() if p.requires_grad])[0].add_(1)
        assert changed(identity, of(model)) == {"adapters"}, kind
        with model.disable_adapter():
            assert of(model)["adapters"] == [], kind


def test_adapters_that_nothing_is_known_of_are_refused() -> None:
    model = make("llama")
    layer = model.model.layers[0].mlp
    layer.__class__ = type("LlamaMLP", (type(layer),), {"__module__": "adapters.llama"})
    with pytest.raises(kvcache.UnsupportedCacheError, match="only those of PEFT"):
        of(model)
    peft = pytest.importorskip("peft", reason="peft is not installed here")
    config = peft.AdaptionPromptConfig(adapter_layers=1, adapter_len=2, task_type="CAUSAL_LM")
    with pytest.raises(kvcache.UnsupportedCacheError, match=r"`.*adaption_.*` belongs"):
        of(peft.get_peft_model(make("llama"), config))


# ---- In a file ---------------------------------------------------------------------------------


def write(path: Path, identity: dict[str, Any]) -> None:
    metadata = {
        "dtype": "f32", "head_dim": 4, "kv_heads": 1, "layers": 1, "sequence_start": 0,
        "layout": "layer-major-k-then-v", "sequence_length": 2,
    }  # fmt: skip
    kvcache.write_cache_stream(path, metadata | identity, [bytes(64)])


FILE_CHANGES: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("llama", {}, scaled(), "rope.rope_type"),
    ("llama", scaled(), scaled(factor=8.0), "rope.factor"),
    ("gemma3", {}, {"rope_local_base_freq": 5e4}, "rope.sliding_attention.rope_theta"),
    ("mistral", {"sliding_window": 16}, {"sliding_window": 32}, "attention.sliding_window"),
    ("mistral", {"sliding_window": 16}, {"sliding_window": None}, "attention.layer_types"),
    ("llama", {}, {"rms_norm_eps": 1e-3}, "attention.rms_norm_eps"),
]


@pytest.mark.parametrize(("kind", "before", "after", "path"), FILE_CHANGES)
def test_the_message_names_the_setting(
    tmp_path: Path, kind: str, before: dict[str, Any], after: dict[str, Any], path: str
) -> None:
    one, other = of(make(kind, **before)), of(make(kind, **after))
    for stored, expected in ((one, other), (other, one)):
        write(tmp_path / "a.kvc", stored)
        kvcache.open_cache(tmp_path / "a.kvc", stored).close()
        with pytest.raises(kvcache.CacheIdentityError) as caught:
            kvcache.open_cache(tmp_path / "a.kvc", expected)
        assert path in {one.field for one in caught.value.differences}
        assert path in str(caught.value)


def test_weights_dtype_quantisation_and_adapters_in_a_file(tmp_path: Path) -> None:
    one = of(make("llama"))
    quantised = make("llama")
    quantised.config.quantization_config = {"quant_method": "gptq", "bits": 4}
    others = {
        "weights_digest": of(tiny_llama()),
        "compute_dtype": of(make("llama").half()),
        "kv_quantization": of(quantised),
    }
    if importlib.util.find_spec("peft"):
        others["adapters"] = of(adapted())
    for name, other in others.items():
        for stored, expected in ((one, other), (other, one)):
            write(tmp_path / "a.kvc", stored)
            kvcache.open_cache(tmp_path / "a.kvc", stored).close()
            with pytest.raises(kvcache.CacheIdentityError) as caught:
                kvcache.open_cache(tmp_path / "a.kvc", expected)
            assert name in tops({one.field for one in caught.value.differences})
