"""test_root.py: `kvc root`.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import unittest

from cli_support import BAD, GOOD, TROUBLE, CliCase, flip, kvc, kvc1, metadata, tensor_bytes


class Root(CliCase):
    def test_prints_root_and_name(self) -> None:
        path = self.pack("a.kvc")
        wanted = kvc1.parts(metadata(), tensor_bytes(metadata())).stored_root()
        done = kvc("root", path)
        self.expect_code(done, GOOD)
        self.assertEqual(done.text, f"{kvc1.root_text(wanted)}  {path}\n")
        self.assertEqual(done.err, b"")

    def test_many_files_in_order_and_the_highest_code(self) -> None:
        good, other = self.pack("a.kvc"), self.pack("b.kvc", metadata(head_dim=2))
        foreign, missing = self.foreign(), self.folder / "missing"
        done = kvc("root", good, foreign, other)
        self.expect_code(done, BAD)
        self.assertEqual([line[71:] for line in done.lines], [str(good), str(other)])
        self.assertEqual(len(done.error_lines), 1)
        done = kvc("root", missing, foreign, good)
        self.expect_code(done, TROUBLE)
        self.assertEqual(len(done.lines), 1)
        self.assertEqual(len(done.error_lines), 2)

    def test_names_content_not_layout(self) -> None:
        plain = kvc("root", self.pack("a.kvc")).text[:69]
        aligned = self.pack("b.kvc", None, None, "--align=4096")
        self.assertEqual(kvc("root", aligned).text[:69], plain)

    def test_checks_all_but_the_payload(self) -> None:
        path = self.pack("a.kvc")
        facts = self.facts(path)
        flip(path, facts["payload_offset"])
        self.expect_code(kvc("root", path), GOOD)
        flip(path, 128 + 20)
        self.expect_refusal(kvc("root", path), BAD, path)


if __name__ == "__main__":
    unittest.main()
