#!/usr/bin/env python3
"""lend.py: lets a virtual environment see the packages of the interpreter that runs this.

Usage: PYTHON scripts/lend.py VENV

`venv --system-site-packages` lends only those of the base interpreter, not those of the virtual
environment that PYTHON may live in. What VENV installs itself comes first.
SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import pathlib
import sys


def main(words: list[str]) -> int:
    """Write a .pth file into the environment; return 0, or 1 when the two do not fit."""
    if len(words) != 1:
        print("usage: lend.py VENV", file=sys.stderr)
        return 2
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site_packages = pathlib.Path(words[0]) / "lib" / version / "site-packages"
    if not site_packages.is_dir():
        print(
            f"lend.py: {site_packages} does not exist: make the environment with {sys.executable}",
            file=sys.stderr,
        )
        return 1
    lent = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    lines = [f"import site; site.addsitedir({path!r})\n" for path in lent]
    (site_packages / "lent.pth").write_text("".join(lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
