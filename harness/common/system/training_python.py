"""What the Python of a user's own training has: its version and its packages. It is asked once, and imports nothing.
Knows no experiment and no site."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from harness.common.display.printable import printable
from harness.common.errors import near_path
from harness.common.system.programs import TOO_LATE, ask

OLDEST = (3, 8)
PACKAGES = (
    "torch", "accelerate", "deepspeed", "transformers", "lightning", "pytorch-lightning", "megatron-core", "numpy",
)  # fmt: skip
MODULES = ("torch", "accelerate", "deepspeed")
_LONGEST_REASON = 100
_LIMIT_S = 60.0  # a first start from a network file system
# Also Python 2 and 3.0 to 3.7 must be able to say their version. The current folder is not the training's path.
_QUESTION = f"""
import sys
sys.path[:] = [place for place in sys.path if place]
import json
told = {{"version": list(sys.version_info[:3]), "packages": {{}}, "modules": []}}
if sys.version_info >= {OLDEST}:
    from importlib import metadata, util
    told["modules"] = [name for name in {MODULES!r} if util.find_spec(name) is not None]
    for name in {PACKAGES!r}:
        try:
            told["packages"][name] = metadata.version(name)
        except Exception:
            pass
print(json.dumps(told))
"""


def active_python(environ: Mapping[str, str]) -> str | None:
    """The Python of the virtual or conda environment that is active in the user's shell."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if environ.get(name):
            return f"{environ[name]}/bin/python"
    return None


class TrainingPython(NamedTuple):
    """version: as `3.11.2`. packages: version by name. modules: those of `MODULES` that it can import."""

    version: str
    packages: dict[str, str]
    modules: frozenset[str]

    @property
    def versions(self) -> dict[str, str]:
        """Its own version and those of its packages, as a run's record keeps them."""
        return {"python": self.version, **self.packages}


@cache
def ask_python(path: str) -> TrainingPython | str:
    """The Python at this path, or why it cannot train, as the rest of a sentence."""
    if wrong := _no_program(Path(path)):
        return wrong
    answer = ask([path, "-c", _QUESTION], _LIMIT_S, os.environ)
    if answer.code == TOO_LATE:
        return "did not answer within a minute"
    try:
        told = json.loads(answer.out.strip().splitlines()[-1])
        numbers = tuple(map(int, told["version"]))
        packages = {str(name): str(version) for name, version in told["packages"].items()}
        modules = frozenset(map(str, told["modules"]))
    except (ValueError, IndexError, KeyError, TypeError, AttributeError):
        lines = [line.strip() for line in (answer.err or answer.out).splitlines() if line.strip()]
        # What it said instead, if that is short and does not only repeat the question.
        is_short = lines[:1] and len(lines[0]) <= _LONGEST_REASON and "import sys" not in lines[0]
        return "is not a Python" + (f" ({printable(lines[0])})" if is_short else "")
    version = ".".join(map(str, numbers))
    if numbers < OLDEST:
        return f"is Python {version}, and a training is observed from Python {'.'.join(map(str, OLDEST))} on"
    return TrainingPython(version, packages, modules)


def _no_program(path: Path) -> str:
    try:
        if path.is_dir():
            inside = path / "bin" / "python"
            return "is a folder" + (f": give {inside}" if inside.exists() else "")
        if not path.exists():
            return "does not exist" + near_path(path, _is_python)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return "" if os.access(path, os.X_OK) else "is not executable"


def _is_python(path: Path) -> bool:
    return "python" in path.name and os.access(path, os.X_OK) and path.is_file()
