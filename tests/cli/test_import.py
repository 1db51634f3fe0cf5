"""test_import.py: `kvc import`: the way back, files that others have rewritten, hostile headers.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cli_support import BAD, GOOD, KVC, TROUBLE, CliCase, Outcome, kvc, kvc1, metadata, tensor_bytes
from test_export import GOOD_FILES, HEADER_LIMIT, KEY, corpus_facts, split

Header = dict[str, Any]

# What this version's writer does otherwise than the file: the file says a higher minor version than
# it needs, or has bits that nobody has defined. The content is the same.
OTHER_HEADER = {
    "compat-bits", "m2-minor-1", "minor-1", "minor-65535", "ro-compat-bits",
}  # fmt: skip

# Metadata with names of later minor versions, which a writer of this version must not write.
NEWER = {"m2-minor-65535", "minor-2-member", "segment-minor-2"}


def join(header: Header | bytes, payload: bytes) -> bytes:
    """Makes a safetensors file."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + payload


def rearranged(data: bytes, seed: int) -> bytes:
    """Returns the file with its tensors in another order, in the header and in the payload."""
    source = random.Random(seed)
    header, payload = split(data)
    extra = header.pop("__metadata__")
    names = list(header)
    source.shuffle(names)
    places = list(names)
    source.shuffle(places)
    out = b""
    for name in places:
        start, end = header[name]["data_offsets"]
        header[name]["data_offsets"] = [len(out), len(out) + end - start]
        out += payload[start:end]
    parts: list[tuple[str, Any]] = [(name, header[name]) for name in names]
    parts.insert(source.randrange(len(parts) + 1), ("__metadata__", extra))
    return join(dict(parts), out)


class ImportCase(CliCase):
    def setUp(self) -> None:
        super().setUp()
        self.members = metadata(user={"name": 'é\u202e\x07\x7f"\\', "n": 1.5})
        self.data = tensor_bytes(self.members)
        self.path = self.pack("a.kvc", self.members, b"".join(self.data))
        self.wanted = self.path.read_bytes()
        self.source = self.folder / "a.safetensors"
        self.exported = self.export(self.path)
        self.output = self.folder / "out.kvc"

    def export(self, path: Path) -> bytes:
        self.expect_code(kvc("export", path, "--safetensors", self.source), GOOD)
        return self.source.read_bytes()

    def make(self, *words: str | Path) -> bytes:
        """Imports, checks what was printed, and returns the file's bytes."""
        done = kvc("import", self.source, "-o", self.output, "--durability=none", *words)
        self.expect_code(done, GOOD)
        self.assertEqual(done.err, b"")
        self.assertEqual(done.text, kvc("root", self.output).text)
        return self.output.read_bytes()

    def names(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}


