"""test_corpus.py: the kvc program judges every file of the corpus as the specification says.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import make_corpus
from cases import CORPUS, b3, kvc1

sys.path.insert(0, str(CORPUS.parent / "spec"))

import kvc1_reader

CLASSES = {
    "unsupported": ("foreign", "version", "feature", "manifest", "empty", "mangled"),
    "incomplete": ("truncated", "unfinished"),
    "corrupt": ("structure", "trailing", "json", "schema", "geometry"),
    "digest": ("header_check", "footer_check", "root", "row", "chunk", "padding"),
}
CLASS_OF = {status: name for name, statuses in CLASSES.items() for status in statuses}

NUMBERS = (
    "version_minor",
    "file_bytes",
    "metadata_bytes",
    "payload_offset",
    "payload_span",
    "payload_bytes",
    "align_bytes",
    "tensor_count",
    "chunk_count",
)

GOOD = sorted((CORPUS / "good").glob("*.kvc"))
BAD = sorted((CORPUS / "bad").glob("*/*.kvc"))


def kvc(*words: str | Path) -> tuple[int, str]:
    """Runs the program and returns its exit code and what it wrote to standard output."""
    program = Path(os.environ["KVC_BUILD_DIR"]) / "tools" / "kvc" / "kvc"
    done = subprocess.run([program, *words], capture_output=True, check=False, timeout=300)
    if done.returncode < 0:
        raise AssertionError(f"kvc died of signal {-done.returncode} with {words[-1]}")
    return done.returncode, done.stdout.decode()


def verify(path: Path, *options: str | Path) -> dict[str, Any]:
    """Returns what `kvc verify --json` says of a file, and its exit code as `code`."""
    code, out = kvc("verify", "--json", *options, path)
    report: dict[str, Any] = json.loads(out)
    report["code"] = code
    return report


@functools.cache
def judged() -> dict[str, dict[str, Any]]:
    """Returns the program's reports on all hostile files, from one process."""
    code, out = kvc("verify", "--json", *BAD)
    if code != 1:
        raise AssertionError(f"kvc verify ended with {code} for hostile files only")
    reports = [json.loads(line) for line in out.splitlines()]
    return {report["file"]: report for report in reports}


class Corpus(unittest.TestCase):
    """The corpus itself."""

    def test_the_generator_makes_these_files(self) -> None:
        """Every file is there, with the bytes that make_corpus.py gives it, and no other file."""
        self.assertEqual(make_corpus.differences(), [])

    def test_there_are_enough_hostile_files(self) -> None:
        """All statuses that a file alone can have are covered."""
        self.assertEqual({path.parent.name for path in BAD}, set(CLASS_OF))
        self.assertGreaterEqual(len(BAD), 100)

    def test_the_second_reader_agrees(self) -> None:
        """The reader in tests/spec gives every file its status, offset and field."""
        for path in GOOD:
            kvc1_reader.read(path.read_bytes())
        for case in make_corpus.bad_cases():
            with (
                self.subTest(case=f"{case.status}/{case.name}"),
                self.assertRaises(kvc1_reader.Refused) as caught,
            ):
                kvc1_reader.read(case.data)
            refused = caught.exception
            self.assertEqual(refused.status, case.status)
            if case.offset is not None:
                self.assertEqual(refused.place, case.offset)
            if case.field is not None and isinstance(refused.place, str):
                self.assertEqual(refused.place, case.field)


