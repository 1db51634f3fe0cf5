"""bad_tables.py: hostile files whose tables of layers and tensors contradict something.

SPDX-License-Identifier: Apache-2.0

All have a manifest of version 2. Each breaks one rule and is correctly re-signed. Where a tensor is
added, removed or reshaped, the names, sizes and offsets of the others follow, so that nothing else
is wrong.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cases import (
    MISSING,
    Bad,
    Change,
    b3,
    changed_2,
    cross_2,
    empties_2,
    full_2,
    kvc1,
    linear_2,
    pattern,
    quantized_2,
    states_2,
    tensors_of,
    tokens_2,
    two_2,
)
from kvc1 import Layer, Tensor, key_value

BIG = 2**53 - 1
MANIFEST = "tensor_manifest"

Base = Callable[[], dict[str, Any]]

# ---- Relations -----------------------------------------------------------------------------------


def geometry(name: str, why: str, base: Base, *changes: Change, **options: Any) -> Bad:
    """Returns a file with a change; the base is settled after it unless the options say no."""
    return Bad("geometry", f"m2-{name}", why, changed_2(base(), *changes, **options).encode())


def built(name: str, why: str, layers: Sequence[Layer], *last: Tensor, **changes: Any) -> Bad:
    """Returns a file with these layers; `top` among the changes is set at the top level.

    Where no tensor has bytes, the file has one all the same, since a header cannot say 0.
    """
    top = changes.pop("top", {})
    metadata = kvc1.with_manifest_2(kvc1.identity(), layers, last, **changes)
    metadata.update(top)
    tensors = tensors_of(metadata)
    payload = None if any(tensors) else b"\0"
    return Bad("geometry", f"m2-{name}", why, kvc1.encode(metadata, tensors, payload=payload))


def layer_order() -> Iterator[Bad]:
    """Yields tables of layers that are out of order, or do not fit the top level."""
    own, cross = Layer("full", key_value()), Layer("full", key_value(), cache="cross")
    some = {"wrapper": "encoder_decoder"}
    yield built("cross-first", "a layer of cross before one of self", [cross, own], **some)
    yield built("self-after-cross", "self, cross, self", [own, cross, own], **some)
    top = {"layers": 1, "sequence_length": 3}
    yield built("cross-alone", "no layer of self", [cross], top=top, **some)
    yield built("cross-without-wrapper", "cross, and no wrapper", [own, cross], wrapper="none")
    numbers: dict[str, tuple[Base, int, int]] = {
        "first-1": (full_2, 0, 1),
        "gap": (two_2, 1, 2),
        "repeated": (two_2, 1, 0),
        "most": (two_2, 1, 32767),
        "cross-1": (cross_2, 1, 1),
    }
    for name, (base, index, number) in numbers.items():
        why = f"layer record {index} has the number {number}"
        yield geometry(f"number-{name}", why, base, (("layers", index, "layer"), number))
    tops: dict[str, tuple[Base, str, int]] = {
        "layers-more": (full_2, "layers", 2),
        "layers-less": (two_2, "layers", 1),
        "layers-with-cross": (cross_2, "layers", 2),
        "layers-most": (full_2, "layers", 32768),
        "length-more": (full_2, "sequence_length", 4),
        "length-less": (two_2, "sequence_length", 2),
        "length-of-cross": (cross_2, "sequence_length", 5),
        "length-most": (full_2, "sequence_length", 2**31 - 1),
    }
    for name, (base, member, value) in tops.items():
        metadata = {**base(), member: value}
        data = kvc1.encode(metadata, tensors_of(metadata))
        why = f"{member} is {value} at the top, which the layers contradict"
        yield Bad("geometry", f"m2-top-{name}", why, data)
    seen = [Layer("full", key_value(), positions_seen=9)]
    why = "sequence_length is what is stored, not what was seen"
    yield built("top-length-stored", why, seen, top={"sequence_length": 3})


def windows() -> Iterator[Bad]:
    """Yields kinds with a window that they have not, or without theirs."""
    index = Tensor("indexer_key", [1, 1, 3, 4])
    state = Tensor("conv_state", [1, 2])
    for kind in ("full", "static", "indexed", "static_indexed", "linear_full", "linear_static"):
        more = {"indexed": [index], "static_indexed": [index]}.get(kind, [])
        yield built(f"window-{kind}", f"a window in {kind}", [
            Layer(kind, [*key_value(), *more], window=8)
        ])  # fmt: skip
    yield built("window-linear", "a window in linear", [Layer("linear", [state], window=8)])
    layer = Layer("quantized", kvc1.packed(), stored_tokens=4, window=8)
    yield built("window-quantized", "a window in quantized", [layer])
    kinds = ("sliding", "chunked", "static_sliding", "linear_sliding", "linear_static_sliding")
    for kind in kinds:
        why = f"no window in {kind}"
        yield built(f"no-window-{kind}", why, [Layer(kind, key_value())])
    why = "no window in a sliding layer that was not used"
    yield built("no-window-uninitialized", why, [Layer("full", key_value()), Layer("sliding")])
    why = "a window in a full layer that is empty"
    layers = [Layer("full", key_value()), Layer("full", positions_seen=3, window=8)]
    yield built("window-empty", why, layers)


def layer_states() -> Iterator[Bad]:
    """Yields states that tensors, tokens or aliases contradict."""
    own = Layer("full", key_value())
    none = key_value(tokens=0)
    state = Tensor("conv_state", [1, 2])
    wrong: dict[str, tuple[str, Layer]] = {
        "uninitialized-seen": ("tokens seen", Layer(state="uninitialized", positions_seen=3)),
        "uninitialized-stored": (
            "tokens seen and stored",
            Layer(state="uninitialized", positions_seen=3, stored_tokens=3),
        ),
        "uninitialized-empty-tensors": (
            "tensors without bytes",
            Layer("full", none, state="uninitialized", positions_seen=0),
        ),
        "uninitialized-tensor": (
            "a tensor",
            Layer("linear", [state], state="uninitialized", positions_seen=0),
        ),
        "empty-tensors": ("tensors with bytes", Layer("linear", [state], state="empty")),
        "empty-one-tensor": (
            "a tensor with bytes beside one without",
            Layer("linear_full", [*none, state], state="empty", stored_tokens=0),
        ),
        "empty-stored": ("tokens stored", Layer("full", none, stored_tokens=2)),
        "empty-stored-no-tensors": ("tokens stored", Layer(positions_seen=3, stored_tokens=1)),
        "empty-alias": ("an alias", Layer("full", none[:1], aliases={"value": "key"})),
        "filled-nothing": ("no tensors", Layer(state="filled", stored_tokens=0)),
        "filled-empty-tensors": (
            "no bytes",
            Layer("full", none, state="filled", stored_tokens=0),
        ),
        "filled-linear-nothing": ("no tensors", Layer("linear", state="filled")),
        "filled-quantized-nothing": ("no tensors", Layer("quantized", state="filled")),
        "linear-stored": ("tokens stored", Layer("linear", [state], stored_tokens=3)),
        "linear-empty-stored": (
            "tokens stored",
            Layer("linear", positions_seen=3, stored_tokens=1),
        ),
    }
    for name, (why, layer) in wrong.items():
        kind = f"{name.split('-')[0]}, and has {why}"
        yield built(f"state-{name}", f"a layer is {kind}", [own, layer])
    layer = Layer("full", key_value(tokens=4), positions_seen=3)
    yield built("stored-more-than-seen", "4 tokens stored of 3 seen", [layer])
    cross = Layer("full", key_value(tokens=4), cache="cross", positions_seen=3)
    yield built("stored-more-than-seen-cross", "4 tokens stored of 3 seen", [own, cross])
    layer = Layer("quantized", kvc1.packed(), stored_tokens=4, positions_seen=3)
    yield built("stored-more-than-seen-quantized", "4 tokens stored of 3 seen", [layer])


def aliases() -> Iterator[Bad]:
    """Yields aliases that lead nowhere, or are not needed."""
    key, value = key_value()
    index = Tensor("indexer_key", [1, 1, 3, 4])
    states = [Tensor("conv_state", [1, 2]), Tensor("recurrent_state", [1, 2])]
    wrong: dict[str, tuple[str, list[Tensor], dict[str, str]]] = {
        "to-itself": ("full", [key], {"value": "value"}),
        "to-itself-present": ("full", [key, value], {"value": "value"}),
        "from-present": ("full", [key, value], {"value": "key"}),
        "to-absent": ("full", [index], {"key": "value", "value": "key"}),
        "chain": ("indexed", [key], {"indexer_key": "value", "value": "key"}),
        "indexer-to-absent": ("indexed", [key, value], {"indexer_key": "indexer_key"}),
        "from-role-of-other-kind": ("full", [key, value], {"indexer_key": "key"}),
        "from-packed": ("full", [key, value], {"packed_key": "key"}),
        "from-token-ids": ("full", [key, value], {"token_ids": "key"}),
        "from-state": ("linear_full", [key, value, states[0]], {"recurrent_state": "key"}),
        "to-state": ("linear_full", [key, states[0]], {"value": "conv_state"}),
        "state-to-state": ("linear", [states[0]], {"recurrent_state": "conv_state"}),
    }
    for name, (kind, tensors, alias) in wrong.items():
        if name == "to-absent":
            kind = "indexed"
        layer = Layer(kind, tensors, aliases=alias)
        yield built(f"alias-{name}", f"aliases {alias} in {kind}", [layer])
    last = Tensor("token_ids", [1, 3])
    layer = Layer("full", [key], aliases={"value": "token_ids"}, state="filled")
    yield built("alias-to-token-ids", "an alias to a tensor of the cache", [layer], last)
    packed = kvc1.packed()
    pairs: dict[str, tuple[int, dict[str, str]]] = {
        "packed-to-absent": (3, {"packed_value": "key"}),
        "packed": (3, {"packed_value": "packed_key"}),
        "scale": (4, {"value_scale": "key_scale"}),
        "zero": (2, {"key_zero": "key_scale"}),
    }
    for name, (place, alias) in pairs.items():
        rest = [*packed[:place], *packed[place + 1 :]]
        layer = Layer("quantized", rest, stored_tokens=4, aliases=alias)
        why = f"aliases {alias}, where a tensor must be"
        yield built(f"alias-quantized-{name}", why, [layer])


def roles() -> Iterator[Bad]:
    """Yields roles that a kind must have or must not have, and tensors in no layer."""
    key, value = key_value()
    index = Tensor("indexer_key", [1, 1, 3, 4])
    conv, recurrent = Tensor("conv_state", [1, 2]), Tensor("recurrent_state", [1, 2])
    packed = kvc1.packed()
    scale = Tensor("key_scale", [1], dtype="f16")
    missing: dict[str, tuple[str, list[Tensor]]] = {
        "full-value": ("full", [key]),
        "full-key": ("full", [value]),
        "static-value": ("static", [key]),
        "indexed-key-value": ("indexed", [index]),
        "indexed-value": ("indexed", [key, index]),
        "linear_full-key-value": ("linear_full", [conv, recurrent]),
        "linear_static-value": ("linear_static", [key, conv]),
        "quantized-packed": ("quantized", [key, value]),
        "quantized-packed_value": ("quantized", packed[:3]),
        "quantized-packed_key": ("quantized", packed[3:]),
    }
    for name, (kind, tensors) in missing.items():
        stored = 4 if kind == "quantized" else 3
        layer = Layer(kind, tensors, stored_tokens=stored)
        yield built(f"missing-{name}", f"a filled layer of kind {kind}", [layer])
    wrong: dict[str, tuple[str, list[Tensor]]] = {
        "full-indexer_key": ("full", [key, value, index]),
        "full-conv_state": ("full", [key, value, conv]),
        "static-key_scale": ("static", [key, value, scale]),
        "full-packed_key": ("full", [key, value, packed[0], packed[1], packed[2]]),
        "linear-key": ("linear", [key, conv]),
        "indexed-recurrent_state": ("indexed", [key, value, recurrent]),
        "linear_full-indexer_key": ("linear_full", [key, value, index]),
        "quantized-indexer_key": ("quantized", [index, *packed]),
        "quantized-conv_state": ("quantized", [conv, *packed]),
        "full-token_ids": ("full", [key, value, Tensor("token_ids", [1, 3])]),
    }
    for name, (kind, tensors) in wrong.items():
        stored = {"quantized": 4, "linear": 0}.get(kind, 3)
        layer = Layer(kind, tensors, stored_tokens=stored)
        yield built(f"role-{name}", f"a role that {kind} has not", [layer])
    for role in ("key", "conv_state", "packed_key"):
        packing = kvc1.packing_of(role, [1], 4) if role == "packed_key" else None
        last = Tensor(role, [1, 1, 3, 2], packing=packing)
        why = f"{role} in no layer"
        yield built(f"null-layer-{role}", why, [Layer("full", key_value())], last)
    for value_of_layer in (1, 2, 32768, BIG):
        change: Change = (("tensors", 1, "layer"), value_of_layer)
        why = f"a tensor of layer {value_of_layer}, of which there is one"
        yield geometry(f"layer-{value_of_layer}", why, full_2, change, settle=False)
    change = (("tensors", 2, "layer"), 0)
    yield geometry("layer-of-token-ids", "token_ids in a layer", tokens_2, change)


def order() -> Iterator[Bad]:
    """Yields tensors that are out of order or there twice."""

    def arranged(name: str, why: str, base: Base, order: Sequence[int]) -> Bad:
        metadata = base()
        records = metadata[MANIFEST]["tensors"]
        metadata[MANIFEST]["tensors"] = [copy.deepcopy(records[i]) for i in order]
        return Bad("geometry", f"m2-order-{name}", why, changed_2(metadata).encode())

    yield arranged("value-first", "value before key", full_2, [1, 0])
    yield arranged("key-twice", "two keys of one layer", full_2, [0, 0, 1])
    yield arranged("value-twice", "two values of one layer", full_2, [0, 1, 1])
    yield arranged("layers", "layer 1 before layer 0", two_2, [2, 3, 0, 1])
    yield arranged("keys-first", "the keys of both layers first", two_2, [0, 2, 1, 3])
    yield arranged("cross-first", "cross before self", cross_2, [2, 3, 0, 1])
    yield arranged("token-ids-first", "token_ids before the layers", tokens_2, [2, 0, 1, 3])
    yield arranged("mask-first", "attention_mask before token_ids", tokens_2, [0, 1, 3, 2])
    yield arranged("token-ids-twice", "token_ids twice", tokens_2, [0, 1, 2, 2, 3])
    yield arranged("mask-twice", "attention_mask twice", tokens_2, [0, 1, 2, 3, 3])
    yield arranged("index-descending", "conv_state 1 before 0", states_2, [0, 1, 3, 2, 4])
    yield arranged("index-twice", "conv_state 0 twice", states_2, [0, 1, 2, 2, 4])
    yield arranged("recurrent-first", "recurrent before conv", states_2, [0, 1, 4, 2, 3])
    yield arranged("states-first", "states before keys", states_2, [2, 3, 4, 0, 1])
    yield arranged("scale-first", "a scale before what it scales", quantized_2, [1, 0, 2, 3, 4, 5])
    yield arranged("packed-value-first", "values before keys", quantized_2, [3, 4, 5, 0, 1, 2])
    for index, base in ((0, full_2), (2, tokens_2)):
        change: Change = (("tensors", index, "index"), 1)
        why = "an index that is not 0, in a role without"
        yield geometry(f"index-{index}", why, base, change)


def places() -> Iterator[Bad]:
    """Yields names, sizes, offsets that do not follow."""
    wrong: dict[str, tuple[Base, int, str]] = {
        "other": (full_2, 0, "layer.0.keys"),
        "empty": (full_2, 0, ""),
        "of-value": (full_2, 0, "layer.0.value"),
        "leading-zero": (full_2, 0, "layer.00.key"),
        "index": (full_2, 0, "layer.0.key.0"),
        "longer": (full_2, 1, "layer.0.value\u0001"),
        "cross": (full_2, 1, "cross.0.value"),
        "upper-case": (full_2, 1, "Layer.0.value"),
        "path": (full_2, 1, "../../value"),
        "cross-as-layer": (cross_2, 2, "layer.0.key"),
        "cross-by-record": (cross_2, 2, "cross.1.key"),
        "no-index": (linear_2, 0, "layer.0.conv_state"),
        "index-1": (linear_2, 0, "layer.0.conv_state.1"),
        "index-leading-zero": (linear_2, 0, "layer.0.conv_state.00"),
        "token-ids-layer": (tokens_2, 2, "layer.0.token_ids"),
        "token-ids-index": (tokens_2, 2, "token_ids.0"),
        "mask": (tokens_2, 3, "token_ids"),
    }
    for name, (base, index, text) in wrong.items():
        change: Change = (("tensors", index, "name"), text)
        yield geometry(f"name-{name}", f"the name {text!r}", base, change, settle=False)
    numbers: dict[str, tuple[int, str, int]] = {
        "nbytes-less": (0, "nbytes", 5),
        "nbytes-more": (1, "nbytes", 7),
        "nbytes-0": (0, "nbytes", 0),
        "nbytes-most": (1, "nbytes", BIG),
        "offset-not-0": (0, "offset", 1),
        "offset-overlap": (1, "offset", 5),
        "offset-same": (1, "offset", 0),
        "offset-gap": (1, "offset", 7),
        "offset-aligned": (1, "offset", 64),
        "offset-most": (1, "offset", BIG),
    }
    for name, (index, member, value) in numbers.items():
        change = (("tensors", index, member), value)
        why = f"{member} of tensor {index} is {value}"
        yield geometry(name, why, full_2, change, settle=False)
    for index, value in ((0, 64), (4, 0), (8, 0)):
        change = (("tensors", index, "offset"), value)
        why = "the offset of a tensor of no bytes"
        yield geometry(f"offset-empty-{index}", why, empties_2, change, settle=False)
    change = (("tensors", 0, "dtype"), "f16")
    why = "nbytes is that of another dtype"
    yield geometry("nbytes-of-dtype", why, full_2, change, settle=False)


def shapes() -> Iterator[Bad]:
    """Yields axes and shapes that contradict each other, the layer or the cache."""
    axes = ["batch", "head", "sequence", "head_dim"]
    wrong: dict[str, tuple[Base, int, list[str], list[int]]] = {
        "fewer-axes": (full_2, 1, axes[:3], [1, 1, 3, 2]),
        "more-axes": (full_2, 1, [*axes, "group"], [1, 1, 3, 2]),
        "no-axes": (linear_2, 0, [], [1, 4, 3]),
        "axis-of-rank-0": (linear_2, 0, ["batch"], []),
        "nine-axes": (linear_2, 0, list("abcdefghi"), [1] * 8),
        "batch-2": (full_2, 0, axes, [2, 1, 3, 2]),
        "batch-0": (states_2, 2, ["batch", "dim_1"], [0, 4]),
        "batch-last": (linear_2, 0, ["dim_0", "batch"], [1, 4]),
        "no-sequence": (full_2, 0, ["batch", "head", "tokens", "head_dim"], [1, 1, 3, 2]),
        "no-sequence-value": (full_2, 1, ["batch", "head", "dim_2", "dim_3"], [1, 1, 3, 2]),
        "sequence-less": (full_2, 0, axes, [1, 1, 2, 2]),
        "sequence-more": (full_2, 1, axes, [1, 1, 4, 2]),
        "sequence-transposed": (full_2, 1, axes, [1, 1, 2, 3]),
        "sequence-seen": (two_2, 2, axes, [1, 1, 3, 2]),
        "sequence-linear-full": (states_2, 0, axes, [1, 1, 2, 2]),
        "sequence-cross": (cross_2, 3, axes, [1, 1, 3, 2]),
        "token-ids-1-axis": (tokens_2, 2, ["sequence"], [3]),
        "token-ids-3-axes": (tokens_2, 2, ["batch", "sequence", "dim_2"], [1, 3, 1]),
        "token-ids-other-axes": (tokens_2, 2, ["batch", "tokens"], [1, 3]),
        "token-ids-axes-swapped": (tokens_2, 2, ["sequence", "batch"], [3, 1]),
        "token-ids-batch": (tokens_2, 2, ["batch", "sequence"], [2, 3]),
        "token-ids-rank-0": (tokens_2, 2, [], []),
        "mask-4-axes": (tokens_2, 3, ["batch", "head", "query", "sequence"], [1, 1, 3, 3]),
        "mask-other-axes": (tokens_2, 3, ["dim_0", "sequence"], [1, 3]),
    }
    for name, (base, index, names, shape) in wrong.items():
        changes: list[Change] = [
            (("tensors", index, "axes"), names),
            (("tensors", index, "shape"), shape),
        ]
        yield geometry(f"shape-{name}", f"axes {names}, shape {shape}", base, *changes)
    change: Change = (("batch_size",), 2)
    yield geometry("shape-batch-size", "batch_size 2, tensors of one sequence", full_2, change)
    for dtype in ("f16", "bf16", "f32", "f64", "f8_e5m2", "f8_e8m0"):
        for index, role in ((2, "token_ids"), (3, "attention_mask")):
            change = (("tensors", index, "dtype"), dtype)
            yield geometry(f"{role}-{dtype}", f"{role} of {dtype}", tokens_2, change)
    tail = [Tensor(role, [1, 1, 5, 4], dtype="f16") for role in ("key", "value")]
    why = "5 tokens that are not packed of 4 stored"
    layer = Layer("quantized", [*tail, *kvc1.packed()], stored_tokens=4, positions_seen=9)
    yield built("shape-quantized-tail", why, [layer])
    layer = Layer("full", [Tensor(role, [1, 1, 0, 2]) for role in ("key", "value")])
    yield built("no-bytes", "no tensor has bytes", [layer])


def overflows() -> Iterator[Bad]:
    """Yields products and sums that exceed 2^53 - 1, or wrap around to what is there."""
    products: dict[str, tuple[list[int], str, int]] = {
        "2-power-53": ([2**53 - 1, 2], "u8", BIG),
        "2-power-54": ([2**27, 2**27], "u8", 0),
        "wraps-to-0": ([2**32, 2**32], "u8", 0),
        "wraps-to-32": ([1263665316, 8, 1824726041], "u8", 32),
        "wraps-by-dtype": ([2**31, 2**30], "i64", 0),
        "wraps-to-8-by-dtype": ([3, 5, 2**20, 2**33], "f64", 8),
        "32-bits": ([2**29 + 1, 8], "u8", 8),
        "2-power-424": ([BIG] * 8, "f64", BIG),
    }
    for name, (shape, dtype, stored) in products.items():
        tensors = [
            Tensor("conv_state", [8]),
            Tensor("conv_state", shape, list("abcdefgh")[: len(shape)], dtype, 1),
        ]
        metadata = kvc1.with_manifest_2(kvc1.identity(), [Layer("linear", tensors)])
        metadata[MANIFEST]["tensors"][1]["nbytes"] = stored
        body = bytes(stored if stored < BIG else 32)
        data = kvc1.encode(metadata, [b"8 bytes.", body])
        yield Bad("geometry", f"m2-product-{name}", f"shape {shape}, {stored} bytes", data)
    tensors = [Tensor("conv_state", [2**52], index=i) for i in range(2)]
    metadata = kvc1.with_manifest_2(kvc1.identity(), [Layer("linear", tensors)])
    data = kvc1.encode(metadata, [b"key 01", b"value2"])
    why = "two tensors of 2^52 bytes each, in agreement, and 12 bytes of payload"
    yield Bad("geometry", "m2-sum-2-power-53", why, data)
    tensors = [Tensor("conv_state", [2**50 - 1], index=i) for i in range(2)]
    metadata = kvc1.with_manifest_2(kvc1.identity(), [Layer("linear", tensors)])
    data = kvc1.encode(metadata, [b"key 01", b"value2"])
    why = "two tensors of 2^50 - 1 bytes each, in agreement, and 12 bytes of payload"
    yield Bad("geometry", "m2-payload-missing", why, data, None, "payload_span")


def packings() -> Iterator[Bad]:
    """Yields packed tensors without their scales, scales without packed tensors, wrong pairs."""

    def without(base: Base, name: str, why: str, *indexes: int) -> Bad:
        changes = [(("tensors", index), MISSING) for index in sorted(indexes, reverse=True)]
        return geometry(f"packed-{name}", why, base, *changes)

    def bare() -> dict[str, Any]:
        return quantized_2(zero=False)

    yield without(quantized_2, "no-key_scale", "packed_key without key_scale", 1)
    yield without(quantized_2, "no-value_scale", "packed_value without value_scale", 4)
    yield without(quantized_2, "no-key_zero", "packed_key names a zero that is not there", 2)
    yield without(quantized_2, "no-value_zero", "packed_value names a zero that is not there", 5)
    yield without(bare, "no-scales", "no scales", 1, 3)
    wrong: dict[str, tuple[int, str, Any]] = {
        "key_zero-null": (0, "zero", None),
        "value_zero-null": (3, "zero", None),
        "key-scale-of-value": (0, "scale", "value_scale"),
        "value-scale-of-key": (3, "scale", "key_scale"),
        "key-zero-of-value": (0, "zero", "value_zero"),
        "value-zero-of-key": (3, "zero", "key_zero"),
    }
    for name, (index, member, value) in wrong.items():
        change: Change = (("tensors", index, "packing", member), value)
        why = f"{member} is {value!r} in tensor {index}"
        yield geometry(f"packed-{name}", why, quantized_2, change)
    for index in (0, 3):
        change = (("tensors", index, "packing"), None)
        why = "a packed tensor without packing"
        yield geometry(f"packing-null-{index}", why, quantized_2, change)
    packing = kvc1.packing_of("packed_key", [1, 1, 3, 2], 4, zero=False)
    for index, base, role in ((0, full_2, "key"), (2, tokens_2, "token_ids")):
        change = (("tensors", index, "packing"), packing)
        yield geometry(f"packing-of-{role}", f"packing of {role}", base, change)
    change = (("tensors", 1, "packing"), packing)
    yield geometry("packing-of-key_scale", "packing of a scale", quantized_2, change)
    own = Layer("full", key_value())
    for role in ("key_scale", "key_zero", "value_scale", "value_zero"):
        layer = Layer("quantized", [Tensor(role, [0], dtype="f16")])
        why = f"{role} without its packed tensor, in an empty layer"
        yield built(f"packed-{role}-alone", why, [own, layer])
    for kind in ("key", "value"):
        role = f"packed_{kind}"
        tensor = Tensor(role, [0], packing=kvc1.packing_of(role, [0], 4, zero=False))
        why = f"{role} of no bytes without its scale, in an empty layer"
        yield built(f"packed-empty-{role}", why, [own, Layer("quantized", [tensor])])


# ---- Payload -------------------------------------------------------------------------------------


def frames() -> Iterator[Bad]:
    """Yields headers and sizes that contradict the manifest."""
    metadata = empties_2()
    tensors = tensors_of(metadata)
    digests = [b3.blake3(tensor) for tensor in tensors]
    for count, stored in {5: digests[:5], 10: [*digests, b3.blake3(b"")], 4: digests[2:6]}.items():
        made = kvc1.parts(metadata, tensors, tensor_count=count, digests=stored)
        why = f"tensor_count is {count} for nine records"
        field = "tensor_count"
        yield Bad("geometry", f"m2-tensor-count-{count}", why, made.encode(), None, field)
    bodies = {
        "first": b"\0" * 64 + b"".join(tensors),
        "last": b"".join(tensors).ljust(64, b"\0"),
        "more": b"".join(tensors) + b"\0",
        "less": b"".join(tensors)[:-1],
    }
    for name, body in bodies.items():
        made = kvc1.parts(metadata, tensors, payload=body)
        why = f"payload_span is {len(body)} for {sum(map(len, tensors))} bytes"
        field = "payload_span"
        yield Bad("geometry", f"m2-span-{name}", why, made.encode(), None, field)
    made = kvc1.parts(metadata, tensors, align_log2=6)
    made.payload = made.stored_payload().ljust(kvc1.round_up(made.starts()[-1], 64), b"\0")
    why = "the payload goes on to where an empty tensor at the end would be aligned"
    yield Bad("geometry", "m2-span-aligned-end", why, made.encode(), None, "payload_span")
    made = kvc1.parts(metadata, tensors, align_log2=12)
    made.payload = bytes(4096) + made.stored_payload()
    why = "a page for the empty tensors at the start"
    yield Bad("geometry", "m2-span-page-first", why, made.encode(), None, "payload_span")
    for index, why in ((0, "an empty tensor"), (2, "a tensor of one chunk")):
        rows: list[list[bytes]] = [[] for _ in tensors]
        rows[index] = [digests[index]]
        made = kvc1.parts(metadata, tensors, rows=rows, digests=digests)
        why = f"a chunk value for {why}"
        yield Bad("geometry", f"m2-row-{index}", why, made.encode(), None, "file_bytes")


def digests() -> Iterator[Bad]:
    """Yields digests, rows, chunks and gaps that are wrong beside tensors of no bytes."""
    metadata = empties_2()
    tensors = tensors_of(metadata)
    good = [b3.blake3(tensor) for tensor in tensors]
    wrong = {
        "zero": bytes(32),
        "of-a-zero-byte": b3.blake3(b"\0"),
        "of-its-neighbour": good[2],
        "keyed": b3.blake3_keyed(bytes(32), b""),
        "chaining-value": b3.subtree(b"\0", 0),
    }
    for index, where in {0: "first", 4: "middle", 8: "last"}.items():
        for name, digest in wrong.items():
            stored = [*good[:index], digest, *good[index + 1 :]]
            made = kvc1.parts(metadata, tensors, digests=stored)
            why = f"the digest of an empty tensor, {where}: {name}"
            place = made.trailer_offset() + 32 * index
            yield Bad("chunk", f"m2-empty-{where}-{name}", why, made.encode(), place)
    swapped = [good[2], good[1], good[0], *good[3:]]
    data = kvc1.parts(metadata, tensors, digests=swapped).encode()
    yield Bad("chunk", "m2-digests-swapped", "the digests of two tensors are swapped", data)
    made = kvc1.parts(metadata, tensors, align_log2=6)
    payload, at = made.stored_payload(), made.payload_offset()
    for name, place in {"first": 6, "before-empty": 64 + 6, "last": 191}.items():
        changed = payload[:place] + b"\1" + payload[place + 1 :]
        data = kvc1.parts(metadata, tensors, align_log2=6, payload=changed).encode()
        yield Bad("padding", f"m2-gap-{name}", "between tensors", data, at + place)
    sizes = (0, 10, 65537, 0, 1000)
    states = [Tensor("conv_state", [size], index=i) for i, size in enumerate(sizes)]
    metadata = kvc1.with_manifest_2(kvc1.identity(), [Layer("linear", states)])
    tensors = [pattern(size, 7 * i) for i, size in enumerate(sizes)]
    made = kvc1.parts(metadata, tensors)
    rows, proven = made.stored_rows(), made.stored_digests()
    wrong_row = [rows[2][1], rows[2][0]]
    forged = [[], [], wrong_row, [], []]
    data = kvc1.parts(metadata, tensors, rows=forged, digests=proven).encode()
    yield Bad("row", "m2-swapped", "the chunk values are swapped", data, made.trailer_offset())
    for index, place in ((1, 0), (2, 10 + 65536), (4, 10 + 65537)):
        body = tensors[index][:-1] + bytes([tensors[index][-1] ^ 1])
        bodies = [*tensors[:index], body, *tensors[index + 1 :]]
        data = kvc1.parts(metadata, bodies, rows=rows, digests=proven).encode()
        why = f"the last byte of tensor {index}"
        yield Bad("chunk", f"m2-tensor-{index}", why, data, made.payload_offset() + place)


def cases() -> Iterator[Bad]:
    """Yields all files of this module."""
    for group in (
        layer_order, windows, layer_states, aliases, roles, order, places, shapes, overflows,
        packings, frames, digests,
    ):  # fmt: skip
        yield from group()
