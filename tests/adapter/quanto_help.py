# quanto_help.py: lets the tests use quanto where there is no C++ compiler.
# SPDX-License-Identifier: Apache-2.0
import sys
import types

_EXTENSIONS = "optimum.quanto.library.extensions"


def use_no_compiler() -> None:
    """Leaves out what quanto compiles when it first unpacks; its own Python code stays.

    Both give the same bits. It must be called before quanto is imported.
    """
    if _EXTENSIONS not in sys.modules:
        extensions = types.ModuleType(_EXTENSIONS)
        extensions.is_extension_available = lambda name: False  # type: ignore[attr-defined]
        sys.modules[_EXTENSIONS] = extensions