class Good(ImportCase):
    def test_there_and_back(self) -> None:
        self.assertEqual(self.make(), self.wanted)

    def test_the_corpus(self) -> None:
        """Every good file comes back byte for byte, with other alignments and tags when asked."""
        newer = set()
        for path in GOOD_FILES:
            facts = corpus_facts(path)
            self.export(path)
            words: list[str | Path] = []
            default = 64 if '"packing"' in facts["metadata"] else 1
            if facts["align_bytes"] != default:
                words += [f"--align={facts['align_bytes']}"]
            if facts["key"] is not None:
                words += ["--key-file", self.write("key", facts["key"])]
            if path.stem in NEWER:
                done = kvc("import", self.source, "-o", self.output, *words)
                self.expect_refusal(done, BAD, self.source, "kvc1.metadata: ", "registry")
                newer.add(path.stem)
                continue
            made = self.make(*words)
            self.assertIn(facts["root"], kvc("root", self.output).text)
            if path.stem not in OTHER_HEADER:
                self.assertTrue(made == path.read_bytes(), path)
        self.assertEqual(newer, NEWER)

    def test_options(self) -> None:
        key = self.write("key", KEY.hex())
        made = self.make("--align=4096", "--key-file", key)
        self.assertEqual(made, kvc1.encode(self.members, self.data, align_log2=12, key=KEY))
        for level in ("full", "file", "none"):
            self.assertEqual(self.make("--durability", level), self.wanted)
        self.assertEqual(self.make("--changed"), self.wanted)

    def test_any_order_and_spelling(self) -> None:
        for seed in range(20):
            self.source.write_bytes(rearranged(self.exported, seed))
            self.assertEqual(self.make(), self.wanted)
        header, payload = split(self.exported)
        for text in (
            json.dumps(header, indent=3), json.dumps(header, ensure_ascii=False),
            json.dumps(header, sort_keys=True) + " " * 100,
            json.dumps(header).replace("layer", "\\u006cayer").replace("F16", "\\u004616"),
            "\n\t " + json.dumps(header).replace('"dtype"', '"d\\u0074ype"'),
        ):  # fmt: skip
            self.source.write_bytes(join(text.encode(), payload))
            self.assertEqual(self.make(), self.wanted)

    def test_other_metadata_and_members(self) -> None:
        header, payload = split(self.exported)
        header["__metadata__"] |= {"format": "pt", "": "\u202e", "kvc1.other": "x" * 100_000}
        for name in header:
            if name != "__metadata__":
                header[name]["note"] = [1.5, None]
        self.source.write_bytes(join(header, payload))
        self.assertEqual(self.make(), self.wanted)

    def test_without_a_root(self) -> None:
        header, payload = split(self.exported)
        del header["__metadata__"]["kvc1.root"]
        self.source.write_bytes(join(header, payload))
        self.assertEqual(self.make(), self.wanted)
        self.source.write_bytes(join(header, payload[::-1]))
        self.assertNotEqual(self.make(), self.wanted)

    def test_changed_values(self) -> None:
        header, payload = split(self.exported)
        self.source.write_bytes(join(header, payload[:-1] + b"~"))
        joined = b"".join(self.data)[:-1] + b"~"
        data = []
        for tensor in self.data:
            data.append(joined[: len(tensor)])
            joined = joined[len(tensor) :]
        self.assertEqual(self.make("--changed"), kvc1.encode(self.members, data))
        header["__metadata__"]["kvc1.root"] = "nothing"
        self.source.write_bytes(join(header, payload))
        self.assertEqual(self.make("--changed"), self.wanted)

    def test_roots_of_any_case(self) -> None:
        header, payload = split(self.exported)
        root = header["__metadata__"]["kvc1.root"]
        for text in (root[5:], root[5:].upper()):
            header["__metadata__"]["kvc1.root"] = text
            self.source.write_bytes(join(header, payload))
            self.assertEqual(self.make(), self.wanted)

    def test_metadata_of_any_spelling(self) -> None:
        header, payload = split(self.exported)
        extra = header["__metadata__"]
        extra["kvc1.metadata"] = json.dumps(json.loads(extra["kvc1.metadata"]), indent=2)
        self.source.write_bytes(join(header, payload))
        self.assertEqual(self.make(), self.wanted)

    def test_many_tensors(self) -> None:
        members = metadata(layers=3000, dtype="u8", head_dim=1, kv_heads=1, sequence_length=1)
        data = tensor_bytes(members)
        path = self.pack("b.kvc", members, b"".join(data))
        self.source.write_bytes(rearranged(self.export(path), 1))
        self.assertTrue(self.make() == path.read_bytes())

    def test_more_than_one_piece(self) -> None:
        path = self.pack("b.kvc", metadata(manifest=False), os.urandom(1 << 20) * 9 + b"x")
        self.export(path)
        self.assertTrue(self.make() == path.read_bytes())

    def test_replaces_an_older_file(self) -> None:
        self.output.write_bytes(b"old")
        before = os.stat(self.output).st_ino
        names = self.names()
        self.make()
        self.assertNotEqual(os.stat(self.output).st_ino, before)
        self.assertEqual(self.names(), names)


class RefusedCase(ImportCase):
    """Nothing is published, the old file stays, and the line names the file that is wrong."""

    def setUp(self) -> None:
        super().setUp()
        self.output.write_bytes(b"old")

    def refuse(self, data: bytes | None, *text: str, path: Path | None = None,
               code: int = BAD, words: tuple[str, ...] = ()) -> None:  # fmt: skip
        if data is not None:
            self.source.write_bytes(data)
        before = self.names()
        done = kvc("import", self.source, "-o", self.output, *words)
        self.expect_refusal(done, code, path or self.source, *text)
        self.assertEqual(self.names(), before)
        self.assertEqual(self.output.read_bytes(), b"old")


