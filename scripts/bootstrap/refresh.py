"""Compare the environment with pyproject.toml, and bring it up to date.

A part (launcher, train, test) is installed when its stamp is valid. The stamp is written last and in one step, and
holds what slurm.sh compares without starting a process: the place, the checkout and the text of pyproject.toml.
"""

from __future__ import annotations

import shlex
import shutil
import stat
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import installer
from errors import BootstrapError
from pins import requirements
from say import say

PROBE = "import sys; sys.exit(sys.version_info < (3, 10))"


@dataclass(frozen=True)
class Venv:
    """Where the environment belongs, which checkout it serves, and what its Python needs to start."""

    path: Path
    root: Path
    container: tuple[str, ...] = ()  # command and image, when no Python is outside of one
    library_path: str = ""  # LD_LIBRARY_PATH of a Python that comes from a module

    @property
    def python(self) -> Path:
        return self.path / "bin" / "python"

    @property
    def building(self) -> Path:
        """Exists while the environment is being changed, and after an interrupted change."""
        return self.path / "harness-building"

    def stamp(self, part: str) -> Path:
        return self.path / f"harness-{part}.stamp"

    def stamps(self) -> dict[str, Path]:
        """The parts installed now, with their stamps."""
        found = sorted(self.path.glob("harness-*.stamp"))
        return {path.name.removeprefix("harness-").removesuffix(".stamp"): path for path in found}

    def text(self, pyproject: str) -> str:
        """The text of a valid stamp."""
        return f"{self.path}\n{self.root}\n{pyproject}"


def refresh(venv: Venv, parts: list[str], beat: Callable[[], None]) -> None:
    """Install `parts` as pyproject.toml asks; update the parts that are installed already."""
    pyproject = (venv.root / "pyproject.toml").read_text(encoding="utf-8")
    parts = sorted({"launcher", *parts, *venv.stamps()})
    if all(_says(venv.stamp(part), venv.text(pyproject)) for part in parts):
        return  # the previous owner of the lock did it
    wanted = {part: requirements(pyproject, part) for part in parts}
    if not _usable(venv):
        _make(venv, wanted, beat)
    elif wanted != _installed(venv, parts):
        _update(venv, wanted, beat)
    _write(venv.path / "harness-python", _wrapper(venv), executable=True)
    if venv.container:
        _write(venv.path / "harness-container", "\n".join(venv.container) + "\n")
    _write(_site_packages(venv) / "harness-checkout.pth", _path_line(venv.root))
    for part in parts:
        _write(venv.stamp(part), venv.text(pyproject))
    venv.building.unlink(missing_ok=True)
    if (venv.root / "configs" / "course.env").exists() and not venv.container:
        _warn_of_what_is_closed(venv)


def _warn_of_what_is_closed(venv: Venv) -> None:
    """Warn the owner of a shared checkout of what only the other users would notice."""
    paths = (venv.path / "harness-python", venv.python.resolve())
    for sentence in dict.fromkeys(_who_is_kept_out(path, venv.path) for path in paths):
        if sentence:
            say(f"warning: configs/course.env is for all who share this checkout, {sentence}")


def _who_is_kept_out(path: Path, venv: Path) -> str:
    closed = closed_to_others(path)
    if closed is None:
        return ""
    if closed.stat().st_mode & stat.S_IXGRP:
        return f"and only the group {_group(closed)} may use {closed}: check that all of them are in it."
    return (
        f"but they may not use {path}, because {closed} is closed to other users: open it with chmod, or remove {venv} "
        "and make it with a Python that all may run, named in HARNESS_PYTHON."
    )


def closed_to_others(path: Path) -> Path | None:
    """The folder on the way that others may not enter, or the program that they may not run.

    A path that only its owner may use comes before one that is open to its group.
    """
    way = [*reversed(path.absolute().parents), path]
    closed = [step for step in way if not step.stat().st_mode & stat.S_IXOTH]
    to_the_group_too = [step for step in closed if not step.stat().st_mode & stat.S_IXGRP]
    return next(iter([*to_the_group_too, *closed]), None)


