#!/usr/bin/env python3
"""tally.py: adds up test results and ends with the line `N passed, N failed`.

Usage: tally.py FOLDER NAME...

Each NAME is one run. FOLDER/NAME.rc holds the exit status of its command, and FOLDER/NAME.xml, if
it is there, the JUnit report of `meson test` or pytest. A run without a report counts as one test.
A run that is missing, ran no test, or failed although its report says otherwise is a failure.
SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import pathlib
import sys
import xml.etree.ElementTree
from dataclasses import dataclass, field


@dataclass
class Count:
    """How many tests of a run passed, failed and were skipped, and remarks about it."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    remarks: list[str] = field(default_factory=list)

    def add(self, other: Count) -> None:
        """Add the numbers of another run."""
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def fail(self, remark: str) -> None:
        """Count one failure and say why."""
        self.failed += 1
        self.remarks.append(remark)

    def text(self) -> str:
        """Return `N of N passed`, and the skipped ones when there are any."""
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        return f"{self.passed} of {self.passed + self.failed} passed{skipped}"


def count_report(path: pathlib.Path) -> Count:
    """Return the numbers in a JUnit report, with the names of the failed tests as remarks."""
    count = Count()
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            count.fail(f"failed: {case.get('classname', '')} {case.get('name', '')}".strip())
        elif case.find("skipped") is not None:
            count.skipped += 1
        else:
            count.passed += 1
    return count


def count_run(folder: pathlib.Path, name: str) -> Count:
    """Return the numbers of one run, judged by its exit status as well as its report."""
    status_path = folder / f"{name}.rc"
    report_path = folder / f"{name}.xml"
    if not status_path.exists():
        count = Count()
        count.fail("did not run")
        return count
    status = status_path.read_text(encoding="ascii").strip()
    if not report_path.exists():
        if status == "0":
            return Count(passed=1)
        count = Count()
        count.fail(f"ended with status {status}")
        return count
    try:
        count = count_report(report_path)
    except xml.etree.ElementTree.ParseError as error:
        count = Count()
        count.fail(f"{report_path.name} is no JUnit report: {error}")
        return count
    if count.passed + count.failed + count.skipped == 0:
        count.fail("ran no test")
    if status != "0" and count.failed == 0:
        count.fail(f"ended with status {status}, and its report names no failed test")
    return count


def main(words: list[str]) -> int:
    """Print a line for each run and the sum; return 0 when nothing failed."""
    if len(words) < 2:
        print("usage: tally.py FOLDER NAME...", file=sys.stderr)
        return 2
    folder = pathlib.Path(words[0])
    total = Count()
    for name in words[1:]:
        count = count_run(folder, name)
        print(f"{name}: {count.text()}")
        for remark in count.remarks:
            print(f"    {remark}")
        total.add(count)
    if total.skipped:
        print(f"skipped: {total.skipped}")
    print(f"{total.passed} passed, {total.failed} failed", flush=True)
    return 0 if total.failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
