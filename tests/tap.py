"""tap.py: runs one file of unittest tests and reports each test in TAP, for `meson test`.

Usage: python3 tests/tap.py FILE [TEST...]
SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import contextlib
import importlib.util
import pathlib
import sys
import unittest
from typing import Any, TextIO


class TapResult(unittest.TestResult):
    """Writes one TAP line for each test when it ends, and the traceback of a failure."""

    def __init__(self, out: TextIO) -> None:
        """Take the stream for the TAP lines."""
        super().__init__()
        self.out = out
        self.count = 0

    def line(self, verdict: str, name: str, note: str = "") -> None:
        """Write one result line with the next number."""
        self.count += 1
        safe = name.replace("#", " ").replace("\n", " ")
        print(f"{verdict} {self.count} - {safe}{note}", file=self.out, flush=True)

    def addSuccess(self, test: unittest.TestCase) -> None:
        """Report a test that passed."""
        super().addSuccess(test)
        self.line("ok", test.id())

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        """Report a failed assertion."""
        super().addFailure(test, err)
        self.line("not ok", test.id())
        print(self.failures[-1][1], file=sys.stderr)

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        """Report a test, or the setup of a class or module, that raised."""
        super().addError(test, err)
        self.line("not ok", test.id())
        print(self.errors[-1][1], file=sys.stderr)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        """Report a skipped test with its reason."""
        super().addSkip(test, reason)
        self.line("ok", test.id(), " # SKIP " + reason.replace("\n", " "))

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        """Report a test that fails as it says it does."""
        super().addExpectedFailure(test, err)
        self.line("ok", test.id())

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        """Report a test that passed although it says it fails."""
        super().addUnexpectedSuccess(test)
        self.line("not ok", f"{test.id()} passed, expected it to fail")

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        """Report a failed subtest as a test; unittest then adds no success for the whole."""
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.line("not ok", subtest.id())
            log = self.failures if issubclass(err[0], test.failureException) else self.errors
            print(log[-1][1], file=sys.stderr)


def main(words: list[str]) -> int:
    """Run the tests of the file and return the exit code: 0 when all that ran passed."""
    path = pathlib.Path(words[0]).resolve()
    sys.path.insert(0, str(path.parent))
    out = sys.stdout
    # What tests print must not be taken for TAP.
    with contextlib.redirect_stdout(sys.stderr):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        loader = unittest.TestLoader()
        if len(words) > 1:
            suite = loader.loadTestsFromNames(words[1:], module)
        else:
            suite = loader.loadTestsFromModule(module)
        result = TapResult(out)
        suite.run(result)
    if result.count == 0:
        result.line("not ok", f"{path.name} holds no test")
        print(f"1..{result.count}", file=out)
        return 1
    print(f"1..{result.count}", file=out)
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
