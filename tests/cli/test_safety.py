"""test_safety.py: text from files cannot reach a terminal, and lost output is noticed.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import json
import os
import subprocess
import unicodedata
import unittest
from pathlib import Path

from cli_support import (
    BAD,
    GOOD,
    KVC,
    TROUBLE,
    CliCase,
    Outcome,
    flip,
    kvc,
    kvc1,
    metadata,
    tensor_bytes,
)

# Clear the screen, set the title, 8-bit control sequence, reversed text, hidden text, a new line
# that could pass for another result, a bell, and bytes that are no UTF-8.
ATTACK = "a\x1b[2J\x1b]0;title\x07\x9b31m\u202egood\u2066\u200b\U000e0041\r\n\x7fz"
SAFE = (
    "a\\x1b[2J\\x1b]0;title\\x07\\u{9b}31m\\u{202e}good\\u{2066}\\u{200b}\\u{e0041}\\x0d\\x0a\\x7fz"
)

HARMLESS = "größe 大小 حجم א 😀 x\u200dy"


class Text(CliCase):
    def check(self, done: Outcome) -> None:
        """Nothing but printable text, one new line at the end of each line."""
        for stream in (done.out, done.err):
            for character in stream.decode("utf-8"):
                category = unicodedata.category(character)
                kept = character in "\n\u200d"
                self.assertTrue(kept or category not in ("Cc", "Cf", "Zl", "Zp"), repr(stream))

    def run_all(self, path: str | bytes | Path) -> list[Outcome]:
        outcomes = [
            kvc("inspect", path), kvc("inspect", "--tensors", path), kvc("inspect", "--json", path),
            kvc("verify", path), kvc("verify", "--all", path), kvc("verify", "--json", path),
            kvc("cat", path, ATTACK), kvc("root", path), kvc("diff", path, path),
            kvc("verify", f"--expect={ATTACK}=1", path), kvc("verify", f"--expect=dtype={ATTACK}",
            path), kvc("verify", f"--expect=dtype={ATTACK}", "--json", path),
        ]  # fmt: skip
        for done in outcomes:
            self.check(done)
        return outcomes

    def test_metadata(self) -> None:
        members = metadata(model_revision=ATTACK, user={ATTACK: ATTACK, "ok": HARMLESS})
        path = self.pack("a.kvc", members)
        outcomes = self.run_all(path)
        self.assertIn(f"Model revision     {SAFE}\n", outcomes[0].text)
        self.assertIn(HARMLESS, outcomes[0].text)
        self.assertEqual(json.loads(outcomes[2].out)["metadata"], members)
        done = kvc("diff", path, self.pack("b.kvc", metadata(user={"ok": "other"})))
        self.check(done)
        self.assertIn(f"field user.{SAFE}: only in A: ", done.text)
        done = kvc("verify", "--expect=model_revision=x", path)
        self.check(done)
        self.expect_code(done, BAD)

    def test_file_names(self) -> None:
        path = self.pack("a.kvc").rename(self.folder / ATTACK.replace("/", ""))
        outcomes = self.run_all(path)
        name = f"{self.folder}/{SAFE}"
        self.assertTrue(outcomes[0].text.startswith(f"File name          {name}\n"))
        self.assertTrue(outcomes[3].text.startswith(f"{name}: good, "))
        self.assertEqual(json.loads(outcomes[5].out)["file"], str(path))
        self.assertTrue(outcomes[7].text.endswith(f"  {name}\n"))
        self.assertTrue(outcomes[6].error.startswith(f"kvc: {name}: "))
        flip(path, 200)
        self.run_all(path)
        path.unlink()
        self.run_all(path)

    def test_file_names_that_are_not_utf8(self) -> None:
        path = self.pack("a.kvc")
        odd = bytes(self.folder) + b"/\xff\xc3\xed\xa0\x80.kvc"
        os.rename(path, odd)
        outcomes = self.run_all(odd)
        self.assertIn(f"{self.folder}/\\xff\\xc3\\xed\\xa0\\x80.kvc: good", outcomes[3].text)

    def test_pack_prints_names_safely(self) -> None:
        description = self.write_json("m.json", metadata(manifest=False))
        payload = self.write("p.bin", b"x")
        for words in (
            (description, payload, "-o", self.folder / ATTACK),
            (self.folder / ATTACK / "m", payload, "-o", "x"),
            (description, self.folder / ATTACK / "p", "-o", "x"),
            (description, payload, "-o", self.folder / "no" / ATTACK),
            (description, payload, "--key-file", self.folder / "no" / ATTACK, "-o", "x"),
            (description, payload, ATTACK, "-o", "x"),
        ):
            done = kvc("pack", *words)
            self.check(done)
            self.assertEqual(len(done.error_lines) + len(done.lines), 1)

    def test_safetensors_headers(self) -> None:
        """Names in a header and in the metadata come from anybody."""
        path = self.folder / ATTACK.replace("/", "")
        headers: list[dict[str, object]] = [
            {ATTACK: 1}, {ATTACK: {}}, {"__metadata__": {ATTACK: 1}},
            {"__metadata__": {"kvc1.metadata": ATTACK}},
            {"__metadata__": {"kvc1.metadata": json.dumps({ATTACK: 1}), "kvc1.root": ATTACK}},
            {"__metadata__": {"kvc1.metadata": json.dumps(metadata())},
             ATTACK: {"dtype": ATTACK, "shape": [], "data_offsets": [0, 0]}},
            {"__metadata__": {"kvc1.metadata": json.dumps(metadata(manifest=False))},
             "payload": {"dtype": ATTACK, "shape": [], "data_offsets": [0, 0]}},
        ]  # fmt: skip
        for header in headers:
            text = json.dumps(header).encode()
            path.write_bytes(len(text).to_bytes(8, "little") + text)
            done = kvc("import", path, "-o", self.folder / "x")
            self.check(done)
            self.expect_code(done, BAD)
            self.assertEqual(len(done.error_lines), 1)
        source = self.pack("a.kvc", metadata(manifest=False), b"x")
        for words in (
            ("export", source, "--safetensors", self.folder / "no" / ATTACK),
            ("export", self.folder / ATTACK / "x", "--safetensors", "x"),
            ("import", self.folder / ATTACK / "x", "-o", "x"),
        ):
            done = kvc(*words)
            self.check(done)
            self.assertEqual(len(done.error_lines), 1)

    def test_usage_messages(self) -> None:
        for words in (
            (ATTACK,), ("-" + ATTACK,), ("help", ATTACK), ("verify", "--" + ATTACK),
            ("verify", "-" + ATTACK), ("verify", f"--threads={ATTACK}", "f"),
            ("verify", f"--root={ATTACK}", "f"), ("verify", f"--expect={ATTACK}", "f"),
            ("diff", "a", "b", ATTACK), ("cat", f"--start={ATTACK}", "f"),
        ):  # fmt: skip
            done = kvc(*words)
            self.check(done)
            self.assertEqual(len(done.error_lines), 1)

    def test_key_file_names(self) -> None:
        key = self.folder / ATTACK
        key.write_bytes(b"short")
        self.check(kvc("verify", "--key-file", key, "f"))

    def test_messages_about_hostile_metadata(self) -> None:
        members = metadata()
        tensors = tensor_bytes(members)
        record = members["tensor_manifest"]["tensors"][0] | {"name": ATTACK}
        records = [record, *members["tensor_manifest"]["tensors"][1:]]
        manifest = members["tensor_manifest"] | {"tensors": records}
        for hostile in (
            members | {"tensor_manifest": manifest},
            members | {ATTACK: 1},
            members | {"dtype": ATTACK},
            members | {"layout": ATTACK * 50},
            members | {"tokenizer_sha256": ATTACK},
            members | {"tensor_manifest": members["tensor_manifest"] | {ATTACK: 1}},
            members | {"tensor_manifest": members["tensor_manifest"] | {"cache_class": ATTACK}},
        ):
            path = self.write("a.kvc", kvc1.encode(hostile, tensors))
            done = kvc("verify", path)
            self.check(done)
            self.expect_refusal(done, BAD, path)
            self.run_all(path)
            description = self.write_json("m.json", hostile)
            payload = self.write("p.bin", b"".join(tensors))
            done = kvc("pack", description, payload, "-o", self.folder / "x")
            self.check(done)
            self.expect_refusal(done, BAD, description)

    def test_foreign_bytes(self) -> None:
        for start in (b"\x89KVC1\r\n", b"\x1b[2J" * 99, b"\x89HDF\r\n\x1a\n", b"GGUF\x1b[2J"):
            self.run_all(self.write("a.kvc", start + ATTACK.encode() * 40))


class Output(CliCase):
    """Results that could not be written are an error of their own."""

    def commands(self) -> list[list[str | Path]]:
        path = self.pack("a.kvc")
        other = self.pack("b.kvc", metadata(head_dim=3))
        description = self.write_json("m.json", metadata(manifest=False))
        payload = self.write("p.bin", b"x")
        return [
            ["inspect", path], ["inspect", "--json", path], ["inspect", "--tensors", path],
            ["verify", path], ["verify", "--json", path], ["cat", path, "layer.0.key"],
            ["diff", path, other], ["root", path], ["--help"], ["--version"], ["help"],
            ["verify", "--help"], ["help", "cat"],
            ["pack", description, payload, "-o", self.folder / "out.kvc"],
        ]  # fmt: skip

    @unittest.skipUnless(os.path.exists("/dev/full"), "there is no /dev/full here")
    def test_full_device(self) -> None:
        for words in self.commands():
            with open("/dev/full", "wb") as full:
                done = kvc(*words, stdout=full)
            self.expect_code(done, TROUBLE)
            self.assertEqual(len(done.error_lines), 1, done.error)
            self.assertIn("kvc: writing to standard output failed: No space left", done.error)

    def test_closed_output(self) -> None:
        for words in self.commands():
            done = subprocess.run(
                ["/bin/sh", "-c", 'exec "$@" >&-', "sh", KVC, *words],
                stderr=subprocess.PIPE, timeout=60, check=False,
            )  # fmt: skip
            self.assertEqual(done.returncode, TROUBLE, done)
            self.assertIn(b"standard output failed: Bad file descriptor", done.stderr)

    def test_closed_descriptors_never_receive_a_file(self) -> None:
        """A file that is made as descriptor 1 or 2 would receive what is printed."""
        wanted = self.pack("a.kvc", metadata(manifest=False), b"x").read_bytes()
        description = self.write_json("m.json", metadata(manifest=False))
        payload = self.write("p.bin", b"x")
        path = self.folder / "b.kvc"
        for closing in ("<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-", ">&- 2>&-"):
            done = subprocess.run(
                ["/bin/sh", "-c", f'exec "$@" {closing}', "sh", KVC, "pack", description, payload,
                 "-o", path], capture_output=True, timeout=60, check=False,
            )  # fmt: skip
            self.assertEqual(done.returncode, TROUBLE if ">&-" in closing.split() else GOOD)
            self.assertEqual(path.read_bytes(), wanted, closing)
            path.unlink()

    def test_reader_that_has_left_is_no_news(self) -> None:
        for words in self.commands():
            read, write = os.pipe()
            os.close(read)
            done = kvc(*words, stdout=write)
            os.close(write)
            self.expect_code(done, TROUBLE)
            self.assertEqual(done.err, b"", words)

    def test_reader_that_leaves_in_the_middle(self) -> None:
        members = metadata(layers=2000, dtype="u8", head_dim=1, kv_heads=1, sequence_length=1)
        path = self.pack("a.kvc", members)
        for option in ("--tensors", "--json"):
            with subprocess.Popen(
                [KVC, "inspect", option, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE
            ) as process:
                assert process.stdout is not None and process.stderr is not None
                self.assertEqual(len(process.stdout.read(100)), 100)
                process.stdout.close()
                self.assertEqual(process.stderr.read(), b"")
            self.assertEqual(process.returncode, TROUBLE)

    def test_refusals_stay_refusals(self) -> None:
        """A closed stderr changes no exit code."""
        done = subprocess.run(
            ["/bin/sh", "-c", 'exec "$@" 2>&-', "sh", KVC, "verify", self.foreign()],
            stdout=subprocess.PIPE, timeout=60, check=False,
        )  # fmt: skip
        self.assertEqual((done.returncode, done.stdout), (BAD, b""))


if __name__ == "__main__":
    unittest.main()
