"""cli_support.py: runs the real kvc binary on files that it packed itself.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
PROJECT = TESTS.parent
BUILD = Path(os.environ.get("KVC_BUILD_DIR", PROJECT / "build")).resolve()
KVC = BUILD / "tools" / "kvc" / "kvc"

# The second implementation of the format: it makes files that `kvc pack` refuses to make.
sys.path.insert(0, str(TESTS / "spec"))
import kvc1  # noqa: E402
from b3 import blake3  # noqa: E402

__all__ = [
    "BAD", "COMMANDS", "GOOD", "KVC", "PROJECT", "TIMEOUT_SECONDS", "TROUBLE", "USAGE", "CliCase",
    "Outcome", "blake3", "flip", "kvc", "kvc1", "metadata", "tensor_bytes",
]  # fmt: skip

GOOD, BAD, USAGE, TROUBLE = 0, 1, 2, 3

TIMEOUT_SECONDS = 120

COMMANDS = ("inspect", "verify", "cat", "diff", "pack", "export", "import", "root")


@dataclass
class Outcome:
    """What one run of kvc printed, and how it ended."""

    code: int
    out: bytes
    err: bytes

    @property
    def text(self) -> str:
        return self.out.decode("utf-8")

    @property
    def error(self) -> str:
        return self.err.decode("utf-8")

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def error_lines(self) -> list[str]:
        return self.error.splitlines()


def kvc(*words: str | bytes | Path, **options: Any) -> Outcome:
    """Runs kvc; `options` go to subprocess.run."""
    options.setdefault("stdin", None if "input" in options else subprocess.DEVNULL)
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stderr", subprocess.PIPE)
    if options["stdin"] is None:
        del options["stdin"]
    done = subprocess.run([KVC, *words], timeout=TIMEOUT_SECONDS, check=False, **options)
    return Outcome(done.returncode, done.stdout or b"", done.stderr or b"")


def metadata(manifest: bool = True, batch_size: int = 1, **changes: Any) -> dict[str, Any]:
    """Returns metadata of a small cache: 2 layers, 2 heads, 5 tokens, f16 unless changed."""
    members = kvc1.identity(
        layers=2, kv_heads=2, head_dim=4, dtype="f16", sequence_length=5, sequence_start=7
    )
    members.update(changes)
    whole: dict[str, Any] = kvc1.with_manifest(members, batch_size) if manifest else members
    return whole


def tensor_bytes(members: Mapping[str, Any]) -> list[bytes]:
    """Returns bytes for every tensor of a manifest, the same in every run."""
    source = random.Random(1)
    return [source.randbytes(r["nbytes"]) for r in members["tensor_manifest"]["tensors"]]


def flip(path: Path, offset: int, mask: int = 1) -> None:
    """Changes one byte of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ mask]))


class CliCase(unittest.TestCase):
    """A test in a folder of its own, with ways to make files there."""

    def setUp(self) -> None:
        if not KVC.exists():
            self.fail(f"{KVC} does not exist: build first, or set KVC_BUILD_DIR")
        self.folder = Path(tempfile.mkdtemp(prefix="kvc-cli-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def write(self, name: str, data: bytes | str) -> Path:
        path = self.folder / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    def write_json(self, name: str, value: Any) -> Path:
        return self.write(name, json.dumps(value))

    def pack(
        self,
        name: str,
        members: Mapping[str, Any] | None = None,
        payload: bytes | None = None,
        *options: str | Path,
    ) -> Path:
        """Packs a file; without members it is the small cache with random tensors."""
        members = metadata() if members is None else members
        if payload is None:
            payload = b"".join(tensor_bytes(members))
        path = self.folder / name
        source = self.write(name + ".payload", payload)
        description = self.write_json(name + ".json", members)
        done = kvc("pack", "--durability=none", *options, description, source, "-o", path)
        self.assertEqual((done.code, done.error), (GOOD, ""))
        source.unlink()
        return path

    def foreign(self, name: str = "model.safetensors") -> Path:
        """A file of another format."""
        header = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
        return self.write(name, len(header).to_bytes(8, "little") + header + b"\0")

    def facts(self, path: Path) -> dict[str, Any]:
        """What `kvc inspect --json` says about a file."""
        done = kvc("inspect", "--json", path)
        self.assertEqual((done.code, done.error), (GOOD, ""))
        value = json.loads(done.out)
        assert isinstance(value, dict)
        return value

    def expect_code(self, done: Outcome, code: int) -> None:
        if done.code != code:
            self.fail(f"code {done.code}, not {code}: {done.out[:2000]!r}, {done.err[:2000]!r}")

    def expect_refusal(self, done: Outcome, code: int, path: Path, *words: str) -> None:
        """One line on stderr that begins with the file's name; nothing on stdout."""
        self.expect_code(done, code)
        self.assertEqual(done.out, b"")
        self.assertEqual(len(done.error_lines), 1, done.error)
        self.assertTrue(done.error.startswith(f"kvc: {path}: "), done.error)
        for word in words:
            self.assertIn(word, done.error)

    def expect_usage(self, done: Outcome, command: str | None, *words: str) -> None:
        """One line on stderr that says where to find help; nothing on stdout."""
        self.expect_code(done, USAGE)
        self.assertEqual(done.out, b"")
        name = "kvc" if command is None else f"kvc {command}"
        self.assertEqual(len(done.error_lines), 1, done.error)
        self.assertTrue(done.error.startswith(f"{name}: "), done.error)
        self.assertTrue(done.error.endswith(f"; see {name} --help\n"), done.error)
        for word in words:
            self.assertIn(word, done.error)
