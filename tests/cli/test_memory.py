"""test_memory.py: commands that copy payloads do so in bounded memory.

SPDX-License-Identifier: Apache-2.0

No large object may live in this process: the peak of a child begins with the size of its parent.
"""

from __future__ import annotations

import os
import subprocess
import unittest
from pathlib import Path

from cli_support import BAD, GOOD, KVC, TROUBLE, CliCase, metadata

MIB = 1 << 20
PAYLOAD_BYTES = 64 * MIB

# A piece of 8 MiB, what the threads of the library need, and the program itself.
MOST_KIB = 48 * 1024

# The sanitizers keep freed memory for a while.
SANITIZED = KVC.exists() and b"__asan" in KVC.read_bytes()


@unittest.skipIf(SANITIZED, "built with a sanitizer, which keeps freed memory")
class Memory(CliCase):
    def peak_kib(self, *words: str | Path, stdout: Path, code: int = GOOD) -> int:
        with stdout.open("wb") as out:
            process = subprocess.Popen([KVC, *words], stdout=out)
            _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(process.returncode, code)
        return usage.ru_maxrss

    def test_pack_and_cat(self) -> None:
        payload = self.folder / "p.bin"
        with payload.open("wb") as file:
            file.truncate(PAYLOAD_BYTES)
        description = self.write_json("m.json", metadata(manifest=False))
        path, out = self.folder / "a.kvc", self.folder / "out"
        peak = self.peak_kib(
            "pack", "--durability=none", description, payload, "-o", path, stdout=out
        )
        self.assertLess(peak, MOST_KIB)
        self.assertLess(self.peak_kib("cat", path, stdout=out), MOST_KIB)
        self.assertEqual(out.stat().st_size, PAYLOAD_BYTES)

    def test_export_and_import(self) -> None:
        payload = self.folder / "p.bin"
        with payload.open("wb") as file:
            file.truncate(PAYLOAD_BYTES)
        description = self.write_json("m.json", metadata(manifest=False))
        path, out, printed = self.folder / "a.kvc", self.folder / "out", self.folder / "printed"
        self.peak_kib("pack", "--durability=none", description, payload, "-o", path, stdout=printed)
        peak = self.peak_kib("export", path, "--safetensors", out, stdout=printed)
        self.assertLess(peak, MOST_KIB)
        peak = self.peak_kib(
            "import", "--durability=none", out, "-o", self.folder / "b.kvc", stdout=printed
        )
        self.assertLess(peak, MOST_KIB)

    def test_verify_and_diff(self) -> None:
        description = self.write_json("m.json", metadata(manifest=False))
        payload, out = self.folder / "p.bin", self.folder / "out"
        files = [self.folder / "a.kvc", self.folder / "b.kvc"]
        for number, path in enumerate(files):
            with payload.open("wb") as file:
                file.truncate(PAYLOAD_BYTES)
                file.seek(PAYLOAD_BYTES // 2)
                file.write(bytes([number]))
            self.peak_kib("pack", "--durability=none", description, payload, "-o", path, stdout=out)
        self.assertLess(self.peak_kib("verify", files[0], stdout=out), MOST_KIB)
        peak = self.peak_kib("diff", "--where", *files, stdout=out, code=BAD)
        self.assertLess(peak, MOST_KIB)
        self.assertTrue(out.read_text().endswith("  1 byte differs, in bytes 33554432\n"))

    def run_within(self, kib: int, *words: str | Path) -> subprocess.CompletedProcess[bytes]:
        """Runs kvc with a limit on its address space."""
        return subprocess.run(
            ["/bin/sh", "-c", f'ulimit -v {kib}; exec "$@"', "sh", KVC, *words],
            capture_output=True, timeout=60, check=False,
        )  # fmt: skip

    def test_no_memory_is_said(self) -> None:
        path = self.pack("a.kvc", metadata(manifest=False), bytes(9 * MIB))
        kib = 1024
        while self.run_within(kib, "root", path).returncode != GOOD:
            kib += 256
            self.assertLess(kib, 1 << 20)
        done = self.run_within(kib + 4096, "cat", path)
        self.assertEqual((done.returncode, done.stdout), (TROUBLE, b""))
        self.assertTrue(done.stderr.startswith(f"kvc: {path}: no memory".encode()), done.stderr)


if __name__ == "__main__":
    unittest.main()
