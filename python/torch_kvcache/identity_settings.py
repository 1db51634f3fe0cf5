# identity_settings.py: what a model's config says about the values that its cache holds.
# SPDX-License-Identifier: Apache-2.0

import enum
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import kvcache
import torch
import transformers

from torch_kvcache.dtypes import DTYPE_NAMES
from torch_kvcache.identity_weights import is_taken_apart

_TRANSFORMERS_5 = int(transformers.__version__.partition(".")[0]) >= 5

# The closed list of what `attention` holds, besides what `attention_settings` computes. The first
# are switches, and a config without one of them is one where it is off. The second are values, null
# where a config has none. Those that only name what the model does after its last layer, such as
# the soft cap of the logits, and what changes the low bits only, are not here.
_SWITCHES = (
    *("alibi", "apply_residual_connection_post_layernorm", "attention_bias", "attention_k_eq_v"),
    *("attn_temperature_tuning", "do_layer_norm_before", "multi_query", "mup_enabled"),
    *("new_decoder_architecture", "norm_topk_prob", "parallel_attn", "qk_layernorm", "qkv_bias"),
    *("scale_attn_by_inverse_layer_idx", "scale_attn_weights", "scale_embedding"),
    *("use_double_wide_mlp", "use_parallel_residual", "use_qk_norm"),
)
_VALUES = (
    # Heads, and the parts that a head is made of.
    *("index_head_dim", "index_n_heads", "index_topk", "kv_lora_rank", "num_attention_heads"),
    *("q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
    # Which positions a layer sees.
    *("attention_chunk_size", "attention_layers", "indexer_types", "sliding_window"),
    *("use_bidirectional_attention", "window_size"),
    # How scores are made.
    *("attention_multiplier", "attn_logit_softcapping", "attn_scale", "clip_qkv", "floor_scale"),
    *("position_embedding_type", "query_pre_attn_scalar", "relative_attention_max_distance"),
    *("relative_attention_num_buckets",),
    # States of linear attention.
    *("linear_num_key_heads", "linear_num_value_heads", "mamba_d_head", "mamba_n_groups"),
    *("mamba_n_heads", "time_step_floor", "time_step_limit", "time_step_max", "time_step_min"),
    # What one layer hands to the next, from which that one's keys and values are made.
    *("activation_function", "embedding_multiplier", "hidden_act", "hidden_activation"),
    *("key_multiplier", "layer_norm_eps", "layer_norm_epsilon", "mlp_hidden_act"),
    *("mlp_multipliers", "n_group", "norm_eps", "norm_epsilon", "num_experts_per_tok"),
    *("residual_multiplier", "rms_norm_eps", "routed_scaling_factor", "scale_depth", "scale_emb"),
    *("scoring_func", "ssm_in_multiplier", "ssm_multipliers", "ssm_out_multiplier"),
    *("swiglu_limit", "topk_group", "topk_method"),
)

# Settings of the rotary embedding that stand beside its parameters in a config.
_ROPE_BESIDE = ("layer_rope_theta", "no_rope_layers", "rope_interleave", "rotary_dim")
# Parameters of each kind of rotary embedding, with what they are where they are not given.
_ROPE_OF_TYPE: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": None},
    "dynamic": {"factor": None},
    "yarn": {
        "attention_factor": None,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": None,
        "mscale": None,
        "mscale_all_dim": None,
        "original_max_position_embeddings": None,
        "truncate": True,
    },
    "longrope": {
        "attention_factor": None,
        "factor": None,
        "long_factor": None,
        "original_max_position_embeddings": None,
        "short_factor": None,
    },
    "llama3": {
        "factor": None,
        "high_freq_factor": None,
        "low_freq_factor": None,
        "original_max_position_embeddings": None,
    },
    "proportional": {"factor": 1.0},
}
# Parameters that a model computes with as floats, so that 32 and 32.0 are one setting.
_ROPE_FLOATS = {
    *("attention_factor", "beta_fast", "beta_slow", "factor", "high_freq_factor"),
    *("low_freq_factor", "mscale", "mscale_all_dim", "partial_rotary_factor", "rope_theta"),
}

