"""test_inspect.py: `kvc inspect`, the table and the JSON.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import json
import math
import unittest
from pathlib import Path

from cli_support import BAD, GOOD, TROUBLE, CliCase, blake3, flip, kvc, kvc1, metadata, tensor_bytes

KEY = bytes(range(32))


def rows(text: str) -> dict[str, str]:
    """The table's lines by label."""
    table = {}
    for line in text.split("\n\n")[0].splitlines():
        table[line[:17].rstrip()] = line[19:]
    return table


class Table(CliCase):
    def table(self, path: Path, *options: str | Path) -> dict[str, str]:
        done = kvc("inspect", *options, path)
        self.expect_code(done, GOOD)
        self.assertEqual(done.err, b"")
        return rows(done.text)

    def test_shows_everything(self) -> None:
        members = metadata(user={"n": [1, None], "t": "a" * 99}, rope_theta=1e6, batch_size=3)
        path = self.pack("a.kvc", members)
        size = path.stat().st_size
        facts = self.facts(path)
        self.assertEqual(
            self.table(path),
            {
                "File name": str(path),
                "Root": facts["root"],
                "Model revision": "example/model@0123456789abcdef",
                "Tokenizer SHA-256": "ab" * 32,
                "RoPE theta": "1000000.0",
                "Geometry": "2 layers, 2 KV heads, head dimension 4, batch 3",
                "Data type": "f16",
                "Layout": "layer-major-k-then-v",
                "Tokens": "5, positions 7 to 11",
                "User data": '{"n":[1,null],"t":"' + "a" * 99 + '"}',
                "Tensors": "4, manifest version 1",
                "Payload": "960 bytes, at byte 4,096",
                "Metadata": f"{facts['metadata_bytes'] / 1024:.1f} KiB"
                f" ({facts['metadata_bytes']:,} bytes)",
                "File": f"{size / 1024:.1f} KiB ({size:,} bytes)",
                "Alignment": "1, packed",
                "Format": "KVC1 1.0, no feature bits",
                "Tag": "none",
                "Checked": "header, metadata and digests; payload not checked: run kvc verify",
            },
        )

    def test_opaque_payload(self) -> None:
        path = self.pack("a.kvc", metadata(manifest=False), b"x" * 100)
        table = self.table(path)
        self.assertEqual(table["Tensors"], "none: the payload is opaque")
        self.assertEqual(table["Payload"], "100 bytes, at byte 4,096")
        self.assertEqual(table["Geometry"], "2 layers, 2 KV heads, head dimension 4")
        self.assertNotIn("User data", table)

    def test_numbers_of_one(self) -> None:
        path = self.pack("a.kvc", metadata(layers=1, kv_heads=1))
        self.assertEqual(
            self.table(path)["Geometry"], "1 layer, 1 KV head, head dimension 4, batch 1"
        )

    def test_alignment_and_gaps(self) -> None:
        path = self.pack("a.kvc", None, None, "--align=64")
        table = self.table(path)
        self.assertEqual(table["Alignment"], "64")
        # Four tensors, and a gap behind each but the last.
        each = metadata()["tensor_manifest"]["tensors"][0]["nbytes"]
        gap = -each % 64
        self.assertEqual(table["Gaps"], f"{3 * gap} bytes, zeros between tensors")

    def test_tag(self) -> None:
        key = self.write("key", KEY)
        path = self.pack("a.kvc", None, None, "--key-file", key)
        self.assertEqual(self.table(path)["Tag"], "present, not checked: --key-file PATH checks it")
        self.assertEqual(self.table(path, "--key-file", key)["Tag"], "present, made with this key")
        other = self.write("other", bytes(32))
        self.expect_refusal(kvc("inspect", "--key-file", other, path), BAD, path)
        plain = self.pack("b.kvc")
        self.expect_refusal(kvc("inspect", "--key-file", key, plain), BAD, plain, "tag")

    def test_root_option(self) -> None:
        path = self.pack("a.kvc")
        root = self.facts(path)["root"]
        self.assertEqual(self.table(path, "--root", root)["Root"], root)
        self.expect_refusal(kvc("inspect", "--root", "0" * 64, path), BAD, path, root)
        self.expect_usage(kvc("inspect", "--root", "0" * 63, path), "inspect", "no root")

    def test_tensor_rows(self) -> None:
        path = self.pack("a.kvc")
        done = kvc("inspect", "--tensors", path)
        self.expect_code(done, GOOD)
        head, *lines = done.text.split("\n\n")[1].splitlines()
        self.assertEqual(head.split(), ["TENSOR", "DTYPE", "SHAPE", "BYTES", "FILE", "OFFSET",
                                        "BLAKE3"])  # fmt: skip
        wanted = [
            f"{r['name']} f16 [1, 2, 5, 4] {r['nbytes']} {4096 + r['offset']} {blake3(data).hex()}"
            for r, data in zip(
                metadata()["tensor_manifest"]["tensors"], tensor_bytes(metadata()), strict=True
            )
        ]
        self.assertEqual([" ".join(line.split()) for line in lines], wanted)
        self.assertEqual(len({len(line) for line in [head[: -len("BLAKE3")], *lines]}), 2)

    def test_tensor_row_of_an_opaque_payload(self) -> None:
        path = self.pack("a.kvc", metadata(manifest=False), b"x" * 100)
        line = kvc("inspect", "--tensors", path).lines[-1]
        self.assertEqual(line.split(), ["-", "u8", "[100]", "100", "4096",
                                        blake3(b"x" * 100).hex()])  # fmt: skip

    def test_several_files(self) -> None:
        a, b = self.pack("a.kvc"), self.pack("b.kvc", metadata(head_dim=2))
        done = kvc("inspect", self.foreign(), a, self.folder / "missing", b)
        self.expect_code(done, TROUBLE)
        blocks = done.text.split("\n\n")
        self.assertEqual([rows(block)["File name"] for block in blocks], [str(a), str(b)])
        self.assertEqual(len(done.error_lines), 2)

    def test_long_values_are_cut(self) -> None:
        path = self.pack("a.kvc", metadata(model_revision="é" * 500, user={"x": "y" * 5000}))
        table = self.table(path)
        self.assertEqual(table["Model revision"], "é" * 240 + "…")
        self.assertEqual(len(table["User data"]), 241)
        self.assertTrue(table["User data"].endswith("…"))

    def test_members_of_a_later_minor_version(self) -> None:
        members = metadata() | {"engine": {"name": "\x1b[31m"}, "zeta": 1}
        data = kvc1.encode(members, tensor_bytes(members), version_minor=2, compat=1 << 40)
        path = self.write("a.kvc", data)
        done = kvc("inspect", path)
        self.expect_code(done, GOOD)
        self.assertIn('Other metadata     "engine": {"name":"\\u001b[31m"}\n', done.text)
        self.assertIn('Other metadata     "zeta": 1\n', done.text)
        self.assertIn("KVC1 1.2, compat bits 40\n", done.text)
        facts = self.facts(path)
        self.assertEqual((facts["version_minor"], facts["compat"]), (2, [40]))

    def test_damaged_payload_is_shown_and_damaged_metadata_are_not(self) -> None:
        path = self.pack("a.kvc")
        flip(path, 4096)
        self.table(path)
        flip(path, 130)
        self.expect_refusal(kvc("inspect", path), BAD, path)


