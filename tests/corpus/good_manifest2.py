"""good_manifest2.py: the valid files of the corpus that use what format 1.1 added.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cases import (
    Good,
    cache,
    cross_2,
    empties_2,
    full_2,
    kvc1,
    linear_2,
    quantized_2,
    states_2,
    tensors_of,
    tokens_2,
    two_2,
)
from kvc1 import Layer, Tensor, key_value

BIG = 2**53 - 1
MOST = 2**31 - 1
PARENT = "kvc1:" + "0123456789abcdef" * 4


def table(name: str, note: str, metadata: Mapping[str, Any], **fields: Any) -> Good:
    """Returns a good file with a manifest of version 2; `fields` are fields of Parts."""
    return Good(f"m2-{name}", note, kvc1.parts(metadata, tensors_of(dict(metadata)), **fields))


def layered(
    layers: Sequence[Layer], last: Sequence[Tensor] = (), tokens: int = 3, **changes: Any
) -> dict[str, Any]:
    """Returns metadata with these layers, and tensors of the cache."""
    members = kvc1.identity(sequence_length=tokens)
    return kvc1.with_manifest_2(members, layers, last, **changes)


def states(channels: int = 2) -> list[Tensor]:
    """Returns the two states of a linear layer."""
    conv = Tensor("conv_state", [1, channels, 4])
    return [conv, Tensor("recurrent_state", [1, 1, 2, channels], dtype="f32")]


def indexed() -> list[Tensor]:
    """Returns keys, values and the keys of an index."""
    return [*key_value(), Tensor("indexer_key", [1, 1, 3, 4])]


# ---- Kinds, dtypes, shapes -----------------------------------------------------------------------


def kinds() -> Iterator[Good]:
    """Yields every kind of layer, alone where that is the smallest file, and all together."""
    yield table("full", "one layer of full attention", full_2())
    yield table("sliding", "full and sliding attention, of different lengths", two_2())
    yield table("linear", "a linear layer", linear_2())
    yield table("linear-full", "keys, values and states of two numbers in one layer", states_2())
    yield table("cross", "an encoder and decoder", cross_2())
    yield table("tokens", "token_ids and attention_mask", tokens_2())
    every = [
        Layer("full", key_value()),
        Layer("sliding", key_value(tokens=2), window=2),
        Layer("chunked", key_value(), window=8192),
        Layer("static", key_value()),
        Layer("static_sliding", key_value(tokens=1), window=1),
        Layer("indexed", indexed()),
        Layer("static_indexed", indexed()),
        Layer("linear", states()),
        Layer("linear_full", [*key_value(), *states()]),
        Layer("linear_static", [*key_value(), *states(3)]),
        Layer("linear_sliding", [*key_value(tokens=2), *states()], window=2),
        Layer("linear_static_sliding", [*key_value(tokens=2), *states()], window=2),
        Layer("quantized", kvc1.packed(), stored_tokens=3),
    ]
    yield table("every-kind", "a layer of every kind, each with all its roles", layered(every))
    partial = [
        Layer("linear_full", key_value()),
        Layer("linear", [Tensor("recurrent_state", [1, 2])]),
        Layer("linear", [Tensor("conv_state", [1, 2], index=7)]),
        Layer("indexed", key_value()),
    ]
    note = "layers without the roles that they need not have, and a state whose number is not 0"
    yield table("optional-roles", note, layered(partial))
    many = [
        Layer("full", key_value(tokens=2))
        if i % 6 == 5
        else Layer("sliding", key_value(2), window=2)
        for i in range(48)
    ]
    yield table("layers-48", "a pattern of full and sliding layers", layered(many))


def dtypes() -> Iterator[Good]:
    """Yields every dtype, and numbers of dimensions from 0 to 8."""
    tensors = [
        Tensor("conv_state", [1, 2, 3], dtype=dtype, index=i)
        for i, dtype in enumerate(kvc1.ITEM_BYTES_2)
    ]
    metadata = layered([Layer("linear", tensors)])
    yield table("every-dtype", "a state of every dtype", metadata, align_log2=6)
    for dtype in ("f64", "f8_e4m3fn", "bool"):
        members = kvc1.identity(dtype=dtype)
        layer = Layer("full", key_value(dtype=dtype))
        metadata = kvc1.with_manifest_2(members, [layer])
        yield table(f"dtype-{dtype}", f"{dtype} at the top too", metadata)
    tensors = [
        Tensor("recurrent_state", [1, 2, 1, 2, 1, 1, 2, 2][:rank], dtype="f16", index=rank)
        for rank in range(9)
    ]
    yield table("ranks", "tensors of 0 to 8 dimensions", layered([Layer("linear", tensors)]))
    null = {"dtype": None, "head_dim": None, "kv_heads": None}
    mixed = [Layer("full", key_value(heads=1)), Layer("full", key_value(heads=2, dtype="f16"))]
    metadata = kvc1.with_manifest_2(kvc1.identity(**null), mixed)
    yield table("null-at-top", "null where layers differ in heads and dtype", metadata)
    only = Layer("linear", [Tensor("conv_state", [], dtype="u8")], class_name="c")
    names = {"cache_class": "c", "state_schema": "s", "framework": {"name": "n", "version": "v"}}
    metadata = kvc1.with_manifest_2(kvc1.identity(sequence_length=1), [only], **names)
    yield table("smallest", "one byte, in a tensor without dimensions", metadata)


def payloads() -> Iterator[Good]:
    """Yields tensors with gaps, without bytes, and around the chunk grid."""
    for log2 in (0, 6, 12):
        fields = {"align_log2": log2}
        note = f"tensors of no bytes first, between and last, at multiples of {1 << log2}"
        yield table(f"empty-tensors-{1 << log2}", note, empties_2(), **fields)
        layers = [
            Layer("full", key_value(tokens=tokens, head_dim=head_dim))
            for tokens, head_dim in ((3, 5), (64, 1), (13, 5))
        ]
        note = f"tensors of 15, 64 and 65 bytes at multiples of {1 << log2}"
        yield table(f"align-{1 << log2}", note, layered(layers), **fields)
    sizes = (65537, 0, 10, 65536, 1)
    tensors = [Tensor("conv_state", [size], index=i) for i, size in enumerate(sizes)]
    metadata = layered([Layer("linear", tensors)])
    note = "tensors of two chunks, none, and one"
    yield table("chunks", note, metadata, align_log2=6)
    tensors = [Tensor("conv_state", [size], index=i) for i, size in enumerate((0, 0, 65537, 0))]
    metadata = layered([Layer("linear", tensors)])
    note = "one tensor of two chunks among tensors of no bytes"
    yield table("chunks-and-empty", note, metadata, align_log2=12)


# ---- States, aliases, packing --------------------------------------------------------------------


def aliases() -> Iterator[Good]:
    """Yields layers in which roles share a tensor."""
    key, value = key_value()
    index = Tensor("indexer_key", [1, 1, 3, 2])
    layers = [
        Layer("full", [key], aliases={"value": "key"}),
        Layer("sliding", [value], aliases={"key": "value"}, stored_tokens=3, window=3),
        Layer("indexed", [key], aliases={"indexer_key": "key", "value": "key"}),
        Layer("indexed", [key, index], aliases={"value": "indexer_key"}),
        Layer("linear_full", [key, *states()], aliases={"value": "key"}),
    ]
    yield table("aliases", "roles that are the same tensor as another", layered(layers))


def layer_states() -> Iterator[Good]:
    """Yields layers that were not used, or are empty."""
    layers = [
        Layer("full"),
        Layer("full", positions_seen=3),
        Layer("full", key_value(tokens=0)),
        Layer("full", key_value(tokens=0), positions_seen=0),
        Layer("full", key_value()),
        Layer("linear", [Tensor("conv_state", [1, 0])]),
        Layer("linear"),
        Layer("quantized", positions_seen=3),
        Layer("sliding", window=4096),
    ]
    note = "layers that are uninitialized, empty with and without tensors, and filled"
    yield table("states", note, layered(layers))
    layers = [Layer("full", key_value(tokens=1)), Layer("full", key_value(), positions_seen=9)]
    note = "sequence_length is what the furthest layer has seen, not what it stores"
    yield table("positions", note, layered(layers))
    odd = [
        Layer("full", [Tensor(role, [1, 0, 5, 2]) for role in ("key", "value")]),
        Layer(
            "indexed", [Tensor("key", [1, 1, 0, 2]), Tensor("value", [1, 1, 0, 2]), indexed()[2]]
        ),
    ]
    note = "an empty layer without heads, and a filled one without tokens"
    yield table("empty-shapes", note, layered(odd))


def encoders() -> Iterator[Good]:
    """Yields caches of encoders and decoders."""
    layers = [
        Layer("full", key_value()),
        Layer("sliding", key_value(tokens=2), window=2),
        Layer("full", key_value(tokens=7), cache="cross"),
        Layer("full", cache="cross"),
        Layer("static", [key_value()[0]], cache="cross", aliases={"value": "key"}),
    ]
    last = [Tensor("attention_mask", [1, 7], dtype="i64")]
    note = "two layers of self, three of cross, of which one was not used"
    yield table("encoder-decoder", note, layered(layers, last))
    metadata = layered([Layer("full", key_value())], wrapper="encoder_decoder")
    yield table("encoder-decoder-no-cross", "an encoder and decoder without cross", metadata)
    layers = [Layer("full", key_value(batch_size=2))]
    last = [Tensor("token_ids", [2, 3], dtype="u32")]
    metadata = layered(layers, last, batch_size=2)
    yield table("batch-2", "two sequences", metadata)
    last = [Tensor("token_ids", [1, 20], dtype="u16")]
    metadata = layered([Layer("full", key_value())], last)
    yield table("token-ids", "more token_ids than the cache holds, and no mask", metadata)


def quantized() -> Iterator[Good]:
    """Yields packed keys and values."""
    yield table("quantized", "packed elements, scales and zeros", quantized_2())
    yield table("quantized-no-zero", "packed elements and scales", quantized_2(zero=False))
    tail = [Tensor(role, [1, 1, 2, 4], dtype="bf16") for role in ("key", "value")]
    both = [*tail, *kvc1.packed(tokens=4, bits=3)]
    half = kvc1.packed()[:3] + kvc1.packed(zero=False)[2:]
    empty = [Tensor(role, [1, 1, 0, 4], dtype="bf16") for role in ("key", "value")]
    flat = [Tensor("key", [9], dtype="f16")]
    layers = [
        Layer("quantized", both, stored_tokens=6),
        Layer("quantized", half, stored_tokens=4),
        Layer("quantized", [*empty, *kvc1.packed(bits=8)], stored_tokens=4),
        Layer("quantized", [*flat, *kvc1.packed(bits=1)], stored_tokens=4),
        Layer("quantized", empty),
    ]
    note = "packed tensors beside tokens that are not packed yet, and zeros for keys alone"
    yield table("quantized-tail", note, layered(layers, tokens=6))
    mixed = kvc1.packed()
    assert mixed[0].packing is not None
    mixed[0].packing = {**mixed[0].packing, "group_size": None, "axis": 0, "dtype": "f32"}
    metadata = layered([Layer("quantized", mixed, stored_tokens=4), Layer("full", key_value())])
    yield table("quantized-mixed", "a packed layer and one that is not", metadata)


# ---- Names of format 1.1, segments, limits -------------------------------------------------------


def names() -> dict[str, Any]:
    """Returns every top-level name that format 1.1 added, except parent_root."""
    return {
        "adapters": [{"digest": "blake3:00", "scale": 0.5}, {}],
        "attention": {"implementation": "sdpa", "sinks": None, "windows": [4096, None]},
        "compute_dtype": "bfloat16",
        "kv_quantization": {"bits": 4, "symmetric": True},
        "rope": {"factor": 8.0, "type": "yarn", "mscale": None},
        "weights_digest": "blake3:" + "00" * 32,
    }


def segments() -> Iterator[Good]:
    """Yields files that continue a parent, and files with the names of format 1.1."""
    start = {"sequence_start": 1, "parent_root": PARENT}
    metadata, tensors = cache()
    made = kvc1.parts({**metadata, **start}, tensors)
    yield Good("segment", "a segment with a manifest of version 1", made)
    yield table("segment", "a segment with a manifest of version 2", {**full_2(), **start})
    metadata = {**kvc1.identity(), **start, "sequence_start": BIG}
    yield Good("segment-opaque", "a segment without a manifest", kvc1.parts(metadata, b"opaque"))
    made = kvc1.parts({**metadata, "unknown": None}, b"opaque", version_minor=2)
    yield Good("segment-minor-2", "a segment of a later minor version", made)
    metadata, tensors = cache()
    made = kvc1.parts({**metadata, **names()}, tensors)
    yield Good("names", "the names of format 1.1 and a manifest of version 1", made)
    metadata = {**full_2(), **names(), **start, "user": {"null": None}}
    yield table("names", "the names of format 1.1 and a manifest of version 2", metadata)
    for name, value in {**names(), "kv_quantization": None}.items():
        made = kvc1.parts({**kvc1.identity(), name: value}, b"opaque")
        yield Good(f"name-{name}", f"{name} alone", made)
    nothing: dict[str, Any] = {"adapters": [], "attention": {}, "rope": {}, "kv_quantization": {}}
    made = kvc1.parts({**kvc1.identity(), **nothing}, b"opaque")
    yield Good("names-empty", "names of format 1.1 that hold nothing", made)
    yield table("minor-1", "minor version 1 without its names", full_2(), version_minor=1)
    metadata = {**full_2(), **names(), "unknown": [None]}
    yield table("minor-65535", "a later minor version", metadata, version_minor=65535)
    yield table("tag", "a tag made with the key 00 01 02 ... 1f", full_2(), key=bytes(range(32)))


def odd_objects() -> Iterator[Good]:
    """Yields `info` and `flags` with whatever is canonical."""
    deep: Any = []
    for _ in range(12):
        deep = [deep]
    odd = {"": None, "\u0001\u2028\U0001f600": [True, False, 0.1, -BIG, {}], "deep": deep}
    flags = {"version": 3, "kind": {"kind": None}, "\uff5e": 1e300}
    layer = Layer("full", key_value(), flags=flags, class_name='\\"../\u202eclass\n')
    metadata = layered([layer], info=odd, cache_class="\u0001", state_schema="un/known")
    yield table("odd-info", "odd but canonical values of info and flags, odd names", metadata)
    metadata = layered([Layer("full", key_value(), flags=full_2())], info=full_2())
    yield table("nested-info", "whole metadata inside info and flags", metadata)


def largest() -> Iterator[Good]:
    """Yields integers and strings at their limits."""
    packs = kvc1.packed()
    shapes: tuple[list[int], ...] = ([BIG] * 8, [])
    for tensor, shape, axis in zip((packs[0], packs[3]), shapes, (7, -1), strict=True):
        assert tensor.packing is not None
        more = {"axis": axis, "bits": 8, "codec": "\u00e9" * 32, "group_size": MOST}
        tensor.packing = {**tensor.packing, **more, "shape": shape}
    axes = [("a" * 31) + letter for letter in "abcdefgh"]
    layers = [
        Layer("linear", [Tensor("conv_state", [2], index=255)], positions_seen=MOST),
        Layer("linear", [Tensor("conv_state", [1] * 8, axes)], class_name="\n" * 128),
        Layer("sliding", window=MOST),
        Layer(
            "linear", [Tensor("conv_state", [0, *[BIG] * 7]), Tensor("conv_state", [1], index=1)]
        ),
        Layer("linear", [Tensor("conv_state", [*[BIG] * 7, 0], dtype="i64")]),
        Layer(
            "indexed",
            [
                Tensor("key", [MOST, 0], ["sequence", "z9_"]),
                Tensor("value", [0, MOST], ["z", "sequence"]),
                Tensor("indexer_key", [1]),
            ],
            stored_tokens=MOST,
        ),
        Layer("quantized", packs, stored_tokens=MOST),
    ]
    long = {"name": "\u00e9" * 32, "version": "v" * 64}
    changes = {"framework": long, "cache_class": "\U0001f600" * 32, "state_schema": "s" * 128}
    members = kvc1.identity(kv_heads=32768, head_dim=32768)
    metadata = kvc1.with_manifest_2(members, layers, batch_size=MOST, **changes)
    note = "integers and strings at their limits; a product that has a factor 0 is 0"
    yield table("largest", note, metadata)
    metadata = {**kvc1.identity(), "compute_dtype": "\u00e9" * 32, "weights_digest": "\t" * 256}
    yield Good("names-longest", "names of format 1.1 at their limits", kvc1.parts(metadata, b"o"))
    metadata = full_2()
    values = 16384 + 32 * 2 - count(metadata) - 1
    metadata["tensor_manifest"]["info"] = {"many": [0] * values}
    note = "16,448 JSON values with two tensors, most of them in info"
    yield table("values-16448", note, metadata)


def count(value: Any) -> int:
    """Returns how many JSON values there are in a value, itself included."""
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + sum(map(count, value)) if isinstance(value, list) else 1


def cases() -> Iterator[Good]:
    """Yields all files of this module."""
    for group in (
        kinds, dtypes, payloads, aliases, layer_states, encoders, quantized, segments,
        odd_objects, largest,
    ):  # fmt: skip
        yield from group()
