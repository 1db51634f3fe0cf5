"""test_tidy.py: shows that each rule of tidy.py fires, and that it lets good sources pass.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import unittest

import tidy

LICENCE = "SPDX-License-Identifier: Apache-2.0"


def source(name: str, body: str = "", last: str = '#include "ban.h"\n') -> str:
    """Return a C file that keeps every rule, with `body` after its head."""
    return f"/* {name}: a file.\n * {LICENCE} */\n{body}{last}"


def function(lines: int) -> str:
    """Return a C function of so many lines, its head included."""
    return "static int f(int a,\n             int b)\n{\n" + "    a = b;\n" * (lines - 4) + "}\n"


GOOD: tidy.Tree = {
    "include/kvc.h": source("kvc.h", "KVC_API int kvc_one(void);\n", ""),
    "src/libkvc.map": f"/* libkvc.map: names.\n * {LICENCE} */\nKVC_0 {{\n    kvc_one;\n}};\n",
    "src/layout.h": source("layout.h", "#define KVCI_HEADER_CHECK 120\n", ""),
    "src/header.c": source("header.c", '#include "layout.h"\nint x = KVCI_HEADER_CHECK;\n'),
    "src/meson.build": f"# src/meson.build: it.\n# {LICENCE}\n'header.c', 'json.c',\n",
    "docs/FORMAT.md": "| 120 | 8 | header_check |\n",
}


class Rules(unittest.TestCase):
    """Each test breaks one rule in a small tree."""

    def fires(self, check: object, changes: tidy.Tree, text: str) -> None:
        """Expect one finding of `check`, which holds `text`, and none without the change."""
        self.assertIn(check, tidy.CHECKS)
        assert callable(check)
        self.assertEqual(list(check(GOOD)), [])
        found = list(check({**GOOD, **changes}))
        self.assertEqual(len(found), 1, found)
        self.assertIn(text, found[0][2])

    def passes(self, check: object, changes: tidy.Tree) -> None:
        """Expect no finding."""
        assert callable(check)
        self.assertEqual(list(check({**GOOD, **changes})), [])

    def test_good_tree(self) -> None:
        """The tree that the other tests break keeps every rule."""
        self.assertEqual(tidy.findings(GOOD), [])

    def test_layers(self) -> None:
        """A lower layer, a neighbour, a module without a place, the bottom layer."""
        fires = self.fires
        check = tidy.check_layers
        fires(check, {"src/json.c": source("json.c", '#include "reader.h"\n')}, "json may not")
        fires(check, {"src/json.c": source("json.c", '#include "blake3.h"\n')}, "json may not")
        fires(check, {"src/blake3.c": source("blake3.c", '#include "json.h"\n')}, "blake3 may not")
        fires(check, {"src/writer.c": source("writer.c", '#include "reader.h"\n')}, "writer")
        fires(
            check, {"src/bytes.h": source("bytes.h", '#include "layout.h"\n', "")}, "bytes may not"
        )
        fires(check, {"src/other.c": source("other.c")}, "no place")
        self.passes(check, {"src/verify.c": source("verify.c", '#include "reader.h"\n')})
        self.passes(check, {"src/metadata.c": source("metadata.c", '#include "json.h"\n')})

    def test_public_users(self) -> None:
        """A private header, a path out of the folder, a private name."""
        fires = self.fires
        check = tidy.check_public_users
        path = "tools/kvc/cmd.c"
        fires(check, {path: source("cmd.c", '#include "layout.h"\n', "")}, "not public")
        fires(check, {path: source("cmd.c", '#include "../x.h"\n', "")}, "not public")
        fires(check, {path: source("cmd.c", "int x = kvci_secret();\n", "")}, "private")
        self.passes(check, {path: source("cmd.c", "/* kvci_secret */\n", "")})

    def test_purity(self) -> None:
        """System calls and threads where they do not belong."""
        fires = self.fires
        check = tidy.check_purity
        fires(check, {"src/json.c": source("json.c", "#include <unistd.h>\n")}, "only for")
        fires(check, {"src/json.c": source("json.c", "#include <sys/mman.h>\n")}, "only for")
        thread = "pthread_create(&t, 0, f, 0);\n"
        fires(check, {"src/source.c": source("source.c", thread)}, "tiles.c")
        self.passes(check, {"src/tiles.c": source("tiles.c", "#include <pthread.h>\n" + thread)})

    def test_calls(self) -> None:
        """Calls without a bound anywhere; printing and memory in the library."""
        fires = self.fires
        check = tidy.check_calls
        fires(check, {"tools/kvc/a.c": source("a.c", "strcpy(a, b);\n")}, "strcpy")
        fires(check, {"python/kvcache/a.c": source("a.c", "sprintf (a, b);\n")}, "sprintf")
        fires(check, {"src/json.c": source("json.c", "fprintf(stderr, a);\n")}, "fprintf")
        fires(check, {"src/json.c": source("json.c", "a = malloc(3);\n")}, "malloc")
        fires(check, {"src/json.c": source("json.c", "a = getenv(b);\n")}, "getenv")
        self.passes(check, {"src/json.c": source("json.c", '/* malloc(3) */ a = "exit(1)";\n')})
        self.passes(check, {"src/sink.c": source("sink.c", "sink->abort(a); b.free(a);\n")})
        self.passes(check, {"src/alloc.c": source("alloc.c", "a = malloc(3);\n")})
        self.passes(check, {"tools/kvc/a.c": source("a.c", "printf(a);\n")})

    def test_ban_header(self) -> None:
        """ban.h is missing, or another header follows it."""
        fires = self.fires
        check = tidy.check_ban_header
        fires(check, {"src/json.c": source("json.c", last="")}, "ban.h")
        last = '#include "ban.h"\n#include <a.h>\n'
        fires(check, {"src/json.c": source("json.c", last=last)}, "ban.h")

    def test_names(self) -> None:
        """Two C files of one name."""
        self.fires(tidy.check_names, {"tools/kvc/header.c": source("header.c")}, "src/header.c")

    def test_length(self) -> None:
        """One line more than a file may have."""
        rest = tidy.MAX_FILE_LINES - source("json.c").count("\n")
        self.passes(tidy.check_length, {"src/json.c": source("json.c", "\n" * rest)})
        self.fires(tidy.check_length, {"src/json.c": source("json.c", "\n" * (rest + 1))}, "lines")

    def test_functions(self) -> None:
        """One line more than a function may have, in C and in Python."""
        check = tidy.check_functions
        most = tidy.MAX_FUNCTION_LINES
        self.passes(check, {"src/json.c": source("json.c", function(most))})
        self.fires(check, {"src/json.c": source("json.c", function(most + 1))}, f"{most + 1} lines")
        python = "def f():\n" + "    a = 1\n" * (most - 1)
        self.passes(check, {"tests/a.py": python})
        self.fires(check, {"tests/a.py": python + "    a = 1\n"}, f"{most + 1} lines")

    def test_head(self) -> None:
        """A file without its name, with another's name, without a licence."""
        fires = self.fires
        check = tidy.check_head
        fires(check, {"src/json.c": f"/* {LICENCE} */\n"}, "begin with its name")
        fires(check, {"src/json.c": source("other.c")}, "begin with its name")
        fires(check, {"src/json.c": "/* json.c: a file. */\n"}, "SPDX")
        fires(check, {"tests/a.py": f'"""Tests.\n{LICENCE}\n"""\n'}, "begin with its name")
        self.passes(check, {"tests/a.py": f'#!/usr/bin/python3\n"""a.py: it.\n{LICENCE}\n"""\n'})
        self.passes(check, {"python/p/__init__.py": f'"""p: it.\n{LICENCE}\n"""\n'})

    def test_lines(self) -> None:
        """Tabs, trailing space, long lines, unfinished work, a missing line end."""
        fires = self.fires
        check = tidy.check_lines
        fires(check, {"src/json.c": source("json.c", "\tint a;\n")}, "tab")
        fires(check, {"src/json.c": source("json.c", "int a; \n")}, "white space")
        fires(check, {"src/json.c": source("json.c", "a" * 101 + "\n")}, "101 columns")
        fires(check, {"src/json.c": source("json.c", "/* TO" + "DO */\n")}, "unfinished")
        fires(check, {"src/json.c": source("json.c").rstrip()}, "line end")
        self.passes(check, {"src/json.c": source("json.c", "a" * 100 + "\n")})
        self.passes(check, {"docs/a.md": "a" * 200 + "\n"})
        self.passes(check, {"Makefile": "a:\n\ttrue\n"})

    def test_exports(self) -> None:
        """A name in one of kvc.h and libkvc.map only."""
        check = tidy.check_exports
        header = GOOD["include/kvc.h"] + "KVC_API int\nkvc_two(int a);\n"
        self.fires(check, {"include/kvc.h": header}, "kvc_two is declared")
        script = GOOD["src/libkvc.map"].replace("kvc_one;", "kvc_one;\n    kvc_two;")
        self.fires(check, {"src/libkvc.map": script}, "kvc_two is exported")

    def test_layout(self) -> None:
        """A constant that nobody uses, and a field at another offset than the document's."""
        check = tidy.check_layout
        layout = GOOD["src/layout.h"] + "#define KVCI_SPARE 1\n"
        self.fires(check, {"src/layout.h": layout}, "KVCI_SPARE is used nowhere")
        self.fires(check, {"docs/FORMAT.md": "| 112 | 8 | header_check |\n"}, "offset 120")

    def test_build_lists(self) -> None:
        """Sources and tests that no meson.build names."""
        fires = self.fires
        check = tidy.check_build_lists
        fires(check, {"src/sink.c": source("sink.c")}, "src/meson.build does not name it")
        fires(check, {"tests/fuzz/fuzz_open.c": ""}, "tests/fuzz/meson.build")
        fires(check, {"tests/cli/test_cat.py": ""}, "tests/meson.build")
        fires(check, {"python/kvcache/errors.py": ""}, "python/meson.build")
        self.passes(check, {"src/json.c": source("json.c"), "tests/cli/help.py": ""})

    def test_every_check_has_a_test(self) -> None:
        """A new check needs a test here."""
        for check in tidy.CHECKS:
            self.assertTrue(hasattr(self, check.__name__.replace("check_", "test_")), check)


if __name__ == "__main__":
    unittest.main()