# How weights were found and which kernels run them; neither is seen in the weights' meaning.
_NOT_QUANTISATION = {
    *("backend", "batch_size", "block_name_to_quantize", "cache_block_outputs", "damp_percent"),
    *("dataset", "exllama_config", "llm_int8_enable_fp32_cpu_offload", "max_input_length"),
    *("model_seqlen", "module_name_preceding_first_block", "pad_token_id", "tokenizer"),
    *("true_sequential", "use_cuda_fp16", "use_exllama"),
}

_LARGEST_INTEGER = 2**53 - 1
_DEEPEST = 12
_SURROGATE = re.compile("[\ud800-\udfff]")


def text_config(model: Any) -> Any:
    """Returns the config of the part of a model that makes the cache."""
    config = model.config
    return config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config


def canonical(value: Any, path: str, depth: int = 0) -> Any:
    """Returns a setting as the format's metadata can hold it, or refuses it by its path."""
    if isinstance(value, enum.Enum):
        value = value.value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) <= _LARGEST_INTEGER:
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        # The format has no negative zero.
        return float(value) + 0.0
    if isinstance(value, str) and "\0" not in value and not _SURROGATE.search(value):
        return str(value)
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    if depth < _DEEPEST and isinstance(value, (list, tuple)):
        return [canonical(one, f"{path}[{i}]", depth + 1) for i, one in enumerate(value)]
    if depth < _DEEPEST and isinstance(value, (set, frozenset)):
        return sorted((canonical(one, path, depth + 1) for one in value), key=repr)
    if depth < _DEEPEST and isinstance(value, Mapping):
        # JSON has only strings for keys, and configs that were stored once have them too.
        named = {str(canonical(key, path)): one for key, one in value.items()}
        return {key: canonical(named[key], f"{path}.{key}", depth + 1) for key in sorted(named)}
    raise _no_value(value, path)


def _no_value(value: Any, path: str) -> kvcache.UnsupportedCacheError:
    shown = repr(value)[:80]
    error = kvcache.UnsupportedCacheError(
        f"cannot put the setting `{path}` into the identity: it is {shown}, a "
        f"{type(value).__module__}.{type(value).__qualname__}, and an identity holds only finite "
        "numbers, integers of at most 53 bits, text, and lists and mappings of these. "
        "Set it in the model's config to such a value"
    )
    error.field = path
    error.found = shown
    return error


def dtype_name(dtype: torch.dtype) -> str:
    """Returns the format's name of a dtype, or PyTorch's where the format has none."""
    return DTYPE_NAMES.get(dtype, str(dtype).removeprefix("torch."))


def _setting(config: Any, name: str) -> Any:
    """Returns a member of a config or None; a list where the layers' configs differ in it."""
    try:
        return getattr(config, name, None)
    except RuntimeError:
        # Transformers refuses to name one value for all layers.
        return [getattr(one, name, None) for one in config.per_layer_config]


def _switch(config: Any, name: str) -> bool | list[bool]:
    value = _setting(config, name)
    return [bool(one) for one in value] if isinstance(value, list) else bool(value)


# ---- The rotary embedding ----------------------------------------------------------------------


def rope_settings(model: Any) -> dict[str, Any]:
    """Returns the whole configuration of the rotary embedding; {} for a model without one.

    Transformers 4 and 5 keep it in different places of a config; what means the same is the same
    here. `rope_type`, `rope_theta`, `partial_rotary_factor`, `mrope_section` and
    `mrope_interleaved` are always there, and so are all parameters of the type, with their defaults
    where they are not given. Where kinds of layers have parameters of their own, each kind has an
    object of these. `max_position_embeddings` is there for the type that depends on it, and
    otherwise only by what a missing parameter is taken from.

    Beside them stand `no_rope_layers` and other settings of a config. What this list does not know
    is in `others`, as pairs of a name and a value, so that none is lost. The frequencies that a
    model holds in memory are not looked at: they follow from these, unless somebody changed them.
    """
    config = text_config(model)
    given = _rope_parameters(config)
    if not given:
        return {}
    kinds = {kind for kind, inner in given.items() if isinstance(inner, Mapping)}
    if kinds and "rope_theta" not in given:
        kinds |= {kind for kind, inner in given.items() if inner is None}
        settings: dict[str, Any] = {
            kind: None if given[kind] is None else _rope_of(config, given[kind], f"rope.{kind}")
            for kind in sorted(kinds)
        }
        settings["others"] = _pairs(given, kinds, "rope")
    else:
        settings = _rope_of(config, given, "rope")
    for name in _ROPE_BESIDE:
        settings[name] = canonical(_setting(config, name), f"rope.{name}")
    return settings


