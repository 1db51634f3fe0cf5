"""test_writers.py: eight writers of one name at once, and readers that see whole files only.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import os
import subprocess
import unittest
from pathlib import Path

from fault_support import DRIVER, GOOD, SANITIZER, TIMEOUT_SECONDS, Fault, FaultCase, run

WRITERS = 8
READERS = 2


class ManyWritersTest(FaultCase):
    """Processes and threads that replace one file again and again."""

    def check_processes(self, named: bool) -> None:
        """Run writers and readers as processes; all must end well and leave one file."""
        env = {**os.environ, **SANITIZER}
        if named:
            env.update(Fault("none").environment(1, self.met), KVC_FAULT_NAMED="1")
        done = run(DRIVER, "save", self.target, "1")
        self.assertEqual((done.code, done.err), (GOOD, ""))
        jobs: list[list[str | Path]] = [[DRIVER, "loop", self.target, "15"]] * WRITERS
        jobs += [[DRIVER, "watch", self.target, "40"]] * READERS
        children = [
            subprocess.Popen(words, env=env, stderr=subprocess.PIPE, text=True) for words in jobs
        ]
        for words, child in zip(jobs, children, strict=True):
            _, err = child.communicate(timeout=TIMEOUT_SECONDS)
            self.assertEqual((child.returncode, err), (GOOD, ""), words)
        self.assertEqual(self.listing(), [self.target.name])
        done = run(DRIVER, "load", self.target)
        self.assertEqual((done.code, done.err), (GOOD, ""))

    def test_processes(self) -> None:
        """Eight processes, with files that have no name before they are complete."""
        self.check_processes(named=False)

    def test_processes_with_names(self) -> None:
        """Eight processes, where every file needs a temporary name."""
        self.check_processes(named=True)

    def test_threads(self) -> None:
        """Eight threads of one process, in both ways."""
        for named in (False, True):
            env = {"KVC_FAULT_NAMED": "1"} if named else {}
            done = run(
                DRIVER,
                "crowd",
                self.target,
                "10",
                env={**Fault("none").environment(1, self.met), **env},
            )
            self.assertEqual((done.code, done.err), (GOOD, ""))
            self.assertEqual(self.listing(), [self.target.name])


if __name__ == "__main__":
    unittest.main()
