"""Whether what a job names is there, as this machine sees it, in the words of an error. Knows no job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from harness.common.display.printable import printable
from harness.launch.argv import Word, read_here, shown

Wanted = Literal["file", "folder", "image", "prefix", "weights"]


_OF_ONE_MACHINE = ("/tmp", "/var/tmp", "/dev/shm")
_IN_MEMORY = ("tmpfs", "ramfs")
IS_THERE: dict[Wanted, Callable[[Path], bool]] = {
    "file": Path.is_file,
    "folder": Path.is_dir,
    "image": lambda path: path.is_file() or path.is_dir(),
    "prefix": lambda path: all(Path(f"{path}{end}").is_file() for end in (".bin", ".idx")),
    "weights": lambda folder: any(path.suffix in (".safetensors", ".bin") for path in folder.iterdir()),
}


def holds(test: Callable[[Path], bool], path: Path) -> bool:
    """Whether `path` passes the test; False if it cannot be read, as the later reading says why."""
    try:
        return test(path)
    except OSError:
        return False


def why_missing(word: Word, environ: Mapping[str, str], wanted: Wanted) -> str:
    """Why `word` is not there, as the rest of a sentence; empty when it is."""
    here = read_here(word, environ)
    if here.unset:
        return f"{shown(word)} cannot be found, because ${here.unset[0]} is not set here"
    if not here.text.startswith("/"):
        return f"{here.text!r} must be an absolute path"
    expanded = "" if here.text == shown(word) else f" ({here.text})"
    why = _what_is_wrong(Path(here.text), wanted)
    return why and printable(f"{shown(word)}{expanded} {why}")


def only_here(folder: Path) -> str:
    """Where a folder lies that usually no other machine sees, as the rest of a sentence; empty where others may."""
    for place in _OF_ONE_MACHINE:
        if folder.is_relative_to(place):
            return f"lies below {place}"
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):  # not on every system
        return ""
    kinds = {len(place): kind for place, kind in mounts if folder.is_relative_to(place)}
    return "lies in this machine's memory" if kinds.get(max(kinds, default=0)) in _IN_MEMORY else ""


def _what_is_wrong(path: Path, wanted: Wanted) -> str:
    try:
        if IS_THERE[wanted](path):
            return ""
        if wanted == "weights":
            return "holds no weights (*.safetensors)"
        exists = wanted != "prefix" and path.exists()
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return f"exists but is not a {wanted}" if exists else "does not exist"
