"""tidy.py: holds the rules about the sources that a compiler does not: who may include whom, how
long files and functions may be, how files begin, which calls are banned, what libkvc exports.

Usage: python3 tests/tidy.py [ROOT]. One line for each finding; exit status 1 when there is one.
SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import ast
import collections
import pathlib
import re
import sys
from collections.abc import Callable, Iterator

MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 70
MAX_COLUMNS = 100

# From the bottom to the top. A module may include every module of the layers below its own, and
# those that PEERS names; the public header counts as the module kvc.
LAYERS: list[set[str]] = [
    {"ban", "bytes", "checked", "layout", "kvc"},
    {"alloc", "dtype", "roles", "status"},
    {"blake3", "blake3_lanes", "canonical", "decimal", "json"},
    {
        *("foreign", "geometry", "header", "info", "layer_table", "manifest", "manifest2"),
        *("metadata", "packing", "root", "strides", "tensor_table", "walk"),
    },
    {"publish", "sink", "source", "tiles"},
    {
        *("copy", "frame", "identity", "proof", "reader", "spelling", "verify", "version", "view"),
        "writer",
    },
]
PEERS: dict[str, set[str]] = {
    "blake3": {"blake3_lanes"},
    "canonical": {"decimal", "json"},
    "header": {"foreign"},
    "geometry": {"header"},
    "info": {"geometry", "header", "metadata"},
    "json": {"decimal"},
    # The manifest knows its tables, the tables the walk, the walk the metadata; never back.
    "walk": {"metadata"},
    "layer_table": {"walk"},
    "packing": {"walk"},
    "tensor_table": {"geometry", "layer_table", "packing"},
    "manifest2": {"geometry", "layer_table", "metadata", "tensor_table"},
    "manifest": {"geometry", "header", "manifest2", "metadata", "tensor_table", "walk"},
    "sink": {"publish"},
    # The reader is written in several files, which share reader.h. The writer knows none of it.
    "copy": {"reader"},
    "frame": {"reader"},
    "identity": {"reader"},
    "proof": {"reader"},
    "verify": {"reader"},
    "view": {"reader"},
}
# BLAKE3 and JSON stand beside each other and know nothing of what the library does with them.
FORBIDDEN: dict[str, set[str]] = {
    "blake3": {"alloc", "dtype", "roles", "status"},
    "blake3_lanes": {"alloc", "dtype", "roles", "status", "blake3"},
}

# Who may use the operating system; everybody else is pure.
SYSTEM_HEADERS = re.compile(r"(fcntl|unistd|dirent|poll|sched|signal|pthread|sys/\w+)\.h")
SYSTEM_MODULES = {"publish", "sink", "source", "tiles"}
THREAD_MODULES = {"tiles"}
MEMORY_MODULES = {"alloc"}

UNBOUNDED_CALLS = {
    *("alloca", "atof", "atoi", "atol", "gets", "popen", "sprintf", "strcat", "strcpy", "strncat"),
    *("strncpy", "strtok", "system", "vsprintf"),
}
# The library does not print, end the process, or depend on the locale or the environment.
LIBRARY_CALLS = {
    *("abort", "exit", "_exit", "fprintf", "fputc", "fputs", "fwrite", "getenv", "perror"),
    *("printf", "putchar", "puts", "rand", "setenv", "setlocale", "sigaction", "signal", "sscanf"),
    *("strerror", "strtod", "strtof", "strtol", "strtoll", "strtoul", "strtoull", "umask"),
    *("vfprintf", "vprintf"),
}
MEMORY_CALLS = {"calloc", "free", "malloc", "realloc", "strdup", "strndup"}
THREAD_CALLS = re.compile(r"\bpthread_(?!mutex|once)\w+\s*\(")
CALLS_ALLOWED = {("blake3", "getenv")}  # KVC_BLAKE3_KERNEL

UNFINISHED = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X"]) + r")\b")
INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)

# The texts of a tree, by path from its root.
Tree = dict[str, str]
Finding = tuple[str, int, str]


def strip_c(text: str) -> str:
    """Return C source with comments and the insides of literals blanked, line by line the same."""
    token = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match.group())

    return token.sub(blank, text)


def line_of(text: str, place: int) -> int:
    """Return the number of the line, from 1, that holds the character at `place`."""
    return text.count("\n", 0, place) + 1


def c_files(tree: Tree, *folders: str) -> Iterator[tuple[str, str]]:
    """Yield the C sources and headers in the folders, or all of them."""
    for path, text in tree.items():
        if path.endswith((".c", ".h")) and (not folders or path.startswith(folders)):
            yield path, text


def layer_of(module: str) -> int | None:
    """Return the index of a module's layer, or None for a module that the table lacks."""
    for index, modules in enumerate(LAYERS):
        if module in modules:
            return index
    return None


