# test_docs.py: the table of docs/CACHES.md names every family that the tests go through.
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from adapter_help import REPOSITORY
from kinds_help import FAMILIES


def test_the_table_has_every_family() -> None:
    text = (REPOSITORY / "docs" / "CACHES.md").read_text(encoding="utf-8")
    table = text.partition("<!-- table: begin -->")[2].partition("<!-- table: end -->")[0]
    rows = [line.split("|") for line in table.strip().splitlines()[2:]]
    assert [row[1].strip() for row in rows] == [family.name for family in FAMILIES]
    assert all("NO" not in cell for row in rows for cell in row)
