# kinds_table.py: writes the table of docs/CACHES.md from the reports of the adapter's tests.
# SPDX-License-Identifier: Apache-2.0
"""Use after `make test`, whose reports it reads:

python scripts/kinds_table.py build-check/results/pytest.xml build-check/results/adapter-4.57.xml

Counted are the tests of tests/adapter/test_kinds.py that bear a family's name: each saves a cache,
loads it, goes on, and compares the logits of every step with those of going on in memory.
"""

import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "CACHES.md"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"
ALL_FAMILIES = re.compile(r"test_every_family_goes_on_identically\[(.+)-\d+\]")
VERSIONS = ("5.18.0", "4.57.6")


def read_report(path: Path) -> tuple[list[str], dict[str, Counter[str]], dict[str, str]]:
    """Returns the families in order, how each one's tests ended, and why it was skipped."""
    cases = [
        case
        for case in ElementTree.parse(path).iter("testcase")
        if case.get("classname", "").endswith("test_kinds")
    ]
    families: list[str] = []
    for case in cases:
        found = ALL_FAMILIES.fullmatch(case.get("name", ""))
        if found and found[1] not in families:
            families.append(found[1])
    ends: dict[str, Counter[str]] = {family: Counter() for family in families}
    reasons: dict[str, str] = {}
    for case in cases:
        words = case.get("name", "").partition("[")[2].rstrip("]")
        named = [name for name in families if re.search(rf"(^|-){re.escape(name)}(-|$)", words)]
        if not named:
            continue
        # One name can be the beginning of another: Qwen3, Qwen3-Next.
        family = max(named, key=len)
        skipped = case.find("skipped")
        failed = case.find("failure") is not None or case.find("error") is not None
        ends[family]["failed" if failed else "passed" if skipped is None else "skipped"] += 1
        if skipped is not None:
            reasons[family] = skipped.get("message", "")
    return families, ends, reasons


def cell(ends: Counter[str], reason: str) -> str:
    if ends["failed"]:
        return f"NO: {ends['failed']} of {ends['failed'] + ends['passed']} tests failed"
    if ends["passed"]:
        return f"exact, {ends['passed']} tests"
    return f"not tested: {reason}"


def main() -> int:
    if len(sys.argv) != 1 + len(VERSIONS):
        print(__doc__, file=sys.stderr)
        return 2
    reports = [read_report(Path(path)) for path in sys.argv[1:]]
    lines = ["| model family | " + " | ".join(VERSIONS) + " |", "|---|---|---|"]
    for family in reports[0][0]:
        cells = [
            cell(ends.get(family, Counter()), reasons.get(family, "no such test"))
            for _, ends, reasons in reports
        ]
        lines.append(f"| {family} | " + " | ".join(cells) + " |")
    text = DOCUMENT.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCUMENT.write_text(before + BEGIN + "\n" + "\n".join(lines) + "\n\n" + END + after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
