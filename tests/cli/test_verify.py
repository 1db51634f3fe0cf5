"""test_verify.py: `kvc verify`: damage of every class, roots, keys, expectations, JSON lines.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import json
import unittest
from pathlib import Path
from typing import Any

from cli_support import (
    BAD,
    GOOD,
    TROUBLE,
    CliCase,
    Outcome,
    flip,
    kvc,
    kvc1,
    metadata,
    tensor_bytes,
)

KEY = bytes(range(32))

# Two layers of tensors of 160,000 bytes: three chunks each.
LARGE: dict[str, Any] = {"kv_heads": 2, "head_dim": 8, "sequence_length": 5000, "dtype": "f16"}


class VerifyCase(CliCase):
    def verdicts(self, done: Outcome) -> list[dict[str, Any]]:
        return [json.loads(line) for line in done.lines]

    def verdict(self, path: Path, *options: str | Path) -> dict[str, Any]:
        """The JSON line for a file; the exit code must fit it."""
        done = kvc("verify", "--json", *options, path)
        (verdict,) = self.verdicts(done)
        code = GOOD if verdict["ok"] else TROUBLE if verdict["class"] == "environment" else BAD
        self.expect_code(done, code)
        if verdict["ok"]:
            self.assertEqual(done.err, b"")
        else:
            self.assertEqual(done.error, f"kvc: {path}: {verdict['message']}\n")
        return verdict


class Good(VerifyCase):
    def test_names_file_root_and_size(self) -> None:
        path = self.pack("a.kvc")
        done = kvc("verify", path)
        self.expect_code(done, GOOD)
        root = self.facts(path)["root"]
        self.assertEqual(done.text, f"{path}: good, {root}, 4 tensors, 320 bytes\n")
        self.assertEqual(done.err, b"")

    def test_opaque_and_tag(self) -> None:
        key = self.write("key", KEY)
        path = self.pack("a.kvc", metadata(manifest=False), b"x" * 2048, "--key-file", key)
        root = self.facts(path)["root"]
        start = f"{path}: good, {root}, opaque payload, 2.0 KiB, "
        self.assertEqual(kvc("verify", path).text, start + "tag not checked\n")
        done = kvc("verify", path, "--key-file", key)
        self.assertEqual(done.text, start + "tag made with this key\n")

    def test_threads_do_not_matter(self) -> None:
        path = self.pack("a.kvc", metadata(**LARGE))
        wanted = kvc("verify", path)
        self.expect_code(wanted, GOOD)
        for threads in ("0", "1", "2", "256", "007"):
            self.assertEqual(kvc("verify", "--threads", threads, path), wanted)

    def test_json(self) -> None:
        path = self.pack("a.kvc")
        self.assertEqual(
            self.verdict(path),
            {
                "file": str(path),
                "ok": True,
                "root": self.facts(path)["root"],
                "tag_checked": False,
                "status": "ok",
                "class": "ok",
                "offset": None,
                "message": None,
                "field": None,
                "expected": None,
                "found": None,
                "differences": [],
                "damages": [],
            },
        )


class Several(VerifyCase):
    def test_highest_code_counts(self) -> None:
        good, foreign, missing = self.pack("a.kvc"), self.foreign(), self.folder / "missing"
        for files, code in (
            ([good, good], GOOD),
            ([good, foreign, good], BAD),
            ([missing, good], TROUBLE),
            ([missing, foreign], TROUBLE),
            ([foreign, missing], TROUBLE),
        ):
            done = kvc("verify", *files)
            self.expect_code(done, code)
            self.assertEqual(len(done.lines), files.count(good))
            self.assertEqual(len(done.error_lines), len(files) - files.count(good))

    def test_json_has_a_line_for_each(self) -> None:
        good, foreign, missing = self.pack("a.kvc"), self.foreign(), self.folder / "missing"
        done = kvc("verify", "--json", missing, good, foreign)
        self.expect_code(done, TROUBLE)
        verdicts = self.verdicts(done)
        self.assertEqual([v["file"] for v in verdicts], [str(missing), str(good), str(foreign)])
        self.assertEqual([v["ok"] for v in verdicts], [False, True, False])
        self.assertEqual([v["status"] for v in verdicts], ["io", "ok", "foreign"])
        self.assertEqual([v["class"] for v in verdicts], ["environment", "ok", "unsupported"])
        self.assertEqual([v["root"] is None for v in verdicts], [True, False, True])


class Damage(VerifyCase):
    """Bytes changed in files that were good, and re-signed files with one thing wrong."""

    def setUp(self) -> None:
        super().setUp()
        self.path = self.pack("a.kvc", metadata(**LARGE), None, "--align=4096")
        self.size = self.path.stat().st_size
        self.details = self.facts(self.path)

    def check(self, status: str, kind: str, *words: str) -> dict[str, Any]:
        self.expect_refusal(kvc("verify", self.path), BAD, self.path, *words)
        verdict = self.verdict(self.path)
        self.assertEqual((verdict["status"], verdict["class"]), (status, kind))
        return verdict

    def test_header_and_footer(self) -> None:
        flip(self.path, 50)
        self.check("header_check", "digest")
        flip(self.path, 50)
        flip(self.path, self.size - 128 + 50)
        self.check("footer_check", "digest")

    def test_root(self) -> None:
        flip(self.path, 128 + 30)
        self.check("root", "digest")

    def test_chunk_names_tensor_and_place(self) -> None:
        tensor = self.details["tensors"][1]
        flip(self.path, tensor["file_offset"] + 65536 + 10)
        verdict = self.check("chunk", "digest", "layer.0.value")
        self.assertEqual(verdict["offset"], tensor["file_offset"] + 65536)
        self.assertEqual(verdict["field"], "layer.0.value")
        self.assertEqual(verdict["root"], self.details["root"])

    def test_row(self) -> None:
        trailer = self.size - 128 - 32 * 4 - 32 * 12
        flip(self.path, trailer + 5)
        self.check("row", "digest", "layer.0.key")

    def test_padding_and_gap(self) -> None:
        flip(self.path, 4095)
        self.assertEqual(self.check("padding", "digest")["offset"], 4095)
        flip(self.path, 4095)
        tensor = self.details["tensors"][0]
        flip(self.path, tensor["file_offset"] + tensor["bytes"] + 1)
        self.check("padding", "digest")

    def test_short_and_long(self) -> None:
        data = self.path.read_bytes()
        self.path.write_bytes(data[:-1])
        self.check("truncated", "incomplete")
        self.path.write_bytes(data[:50])
        self.check("truncated", "incomplete")
        self.path.write_bytes(data[:-128] + bytes(128))
        self.check("unfinished", "incomplete")
        self.path.write_bytes(data + b"x")
        self.check("trailing", "corrupt", "1")
        self.path.write_bytes(b"")
        self.check("empty", "unsupported")
        self.path.write_bytes(b"\x89KVC1\n\x1a" + data[8:])
        self.check("mangled", "unsupported")

    def resign(self, members: dict[str, Any] | bytes, **changes: Any) -> None:
        self.path.write_bytes(kvc1.encode(members, tensor_bytes(metadata()), **changes))

    def test_newer(self) -> None:
        self.resign(metadata(), version_major=2)
        self.check("version", "unsupported", "2")
        self.resign(metadata(), incompat=1 << 9)
        self.check("feature", "unsupported", "9")

    def test_metadata(self) -> None:
        self.resign(json.dumps(metadata()).encode())
        self.check("json", "corrupt")
        self.resign(metadata() | {"more": 1})
        self.check("schema", "corrupt", "more", "user")
        self.resign(metadata() | {"layers": 3})
        self.check("geometry", "corrupt")
        self.resign(metadata(), header_reserved=bytes(48) + b"\x01")
        self.check("structure", "corrupt")

    def test_all_lists_each_tensor(self) -> None:
        tensors = self.details["tensors"]
        for index, offset in ((0, 0), (0, 70_000), (2, 159_999), (3, 1)):
            flip(self.path, tensors[index]["file_offset"] + offset)
        self.expect_refusal(kvc("verify", self.path), BAD, self.path, "layer.0.key")
        done = kvc("verify", "--all", self.path)
        self.expect_code(done, BAD)
        self.assertEqual(done.out, b"")
        self.assertEqual(len(done.error_lines), 3)
        for line, name in zip(
            done.error_lines, ("layer.0.key", "layer.1.key", "layer.1.value"), strict=True
        ):
            self.assertTrue(line.startswith(f"kvc: {self.path}: "))
            self.assertIn(name, line)
        verdict = self.verdict(self.path, "--all")
        self.assertEqual(
            [(d["status"], d["field"]) for d in verdict["damages"]],
            [("chunk", "layer.0.key"), ("chunk", "layer.1.key"), ("chunk", "layer.1.value")],
        )
        self.assertEqual(verdict["message"], verdict["damages"][0]["message"])
        self.assertEqual(self.verdict(self.path)["damages"], [])

    def test_all_of_a_file_that_does_not_open(self) -> None:
        flip(self.path, 50)
        self.expect_refusal(kvc("verify", "--all", self.path), BAD, self.path)


class RootAndKey(VerifyCase):
    def test_root(self) -> None:
        path = self.pack("a.kvc")
        root = self.facts(path)["root"]
        for text in (root, root[5:], root[5:].upper()):
            self.expect_code(kvc("verify", "--root", text, path), GOOD)
        other = "kvc1:" + "0" * 64
        self.expect_refusal(kvc("verify", "--root", other, path), BAD, path, other, root)
        verdict = self.verdict(path, "--root", other)
        self.assertEqual((verdict["status"], verdict["class"]), ("expected_root", "identity"))
        self.assertEqual((verdict["expected"], verdict["found"]), (other, root))

    def test_root_is_read_strictly(self) -> None:
        for text in ("", "kvc1:", "kvc2:" + "0" * 64, "0" * 65, "g" * 64, "0" * 64 + "\n"):
            self.expect_usage(kvc("verify", "--root", text, "f"), "verify", "no root")

    def test_key_file_forms(self) -> None:
        path = self.pack("a.kvc", None, None, "--key-file", self.write("key", KEY))
        digits = KEY.hex()
        for content in (KEY, digits, digits.upper(), digits + "\n"):
            key = self.write("other", content)
            self.expect_code(kvc("verify", "--key-file", key, path), GOOD)

    def test_key_file_refusals(self) -> None:
        for content, words in (
            (b"", "0 bytes"),
            (KEY[:31], "31 bytes"),
            (KEY + b"\n", "33 bytes"),
            (KEY.hex()[:63].encode(), "63 bytes"),
            (KEY.hex().encode() + b"\r\n", "more"),
            (KEY.hex().encode() + b" ", "65 bytes"),
            (b" " + KEY.hex().encode()[1:], "not all digits"),
            (b"0x" + KEY.hex().encode()[2:], "not all digits"),
            (bytes(100_000), "more"),
        ):
            key = self.write("key", content)
            done = kvc("verify", "--key-file", key, "f")
            self.expect_usage(done, "verify", str(key), "32 raw bytes", "64", words)

    def test_key_file_that_cannot_be_read(self) -> None:
        for key in (self.folder / "missing", self.folder):
            self.expect_refusal(kvc("verify", "--key-file", key, "f"), TROUBLE, key, "key file")

    def test_key_from_a_pipe(self) -> None:
        path = self.pack("a.kvc", None, None, "--key-file", self.write("key", KEY))
        done = kvc("verify", "--key-file", "/dev/stdin", path, input=KEY)
        self.expect_code(done, GOOD)

    def test_wrong_key_and_no_tag(self) -> None:
        key = self.write("key", KEY)
        tagged = self.pack("a.kvc", None, None, "--key-file", key)
        other = self.write("other", KEY[::-1])
        self.expect_refusal(kvc("verify", "--key-file", other, tagged), BAD, tagged)
        self.assertEqual(self.verdict(tagged, "--key-file", other)["status"], "tag")
        self.assertTrue(self.verdict(tagged, "--key-file", key)["tag_checked"])
        plain = self.pack("b.kvc")
        self.assertEqual(self.verdict(plain, "--key-file", key)["status"], "no_tag")


class Expect(VerifyCase):
    def setUp(self) -> None:
        super().setUp()
        user = {
            "tenant": "a",
            "number": "10",
            "deep": {"er": {"list": [1, 2], "on": True}},
            "a.b": {"c.d": 1},
            "a": {"b": 2, "e": 3},
            "nothing": None,
            'quote"\\\n': "x",
        }
        self.path = self.pack("a.kvc", metadata(user=user))

    def good(self, *expectations: str) -> None:
        options = [f"--expect={expectation}" for expectation in expectations]
        self.expect_code(kvc("verify", *options, self.path), GOOD)

    def bad(self, *expectations: str) -> str:
        options = [f"--expect={expectation}" for expectation in expectations]
        done = kvc("verify", *options, self.path)
        self.expect_refusal(done, BAD, self.path, "from what is expected")
        return done.error

    def test_text_where_the_file_has_a_string(self) -> None:
        self.good("dtype=f16", "user.tenant=a", "user.number=10")
        self.good("model_revision=example/model@0123456789abcdef")
        self.bad('dtype="f16"')
        self.bad("user.number=10.0")
        self.bad("dtype=")

    def test_json_elsewhere(self) -> None:
        self.good("rope_theta=10000", "rope_theta=1e4", "layers=2", "layers=2.0", "layers= 2 ")
        self.good("user.deep.er.list=[1, 2.0]", "user.deep.er.on=true", "user.nothing=null")
        self.good('user.deep={"er":{"on":true}}', "user={}", 'user={"tenant":"a"}')
        self.bad("layers=true")
        self.bad('layers="2"')
        self.bad("user.deep.er.on=1")
        self.bad("user.deep.er.list=[1]")
        self.bad("user.missing=null")

    def test_what_is_no_json_is_text(self) -> None:
        self.assertIn('rope_theta: expected "ten", found 10000.0', self.bad("rope_theta=ten"))
        self.assertIn('layers: expected "2,2", found 2', self.bad("layers=2,2"))
        for value in ("[2", "2]", "{}{}", "01", '"', "nan", "1 2", "", "[1}", "'2'", "\t"):
            self.bad(f"layers={value}")

    def test_a_value_cannot_add_members(self) -> None:
        self.bad('layers=2,"kv_heads":2')
        self.bad('layers=2},"x":{"y":2')

    def test_paths(self) -> None:
        self.good("user.deep.er.list=[1,2]", "user.a.e=3")
        # Of several names that a path can mean, the longest counts.
        self.good("user.a.b.c.d=1", 'user.a.b={"c.d":1}')
        self.good('user.quote"\\\n=x', "tensor_manifest.batch_size=1")
        self.assertIn("user.x.y: expected 1, found nothing", self.bad("user.x.y=1"))
        self.assertIn("found nothing", self.bad("heads=2"))
        self.assertIn("expected", self.bad("layers.x=2"))

    def test_all_differences_are_on_one_line(self) -> None:
        error = self.bad("layers=3", "dtype=f16", "dtype=f32", 'user={"tenant":"b","deep":{"x":1}}')
        self.assertIn(": 4 metadata fields differ from what is expected: ", error)
        for part in (
            "layers: expected 3, found 2",
            'dtype: expected "f32", found "f16"',
            "user.deep.x: expected 1, found nothing",
            'user.tenant: expected "b", found "a"',
        ):
            self.assertIn(part, error)

    def test_many_differences_are_all_listed(self) -> None:
        names = [f"field_{i:03}" for i in range(60)]
        error = self.bad(*[f"{name}={'v' * 50}" for name in names])
        for name in names:
            self.assertIn(name, error)

    def test_json_differences(self) -> None:
        verdict = self.verdict(
            self.path, "--expect", "layers= 3.0", "--expect", "user.nothing=1", "--expect", "x=[ 1]"
        )
        self.assertEqual((verdict["status"], verdict["class"]), ("identity", "identity"))
        self.assertEqual(
            verdict["differences"],
            [
                {"field": "layers", "expected": 3.0, "found": 2},
                {"field": "user.nothing", "expected": 1, "found": None},
                {"field": "x", "expected": [1]},
            ],
        )

    def test_comes_before_the_payload(self) -> None:
        flip(self.path, 4096)
        self.assertEqual(self.verdict(self.path, "--expect=layers=3")["status"], "identity")
        self.assertEqual(self.verdict(self.path, "--expect=layers=2")["status"], "chunk")

    def test_usage(self) -> None:
        for text in ("", "layers", "=2", ".x=2", "x.=2", "x..y=2", "a" + ".a" * 15 + "=1"):
            self.expect_usage(kvc("verify", "--expect", text, "f"), "verify", "--expect")
        self.expect_usage(kvc("verify", b"--expect=a=\xff", "f"), "verify", "UTF-8")
        self.bad("a" + ".a" * 14 + "=1")
        self.bad("a" + ".a" * 14 + "={}")
        self.bad("a" + ".a" * 14 + "=[[1]]")

    def test_values_with_controls_are_shown_safely(self) -> None:
        error = self.bad("dtype=\x1b[31m\u202e")
        self.assertNotIn("\x1b", error)
        self.assertNotIn("\u202e", error)

    def test_with_several_files(self) -> None:
        other = self.pack("b.kvc", metadata(head_dim=2))
        done = kvc("verify", "--expect=head_dim=4", self.path, other)
        self.expect_code(done, BAD)
        self.assertEqual((len(done.lines), len(done.error_lines)), (1, 1))


if __name__ == "__main__":
    unittest.main()
