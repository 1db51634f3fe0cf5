"""test_export.py: `kvc export`: what it writes, and what happens when it fails.

The files are read here by a few lines of Python. tests/python/test_safetensors.py reads them with
the package of that name.
SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import unittest
from pathlib import Path
from typing import Any

from cli_support import (
    BAD,
    GOOD,
    KVC,
    PROJECT,
    TIMEOUT_SECONDS,
    TROUBLE,
    CliCase,
    Outcome,
    flip,
    kvc,
    metadata,
    tensor_bytes,
)

GOOD_FILES = sorted((PROJECT / "tests" / "corpus" / "good").glob("*.kvc"))
KEY = bytes(range(32))
HEADER_LIMIT = 100_000_000
NOBODY = 65534

DTYPES = {
    "f16": "F16", "bf16": "BF16", "f32": "F32", "f64": "F64", "i8": "I8", "u8": "U8",
    "i16": "I16", "u16": "U16", "i32": "I32", "u32": "U32", "i64": "I64", "bool": "BOOL",
    "f8_e4m3fn": "F8_E4M3", "f8_e5m2": "F8_E5M2", "f8_e4m3fnuz": "F8_E4M3FNUZ",
    "f8_e5m2fnuz": "F8_E5M2FNUZ", "f8_e8m0": "F8_E8M0",
}  # fmt: skip


def split(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Returns the header of a safetensors file and what follows it."""
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def corpus_facts(path: Path) -> dict[str, Any]:
    """What the corpus says of one of its files."""
    facts: dict[str, Any] = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    return facts


class ExportCase(CliCase):
    def setUp(self) -> None:
        super().setUp()
        self.path = self.pack("a.kvc")
        self.output = self.folder / "a.safetensors"

    def export(self, *words: str | Path) -> bytes:
        """Exports, checks that nothing is said, and returns the file's bytes."""
        done = kvc("export", *(words or (self.path,)), "--safetensors", self.output)
        self.expect_code(done, GOOD)
        self.assertEqual((done.out, done.err), (b"", b""))
        return self.output.read_bytes()

    def names(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}


