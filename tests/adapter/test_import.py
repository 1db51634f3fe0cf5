# test_import.py: what an import says where a package is missing or too old.
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import kvcache
import torch
import torch_kvcache
import transformers
from adapter_help import run_python


def lend(folder: Path, *, without: tuple[str, ...]) -> list[str]:
    """Makes a folder that lends all installed packages except some, and returns its path."""
    folder.mkdir()
    packages = {Path(module.__file__).parents[1] for module in (kvcache, torch_kvcache)}
    packages |= {Path(module.__file__).parents[1] for module in (torch, transformers)}
    for place in sorted(packages):
        for entry in place.iterdir():
            target = folder / entry.name
            if entry.name.partition("-")[0] not in without and not target.exists():
                target.symlink_to(entry)
    return [str(folder)]


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
    old = tmp_path / "lent" / "transformers"
    old.mkdir()
    (old / "__init__.py").write_text("__version__ = '4.50.3'\n")
    (old / "cache_utils.py").write_text("class DynamicCache: pass\n")
    last = import_in(path, tmp_path)
    assert "4.50.3 is installed here" in last
    assert "pip install --upgrade transformers" in last


def test_a_broken_package_is_not_called_missing(tmp_path: Path) -> None:
    path = lend(tmp_path / "lent", without=("torch", "transformers"))
    broken = tmp_path / "lent" / "torch"
    broken.mkdir()
    (broken / "__init__.py").write_text("import a_module_that_nobody_has\n")
    assert import_in(path, tmp_path) == (
        "ModuleNotFoundError: No module named 'a_module_that_nobody_has'"
    )


def test_with_everything(tmp_path: Path) -> None:
    assert import_in(lend(tmp_path / "lent", without=()), tmp_path) == "imported"


def test_public_names() -> None:
    assert torch_kvcache.__all__ == ["identity_of", "read_dynamic_cache", "write_dynamic_cache"]
    assert (Path(torch_kvcache.__file__).parent / "py.typed").is_file()
