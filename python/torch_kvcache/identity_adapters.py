# identity_adapters.py: tells a model's own weights from those of its adapters, and names both.
# SPDX-License-Identifier: Apache-2.0

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import kvcache

from torch_kvcache.identity_settings import canonical, dtype_name
from torch_kvcache.identity_weights import Weights, plain_name

_LIBRARIES = ("peft", "adapters")
_STATE = ("active_adapters", "disable_adapters", "merged_adapters", "scaling")

# Children of PEFT's modules that are the model's own or hold it, and one that PEFT keeps besides.
_OWN = {"base_layer", "base_model", "model", "original_module", "token_adapter"}
_KEPT_TWICE = "word_embeddings"

# What a PEFT config says about where adapters come from, how they are trained, and to which modules
# they go, which the names of their tensors show.
_NOT_COMPUTED = {
    *("alpha_pattern", "auto_mapping", "base_model_name_or_path", "corda_config", "eva_config"),
    *("exclude_modules", "inference_mode", "init_lora_weights", "init_weights", "layers_pattern"),
    *("layers_to_transform", "loftq_config", "lora_dropout", "lora_ga_config", "megatron_config"),
    *("megatron_core", "module_dropout", "modules_to_save", "peft_version", "rank_dropout"),
    *("rank_pattern", "revision", "runtime_config", "target_modules", "target_parameters"),
    *("task_type", "velora_config"),
}


@dataclass
class _Adapter:
    """What of one adapter has an effect."""

    keys: dict[str, str] = field(default_factory=dict)  # of the state dict, with their names
    scales: dict[str, Any] = field(default_factory=dict)  # by module


@dataclass(frozen=True)
class _Place:
    """Where an entry of the state dict belongs: to the model, or to a module of PEFT's."""

    own: str  # the name that the entry, or the module, has without adapters
    owner: Any = None
    rest: tuple[str, ...] = ()  # the entry's name in the module


def has_adapter(model: Any) -> bool:
    """Whether any part of a model comes from PEFT or the adapters library, active or not."""
    for module in model.modules():
        if getattr(module, "_hf_peft_config_loaded", False) or getattr(module, "peft_config", None):
            return True
        if _library(module) in _LIBRARIES:
            return True
    return False


def adapter_lines(model: Any) -> Iterator[str]:
    """Yields what of adapters the weights do not show: which are active, merged, and how strong."""
    for name, module in sorted(model.named_modules()):
        if _library(module) in _LIBRARIES:
            state = {key: getattr(module, key) for key in _STATE if hasattr(module, key)}
            if state:
                yield json.dumps([plain_name(name), state], sort_keys=True, default=str)


def compute_dtype(model: Any) -> str:
    """Returns the floating dtypes of the model's own parameters, sorted and joined by `+`.

    Parameters of adapters are left out, and so is autocast, which leaves no trace in a model.
    """
    dtypes = {
        dtype_name(parameter.dtype)
        for name, parameter in model.named_parameters()
        if parameter.dtype.is_floating_point and _place_of(model, name).owner is None
    }
    return "+".join(sorted(dtypes)) or dtype_name(model.dtype)


def own_names(model: Any, keys: Iterator[str]) -> dict[str, str]:
    """Returns the keys of the model's own weights, with the names they have without adapters."""
    places = {key: _place_of(model, key) for key in keys}
    return {key: place.own for key, place in places.items() if place.owner is None}


def adapters(model: Any, weights: Weights | None) -> list[dict[str, Any]]:
    """Returns the adapters of PEFT that have an effect now, sorted by name.

    Each is an object: its `name`; its `type`, as PEFT calls it; its `scale`, one number, or an
    object of numbers by module where they differ, or null for a type without; and its `digest`,
    over what its config says about computing, and one line for each of its tensors as in the digest
    of weights, without the adapter's name. Adapters that are not active, disabled, or merged into
    the weights have no effect of their own and are not listed; the digest of the weights shows what
    was merged. Which adapter single rows of a batch ask for (`adapter_names`) is not seen.
    """
    if not has_adapter(model):
        return []
    configs: dict[str, Any] = {}
    for module in model.modules():
        if _library(module) == "adapters":
            raise kvcache.UnsupportedCacheError(
                "cannot name the adapters of this model: they are of the library `adapters`, and "
                "only those of PEFT are known. Pass an identity of your own"
            )
        found = getattr(module, "peft_config", None)
        configs |= dict(found) if isinstance(found, Mapping) else {}
    known = weights or Weights(model)
    listed = _adapters_with_effect(model, known, set(configs))
    return [_entry(name, listed[name], configs[name], known) for name in sorted(listed)]