class Json(CliCase):
    def test_holds_all_facts(self) -> None:
        members = metadata(user={"é": ["\x7f", "\u202e", 1.5]}, batch_size=2)
        path = self.pack("a.kvc", members, None, "--align=4096")
        facts = self.facts(path)
        canonical = kvc1.canonical(members)
        payload = [record["nbytes"] for record in members["tensor_manifest"]["tensors"]]
        starts = [4096 * i for i in range(4)]
        tensors = facts.pop("tensors")
        self.assertEqual(
            facts,
            {
                "file": str(path),
                "root": kvc("root", path).text[:69],
                "payload_checked": False,
                "has_tag": False,
                "tag_checked": False,
                "version_major": 1,
                "version_minor": 0,
                "incompat": [],
                "ro_compat": [],
                "compat": [],
                "file_bytes": path.stat().st_size,
                "metadata_bytes": len(canonical),
                "payload_offset": 4096,
                "payload_span": starts[-1] + payload[-1],
                "payload_bytes": sum(payload),
                "chunk_count": 4,
                "align_bytes": 4096,
                "tensor_count": 4,
                "manifest_version": 1,
                "metadata": members,
            },
        )
        data = tensor_bytes(members)
        for index, record in enumerate(members["tensor_manifest"]["tensors"]):
            self.assertEqual(
                tensors[index],
                {
                    "name": record["name"],
                    "dtype": "f16",
                    "kind": record["kind"],
                    "layer": record["layer"],
                    "shape": record["shape"],
                    "bytes": record["nbytes"],
                    "offset": record["offset"],
                    "file_offset": 4096 + starts[index],
                    "chunk_count": 1,
                    "blake3": blake3(data[index]).hex(),
                },
            )

    def test_metadata_are_verbatim_but_harmless(self) -> None:
        user = {"a": "\x1b[2J\x7f\x9b31m\u202e\u2066\ufeff\U000e0041é\u200d😀", "f": 1e16, "i": 3}
        path = self.pack("a.kvc", metadata(user=user))
        done = kvc("inspect", "--json", path)
        self.assertEqual(len(done.lines), 1)
        for character in "\x1b\x7f\x9b\u202e\u2066\ufeff\U000e0041":
            self.assertNotIn(character, done.text)
        self.assertIn("\\u009b", done.text)
        self.assertIn("\\udb40\\udc41", done.text)
        self.assertIn("é\u200d😀", done.text)
        self.assertIn('"f":1e+16,"i":3', done.text)
        self.assertEqual(json.loads(done.out)["metadata"]["user"], user)

    def test_is_stable(self) -> None:
        path = self.pack("a.kvc")
        self.assertEqual(kvc("inspect", "--json", path), kvc("inspect", "--json", path))

    def test_opaque_payload(self) -> None:
        path = self.pack("a.kvc", metadata(manifest=False), bytes(70_000))
        facts = self.facts(path)
        self.assertEqual((facts["tensor_count"], facts["manifest_version"]), (0, 0))
        (tensor,) = facts["tensors"]
        self.assertEqual(tensor["name"], "")
        self.assertEqual((tensor["bytes"], tensor["chunk_count"]), (70_000, 2))
        self.assertNotIn("kind", tensor)

    def test_one_object_for_each_good_file(self) -> None:
        a, b = self.pack("a.kvc"), self.pack("b.kvc")
        done = kvc("inspect", "--json", a, self.foreign(), b)
        self.expect_code(done, BAD)
        self.assertEqual([json.loads(line)["file"] for line in done.lines], [str(a), str(b)])
        self.assertEqual(len(done.error_lines), 1)

    def test_file_names_that_are_not_utf8(self) -> None:
        path = self.pack("a.kvc")
        odd = bytes(self.folder) + b'/\xff\n"\\.kvc'
        path.rename(odd.decode("utf-8", "surrogateescape"))
        done = kvc("inspect", "--json", odd)
        self.expect_code(done, GOOD)
        self.assertEqual(json.loads(done.out)["file"], f'{self.folder}/\ufffd\n"\\.kvc')

    def test_numbers_are_exact(self) -> None:
        members = metadata(manifest=False, sequence_start=2**53 - 1, rope_theta=math.pi)
        facts = self.facts(self.pack("a.kvc", members, b"x"))
        self.assertEqual(facts["metadata"], members)


if __name__ == "__main__":
    unittest.main()
