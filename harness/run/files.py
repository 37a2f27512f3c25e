"""Where runs are kept, and their files. A file is written whole or not at all; a failed write gives one sentence."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from harness.common.errors import WorkError
from harness.common.paths import IN_CHECKOUT, ROOT, expanded
from harness.common.run_folder import job_folder
from harness.common.run_folder.run_files import RECORD, Entry
from harness.common.run_folder.run_store import RunFile
from harness.common.system.bounded_read import BoundedReadError, why_unread
from harness.common.system.files import write_whole
from harness.common.system.secrets import masked_words
from harness.common.system.users import whose

if TYPE_CHECKING:
    from pydantic import BaseModel

OWN_FOLDER = "own"
SECRET_MODE = 0o600
Model = TypeVar("Model", bound="BaseModel")


def runs_root(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder that holds the exercises' logs/ and profiler/ folders: HARNESS_RUNS, else the checkout's exercises/.
    Where the harness is installed without a checkout, the current folder's exercises/."""
    given = environ.get("HARNESS_RUNS")
    return expanded(given).absolute() if given else (ROOT if IN_CHECKOUT else Path.cwd()) / "exercises"


def own_runs_root(environ: Mapping[str, str] = os.environ) -> Path:
    """The same for the user's own trainings: HARNESS_RUNS, else `runs` in the folder where the command is typed."""
    return runs_root(environ) if environ.get("HARNESS_RUNS") else Path.cwd() / "runs"


def run_roots(root: Path | None = None) -> list[Path]:
    """The folders in which runs are looked for: both of the above and those of `observe`, or only `root`."""
    observed = job_folder.roots(os.environ, str(Path.cwd()))
    return [root] if root is not None else list(dict.fromkeys([runs_root(), own_runs_root(), *observed]))


def run_folders(root: Path) -> list[Path]:
    """The folders below a root that hold the runs of one exercise, or of the user's own trainings."""
    return [*root.glob("exercise_*"), *root.glob(OWN_FOLDER)]


def folder_bytes(folder: Path) -> int:
    """The bytes of all files below a folder, as far as it can be read; links are not followed."""
    total, waiting = 0, [os.fspath(folder)]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    total += entry.stat(follow_symlinks=False).st_size
    return total


def write_atomically(path: Path, text: str, still: Callable[[], bool] = lambda: True, mode: int | None = None) -> None:
    """Write a file of a run as a whole or not at all.

    still: whether it is still wanted, asked just before the renaming. A shared file system has then made a file in that
    folder, and shows what other machines wrote there. mode: who may read it; None: as the umask has it.

    Raises DiskError: the disk is full or not writable; nothing is left behind.
    """

    def write(temporary: Path) -> None:
        temporary.write_text(text, encoding="utf-8")
        if not still():
            raise _NotWantedError

    try:
        write_whole(path, write, mode)
    except _NotWantedError:
        return
    except OSError as error:
        raise disk_error(path, error) from None


class _NotWantedError(Exception):
    """What should be written is no longer wanted."""


class DiskError(WorkError):
    """A write that failed. The sentence begins with the path."""


def disk_error(path: Path, error: OSError) -> DiskError:
    """A sentence for a write that failed. It names HARNESS_RUNS only for a path in the runs' folder, and not for one in
    a run that there is: that stays where it is."""
    in_run = any(map(os.path.lexists, (RECORD.path(folder) for folder in (path.parent, path.parent.parent))))
    ours = path.absolute().is_relative_to(runs_root()) and not in_run
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        otherwise = ", or set HARNESS_RUNS" if ours else ""
        return DiskError(f"{path}: no space left on this disk (or in your quota): free some{otherwise}")
    otherwise = ": choose another place with HARNESS_RUNS" if ours else ""
    owner = whose(path) if error.errno in (errno.EACCES, errno.EPERM) else ""
    return DiskError(f"{path}: cannot be written ({error.strerror}){owner}{otherwise}")


def make_shared(folder: Path) -> None:
    """Make a folder between the runs' folder and its runs, and those above it, as open as the runs' folder is.

    Where several people share that (it is sticky, or its group may write), the first of them must not close what the
    others need, whatever the umask.

    Raises OSError: it cannot be made.
    """
    root = runs_root()
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        if each != root and each.is_relative_to(root):
            mode = root.stat().st_mode
            if mode & (stat.S_ISVTX | stat.S_IWGRP | stat.S_IWOTH):
                each.chmod(stat.S_IMODE(mode))


@contextmanager
def naming_flag(flag: str) -> Iterator[None]:
    """A write that fails inside is reported with the flag that gave the path."""
    try:
        yield
    except DiskError as error:
        raise DiskError(f"{flag} {error}") from None


def typed(entry: Entry, model_class: type[Model]) -> RunFile[Model]:
    """The file with the model of its content."""

    def decode(text: str) -> Model:
        try:
            return model_class.model_validate_json(text)
        except ValueError as error:
            raise BoundedReadError(why_invalid(error)) from None

    return entry.holding(decode, lambda content: content.model_dump_json(indent=1) + "\n")


def why_invalid(error: OSError | ValueError) -> str:
    """Why a file was not read as its model, in one line; of a model's errors the first, with its field."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return why_unread(error)
    first = error.errors(include_input=False, include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}{': ' * bool(where)}{first['msg']}"


def without_secrets(record: dict[str, Any]) -> dict[str, Any]:
    """The content of a run.json as others may see it: `***` in place of what looks like a secret in a command."""
    found = dict(record)
    for key in ("command", "arguments"):
        words = found.get(key)
        if isinstance(words, list) and all(isinstance(word, str) for word in words):
            found[key] = masked_words(words)
    for key in ("experiment", "job", "program"):
        if isinstance(found.get(key), dict):
            found[key] = without_secrets(found[key])
    return found


def when(time_ns: int | None) -> str:
    """A time for people: local, to the second."""
    return "" if time_ns is None else datetime.fromtimestamp(time_ns / 1e9).strftime("%Y-%m-%d %H:%M:%S")
