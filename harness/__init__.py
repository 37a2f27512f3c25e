"""Launch, profile, measure and explain distributed AI training.

The Python API for notebooks; docs/api.md shows it. Importing this costs nothing: what is used is loaded then.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.analysis.summary import Replay, Summary
    from harness.measure.events import EventColumn
    from harness.run import Run


def load_run(token: str) -> Run:
    """A run by job id, name, path, or `last`. Raises RequestError when there is none."""
    from harness.run import find_run

    return find_run(token)


def analyse(what: Run | Path | str, window: str = "steps") -> Summary:
    """The numbers of a run, or of trace files and folders that form one job.

    Args:
        what: a run, or a path.
        window: "steps", the profiled steps; "gpu", from the first device event to the last.

    Raises:
        RequestError: the files belong to several jobs.
        WorkError: nothing can be read.
    """
    from harness.analysis.summary import Summary
    from harness.measure.paths import measure_one
    from harness.report.brief import brief

    Summary.as_html = brief  # the analysis knows no words
    return measure_one([_path(what)], window)


def what_if(what: Run | Path | str) -> Replay:
    """What a step would take with one thing changed: `what_ifs`, best first; docs/whatif.md says how to read them.

    Args:
        what: as for `analyse`.

    Raises:
        RequestError: the files belong to several jobs.
        WorkError: nothing can be read, or the replay does not repeat the run.
    """
    from harness.common.errors import WorkError
    from harness.explain.replayed import why_no_answer
    from harness.measure.paths import measure_one

    summary = measure_one([_path(what)])
    why = why_no_answer(summary)
    if summary.replay is None or why is not None:
        raise WorkError(f"{_path(what)}: {why}")
    return summary.replay


def events(what: Run | Path | str) -> dict[str, EventColumn]:
    """Every event of the devices, of all ranks: columns that pandas.DataFrame and polars.DataFrame take as they are.

    `start_ns`, `duration_ns`, `name`, `kind`, `rank`, `device`, `stream`, `correlation`, `range`; docs/api.md says
    what each is.

    Raises:
        RequestError: the files belong to several jobs.
        WorkError: there is no trace, or one cannot be read.
    """
    from harness.measure.events import events as columns

    return columns([_path(what)])


def _path(what: Run | Path | str) -> Path | str:
    return what if isinstance(what, str | Path) else what.path


__all__ = ["analyse", "events", "load_run", "what_if"]