def may_include(module: str, other: str) -> bool:
    """Tell whether a file of `module` may include the header of `other`."""
    if other in FORBIDDEN.get(module, set()):
        return False
    if other in PEERS.get(module, set()):
        return True
    own, below = layer_of(module), layer_of(other)
    if own == 0:
        return False
    return own is not None and below is not None and below < own


def check_layers(tree: Tree) -> Iterator[Finding]:
    """Who may include whom within the library."""
    for path, text in c_files(tree, "src/", "include/"):
        module = pathlib.PurePosixPath(path).stem
        if layer_of(module) is None:
            yield path, 1, f"{module} has no place in the table LAYERS of tests/tidy.py"
            continue
        for match in INCLUDE.finditer(text):
            other = pathlib.PurePosixPath(match.group(1) or "").stem
            if not match.group(1) or other == module or (path.endswith(".c") and other == "ban"):
                continue
            if not may_include(module, other):
                yield path, line_of(text, match.start()), f"{module} may not include {other}.h"


def check_public_users(tree: Tree) -> Iterator[Finding]:
    """The tool, the extension and the examples use the library's public header alone."""
    private = {pathlib.PurePosixPath(path).name for path, _ in c_files(tree, "src/")}
    for path, text in c_files(tree, "tools/", "python/", "examples/"):
        for match in INCLUDE.finditer(text):
            name = match.group(1) or match.group(2)
            if name in private or ".." in name:
                yield path, line_of(text, match.start()), f"{name} is not public: use kvc.h"
        for match in re.finditer(r"\bkvci_\w+", strip_c(text)):
            yield path, line_of(text, match.start()), f"{match.group()} is private to the library"


def check_purity(tree: Tree) -> Iterator[Finding]:
    """Only a few modules call the operating system, take memory or know threads."""
    for path, text in c_files(tree, "src/"):
        module = pathlib.PurePosixPath(path).stem
        for match in INCLUDE.finditer(text):
            name = match.group(2) or ""
            if SYSTEM_HEADERS.fullmatch(name) and module not in SYSTEM_MODULES:
                known = ", ".join(sorted(SYSTEM_MODULES))
                yield path, line_of(text, match.start()), f"<{name}> is only for {known}"
        if module not in THREAD_MODULES:
            for match in THREAD_CALLS.finditer(strip_c(text)):
                yield path, line_of(text, match.start()), "only tiles.c knows threads"


def check_calls(tree: Tree) -> Iterator[Finding]:
    """Calls that have no bound, and those that a library must not make."""
    for path, text in c_files(tree, "src/", "tools/", "python/", "examples/", "tests/fuzz/"):
        module = pathlib.PurePosixPath(path).stem
        banned = set(UNBOUNDED_CALLS)
        if path.startswith("src/"):
            banned |= LIBRARY_CALLS
            if module not in MEMORY_MODULES:
                banned |= MEMORY_CALLS
        # A member may have the name: `sink->abort(...)`.
        for match in re.finditer(r"(?<![\w.>])(\w+)\s*\(", strip_c(text)):
            if match.group(1) in banned and (module, match.group(1)) not in CALLS_ALLOWED:
                yield path, line_of(text, match.start()), f"{match.group(1)} is banned here"


def check_ban_header(tree: Tree) -> Iterator[Finding]:
    """Each source of the library includes ban.h after every other header."""
    for path, text in c_files(tree, "src/"):
        if not path.endswith(".c"):
            continue
        includes = list(INCLUDE.finditer(text))
        if not includes or includes[-1].group(1) != "ban.h":
            line = line_of(text, includes[-1].start()) if includes else 1
            yield path, line, "the last include must be ban.h"


