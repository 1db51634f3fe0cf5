"""test_cat.py: `kvc cat`: whole tensors, ranges, damage and terminals.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import os
import subprocess
import unittest

from cli_support import BAD, GOOD, KVC, TROUBLE, USAGE, CliCase, flip, kvc, metadata, tensor_bytes

MIB = 1 << 20

KEY = bytes(range(32))


class Bytes(CliCase):
    def test_every_tensor(self) -> None:
        path = self.pack("a.kvc")
        for record, data in zip(
            metadata()["tensor_manifest"]["tensors"], tensor_bytes(metadata()), strict=True
        ):
            done = kvc("cat", path, record["name"])
            self.expect_code(done, GOOD)
            self.assertEqual((done.out, done.err), (data, b""))

    def test_aligned_tensors(self) -> None:
        path = self.pack("a.kvc", None, None, "--align=4096")
        done = kvc("cat", path, "layer.1.value")
        self.assertEqual(done.out, tensor_bytes(metadata())[3])

    def test_opaque_payload(self) -> None:
        path = self.pack("a.kvc", metadata(manifest=False), b"any bytes")
        self.assertEqual(kvc("cat", path).out, b"any bytes")
        self.assertEqual(kvc("cat", path, "").out, b"any bytes")
        self.expect_refusal(
            kvc("cat", path, "layer.0.key"), BAD, path, "layer.0.key", "leave the name out"
        )

    def test_ranges(self) -> None:
        members = metadata(head_dim=64, sequence_length=1200)
        path = self.pack("a.kvc", members)
        data = tensor_bytes(members)[2]
        size = len(data)
        self.assertGreater(size, 4 * 65536)
        for start, count in (
            (0, 0), (0, 1), (0, size), (size, 0), (size - 1, 1), (65535, 2), (65536, 65536),
            (65537, 131072), (100, 200_000),
        ):  # fmt: skip
            done = kvc("cat", f"--start={start}", f"--bytes={count}", path, "layer.1.key")
            self.expect_code(done, GOOD)
            self.assertEqual(done.out, data[start : start + count])
        self.assertEqual(kvc("cat", f"--start={size - 9}", path, "layer.1.key").out, data[-9:])
        self.assertEqual(kvc("cat", f"--start={size}", path, "layer.1.key").out, b"")

    def test_ranges_outside(self) -> None:
        path = self.pack("a.kvc")
        for options, word in (
            (("--start=81",), "--start 81"),
            (("--start=18446744073709551615",), "--start 18446744073709551615"),
            (("--bytes=81",), "--bytes 81"),
            (("--start=80", "--bytes=1"), "--bytes 1"),
            (("--start=1", "--bytes=18446744073709551615"), "79"),
        ):
            self.expect_refusal(kvc("cat", *options, path, "layer.0.key"), BAD, path, word)

    def test_names(self) -> None:
        path = self.pack("a.kvc")
        self.expect_usage(kvc("cat", path), "cat", "4 tensors", str(path), "layer.0.key")
        for name in ("layer.2.key", "layer.0.ke", "LAYER.0.KEY", "", "layer.0.key "):
            self.expect_refusal(kvc("cat", path, name), BAD, path, "inspect --tensors")

    def test_root_and_key(self) -> None:
        key = self.write("key", KEY)
        path = self.pack("a.kvc", None, None, "--key-file", key)
        root = self.facts(path)["root"]
        done = kvc("cat", "--root", root, "--key-file", key, path, "layer.0.key")
        self.assertEqual(done.out, tensor_bytes(metadata())[0])
        done = kvc("cat", "--root", "0" * 64, path, "layer.0.key")
        self.expect_refusal(done, BAD, path, root)
        other = self.write("other", KEY[::-1])
        done = kvc("cat", "--key-file", other, path, "layer.0.key")
        self.expect_refusal(done, BAD, path)


class Large(CliCase):
    """A tensor of several pieces."""

    def setUp(self) -> None:
        super().setUp()
        self.data = os.urandom(MIB) * 36
        self.path = self.pack("a.kvc", metadata(manifest=False), self.data)

    def test_goes_through_whole(self) -> None:
        done = kvc("cat", self.path)
        self.expect_code(done, GOOD)
        self.assertTrue(done.out == self.data)

    def test_what_comes_before_damage_is_right(self) -> None:
        flip(self.path, 4096 + 20 * MIB)
        done = kvc("cat", self.path)
        self.expect_code(done, BAD)
        self.assertEqual(len(done.out), 16 * MIB)
        self.assertTrue(done.out == self.data[: 16 * MIB])
        self.assertEqual(len(done.error_lines), 1)
        self.assertTrue(done.error.startswith(f"kvc: {self.path}: "))
        done = kvc("cat", f"--start={21 * MIB}", f"--bytes={MIB}", self.path)
        self.expect_code(done, GOOD)

    def test_reader_that_leaves_early(self) -> None:
        process = subprocess.Popen(
            [KVC, "cat", self.path], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None and process.stderr is not None
        with process.stdout, process.stderr:
            self.assertEqual(process.stdout.read(10), self.data[:10])
            process.stdout.close()
            self.assertEqual(process.stderr.read(), b"")
        self.assertEqual(process.wait(60), TROUBLE)

    def test_output_that_does_not_block(self) -> None:
        read, write = os.pipe()
        os.set_blocking(write, False)
        process = subprocess.Popen([KVC, "cat", self.path], stdout=write)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            self.assertTrue(pipe.read() == self.data)
        self.assertEqual(process.wait(60), GOOD)


class Terminal(CliCase):
    def run_on_terminal(self, *words: str) -> tuple[int, bytes, bytes]:
        primary, secondary = os.openpty()
        try:
            done = kvc("cat", *words, stdout=secondary)
            os.set_blocking(primary, False)
            try:
                shown = os.read(primary, 4096)
            except BlockingIOError:
                shown = b""
        finally:
            os.close(primary)
            os.close(secondary)
        return done.code, shown, done.err

    def test_binary_needs_force(self) -> None:
        path = str(self.pack("a.kvc", metadata(manifest=False), b"\x1b[31m"))
        code, shown, error = self.run_on_terminal(path)
        self.assertEqual((code, shown), (USAGE, b""))
        self.assertIn(b"terminal", error)
        self.assertIn(b"--force", error)
        code, shown, error = self.run_on_terminal("--force", path)
        self.assertEqual((code, shown, error), (GOOD, b"\x1b[31m", b""))


if __name__ == "__main__":
    unittest.main()
