"""test_progress.py: the progress bar: on terminals only, for long work only, and gone at the end.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import struct
import subprocess
import termios
import time
import unittest
from pathlib import Path

from cli_support import BAD, GOOD, KVC, CliCase, kvc, metadata

MIB = 1 << 20

# One thread and the slowest kernel: 128 MiB then take long enough on many machines.
SLOW = {**os.environ, "KVC_BLAKE3_KERNEL": "portable"}

DEADLINE_SECONDS = 60


class Terminal:
    """A pseudo-terminal of which the test is the screen."""

    def __init__(self, columns: int = 80) -> None:
        self.primary, self.secondary = os.openpty()
        fcntl.ioctl(self.secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.text = b""

    def read(self, seconds: float) -> None:
        """Takes what has been written, waiting for the first of it."""
        while select.select([self.primary], [], [], seconds)[0]:
            try:
                data = os.read(self.primary, 65536)
            except OSError:
                return
            if not data:
                return
            self.text += data
            seconds = 0

    def close(self) -> None:
        os.close(self.primary)
        os.close(self.secondary)


class ProgressBar(CliCase):
    def terminal(self, columns: int = 80) -> Terminal:
        terminal = Terminal(columns)
        self.addCleanup(terminal.close)
        return terminal

    def long_file(self, size: int) -> Path:
        """A packed file of zeros, the payload sparse."""
        payload = self.folder / "p.bin"
        with payload.open("wb") as file:
            file.truncate(size)
        description = self.write_json("m.json", metadata(manifest=False))
        path = self.folder / "long.kvc"
        done = kvc("pack", "--durability=none", description, payload, "-o", path)
        self.expect_code(done, GOOD)
        return path

    def check_screen(self, text: str, verb: str, columns: int) -> None:
        """Every state of the line fits, and the last one is empty."""
        states = text.split("\r")
        bars = [state for state in states if state.startswith(f"{verb} ")]
        self.assertTrue(bars, text)
        for state in states:
            self.assertLess(len(state), columns)
        self.assertNotIn("\x1b", text)
        self.assertNotIn("\n", text)
        self.assertTrue(text.endswith("\r"))
        self.assertEqual(states[-2].strip(), "")

    def verify_on(
        self, terminal: Terminal, path: Path, threads: int = 1
    ) -> subprocess.CompletedProcess[bytes]:
        """Runs `verify`, and counts its threads where the system tells."""
        process = subprocess.Popen(
            [KVC, "verify", f"--threads={threads}", path],
            stdout=subprocess.PIPE, stderr=terminal.secondary, env=SLOW,
        )  # fmt: skip
        tasks = Path(f"/proc/{process.pid}/task")
        self.most_threads = 0
        while process.poll() is None:
            with contextlib.suppress(OSError):
                self.most_threads = max(self.most_threads, len(list(tasks.iterdir())))
            terminal.read(0.02)
        terminal.read(0)
        assert process.stdout is not None
        with process.stdout:
            out = process.stdout.read()
        return subprocess.CompletedProcess([], process.returncode, out)

    def test_verify(self) -> None:
        """The file grows until its check takes more than the half second in which nothing shows."""
        size = 128 * MIB
        while True:
            path = self.long_file(size)
            terminal = self.terminal(70)
            started = time.monotonic()
            done = self.verify_on(terminal, path)
            seconds = time.monotonic() - started
            self.assertEqual(done.returncode, GOOD)
            self.assertTrue(done.stdout.startswith(f"{path}: good, ".encode()))
            if terminal.text or size >= 2048 * MIB:
                break
            self.assertLess(seconds, 2, "long work, and no bar")
            size *= 2
        if self.most_threads:
            self.assertEqual(self.most_threads, 1)
            self.verify_on(self.terminal(), path, 3)
            self.assertIn(self.most_threads, (3, 4))
        text = terminal.text.decode()
        self.check_screen(text, "verify", 70)
        self.assertGreater(seconds, 0.5)
        shares = [int(share) for share in re.findall(r"(\d+)%", text)]
        self.assertEqual(shares, sorted(shares))
        self.assertTrue(all(0 < share <= 100 for share in shares), shares)
        # Not on a pipe, however long it takes.
        quiet = kvc("verify", "--threads=1", path, env=SLOW)
        self.assertEqual(quiet.err, b"")

    def test_short_work_shows_nothing(self) -> None:
        terminal = self.terminal()
        done = self.verify_on(terminal, self.pack("a.kvc"))
        self.assertEqual(done.returncode, GOOD)
        self.assertEqual(terminal.text, b"")

    def pack_slowly(self, name: str, columns: int) -> tuple[Terminal, int]:
        """Feeds `pack` through a pipe until its bar appears."""
        terminal = self.terminal(columns)
        description = self.write_json("m.json", metadata(manifest=False))
        with subprocess.Popen(
            [KVC, "pack", "--durability=none", description, "-", "-o", self.folder / name],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=terminal.secondary,
        ) as process:  # fmt: skip
            assert process.stdin is not None
            end = time.monotonic() + DEADLINE_SECONDS
            # The writer takes pieces of 4 MiB and looks at the clock after each.
            while not terminal.text and time.monotonic() < end:
                process.stdin.write(bytes(4 * MIB))
                process.stdin.flush()
                terminal.read(0.2)
            process.stdin.close()
            self.assertEqual(process.wait(DEADLINE_SECONDS), GOOD)
            terminal.read(0)
        return terminal, columns

    def test_pack_from_a_pipe_counts_without_a_total(self) -> None:
        terminal, columns = self.pack_slowly("a.kvc", 80)
        text = terminal.text.decode()
        self.check_screen(text, "pack", columns)
        self.assertRegex(text, r"pack standard input  \d+\.\d MiB, \d+\.\d [KMG]iB/s")
        self.assertNotIn("%", text)

    def test_narrow_terminals(self) -> None:
        for columns in (30, 22, 12):
            terminal, columns = self.pack_slowly("a.kvc", columns)
            self.check_screen(terminal.text.decode(), "pack", columns)

    def test_wide_names_fit(self) -> None:
        terminal = self.terminal(40)
        name = "大小" * 20
        os.mkfifo(self.folder / name)
        # Open for both, so that it waits for no reader; a reader meets the end when it is closed.
        pipe = os.open(self.folder / name, os.O_RDWR | os.O_NONBLOCK)
        self.write_json("m.json", metadata(manifest=False))
        with subprocess.Popen(
            [KVC, "pack", "--durability=none", "m.json", name, "-o", "a.kvc"],
            cwd=self.folder, stdout=subprocess.DEVNULL, stderr=terminal.secondary,
        ) as process:  # fmt: skip
            end = time.monotonic() + DEADLINE_SECONDS
            sent, pause = 0, 4 * MIB
            while not terminal.text and time.monotonic() < end and process.poll() is None:
                with contextlib.suppress(BlockingIOError):
                    sent += os.write(pipe, bytes(65536))
                terminal.read(0.2 if sent >= pause else 0)
                pause += 4 * MIB if sent >= pause else 0
            os.close(pipe)
            self.assertEqual(process.wait(DEADLINE_SECONDS), GOOD)
        terminal.read(0)
        states = terminal.text.decode().split("\r")
        self.assertTrue(any("大小大小" in state for state in states))
        for state in states:
            columns = sum(2 if "\u2e80" <= character <= "\ua4cf" else 1 for character in state)
            self.assertLess(columns, 40)

    def test_a_refusal_stands_on_a_clean_line(self) -> None:
        terminal = self.terminal()
        description = self.write_json("m.json", metadata(sequence_length=100_000, head_dim=64))
        process = subprocess.Popen(
            [KVC, "pack", "--durability=none", description, "-", "-o", self.folder / "a.kvc"],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=terminal.secondary,
        )  # fmt: skip
        assert process.stdin is not None
        end = time.monotonic() + DEADLINE_SECONDS
        with contextlib.suppress(BrokenPipeError):
            # More than the metadata say: the writer refuses it, and its end of the pipe closes.
            while time.monotonic() < end:
                process.stdin.write(bytes(4 * MIB))
                process.stdin.flush()
                terminal.read(0 if terminal.text else 0.2)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        self.assertEqual(process.wait(DEADLINE_SECONDS), BAD)
        terminal.read(0)
        states = terminal.text.decode().split("\r")
        bar = next(i for i, state in enumerate(states) if state.startswith("pack "))
        refusal = next(i for i, state in enumerate(states) if state.startswith("kvc: "))
        self.assertLess(bar, refusal)
        self.assertEqual(states[refusal - 1].strip(), "")


if __name__ == "__main__":
    unittest.main()
