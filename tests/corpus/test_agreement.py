"""test_agreement.py: the kvc program and the reader in tests/spec agree on mutated files.

SPDX-License-Identifier: Apache-2.0

Mutations come from a fixed sequence. Each changes the metadata or fields of a valid file, which is
then correctly re-signed, so that what is judged is not just a digest.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import unittest
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cases import cache, kvc1, opaque, small

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

    def test_mutations(self) -> None:
        """Both give the same status to every mutation, and many statuses occur."""
        chance = random.Random(20240501)
        seen: Counter[str] = Counter()
        with tempfile.TemporaryDirectory() as folder:
            for start in range(0, COUNT, BATCH):
                files = {f"{start + i}.kvc": mutation(chance) for i in range(BATCH)}
                seen += self.compare(files, Path(folder))
        common = {"ok", "json", "schema", "geometry", "structure", "feature", "version", "manifest"}
        self.assertLessEqual(common, set(seen), seen)


if __name__ == "__main__":
    unittest.main()
