"""Which task of a job array measures which files. The array's folder keeps it: so an array can be gone on with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from harness.analysis.summary import Window
from harness.common.bounded_read import read_bounded_json, why_unread
from harness.common.errors import RequestError
from harness.run import write_atomically

PLAN = "plan.json"
_MOST_BYTES = 256 << 20  # the paths of a million files


class ArrayPlan(BaseModel):
    """The files of each task: paths, sizes in bytes, times of change in nanoseconds."""

    model_config = ConfigDict(extra="forbid")
    window: Window
    files: list[list[tuple[str, int, int]]]

    @classmethod
    def of(cls, chunks: Iterable[Iterable[Path]], window: Window) -> ArrayPlan:
        """The files as they are now."""
        return cls(window=window, files=[[(str(file), *_stamp(file)) for file in each] for each in chunks])

    @property
    def chunks(self) -> list[list[Path]]:
        """The paths of each task."""
        return [[Path(path) for path, *_ in each] for each in self.files]


def planned(folder: Path, files: Sequence[Path], window: Window, tasks: int) -> ArrayPlan:
    """The plan that the folder has, or a new one, which it then has.

    Raises:
        RequestError: the plan there is of other files or another window, or they have changed since.
        WorkError: the folder cannot be written.
    """
    if not (folder / PLAN).exists():
        plan = ArrayPlan.of(chunk(files, tasks), window)
        write_atomically(folder / PLAN, plan.model_dump_json())
        return plan
    plan = read_plan(folder)
    now = {(str(file), *_stamp(file)) for file in files}
    if plan.window != window or now != {file for chunk in plan.files for file in chunk}:
        raise RequestError(
            f"--resume {folder}: that array measured other traces or another --window, or they have changed since: "
            "leave --resume out to measure all of them"
        )
    return plan


def read_plan(folder: Path) -> ArrayPlan:
    """The plan that the folder has. Raises RequestError: it is not the folder of a job array."""
    try:
        return ArrayPlan.model_validate(read_bounded_json(folder / PLAN, _MOST_BYTES))
    except (OSError, ValueError) as error:
        why = "is no plan" if isinstance(error, ValidationError) else why_unread(error)
        raise RequestError(
            f"--resume {folder}: is not the folder of a report's job array: its {PLAN}: {why}"
        ) from None


def chunk(files: Sequence[Path], tasks: int) -> list[list[Path]]:
    """At most `tasks` non-empty chunks of about equal bytes: the largest files are dealt first."""
    count = max(1, min(tasks, len(files)))
    chunks: list[list[Path]] = [[] for _ in range(count)]
    weight = [0] * count
    size = {file: max(_stamp(file)[0], 0) for file in files}
    for file in sorted(files, key=lambda f: (-size[f], str(f))):
        lightest = min(range(count), key=lambda i: (weight[i], i))
        chunks[lightest].append(file)
        weight[lightest] += size[file] + 1
    return [c for c in chunks if c]


def _stamp(file: Path) -> tuple[int, int]:
    """Its size in bytes, and when it was changed, in nanoseconds; -1 where it is gone."""
    try:
        found = file.stat()
    except OSError:
        return -1, -1
    return found.st_size, found.st_mtime_ns
