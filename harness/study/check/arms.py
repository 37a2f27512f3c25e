"""The two arms of a check: arguments → runs, and runs → numbers. Neither launches nor judges."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.analysis.summary import Summary
from harness.common.errors import RequestError, WorkError
from harness.common.paths import expanded
from harness.explain.commands import same_command
from harness.measure.request import resolve_path
from harness.measure.stored import load_summary
from harness.run import Run, all_runs, part_of

_SHOWN_POINTS = 4


class MeasuredRun(NamedTuple):
    """A run with its summary. block: of neighbouring runs, in a check that made its runs itself."""

    name: str
    summary: Summary
    block: int | None = None


class CheckArm(NamedTuple):
    """One arm: its arguments, its runs, and a note for each run that is left out."""

    arguments: str
    runs: list[MeasuredRun]
    notes: list[str]


def arms_of_runs(
    arguments: tuple[str, str], load: Callable[[str], tuple[str, Summary]] = load_summary
) -> tuple[CheckArm, CheckArm]:
    """Both arms from arguments that name runs.

    Raises:
        RequestError: an argument names no run, or a run is given twice.
    """
    paths = [list(_paths(text)) for text in arguments]
    every = [path for arm in paths for path in arm]
    if twice := next((path for path in every if every.count(path) > 1), None):
        raise RequestError(f"check: {twice.name} is given twice: a run cannot be compared with itself")
    return _arm(arguments[0], paths[0], load), _arm(arguments[1], paths[1], load)


def _arm(arguments: str, paths: Sequence[Path], load: Callable[[str], tuple[str, Summary]]) -> CheckArm:
    states = [(path, _state(path)) for path in paths]
    whole = [path for path, state in states if state in ("completed", "")]
    notes = [
        f"{_short(path)} is left out: it is not complete ({state})"
        for path, state in states
        if path not in whole
    ]
    return CheckArm(arguments, [measured(path, load) for path in whole], notes)


def measured(
    path: Path, load: Callable[[str], tuple[str, Summary]] = load_summary, block: int | None = None
) -> MeasuredRun:
    """A run, or stored numbers, with its summary."""
    return MeasuredRun(_short(path), load(str(path))[1], block)


def _paths(arguments: str) -> Iterator[Path]:
    """The runs, traces or stored summaries that the argument names: several with commas between them, or a series."""
    for word in arguments.split(","):
        if not word:
            raise RequestError(f"check: {arguments!r} has a comma without a run: drop it")
        runs = [] if expanded(word).exists() else series_runs(word)
        yield from (run.path for run in runs) if runs else (resolve_path(word).resolve(),)


def series_runs(word: str) -> list[Run]:
    """The runs of a series, oldest first: of `NAME`, or of one setting, `NAME:POINT`; empty if there is none.

    Raises:
        RequestError: the series has several settings, so its runs are not of one command.
    """
    found = [(run, part) for run in all_runs() if (part := part_of(run)) is not None]
    whole = [run for run, part in found if part.series == word]
    points = sorted({part.point for _, part in found if part.series == word})
    if len(points) > 1:
        named = ", ".join(f"{word}:{point}" for point in points[:_SHOWN_POINTS])
        raise RequestError(f"check: {word} has {len(points)} settings: name one of them, as in {named}")
    return whole or [run for run, part in found if f"{part.series}:{part.point}" == word]


def _state(path: Path) -> str:
    """How the run ended by its own word; empty for anything else than a run, which has no end."""
    own = Run(path).status() if Run(path).is_run else None
    return own.state if own is not None else ("not started" if Run(path).is_run else "")


def _short(path: Path) -> str:
    try:
        return Run(path).job_id if Run(path).is_run else path.name
    except WorkError:
        return path.name


def launch_of_arm(arm: CheckArm) -> str | None:
    """The arguments of the launch that made the first run of an arm; None if it is no launch of ours."""
    command = same_command(arm.runs[0].summary) if arm.runs else None
    return None if command is None else shlex.join(shlex.split(command)[2:])
