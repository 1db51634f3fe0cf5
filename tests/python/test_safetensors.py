"""test_safetensors.py: the package `safetensors` reads what `kvc export` writes, and back.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy
import pytest

safetensors = pytest.importorskip("safetensors", reason="safetensors is not installed")
numpy_files = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
torch_files = pytest.importorskip("safetensors.torch", reason="torch is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")

ROOT = Path(__file__).resolve().parents[2]
KVC = Path(os.environ.get("KVC_BUILD_DIR", ROOT / "build")).resolve() / "tools" / "kvc" / "kvc"
GOOD_FILES = sorted((ROOT / "tests" / "corpus" / "good").glob("*.kvc"))

pytestmark = pytest.mark.skipif(
    not KVC.exists(), reason="kvc is not built; `make build`, or name its folder in KVC_BUILD_DIR"
)

# Its tensor of no bytes has dimensions whose product, without the 0, is more than 64 bits hold:
# this package looks at them from left to right.
OVERFLOWS = {"m2-largest"}


def kvc(*words: str | Path) -> str:
    """Run kvc, which must succeed, and return what it printed."""
    done = subprocess.run([KVC, *words], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def tensor(path: Path, name: str) -> bytes:
    """Return the proven bytes of a tensor."""
    words = [str(path)] if name == "payload" else [str(path), name]
    return subprocess.run([KVC, "cat", *words], capture_output=True, check=True, timeout=120).stdout


def facts(path: Path) -> dict[str, Any]:
    """Return what the corpus says of a file."""
    value: dict[str, Any] = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    return value


@pytest.mark.parametrize("path", GOOD_FILES, ids=lambda path: path.stem)
def test_export_is_read(path: Path, tmp_path: Path) -> None:
    """Names, dtypes, shapes, bytes and metadata are those of the file."""
    out = tmp_path / "x.safetensors"
    kvc("export", path, "--safetensors", out)
    if path.stem in OVERFLOWS:
        with pytest.raises(safetensors.SafetensorError, match="overflow"):
            safetensors.deserialize(out.read_bytes())
        return
    manifest = json.loads(facts(path)["metadata"]).get("tensor_manifest", {"tensors": []})
    names = {record["name"] for record in manifest["tensors"]} or {"payload"}
    found = dict(safetensors.deserialize(out.read_bytes()))
    assert set(found) == names
    for name, entry in found.items():
        assert bytes(entry["data"]) == tensor(path, name)
    for record in manifest["tensors"]:
        assert found[record["name"]]["shape"] == record["shape"]
    with safetensors.safe_open(out, "np") as file:
        assert file.metadata() == {
            "kvc1.metadata": facts(path)["metadata"], "kvc1.root": facts(path)["root"],
        }  # fmt: skip


def test_every_dtype_in_torch(tmp_path: Path) -> None:
    """Each tensor has its dtype and bits, from a mapped file; F8_E8M0 is not in torch's table."""
    path = ROOT / "tests" / "corpus" / "good" / "m2-every-dtype.kvc"
    out = tmp_path / "x.safetensors"
    kvc("export", path, "--safetensors", out)
    dtypes = {
        "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64,
        "i8": torch.int8, "u8": torch.uint8, "i16": torch.int16, "u16": torch.uint16,
        "i32": torch.int32, "u32": torch.uint32, "i64": torch.int64, "bool": torch.bool,
        "f8_e4m3fn": torch.float8_e4m3fn, "f8_e5m2": torch.float8_e5m2,
        "f8_e4m3fnuz": torch.float8_e4m3fnuz, "f8_e5m2fnuz": torch.float8_e5m2fnuz,
    }  # fmt: skip
    seen = set()
    records = json.loads(facts(path)["metadata"])["tensor_manifest"]["tensors"]
    with safetensors.safe_open(out, "pt") as file:
        for record in records:
            if record["dtype"] not in dtypes:
                continue
            loaded = file.get_tensor(record["name"])
            assert loaded.dtype == dtypes[record["dtype"]]
            assert list(loaded.shape) == record["shape"]
            data = loaded.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            assert data == tensor(path, record["name"])
            seen.add(record["dtype"])
    assert seen == set(dtypes)


# Files of manifest versions 1 and 2, a segment and an opaque payload, with dtypes that numpy has.
@pytest.mark.parametrize(
    "name", ["example", "dtype-f16", "dtype-f32", "m2-sliding", "m2-quantized", "segment",
             "m2-segment", "opaque-65537", "layers-64"],
)  # fmt: skip
def test_rewritten_files_are_imported(name: str, tmp_path: Path) -> None:
    """numpy and torch write tensors in another order; the same file comes back."""
    path = ROOT / "tests" / "corpus" / "good" / f"{name}.kvc"
    out, back = tmp_path / "x.safetensors", tmp_path / "y.kvc"
    kvc("export", path, "--safetensors", out)
    align = f"--align={facts(path)['align_bytes']}"
    with safetensors.safe_open(out, "np") as file:
        extra = file.metadata()
    for module in (numpy_files, torch_files):
        again = tmp_path / "again.safetensors"
        module.save_file(module.load_file(out), again, metadata=extra | {"format": "pt"})
        assert again.read_bytes() != out.read_bytes()
        printed = kvc("import", again, "-o", back, align)
        assert printed == f"{facts(path)['root']}  {back}\n"
        assert back.read_bytes() == path.read_bytes()


def test_a_changed_value_is_refused(tmp_path: Path) -> None:
    """One element changed by numpy: refused, and accepted when that is asked for."""
    path = ROOT / "tests" / "corpus" / "good" / "dtype-f32.kvc"
    out, back = tmp_path / "x.safetensors", tmp_path / "y.kvc"
    kvc("export", path, "--safetensors", out)
    with safetensors.safe_open(out, "np") as file:
        extra = file.metadata()
    tensors = {name: value.copy() for name, value in numpy_files.load_file(out).items()}
    changed = tensors["layer.0.value"].reshape(-1)
    changed[-1] = numpy.float32(0.5)
    numpy_files.save_file(tensors, out, metadata=extra)
    done = subprocess.run(
        [KVC, "import", out, "-o", back], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 1
    assert facts(path)["root"] in done.stderr
    assert "were changed" in done.stderr
    assert not back.exists()
    kvc("import", out, "-o", back, "--changed")
    assert tensor(back, "layer.0.value") == tensors["layer.0.value"].tobytes()
