# crop.py: takes tokens back from the record of a layer.
# SPDX-License-Identifier: Apache-2.0

from dataclasses import replace

from torch_kvcache.kinds.record import LayerRecord, Stored, Tensors

_BY_TOKEN = ("key", "value", "indexer_key")


def why_not_cropped(record: LayerRecord, keep: int) -> str | None:
    """Returns why a layer cannot go back to its first `keep` tokens; None where it can."""
    seen, stored = record.positions_seen or 0, record.stored_tokens
    if seen <= keep or record.state != "filled":
        return None
    if record.kind.startswith("linear"):
        return f"its state has taken in {seen} tokens, and none can be taken out of it"
    if record.kind == "quantized":
        return "its tokens are packed in groups"
    if stored != seen:
        return f"of the {seen} tokens that it has seen it holds only {stored}"
    return None


def cropped(record: LayerRecord, tensors: Tensors, keep: int) -> tuple[LayerRecord, Tensors]:
    """Returns a layer's record and tensors after its first `keep` tokens; the tensors are views.

    The layer must be one for which why_not_cropped returns None.
    """
    if (record.positions_seen or 0) <= keep or record.state != "filled":
        return record, tensors
    flags = dict(record.flags)
    if record.kind == "static_sliding":
        # Of a window that is not full, the tensor counts what the layer has seen.
        flags["cumulative_length"] = keep
    shorter = replace(record, stored_tokens=keep, positions_seen=keep, flags=flags)
    return shorter, {place: _first(place[0], stored, keep) for place, stored in tensors.items()}


def _first(role: str, stored: Stored, keep: int) -> Stored:
    if role not in _BY_TOKEN:
        return stored
    return stored._replace(tensor=stored.tensor.narrow(stored.axes.index("sequence"), 0, keep))
