"""The results of exercise 0 that the page of its run shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from harness.common.errors import WorkError
from harness.report.exercise_0.results import LinkVerdict, MeasuredCollective, read_results, read_verdict
from harness.run import Run

_File = TypeVar("_File")


@dataclass(frozen=True)
class LinkResults:
    """The collectives that were measured, the verdict, and a sentence for every damaged file that was skipped."""

    measured: Sequence[MeasuredCollective] = ()
    left_out: Sequence[str] = ()
    verdict: LinkVerdict | None = None


def links_of_run(run: Run | None) -> LinkResults:
    """The results of this run; empty when it is not a run of exercise 0."""
    if run is None:
        return LinkResults()
    left_out: list[str] = []
    found = _unless_damaged(read_results, run.path, left_out)
    verdict = _unless_damaged(read_verdict, run.path, left_out)
    return LinkResults([each for each in found.results if each.points] if found else (), left_out, verdict)


def _unless_damaged(read: Callable[[Path], _File | None], run: Path, left_out: list[str]) -> _File | None:
    """The result of `read`; of a damaged file None, and the error's text is added to `left_out`."""
    try:
        return read(run)
    except WorkError as error:
        left_out.append(str(error))
        return None