class Refused(RefusedCase):
    def change(
        self, body: Callable[[Header], Any], *text: str, words: tuple[str, ...] = ()
    ) -> None:
        header, payload = split(self.exported)
        body(header)
        self.refuse(join(header, payload), *text, words=words)

    def change_entry(self, key: str, text: str, *said: str, words: tuple[str, ...] = ()) -> None:
        """Puts another string into the header's metadata."""
        self.change(lambda header: header["__metadata__"].update({key: text}), *said, words=words)

    def test_changed_tensors(self) -> None:
        header, payload = split(self.exported)
        old = header["__metadata__"]["kvc1.root"]
        for at in (0, 79, 80, len(payload) - 1):
            changed = bytearray(payload)
            changed[at] ^= 1
            self.refuse(join(header, bytes(changed)), "were changed", old, "--changed")
        changed = bytearray(payload)
        changed[0] ^= 1
        sizes = [len(tensor) for tensor in self.data]
        data = [bytes(changed[sum(sizes[:i]) :][:size]) for i, size in enumerate(sizes)]
        new = kvc1.encode(self.members, data)
        self.refuse(join(header, bytes(changed)), "kvc1:" + new[-128:][:32].hex())

    def test_two_tensors_exchanged(self) -> None:
        def exchange(header: Header) -> None:
            a, b = header["layer.0.key"], header["layer.1.value"]
            a["data_offsets"], b["data_offsets"] = b["data_offsets"], a["data_offsets"]

        self.change(exchange, "were changed")

    def test_changed_metadata(self) -> None:
        def change(header: Header) -> None:
            extra = header["__metadata__"]
            extra["kvc1.metadata"] = extra["kvc1.metadata"].replace("10000.0", "10000.5")

        self.change(change, "were changed")

    def test_a_root_that_is_none(self) -> None:
        for root in ("", "kvc1:", "x" * 64, "0" * 63, "0" * 65, "y" * 1000):
            self.change_entry("kvc1.root", root, "is no root")

    def test_no_metadata(self) -> None:
        def drop(header: Header) -> None:
            del header["__metadata__"]["kvc1.metadata"]

        self.change(drop, "no kvc1.metadata", "kvc pack", words=("--changed",))
        self.change(lambda h: h.pop("__metadata__"), "no kvc1.metadata", "kvc pack")
        self.source = self.foreign()
        self.refuse(None, "no kvc1.metadata", "kvc pack")

    def test_metadata_that_are_wrong(self) -> None:
        good = json.loads(split(self.exported)[0]["__metadata__"]["kvc1.metadata"])
        manifest = good["tensor_manifest"]
        for text in (
            "", "{", "[]", "1", '{"a":1,"a":2}', json.dumps(good) + "x", "[" * 20, "\ufeff{}",
            json.dumps(good | {"more": 1}), json.dumps(good | {"layers": 3}), "{}",
            json.dumps(good | {"tensor_manifest": 1}), json.dumps(good | {"tensor_manifest": {}}),
            json.dumps(good | {"tensor_manifest": manifest | {"version": 9}}),
            json.dumps(good | {"tensor_manifest": manifest | {"tensors": 1}}),
            json.dumps(good | {"tensor_manifest": manifest | {"tensors": [1, "x", {}]}}),
            json.dumps(good | {"user": "x" * (17 << 20)}),
        ):  # fmt: skip
            self.change_entry("kvc1.metadata", text, words=("--changed",))

    def test_missing_tensors_are_named(self) -> None:
        for name in ("layer.0.key", "layer.1.value"):
            header, payload = split(self.exported)
            start, end = header[name]["data_offsets"]
            for other in header.values():
                if "data_offsets" in other and other["data_offsets"][0] > start:
                    other["data_offsets"] = [at - (end - start) for at in other["data_offsets"]]
            del header[name]
            data = join(header, payload[:start] + payload[end:])
            self.refuse(data, f'tensor "{name}" is missing', words=("--changed",))

    def test_extra_tensors_are_named(self) -> None:
        header, payload = split(self.exported)
        for name in ("layer.0.aaa", "layer.2.key", "", "zzz", "payload"):
            more = {"dtype": "U8", "shape": [3],
                    "data_offsets": [len(payload), len(payload) + 3]}  # fmt: skip
            data = join(header | {name: more}, payload + b"new")
            self.refuse(data, f'tensor "{name}" is one too many', words=("--changed",))

    def test_differing_tensors_are_named(self) -> None:
        header, payload = split(self.exported)
        shape = header["layer.1.key"]["shape"]
        for member, value, word in (
            ("dtype", "BF16", "dtype"), ("dtype", "I16", "dtype"), ("dtype", "X", "dtype"),
            ("dtype", "F16 ", "dtype"), ("shape", [*shape, 1], "shape"),
            ("shape", shape[::-1], "shape"), ("shape", [shape[1] * shape[2] * shape[3]], "shape"),
        ):  # fmt: skip
            changed = header | {"layer.1.key": header["layer.1.key"] | {member: value}}
            self.refuse(join(changed, payload), 'tensor "layer.1.key" has the ' + word,
                        "should have", words=("--changed",))  # fmt: skip

    def test_opaque_payloads(self) -> None:
        path = self.pack("b.kvc", metadata(manifest=False), b"some bytes")
        header, payload = split(self.export(path))
        good = header.pop("payload")
        self.refuse(join(header, b""), 'tensor "payload" is missing')
        self.refuse(join(header | {"other": good}, payload), '"payload" is missing')
        for change in ({"shape": [2, 5]}, {"dtype": "I8"}, {"dtype": "U16", "shape": [5]}):
            self.refuse(join(header | {"payload": good | change}, payload), "should be bytes")
        self.refuse(join(header | {"payload": good | {"data_offsets": [0, 0], "shape": [0]}}, b""),
                    '"payload" has no bytes')  # fmt: skip
        one = good | {"shape": [], "data_offsets": [0, 1]}
        self.refuse(join(header | {"payload": one}, b"x"), "should be bytes")
        more = header | {"payload": good, "a": good | {"data_offsets": [10, 20]}}
        self.refuse(join(more, payload * 2), '"a" is one too many')

    def test_inputs_that_cannot_be_read(self) -> None:
        good = self.source
        self.source = self.folder / "missing"
        self.refuse(None, "No such file", code=TROUBLE)
        self.source = self.folder
        self.refuse(None, "a folder", code=TROUBLE)
        self.source = self.folder / "pipe"
        os.mkfifo(self.source)
        self.refuse(None, "a pipe", code=TROUBLE)
        self.source = Path("/dev/null")
        self.refuse(None, "a device", code=TROUBLE)
        self.source = self.path
        self.refuse(None, "a KVC1 file already")
        self.source = good

    def test_outputs_that_cannot_be_made(self) -> None:
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        before = self.names()
        for target in (self.folder / "no" / "x", self.folder, pipe, self.output / "x",
                       f"{self.folder}/new/"):  # fmt: skip
            self.expect_refusal(kvc("import", self.source, "-o", target), TROUBLE, target)
        self.assertEqual(self.names(), before)

    def test_a_limit_on_file_sizes(self) -> None:
        for blocks in (0, 1, 8):
            done = subprocess.run(
                ["/bin/sh", "-c", f'ulimit -f {blocks}; exec "$@"', "sh", KVC, "import",
                 self.source, "-o", self.output], capture_output=True, timeout=60, check=False,
            )  # fmt: skip
            outcome = Outcome(done.returncode, done.stdout, done.stderr)
            self.expect_refusal(outcome, TROUBLE, self.output, "File too large")
            self.assertEqual(self.output.read_bytes(), b"old")
        self.assertEqual({name for name in self.names() if name.startswith(".")}, set())

    def test_usage(self) -> None:
        self.expect_usage(kvc("import", self.source), "import", "-o FILE")
        self.expect_usage(kvc("import", self.source, "-o", ""), "import", "-o FILE")
        self.expect_usage(kvc("import", self.source, "-o", self.source), "import", "another name")
        self.expect_usage(kvc("import", self.source, "-o", "x", "--align=3"), "import", "64")
        self.expect_usage(kvc("import", self.source, "-o", "x", "--durability="), "import", "none")
        self.assertEqual(self.source.read_bytes(), self.exported)


