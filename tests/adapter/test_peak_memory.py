# test_peak_memory.py: saving holds one tensor's copy at most, and loading holds none.
# SPDX-License-Identifier: Apache-2.0
# mypy: allow-untyped-calls, allow-subclassing-any
from __future__ import annotations

import sys
from pathlib import Path

import pytest
from adapter_help import run_python

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the peak of a process is read from Linux's /proc"
)

MIB = 1024 * 1024
TENSOR_BYTES = 8 * MIB
TENSORS = 32  # 256 MiB in all

# Prints by how much an action raised the peak of resident memory, without the pages of mapped
# files, which the system may take back at any time.
CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
import torch, torch_kvcache
from adapter_help import IDENTITY, cache_of

def field(name):
    for line in open("/proc/self/status"):
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024

def measured(action):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before, files_before = field("VmRSS"), field("RssFile")
    result = action()
    print(field("VmHWM") - before - (field("RssFile") - files_before))
    return result

def tensor(index):
    full = torch.full((1, 8, 4096, 64), float(index))
    return full.transpose(1, 2).contiguous().transpose(1, 2) if sys.argv[3] == "views" else full

path = sys.argv[2]
small = cache_of([(torch.ones(1, 8, 16, 64), torch.ones(1, 8, 16, 64))])
torch_kvcache.write_dynamic_cache(path, small, **IDENTITY)
torch_kvcache.read_dynamic_cache(path)
if sys.argv[3] == "load":
    cache, _ = measured(lambda: torch_kvcache.read_dynamic_cache(sys.argv[4]))
    assert float(cache.layers[15].values[0, 7, 4095, 63]) == 31.0
else:
    cache = cache_of([(tensor(2 * i), tensor(2 * i + 1)) for i in range(16)])
    measured(lambda: torch_kvcache.write_dynamic_cache(path, cache, **IDENTITY))
"""


def growth(tmp_path: Path, *words: str | Path) -> int:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    done = run_python(script, Path(__file__).parent, tmp_path / f"{words[0]}.kvc", *words)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_peak_memory(tmp_path: Path) -> None:
    plain = growth(tmp_path, "plain")
    assert (tmp_path / "plain.kvc").stat().st_size > TENSORS * TENSOR_BYTES
    assert plain < TENSOR_BYTES, "a contiguous tensor was copied"
    views = growth(tmp_path, "views")
    assert (tmp_path / "views.kvc").read_bytes() == (tmp_path / "plain.kvc").read_bytes()
    assert TENSOR_BYTES <= views < TENSOR_BYTES + 16 * MIB, "more than one tensor was copied"
    load = growth(tmp_path, "load", tmp_path / "plain.kvc")
    assert load < 16 * MIB, "the payload was copied"
