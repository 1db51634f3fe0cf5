"""test_install.py: builds examples/consumer.c against the installed library, as a user would.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("KVC_BUILD_DIR", ROOT / "build")).resolve()
CC = shlex.split(os.environ.get("CC", "cc"))
CXX = shlex.split(os.environ.get("CXX", "c++"))
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
METADATA = {
    "dtype": "f16",
    "head_dim": 64,
    "kv_heads": 2,
    "layers": 1,
    "layout": "layer-major-k-then-v",
    "model_revision": "test",
    "rope_theta": 10000.0,
    "sequence_length": 3,
    "sequence_start": 0,
    "tokenizer_sha256": "ab" * 32,
}


def run(*words: str | pathlib.Path, **environment: str) -> str:
    """Run a command that must succeed and return what it prints."""
    done = subprocess.run(
        [str(word) for word in words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return the prefix folder of a fresh installation of the build."""
    stage = tmp_path_factory.mktemp("stage")
    run("meson", "install", "-C", BUILD, "--no-rebuild", "--quiet", "--destdir", stage)
    options = json.loads((BUILD / "meson-info" / "intro-buildoptions.json").read_text())
    value = next(option["value"] for option in options if option["name"] == "prefix")
    return stage / str(value).lstrip("/")


@pytest.fixture(scope="module")
def library_folder(prefix: pathlib.Path) -> pathlib.Path:
    """Return the folder below the prefix that holds the installed library."""
    return next(prefix.rglob("libkvc.a")).parent


