"""test_disk.py: full disks, limits, permissions and targets that are no files, for real.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
import unittest
from collections.abc import Callable
from pathlib import Path

from fault_support import BAD, GOOD, KVC, TROUBLE, FaultCase, Outcome, run

NOBODY = 65534

# Makes a file system of 600 KiB at $1, and saves there: what fits, then what does not.
SMALL_DISK = """
set -eu
kvc=$1 folder=$2 small_json=$3 small_bin=$4 big_json=$5 big_bin=$6
mount -t tmpfs -o size=600k,mode=755 none "$folder"
"$kvc" pack "$small_json" "$small_bin" -o "$folder/cache.kvc" >&2
before=$(cksum < "$folder/cache.kvc")
for name in cache.kvc other.kvc; do
    code=0
    "$kvc" pack "$big_json" "$big_bin" -o "$folder/$name" || code=$?
    echo "$name $code"
done
[ "$before" = "$(cksum < "$folder/cache.kvc")" ] && echo same
ls -A "$folder"
"$kvc" verify "$folder/cache.kvc" >&2
"""


def limit(kind: int, value: int) -> Callable[[], None]:
    """Return a function that sets a limit of a child process."""

    def set_limit() -> None:
        resource.setrlimit(kind, (value, value))

    return set_limit


def become_nobody() -> None:
    """Give up root in a child process, since root is refused nothing."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


