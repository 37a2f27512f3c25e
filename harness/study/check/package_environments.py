"""Environments of Python below a folder of ours: one with the packages of two others, and one from a requirements file.
Each is made under a temporary name and kept for the next time; what it is made from is only read."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from harness.common.display.printable import printable
from harness.common.errors import RequestError, WorkError, near_path
from harness.common.system.programs import ask
from harness.study.check.package_groups import PYTHON, UNOWNED, PackageGroup
from harness.study.check.packages import Installed, installed

_INSTALL_S = 3600.0  # of PyTorch and CUDA, on a network file system
_LONGEST = 400  # characters of uv's reason
_DRAWN = dict.fromkeys(map(ord, "×│╭├╰─▶"), " ")  # around the reasons of older ones
_INCLUDED = re.compile(r"^\s*(?:-r|-c|--requirements?|--constraints?)[ =]*(\S+)", re.MULTILINE)


def mixed(a: Installed, b: Installed, chosen: Iterable[PackageGroup], place: Path) -> str:
    """The Python of an environment with the packages of A, and those of the chosen groups as B has them.

    Its files are hard links, or copies where the file system refuses. The scripts of packages, as bin/torchrun, are
    not in it. Raises WorkError: it cannot be written."""
    names = {name for group in chosen for name in group.names}
    host = b if PYTHON in names else a
    files = _files(a, b, names)
    states = sorted((path, str(file), file.stat().st_size, file.stat().st_mtime_ns) for path, file in files.items())
    folder = place / f"mixed-{_digest([host.base, host.version, host.library, *map(repr, states)])}"
    if not folder.is_dir():
        with _made_whole(folder) as temporary:
            _write_base(temporary, host)
            _fill(temporary / host.library, files)
    return str(folder / "bin" / "python")


def _files(a: Installed, b: Installed, names: set[str]) -> dict[str, Path]:
    """By path in the new folder of packages, where the file is now. If two have the same path, the first counts."""
    kept = [each for name, each in a.packages.items() if name not in names]
    new = [each for name, each in b.packages.items() if name in names]
    listed = [(path, each.site) for each in (*kept, *new) for path in each.files or ()]
    unowned = (b if UNOWNED in names else a).unowned.items()
    found = {path: Path(site, path) for path, site in reversed([*listed, *unowned])}
    return {path: file for path, file in found.items() if file.exists()}


def _write_base(folder: Path, host: Installed) -> None:
    base = Path(host.base)
    text = f"home = {base.parent}\ninclude-system-site-packages = false\nversion = {host.version}\n"
    (folder / "pyvenv.cfg").write_text(text, encoding="utf-8")
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(base)
    (folder / "bin" / "python3").symlink_to("python")


def _fill(library: Path, files: Mapping[str, Path]) -> None:
    """Folders that are links come last: no file is written through one."""
    folders = {path for path, file in files.items() if file.is_dir()}
    for parent in {(library / path).parent for path in files.keys() - folders}:
        parent.mkdir(parents=True, exist_ok=True)
    for path in files.keys() - folders:
        put = _write_paths if path.endswith(".pth") and "/" not in path else _link
        put(files[path], library / path)
    for path in folders:
        if files[path].is_symlink() and not (library / path).exists():
            (library / path).symlink_to(files[path].resolve())


def _link(file: Path, target: Path) -> None:
    try:
        target.hardlink_to(file.resolve() if file.is_symlink() else file)
    except FileExistsError:  # a file in one package, a folder in another
        raise
    except OSError:  # another file system, or another user's file
        shutil.copy2(file, target)


def _write_paths(file: Path, target: Path) -> None:
    """A .pth file whose paths lead to the same folders. Those inside of its own folder stay as they are, since the new
    one has them, too."""
    before = os.fsencode(file.parent) + b"/"
    target.write_bytes(re.sub(rb"^(?=\.\./)", lambda _: before, file.read_bytes(), flags=re.MULTILINE))


# ---- From a requirements file


def made(requirements: Path | Sequence[str], place: Path, python: str) -> str:
    """The Python of an environment in which uv has installed the requirements, a file or its lines, made with the given
    Python. What such a file names without a version stays as it was at the first time.

    Raises RequestError: the file cannot be read, uv is not here, or it cannot install them."""
    name = requirements.name if isinstance(requirements, Path) else "the packages of the run"
    text = _text(requirements, set()) if isinstance(requirements, Path) else "\n".join(requirements)
    base = installed(python)
    folder = place / f"made-{_digest([text, base.base, base.version])}"
    if not folder.is_dir():
        uv = _uv()
        with _made_whole(folder) as temporary:
            file = requirements if isinstance(requirements, Path) else temporary / "requirements.txt"
            _run_uv([uv, "venv", "--quiet", "--relocatable", "--python", base.base, str(temporary)], name)
            if not isinstance(requirements, Path):
                file.write_text(text, encoding="utf-8")
            own = str(temporary / "bin" / "python")
            _run_uv([uv, "pip", "install", "--quiet", "--python", own, "-r", str(file)], name)
    return str(folder / "bin" / "python")


def _text(file: Path, read: set[Path]) -> str:
    """The file, and those that it includes."""
    read.add(file)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise RequestError(f"{printable(str(file))} cannot be read ({reason}){near_path(file)}") from None
    inner = [file.parent / name for name in _INCLUDED.findall(text)]
    return text + "".join(_text(each, read) for each in inner if each.is_file() and each not in read)


def _uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    found = shutil.which("uv") or (str(beside) if os.access(beside, os.X_OK) else None)
    if found is None:
        raise RequestError(
            f"a requirements file needs uv, which is neither on PATH nor beside {sys.executable}: "
            "`python3 -m pip install --user uv` puts it into ~/.local/bin"
        )
    return found


def _run_uv(argv: Sequence[str], name: str) -> None:
    answer = ask(argv, _INSTALL_S, os.environ)
    if answer.code:
        words = " ".join((answer.err or answer.out).translate(_DRAWN).split()).removeprefix("error: ")
        reason = words if len(words) <= _LONGEST else f"{words[: _LONGEST // 2]} … {words[-_LONGEST // 2 :]}"
        told = printable(reason or answer.reason)
        raise RequestError(f"{printable(name)}: uv cannot make an environment of it ({told})")


# ---- Whole, or not there


def _digest(words: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(words).encode(errors="surrogateescape")).hexdigest()[:16]


@contextmanager
def _made_whole(folder: Path) -> Iterator[Path]:
    """An empty folder beside, which then gets this name; if another process was faster, the folder of that one stays.
    Raises WorkError: it cannot be written."""
    temporary = folder.with_name(f".{folder.name}.{os.uname().nodename}.{os.getpid()}")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        temporary.rename(folder)
    except OSError as error:
        if not folder.is_dir():
            raise WorkError(f"{folder} cannot be made ({error.strerror or error})") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