class Good(ExportCase):
    def test_the_header_and_the_bytes(self) -> None:
        members = metadata(user={"name": 'é\u202e\x07\x7f\U000e0041"\\', "n": 1.5})
        data = tensor_bytes(members)
        self.path = self.pack("a.kvc", members, b"".join(data))
        whole = self.export()
        self.assertEqual(int.from_bytes(whole[:8], "little") % 8, 0)
        header, payload = split(whole)
        self.assertEqual(payload, b"".join(data))
        facts = self.facts(self.path)
        extra = header.pop("__metadata__")
        self.assertEqual(set(extra), {"kvc1.metadata", "kvc1.root"})
        self.assertEqual(json.loads(extra["kvc1.metadata"]), facts["metadata"])
        self.assertEqual(extra["kvc1.root"], facts["root"])
        self.assertEqual(list(header), [record["name"] for record in facts["tensors"]])
        at = 0
        for record, tensor in zip(facts["tensors"], data, strict=True):
            found = header[record["name"]]
            self.assertEqual(found, {"dtype": "F16", "shape": record["shape"],
                                     "data_offsets": [at, at + len(tensor)]})  # fmt: skip
            at += len(tensor)

    def test_every_length_of_header_is_padded_with_spaces(self) -> None:
        for extra in range(9):
            self.path = self.pack("a.kvc", metadata(user={"x": "x" * extra}))
            whole = self.export()
            length = int.from_bytes(whole[:8], "little")
            self.assertEqual(length % 8, 0)
            self.assertRegex(whole[8 : 8 + length], rb"\A\{.*\} {0,7}\Z")

    def test_opaque_payload(self) -> None:
        self.path = self.pack("a.kvc", metadata(manifest=False), b"some bytes")
        header, payload = split(self.export())
        self.assertEqual(payload, b"some bytes")
        self.assertEqual(header["payload"], {"dtype": "U8", "shape": [10], "data_offsets": [0, 10]})

    def test_the_corpus(self) -> None:
        """Metadata as they are stored, packed tensors, and the name of every dtype."""
        seen = set()
        for path in GOOD_FILES:
            facts = corpus_facts(path)
            header, payload = split(self.export(path))
            extra = header.pop("__metadata__")
            self.assertEqual(extra["kvc1.metadata"], facts["metadata"], path)
            self.assertEqual(extra["kvc1.root"], facts["root"], path)
            self.assertEqual(len(payload), facts["payload_bytes"], path)
            manifest = json.loads(facts["metadata"]).get("tensor_manifest", {"tensors": []})
            for record in manifest["tensors"]:
                found = header.pop(record["name"])
                self.assertEqual(found["dtype"], DTYPES[record["dtype"]], path)
                self.assertEqual(found["shape"], record["shape"], path)
                start, end = found["data_offsets"]
                self.assertEqual((start, end - start), (record["offset"], record["nbytes"]), path)
                seen.add(record["dtype"])
            self.assertEqual(set(header), set() if manifest["tensors"] else {"payload"}, path)
            whole = path.read_bytes()
            for tensor in facts["tensors"]:
                place = tensor["file_offset"] or 0
                self.assertEqual(
                    payload[tensor["offset"] :][: tensor["nbytes"]],
                    whole[place : place + tensor["nbytes"]],
                    path,
                )
        self.assertEqual(seen, set(DTYPES))

    def test_root_and_key(self) -> None:
        key = self.write("key", KEY)
        plain = self.export()
        root = self.facts(self.path)["root"]
        self.path = self.pack("b.kvc", None, None, "--key-file", key)
        self.assertEqual(self.export("--root", root, "--key-file", key, self.path), plain)

    def test_replaces_an_older_file(self) -> None:
        self.output.write_bytes(b"old")
        before = os.stat(self.output).st_ino
        mask = os.umask(0o022)
        os.umask(mask)
        self.export()
        self.assertNotEqual(os.stat(self.output).st_ino, before)
        self.assertEqual(self.output.stat().st_mode & 0o777, 0o666 & ~mask)
        self.assertEqual(self.names(), {"a.kvc", "a.kvc.json", "a.safetensors"})

    def test_a_link_is_replaced_and_not_followed(self) -> None:
        shown = self.write("shown", b"not to be touched")
        self.output.symlink_to(shown)
        self.export()
        self.assertFalse(self.output.is_symlink())
        self.assertEqual(shown.read_bytes(), b"not to be touched")

    def test_names_and_relative_paths(self) -> None:
        wanted = self.export()
        for name in ("n" * 255, "./-", "a b", "é\U0001f600", "new\nline", "..."):
            done = kvc("export", self.path, "--safetensors", name, cwd=self.folder)
            self.expect_code(done, GOOD)
            self.assertEqual((self.folder / name).read_bytes(), wanted)

    def test_more_than_one_piece(self) -> None:
        data = os.urandom(1 << 20) * 20 + b"x"
        self.path = self.pack("a.kvc", metadata(manifest=False), data)
        self.assertTrue(self.export().endswith(data))


