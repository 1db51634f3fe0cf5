# identity.py: names a loaded model and tokenizer, so that a cache is not used with another one.
# SPDX-License-Identifier: Apache-2.0

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import kvcache
import torch

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SNAPSHOT = re.compile(r"models--[^/]+/snapshots/([0-9a-f]{40})/?$")
_ADAPTER_STATE = ("active_adapters", "disable_adapters", "merged_adapters", "scaling")
_PIECE_BYTES = 64 * 1024 * 1024


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
    Where you vary those, put them into the revision that you pass, or under `user`.

    `tokenizer_sha256` is the SHA-256 of what turns text into ids: the tokenizer's pipeline,
    vocabulary, merges and added tokens, as the `tokenizers` library spells them. Padding and
    truncation, which a call leaves behind, are left out; so are the chat template and the folder,
    which change no id's meaning.

    `rope_theta` is the base of the rotary embedding, that of the full-attention layers where the
    config has several, and 0.0 for a model without one.

    Raises kvcache.UnsupportedCacheError, saying what to pass instead, where a part has no answer.
    """
    return {
        "model_revision": _model_revision(model),
        "tokenizer_sha256": _tokenizer_sha256(tokenizer),
        "rope_theta": _rope_theta(model),
    }


# ---- The model's revision ----------------------------------------------------------------------


def _model_revision(model: Any) -> str:
    commit = _commit(model.config)
    if commit is not None and not _has_adapter(model) and not _is_quantised(model):
        return commit
    return f"weights-sha256:{_weights_sha256(model)}"


def _commit(config: Any) -> str | None:
    """Returns the commit that a config was loaded from, as far as Transformers kept it."""
    commit = getattr(config, "_commit_hash", None)
    if isinstance(commit, str) and _COMMIT.fullmatch(commit):
        return commit
    folder = getattr(config, "_name_or_path", None)
    match = _SNAPSHOT.search(str(folder or "").replace(os.sep, "/"))
    return match.group(1) if match else None


def _has_adapter(model: Any) -> bool:
    """Whether any part of a model comes from PEFT or the adapters library, active or not."""
    for module in model.modules():
        if getattr(module, "_hf_peft_config_loaded", False) or getattr(module, "peft_config", None):
            return True
        if type(module).__module__.partition(".")[0] in ("peft", "adapters"):
            return True
    return False


def _is_quantised(model: Any) -> bool:
    """Whether weights were quantised, perhaps while loading, which the commit does not tell."""
    return bool(
        getattr(model, "is_quantized", False)
        or getattr(model, "hf_quantizer", None) is not None
        or getattr(model.config, "quantization_config", None) is not None
    )


def _weights_sha256(model: Any) -> str:
    """Hashes all entries of the state dict, several at once; the order of work has no effect."""
    # Tied weights appear under several names and are hashed once.
    tensors = dict(_named_tensors(model.state_dict()))
    places = {name: _place(tensor) for name, tensor in tensors.items()}
    distinct = {places[name]: tensor for name, tensor in tensors.items()}
    workers = max(1, min(4, os.cpu_count() or 1))
    with ThreadPoolExecutor(workers, thread_name_prefix="kvc-weights") as pool:
        digests = dict(zip(distinct, pool.map(_values_sha256, distinct.values()), strict=True))
    total = hashlib.sha256()
    for line in _adapter_lines(model):
        total.update(line.encode("ascii") + b"\n")
    for name in sorted(tensors):
        tensor = tensors[name]
        dtype = str(tensor.dtype).removeprefix("torch.")
        line = json.dumps([name, dtype, list(tensor.shape), digests[places[name]]])
        total.update(line.encode("ascii") + b"\n")
    return total.hexdigest()


def _adapter_lines(model: Any) -> Iterator[str]:
    """Yields what of adapters the weights do not show: which are active, merged, and how strong."""
    for name, module in sorted(model.named_modules()):
        if type(module).__module__.partition(".")[0] in ("peft", "adapters"):
            state = {key: getattr(module, key) for key in _ADAPTER_STATE if hasattr(module, key)}
            if state:
                yield json.dumps([_plain_name(name), state], sort_keys=True, default=str)


def _plain_name(name: str) -> str:
    """Returns a name without the parts that torch.compile puts into it."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def _named_tensors(entries: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields plain tensors with their names; quantised ones are taken apart into theirs."""
    for key, value in entries.items():
        name = prefix + _plain_name(key)
        if type(value) in (torch.Tensor, torch.nn.Parameter):
            if value.device.type == "meta" or value.layout != torch.strided:
                raise _no_revision(name, f"a tensor on {value.device} with layout {value.layout}")
            yield name, value.detach()
        elif isinstance(value, (bytes, bytearray)):
            yield name, torch.tensor(list(value), dtype=torch.uint8)
        elif hasattr(value, "__tensor_flatten__") and not _is_distributed(value):
            inner = {part: getattr(value, part) for part in value.__tensor_flatten__()[0]}
            yield from _named_tensors(inner, f"{name}.{type(value).__name__}.")
        else:
            raise _no_revision(name, f"a {type(value).__module__}.{type(value).__qualname__}")


def _is_distributed(value: Any) -> bool:
    return any(base.__name__ == "DTensor" for base in type(value).__mro__)


def _no_revision(name: str, what: str) -> kvcache.UnsupportedCacheError:
    error = kvcache.UnsupportedCacheError(
        f"cannot name this model by its weights: `{name}` is {what}, whose values are not at hand. "
        "Load the model whole into memory, or pass a model_revision of your own"
    )
    error.found = name
    return error


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Returns where a tensor's values lie; equal places hold equal values."""
    return (
        tensor.device,
        tensor.untyped_storage().data_ptr(),
        tensor.storage_offset(),
        tensor.dtype,
        tuple(tensor.shape),
        tensor.stride(),
    )


def _values_sha256(tensor: torch.Tensor) -> str:
    """Hashes a tensor's row-major bytes; from a device they come in pieces of 64 MiB."""
    digest = hashlib.sha256()
    flat = tensor.resolve_conj().resolve_neg().contiguous()
    flat = flat.as_strided((flat.numel(),), (1,), flat.storage_offset())
    step = max(1, _PIECE_BYTES // flat.element_size())
    for start in range(0, flat.numel(), step):
        digest.update(flat[start : start + step].cpu().view(torch.uint8).numpy().data)
    return digest.hexdigest()


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
