# test_package.py: the package as it is installed: symbols, interpreters, types.
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
import importlib.util
import inspect
import os
import site
import subprocess
import sys
from pathlib import Path

import kvcache
import pytest
from kvcache import _kvc
from kvcache_cases import ROOT_FOLDER


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_module_is_stable_abi() -> None:
    assert _kvc.__file__ is not None
    assert ".abi3." in Path(_kvc.__file__).name
    assert "cpython" not in Path(_kvc.__file__).name


def test_module_exports_its_init_function_only() -> None:
    library = ctypes.CDLL(_kvc.__file__)
    assert library.PyInit__kvc is not None
    for name in ("kvc_version", "kvc_reader_open_path", "kvcpy_open", "kvcpy_progress"):
        with pytest.raises(AttributeError):
            getattr(library, name)


def test_header_and_package_have_one_version() -> None:
    header = (ROOT_FOLDER / "include" / "kvc.h").read_text()
    assert f'#define KVC_VERSION "{kvcache.__version__}"' in header


def test_everything_public_is_documented() -> None:
    for name in kvcache.__all__:
        thing = getattr(kvcache, name)
        if callable(thing):
            assert inspect.getdoc(thing), name
    for kind in (kvcache.Cache, kvcache.CacheTensor):
        for name, member in inspect.getmembers(kind):
            if not name.startswith("_"):
                assert inspect.getdoc(member), name


def test_typed() -> None:
    folder = Path(kvcache.__file__).parent
    assert (folder / "py.typed").exists()
    assert (folder / "_kvc.pyi").exists()


USER_CODE = """
from pathlib import Path
from typing import Any

import kvcache

def use(path: Path, metadata: dict[str, Any]) -> str:
    info: kvcache.CacheInfo = kvcache.write_cache_stream(
        path, metadata, [b"x", bytearray(b"y"), memoryview(b"z")], key=bytes(32),
        progress=lambda done, total: print(done / total),
    )
    found, payload = kvcache.read_cache(str(path), {"layers": 1}, expected_root=info.root)
    size: int = len(payload) + found["layers"]
    with kvcache.open_cache(path, copy=True, threads=2) as cache:
        for name in cache:
            tensor: kvcache.CacheTensor = cache[name]
            first: int = tensor.shape[0]
            view: memoryview = memoryview(tensor)
            data: bytes = bytes(tensor) + cache.read(name, 0, 1)
        layers: list[int | None] = [info.layer for info in cache.tensors.values()]
        print(size, first, view, data, layers)
    try:
        kvcache.verify_cache(path, errors="collect")
    except kvcache.CacheIntegrityError as error:
        places: list[int | None] = [failure.offset for failure in error.failures]
        print(places)
    except kvcache.CacheIdentityError as error:
        for field, expected, value in error.differences:
            if value is kvcache.MISSING:
                print(field.upper(), expected)
    return info.root + kvcache.kernel() + kvcache.__version__
"""


def run_mypy(folder: Path, name: str) -> subprocess.CompletedProcess[str]:
    """Check one file in an own folder, away from the settings of this repository."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    installed = Path(kvcache.__file__).parents[1]
    if str(installed) not in site.getsitepackages():
        environment["MYPYPATH"] = str(installed)
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder / "cache"), name],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_types_for_users(tmp_path: Path) -> None:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    (tmp_path / "use.py").write_text(USER_CODE)
    (tmp_path / "misuse.py").write_text("import kvcache\nkvcache.read_cache(5, key='text')\n")
    good = run_mypy(tmp_path, "use.py")
    assert good.returncode == 0, good.stdout
    bad = run_mypy(tmp_path, "misuse.py")
    assert bad.stdout.count("arg-type") == 2, bad.stdout


INTERPRETERS = """
import sys
try:
    import _xxsubinterpreters as interpreters
except ImportError:
    try:
        import _interpreters as interpreters
    except ImportError:
        print("none")
        sys.exit()
code = '''
import sys
sys.path[:] = %r
try:
    import kvcache
    from kvcache_cases import *
except ImportError as error:
    assert "subinterpreters" in str(error), error
else:
    path = %r
    metadata, payload = write_case(__import__("pathlib").Path(path))
    seen = []
    kvcache.verify_cache(path, progress=lambda done, total: seen.append(done))
    assert seen
    with kvcache.open_cache(path) as cache:
        assert bytes(cache["layer.0.key"]) == payload[:len(payload) // 2]
        kept = cache["layer.0.key"]
    try:
        kvcache.open_cache(path, {"layers": 5})
    except kvcache.CacheIdentityError as error:
        assert error.differences
    else:
        raise AssertionError
'''
import kvcache
for number in range(3):
    interpreter = interpreters.create()
    outcome = interpreters.run_string(interpreter, code % (sys.path, sys.argv[1]))
    assert outcome is None, outcome
    interpreters.destroy(interpreter)
kvcache.verify_cache(sys.argv[1], progress=lambda done, total: None)
print("done")
"""


def test_subinterpreters(tmp_path: Path) -> None:
    path = tmp_path / "a.kvc"
    from kvcache_cases import write_case

    write_case(path)
    done = run("-W", "ignore", "-c", INTERPRETERS, str(path))
    if done.stdout.strip() == "none":
        pytest.skip("this Python has no module for subinterpreters")
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr


def test_free_threaded_python_is_refused() -> None:
    code = "import sysconfig\nsysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1\nimport kvcache\n"
    done = run("-c", code)
    assert done.returncode == 1
    assert "ImportError: kvcache does not support free-threaded builds of Python" in done.stderr


def test_import_needs_nothing_else() -> None:
    code = (
        "import sys\n"
        "import kvcache\n"
        "print([name for name in ('numpy', 'torch', 'transformers') if name in sys.modules])\n"
    )
    assert run("-c", code).stdout.strip() == "[]"
