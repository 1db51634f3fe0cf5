"""test_pack.py: `kvc pack`: every spelling, input and option, and what happens when it fails.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import json
import os
import subprocess
import unittest
from pathlib import Path
from typing import Any

from cli_support import BAD, GOOD, KVC, TROUBLE, CliCase, Outcome, kvc, kvc1, metadata, tensor_bytes

KEY = bytes(range(32))


class PackCase(CliCase):
    def setUp(self) -> None:
        super().setUp()
        self.members = metadata(user={"name": "é", "n": 1.5})
        self.data = tensor_bytes(self.members)
        self.description = self.write_json("m.json", self.members)
        self.payload = self.write("p.bin", b"".join(self.data))
        self.output = self.folder / "out.kvc"

    def make(self, *words: str | Path, **options: Any) -> bytes:
        """Packs, checks what was printed, and returns the file's bytes."""
        done = kvc("pack", *words, "-o", self.output, **options)
        self.expect_code(done, GOOD)
        self.assertEqual(done.err, b"")
        self.assertEqual(done.text, kvc("root", self.output).text)
        self.expect_code(kvc("verify", self.output), GOOD)
        return self.output.read_bytes()

    def names(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}


class Good(PackCase):
    def test_is_what_the_specification_says(self) -> None:
        for align, log2 in (("1", 0), ("64", 6), ("4096", 12)):
            wanted = kvc1.encode(self.members, self.data, align_log2=log2)
            self.assertEqual(self.make("--align", align, self.description, self.payload), wanted)
        self.assertEqual(
            self.make(self.description, self.payload), kvc1.encode(self.members, self.data)
        )

    def test_many_chunks(self) -> None:
        members = metadata(layers=1, head_dim=64, sequence_length=700)
        data = tensor_bytes(members)
        done = self.make(self.write_json("m.json", members), self.write("p.bin", b"".join(data)))
        self.assertEqual(done, kvc1.encode(members, data))

    def test_tag(self) -> None:
        key = self.write("key", KEY.hex())
        made = self.make("--key-file", key, self.description, self.payload)
        self.assertEqual(made, kvc1.encode(self.members, self.data, key=KEY))

    def test_any_spelling_gives_the_same_file(self) -> None:
        wanted = kvc1.encode(self.members, self.data)
        turned = dict(reversed(self.members.items()))
        for text in (
            json.dumps(turned, indent=4, ensure_ascii=True),
            json.dumps(self.members, ensure_ascii=False) + "\n\n",
            json.dumps(self.members).replace("10000.0", "1.0e4").replace("1.5", "15E-1"),
            json.dumps(self.members).replace("layers", "l\\u0061yers"),
        ):
            self.assertEqual(self.make(self.write("m.json", text), self.payload), wanted)

    def test_standard_input(self) -> None:
        wanted = kvc1.encode(self.members, self.data)
        payload = b"".join(self.data)
        self.assertEqual(self.make(self.description, "-", input=payload), wanted)
        description = self.description.read_bytes()
        self.assertEqual(self.make("-", self.payload, input=description), wanted)
        with self.payload.open("rb") as file:
            self.assertEqual(self.make(self.description, "-", stdin=file), wanted)

    def test_opaque_payload_of_unknown_length(self) -> None:
        members = metadata(manifest=False)
        description = self.write_json("m.json", members)
        for size in (1, 65536, 65537, 10_000_001):
            payload = os.urandom(1000) * (size // 1000 + 1)
            payload = payload[:size]
            made = self.make(description, "-", input=payload)
            self.assertTrue(made == self.make(description, self.write("p.bin", payload)))
            if size < 100_000:
                self.assertEqual(made, kvc1.encode(members, payload))

    def test_a_pipe_in_small_pieces(self) -> None:
        description = self.write_json("m.json", metadata(manifest=False))
        process = subprocess.Popen(
            [KVC, "pack", description, "-", "-o", self.output],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        assert process.stdin is not None
        pieces = [bytes([i]) * (i * 37 + 1) for i in range(200)]
        with process.stdin:
            for piece in pieces:
                process.stdin.write(piece)
                process.stdin.flush()
        self.assertEqual(process.wait(60), GOOD)
        self.assertEqual(kvc("cat", self.output).out, b"".join(pieces))

    def test_durability_and_short_option(self) -> None:
        wanted = self.make(self.description, self.payload)
        for level in ("full", "file", "none"):
            made = self.make("--durability", level, self.description, self.payload)
            self.assertEqual(made, wanted)
        for words in (("-o", self.output), (f"-o{self.output}",), (f"--output={self.output}",)):
            self.output.unlink()
            self.expect_code(kvc("pack", self.description, *words, self.payload), GOOD)
            self.assertEqual(self.output.read_bytes(), wanted)

    def test_replaces_an_older_file(self) -> None:
        self.output.write_bytes(b"old")
        before = os.stat(self.output).st_ino
        self.make(self.description, self.payload)
        self.assertNotEqual(os.stat(self.output).st_ino, before)
        self.assertEqual(self.names(), {"m.json", "p.bin", "out.kvc"})


class Refused(PackCase):
    """Nothing is published, the old file stays, and the line names the input that is wrong."""

    def setUp(self) -> None:
        super().setUp()
        self.output.write_bytes(b"old")

    def refuse(
        self, path: Path, code: int, *text: str, words: tuple[str | Path, ...] = (), **options: Any
    ) -> None:
        words = words or (self.description, self.payload)
        before = self.names()
        done = kvc("pack", *words, "-o", self.output, **options)
        self.expect_refusal(done, code, path, *text)
        self.assertEqual(self.names(), before)
        self.assertEqual(self.output.read_bytes(), b"old")

    def test_lengths(self) -> None:
        whole = b"".join(self.data)
        for size in (0, 1, len(whole) - 1, len(whole) + 1, 2 * len(whole)):
            self.payload.write_bytes((whole * 2)[:size])
            self.refuse(self.payload, BAD, str(len(whole)))
        standard_input = Path("standard input")
        self.refuse(standard_input, BAD, words=(self.description, "-"), input=whole[:-1])
        self.refuse(standard_input, BAD, words=(self.description, "-"), input=whole + b"x")

    def test_empty_opaque_payload(self) -> None:
        self.write_json("m.json", metadata(manifest=False))
        self.payload.write_bytes(b"")
        self.refuse(self.payload, BAD)
        self.refuse(Path("standard input"), BAD, words=(self.description, "-"), input=b"")

    def test_metadata(self) -> None:
        for text in (
            "", "{", "[]", "1", '{"a":1,"a":2}', json.dumps(self.members)[:-1],
            json.dumps(self.members) + "x", json.dumps(self.members | {"more": 1}),
            json.dumps(self.members | {"layers": 3}), json.dumps(self.members | {"dtype": "f8"}),
            json.dumps({k: v for k, v in self.members.items() if k != "rope_theta"}),
        ):  # fmt: skip
            self.description.write_text(text)
            self.refuse(self.description, BAD)

    def test_json_errors_have_a_line(self) -> None:
        text = json.dumps(self.members, indent=1)
        line = text.split('"dtype"')[0].count("\n") + 1
        self.description.write_text(text.replace('"dtype":', '"dtype" ='))
        self.refuse(self.description, BAD, f": line {line}: ")

    def test_newer_manifest(self) -> None:
        manifest = self.members["tensor_manifest"] | {"version": 9}
        self.description.write_text(json.dumps(self.members | {"tensor_manifest": manifest}))
        self.refuse(self.description, BAD, "9")

    def test_metadata_that_never_end(self) -> None:
        self.refuse(Path("/dev/zero"), BAD, "64 MiB", words=("/dev/zero", self.payload))

    def test_payload_that_never_ends(self) -> None:
        self.refuse(Path("/dev/zero"), BAD, words=(self.description, "/dev/zero"))

    def test_inputs_that_cannot_be_read(self) -> None:
        missing = self.folder / "missing"
        self.refuse(missing, TROUBLE, words=(missing, self.payload))
        self.refuse(missing, TROUBLE, words=(self.description, missing))
        self.refuse(self.folder, TROUBLE, words=(self.folder, self.payload))
        self.refuse(self.folder, TROUBLE, words=(self.description, self.folder))

    def test_closed_standard_input(self) -> None:
        done = subprocess.run(
            ["/bin/sh", "-c", 'exec "$@" <&-', "sh", KVC, "pack", self.description, "-", "-o",
             self.output], capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        self.assertEqual(done.returncode, TROUBLE, done.stderr)
        self.assertIn(b"standard input: reading the payload failed: Bad file", done.stderr)

    def test_outputs_that_cannot_be_made(self) -> None:
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        for target in (self.folder / "no" / "out.kvc", self.folder, pipe,
                       self.payload / "x"):  # fmt: skip
            done = kvc("pack", self.description, self.payload, "-o", target)
            self.expect_refusal(done, TROUBLE, target)

    def test_a_limit_on_file_sizes(self) -> None:
        """The system would end the process by a signal."""
        done = subprocess.run(
            ["/bin/sh", "-c", 'ulimit -f 1; exec "$@"', "sh", KVC, "pack", self.description,
             self.payload, "-o", self.output], capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        outcome = Outcome(done.returncode, done.stdout, done.stderr)
        self.expect_refusal(outcome, TROUBLE, self.output, "larger than the system allows")
        self.assertEqual(self.output.read_bytes(), b"old")

    def test_usage(self) -> None:
        a, b = self.description, self.payload
        self.expect_usage(kvc("pack", a, b), "pack", "-o FILE")
        self.expect_usage(kvc("pack", a, b, "-o", ""), "pack", "-o FILE")
        self.expect_usage(kvc("pack", "-", "-", "-o", "x"), "pack", "both")
        self.expect_usage(kvc("pack", a, b, "-o", "x", "--align=3"), "pack", "64")
        self.expect_usage(kvc("pack", a, b, "-o", "x", "--durability=FULL"), "pack", "none")
        key = self.write("key", b"short")
        self.expect_usage(kvc("pack", a, b, "-o", "x", "--key-file", key), "pack", str(key))
        self.assertFalse((self.folder / "x").exists())


if __name__ == "__main__":
    unittest.main()
