"""Whether Inductor, the compiler behind torch.compile, finds on this machine what it needs for CPUs. Standard library
only; knows no PyTorch.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path


def why_not_compiled(environ: Mapping[str, str]) -> str | None:
    """Why `--compile` cannot work here, as a sentence; None: nothing is missing. It looks where Inductor looks."""
    name = environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    needs = "--compile: on CPUs torch.compile writes C++ and needs"
    if shutil.which(name, path=environ.get("PATH")) is None:
        return f"{needs} a compiler, and there is no {name} on PATH: install g++, name yours in CXX, or drop --compile"
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").is_file():
        return f"{needs} Python's headers, and {headers} has no Python.h: install them (python3-dev), or drop --compile"
    return None
