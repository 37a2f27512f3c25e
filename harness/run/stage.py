"""A run before it has a name: staged beside the others, then published whole; and the numbers of local runs."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from harness.common.errors import WorkError
from harness.common.whole_number import whole_number
from harness.run.files import disk_error, make_shared, run_folders, run_roots
from harness.run.run import LOCAL, Run


class Stage:
    """A run's directory before it has a name. A context manager, which removes what was not published."""

    def __init__(self, output_dir: Path) -> None:
        self.output_dir = output_dir
        self.path = output_dir / "profiler" / f".staging-{os.getpid()}-{time.time_ns()}"
        self._made: list[Path] = []

    def __enter__(self) -> Stage:
        folders = (self.path, self.output_dir / "logs")
        try:
            for folder in folders:
                self._made += [p for p in (folder, *folder.parents) if not p.exists() and p not in self._made]
            for folder in folders:
                make_shared(folder.parent if folder == self.path else folder)
            self.path.mkdir(exist_ok=True)
        except OSError as error:
            self.__exit__()
            raise disk_error(self.output_dir, error) from None
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        for folder in sorted(self._made, key=lambda p: len(p.parts), reverse=True):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()

    def publish(self, name: str, job_id: str) -> Run:
        """Give the run its name; it must be new.

        Raises:
            WorkError: there is a run of that name.
        """
        target = self.output_dir / "profiler" / name
        if target.exists():
            raise WorkError(f"{target} exists already: nothing was overwritten")
        logs = self.output_dir / "logs" / job_id
        try:
            logs.mkdir(exist_ok=True)
            self.path.rename(target)
        except OSError:
            shutil.rmtree(logs, ignore_errors=True)
            raise
        return Run(target)

    def withdraw(self, run: Run) -> None:
        """Remove a published run that could not be started."""
        for folder in (run.log_dir, run.path):
            shutil.rmtree(folder, ignore_errors=True)


def claim_local_id(root: Path) -> tuple[str, Path]:
    """A number that no other local run has, and a folder of its own for the backend.

    Also the logs say which numbers are taken: whoever copies the runs' folder may leave the hidden folder behind.
    """
    base = root / LOCAL
    try:
        make_shared(base)
        taken = (p.name.removeprefix("local-") for p in (*base.iterdir(), *_logs(root)))
        number = max((n for n in map(whole_number, taken) if n is not None), default=0)
        while True:
            number += 1
            try:
                (base / str(number)).mkdir()
            except FileExistsError:
                continue
            return f"local-{number}", base / str(number)
    except OSError as error:
        _remove_if_empty(base)
        raise disk_error(base, error) from None


def _logs(root: Path) -> Iterator[Path]:
    """The logs of local runs, also in the other place where this user's commands look for runs."""
    for place in dict.fromkeys([root, *run_roots()]):
        for folder in run_folders(place):
            yield from folder.glob("logs/local-*")


def release_local_id(folder: Path) -> None:
    """Give back what `claim_local_id` claimed, for a run that was not started."""
    shutil.rmtree(folder, ignore_errors=True)
    _remove_if_empty(folder.parent)


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):  # another run's folder is in it, or it is not there
        folder.rmdir()
