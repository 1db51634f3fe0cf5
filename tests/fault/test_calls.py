"""test_calls.py: every system call of saving and reading fails once, and from then on.

After each fault the exit code and the message say so, the old or the new file is whole, nothing
else lies in the folder, and the next save succeeds.
SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import errno
import os
import unittest
from collections.abc import Iterator
from pathlib import Path

from fault_support import DRIVER, GOOD, KVC, SHIM, TROUBLE, Fault, FaultCase, Outcome, run

# Calls that a save may do without, or repeat: with these faults it must succeed all the same.
HARMLESS = [
    Fault("read", "short", always=True),
    Fault("read", errno=errno.EINTR),
    Fault("pwrite", "short"),
    Fault("pwrite", "short", always=True),
    Fault("pwrite", errno=errno.EINTR),
    Fault("fallocate", errno=errno.EOPNOTSUPP, always=True),
    Fault("fallocate", errno=errno.EINTR),
    Fault("flock", errno=errno.ENOLCK),
    Fault("flock", errno=errno.ENOSYS, always=True),
    Fault("pthread_create", errno=errno.EAGAIN, always=True),
]

# With these a save succeeds or is refused, as the call is needed or not.
FAULTS = [
    Fault(call, errno=number, always=always)
    for call, numbers in {
        "open": [errno.EACCES],
        "fstat": [errno.EIO],
        "fstatat": [errno.EIO],
        "read": [errno.EIO],
        "pwrite": [errno.ENOSPC, errno.EIO],
        "fallocate": [errno.ENOSPC, errno.EDQUOT],
        "fsync": [errno.EIO],
        "flock": [errno.EINTR],
        "linkat": [errno.EACCES, errno.EIO],
        "renameat": [errno.EIO],
    }.items()
    for number in numbers
    for always in (False, True)
] + [Fault("pwrite", "zero")]

# What a refusal says that it was doing.
DOING = {
    "open": "opening|creating the file",
    "fstat": "creating the file",
    "fstatat": "looking at the file to be replaced|creating the file",
    "read": "reading the metadata|reading the payload|reading",
    "pwrite": "writing the file",
    "fallocate": "reserving space",
    "fsync": "writing the file to the disk|writing the folder to the disk",
    "flock": "creating the file",
    "linkat": "giving the file its name",
    "renameat": "giving the file its name",
}

IN_PLACE = "complete and in its place"

# (an old file is there, files without a name are refused)
SITUATIONS = [(False, False), (True, False), (False, True), (True, True)]


class SavingTest(FaultCase):
    """`kvc pack` under every fault."""

    def spoiled_saves(self, fault: Fault, old: bool, named: bool) -> Iterator[Outcome]:
        """Spoil the first call, then the second, until a save meets no fault."""
        # The disk is waited for only where that is spoiled.
        level = "full" if fault.call == "fsync" else "none"
        for at in range(1, 1000):
            self.put_old(old)
            self.met.unlink(missing_ok=True)
            env = fault.environment(at, self.met)
            if named:
                env["KVC_FAULT_NAMED"] = "1"
            done = run(*self.pack("new"), f"--durability={level}", env=env)
            if not self.met.exists():
                self.assertEqual((done.code, done.err), (GOOD, ""))
                return
            done.what = f"{fault}, call {at}, old {old}, named {named}"
            yield done
        self.fail("a save that never ends without a fault")

    def check_state(self, done: Outcome, old: bool) -> None:
        """Hold the folder against what the exit code and the message say."""
        complete = done.code == GOOD or IN_PLACE in done.err
        wanted = self.contents["new"] if complete else self.contents["old"] if old else None
        self.assertEqual(self.found(), wanted, done)
        self.assertEqual(self.temporary(), [], done)

    def check_message(self, done: Outcome, fault: Fault) -> None:
        """Hold the refusal against what was spoiled."""
        self.assertEqual(done.out, "", done)
        self.assertEqual(done.err.count("\n"), 1, done)
        self.assertTrue(done.err.startswith("kvc: "), done)
        self.assertRegex(done.err, DOING[fault.call], done)

    def test_harmless(self) -> None:
        """Short transfers, interruptions and missing conveniences do not stop a save."""
        for fault in HARMLESS:
            for old, named in SITUATIONS:
                for done in self.spoiled_saves(fault, old, named):
                    self.assertEqual((done.code, done.err), (GOOD, ""), done)
                    self.check_state(done, old)

    def test_faults(self) -> None:
        """A save that fails says why and leaves everything as it was."""
        for fault in FAULTS:
            refused = 0
            for old, named in SITUATIONS:
                # Saving looks for 64 leftovers: two situations are enough for so many calls.
                if fault.call == "open" and old != named:
                    continue
                for done in self.spoiled_saves(fault, old, named):
                    self.assertIn(done.code, (GOOD, TROUBLE), done)
                    self.check_state(done, old)
                    if done.code == TROUBLE:
                        refused += 1
                        self.check_message(done, fault)
                        self.save_cleanly()
            if fault.call not in ("fstat", "flock"):
                self.assertGreater(refused, 0, fault)

    def test_in_place(self) -> None:
        """When only the folder cannot be flushed, the new file is there and the message says so."""
        self.put_old(True)
        done = run(*self.pack("new"), env=Fault("fsync", errno=errno.EIO).environment(2, self.met))
        self.assertEqual(done.code, TROUBLE)
        self.assertIn(IN_PLACE, done.err)
        self.assertEqual(self.found(), self.contents["new"])


class WriteBehindTest(FaultCase):
    """Saves that are large enough for write-behind."""

    tensor_bytes = 9 << 20

    def test_hint(self) -> None:
        """Starting the disk early is a hint, whose failure does not matter."""
        fault = Fault("sync_file_range", errno=errno.EIO, always=True)
        done = run(*self.pack("new"), env=fault.environment(1, self.met))
        self.assertEqual((done.code, done.err), (GOOD, ""))
        self.assertTrue(self.met.exists())
        self.assertEqual(self.found(), self.contents["new"])


class ReadingTest(FaultCase):
    """`kvc verify`, and a program that reads and maps, under every fault."""

    def spoiled_runs(self, words: list[str | Path], fault: Fault) -> Iterator[Outcome]:
        """Spoil the first call, then the second, until a run meets no fault."""
        for at in range(1, 1000):
            self.met.unlink(missing_ok=True)
            done = run(*words, env=fault.environment(at, self.met))
            if not self.met.exists():
                self.assertEqual((done.code, done.err), (GOOD, ""))
                return
            done.what = f"{words[:2]}, {fault}, call {at}"
            yield done
        self.fail("a run that never ends without a fault")

    def programs(self) -> list[list[str | Path]]:
        """Return the programs, with files for them to read."""
        self.put_old(True)
        saved = self.folder / "saved.kvc"
        done = run(DRIVER, "save", saved, "7")
        self.assertEqual((done.code, done.err), (GOOD, ""))
        return [[KVC, "verify", self.target], [DRIVER, "load", saved]]

    def test_harmless(self) -> None:
        """Short transfers, interruptions and refused hints and threads do not matter."""
        faults = [
            Fault("open", errno=errno.EINTR),
            Fault("pread", "short"),
            Fault("pread", "short", always=True),
            Fault("pread", errno=errno.EINTR),
            Fault("posix_fadvise", errno=errno.EINVAL, always=True),
            Fault("pthread_create", errno=errno.EAGAIN),
            Fault("pthread_create", errno=errno.EAGAIN, always=True),
        ]
        for words in self.programs():
            for fault in faults:
                for done in self.spoiled_runs(words, fault):
                    self.assertEqual((done.code, done.err), (GOOD, ""), done)

    def test_faults(self) -> None:
        """A file that cannot be read is not called damaged."""
        doing = {
            "open": "opening the file failed",
            "fstat": "looking at the file failed",
            "pread": "reading the file failed|became shorter while it was open",
            "mmap": "mapping the file failed",
        }
        faults = [
            *(Fault("open", errno=number) for number in (errno.EACCES, errno.EMFILE, errno.EIO)),
            Fault("fstat", errno=errno.EIO),
            Fault("pread", errno=errno.EIO),
            Fault("pread", errno=errno.EIO, always=True),
            Fault("pread", "zero"),
            Fault("mmap", errno=errno.ENODEV),
            Fault("mmap", errno=errno.ENOMEM),
        ]
        for words in self.programs():
            for fault in faults:
                refused = 0
                for done in self.spoiled_runs(words, fault):
                    # A map in the C library or a fstat for its buffers is not ours.
                    if done.code == GOOD and fault.call in ("fstat", "mmap"):
                        continue
                    refused += 1
                    self.assertEqual(done.code, TROUBLE, done)
                    self.assertRegex(done.err, doing[fault.call], done)
                if fault.call != "mmap" or words[0] == DRIVER:
                    self.assertGreater(refused, 0, (words, fault))


class ShimTest(unittest.TestCase):
    """The shim itself, so that faults which are never met do not pass for tests."""

    def test_every_name(self) -> None:
        """Every function that the faults name is in the shim's table."""
        table = SHIM.read_bytes()
        for fault in [*HARMLESS, *FAULTS]:
            self.assertIn(fault.call.encode() + b"\0", table)
        self.assertNotIn(b"LD_PRELOAD", os.environb)


if __name__ == "__main__":
    unittest.main()