def tensor(start: Any, end: Any, shape: Any = None, dtype: Any = "U8") -> Header:
    return {"dtype": dtype, "shape": [end - start] if shape is None else shape,
            "data_offsets": [start, end]}  # fmt: skip


BIG = 2**53 - 1

# Headers of a file with 4 bytes after them; all are refused, with these words.
HOSTILE: list[tuple[Any, str]] = [
    (b"", "JSON"),
    (b" ", "JSON"),
    (b"[]", "no object"),
    (b"null", "no object"),
    (b'"x"', "no object"),
    (b"{}", "take 0 bytes"),
    (b'{"a":', "JSON"),
    (b"{}x", "JSON"),
    (b"{}\0", "JSON"),
    (b"\xef\xbb\xbf{}", "JSON"),
    (b'{"\xff":1}', "JSON"),
    (b'{"\\ud800":1}', "JSON"),
    (b'{"a\\u0000":1}', "JSON"),
    (b"[" * 100_000, "deep"),
    (b'{"a":' * 100_000, "deep"),
    (b'{"a":' + b"[" * 40 + b"]" * 40 + b"}", "deep"),
    (b'{"a":1,"a":2}', "same key twice"),
    (b'{"a":1,"\\u0061":2}', "same key twice"),
    (b'{"__metadata__":{},"__metadata__":{}}', "same key twice"),
    (b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"shape":[4]}}', "same key twice"),
    (b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4e0]}}', "data_offsets"),
    (b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,18446744073709551620]}}', "JSON"),
    (b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[-1,3]}}', "data_offsets"),
    (b'{"a":{"dtype":"U8","shape":[1e400],"data_offsets":[0,4]}}', "JSON"),
    ({"a": 1}, "is no object"),
    ({"a": "x"}, "is no object"),
    ({"a": []}, "is no object"),
    ({"a": {}}, "dtype"),
    ({"a": {"shape": [4], "data_offsets": [0, 4]}}, "dtype"),
    ({"a": {"dtype": "U8", "data_offsets": [0, 4]}}, "shape"),
    ({"a": {"dtype": "U8", "shape": [4]}}, "data_offsets"),
    ({"a": tensor(0, 4, dtype=8)}, "dtype"),
    ({"a": tensor(0, 4, dtype=None)}, "dtype"),
    ({"a": tensor(0, 4, shape=4)}, "shape"),
    ({"a": tensor(0, 4, shape={"0": 4})}, "shape"),
    ({"a": tensor(0, 4, shape=["4"])}, "shape"),
    ({"a": tensor(0, 4, shape=[[4]])}, "shape"),
    ({"a": tensor(0, 4, shape=[-4])}, "shape"),
    ({"a": tensor(0, 4, shape=[4.0])}, "shape"),
    ({"a": tensor(0, 4, shape=[2, 3])}, "number of bytes"),
    ({"a": tensor(0, 4, shape=[])}, "number of bytes"),
    ({"a": tensor(0, 4, shape=[0, 4])}, "number of bytes"),
    ({"a": tensor(0, 4, shape=[4], dtype="F16")}, "number of bytes"),
    ({"a": tensor(0, 4, shape=[BIG, BIG])}, "number of bytes"),
    ({"a": tensor(0, 4, shape=[2**32, 2**32, 2**32])}, "number of bytes"),
    ({"a": tensor(0, 4, shape=[2**33, 2**31, 1])}, "number of bytes"),
    # 4 is what this product leaves of 64 bits.
    ({"a": tensor(0, 4, shape=[6365685170944037, 2433719751052980])}, "number of bytes"),
    ({"a": tensor(0, 4, shape=[BIG], dtype="F64")}, "number of bytes"),
    ({"a": {"dtype": "U8", "shape": [4], "data_offsets": []}}, "data_offsets"),
    ({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0]}}, "data_offsets"),
    ({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4, 4]}}, "data_offsets"),
    ({"a": {"dtype": "U8", "shape": [4], "data_offsets": {"0": 0}}}, "data_offsets"),
    ({"a": {"dtype": "U8", "shape": [4], "data_offsets": ["0", "4"]}}, "data_offsets"),
    ({"a": {"dtype": "U8", "shape": [4], "data_offsets": [4, 0]}}, "end before they begin"),
    ({"a": tensor(0, 5)}, "behind the end"),
    ({"a": tensor(4, 8)}, "behind the end"),
    ({"a": tensor(0, BIG)}, "behind the end"),
    ({"a": tensor(BIG - 4, BIG)}, "behind the end"),
    ({"a": tensor(0, 3)}, "take 3 bytes"),
    ({"a": tensor(1, 4)}, "after a gap"),
    ({"a": tensor(0, 1), "b": tensor(2, 4)}, "after a gap"),
    ({"a": tensor(0, 3), "b": tensor(2, 4)}, "overlaps"),
    ({"a": tensor(0, 4), "b": tensor(0, 4)}, "overlaps"),
    ({"a": tensor(0, 4), "b": tensor(1, 2)}, "overlaps"),
    ({"a": tensor(0, 4), "b": tensor(2, 2, shape=[0])}, "overlaps"),
    ({"__metadata__": 1}, "no object"),
    ({"__metadata__": []}, "no object"),
    ({"__metadata__": {"a": 1}, "a": tensor(0, 4)}, "no string"),
    ({"__metadata__": {"a": None}, "a": tensor(0, 4)}, "no string"),
    ({"__metadata__": {"kvc1.metadata": {}}, "a": tensor(0, 4)}, "no string"),
    ({"x\x1b[2J": 1}, "is no object"),
    ({"x" * 100_000: 1}, "is no object"),
]


