"""Where our own files lie, in a checkout or installed from the wheel, and paths as people type them.

Knows nothing of what they name.
"""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from pathlib import Path

# The folder with harness/, exercises/, configs/ and templates/: the checkout, or what the wheel installs. With it on
# PYTHONPATH, another process imports these same packages.
ROOT = Path(__file__).resolve().parents[2]
IN_CHECKOUT = ROOT.name != "files" or not (ROOT.parent / "__init__.py").is_file()  # else in the wheel's package
CONFIGS = ROOT / "configs"
TEMPLATES = ROOT / "templates"
DISTRIBUTION = "training-traces"  # as pyproject.toml names it and its command
PROGRAM = "slurm.sh" if IN_CHECKOUT else DISTRIBUTION  # what it is called
# In the path of an exercise's file where the wheel is installed: it is the program, and no package that others made.
INSTALLED_EXERCISES = "/harness/files/exercises/"
ENVIRONMENT = ".venv" if IN_CHECKOUT else "the environment of training-traces"  # that has our packages


def _as_typed_here() -> str:
    """The command of the checkout: by its name where it lies, also as a link; elsewhere by its whole path."""
    with suppress(OSError):  # there is no such file here, or the folder is gone
        if Path("slurm.sh").samefile(ROOT / "slurm.sh"):
            return "bash slurm.sh"
    return f"bash {shlex.quote(str(ROOT / 'slurm.sh'))}"


COMMAND = _as_typed_here() if IN_CHECKOUT else PROGRAM  # what can be typed, and pasted, in the current folder


def typed_words(command: str) -> list[str]:
    """The words of one of our commands, without those that start it."""
    return shlex.split(command)[len(shlex.split(COMMAND)) :]


def installing(extra: str) -> str:
    """The command that installs the packages of one of pyproject.toml's extras. The distribution is on no index."""
    return f"{COMMAND} --install {extra}" if IN_CHECKOUT else f"pip install '.[{extra}]'  # in the checkout"


def shown_file(name: str) -> str:
    """One of our files as a user opens it: in the checkout's folder by its name there, else by its whole path."""
    return name if Path(name).exists() else str(ROOT / name)


README_OF_IMAGES = shown_file("containers/README.md")


def expanded(text: str) -> Path:
    """The path with its `~` expanded as in a shell: `~name` of an unknown user stays as typed."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - Path.expanduser raises for such a user