def _group(path: Path) -> str:
    try:
        return path.group()
    except KeyError:  # a container may not know the group's name
        return str(path.stat().st_gid)


def _usable(venv: Venv) -> bool:
    if not venv.path.exists() or not any(venv.path.iterdir()):
        return False
    ours = venv.building.exists() or bool(venv.stamps())
    whole = not venv.building.exists() and _runs(venv.python) and _at_home(venv)
    if not whole and not ours:
        # Never empty a folder that we did not fill: HARNESS_VENV may name anything.
        raise BootstrapError(f"{venv.path} is not a working Python environment; move it away, or set HARNESS_VENV.")
    return whole


def _at_home(venv: Venv) -> bool:
    # bin/ scripts name their interpreter by its full path: in a copied environment they run another one.
    return all(_lines(stamp)[0] == str(venv.path) for stamp in venv.stamps().values())


def _runs(python: Path) -> bool:
    try:
        return subprocess.run([python, "-I", "-c", PROBE], check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def _make(venv: Venv, wanted: dict[str, list[str]], beat: Callable[[], None]) -> None:
    if any(character in str(venv.path) for character in ":\n"):
        # venv refuses a colon, and the scripts of pip break at a newline.
        raise BootstrapError(f"a Python environment cannot be made in {str(venv.path)!r}; set HARNESS_VENV.")
    if venv.path.is_symlink():
        raise BootstrapError(
            f"{venv.path} is a link to {venv.path.readlink()}, which is incomplete or belongs to another checkout: "
            "set HARNESS_VENV to another place, or remove the link."
        )
    if venv.path.exists():
        say(f"{venv.path} is incomplete or from another place; making it again.")
        shutil.rmtree(venv.path)
    try:
        venv.path.mkdir(parents=True)
        venv.building.touch()
        installer.create(venv.path, beat)
        installer.install(venv.python, wanted, beat)
    except BaseException:
        shutil.rmtree(venv.path, ignore_errors=True)
        raise


def _update(venv: Venv, wanted: dict[str, list[str]], beat: Callable[[], None]) -> None:
    venv.building.touch()
    try:
        installer.install(venv.python, wanted, beat)
    except BootstrapError:
        venv.building.unlink()  # pip ended by itself: the environment works as before
        raise


def _installed(venv: Venv, parts: list[str]) -> dict[str, list[str]]:
    stamps = venv.stamps()
    texts = {part: "\n".join(_lines(stamps[part])[2:]) for part in parts if part in stamps}
    return {part: requirements(text, part) for part, text in texts.items()}


def _lines(stamp: Path) -> list[str]:
    return stamp.read_text(encoding="utf-8").split("\n")


def _says(stamp: Path, text: str) -> bool:
    return stamp.exists() and stamp.read_text(encoding="utf-8") == text


def _site_packages(venv: Venv) -> Path:
    return next(venv.path.glob("lib/python3*/site-packages"))


def _path_line(root: Path) -> str:
    # A plain path would break at a newline, and would be run as code if it began with "import"; its repr cannot.
    return f"import sys; sys.path.append({str(root)!r})\n"


def _wrapper(venv: Venv) -> str:
    lines = ["#!/bin/sh", "# Written by slurm.sh: the harness's Python, the same on login and compute nodes."]
    if venv.library_path:
        lines.append(f"export LD_LIBRARY_PATH={shlex.quote(venv.library_path)}")
    command = [str(venv.python)]
    if venv.container:
        tool, image = venv.container
        command = [tool, "exec", "--bind", str(venv.root), "--bind", str(venv.path), image, *command]
    lines.append(f'exec {shlex.join(command)} "$@"')
    return "\n".join(lines) + "\n"


def _write(path: Path, text: str, executable: bool = False) -> None:
    new = path.with_name(path.name + ".new")
    new.write_text(text, encoding="utf-8")
    if executable:
        new.chmod(0o755)
    new.replace(path)