class Hostile(RefusedCase):
    def test_headers(self) -> None:
        for header, word in HOSTILE:
            self.refuse(join(header, b"\0\0\0\0"), word)

    def lengths(self) -> Iterator[bytes]:
        whole = self.exported
        length = int.from_bytes(whole[:8], "little")
        yield from (b"", b"\0", b"\0" * 7, b"\0" * 8, b"\xff" * 8, b"\xff" * 4096)
        for wrong in (0, 1, length - 1, length + 1, len(whole) - 7, HEADER_LIMIT, HEADER_LIMIT + 1,
                      2**31, 2**32 + length, 2**53, 2**63, 2**63 + length, 2**64 - 8):  # fmt: skip
            yield wrong.to_bytes(8, "little") + whole[8:]
        for size in (8, 9, 8 + length - 1, 8 + length, len(whole) - 1):
            yield whole[:size]
        yield whole + b"\0"

    def test_lengths(self) -> None:
        for data in self.lengths():
            self.refuse(data)

    def test_the_limit_comes_before_memory(self) -> None:
        """A sparse file as large as the length that it names."""
        for size in (HEADER_LIMIT + 1, 1 << 40):
            with self.source.open("wb") as file:
                file.write(size.to_bytes(8, "little"))
                file.truncate(size + 8)
            done = subprocess.run(
                ["/bin/sh", "-c", 'ulimit -v 60000; exec "$@"', "sh", KVC, "import", self.source,
                 "-o", self.output], capture_output=True, timeout=60, check=False,
            )  # fmt: skip
            if b"__asan" in KVC.read_bytes():
                done = subprocess.run([KVC, "import", self.source, "-o", self.output],
                                      capture_output=True, timeout=60, check=False)  # fmt: skip
            outcome = Outcome(done.returncode, done.stdout, done.stderr)
            self.expect_refusal(outcome, BAD, self.source, "at most 100000000")

    def test_too_many_values(self) -> None:
        self.refuse(join(b'{"a":[' + b"0," * 2_200_000 + b"0]}", b""), "values")

    def test_every_byte_of_the_header(self) -> None:
        """No change of one byte ends the program in another way than by a refusal or the file."""
        source = random.Random(2)
        length = int.from_bytes(self.exported[:8], "little")
        for at in [*range(8), *source.sample(range(8, 8 + length), 150)]:
            changed = bytearray(self.exported)
            changed[at] ^= 1 << source.randrange(8)
            self.source.write_bytes(changed)
            done = kvc("import", self.source, "-o", self.output, "--durability=none")
            self.assertIn(done.code, (GOOD, BAD), (at, done.err))
            if done.code == GOOD:
                self.assertEqual(self.output.read_bytes(), self.wanted)


if __name__ == "__main__":
    unittest.main()
