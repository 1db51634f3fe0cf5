"""test_export_calls.py: system calls of `kvc export` and `kvc import` fail once, and from then on.

After each fault the exit code and the message say so, the old or the new file is whole, and
nothing else lies in the folder.
SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import errno
import unittest
from collections.abc import Iterator
from pathlib import Path

from fault_support import GOOD, KVC, TROUBLE, Fault, FaultCase, Outcome, run

HARMLESS = [
    Fault("pread", "short"),
    Fault("pread", errno=errno.EINTR),
    Fault("pwrite", "short"),
    Fault("pwrite", "short", always=True),
    Fault("pwrite", errno=errno.EINTR),
    Fault("pthread_create", errno=errno.EAGAIN, always=True),
]

FAULTS = [
    Fault(call, errno=number, always=always)
    for call, number in (
        ("open", errno.EACCES), ("fstat", errno.EIO), ("fstatat", errno.EIO),
        ("pread", errno.EIO), ("pwrite", errno.ENOSPC), ("pwrite", errno.EIO),
        ("fsync", errno.EIO), ("linkat", errno.EACCES), ("renameat", errno.EIO),
    )
    for always in (False, True)
] + [Fault("pwrite", "zero"), Fault("pread", "zero")]  # fmt: skip

# What a refusal says that it was doing.
DOING = {
    "open": "opening|creating the file",
    "fstat": "opening|looking at the file",
    "fstatat": "looking at the file to be replaced",
    "pread": "reading|became shorter",
    "pwrite": "writing the file",
    "fsync": "writing the file to the disk|writing the folder to the disk",
    "linkat": "giving the file its name",
    "renameat": "giving the file its name",
}

IN_PLACE = "complete and in its place"

OLD = b"old"

# (an old file is there, files without a name are refused)
SITUATIONS = [(False, False), (True, False), (False, True), (True, True)]


class TransferTest(FaultCase):
    """Both commands under every fault."""

    def setUp(self) -> None:
        """Make a container and its export beside the folder."""
        super().setUp()
        self.source = self.base / "source.kvc"
        self.source.write_bytes(self.contents["new"])
        self.exported = self.base / "source.safetensors"
        done = run(KVC, "export", self.source, "--safetensors", self.exported)
        self.assertEqual((done.code, done.err), (GOOD, ""))

    def commands(self) -> Iterator[tuple[list[str | Path], bytes]]:
        """Yield each command and the bytes that it makes."""
        export: list[str | Path] = [KVC, "export", self.source, "--safetensors", self.target]
        yield export, self.exported.read_bytes()
        yield [KVC, "import", self.exported, "-o", self.target], self.contents["new"]

    def spoiled(
        self, words: list[str | Path], fault: Fault, old: bool, named: bool
    ) -> Iterator[Outcome]:
        """Spoil the first call, then the second, until a run meets no fault."""
        for at in range(1, 1000):
            self.target.unlink(missing_ok=True)
            if old:
                self.target.write_bytes(OLD)
            self.met.unlink(missing_ok=True)
            env = fault.environment(at, self.met)
            if named:
                env["KVC_FAULT_NAMED"] = "1"
            done = run(*words, env=env)
            if not self.met.exists():
                self.assertEqual((done.code, done.err), (GOOD, ""))
                return
            done.what = f"{words[1]}, {fault}, call {at}, old {old}, named {named}"
            yield done
        self.fail("a run that never ends without a fault")

    def check_state(self, done: Outcome, new: bytes, old: bool) -> None:
        """Hold the folder against what the exit code and the message say."""
        complete = done.code == GOOD or IN_PLACE in done.err
        self.assertEqual(self.found(), new if complete else OLD if old else None, done)
        self.assertEqual(self.temporary(), [], done)

    def test_harmless(self) -> None:
        """Short transfers and interruptions do not matter."""
        for words, new in self.commands():
            for fault in HARMLESS:
                for old, named in SITUATIONS:
                    for done in self.spoiled(words, fault, old, named):
                        self.assertEqual((done.code, done.err), (GOOD, ""), done)
                        self.check_state(done, new, old)

    def test_faults(self) -> None:
        """A run that fails says why and leaves everything as it was."""
        for words, new in self.commands():
            for fault in FAULTS:
                refused = 0
                for old, named in SITUATIONS:
                    for done in self.spoiled(words, fault, old, named):
                        self.assertIn(done.code, (GOOD, TROUBLE), done)
                        self.check_state(done, new, old)
                        if done.code == TROUBLE:
                            refused += 1
                            self.assertEqual(done.out, "", done)
                            self.assertEqual(done.err.count("\n"), 1, done)
                            self.assertRegex(done.err, DOING[fault.call], done)
                self.assertGreater(refused, 0, f"{words[1]}, {fault}")

    def test_disk(self) -> None:
        """The file is waited for before it gets its name, and its folder after."""
        for words, new in self.commands():
            runs = list(self.spoiled(words, Fault("fsync", errno=errno.EIO), True, False))
            self.assertEqual(len(runs), 2)
            self.assertIn("writing the file to the disk", runs[0].err)
            self.assertNotIn(IN_PLACE, runs[0].err)
            self.assertIn(IN_PLACE, runs[1].err)
            self.assertEqual(self.found(), new)
            for level, waits in (("file", 1), ("none", 0)):
                if words[1] == "import":
                    option: list[str | Path] = [*words, f"--durability={level}"]
                    found = self.spoiled(option, Fault("fsync", errno=errno.EIO), True, False)
                    self.assertEqual(len(list(found)), waits)

    def test_killed(self) -> None:
        """A kill leaves the old or the new file whole, and at most one temporary file."""
        for words, new in self.commands():
            for call in ("pwrite", "fsync", "linkat", "renameat"):
                for deed in ("kill", "kill-after"):
                    for done in self.spoiled(words, Fault(call, deed), True, False):
                        self.assertLess(done.code, 0, done)
                        self.assertIn(self.found(), (OLD, new), done)
                        litter = self.temporary()
                        self.assertLessEqual(len(litter), call in ("linkat", "renameat"), done)
                        for name in litter:
                            (self.folder / name).unlink()


if __name__ == "__main__":
    unittest.main()
