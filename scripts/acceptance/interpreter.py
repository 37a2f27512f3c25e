"""A Python that imports the packages of this one without PYTHONPATH, which a job's script sets itself.

It is an empty virtual environment whose only content is a list of folders. Nothing is installed, nothing copied.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import venv
from pathlib import Path

from place import ROOT


def make_python(folder: Path) -> Path:
    """Make the environment in `folder` anew and return its interpreter."""
    venv.EnvBuilder(with_pip=False, symlinks=True, clear=True).create(folder)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    (packages / "acceptance.pth").write_text("\n".join(_lines()) + "\n", encoding="utf-8")
    return folder / "bin" / "python"


def _lines() -> list[str]:
    """The lines of a .pth file: the folders of PYTHONPATH come before those of installed packages, as here."""
    named = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    first = [str(ROOT), *(str(Path(entry).absolute()) for entry in named)]
    installed = [entry for entry in _found() if entry not in first]
    # `addsitedir` also reads the .pth files of that folder, as a start of Python does.
    return [*first, *(f"import site; site.addsitedir({entry!r})" for entry in installed)]


def _found() -> list[str]:
    """Folders of installed packages on this process's path: not the standard library, not this script's folder."""
    library = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    own = str(Path(__file__).parent)
    folders = [entry for entry in sys.path if entry and Path(entry).is_dir() and entry != own]
    return [e for e in folders if e not in library and Path(e).name != "lib-dynload"]
