"""test_agreement.py: the kvc program and the reader in tests/spec agree on mutated files.

SPDX-License-Identifier: Apache-2.0

Mutations come from a fixed sequence. Each changes the metadata or fields of a valid file, which is
then correctly re-signed, so that what is judged is not just a digest.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import good_manifest2
from cases import cache, kvc1, opaque, pattern, small

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "spec"))

import kvc1_reader

COUNT = 1500
BATCH = 250

NUMBERS = (
    *(b"0 1 -1 2 3 6 12 255 256 65535 65536 65537 32768 32769 2147483647 2147483648".split()),
    *(b"4294967296 9007199254740991 9007199254740992 18446744073709551616 -0 1.0 1e+16".split()),
    *(b"1.5 0.0 -0.0 1e-05 1e5 0.1 00 5e-324 1e+309".split()),
)
TOKENS = (
    *NUMBERS,
    *(b'true false null "" "u8" "f16" "key" "value" [] {} [1] {"a":1} , : " \\ { } [ ]'.split()),
    *(b'\\n \\u0000 \\u001f \\u00e9 \\/ "layer.0.key" "layers" \xc3\xa9 \xff \x00'.split()),
    b" ",
    b"\n",
)
FIELDS = {
    "version_major": 2, "version_minor": 2, "header_bytes": 4, "incompat": 8, "ro_compat": 8,
    "compat": 8, "file_bytes": 8, "metadata_bytes": 8, "payload_span": 8, "tensor_count": 4,
    "digest_alg": 1, "chunk_log2": 1, "footer_file_bytes": 8,
}  # fmt: skip


def token_span(text: bytes, at: int) -> tuple[int, int]:
    """Returns where the number or string around a place begins and ends, or just the place."""
    kinds = (b"0123456789+-.eE", b"abcdefghijklmnopqrstuvwxyz._0123456789")
    for kind in kinds:
        start = stop = at
        while start > 0 and text[start - 1] in kind:
            start -= 1
        while stop < len(text) and text[stop] in kind:
            stop += 1
        if stop > start:
            return start, stop
    return at, at + 1


def mutated_text(chance: random.Random, text: bytes, changes: int) -> bytes:
    """Returns metadata with small changes."""
    for _ in range(changes):
        at = chance.randrange(len(text))
        way = chance.randrange(6)
        if way == 0:
            text = text[:at] + bytes([chance.randrange(256)]) + text[at + 1 :]
        elif way == 1:
            text = text[:at] + text[at + chance.randrange(1, 4) :]
        elif way == 2:
            text = text[:at] + chance.choice(TOKENS) + text[at:]
        elif way == 3:
            start, stop = token_span(text, at)
            text = text[:start] + chance.choice(TOKENS) + text[stop:]
        elif way == 4:
            digits = [i for i, byte in enumerate(text) if byte in b"0123456789"]
            start, stop = token_span(text, chance.choice(digits) if digits else at)
            text = text[:start] + chance.choice(NUMBERS) + text[stop:]
        else:
            members = text.split(b",")
            members[chance.randrange(len(members))] = chance.choice(members)
            text = b",".join(members)
    return text


def mutated_value(chance: random.Random) -> bytes:
    """Returns canonical metadata in which one value is another one."""
    metadata, _ = cache()
    holder = chance.choice((metadata, metadata, metadata["tensor_manifest"]))
    if chance.random() < 0.5:
        holder = chance.choice(metadata["tensor_manifest"]["tensors"])
    name = chance.choice(sorted(holder))
    values: list[Any] = [
        None,
        True,
        0,
        1,
        2,
        3,
        -1,
        6,
        2**53 - 1,
        2**31,
        1.0,
        0.5,
        "",
        "u8",
        "i8",
        "key",
    ]
    values += ["value", [], [1, 1, 3, 2], [6, 6, 2, 1], [1, 1, 2, 3], {}]
    if chance.random() < 0.2:
        del holder[name]
    else:
        holder[name] = chance.choice(values)
    return kvc1.canonical(metadata)


def mutated_magic(chance: random.Random) -> bytes:
    """Returns other first bytes: pieces of the magic, of what transfers make of it, and chance."""
    pieces = [b"\x89", b"\x09", b"\xc2\x89", b"\xe2\x80\xb0", b"\xef\xbf\xbd", b"?", b""]
    ends = [b"\r\n\x1a", b"\n\x1a", b"\r\r\n\x1a", b"\r\n", b"\n", b"\x1a", b"\r", b""]
    magic = chance.choice(pieces) + chance.choice([b"KVC1", b"KVC2", b"KVC"]) + chance.choice(ends)
    return magic + chance.randbytes(chance.randrange(4))


# ---- Manifest version 2 --------------------------------------------------------------------------

AXES = ["batch", "head", "sequence", "head_dim"]

# Values that fit a member, or nearly. Every one is a value of the right member in some file.
NEAR: dict[str, list[Any]] = {
    "aliases": [{}, {"value": "key"}, {"key": "value"}, {"value": "value"}, {"value": "conv_state"},
                {"indexer_key": "key"}, {"value": "token_ids"}, {"key": "keys"}, {"key": 1}],
    "axes": [AXES, AXES[:3], [*AXES, "group"], AXES[::-1], ["batch", "sequence"], ["dim_0"], [],
             ["batch", "batch", "sequence", "x"], ["dim_0", "dim_1"], ["A", "b"], [1, 2]],
    "axis": [-2, -1, 0, 7, 8],
    "batch_size": [1, 2, 0],
    "bits": [0, 1, 8, 9],
    "cache": ["self", "cross", "both"],
    "dtype": [*kvc1.ITEM_BYTES_2, "u64", None],
    "framework": [{}, {"name": "a"}, {"name": "a", "version": "b"}],
    "group_size": [None, 0, 1, 2**31 - 1, 2**31],
    "index": [0, 1, 2, 255, 256, -1],
    "kind": [*kvc1_reader.KINDS, "paged"],
    "layer": [None, 0, 1, 2, 3, -1, 32768],
    "layers": [1, 2, 3, 0],
    "name": ["layer.0.key", "layer.0.value", "cross.0.key", "token_ids", "", "layer.1.key"],
    "packing": [None, {}, kvc1.packing_of("packed_key", [1, 1, 4, 4], 4),
                kvc1.packing_of("packed_value", [4], 2, zero=False)],
    "parent_root": ["kvc1:" + "ab" * 32, "kvc1:" + "AB" * 32, None],
    "positions_seen": [0, 1, 2, 3, 4, 5, 2**31 - 1, 2**31],
    "role": [*kvc1.ROLES, "keys"],
    "scale": ["key_scale", "value_scale", "key_zero", "packed_key"],
    "sequence_length": [1, 2, 3, 4, 5],
    "shape": [[], [0], [6], [1, 3], [1, 1, 3, 2], [1, 1, 0, 2], [1, 1, 2, 3], [2, 1, 3, 2],
              [2**53 - 1, 2**53 - 1, 0], [2**32, 2**32], [1] * 8, [1] * 9],
    "state": ["uninitialized", "empty", "filled", "full"],
    "stored_tokens": [0, 1, 2, 3, 4, 5, 2**31 - 1],
    "version": [1, 2, 3, 4],
    "window": [None, 0, 1, 2, 2**31 - 1, 2**31],
    "wrapper": ["none", "encoder_decoder", "both"],
    "zero": [None, "key_zero", "value_zero", "key_scale"],
}  # fmt: skip
ODD: list[Any] = [
    None,
    True,
    0,
    1,
    -1,
    6,
    2**53 - 1,
    1.0,
    "",
    "key",
    "x" * 129,
    [],
    [1],
    {},
    {"a": 1},
]


@functools.cache
def bases() -> list[dict[str, Any]]:
    """Returns the metadata of the valid files with a small manifest of version 2."""
    texts = [
        case.parts.metadata
        for case in good_manifest2.cases()
        if case.parts.incompat & kvc1.MANIFEST_2 and max(map(len, case.parts.tensors)) <= 4096
    ]
    return [json.loads(text) for text in texts if len(text) < 8000]


def changed_member(chance: random.Random, metadata: dict[str, Any]) -> None:
    """Changes, removes or adds one member of the metadata."""
    manifest = metadata["tensor_manifest"]
    tensors = manifest["tensors"]
    packings = [record["packing"] for record in tensors if record["packing"]]
    holders = [metadata, manifest, manifest["framework"]]
    holders += 3 * [chance.choice(manifest["layers"])] + 3 * [chance.choice(tensors)]
    holders += 2 * packings
    holder = chance.choice(holders)
    name = chance.choice([name for name in sorted(holder) if name != "tensor_manifest"])
    way = chance.random()
    if way < 0.1:
        del holder[name]
    elif way < 0.15:
        holder[chance.choice(["", "zzz", *kvc1.NAMES_1_1])] = copy.deepcopy(chance.choice(ODD))
    elif way < 0.3 and isinstance(holder[name], int):
        holder[name] = min(holder[name] + chance.choice((-1, 1)), 2**53 - 1)
    elif way < 0.9 and name in NEAR:
        holder[name] = copy.deepcopy(chance.choice(NEAR[name]))
    else:
        holder[name] = copy.deepcopy(chance.choice(ODD))


def changed_order(chance: random.Random, metadata: dict[str, Any]) -> None:
    """Removes, repeats or moves a record of one of the two tables."""
    table = metadata["tensor_manifest"][chance.choice(("layers", "tensors", "tensors"))]
    if not table:
        return
    at, other = chance.randrange(len(table)), chance.randrange(len(table))
    way = chance.randrange(3)
    if way == 0 and len(table) > 1:
        del table[at]
    elif way == 1:
        table.insert(other, copy.deepcopy(table[at]))
    else:
        table[at], table[other] = table[other], table[at]


def settled(metadata: dict[str, Any]) -> None:
    """Lets names, sizes and offsets follow from the rest, where the rest allows it."""
    manifest = copy.deepcopy(metadata["tensor_manifest"])
    try:
        kvc1.place(manifest)
    except (AttributeError, IndexError, KeyError, TypeError):
        return
    for record in manifest["tensors"]:
        for name in ("nbytes", "offset"):
            # What is larger has no spelling.
            record[name] = min(record[name], 2**53 - 1)
    metadata["tensor_manifest"] = manifest


def bodies(metadata: dict[str, Any]) -> list[bytes]:
    """Returns bytes for the tensors, or for one where their sizes cannot be had."""
    try:
        sizes = [record["nbytes"] for record in metadata["tensor_manifest"]["tensors"]]
        if all(0 <= size <= 4096 for size in sizes) and sum(sizes) > 0:
            return [pattern(size, i) for i, size in enumerate(sizes)]
    except (KeyError, TypeError):
        pass
    return [b"a tensor"]


def mutated_tables(chance: random.Random) -> Mutation:
    """Returns a file whose manifest of version 2 is another one in one or two places."""
    metadata = copy.deepcopy(chance.choice(bases()))
    changes = chance.choice((1, 1, 1, 2))
    for _ in range(changes):
        change = chance.choice((changed_member, changed_member, changed_member, changed_order))
        try:
            change(chance, metadata)
        except (AttributeError, IndexError, KeyError, TypeError):
            continue  # The first change has removed what the second was to change.
    if chance.random() < 0.7:
        settled(metadata)
    fields: dict[str, int] = {"align_log2": chance.choice((0, 0, 6, 12))}
    if chance.random() < 0.1:
        fields["incompat"] = chance.choice((0, 1, 2, 3, 5))
        changes += 1
    if chance.random() < 0.1:
        fields["version_minor"] = chance.choice((0, 1, 2))
        changes += 1
    made = kvc1.parts(metadata, bodies(metadata), **fields)
    if chance.random() < 0.1:
        made.metadata = mutated_text(chance, made.metadata, 1)
        changes += 1
    return Mutation(made.encode(), changes == 1)


@dataclass(frozen=True)
class Mutation:
    """A mutated file. `single`: one rule at most is broken, so that its status is certain."""

    data: bytes
    single: bool


def mutation(chance: random.Random) -> Mutation:
    """Returns a mutated file."""
    way = chance.randrange(5)
    made = chance.choice((small, opaque))()
    if way == 4:
        return Mutation(mutated_magic(chance) + made.encode()[8:], True)
    if way == 0:
        for name in chance.sample(sorted(FIELDS), chance.choice((1, 1, 2))):
            width = 8 * FIELDS[name]
            edges = [0, 1, 2, 3, 12, 127, 128, 129, 4096, 2**16, 2**53 - 1, 2**53, 2**63, 2**64 - 1]
            setattr(made, name, chance.choice([value for value in edges if value < 2**width]))
        return Mutation(made.encode(), True)
    if way == 1:
        made.metadata = mutated_value(chance)
    elif way == 2:
        made.metadata = mutated_text(chance, made.metadata, 1)
    else:
        made.metadata = mutated_text(chance, made.metadata, chance.choice((2, 3)))
    return Mutation(made.encode(), way == 1)


def status_of(data: bytes) -> str:
    """Returns the status that the reader in tests/spec gives."""
    try:
        kvc1_reader.read(data)
    except kvc1_reader.Refused as refused:
        return refused.status
    return "ok"


class Agreement(unittest.TestCase):
    """Two independent readers."""

    def compare(self, files: dict[str, Mutation], folder: Path) -> Counter[str]:
        """Ask both about files and return how often each status came."""
        program = Path(os.environ["KVC_BUILD_DIR"]) / "tools" / "kvc" / "kvc"
        for name, file in files.items():
            (folder / name).write_bytes(file.data)
        paths = [folder / name for name in files]
        done = subprocess.run(
            [program, "verify", "--json", *paths], capture_output=True, check=False
        )
        self.assertIn(done.returncode, (0, 1), done.stderr.decode()[-500:])
        reports = [json.loads(line) for line in done.stdout.decode().splitlines()]
        self.assertEqual(len(reports), len(files))
        for (name, file), report in zip(files.items(), reports, strict=True):
            with self.subTest(file=name):
                found, expected = report["status"], status_of(file.data)
                if not file.single and {found, expected} == {"schema", "geometry"}:
                    # FORMAT.md lets a reader judge these two steps member by member.
                    continue
                text = file.data[128:2000].split(b"\0\0")[0]
                self.assertEqual(found, expected, (report["message"], text))
        for path in paths:
            path.unlink()
        return Counter(report["status"] for report in reports)

    def agree(self, make: Callable[[random.Random], Mutation]) -> Counter[str]:
        """Compare mutations of one sort and return how often each status came."""
        chance = random.Random(20240501)
        seen: Counter[str] = Counter()
        with tempfile.TemporaryDirectory() as folder:
            for start in range(0, COUNT, BATCH):
                files = {f"{start + i}.kvc": make(chance) for i in range(BATCH)}
                seen += self.compare(files, Path(folder))
        return seen

    def test_mutations(self) -> None:
        """Both give the same status to every mutation, and many statuses occur."""
        seen = self.agree(mutation)
        common = {"ok", "json", "schema", "geometry", "structure", "feature", "version", "manifest"}
        self.assertLessEqual(common, set(seen), seen)

    def test_mutated_tables(self) -> None:
        """Both give the same status to manifests of version 2 with other members or records."""
        seen = self.agree(mutated_tables)
        self.assertLessEqual({"ok", "schema", "geometry", "feature"}, set(seen), seen)
        self.assertGreater(seen["ok"], COUNT // 50, seen)


if __name__ == "__main__":
    unittest.main()
