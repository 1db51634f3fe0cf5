# identity.py: names a loaded model and tokenizer, so that a cache is not used with another one.
# SPDX-License-Identifier: Apache-2.0

import hashlib
import json
import os
import re
from collections.abc import Mapping
from typing import Any

import kvcache

from torch_kvcache.identity_adapters import (
    adapter_lines,
    adapters,
    compute_dtype,
    has_adapter,
    own_names,
)
from torch_kvcache.identity_settings import attention_settings, quantisation, rope_settings
from torch_kvcache.identity_weights import Weights, plain_name

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SNAPSHOT = re.compile(r"models--[^/]+/snapshots/([0-9a-f]{40})/?$")


def identity_of(model: Any, tokenizer: Any) -> dict[str, Any]:
    """Returns the three identity arguments of `write_dynamic_cache` for a loaded model.

    `model_revision` is the commit of the model's repository, 40 hexadecimal digits, where the
    loaded model knows it: from its config (Transformers 4), or from the snapshot folder of the hub
    cache that it was loaded from. Where it does not, where an adapter is loaded, or where weights
    are quantised, it is `weights-sha256:` and a digest of the weights. A model whose weights were
    changed after loading still names its commit: set `model.config._commit_hash` to
    None and `model.config._name_or_path` to "" for a digest of the weights as they are.

    The weights' digest is the SHA-256 of one line for each entry of `model.state_dict()`, sorted by
    name: the JSON array [name, dtype, shape, SHA-256 of the values' row-major bytes]. It covers
    parameters and persistent buffers, and depends neither on the device nor on their order. Where
    adapters are loaded, lines before these say which are active or merged and how they are scaled.

    What the three do not show: settings of the config that change no weight, such as RoPE scaling
    or epsilons, and which of several models of one repository (`subfolder`, `variant`) was loaded.
    `full_identity_of` shows these.

    `tokenizer_sha256` is the SHA-256 of what turns text into ids: the tokenizer's pipeline,
    vocabulary, merges and added tokens, as the `tokenizers` library spells them. Padding and
    truncation, which a call leaves behind, are left out; so are the chat template and the folder,
    which change no id's meaning.

    `rope_theta` is the base of the rotary embedding, that of the full-attention layers where the
    config has several, and 0.0 for a model without one.

    Raises kvcache.UnsupportedCacheError, saying what to pass instead, where a part has no answer.
    """
    return _identity_of(model, tokenizer, None)


def full_identity_of(model: Any, tokenizer: Any, *, weights_digest: bool = True) -> dict[str, Any]:
    """Returns all identity members of format 1.1 for a loaded model, as `save` and `load` take it.

    The three of `identity_of`, and beside them:

    `weights_digest` is `weights-sha256:` and the digest that `identity_of` describes, over the
    model's own weights: adapters and the names that they put between are left out, so that a model
    has the same digest with and without an adapter that is not merged. Quantised weights count by
    their packed parts and scales; weights that are tied count like equal ones. Buffers count where
    they are persistent. Transformers names and packs some weights otherwise from version to
    version, and the digest follows. With weights_digest=False it is left out, for a huge model
    whose commit is known and trusted; where no commit is known, `model_revision` needs it anyway.

    `rope` is the whole configuration of the rotary embedding, by kind of layer where kinds differ;
    {} without one. It does not cover frequencies that somebody changed in memory, nor position ids
    that are passed to the model.

    `attention` is a closed list of settings: kinds of layers, windows, heads, scales, soft caps,
    sinks, and what else layers compute with, such as epsilons and activations. It does not cover
    the implementation (`eager`, `sdpa`, ...) and the device, which change the last bits only, the
    settings of encoders for images and sound, and settings that only a model's own code knows.

    `adapters` lists the adapters of PEFT that have an effect, each with its name, type, scale and
    digest; [] where there is none. A merged adapter is not listed: it is in the weights' digest.

    `kv_quantization` says how the weights are quantised, or is None. `compute_dtype` is the
    floating dtype of the parameters; several are sorted and joined: `bf16+f32`.

    The same model gives the same value in every process, folder and device, used or not. Where
    Transformers 4 and 5 mean the same, the value is the same, the digest's names excepted. What
    is changed in the config after loading is taken as it stands there, also where the model's
    modules, made before, still compute with what they were made with.

    Raises kvcache.UnsupportedCacheError, naming the setting, where one has no value that the format
    can hold, and where `identity_of` does.
    """
    named = weights_digest or has_adapter(model)
    weights = Weights(model) if named else None
    identity = _identity_of(model, tokenizer, weights)
    if weights_digest and weights is not None:
        digest = weights.sha256(own_names(model, iter(weights)))
        identity["weights_digest"] = f"weights-sha256:{digest}"
    return identity | {
        "rope": rope_settings(model),
        "attention": attention_settings(model),
        "adapters": adapters(model, weights),
        "kv_quantization": quantisation(model),
        "compute_dtype": compute_dtype(model),
    }


