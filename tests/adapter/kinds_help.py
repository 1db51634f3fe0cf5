# kinds_help.py: tiny models of every family whose caches are stored, and how they are run.
# SPDX-License-Identifier: Apache-2.0
# mypy: allow-untyped-calls, allow-subclassing-any
"""`FAMILIES` is the one table: the tests go through it, and so can a document that says which
models are covered. All models are random, in f32, with a vocabulary of 64."""

from __future__ import annotations

import copy
import importlib.util
import warnings
from dataclasses import dataclass, field
from typing import Any

import quanto_help
import torch
import transformers
from adapter_help import TRANSFORMERS_5
from transformers import DynamicCache, EncoderDecoderCache, QuantizedCache, StaticCache

quanto_help.use_no_compiler()
VOCABULARY = 64
WINDOW = 16
MORE = 8

_SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
_SLIDING_AND_FULL = ["sliding_attention", "sliding_attention", "full_attention", "full_attention"]


@dataclass(frozen=True)
class Family:
    """One family of models, or one class of caches with a model that makes it."""

    name: str
    config: str
    """The class of the config in transformers."""
    model: str
    """The class of the model in transformers."""
    settings: dict[str, Any]
    """What the config is given besides the small sizes that all have."""
    kinds: tuple[str, ...]
    """The kind of each layer's record with Transformers 5."""
    kinds_4: tuple[str, ...] | None = None
    """With Transformers 4; None: the same."""
    only_5: str = ""
    """Why Transformers 4.57 is left out, where it is: it refuses, or does not have the model."""
    cache: str = "dynamic"
    """`dynamic`, `static`, `quanto`, `hqq` or `none`, where the model makes its own."""
    needs: str = ""
    """A package that must be there."""
    small: dict[str, Any] = field(default_factory=lambda: dict(_SMALL))
    """The sizes, where the config has other names for them."""

    @property
    def kinds_here(self) -> tuple[str, ...]:
        """The kinds with the version of Transformers that is installed."""
        return self.kinds if TRANSFORMERS_5 or self.kinds_4 is None else self.kinds_4

    def missing(self) -> str:
        """Returns why the family cannot be tested here, or an empty text."""
        if self.only_5 and not TRANSFORMERS_5:
            return self.only_5
        if self.needs and importlib.util.find_spec(self.needs.partition(".")[0]) is None:
            return f"{self.needs} is not installed"
        return ""


