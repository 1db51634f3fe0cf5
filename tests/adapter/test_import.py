# test_import.py: what an import says where a package is missing or too old.
# SPDX-License-Identifier: Apache-2.0
# mypy: allow-untyped-calls, allow-subclassing-any
from __future__ import annotations

import sys
from pathlib import Path

import torch_kvcache
from adapter_help import run_python


def lend(root: Path, *, without: tuple[str, ...]) -> list[str]:
    """Makes folders that lend the packages installed here except some; returns their paths."""
    names = ("kvcache", "torch_kvcache", "torch", "transformers")
    places = [Path(place) for place in sys.path]
    folders: list[str] = []
    for place in dict.fromkeys(p for p in places if any((p / name).is_dir() for name in names)):
        folder = root / str(len(folders))
        folder.mkdir(parents=True)
        for entry in place.iterdir():
            if entry.name.partition("-")[0] not in without:
                (folder / entry.name).symlink_to(entry)
        folders.append(str(folder))
    return folders


def import_in(path: list[str], tmp_path: Path) -> str:
    """Returns what an import in a new Python without site-packages ends with."""
    script = tmp_path / "import.py"
    script.write_text("import torch_kvcache\nprint('imported')\n")
    done = run_python("-S", script, path=path)
    return (done.stdout + done.stderr).strip().splitlines()[-1]


def test_without_torch(tmp_path: Path) -> None:
    path = lend(tmp_path / "lent", without=("torch", "transformers"))
    last = import_in(path, tmp_path)
    assert last.startswith("ImportError: torch_kvcache needs PyTorch, which is not installed")
    assert "pip install torch transformers" in last


def test_without_transformers(tmp_path: Path) -> None:
    path = lend(tmp_path / "lent", without=("transformers",))
    last = import_in(path, tmp_path)
    assert last.startswith("ImportError: torch_kvcache needs Transformers, which is not installed")
    assert "pip install transformers" in last


def test_with_an_older_transformers(tmp_path: Path) -> None:
    path = lend(tmp_path / "lent", without=("transformers",))
    old = tmp_path / "lent" / "0" / "transformers"
    old.mkdir()
    (old / "__init__.py").write_text("__version__ = '4.50.3'\n")
    (old / "cache_utils.py").write_text("class DynamicCache: pass\n")
    last = import_in(path, tmp_path)
    assert "4.50.3 is installed here" in last
    assert "pip install --upgrade transformers" in last


def test_a_broken_package_is_not_called_missing(tmp_path: Path) -> None:
    path = lend(tmp_path / "lent", without=("torch", "transformers"))
    broken = tmp_path / "lent" / "0" / "torch"
    broken.mkdir()
    (broken / "__init__.py").write_text("import a_module_that_nobody_has\n")
    assert import_in(path, tmp_path) == (
        "ModuleNotFoundError: No module named 'a_module_that_nobody_has'"
    )


def test_with_everything(tmp_path: Path) -> None:
    assert import_in(lend(tmp_path / "lent", without=()), tmp_path) == "imported"


def test_public_names() -> None:
    assert set(torch_kvcache.__all__) == {
        *("Coverage", "LoadedCache", "PromptError", "Resumed", "append", "coverage_of"),
        *("full_identity_of", "identity_of", "join", "load", "read_dynamic_cache", "resume"),
        *("save", "write_dynamic_cache"),
    }
    assert all(hasattr(torch_kvcache, name) for name in torch_kvcache.__all__)
    assert (Path(torch_kvcache.__file__).parent / "py.typed").is_file()