@pytest.fixture(scope="module")
def kvc_file(prefix: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return a small file that the installed tool packed from 1,536 payload bytes."""
    folder = tmp_path_factory.mktemp("file")
    (folder / "metadata.json").write_text(json.dumps(METADATA))
    (folder / "payload").write_bytes(bytes(range(256)) * 6)
    path = folder / "small.kvc"
    run(prefix / "bin" / "kvc", "pack", folder / "metadata.json", folder / "payload", "-o", path)
    return path


def flags(prefix: pathlib.Path, library_folder: pathlib.Path, *, static: bool) -> list[str]:
    """Return what pkg-config says, or what kvc.pc itself says where the program is missing."""
    folder = library_folder / "pkgconfig"
    if shutil.which("pkg-config"):
        words = ["pkg-config", f"--define-variable=prefix={prefix}", "--cflags", "--libs", "kvc"]
        if static:
            words.insert(1, "--static")
        return shlex.split(run(*words, PKG_CONFIG_PATH=str(folder)))
    values: dict[str, str] = {}
    for line in (folder / "kvc.pc").read_text().splitlines():
        if match := re.match(r"([\w.]+)\s*[=:]\s*(.*)", line):
            values[match.group(1)] = match.group(2)
    values["prefix"] = str(prefix)

    def expand(text: str) -> str:
        while "${" in text:
            text = re.sub(r"\$\{(\w+)\}", lambda match: values[match.group(1)], text)
        return text

    names = ["Cflags", "Libs", "Libs.private"] if static else ["Cflags", "Libs"]
    return [word for name in names for word in shlex.split(expand(values.get(name, "")))]


def check_consumer(program: pathlib.Path, kvc_file: pathlib.Path, **environment: str) -> None:
    """Run the consumer on a good file, with its root, with another root, on a damaged file."""
    printed = run(program, kvc_file, **environment)
    match = re.match(r"root (kvc1:[0-9a-f]{64})\n", printed)
    assert match, printed
    assert "payload 1536 bytes" in printed
    assert "first byte 0, last byte 255, both proven" in printed
    assert run(program, kvc_file, match.group(1), **environment) == printed

    def refusal(*words: str | pathlib.Path) -> str:
        done = subprocess.run(
            [str(program), *map(str, words)],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1, done
        return done.stderr

    assert "(expected_root)" in refusal(kvc_file, "kvc1:" + "0" * 64)
    damaged = kvc_file.with_name("damaged.kvc")
    content = bytearray(kvc_file.read_bytes())
    content[4096] ^= 1
    damaged.write_bytes(content)
    assert "(chunk)" in refusal(damaged)


def test_installed_files(prefix: pathlib.Path, library_folder: pathlib.Path) -> None:
    """What an installation consists of, and the shared library's versions."""
    installed = {
        path.relative_to(prefix).as_posix() for path in prefix.rglob("*") if not path.is_dir()
    }
    below = library_folder.relative_to(prefix).as_posix()
    libraries = {f"{below}/libkvc.{end}" for end in ("a", "so", "so.0", "so.0.1.0")}
    assert {"include/kvc.h", "bin/kvc", f"{below}/pkgconfig/kvc.pc", *libraries} <= installed
    others = {name for name in installed if "/man1/kvc.1" not in name and "python" not in name}
    assert others == {"include/kvc.h", "bin/kvc", f"{below}/pkgconfig/kvc.pc", *libraries}


def test_shared(
    prefix: pathlib.Path,
    library_folder: pathlib.Path,
    kvc_file: pathlib.Path,
    tmp_path: pathlib.Path,
) -> None:
    """The consumer, linked to the shared library."""
    program = tmp_path / "consumer"
    consumer = ROOT / "examples" / "consumer.c"
    shared = flags(prefix, library_folder, static=False)
    run(*CC, "-std=c17", *WARNINGS, consumer, *shared, "-o", program)
    environment = {"LD_LIBRARY_PATH": str(library_folder)}
    check_consumer(program, kvc_file, **environment)
    assert "libkvc.so.0" in run("readelf", "-d", program)


def test_static(
    prefix: pathlib.Path,
    library_folder: pathlib.Path,
    kvc_file: pathlib.Path,
    tmp_path: pathlib.Path,
) -> None:
    """The consumer, linked to the static library alone."""
    alone = tmp_path / "lib"
    alone.mkdir()
    shutil.copy(library_folder / "libkvc.a", alone)
    words = [f"-L{alone}", *flags(prefix, library_folder, static=True)]
    words = [word for word in words if word != f"-L{library_folder}"]
    program = tmp_path / "consumer"
    consumer = ROOT / "examples" / "consumer.c"
    run(*CC, "-std=c17", *WARNINGS, consumer, *words, "-o", program)
    check_consumer(program, kvc_file)
    assert "libkvc" not in run("readelf", "-d", program)


@pytest.mark.parametrize(
    ("end", "compiler"),
    [(".c", [*CC, "-std=c11"]), (".c", [*CC, "-std=c17"]), (".cpp", [*CXX, "-std=c++11"])],
)
def test_header_alone(
    prefix: pathlib.Path, tmp_path: pathlib.Path, end: str, compiler: list[str]
) -> None:
    """kvc.h needs no other header, in C and in C++, and gives no warning."""
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"{compiler[0]} is not installed")
    unit = tmp_path / f"unit{end}"
    unit.write_text(
        "#include <kvc.h>\n#include <kvc.h>\n"
        "int main(void) { kvc_reader_free(NULL); return kvc_version()[0] == '0' ? 0 : 1; }\n"
    )
    extra = ["-Wconversion", "-Wshadow", "-Wundef"]
    run(*compiler, *WARNINGS, *extra, f"-I{prefix / 'include'}", "-c", unit, "-o", tmp_path / "o")


def test_shared_exports(library_folder: pathlib.Path) -> None:
    """libkvc.so exports the functions of kvc.h, in the version KVC_0, and nothing else."""
    text = run("nm", "-D", "--defined-only", library_folder / "libkvc.so.0")
    names = {line.split()[-1] for line in text.splitlines()}
    header = re.sub(r"/\*.*?\*/", "", (ROOT / "include" / "kvc.h").read_text(), flags=re.DOTALL)
    declared = set(re.findall(r"\bKVC_API\b[^;(]*?\b(kvc_\w+)\s*\(", header))
    assert names == {f"{name}@@KVC_0" for name in declared} | {"KVC_0"}
