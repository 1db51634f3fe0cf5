"""test_diff.py: `kvc diff`: fields, tensors, places.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import unittest
from pathlib import Path

from cli_support import BAD, GOOD, TROUBLE, CliCase, blake3, flip, kvc, metadata, tensor_bytes

KEY = bytes(range(32))


class DiffCase(CliCase):
    def differences(self, a: Path, b: Path, *options: str) -> list[str]:
        """The lines after the two that name the files."""
        done = kvc("diff", *options, a, b)
        self.expect_code(done, BAD)
        self.assertEqual(done.err, b"")
        first, second, *rest = done.lines
        self.assertEqual(first, "A  " + kvc("root", a).text[:-1])
        self.assertEqual(second, "B  " + kvc("root", b).text[:-1])
        return rest


class Same(DiffCase):
    def test_same_content_prints_nothing(self) -> None:
        key = self.write("key", KEY)
        a = self.pack("a.kvc")
        b = self.pack("b.kvc", None, None, "--align=4096", "--key-file", key)
        self.assertNotEqual(a.read_bytes(), b.read_bytes())
        for other in (a, b):
            done = kvc("diff", a, other)
            self.expect_code(done, GOOD)
            self.assertEqual((done.out, done.err), (b"", b""))

    def test_payloads_are_not_read(self) -> None:
        a, b = self.pack("a.kvc"), self.pack("b.kvc")
        flip(b, 4096)
        self.expect_code(kvc("diff", a, b), GOOD)


class Fields(DiffCase):
    def test_both_ways(self) -> None:
        a = self.pack("a.kvc", metadata(user={"one": 1, "both": {"x": [1], "y": None}}))
        b = self.pack("b.kvc", metadata(user={"both": {"x": [2]}, "two": "2"}, rope_theta=5e5))
        self.assertEqual(
            self.differences(a, b),
            [
                "field rope_theta: 10000.0 in A, 500000.0 in B",
                "field user.both.x: [1] in A, [2] in B",
                'field user.two: only in B: "2"',
                "field user.both.y: only in A: null",
                "field user.one: only in A: 1",
            ],
        )

    def test_equal_values_in_another_spelling(self) -> None:
        a = self.pack("a.kvc", metadata(rope_theta=10000, user={"a": 1}))
        b = self.pack("b.kvc", metadata(rope_theta=10000.0, user={"a": 1}))
        self.assertEqual(
            self.differences(a, b),
            ["field rope_theta: 10000 in A, 10000.0 in B: equal by value, spelled differently"],
        )

    def test_text_is_printed_safely_and_cut(self) -> None:
        a = self.pack("a.kvc", metadata(user={"\x1b[31m\x9b\u202e": "\x1b]0;x\x07" * 99}))
        b = self.pack("b.kvc")
        (line,) = self.differences(a, b)
        self.assertTrue(line.startswith("field user: only in A: {"))
        c = self.pack("c.kvc", metadata(user={"\x1b[31m\x9b\u202e": 1}))
        (line,) = self.differences(a, c)
        self.assertTrue(line.startswith("field user.\\x1b[31m\\u{9b}\\u{202e}: "), line)
        self.assertIn("…", line)
        self.assertLess(len(line), 400)


class Tensors(DiffCase):
    def test_digests(self) -> None:
        data = tensor_bytes(metadata())
        a = self.pack("a.kvc")
        changed = [data[0], b"\xff" + data[1][1:], data[2], data[3][:-1] + b"\xff"]
        b = self.pack("b.kvc", None, b"".join(changed))
        self.assertEqual(
            self.differences(a, b),
            [
                f"tensor {name}: digest {blake3(data[i]).hex()[:16]}… in A,"
                f" {blake3(changed[i]).hex()[:16]}… in B"
                for i, name in ((1, "layer.0.value"), (3, "layer.1.value"))
            ],
        )

    def test_other_shapes_and_numbers(self) -> None:
        a = self.pack("a.kvc")
        b = self.pack("b.kvc", metadata(layers=1, head_dim=3))
        self.assertEqual(
            self.differences(a, b),
            [
                "field head_dim: 4 in A, 3 in B",
                "field layers: 2 in A, 1 in B",
                "tensor layer.0.key: f16 [1, 2, 5, 4] in A, f16 [1, 2, 5, 3] in B",
                "tensor layer.0.value: f16 [1, 2, 5, 4] in A, f16 [1, 2, 5, 3] in B",
                "tensor layer.1.key: only in A",
                "tensor layer.1.value: only in A",
            ],
        )
        self.assertEqual(
            self.differences(b, a)[-2:],
            ["tensor layer.1.key: only in B", "tensor layer.1.value: only in B"],
        )

    def test_same_bytes_of_another_type(self) -> None:
        payload = bytes(320)
        a = self.pack("a.kvc", metadata(dtype="f16"), payload)
        b = self.pack("b.kvc", metadata(dtype="bf16"), payload)
        lines = self.differences(a, b, "--where")
        self.assertEqual(lines[0], 'field dtype: "f16" in A, "bf16" in B')
        self.assertEqual(
            lines[1],
            "tensor layer.0.key: f16 [1, 2, 5, 4] in A, bf16 [1, 2, 5, 4] in B, the same bytes",
        )
        self.assertEqual(len(lines), 5)

    def test_opaque_against_tensors(self) -> None:
        a = self.pack("a.kvc", metadata(manifest=False), b"x")
        b = self.pack("b.kvc")
        lines = self.differences(a, b)
        self.assertTrue(lines[0].startswith("field tensor_manifest: only in B: {"))
        self.assertEqual(lines[1], "payload: only in A")
        self.assertEqual(lines[2], "tensor layer.0.key: only in B")
        self.assertEqual(len(lines), 6)


class Where(DiffCase):
    def opaque(self, name: str, payload: bytes) -> Path:
        return self.pack(name, metadata(manifest=False), payload)

    def where(self, first: bytes, second: bytes) -> list[str]:
        a, b = self.opaque("a.kvc", first), self.opaque("b.kvc", second)
        lines = self.differences(a, b, "--where")
        self.assertTrue(lines[0].startswith("payload: "))
        return lines[1:]

    def test_places(self) -> None:
        old = bytes(3_000_000)
        new = bytearray(old)
        new[7] = 1
        self.assertEqual(self.where(old, bytes(new)), ["  1 byte differs, in bytes 7"])
        # The second range crosses the pieces of 1 MiB in which the file is read.
        new[1_048_575:1_048_578] = b"abc"
        new[2_999_999] = 1
        self.assertEqual(
            self.where(old, bytes(new)),
            ["  5 bytes differ, in ranges 7, 1048575-1048577, 2999999"],
        )

    def test_many_places_are_cut(self) -> None:
        old = bytes(10_000)
        new = bytearray(old)
        new[0:3000:2] = b"x" * 1500
        self.assertEqual(
            self.where(old, bytes(new)),
            ["  1,500 bytes differ, in ranges 0, 2, 4, 6, 8, 10, 12, 14, … (1,500 ranges)"],
        )

    def test_lengths(self) -> None:
        self.assertEqual(self.where(b"abcdef", b"abc"), ["  from byte 3 on only in A"])
        self.assertEqual(
            self.where(b"abc", b"axcdef"),
            ["  1 byte differs, in bytes 1", "  from byte 3 on only in B"],
        )

    def test_element(self) -> None:
        data = b"".join(tensor_bytes(metadata()))
        changed = bytearray(data)
        # Tensor 1, head 1, token 2, value 3: two bytes each.
        changed[80 + ((1 * 5 + 2) * 4 + 3) * 2] ^= 1
        a, b = self.pack("a.kvc"), self.pack("b.kvc", None, bytes(changed))
        self.assertEqual(
            self.differences(a, b, "--where")[1:],
            ["  1 byte differs, in bytes 62; first in element [0, 1, 2, 3]"],
        )

    def test_what_is_read_is_proven(self) -> None:
        a, b = self.opaque("a.kvc", bytes(1000)), self.opaque("b.kvc", bytes(999) + b"x")
        flip(b, 4096 + 5)
        done = kvc("diff", "--where", a, b)
        self.expect_code(done, BAD)
        self.assertEqual(len(done.lines), 3)
        self.assertEqual(len(done.error_lines), 1)
        self.assertTrue(done.error.startswith(f"kvc: {b}: "))


class Refusals(DiffCase):
    def test_each_bad_file_has_a_line(self) -> None:
        good, foreign, missing = self.pack("a.kvc"), self.foreign(), self.folder / "missing"
        self.expect_refusal(kvc("diff", good, foreign), BAD, foreign)
        self.expect_refusal(kvc("diff", foreign, good), BAD, foreign)
        self.expect_refusal(kvc("diff", good, missing), TROUBLE, missing)
        done = kvc("diff", missing, foreign)
        self.expect_code(done, TROUBLE)
        self.assertEqual((len(done.lines), len(done.error_lines)), (0, 2))


if __name__ == "__main__":
    unittest.main()