def _rope_parameters(config: Any) -> dict[str, Any]:
    """Returns the parameters as this Transformers finds them, in the shape of Transformers 5."""
    current = _setting(config, "rope_parameters")
    older = _older_rope_parameters(config)
    # A config that another version stored may hold both; a version computes with its own.
    first, second = (current, older) if _TRANSFORMERS_5 else (older, current)
    found = first or second
    return dict(found) if isinstance(found, Mapping) else {}


def _older_rope_parameters(config: Any) -> dict[str, Any]:
    theta = _setting(config, "rope_theta")
    if theta is None:
        theta = _setting(config, "rotary_emb_base")
    if theta is None:
        return {}
    partial = _setting(config, "partial_rotary_factor")
    if partial is None:
        partial = _setting(config, "rotary_pct")
    shared = {"rope_theta": theta, "partial_rotary_factor": partial}
    scaling = _setting(config, "rope_scaling")
    full = {**(scaling if isinstance(scaling, Mapping) else {}), **shared}
    local = [name for name in ("rope_local_base_freq", "local_rope_theta") if hasattr(config, name)]
    # Olmo 3 scales full attention only, and has no setting that says so.
    if not local and getattr(config, "model_type", None) != "olmo3":
        return full
    base = getattr(config, local[0]) if local else None
    sliding = {"rope_type": "default", **shared}
    if base is not None:
        sliding["rope_theta"] = base
    return {"full_attention": full, "sliding_attention": sliding}