def _identity_of(model: Any, tokenizer: Any, weights: Weights | None) -> dict[str, Any]:
    return {
        "model_revision": _model_revision(model, weights),
        "tokenizer_sha256": _tokenizer_sha256(tokenizer),
        "rope_theta": _rope_theta(model),
    }


# ---- The model's revision ----------------------------------------------------------------------


def _model_revision(model: Any, weights: Weights | None) -> str:
    commit = _commit(model.config)
    if commit is not None and not has_adapter(model) and not _is_quantised(model):
        return commit
    weights = weights or Weights(model)
    names = {key: plain_name(key) for key in weights}
    return f"weights-sha256:{weights.sha256(names, adapter_lines(model))}"


def _commit(config: Any) -> str | None:
    """Returns the commit that a config was loaded from, as far as Transformers kept it."""
    commit = getattr(config, "_commit_hash", None)
    if isinstance(commit, str) and _COMMIT.fullmatch(commit):
        return commit
    folder = getattr(config, "_name_or_path", None)
    match = _SNAPSHOT.search(str(folder or "").replace(os.sep, "/"))
    return match.group(1) if match else None


def _is_quantised(model: Any) -> bool:
    """Whether weights were quantised, perhaps while loading, which the commit does not tell."""
    return bool(
        getattr(model, "is_quantized", False)
        or getattr(model, "hf_quantizer", None) is not None
        or getattr(model.config, "quantization_config", None) is not None
    )


# ---- The tokenizer -----------------------------------------------------------------------------


def _tokenizer_sha256(tokenizer: Any) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not callable(getattr(backend, "to_str", None)):
        raise kvcache.UnsupportedCacheError(
            f"cannot compute a digest of the tokenizer: a {type(tokenizer).__module__}."
            f"{type(tokenizer).__qualname__} is not based on the `tokenizers` library. Load it "
            "with use_fast=True, hand over the tokenizer of a processor, or pass as "
            "tokenizer_sha256 the SHA-256 of its files"
        )
    pipeline = json.loads(backend.to_str())
    pipeline.pop("padding", None)
    pipeline.pop("truncation", None)
    text = json.dumps(pipeline, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


# ---- The rotary embedding ----------------------------------------------------------------------


def _rope_theta(model: Any) -> float:
    """Returns the base from the config's field, current (`rope_parameters`) or older."""
    config = model.config
    if hasattr(config, "get_text_config"):
        config = config.get_text_config(decoder=True)
    parameters = getattr(config, "rope_parameters", None)
    if isinstance(parameters, Mapping) and parameters:
        theta = _theta_of_parameters(parameters)
    else:
        theta = getattr(config, "rope_theta", None)
        if theta is None:
            theta = getattr(config, "rotary_emb_base", None)
    if theta is None:
        _require_no_rotary_embedding(model, config)
        return 0.0
    return float(theta)


def _theta_of_parameters(parameters: Mapping[str, Any]) -> Any:
    """Returns the base of one set of parameters, or of one set for each kind of layer."""
    if "rope_theta" in parameters:
        return parameters["rope_theta"]
    by_layer = {
        kind: inner["rope_theta"]
        for kind, inner in parameters.items()
        if isinstance(inner, Mapping) and "rope_theta" in inner
    }
    if "full_attention" in by_layer:
        return by_layer["full_attention"]
    if len(set(by_layer.values())) > 1:
        raise kvcache.UnsupportedCacheError(
            f"the model's config has several rotary bases, {by_layer}, and none for full "
            "attention. Pass a rope_theta of your own"
        )
    return next(iter(by_layer.values()), None)


def _require_no_rotary_embedding(model: Any, config: Any) -> None:
    """Refuses to say `none` where the model rotates and its config only does not say by what."""
    rotary = [type(module).__name__ for module in model.modules()]
    rotary = [name for name in rotary if "rotary" in name.lower()]
    if rotary or getattr(config, "rotary_dim", None):
        raise kvcache.UnsupportedCacheError(
            f"the model has a rotary embedding ({', '.join(sorted(set(rotary))) or 'rotary_dim'}), "
            f"and its {type(config).__name__} does not name the base. Pass a rope_theta of your "
            "own, as the model's source has it"
        )