_MOE = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
_MAMBA = {"mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2}
_DEEPSEEK = {
    "first_k_dense_replace": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 1,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 16,
    "num_key_value_heads": 4,
    "head_dim": 8,
}
_OWN_CACHE = "its cache is a class of the model itself in Transformers 4, which is refused"
_QWEN3_NEXT = _MOE | {
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "shared_expert_intermediate_size": 16,
    "mlp_only_layers": [0, 1, 2, 3],
}

FAMILIES: tuple[Family, ...] = (
    Family("Llama", "LlamaConfig", "LlamaForCausalLM", {}, ("full",) * 4),
    Family("Qwen3", "Qwen3Config", "Qwen3ForCausalLM", {}, ("full",) * 4),
    Family(
        "GPT-2",
        "GPT2Config",
        "GPT2LMHeadModel",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512, "eos_token_id": None},
        ("full",) * 2,
        small={"vocab_size": VOCABULARY, "bos_token_id": 1},
    ),
    Family(
        "Mistral",
        "MistralConfig",
        "MistralForCausalLM",
        {"sliding_window": WINDOW},
        ("sliding",) * 4,
    ),
    Family(
        "Gemma 2",
        "Gemma2Config",
        "Gemma2ForCausalLM",
        {"sliding_window": WINDOW, "query_pre_attn_scalar": 8},
        ("sliding", "full") * 2,
    ),
    Family(
        "Gemma 3",
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 8,
            "layer_types": _SLIDING_AND_FULL,
        },
        ("sliding", "sliding", "full", "full"),
    ),
    Family(
        "Gemma 3n",
        "Gemma3nTextConfig",
        "Gemma3nForCausalLM",
        {
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": VOCABULARY,
            "altup_num_inputs": 2,
            "laurel_rank": 4,
            "activation_sparsity_pattern": [0.0] * 4,
            "intermediate_size": [48] * 4,
        },
        ("sliding", "full"),
    ),
    Family(
        "gpt-oss",
        "GptOssConfig",
        "GptOssForCausalLM",
        {"sliding_window": WINDOW, "num_local_experts": 2, "num_experts_per_tok": 1},
        ("sliding", "full") * 2,
    ),
    Family(
        "Llama 4",
        "Llama4TextConfig",
        "Llama4ForCausalLM",
        {
            "attention_chunk_size": WINDOW,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "intermediate_size_mlp": 48,
            "layer_types": ["chunked_attention", "chunked_attention"] + ["full_attention"] * 2,
        },
        ("sliding", "sliding", "full", "full"),
    ),
    Family("DeepSeek V3", "DeepseekV3Config", "DeepseekV3ForCausalLM", _DEEPSEEK, ("full",) * 4),
    Family(
        "GLM-DSA",
        "GlmMoeDsaConfig",
        "GlmMoeDsaForCausalLM",
        _DEEPSEEK | {"index_head_dim": 8, "index_n_heads": 2, "index_topk": 512},
        ("indexed",) * 4,
        only_5="Transformers 4 does not have the model",
    ),
    Family(
        "Qwen3-Next",
        "Qwen3NextConfig",
        "Qwen3NextForCausalLM",
        _QWEN3_NEXT,
        ("linear", "linear", "linear", "full"),
        only_5=_OWN_CACHE,
    ),
    Family(
        "Jamba",
        "JambaConfig",
        "JambaForCausalLM",
        _MAMBA
        | {
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "num_experts": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "mamba_dt_rank": 4,
            "use_mamba_kernels": False,
        },
        ("linear", "full") * 2,
        only_5=_OWN_CACHE,
    ),
    Family(
        "Mamba",
        "MambaConfig",
        "MambaForCausalLM",
        {"state_size": 8, "use_mambapy": False, "tie_word_embeddings": False},
        ("linear",) * 4,
        only_5=_OWN_CACHE,
    ),
    Family(
        "Falcon-H1",
        "FalconH1Config",
        "FalconH1ForCausalLM",
        {
            "mamba_d_ssm": 32,
            "mamba_n_heads": 4,
            "mamba_d_head": 8,
            "mamba_d_state": 8,
            "mamba_n_groups": 1,
            "mamba_chunk_size": 8,
        },
        ("linear_full",) * 4,
        only_5=_OWN_CACHE,
    ),
    Family(
        "LFM2",
        "Lfm2Config",
        "Lfm2ForCausalLM",
        {"layer_types": ["conv", "conv", "full_attention", "conv"], "block_multiple_of": 8},
        ("linear", "linear", "full", "linear"),
        only_5=_OWN_CACHE,
    ),
    Family(
        "T5",
        "T5Config",
        "T5ForConditionalGeneration",
        {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4},
        ("full",) * 4,
        cache="none",
        small={"vocab_size": VOCABULARY, "pad_token_id": 0, "dropout_rate": 0.0},
    ),
    Family(
        "Whisper",
        "WhisperConfig",
        "WhisperForConditionalGeneration",
        {
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "num_mel_bins": 8,
            "max_source_positions": 20,
            "max_target_positions": 256,
            "begin_suppress_tokens": None,
        },
        ("full",) * 4,
        cache="none",
        small={"vocab_size": VOCABULARY, "pad_token_id": 0, "decoder_start_token_id": 1},
    ),
    Family(
        "StaticCache of Llama",
        "LlamaConfig",
        "LlamaForCausalLM",
        {},
        ("static",) * 4,
        cache="static",
    ),
    Family(
        "StaticCache of Gemma 3",
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 8,
            "layer_types": _SLIDING_AND_FULL,
        },
        ("static_sliding", "static_sliding", "static", "static"),
        cache="static",
    ),
    Family(
        "StaticCache of GLM-DSA",
        "GlmMoeDsaConfig",
        "GlmMoeDsaForCausalLM",
        _DEEPSEEK | {"index_head_dim": 8, "index_n_heads": 2, "index_topk": 512},
        ("static_indexed",) * 4,
        only_5="Transformers 4 does not have the model",
        cache="static",
    ),
    Family(
        "StaticCache of Falcon-H1",
        "FalconH1Config",
        "FalconH1ForCausalLM",
        {
            "mamba_d_ssm": 32,
            "mamba_n_heads": 4,
            "mamba_d_head": 8,
            "mamba_d_state": 8,
            "mamba_n_groups": 1,
            "mamba_chunk_size": 8,
        },
        ("linear_static",) * 4,
        only_5=_OWN_CACHE,
        cache="static",
    ),
    Family(
        "QuantizedCache by quanto",
        "LlamaConfig",
        "LlamaForCausalLM",
        {"head_dim": 32},
        ("quantized",) * 4,
        cache="quanto",
        needs="optimum.quanto",
    ),
    Family(
        "QuantizedCache by HQQ",
        "LlamaConfig",
        "LlamaForCausalLM",
        {"head_dim": 32},
        ("quantized",) * 4,
        cache="hqq",
        needs="hqq",
    ),
)


def family_of(name: str) -> Family:
    """Returns a family by its name."""
    return next(family for family in FAMILIES if family.name == name)


def model_of(family: Family | str, seed: int = 0, **changes: Any) -> Any:
    """Returns a random model of a family, always the same for one seed."""
    family = family_of(family) if isinstance(family, str) else family
    config = getattr(transformers, family.config)(**(family.small | family.settings | changes))
    torch.manual_seed(seed)
    model = getattr(transformers, family.model)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Tiny models with small weights answer the same to everything.
            if parameter.ndim >= 2:
                parameter.mul_(4.0)
    return model


