"""test_crash.py: a save that is killed leaves the old or the new file, and at most one temporary
file, which the next save to that name removes.

Killed at every system call, and at random moments: KVC_CRASH_ROUNDS says how many.
SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
import unittest
from pathlib import Path

from fault_support import DRIVER, GOOD, KVC, SANITIZER, Fault, FaultCase, run

ROUNDS = int(os.environ.get("KVC_CRASH_ROUNDS", "40"))

# What a save does to the folder and its files, and may be killed before and after.
CALLS = ["open", "fstatat", "pwrite", "fallocate", "fsync", "flock", "linkat", "renameat"]

TEMPORARY = r"\.kvc-[0-9a-f]{32}-\d+\.tmp"


class EveryCallTest(FaultCase):
    """Kills at every call of a save."""

    def check_killed_save(self, fault: Fault, at: int, old: bool, named: bool) -> bool:
        """Kill the save at one call; False when it made fewer."""
        self.put_old(old)
        self.met.unlink(missing_ok=True)
        env = fault.environment(at, self.met)
        if named:
            env["KVC_FAULT_NAMED"] = "1"
        level = "full" if fault.call == "fsync" else "none"
        done = run(*self.pack("new"), f"--durability={level}", env=env)
        if not self.met.exists():
            self.assertEqual((done.code, done.err), (GOOD, ""))
            return False
        done.what = f"{fault}, call {at}, old {old}, named {named}"
        self.assertEqual(done.code, -signal.SIGKILL, done)
        before = self.contents["old"] if old else None
        self.assertIn(self.found(), (before, self.contents["new"]), done)
        left = self.temporary()
        self.assertLessEqual(len(left), 1, done)
        for name in left:
            self.assertRegex(name, TEMPORARY)
            self.save_cleanly()
        return True

    def test_every_call(self) -> None:
        """Before and after every call, with files that have a name and that have none."""
        left_some = 0
        for call in CALLS:
            # Saving looks for 64 leftovers; being killed before one is like after another.
            for deed in ["kill-after"] if call == "open" else ["kill", "kill-after"]:
                for old in (False, True):
                    for named in (False, True):
                        at = 1
                        while self.check_killed_save(Fault(call, deed), at, old, named):
                            at += 1
                        left_some += at > 1
        self.assertGreater(left_some, 40)
        self.save_cleanly()


class RandomMomentTest(FaultCase):
    """Kills at random moments of a program that saves one file after the other."""

    def check_round(self, source: random.Random, named: bool) -> None:
        """Start the program, kill it, and look at what it left."""
        env = {**os.environ, **SANITIZER}
        if named:
            env.update(Fault("none").environment(1, self.met), KVC_FAULT_NAMED="1")
        words: list[str | Path] = [DRIVER, "loop", self.target, "0"]
        with subprocess.Popen(words, env=env) as child:
            # The moment is what is tested; nothing is waited for.
            time.sleep(source.uniform(0.0, 0.12))
            child.kill()
        self.assertEqual(child.returncode, -signal.SIGKILL, "it ended by itself")
        left = self.temporary()
        self.assertLessEqual(len(left), 1)
        for name in left:
            self.assertRegex(name, TEMPORARY)
        # What kvc packed has not the bytes of the program that was killed.
        if self.target.exists() and self.found() != self.contents["new"]:
            done = run(DRIVER, "load", self.target)
            self.assertEqual((done.code, done.err), (GOOD, ""))
            done = run(KVC, "verify", self.target)
            self.assertEqual((done.code, done.err), (GOOD, ""))

    def test_random_moments(self) -> None:
        """Whenever it is killed, the name shows a whole file."""
        seed = random.randrange(2**32)
        source = random.Random(seed)
        replaced = 0
        for count in range(ROUNDS):
            with self.subTest(seed=seed, round=count):
                self.check_round(source, named=count % 2 == 1)
                replaced += self.target.exists()
                if count % 4 == 3:
                    self.save_cleanly()
        self.assertGreater(replaced, 0)


if __name__ == "__main__":
    unittest.main()