class Refused(ExportCase):
    """Nothing is published, the old file stays, and the line names the file that is wrong."""

    def setUp(self) -> None:
        super().setUp()
        self.output.write_bytes(b"old")

    def refuse(self, path: Path, code: int, *text: str, words: tuple[str | Path, ...] = ()) -> None:
        before = self.names()
        done = kvc("export", *(words or (self.path,)), "--safetensors", self.output)
        self.expect_refusal(done, code, path, *text)
        self.assertEqual(self.names(), before)
        self.assertEqual(self.output.read_bytes(), b"old")

    def test_every_byte_is_proven(self) -> None:
        info = self.facts(self.path)
        for offset in (0, 130, info["payload_offset"], info["payload_offset"] + 79, -200, -1):
            flip(self.path, offset % info["file_bytes"])
            self.refuse(self.path, BAD)
            flip(self.path, offset % info["file_bytes"])
        self.export()

    def test_damage_late_in_a_large_file(self) -> None:
        data = bytes(20 << 20)
        self.path = self.pack("a.kvc", metadata(manifest=False), data)
        flip(self.path, (19 << 20) + 4096)
        self.refuse(self.path, BAD, "is damaged")

    def test_wrong_root_and_key(self) -> None:
        self.refuse(self.path, BAD, "kvc1:", words=(self.path, "--root", "0" * 64))
        key = self.write("key", KEY)
        self.refuse(self.path, BAD, words=(self.path, "--key-file", key))

    def test_other_files(self) -> None:
        self.path = self.foreign()
        self.refuse(self.path, BAD, "safetensors")
        self.refuse(self.folder / "no", TROUBLE, words=(self.folder / "no",))

    def test_its_own_source(self) -> None:
        link = self.folder / "link"
        link.symlink_to(self.path)
        before = self.path.read_bytes()
        for target in (self.path, link, self.folder / "." / "a.kvc"):
            done = kvc("export", self.path, "--safetensors", target)
            self.expect_usage(done, "export", "its own export")
        self.assertEqual(self.path.read_bytes(), before)

    def test_usage(self) -> None:
        self.expect_usage(kvc("export", self.path), "export", "--safetensors OUT")
        self.expect_usage(kvc("export", self.path, "--safetensors="), "export", "OUT")
        self.expect_usage(kvc("export", self.path, "--safetensors", "-"), "export", "./-")
        self.expect_usage(
            kvc("export", self.path, "--safetensors", "x", "--root=x"), "export", "--root"
        )

    def test_outputs_that_cannot_be_made(self) -> None:
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        before = self.names()
        for target in (self.folder / "no" / "x", self.folder, pipe, self.output / "x",
                       f"{self.folder}/new/", self.folder / ("n" * 256)):  # fmt: skip
            done = kvc("export", self.path, "--safetensors", target)
            self.expect_refusal(done, TROUBLE, Path(target) if target == pipe else target)
        self.assertTrue(pipe.is_fifo())
        self.assertEqual(self.names(), before)

    def test_a_limit_on_file_sizes(self) -> None:
        self.path = self.pack("a.kvc", metadata(manifest=False), bytes(100_000))
        for blocks in (0, 1, 100):
            done = subprocess.run(
                ["/bin/sh", "-c", f'ulimit -f {blocks}; exec "$@"', "sh", KVC, "export", self.path,
                 "--safetensors", self.output], capture_output=True, timeout=60, check=False,
            )  # fmt: skip
            outcome = Outcome(done.returncode, done.stdout, done.stderr)
            self.expect_refusal(outcome, TROUBLE, self.output, "File too large")
            self.assertEqual(self.output.read_bytes(), b"old")
        self.assertEqual({name for name in self.names() if name.startswith(".")}, set())

    def test_full_disk(self) -> None:
        if shutil.which("unshare") is None:
            self.skipTest("there is no unshare, with which a small file system is made")
        disk = self.folder / "disk"
        disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "none", str(disk)]
        if subprocess.run(["unshare", "-Urm", *mount], capture_output=True, check=False).returncode:
            self.skipTest("this system does not let an unprivileged user mount a tmpfs")
        self.path = self.pack("b.kvc", metadata(manifest=False), bytes(1 << 20))
        script = (
            '"$1" export "$2" --safetensors "$4/x" && cksum "$4/x"; '
            '"$1" export "$3" --safetensors "$4/x"; echo "code $?"; '
            '"$1" export "$3" --safetensors "$4/y"; echo "code $?"; cksum "$4/x"; ls -A "$4"'
        )
        done = subprocess.run(
            ["unshare", "-Urm", "sh", "-c", f'{" ".join(mount)} && {script}', "sh", KVC,
             self.folder / "a.kvc", self.path, disk], capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        lines = done.stdout.decode().splitlines()
        self.assertEqual(lines, [lines[0], "code 3", "code 3", lines[0], "x"], done)
        self.assertEqual(done.stderr.count(b"writing the file failed: No space left"), 2, done)

    def test_a_folder_without_permission(self) -> None:
        self.folder.chmod(0o555)
        self.addCleanup(self.folder.chmod, 0o755)
        words: dict[str, Any] = {}
        if os.geteuid() == 0:
            # The superuser is refused nothing: another user looks, with a program it may run.
            words = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        program = shutil.copy(KVC, self.folder / "kvc") if words else KVC
        done = subprocess.run(
            [program, "export", self.path, "--safetensors", self.output], capture_output=True,
            timeout=TIMEOUT_SECONDS, check=False, **words,
        )  # fmt: skip
        outcome = Outcome(done.returncode, done.stdout, done.stderr)
        self.expect_refusal(outcome, TROUBLE, self.output, "creating the file failed: Permission")
        self.assertEqual(self.output.read_bytes(), b"old")


if __name__ == "__main__":
    unittest.main()