def _library(module: Any) -> str:
    return type(module).__module__.partition(".")[0]


def _place_of(model: Any, key: str) -> _Place:
    """Walks from the model to the entry, leaving out what PEFT put between."""
    module: Any = model
    own: list[str] = []
    parts = key.split(".")
    for index, part in enumerate(parts):
        if _library(module) == "peft":
            if part not in _OWN:
                return _Place(".".join(own), module, tuple(parts[index:]))
        elif part != "_orig_mod":
            own.append(part)
        module = getattr(module, "_modules", {}).get(part)
    return _Place(".".join(own))


def _adapters_with_effect(model: Any, weights: Weights, names: set[str]) -> dict[str, _Adapter]:
    found: dict[str, _Adapter] = {}
    in_layers: set[tuple[str, ...]] = set()
    elsewhere: dict[str, tuple[str, ...]] = {}
    for key in weights:
        place = _place_of(model, key)
        if place.owner is None or place.rest[0] == _KEPT_TWICE:
            continue
        # The first part names what the tensors are for, and a later one the adapter.
        at = next((i for i, part in enumerate(place.rest) if i > 0 and part in names), None)
        if at is None or not _has_switch(place.owner):
            elsewhere[key] = place.rest
            continue
        in_layers.add(place.rest)
        name = place.rest[at]
        if name in _active(place.owner):
            adapter = found.setdefault(name, _Adapter())
            adapter.keys[key] = ".".join((place.own, *place.rest[:at], *place.rest[at + 1 :]))
            scaling = getattr(place.owner, "scaling", None)
            if isinstance(scaling, Mapping) and name in scaling:
                adapter.scales[place.own] = scaling[name]
    for key, rest in elsewhere.items():
        # What layers share is in each of them too.
        if rest not in in_layers:
            error = kvcache.UnsupportedCacheError(
                f"cannot name the adapters of this model: `{key}` belongs to an adapter of a type "
                "whose layers do not say when it has an effect. Pass an identity of your own"
            )
            error.found = key
            raise error
    return found


def _has_switch(module: Any) -> bool:
    """Whether adapters are switched on and off at this module of PEFT's, and not in its layers."""
    return hasattr(type(module), "disable_adapters") or "_adapters_disabled" in vars(module)


def _active(module: Any) -> list[str]:
    """Returns the adapters whose tensors a module of PEFT's uses in its next forward pass."""
    # A wrapped model answers for names that its wrapper lacks, also with methods.
    switch = (
        "disable_adapters" if hasattr(type(module), "disable_adapters") else "_adapters_disabled"
    )
    disabled = bool(getattr(module, switch))
    merged = list(getattr(module, "merged_adapters", None) or [])
    if disabled and merged:
        raise kvcache.UnsupportedCacheError(
            f"the adapters {merged} are merged into the weights and disabled at once, so that the "
            "next forward pass changes the weights. Unmerge them (`unmerge_adapter`) before the "
            "cache is made"
        )
    if disabled or merged:
        return []
    active = getattr(module, "active_adapters", None) or []
    return [active] if isinstance(active, str) else list(active)


def _entry(name: str, adapter: _Adapter, config: Any, weights: Weights) -> dict[str, Any]:
    path = f"adapters.{name}"
    settings = {
        key: value
        for key, value in config.to_dict().items()
        # What is off is like what a PEFT of another version does not have.
        if key not in _NOT_COMPUTED and value
    }
    text = json.dumps(canonical(settings, path), sort_keys=True)
    scales = {module: float(scale) for module, scale in sorted(adapter.scales.items())}
    different = set(scales.values())
    scale = scales if len(different) > 1 else next(iter(different), None)
    return {
        "name": canonical(name, path),
        "type": canonical(config.peft_type, f"{path}.type"),
        "scale": canonical(scale, f"{path}.scale"),
        "digest": f"adapter-sha256:{weights.sha256(adapter.keys, [text])}",
    }
