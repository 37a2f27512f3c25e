"""Launch, profile, measure and explain distributed AI training.

The Python API for notebooks; configs/report.ipynb shows it. The import is fast: modules are loaded at their first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.analysis.summary import Replay, Summary
    from harness.measure.events import EventColumn
    from harness.run import Run

    Traces = Run | Path | str | Sequence[Path | str]  # of one job


def load_run(token: str) -> Run:
    """A run by job id, name, path, or `last`.

    Raises:
        RequestError: there is no such run; of a path with traces, with the function that reads them.
    """
    from harness.common.errors import RequestError
    from harness.run import find_run

    try:
        return find_run(token)
    except RequestError:
        if (found := _traces_in(token)) is None:
            raise
        raise RequestError(
            f"{token}: holds {found}, and is not a run: analyse({token!r}) returns the numbers of traces"
        ) from None


def _traces_in(token: str) -> str | None:
    """The traces of a path, in words; None where there is none."""
    from harness.common.errors import HarnessError
    from harness.common.paths import expanded
    from harness.traces.find import find_traces

    path = expanded(token)
    try:
        files = find_traces([path]) if path.exists() else []
    except (HarnessError, OSError):
        return None
    return f"{len(files)} trace{'s' * (len(files) > 1)}" if files else None


def analyse(what: Traces, window: str = "steps") -> Summary:
    """The numbers of a run, or of trace files and folders that form one job.

    Args:
        what: a run, also by job id, name or `last`; a path, or several paths of one job.
        window: "steps", the profiled steps; "gpu", from the first device event to the last.

    Raises:
        RequestError: there is no such run or path, or the files belong to several jobs.
        WorkError: nothing can be read.
    """
    from harness.measure.paths import measure_one

    _show_in_words()
    return measure_one(_paths(what), window)


def load_summary(what: Traces, window: str = "steps") -> Summary:
    """As `analyse`, but if `report` kept a summary in the run, it is read and no trace is opened.

    Args:
        what: as for `analyse`; also a summary.json.
        window: as for `analyse`; a kept summary is of "steps".

    Raises:
        RequestError: there is no such run or path, the file is not a summary, or the files belong to several jobs.
        WorkError: nothing can be read.
    """
    from harness.measure.request import load_summary as stored

    paths = _paths(what)
    if window != "steps" or len(paths) != 1:
        return analyse(paths, window)
    _show_in_words()
    return stored(str(paths[0]))[1]


def what_if(what: Traces) -> Replay:
    """What a step would take with one thing changed: `what_ifs`, best first; docs/investigate.md says how to read them.

    Args:
        what: as for `analyse`.

    Raises:
        RequestError: there is no such run or path, or the files belong to several jobs.
        WorkError: nothing can be read, or the replay does not repeat the run.
    """
    from harness.common.errors import WorkError
    from harness.explain.findings import why_no_answer
    from harness.measure.paths import measure_one

    paths = _paths(what)
    summary = measure_one(paths)
    why = why_no_answer(summary)
    if summary.replay is None or why is not None:
        raise WorkError(f"{', '.join(map(str, paths))}: {why}")
    return summary.replay


def events(what: Traces) -> dict[str, EventColumn]:
    """Every event of the devices, of all ranks: columns for pandas.DataFrame and polars.DataFrame.

    `start_ns`, `duration_ns`, `name`, `kind`, `rank`, `device`, `stream`, `correlation`, `range`;
    configs/report.ipynb defines them.

    Raises:
        RequestError: there is no such run or path, or the files belong to several jobs.
        WorkError: there is no trace, or one cannot be read.
    """
    from harness.measure.events import events as columns

    return columns(_paths(what))


def _show_in_words() -> None:
    """Let a notebook show a Summary as sentences and a table; the analysis knows no words."""
    from harness.analysis.summary import Summary
    from harness.report.brief import brief

    Summary.as_html = brief


def _paths(what: Traces) -> Sequence[Path | str]:
    from harness.measure.request import resolve_path

    if isinstance(what, str | Path):
        return [resolve_path(str(what))]
    return what if isinstance(what, Sequence) else [what.path]


__all__ = ["analyse", "events", "load_run", "load_summary", "what_if"]