def _rope_of(config: Any, given: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Returns one set of parameters, with their defaults."""
    kind = given.get("rope_type") or given.get("type") or "default"
    wanted = _ROPE_OF_TYPE.get(kind, {})
    found: dict[str, Any] = {
        "rope_type": kind,
        "rope_theta": given.get("rope_theta"),
        "partial_rotary_factor": given.get("partial_rotary_factor"),
        "mrope_section": given.get("mrope_section"),
        "mrope_interleaved": bool(given.get("mrope_interleaved")),
    }
    if found["partial_rotary_factor"] is None:
        found["partial_rotary_factor"] = 1.0
    for name, default in wanted.items():
        found[name] = default if given.get(name) is None else given[name]
    if kind == "dynamic":
        found["max_position_embeddings"] = _setting(config, "max_position_embeddings")
    if "original_max_position_embeddings" in wanted:
        _settle_length(config, found)
    for name in _ROPE_FLOATS & set(found):
        value = found[name]
        if isinstance(value, int) and abs(value) <= _LARGEST_INTEGER and value is not True:
            found[name] = float(value)
    rest = _pairs(given, {*found, "type"}, path)
    return {name: canonical(found[name], f"{path}.{name}") for name in found} | {"others": rest}


def _settle_length(config: Any, found: dict[str, Any]) -> None:
    """Fills in the length that a model was trained for, and the factor where it follows from it."""
    outside = _setting(config, "original_max_position_embeddings")
    longest = _setting(config, "max_position_embeddings")
    own = "original_max_position_embeddings"
    if _TRANSFORMERS_5:
        found[own] = outside or found[own] or longest
    elif found["rope_type"] == "longrope":
        # Transformers 4 looks only outside of the parameters, and then ignores a factor.
        found[own] = outside or longest
        found["factor"] = None if outside else found["factor"]
    else:
        found[own] = found[own] or longest
    if found["factor"] is None and found[own] and longest:
        found["factor"] = longest / found[own]


def _pairs(given: Mapping[str, Any], known: Iterable[str], path: str) -> list[list[Any]]:
    """Returns what a list does not know: an array, which is compared whole, absent names too."""
    return [
        [name, canonical(given[name], f"{path}.{name}")]
        for name in sorted(set(given) - set(known))
        if given[name] is not None
    ]


# ---- Attention ---------------------------------------------------------------------------------


def attention_settings(model: Any) -> dict[str, Any]:
    """Returns what the config says about attention, and else about what is computed in layers.

    All names are always there, those of `_SWITCHES` and `_VALUES` and these: `model_type`;
    `layer_types`, one kind for each layer, by the rule by which Transformers makes a cache where
    the config does not list them; `head_dim` and `num_key_value_heads`, computed where the config
    leaves them out; `num_kv_shared_layers`; and `sinks`, whether the model has attention sinks,
    whose values are weights.

    Which implementation computes attention (`eager`, `sdpa`, ...) is left out, like the device: it
    changes the last bits of what is cached and not its meaning, and a cache made by one is meant to
    be used with another.
    """
    config = text_config(model)
    settings: dict[str, Any] = {name: _switch(config, name) for name in _SWITCHES}
    for name in _VALUES:
        value = _setting(config, name)
        settings[name] = None if value is False else value
    heads = settings["num_attention_heads"]
    width = _setting(config, "head_dim")
    size = _setting(config, "hidden_size")
    if width is None and isinstance(heads, int) and isinstance(size, int) and heads > 0:
        width = size // heads
    key_heads = _setting(config, "num_key_value_heads")
    settings |= {
        "head_dim": width,
        "layer_types": _layer_types(config),
        "model_type": getattr(config, "model_type", None),
        "num_key_value_heads": heads if key_heads is None else key_heads,
        "num_kv_shared_layers": _setting(config, "num_kv_shared_layers") or 0,
        "sinks": any(name.endswith((".sinks", ".sink")) for name, _ in model.named_parameters()),
    }
    return {name: canonical(settings[name], f"attention.{name}") for name in sorted(settings)}


def _layer_types(config: Any) -> list[str] | None:
    for name in ("layer_types", "layers_block_type"):
        listed = _setting(config, name)
        if isinstance(listed, (list, tuple)):
            return [str(kind) for kind in listed]
    layers = _setting(config, "num_hidden_layers")
    if not isinstance(layers, int):
        return None
    kind = "full_attention"
    if _setting(config, "sliding_window") is not None:
        kind = "sliding_attention"
    elif _setting(config, "attention_chunk_size") is not None:
        kind = "chunked_attention"
    return [kind] * layers


# ---- Number formats ----------------------------------------------------------------------------


def quantisation(model: Any) -> dict[str, Any] | None:
    """Returns how weights are quantised: `method`, `bits`, `group_size` and `settings`; or None.

    It is what the model's quantisation config says, without what only says how the weights were
    found or which kernels run them. Where weights are quantised and no config says how, `method`
    names the classes of their tensors. How a cache is quantised is not here: the file's manifest
    says it.
    """
    quantizer = getattr(model, "hf_quantizer", None)
    config = getattr(quantizer, "quantization_config", None)
    if config is None:
        config = getattr(model.config, "quantization_config", None)
    if config is None:
        classes = {type(one).__name__ for one in model.parameters() if is_taken_apart(one)}
        if not classes:
            return None
        config = {"quant_method": "+".join(sorted(classes))}
    given = dict(config if isinstance(config, Mapping) else config.to_dict())
    bits = next((given[n] for n in ("bits", "nbits", "w_bit", "weights") if given.get(n)), None)
    if bits is None:
        bits = 4 if given.get("load_in_4bit") else 8 if given.get("load_in_8bit") else None
    group = next((given[n] for n in ("group_size", "q_group_size") if given.get(n)), None)
    rest = {
        name: value
        for name, value in given.items()
        if name not in _NOT_QUANTISATION and name != "quant_method" and not name.startswith("_")
    }
    return {
        "method": canonical(given.get("quant_method"), "kv_quantization.method"),
        "bits": canonical(bits, "kv_quantization.bits"),
        "group_size": canonical(group, "kv_quantization.group_size"),
        "settings": canonical(rest, "kv_quantization.settings"),
    }
