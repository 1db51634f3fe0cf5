# schema.py: decides what the tensors of a cache mean, and whether this Transformers agrees.
# SPDX-License-Identifier: Apache-2.0
"""DeepSeek's latent attention has two forms under the same names: Transformers before 5.15 caches
the keys and values of every head, later versions the latent and the rotated part."""

from collections.abc import Iterable

import transformers

from torch_kvcache.kinds.record import LayerRecord, refuse_load, refuse_save

ATTENTION = "hf/attention"
EXPANDED = "hf/mla-expanded"
LATENT = "hf/mla-latent"
SCHEMAS = (ATTENTION, EXPANDED, LATENT)

_FIRST_LATENT = (5, 15)


def caches_latents(version: str | None = None) -> bool:
    """Whether a version of Transformers, this one if None, caches DeepSeek's latent as it is."""
    words = (version or transformers.__version__).split(".")[:2]
    numbers = tuple(int(word) if word.isdigit() else 0 for word in words)
    return numbers >= _FIRST_LATENT


def state_schema(layers: Iterable[LayerRecord], given: str | None) -> str:
    """Returns the state schema of a cache: the one that the caller names, or what its shapes tell.

    Keys and values of one size are plain attention. Where their sizes differ, one head on
    Transformers 5.15 and later is a latent, several heads before it are expanded keys and values.

    Raises kvcache.UnsupportedCacheError where the shapes do not tell, and where the caller names a
    schema that is unknown or that this version of Transformers does not make.
    """
    if given is not None:
        if given not in SCHEMAS:
            raise refuse_save(
                f"state_schema is {given!r}; these are known: {', '.join(SCHEMAS)}",
                "Pass one of them.",
                found=given,
            )
        if given != ATTENTION and (given == LATENT) != caches_latents():
            raise refuse_save(
                f"state_schema is {given!r}, which Transformers {transformers.__version__} does "
                "not make",
                f"Pass {LATENT if caches_latents() else EXPANDED!r}, or nothing.",
                found=given,
            )
        return given
    heads = {layer_heads for layer in layers for layer_heads in _heads_of_two_sizes(layer)}
    if not heads:
        return ATTENTION
    if caches_latents():
        return LATENT if heads == {1} else ATTENTION
    if 1 not in heads:
        return EXPANDED
    raise refuse_save(
        "keys and values have one head each, of different sizes: with this version of Transformers "
        "that is either a model with one head, or a model that caches a latent of its own",
        f"Pass state_schema={EXPANDED!r} for DeepSeek, {ATTENTION!r} for a model that has such "
        "heads.",
    )


def _heads_of_two_sizes(layer: LayerRecord) -> Iterable[int]:
    """Yields the number of heads of a filled layer whose keys and values differ in their size."""
    shapes = {part.role: list(part.tensor.shape) for part in layer.parts if part.tensor.numel()}
    packed = {part.role: part.packing["shape"] for part in layer.parts if part.packing}
    keys = packed.get("packed_key", shapes.get("key"))
    values = packed.get("packed_value", shapes.get("value"))
    if keys and values and len(keys) == len(values) == 4 and keys[-1] != values[-1]:
        yield keys[1]


def require_schema(schema: str, version: str) -> None:
    """Refuses a file whose tensors mean something else here. `version` is that of its writer."""
    if schema not in SCHEMAS:
        raise refuse_load(
            f"its state schema is {schema!r}; these are known: {', '.join(SCHEMAS)}",
            "Use a later version of torch_kvcache, or the program that wrote the file.",
            found=schema,
        )
    if schema == ATTENTION or (schema == LATENT) == caches_latents():
        return
    here = transformers.__version__
    needed = "5.15 or later" if schema == LATENT else "5.14 or earlier"
    raise refuse_load(
        f"its state schema is {schema!r}, written by Transformers {version}: the keys and values "
        f"of DeepSeek's attention, which Transformers {here} caches in another form",
        f"Use Transformers {needed}, or keep the token ids and prefill again.",
        expected=LATENT if caches_latents() else EXPANDED,
        found=schema,
    )
