"""fault_support.py: what the fault tests share: programs to run, caches to save, spoiled calls.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import tempfile
import unittest
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("KVC_BUILD_DIR", PROJECT / "build")).resolve()
KVC = BUILD / "tools" / "kvc" / "kvc"
DRIVER = BUILD / "tests" / "fault" / "fault_driver"
SHIM = BUILD / "tests" / "fault" / "libshim.so"

GOOD, BAD, TROUBLE = 0, 1, 3

TIMEOUT_SECONDS = 300

# "From that call on": more calls than any of these programs makes.
ALWAYS = 1_000_000

# A shim that comes before the sanitizer's library is what these tests want.
SANITIZER = {"ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}


@dataclass
class Outcome:
    """How one run of a program ended."""

    code: int
    out: str
    err: str
    what: str = ""  # was done to it


def run(
    *words: str | bytes | Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    before: Callable[[], None] | None = None,
) -> Outcome:
    """Run a program to its end; `before` is called in the child."""
    done = subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
        env={**os.environ, **SANITIZER, **(env or {})},
        cwd=cwd,
        preexec_fn=before,
    )
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())


def metadata(revision: str, tensor_bytes: int = 0) -> dict[str, Any]:
    """Return metadata of one layer of u8 tensors, or of an opaque payload."""
    members: dict[str, Any] = {
        "model_revision": revision,
        "tokenizer_sha256": "0" * 64,
        "rope_theta": 10000.0,
        "layers": 1,
        "kv_heads": 1,
        "head_dim": 1,
        "dtype": "u8",
        "layout": "layer-major-k-then-v",
        "sequence_start": 0,
        "sequence_length": max(tensor_bytes, 1),
    }
    if tensor_bytes > 0:
        records = [
            {
                "name": f"layer.0.{kind}",
                "kind": kind,
                "layer": 0,
                "shape": [1, 1, tensor_bytes, 1],
                "strides": [tensor_bytes, tensor_bytes, 1, 1],
                "offset": index * tensor_bytes,
                "nbytes": tensor_bytes,
                "dtype": "u8",
            }
            for index, kind in enumerate(("key", "value"))
        ]
        members["tensor_manifest"] = {
            "version": 1,
            "byte_order": "little",
            "batch_size": 1,
            "cache_class": "dynamic",
            "attention_type": "causal",
            "tensors": records,
        }
    return members


@dataclass
class Fault:
    """A way to spoil calls of one system function."""

    call: str
    deed: str = "error"
    errno: int = 0
    always: bool = False

    def __str__(self) -> str:
        number = f" {self.errno}" if self.deed == "error" else ""
        return f"{self.call} {self.deed}{number}{' always' if self.always else ''}"

    def environment(self, at: int, met: Path) -> dict[str, str]:
        """Return what the shim reads, for the call with the number `at`."""
        return {
            "LD_PRELOAD": str(SHIM),
            "KVC_FAULT_CALL": self.call,
            "KVC_FAULT_DO": self.deed,
            "KVC_FAULT_ERRNO": str(self.errno),
            "KVC_FAULT_AT": str(at),
            "KVC_FAULT_UNTIL": str(ALWAYS if self.always else at),
            "KVC_FAULT_MET": str(met),
        }


class FaultCase(unittest.TestCase):
    """A test in a folder of its own, with an old and a new content for one name."""

    tensor_bytes = 150_000

    def setUp(self) -> None:
        """Make the inputs beside the folder in which files are saved."""
        for program in (KVC, DRIVER, SHIM):
            if not program.exists():
                self.fail(f"{program} does not exist: build first, or set KVC_BUILD_DIR")
        self.base = Path(tempfile.mkdtemp(prefix="kvc-fault-"))
        self.addCleanup(shutil.rmtree, self.base, ignore_errors=True)
        self.base.chmod(0o755)
        self.folder = self.base / "folder"
        self.folder.mkdir()
        self.target = self.folder / "cache.kvc"
        self.met = self.base / "met"
        source = random.Random(1)
        self.inputs: dict[str, tuple[Path, Path]] = {}
        self.contents: dict[str, bytes] = {}
        for name in ("old", "new"):
            self.inputs[name] = (self.base / f"{name}.json", self.base / f"{name}.bin")
            self.inputs[name][0].write_text(json.dumps(metadata(name, self.tensor_bytes)))
            self.inputs[name][1].write_bytes(source.randbytes(2 * self.tensor_bytes))
            done = run(*self.pack(name))
            self.assertEqual((done.code, done.err), (GOOD, ""))
            self.contents[name] = self.target.read_bytes()
            self.target.unlink()

    def pack(self, name: str, target: Path | str | None = None) -> list[str | Path]:
        """Return the command that saves the old or the new content."""
        target = self.target if target is None else target
        return [KVC, "pack", *self.inputs[name], "-o", target]

    def put_old(self, there: bool) -> None:
        """Put the old file in its place, or nothing."""
        if there:
            self.target.write_bytes(self.contents["old"])
        else:
            self.target.unlink(missing_ok=True)

    def listing(self) -> list[str]:
        """Return the names in the folder where files are saved."""
        return sorted(os.listdir(self.folder))

    def temporary(self) -> list[str]:
        """Return the names of temporary files in that folder."""
        return [name for name in self.listing() if name != self.target.name]

    def found(self) -> bytes | None:
        """Return the bytes under the name, or None."""
        return self.target.read_bytes() if self.target.exists() else None

    def save_cleanly(self) -> None:
        """Save the new content without faults; nothing else may lie in the folder after."""
        done = run(*self.pack("new"), "--durability=none")
        self.assertEqual((done.code, done.err), (GOOD, ""))
        self.assertEqual(self.found(), self.contents["new"])
        self.assertEqual(self.listing(), [self.target.name])