def new_cache(family: Family | str, model: Any, longest: int = 256) -> Any:
    """Returns an empty cache of the family's class, or None where the model makes its own."""
    family = family_of(family) if isinstance(family, str) else family
    if family.cache == "static":
        return StaticCache(config=model.config, max_cache_len=longest)
    if family.cache in ("quanto", "hqq"):
        return QuantizedCache(
            family.cache, model.config, nbits=4, q_group_size=32, residual_length=8,
            axis_key=0 if family.cache == "quanto" else 1,
            axis_value=0 if family.cache == "quanto" else 1,
        )  # fmt: skip
    if family.cache == "none":
        return None
    return DynamicCache(config=model.config)


def ids_of(tokens: int, batch: int = 1, seed: int = 5) -> torch.Tensor:
    """Returns random ids [batch, tokens], none of them the one for padding."""
    numbers = torch.Generator().manual_seed(seed)
    return torch.randint(2, VOCABULARY, (batch, tokens), generator=numbers)


def inputs_of(model: Any, batch: int = 1) -> dict[str, Any]:
    """Returns what a model needs beside its (decoder's) ids: an encoder's result."""
    if not model.config.is_encoder_decoder:
        return {}
    with torch.no_grad():
        if model.main_input_name == "input_features":
            sound = torch.randn(batch, 8, 40, generator=torch.Generator().manual_seed(9))
            return {"encoder_outputs": model.get_encoder()(sound)}
        return {"encoder_outputs": model.get_encoder()(ids_of(11, batch, 9))}


def run(model: Any, ids: torch.Tensor, cache: Any, **inputs: Any) -> tuple[torch.Tensor, Any]:
    """Feeds ids [batch, tokens] to a model; returns the last logits [batch, vocabulary], and the
    cache."""
    coded = model.config.is_encoder_decoder
    stateful = "cache_params" in model.forward.__code__.co_varnames
    names = ("decoder_input_ids" if coded else "input_ids",
             "cache_params" if stateful else "past_key_values")  # fmt: skip
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        output = model(**{names[0]: ids, names[1]: cache}, use_cache=True, **inputs)
    return output.logits[:, -1], getattr(output, names[1])


def prefill(family: Family | str, model: Any, ids: torch.Tensor, **inputs: Any) -> Any:
    """Returns the cache of a model that was given ids, of the family's class."""
    return run(model, ids, new_cache(family, model), **inputs)[1]


def go_on(
    model: Any, cache: Any, ids: torch.Tensor, steps: int = MORE, **inputs: Any
) -> tuple[torch.Tensor, list[list[int]]]:
    """Goes on greedily from a cache with ids [batch, 1]: all logits, and the tokens."""
    mask = inputs.pop("attention_mask", None)
    all_logits, tokens = [], []
    for _ in range(steps + 1):
        if mask is not None:
            mask = torch.cat([mask, mask.new_ones(len(mask), ids.shape[1])], dim=1)
            inputs["attention_mask"] = mask
        logits, cache = run(model, ids, cache, **inputs)
        ids = logits.argmax(-1, keepdim=True)
        all_logits.append(logits)
        tokens.append(ids[:, 0].tolist())
    return torch.stack(all_logits), tokens


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same shape, dtype and bits."""
    return (
        one.shape == other.shape
        and one.dtype == other.dtype
        and torch.equal(
            one.contiguous().reshape(-1).view(torch.uint8),
            other.contiguous().reshape(-1).view(torch.uint8),
        )
    )


def layers_of(cache: Any) -> list[Any]:
    """Returns all layers of a cache, those of both halves of an encoder-decoder cache."""
    if isinstance(cache, EncoderDecoderCache):
        return [*cache.self_attention_cache.layers, *cache.cross_attention_cache.layers]
    return list(cache.layers)


def same_state(one: Any, other: Any) -> list[str]:
    """Returns the names of attributes in which two layers differ, tensors by their bits."""
    left, right = dict(vars(one)), dict(vars(other))
    names = sorted(set(left) ^ set(right)) + [
        name for name in sorted(set(left) & set(right)) if not same_value(left[name], right[name])
    ]
    return [] if type(one) is type(other) and not names else [type(other).__name__, *names]


def same_value(one: Any, other: Any) -> bool:
    """Whether two attributes are equal, all the way down."""
    if isinstance(one, torch.Tensor) and hasattr(one, "__tensor_flatten__"):
        parts = one.__tensor_flatten__()[0]
        return type(one) is type(other) and all(
            same_value(getattr(one, part), getattr(other, part)) for part in parts
        )
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and same_bits(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_value(one[key], other[key]) for key in one)
    if isinstance(one, tuple) and not isinstance(one, torch.Size):
        return len(one) == len(other) and all(map(same_value, one, other))
    if type(one).__module__.startswith(("optimum", "hqq")):
        return type(one) is type(other)
    return type(one) is type(other) and bool(one == other)


def twin(cache: Any) -> Any:
    """Returns a cache that goes on as the given one, whatever becomes of that.

    The tensors of quanto cannot be copied; no step writes into them, so they may be shared.
    """
    if isinstance(cache, QuantizedCache):
        other = copy.copy(cache)
        other.layers = [copy.copy(layer) for layer in cache.layers]
        return other
    return copy.deepcopy(cache)