def check_names(tree: Tree) -> Iterator[Finding]:
    """A C file's name says which file it is, anywhere in the tree."""
    paths = collections.defaultdict(list)
    for path, _ in c_files(tree):
        paths[pathlib.PurePosixPath(path).name].append(path)
    for same in paths.values():
        for path in same[1:]:
            yield path, 1, f"the same file name as {same[0]}"


def check_length(tree: Tree) -> Iterator[Finding]:
    """How long a file may be."""
    for path, text in tree.items():
        lines = text.count("\n")
        if path.endswith((".c", ".h", ".py", ".pyi")) and lines > MAX_FILE_LINES:
            yield path, MAX_FILE_LINES, f"{lines} lines, at most {MAX_FILE_LINES} are allowed"


def c_functions(text: str) -> Iterator[tuple[int, int]]:
    """Yield the first line and the line count of each function: its head and its body."""
    lines = strip_c(text).split("\n")
    for start, line in enumerate(lines):
        if line != "{":
            continue
        first = start
        while first > 0 and re.match(r"[\w\s(]", lines[first - 1]) and lines[first - 1].strip():
            first -= 1
        end = start
        while end < len(lines) - 1 and not lines[end].startswith("}"):
            end += 1
        yield first + 1, end - first + 1


def check_functions(tree: Tree) -> Iterator[Finding]:
    """How long a function may be."""
    for path, text in tree.items():
        found: list[tuple[int, int]] = []
        if path.endswith((".c", ".h")):
            found = list(c_functions(text))
        elif path.endswith((".py", ".pyi")):
            found = [
                (node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1)
                for node in ast.walk(ast.parse(text, path))
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
        for line, count in found:
            if count > MAX_FUNCTION_LINES:
                allowed = f"at most {MAX_FUNCTION_LINES} are allowed"
                yield path, line, f"a function of {count} lines, {allowed}"


def check_head(tree: Tree) -> Iterator[Finding]:
    """Each source begins with its name and a sentence, and names its licence."""
    for path, text in tree.items():
        name = pathlib.PurePosixPath(path).name
        if not name.endswith((".c", ".h", ".py", ".pyi", ".sh", ".map")) and name not in {
            *("meson.build", "meson_options.txt", "Makefile"),
            *("pyproject.toml", "check", "run"),
        }:
            continue
        lines = text.split("\n")
        head = lines[1] if lines[0].startswith("#!") else lines[0]
        names = {name, path}
        if name == "__init__.py":
            names.add(pathlib.PurePosixPath(path).parent.name)
        opening = re.match(r'(?:/\* |# |""")(\S+): \S', head)
        if opening is None or opening.group(1) not in names:
            yield path, 1, f"must begin with its name and a sentence: `{name}: what it is.`"
        if "SPDX-License-Identifier: Apache-2.0" not in "\n".join(lines[:60]):
            yield path, 1, "its head must say SPDX-License-Identifier: Apache-2.0"


def check_lines(tree: Tree) -> Iterator[Finding]:
    """Tabs, spaces at the end of a line, long lines, marks of unfinished work."""
    for path, text in tree.items():
        if text and not text.endswith("\n"):
            yield path, text.count("\n") + 1, "the last line has no line end"
        for number, line in enumerate(text.split("\n"), 1):
            if "\t" in line and not path.endswith("Makefile"):
                yield path, number, "a tab: use spaces"
            if line != line.rstrip():
                yield path, number, "white space at the end of the line"
            if len(line) > MAX_COLUMNS and not path.endswith((".md", ".txt", ".1")):
                yield path, number, f"{len(line)} columns, at most {MAX_COLUMNS} are allowed"
            if UNFINISHED.search(line):
                yield path, number, "a mark of unfinished work: finish it, or file an issue"


def check_exports(tree: Tree) -> Iterator[Finding]:
    """libkvc.so exports exactly the functions that kvc.h declares."""
    header, script = tree.get("include/kvc.h", ""), tree.get("src/libkvc.map", "")
    declared = set(re.findall(r"\bKVC_API\b[^;(]*?\b(kvc_\w+)\s*\(", strip_c(header)))
    exported = set(re.findall(r"^\s*(kvc_\w+);", strip_c(script), re.MULTILINE))
    for name in sorted(declared - exported):
        yield "src/libkvc.map", 1, f"{name} is declared in kvc.h and missing here"
    for name in sorted(exported - declared):
        yield "src/libkvc.map", 1, f"{name} is exported and not declared in kvc.h"


def check_layout(tree: Tree) -> Iterator[Finding]:
    """Each constant of layout.h is used, and each field stands in FORMAT.md at its offset."""
    path = "src/layout.h"
    layout, document = tree.get(path, ""), tree.get("docs/FORMAT.md", "")
    sources = "\n".join(strip_c(text) for _, text in c_files(tree, "src/"))
    rows = [re.sub(r"[`_]", " ", line).lower() for line in document.split("\n") if "|" in line]
    for match in re.finditer(r"^#define (KVCI_(\w+))(?: (\d+)$)?", layout, re.MULTILINE):
        constant, name, value = match.groups()
        line = line_of(layout, match.start())
        if constant == "KVCI_LAYOUT_H":
            continue
        if len(re.findall(rf"\b{constant}\b", sources)) < 2:
            yield path, line, f"{constant} is used nowhere"
        field = re.fullmatch(r"(?:HEADER|FOOTER)_(\w+_\w+|[A-Z]+)", name)
        if field is None or value is None or name in {"HEADER_BYTES", "FOOTER_BYTES"}:
            continue
        wanted = field.group(1).replace("_", " ").lower()
        if not any(re.match(rf"\|\s*{value}\s*\|.*\b{wanted}\b", row) for row in rows):
            yield path, line, f"docs/FORMAT.md has no table row for {wanted} at offset {value}"


# What a folder's meson.build must name, so that nothing is left out of a build or a test run.
BUILD_LISTS: list[tuple[str, str]] = [
    (r"src/(\w+\.c)", "src/meson.build"),
    (r"tools/kvc/(\w+\.c)", "tools/kvc/meson.build"),
    (r"python/(\w+/\w+\.(?:c|py|pyi))", "python/meson.build"),
    (r"tests/unit/(test_\w+\.c|\w+_tool\.c)", "tests/unit/meson.build"),
    (r"tests/fuzz/fuzz_(\w+)\.c", "tests/fuzz/meson.build"),
    (r"tests/((?:(?:cli|corpus|spec|fault)/)?test_\w+\.py)", "tests/meson.build"),
]


def check_build_lists(tree: Tree) -> Iterator[Finding]:
    """Each source is built, and each test runs."""
    for path in tree:
        for pattern, build in BUILD_LISTS:
            match = re.fullmatch(pattern, path)
            if match and f"'{match.group(1)}'" not in tree.get(build, ""):
                yield path, 1, f"{build} does not name it"


CHECKS: list[Callable[[Tree], Iterator[Finding]]] = [
    check_layers,
    check_public_users,
    check_purity,
    check_calls,
    check_ban_header,
    check_names,
    check_length,
    check_functions,
    check_head,
    check_lines,
    check_exports,
    check_layout,
    check_build_lists,
]

TEXT_NAMES = {"Makefile", "check", "run", ".clang-format", ".clang-tidy", ".editorconfig"}
TEXT_ENDS = (".c", ".h", ".py", ".pyi", ".md", ".build", ".txt", ".toml", ".map", ".sh", ".1")
SKIPPED = re.compile(
    r"(build[^/]*|dist|\.git|\.venv[^/]*|\.mesonpy-.*|\.cache|.*_cache|__pycache__)"
)


def read_tree(root: pathlib.Path) -> Tree:
    """Return the texts under `root`, without builds, virtual environments and corpora."""
    tree: Tree = {}
    folders = [root]
    while folders:
        for path in sorted(folders.pop().iterdir()):
            if path.is_dir():
                if not SKIPPED.fullmatch(path.name) and path != root / "tests/fuzz/corpus":
                    folders.append(path)
            elif path.name in TEXT_NAMES or path.name.endswith(TEXT_ENDS):
                tree[path.relative_to(root).as_posix()] = path.read_text(encoding="utf-8")
    return dict(sorted(tree.items()))


def findings(tree: Tree) -> list[Finding]:
    """Return what every check finds in the tree."""
    return [finding for check in CHECKS for finding in check(tree)]


def main(words: list[str]) -> int:
    """Print the findings; return 0 when there is none."""
    root = pathlib.Path(words[0]) if words else pathlib.Path(__file__).resolve().parents[1]
    found = findings(read_tree(root))
    for path, line, text in found:
        print(f"{path}:{line}: {text}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
