"""test_wheel.py: builds the wheel and looks at its files, its tag and what its module exports.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = ("kvcache", "torch_kvcache")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return a wheel that was built now, by the tools here or, where they lack, in isolation."""
    folder = tmp_path_factory.mktemp("wheel")
    words = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(folder)]
    if importlib.util.find_spec("mesonpy") and importlib.util.find_spec("mesonbuild"):
        words.append("--no-build-isolation")
    # The tools of this environment, also where it is not activated.
    path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [*words, str(ROOT)],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    wheels = list(folder.glob("*.whl"))
    assert len(wheels) == 1
    return wheels[0]


@pytest.fixture(scope="module")
def unpacked(wheel: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return a folder with the wheel's files."""
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def python_files() -> set[str]:
    """Return the Python files of the source tree that belong into the wheel."""
    return {
        path.relative_to(ROOT / "python").as_posix()
        for package in PACKAGES
        for path in (ROOT / "python" / package).rglob("*")
        if path.suffix in {".py", ".pyi"} or path.name == "py.typed"
    }


def test_tag(wheel: pathlib.Path) -> None:
    """One wheel for CPython 3.11 and all that follow."""
    name, _, python, abi, platform = wheel.stem.split("-")
    assert (name, python, abi) == ("kvcache", "cp311", "abi3")
    assert platform != "any"


def test_files(unpacked: pathlib.Path) -> None:
    """Every Python file, the module, the tool, and nothing of the library's installation."""
    found = {
        path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*") if path.is_file()
    }
    named = {name for name in found if ".dist-info/" not in name}
    module = {"kvcache/_kvc.abi3.so"}
    tool = {name for name in named if name.endswith(".data/scripts/kvc")}
    assert len(tool) == 1
    assert named == python_files() | module | tool
    information = {name.split("/", 1)[1] for name in found - named}
    assert {"METADATA", "RECORD", "WHEEL", "licenses/LICENSE"} <= information


def test_no_dependency(unpacked: pathlib.Path) -> None:
    """Nothing is required; torch and transformers come with the extra `torch`."""
    metadata = next(unpacked.glob("*.dist-info/METADATA")).read_text(encoding="utf-8")
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist:")]
    assert required, "the extra is missing"
    assert all("extra ==" in line for line in required), required


def test_exports(unpacked: pathlib.Path) -> None:
    """The module exports its init function alone, and needs neither libkvc nor libpython."""
    module = unpacked / "kvcache" / "_kvc.abi3.so"
    text = subprocess.check_output(["nm", "-D", "--defined-only", module], text=True)
    names = {line.split()[-1].split("@")[0] for line in text.splitlines()}
    assert names == {"PyInit__kvc"}
    dynamic = subprocess.check_output(["readelf", "-d", module], text=True)
    assert "libkvc" not in dynamic
    assert "libpython" not in dynamic


def test_tool(unpacked: pathlib.Path) -> None:
    """The kvc program of the wheel runs by itself."""
    tool = next(unpacked.glob("*.data/scripts/kvc"))
    tool.chmod(0o755)
    assert subprocess.check_output([tool, "--version"], text=True).startswith("kvc 0.1.0")


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_import(unpacked: pathlib.Path, version: str, tmp_path: pathlib.Path) -> None:
    """Every Python from 3.11 imports the wheel, writes a file and reads it back."""
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-c", ""], capture_output=True).returncode != 0:
        pytest.skip(f"python{version} is not installed")
    # The fields of metadata without a manifest.
    code = """
import sys, kvcache
assert sys.argv[1] == "%d.%d" % sys.version_info[:2]
metadata = dict(dtype="u8", head_dim=1, kv_heads=1, layers=1, model_revision="m",
    layout="layer-major-k-then-v", rope_theta=1.0, sequence_length=1,
    sequence_start=0, tokenizer_sha256="0" * 64)
info = kvcache.write_cache_stream(sys.argv[2], metadata, [b"some", b" bytes"])
found, payload = kvcache.read_cache(sys.argv[2], expected_root=info.root)
assert bytes(payload) == b"some bytes" and found["model_revision"] == "m"
"""
    environment = {**os.environ, "PYTHONPATH": str(unpacked)}
    words = [python, "-c", code, version, str(tmp_path / "a.kvc")]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