class Bad(unittest.TestCase):
    """Hostile files."""

    def test_each_is_refused_with_its_status(self) -> None:
        """The status is the name of the folder, and the class goes with it."""
        for path in BAD:
            with self.subTest(file=path.relative_to(CORPUS).as_posix()):
                report = judged()[str(path)]
                found = (report["status"], report["class"], report["ok"])
                status = path.parent.name
                self.assertEqual(found, (status, CLASS_OF[status], False), report["message"])

    def test_each_error_names_its_place(self) -> None:
        """Offset and field are those that INDEX.json has, where it has them."""
        index = json.loads((CORPUS / "bad" / "INDEX.json").read_text())
        for path in BAD:
            name = path.relative_to(CORPUS / "bad").as_posix()
            report = judged()[str(path)]
            offset, field = index[name]["offset"], index[name]["field"]
            with self.subTest(file=name):
                if offset is not None:
                    self.assertEqual(report["offset"], offset, report["message"])
                if field is not None:
                    # An error may name the element of the array.
                    named = str(report["field"]).removeprefix(field)
                    self.assertRegex(named, r"\A(\[[0-9]+\])?\Z", report["message"])

    def test_each_has_a_message(self) -> None:
        """The message is a sentence that fits its field."""
        for path in BAD:
            with self.subTest(file=path.relative_to(CORPUS).as_posix()):
                message = judged()[str(path)]["message"]
                self.assertIsInstance(message, str)
                self.assertTrue(10 < len(message.encode()) < 640, message)

    def test_one_file_alone_ends_with_1(self) -> None:
        """The exit code of a refused file is 1, for one file of each status."""
        firsts = {path.parent.name: path for path in reversed(BAD)}
        for status, path in firsts.items():
            with self.subTest(status=status):
                self.assertEqual(verify(path)["code"], 1)


class Good(unittest.TestCase):
    """Valid files."""

    def facts(self, path: Path) -> dict[str, Any]:
        """Returns what is known about a file."""
        known: dict[str, Any] = json.loads(path.with_suffix(".json").read_text())
        return known

    def test_each_verifies(self) -> None:
        """kvc verify accepts it and prints its root."""
        for path in GOOD:
            with self.subTest(file=path.name):
                report = verify(path)
                self.assertEqual((report["code"], report["status"]), (0, "ok"), report["message"])
                self.assertEqual(report["root"], self.facts(path)["root"])

    def test_inspect_agrees(self) -> None:
        """kvc inspect --json gives the same facts and metadata."""
        for path in GOOD:
            with self.subTest(file=path.name):
                known = self.facts(path)
                code, out = kvc("inspect", "--json", path)
                self.assertEqual(code, 0)
                report = json.loads(out)
                metadata = json.loads(known["metadata"])
                # repr() tells 1 from 1.0 and from True, which == does not.
                self.assertEqual(repr(report["metadata"]), repr(metadata))
                self.assertEqual(report["has_tag"], known["key"] is not None)
                for key in ("compat", "incompat", "ro_compat"):
                    bits = [bit for bit in range(64) if known[key] >> bit & 1]
                    self.assertEqual(report[key], bits, key)
                for key in NUMBERS:
                    self.assertEqual(report[key], known[key], key)
                for tensor, expected in zip(report["tensors"], known["tensors"], strict=False):
                    found = {"nbytes": tensor["bytes"], "digest": tensor["blake3"]}
                    found |= {key: tensor[key] for key in ("name", "offset", "file_offset")}
                    if expected["file_offset"] is None:
                        found["file_offset"] = None
                    self.assertEqual(found, expected)

    def test_tensors_come_out(self) -> None:
        """kvc cat gives bytes whose BLAKE3 is the digest that is known."""
        names = [
            "example",
            "align-64",
            "align-4096",
            "batch-2",
            "edge-65537",
            "edge-gap",
            "segment",
        ]
        names += ["m2-every-kind", "m2-every-dtype", "m2-ranks", "m2-chunks", "m2-encoder-decoder"]
        names += [f"m2-empty-tensors-{align}" for align in (1, 64, 4096)]
        for name in names:
            path = CORPUS / "good" / f"{name}.kvc"
            for tensor in self.facts(path)["tensors"]:
                with self.subTest(file=name, tensor=tensor["name"]):
                    program = Path(os.environ["KVC_BUILD_DIR"]) / "tools" / "kvc" / "kvc"
                    data = subprocess.run(
                        [program, "cat", path, tensor["name"]], capture_output=True, check=True
                    ).stdout
                    self.assertEqual(len(data), tensor["nbytes"])
                    self.assertEqual(b3.blake3(data).hex(), tensor["digest"])


