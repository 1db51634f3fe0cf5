"""test_usage.py: command lines, help texts and exit codes that do not depend on a file.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import unittest

from cli_support import (
    BAD,
    COMMANDS,
    GOOD,
    KVC,
    PROJECT,
    TIMEOUT_SECONDS,
    TROUBLE,
    CliCase,
    Outcome,
    kvc,
)

OPTIONS = {
    "inspect": {"--tensors", "--json", "--root", "--key-file", "--help"},
    "verify": {"--root", "--key-file", "--expect", "--threads", "--all", "--json", "--help"},
    "cat": {"--start", "--bytes", "--root", "--key-file", "--force", "--help"},
    "diff": {"--where", "--help"},
    "pack": {"--output", "--align", "--key-file", "--durability", "--help"},
    "export": {"--safetensors", "--root", "--key-file", "--help"},
    "import": {"--output", "--align", "--key-file", "--durability", "--changed", "--help"},
    "root": {"--help"},
}

# A command line that each command accepts, `FILE` standing for a good file.
LINES = {
    "inspect": ["FILE"],
    "verify": ["FILE"],
    "cat": ["FILE", "layer.0.key"],
    "diff": ["FILE", "FILE"],
    "export": ["FILE", "--safetensors=/nonexistent/out"],
    "root": ["FILE"],
}


class Help(CliCase):
    def test_overview_names_every_command_and_exit_code(self) -> None:
        for word in ("--help", "-h", "help"):
            done = kvc(word)
            self.expect_code(done, GOOD)
            self.assertEqual(done.err, b"")
            for command in COMMANDS:
                self.assertRegex(done.text, rf"(?m)^  {command} +\S")
            for code in ("0 good", "1 a file", "2 usage", "3 could not look"):
                self.assertIn(code, done.text)

    def test_each_command_explains_itself(self) -> None:
        for command in COMMANDS:
            done = kvc(command, "--help")
            self.expect_code(done, GOOD)
            self.assertEqual(done.err, b"")
            self.assertTrue(done.text.startswith(f"usage: kvc {command} [options] "), done.text)
            self.assertIn(f"\nexample:\n  kvc {command} ", done.text)
            self.assertEqual(kvc(command, "-h").out, done.out)
            self.assertEqual(kvc("help", command).out, done.out)
            self.assertLessEqual(max(map(len, done.lines)), 90)

    def test_help_lists_exactly_the_options(self) -> None:
        for command, options in OPTIONS.items():
            text = kvc(command, "--help").text
            listed = set(re.findall(r"(?m)^  (?:-\w, )?(--[a-z-]+)", text))
            self.assertEqual(listed, options, command)

    def test_help_of_what_does_not_exist(self) -> None:
        self.expect_usage(kvc("help", "frobnicate"), None, "no command frobnicate")

    def test_version(self) -> None:
        header = (PROJECT / "include" / "kvc.h").read_text()
        version = re.search(r'#define KVC_VERSION "(.+)"', header)
        assert version is not None
        for word in ("--version", "-V"):
            done = kvc(word)
            self.expect_code(done, GOOD)
            self.assertRegex(done.text, rf"\Akvc {re.escape(version[1])} \(BLAKE3 kernel \w+\)\n\Z")


class Manual(CliCase):
    def setUp(self) -> None:
        super().setUp()
        source = (PROJECT / "docs" / "man" / "kvc.1").read_text()
        self.manual = source.replace("\\-", "-")

    def test_every_command_has_a_section_with_its_options(self) -> None:
        for command, options in OPTIONS.items():
            section = re.search(rf"(?ms)^\.Ss kvc {command}$(.*?)^\.S[sh] ", self.manual)
            assert section is not None, command
            entries = set(re.findall(r"(?m)^\.It (?:Fl \w .*, )?Fl -([a-z-]+)", section[1]))
            self.assertEqual({"--" + entry for entry in entries}, options - {"--help"}, command)

    def test_synopsis_has_every_option(self) -> None:
        for command, options in OPTIONS.items():
            text = re.search(rf"(?ms)^\.Cm {command}$(.*?)^(?:\.Nm|\.Sh)", self.manual)
            assert text is not None, command
            for option in options - {"--help", "--output"}:
                self.assertIn(f"Fl {option[1:]}", text[1], command)

    def test_general_options_and_codes(self) -> None:
        for word in ("Fl -help", "Fl -version", "Fl h", "Fl V", "Ql --"):
            self.assertIn(word, self.manual)
        status = re.search(r"(?s)\.Sh EXIT STATUS(.*?)\.Sh", self.manual)
        assert status is not None
        self.assertEqual(re.findall(r"(?m)^\.It (\d)$", status[1]), ["0", "1", "2", "3"])


class CommandLine(CliCase):
    def test_no_or_unknown_command(self) -> None:
        self.expect_usage(kvc(), None, "expected a command")
        self.expect_usage(kvc("frobnicate"), None, "no command frobnicate")
        self.expect_usage(kvc("--frobnicate"), None, "no option --frobnicate")
        self.expect_usage(kvc(""), None)

    def test_unknown_options_point_to_help(self) -> None:
        for command in COMMANDS:
            for word in ("--frobnicate", "--frobnicate=1", "-x", "--js", "-hx", "---"):
                self.expect_usage(kvc(command, word), command, f"unknown option {word}")

    def test_missing_and_unwanted_values(self) -> None:
        self.expect_usage(kvc("verify", "f", "--threads"), "verify", "--threads needs a value")
        self.expect_usage(kvc("pack", "a", "b", "-o"), "pack", "-o needs a value")
        self.expect_usage(kvc("verify", "--json=1", "f"), "verify", "--json takes no value")

    def test_number_of_operands(self) -> None:
        for command in COMMANDS:
            self.expect_usage(kvc(command), command, "got nothing")
        self.expect_usage(kvc("diff", "a"), "diff", "got too little")
        self.expect_usage(kvc("diff", "a", "b", "c"), "diff", "one more: c")
        self.expect_usage(kvc("cat", "a", "b", "c"), "cat", "one more: c")
        self.expect_usage(kvc("pack", "a", "-o", "c"), "pack", "got too little")
        self.expect_usage(kvc("export", "a", "b", "--safetensors", "c"), "export", "one more: b")
        self.expect_usage(kvc("import", "a", "b", "-o", "c"), "import", "one more: b")
        self.expect_usage(kvc("pack", "a", "b", "c", "-o", "d"), "pack", "one more: c")

    def test_options_stand_anywhere_and_take_values_both_ways(self) -> None:
        path = self.pack("a.kvc")
        wanted = kvc("cat", "--start", "3", "--bytes", "5", path, "layer.0.key")
        self.expect_code(wanted, GOOD)
        self.assertEqual(len(wanted.out), 5)
        for words in (
            (path, "layer.0.key", "--start=3", "--bytes=5"),
            (path, "--start", "3", "layer.0.key", "--bytes=5"),
            ("--bytes=5", path, "--start=3", "--", "layer.0.key"),
            ("--start=9", "--start=3", "--bytes=5", path, "layer.0.key"),
        ):
            self.assertEqual(kvc("cat", *words), wanted)

    def test_two_dashes_end_the_options(self) -> None:
        self.pack("--json")
        done = kvc("root", "--", "--json", cwd=self.folder)
        self.expect_code(done, GOOD)
        self.assertTrue(done.text.endswith("  --json\n"))
        self.expect_usage(kvc("root", "--json", cwd=self.folder), "root", "unknown option --json")

    def test_one_dash_is_a_file_name_to_the_readers(self) -> None:
        done = kvc("root", "-", cwd=self.folder)
        self.expect_code(done, TROUBLE)
        self.assertTrue(done.error.startswith("kvc: -: "))

    def test_numbers_are_strict(self) -> None:
        junk = ("", "x", "1x", "x1", "-1", "+1", " 1", "1 ", "1.0", "0x10", "1e3", "\u0661")
        for word in (*junk, "257", "4294967296", "18446744073709551616"):
            self.expect_usage(kvc("verify", "--threads", word, "f"), "verify", "0 to 256")
        for word in (*junk, "18446744073709551616", "99999999999999999999999"):
            self.expect_usage(kvc("cat", "--start", word, "f"), "cat", "--start")
            self.expect_usage(kvc("cat", "--bytes", word, "f"), "cat", "--bytes")
        for word in (*junk, "0", "2", "63", "8192", "4096000"):
            done = kvc("pack", "--align", word, "a", "b", "-o", "c")
            self.expect_usage(done, "pack", "1, 64 or 4096")

    def test_a_usage_error_touches_no_file(self) -> None:
        path = self.pack("a.kvc")
        done = kvc("verify", path, "--threads=x")
        self.expect_usage(done, "verify")
        done = kvc("pack", path, path, "-o", path, "--durability=some")
        self.expect_usage(done, "pack", "full, file or none")
        self.expect_code(kvc("verify", path), GOOD)


class Missing(CliCase):
    """What every command says about operands that are no readable files."""

    def check(self, operand: object, code: int, *words: str) -> None:
        for command, line in LINES.items():
            done = kvc(command, *[str(operand) if word == "FILE" else word for word in line])
            self.expect_code(done, code)
            self.assertEqual(done.out, b"")
            for text in done.error_lines:
                self.assertTrue(text.startswith(f"kvc: {operand}: "), text)
                for word in words:
                    self.assertIn(word, text)

    def test_missing(self) -> None:
        self.check(self.folder / "nothing.kvc", TROUBLE, "no such file")

    def test_folder(self) -> None:
        self.check(self.folder, TROUBLE)

    def test_fifo_does_not_hang(self) -> None:
        path = self.folder / "fifo"
        os.mkfifo(path)
        self.check(path, TROUBLE)

    def test_device(self) -> None:
        self.check("/dev/null", TROUBLE)

    def test_foreign_and_empty(self) -> None:
        self.check(self.foreign(), BAD, "safetensors")
        self.check(self.write("empty.kvc", b""), BAD)

    def test_unreadable(self) -> None:
        path = self.pack("a.kvc")
        path.chmod(0)
        if os.geteuid() != 0:
            self.check(path, TROUBLE, "permission")
            return
        # The superuser is refused nothing: another user looks, with a program that it may run.
        self.folder.chmod(0o755)
        program = shutil.copy(KVC, self.folder / "kvc")
        done = subprocess.run(
            [program, "root", path], capture_output=True, user=65534, group=65534, extra_groups=[],
            timeout=TIMEOUT_SECONDS, check=False,
        )  # fmt: skip
        outcome = Outcome(done.returncode, done.stdout, done.stderr)
        self.expect_refusal(outcome, TROUBLE, path, "permission")


if __name__ == "__main__":
    unittest.main()
