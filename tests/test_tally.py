"""test_tally.py: what scripts/tally.py counts, and what it takes for a failure.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tempfile
import unittest

TALLY = pathlib.Path(__file__).resolve().parents[1] / "scripts" / "tally.py"
PASSED = '<testcase name="a"/>'
FAILED = '<testcase classname="m" name="b"><failure/></testcase>'
BROKEN = '<testcase name="c"><error/></testcase>'
SKIPPED = '<testcase name="d"><skipped/></testcase>'


class Tally(unittest.TestCase):
    """Each test writes exit statuses and reports, and looks at the last line and the status."""

    def setUp(self) -> None:
        """Make a folder for results."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_of(self, name: str, status: int, report: str | None = None) -> None:
        """Leave what a run leaves."""
        (self.folder / f"{name}.rc").write_text(f"{status}\n")
        if report is not None:
            (self.folder / f"{name}.xml").write_text(report)

    def expect(self, names: str, last_line: str, status: int) -> str:
        """Run the script, compare its end, and return what it printed."""
        words = [sys.executable, str(TALLY), str(self.folder), *names.split()]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        self.assertEqual(done.stdout.splitlines()[-1], last_line, done.stdout + done.stderr)
        self.assertEqual(done.returncode, status)
        return done.stdout

    def test_adds_up(self) -> None:
        """Reports are added up, skipped tests stand apart, a run without a report is one test."""
        self.run_of("one", 0, f"<testsuites><testsuite>{PASSED}{SKIPPED}</testsuite></testsuites>")
        self.run_of("two", 0, f"<testsuite>{PASSED}{PASSED}</testsuite>")
        self.run_of("three", 0)
        printed = self.expect("one two three", "4 passed, 0 failed", 0)
        self.assertIn("one: 1 of 1 passed, 1 skipped", printed)

    def test_failures_are_named(self) -> None:
        """Failures and errors count alike and are named."""
        self.run_of("one", 1, f"<testsuite>{PASSED}{FAILED}{BROKEN}</testsuite>")
        printed = self.expect("one", "1 passed, 2 failed", 1)
        self.assertIn("failed: m b", printed)

    def test_a_status_without_a_failed_test(self) -> None:
        """A run that failed fails, whatever its report says."""
        self.run_of("one", 3, f"<testsuite>{PASSED}</testsuite>")
        self.assertIn("status 3", self.expect("one", "1 passed, 1 failed", 1))
        self.run_of("two", 3)
        self.expect("two", "0 passed, 1 failed", 1)

    def test_nothing_ran(self) -> None:
        """A run that is missing, is empty, or left half a report fails."""
        self.expect("one", "0 passed, 1 failed", 1)
        self.run_of("one", 0, "<testsuite/>")
        self.expect("one", "0 passed, 1 failed", 1)
        self.run_of("one", 0, "<testsuite>")
        self.expect("one", "0 passed, 1 failed", 1)


if __name__ == "__main__":
    unittest.main()
