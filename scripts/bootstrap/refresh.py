"""Compare the environment with pyproject.toml, and bring it up to date.

A part (launcher, train, test) is installed when its stamp is valid. The stamp is written last and in one step, and
holds what slurm.sh compares without starting a process: the place, the checkout and the text of pyproject.toml.
"""

from __future__ import annotations

import shlex
import shutil
import stat
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import install
from pins import requirements
from say import BootstrapError, agreed, say

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

    def stamps(self) -> dict[str, str]:
        """The parts installed now, with the texts of their stamps."""
        stamps = sorted(self.path.glob("harness-*.stamp"))
        return {path.name[len("harness-") : -len(".stamp")]: path.read_text(encoding="utf-8") for path in stamps}


def refresh(venv: Venv, parts: Sequence[str]) -> None:
    """Install these parts as pyproject.toml asks; update those that are installed already."""
    pyproject = (venv.root / "pyproject.toml").read_text(encoding="utf-8")
    stamps = venv.stamps()
    text = f"{venv.path}\n{venv.root}\n{pyproject}"
    parts = sorted({"launcher", *parts, *stamps})
    if all(stamps.get(part) == text for part in parts):
        return  # the previous owner of the lock did it
    wanted = {part: requirements(pyproject, part) for part in parts}
    installed = {part: requirements(stamp, part) for part, stamp in stamps.items()}
    if not _usable(venv, stamps):
        _say_why(venv, stamps, wanted)
        _make(venv, wanted)
    elif wanted != installed:
        _update(venv, wanted)
    _write(venv.path / "harness-python", _wrapper(venv), executable=True)
    if venv.container:
        _write(venv.path / "harness-container", "\n".join(venv.container) + "\n")
    # A plain path would break at a newline, and would be run as code if it began with "import"; its repr cannot.
    site_packages = next(venv.path.glob("lib/python3*/site-packages"))
    _write(site_packages / "harness-checkout.pth", f"import sys; sys.path.append({str(venv.root)!r})\n")
    for part in parts:
        _write(venv.path / f"harness-{part}.stamp", text)
    venv.building.unlink(missing_ok=True)
    if (venv.root / "configs" / "course.env").exists() and not venv.container:
        warn_of_what_is_closed(venv)


def warn_of_what_is_closed(venv: Venv) -> None:
    """Warn the owner of a shared checkout of what only the other users would notice."""
    paths = (venv.path / "harness-python", venv.python.resolve())
    for sentence in dict.fromkeys(_who_is_kept_out(path, venv.path) for path in paths):
        if sentence:
            say(f"warning: configs/course.env is for all who share this checkout, {sentence}")


def _who_is_kept_out(path: Path, venv: Path) -> str:
    """Names what others may not enter on the way, or run; what its owner alone may use comes first."""
    modes = {step: step.stat().st_mode for step in (*reversed(path.absolute().parents), path)}
    closed = [step for step, mode in modes.items() if not mode & stat.S_IXOTH]
    if not closed:
        return ""
    for step in closed:
        if not modes[step] & stat.S_IXGRP:
            return (
                f"but they may not use {path}, because {step} is closed to other users: open it with chmod, or remove "
                f"{venv} and make it with a Python that all may run, named in HARNESS_PYTHON."
            )
    try:
        group = closed[0].group()
    except KeyError:  # a container may not know its name
        group = str(closed[0].stat().st_gid)
    return f"and only the group {group} may use {closed[0]}: check that all of them are in it."


def _usable(venv: Venv, stamps: dict[str, str]) -> bool:
    if not venv.path.exists() or not any(venv.path.iterdir()):
        return False
    building = venv.building.exists()
    # bin/ scripts name their interpreter by its full path: in a copied environment they run another one.
    at_home = all(stamp.startswith(f"{venv.path}\n") for stamp in stamps.values())
    whole = not building and at_home and _runs(venv.python)
    if not whole and not building and not stamps:
        # Never empty a folder that we did not fill: HARNESS_VENV may name anything.
        raise BootstrapError(f"{venv.path} is not a working Python environment; move it away, or set HARNESS_VENV.")
    return whole


def _runs(python: Path) -> bool:
    try:
        return subprocess.run([python, "-I", "-c", PROBE], check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def _say_why(venv: Venv, stamps: dict[str, str], wanted: dict[str, list[str]]) -> None:
    """Before what there is is made again; a person is asked whether a copied or moved checkout gets its own.
    Raises BootstrapError: no."""
    if not venv.path.exists() or venv.path.is_symlink():
        return
    old = next((home for stamp in stamps.values() if (home := stamp.partition("\n")[0]) != str(venv.path)), "")
    if not old:
        say(f"{venv.path} is incomplete; making it again.")
        return
    size = "about a gigabyte" if "train" in wanted else "about 300 MB"
    other = shlex.quote(old) if Path(old, "bin", "python").exists() else "FOLDER"
    what = f"{venv.path} was made as {old} and works only there: making it again installs {size}"
    say(f"{what}; HARNESS_VENV={other} takes the environment that is there.")
    if not agreed("Make it again?"):
        raise BootstrapError("nothing was installed.")


def _make(venv: Venv, wanted: dict[str, list[str]]) -> None:
    if any(character in str(venv.path) for character in ":\n"):
        # venv refuses a colon, and the scripts of pip break at a newline.
        raise BootstrapError(f"a Python environment cannot be made in {str(venv.path)!r}; set HARNESS_VENV.")
    if venv.path.is_symlink():
        raise BootstrapError(
            f"{venv.path} is a link to {venv.path.readlink()}, which is incomplete or belongs to another checkout: "
            "set HARNESS_VENV to another place, or remove the link."
        )
    # Its scripts name their interpreter by its full path: so the new one is made in its place, and the old one is kept
    # beside it until then.
    old = venv.path.with_name(f"{venv.path.name}.old")
    if venv.path.exists():
        if old.exists() and not venv.stamps():  # a killed start has left it, and has begun what is here
            shutil.rmtree(venv.path)
        else:
            shutil.rmtree(old, ignore_errors=True)  # of a start that was killed when what is here stood already
            venv.path.rename(old)
    try:
        venv.path.mkdir(parents=True)
        venv.building.touch()
        install.create(venv.path)
        install.install(venv.python, wanted)
    except BaseException:
        shutil.rmtree(venv.path, ignore_errors=True)
        if old.exists():
            old.rename(venv.path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _update(venv: Venv, wanted: dict[str, list[str]]) -> None:
    venv.building.touch()
    try:
        install.install(venv.python, wanted)
    except BootstrapError:
        venv.building.unlink()  # pip ended by itself: the environment works as before
        raise


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