class Written(unittest.TestCase):
    """Files that the program writes."""

    def test_pack_makes_the_same_files(self) -> None:
        """From metadata in another spelling, kvc pack makes the bytes that the generator made."""
        with tempfile.TemporaryDirectory() as folder:
            metadata, payload, key, out = (Path(folder) / name for name in "mpko")
            for case in make_corpus.good_cases():
                parts = case.parts
                members = json.loads(parts.metadata)
                least = int(any(name in members for name in kvc1.NAMES_1_1))
                if parts.version_minor > least or parts.compat or parts.ro_compat:
                    continue
                spelled = json.dumps(dict(reversed(members.items())), indent=2)
                metadata.write_text(spelled)
                payload.write_bytes(b"".join(parts.tensors))
                options: list[str | Path] = ["--align", str(1 << parts.align_log2)]
                if parts.key is not None:
                    key.write_bytes(parts.key)
                    options += ["--key-file", key]
                with self.subTest(file=case.name):
                    code, _ = kvc("pack", *options, "-o", out, metadata, payload)
                    self.assertEqual(code, 0)
                    self.assertTrue(out.read_bytes() == parts.encode(), "other bytes")


class Expectations(unittest.TestCase):
    """Refusals that depend on what the caller expects."""

    def setUp(self) -> None:
        """Make key files."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.right = Path(folder.name) / "right"
        self.wrong = Path(folder.name) / "wrong"
        self.right.write_bytes(bytes(range(32)))
        self.wrong.write_bytes(bytes(range(1, 33)))
        self.tagged = CORPUS / "good" / "tag.kvc"
        self.plain = CORPUS / "good" / "dtype-f16.kvc"

    def expect(self, status: str, path: Path, *options: str | Path) -> None:
        """Verify with options and compare the status."""
        report = verify(path, *options)
        self.assertEqual(report["status"], status, report["message"])
        self.assertEqual(report["code"], 0 if status == "ok" else 1)
        if status != "ok":
            self.assertEqual(report["class"], "identity")

    def test_tag(self) -> None:
        """A key asks for a tag that was made with it."""
        self.expect("ok", self.tagged, "--key-file", self.right)
        self.expect("ok", CORPUS / "good" / "opaque-tag.kvc", "--key-file", self.right)
        self.expect("tag", self.tagged, "--key-file", self.wrong)
        self.expect("no_tag", self.plain, "--key-file", self.right)

    def test_root(self) -> None:
        """A root asks for that content."""
        known = json.loads(self.plain.with_suffix(".json").read_text())["root"]
        self.expect("ok", self.plain, "--root", known)
        self.expect("expected_root", self.tagged, "--root", known)

    def test_identity(self) -> None:
        """Numbers compare by value, and every member must be there."""
        self.expect("ok", self.plain, "--expect", "rope_theta=10000", "--expect", "dtype=f16")
        self.expect("identity", self.plain, "--expect", "rope_theta=10001.0")
        self.expect("identity", self.plain, "--expect", "user.tenant=a")


class Frozen(unittest.TestCase):
    """Files of earlier releases."""

    def test_they_are_unchanged_and_open(self) -> None:
        """compat/ holds what its lists of SHA-256 say, and all of it verifies."""
        lists = sorted((CORPUS / "compat").glob("*/SHA256SUMS"))
        self.assertNotEqual(lists, [])
        for sums in lists:
            lines = sums.read_text().splitlines()
            listed = {line.split("  ", 1)[1]: line.split("  ", 1)[0] for line in lines}
            found = {path.name for path in sums.parent.glob("*.kvc")}
            self.assertEqual(found, set(listed))
            for name, digest in listed.items():
                path = sums.parent / name
                with self.subTest(file=f"{sums.parent.name}/{name}"):
                    data = path.read_bytes()
                    self.assertEqual(hashlib.sha256(data).hexdigest(), digest)
                    self.assertEqual(verify(path)["status"], "ok")
                    kvc1_reader.read(data)


if __name__ == "__main__":
    unittest.main()