class DiskTest(FaultCase):
    """Saving and reading where the system refuses."""

    def check_refused(self, done: Outcome, *words: str) -> None:
        """One line that says what failed, exit code 3, nothing changed and nothing left."""
        self.assertEqual((done.code, done.out), (TROUBLE, ""), done)
        self.assertEqual(done.err.count("\n"), 1, done)
        self.assertTrue(done.err.startswith("kvc: "), done)
        for word in words:
            self.assertIn(word, done.err)

    def test_full_disk(self) -> None:
        """A disk that is really full keeps the old file and gets no litter."""
        if shutil.which("unshare") is None:
            self.skipTest("there is no unshare, with which a small file system is made")
        probe = ["unshare", "-Urm", "mount", "-t", "tmpfs", "none", str(self.folder)]
        if subprocess.run(probe, capture_output=True, check=False).returncode != 0:
            self.skipTest("this system does not let an unprivileged user mount a tmpfs")
        big = self.base / "big.bin"
        big.write_bytes(bytes(2 << 20))
        big_json = self.base / "big.json"
        text = self.inputs["new"][0].read_text()
        big_json.write_text(text.replace(str(self.tensor_bytes), str(1 << 20)))
        done = run(
            *("unshare", "-Urm", "sh", "-c", SMALL_DISK, "sh", KVC, self.folder),
            *(*self.inputs["old"], big_json, big),
        )
        self.assertEqual(done.code, 0, done)
        self.assertEqual(
            done.out.split("\n"), ["cache.kvc 3", "other.kvc 3", "same", "cache.kvc", ""], done
        )
        self.assertEqual(done.err.count("the file system is full"), 2, done)

    def test_file_size_limit(self) -> None:
        """RLIMIT_FSIZE is an error with a message, not the end by SIGXFSZ."""
        for old in (False, True):
            self.put_old(old)
            before = self.found()
            for most in (0, 1000, 100_000, 200_000):
                done = run(*self.pack("new"), before=limit(resource.RLIMIT_FSIZE, most))
                self.check_refused(done, "the file would be larger than the system allows")
                self.assertEqual(self.found(), before)
                self.assertEqual(self.temporary(), [])
        self.save_cleanly()

    def test_descriptor_limit(self) -> None:
        """Too few descriptors are named as the reason."""
        self.put_old(True)
        refused = 0
        # The program needs the first four before it begins.
        for most in range(4, 12):
            done = run(*self.pack("new"), before=limit(resource.RLIMIT_NOFILE, most))
            if done.code != GOOD:
                refused += 1
                self.check_refused(done, "oo many")
                self.assertEqual(self.found(), self.contents["old"])
            self.assertEqual(self.temporary(), [])
            self.put_old(True)
        self.assertGreater(refused, 1)

    def test_missing_folder(self) -> None:
        """A folder that does not exist is not made."""
        done = run(*self.pack("new", self.folder / "missing" / "cache.kvc"))
        self.check_refused(done, "there is no such file or folder")
        self.assertEqual(self.listing(), [])

    def test_folder_without_permission(self) -> None:
        """Who may not write into the folder cannot replace the file."""
        self.put_old(True)
        self.folder.chmod(0o555)
        done = run(*self.pack("new"), before=become_nobody)
        self.check_refused(done, "permission is denied")
        self.assertEqual(self.found(), self.contents["old"])
        self.assertEqual(self.temporary(), [])
        self.folder.chmod(0o000)
        done = run(*self.pack("new"), before=become_nobody)
        self.check_refused(done, "permission is denied")
        done = run(KVC, "verify", self.target, before=become_nobody)
        self.check_refused(done, "permission is denied")
        self.folder.chmod(0o755)
        self.assertEqual(self.found(), self.contents["old"])

    def test_unprivileged_save(self) -> None:
        """An unprivileged user saves and replaces; the mode is 0666 as the umask cuts it."""
        self.folder.chmod(0o777)
        for _ in range(2):
            done = run(*self.pack("new"), before=become_nobody)
            self.assertEqual((done.code, done.err), (GOOD, ""))
        self.assertEqual(self.found(), self.contents["new"])
        self.assertEqual(self.temporary(), [])
        mask = os.umask(0o022)
        os.umask(mask)
        self.assertEqual(self.target.stat().st_mode & 0o777, 0o666 & ~mask)

    def test_unreadable_file(self) -> None:
        """A file that may not be read is an environment error; replacing it needs no permission."""
        self.folder.chmod(0o777)
        self.put_old(True)
        self.target.chmod(0o000)
        done = run(KVC, "verify", self.target, before=become_nobody)
        self.check_refused(done, "permission is denied")
        done = run(*self.pack("new"), before=become_nobody)
        self.assertEqual((done.code, done.err), (GOOD, ""))
        self.assertEqual(self.found(), self.contents["new"])

    def test_targets_that_are_no_files(self) -> None:
        """Folders, pipes, sockets and devices are refused and stay."""
        names = {"folder": "it is a folder", "pipe": "a pipe", "socket": "a pipe, a socket"}
        (self.folder / "folder").mkdir()
        os.mkfifo(self.folder / "pipe")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(self.folder / "socket"))
        for name, reason in names.items():
            self.check_refused(run(*self.pack("new", self.folder / name)), reason)
        self.check_refused(run(*self.pack("new", f"{self.folder}/folder/")), "it is a folder")
        self.check_refused(run(*self.pack("new", f"{self.folder}/new/")), "it is a folder")
        self.check_refused(run(*self.pack("new", self.folder / ".")), "it is a folder")
        self.assertTrue((self.folder / "pipe").is_fifo())
        self.assertTrue((self.folder / "socket").is_socket())
        self.assertEqual(self.listing(), ["folder", "pipe", "socket"])
        self.assertEqual(os.listdir(self.folder / "folder"), [])

    def test_links(self) -> None:
        """A symbolic link is replaced, and what it showed stays as it was."""
        shown = self.base / "shown.kvc"
        shown.write_bytes(b"not to be touched")
        for to in (shown, self.base / "nowhere"):
            self.target.unlink(missing_ok=True)
            self.target.symlink_to(to)
            self.save_cleanly()
            self.assertFalse(self.target.is_symlink())
        self.assertEqual(shown.read_bytes(), b"not to be touched")
        self.assertFalse((self.base / "nowhere").exists())

    def test_names(self) -> None:
        """The longest name works, a longer one is refused, odd ones are names like others."""
        for name in ("n" * 255, "-", "a b", "\u00e9\U0001f600", "new\nline", "..."):
            path = self.folder / name
            for _ in range(2):
                done = run(*self.pack("new", path))
                self.assertEqual((done.code, done.err), (GOOD, ""))
            self.assertEqual(path.read_bytes(), self.contents["new"])
            path.unlink()
        self.check_refused(run(*self.pack("new", self.folder / ("n" * 256))), "too long")
        self.assertEqual(self.listing(), [])

    def test_relative_paths(self) -> None:
        """Relative paths go by the current folder."""
        (self.folder / "in").mkdir()
        for path in ("cache.kvc", "./cache.kvc", "in/../cache.kvc", "in//cache.kvc"):
            done = run(*self.pack("new", path), cwd=self.folder)
            self.assertEqual((done.code, done.err), (GOOD, ""))
            where = self.folder / path
            self.assertEqual(where.read_bytes(), self.contents["new"])
            where.unlink()
        self.assertEqual(self.listing(), ["in"])
        self.assertEqual(os.listdir(self.folder / "in"), [])

    def test_refused_content(self) -> None:
        """Metadata or payloads that do not fit change nothing."""
        self.put_old(True)
        meta, payload = self.inputs["new"]
        short, empty = self.base / "short.bin", self.base / "empty.bin"
        short.write_bytes(payload.read_bytes()[:-1])
        empty.write_bytes(b"")
        wrong = self.base / "wrong.json"
        wrong.write_text(meta.read_text().replace('"layers": 1', '"layers": 2'))
        pairs: list[tuple[Path, Path]] = [
            (meta, short), (meta, empty), (wrong, payload), (payload, payload), (empty, payload),
        ]  # fmt: skip
        for pair in pairs:
            done = run(KVC, "pack", *pair, "-o", self.target)
            self.assertEqual((done.code, done.out), (BAD, ""), done)
            self.assertEqual(self.found(), self.contents["old"])
            self.assertEqual(self.temporary(), [])


if __name__ == "__main__":
    unittest.main()
