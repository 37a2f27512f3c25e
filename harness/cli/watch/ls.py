"""`slurm.sh ls`: all runs, newest last, as wide as the terminal, with their step times."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Annotated, Any, NamedTuple

import msgspec
import typer

from harness.cli.command_line import columns
from harness.cli.options import JsonOption
from harness.common.bounded_read import read_bounded
from harness.common.errors import RequestError, WorkError
from harness.common.format import aligned, cut, duration
from harness.common.paths import PROGRAM
from harness.common.printable import printable
from harness.common.submission import edit_of, variables_in_words
from harness.common.users import whose
from harness.launch.backends.protocol import PolledState
from harness.run import Run, all_runs, closed, no_runs, read_json_lines, runs_root, when

HEAD = ("run", "state", "step", "submitted", "name")
MOST_VARIABLES = 2  # named of those that a run inherited from its shell
NO_TERMINAL = 100_000  # characters: names are not cut in a file or a pipe


def ls(
    as_json: JsonOption = False,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="number of runs to show, newest first")] = 20,
) -> int:
    """List the runs with their states and step times, newest last."""
    runs = all_runs()
    rows = [_row(run) for run in runs[-limit:]]
    if as_json:
        print(json.dumps(rows, indent=1))
    elif not rows and closed(runs_root()):
        raise RequestError(no_runs(runs_root()))
    elif not rows:
        print(no_runs(runs_root()))
    else:
        _print(rows, len(runs))
        if shut := closed(runs_root()):
            more = f" (and {len(shut) - 1} more)" if len(shut) > 1 else ""
            print(f"not shown: you may not read {shut[0]}{more}{whose(shut[0])}", file=sys.stderr)
    return 0


def _row(run: Run) -> dict[str, Any]:
    try:
        record = run.record
    except WorkError:
        job_id, poll, created_ns = "?", PolledState("unknown"), None
        inherited, edit = dict[str, str](), None
    else:
        job_id, poll, created_ns = record.job_id, _look(run), record.created_ns
        inherited, edit = record.inherited, edit_of(record.edited)
    step = step_time(run)
    return {
        "job_id": job_id,
        "state": poll.state,
        "own_word": own.state if poll.silent and (own := run.status()) else None,
        "submitted": when(created_ns),
        "step_ns": step.ns if step else None,
        "step_traced": step.traced if step else None,
        "name": run.name,
        "path": str(run.path),
        "inherited": inherited,
        "edited_lines": edit.lines if edit else 0,
    }


def _look(run: Run) -> PolledState:
    """A final state does not change: asking Slurm again for every old run would cost a second each."""
    from harness.launch.submit import look_at

    own = run.status() or run.record.status
    try:
        return PolledState(own.state) if own and own.is_settled else look_at(run)
    except WorkError:  # the backend of another installation
        return PolledState("unknown")


def _print(rows: list[dict[str, Any]], there_are: int) -> None:
    width = columns(NO_TERMINAL)
    lines = _aligned(rows)
    cut_names = any(len(line) > width for line in lines)
    if cut_names:  # the first column has the id already
        lines = _aligned([row | {"name": row["name"].replace(f"-{row['job_id']}-", "-…-", 1)} for row in rows])
    print("\n".join(cut(line, width) for line in lines))
    for hidden in _hidden(rows, there_are, cut_names):
        print(hidden, file=sys.stderr)


def _aligned(rows: list[dict[str, Any]]) -> list[str]:
    lines: list[Sequence[str]] = [HEAD]
    for row in rows:
        own_clock = "~" if row["step_traced"] is False else ""
        state = f"{row['own_word']}?" if row["own_word"] else row["state"]
        marks = ["edited"] * bool(row["edited_lines"]) + [variables_in_words(row["inherited"], MOST_VARIABLES)]
        named = "  ".join(filter(None, [row["name"], *marks]))
        cells = (row["job_id"], state, own_clock + duration(row["step_ns"]), row["submitted"], named)
        lines.append(tuple(map(printable, cells)))
    return aligned(lines, {1, 3, 4})


def _hidden(rows: list[dict[str, Any]], there_are: int, cut_names: bool) -> list[str]:
    """Notes on what the list leaves out or abbreviates."""
    notes = []
    if any(row["step_traced"] is False for row in rows):
        notes.append("~: measured by the training itself; the others are from the trace")
    if any(row["own_word"] for row in rows):
        notes.append("?: Slurm does not answer; this is the last state that the job wrote")
    if any(row["edited_lines"] for row in rows):
        notes.append(f"edited: the script was edited by hand: {PROGRAM} status RUN shows how")
    if any(row["inherited"] for row in rows):
        notes.append("NAME=VALUE: a variable of the shell that submitted the run")
    if len(rows) < there_are:
        notes.append(f"{len(rows)} of {there_are} runs are shown, the newest: {PROGRAM} ls -n {there_are} shows all")
    if cut_names:
        notes.append(f"names are shortened: {PROGRAM} ls -n {len(rows)} --json shows them in full")
    return notes


class _Duration(msgspec.Struct):
    median_ns: float


class _Steps(msgspec.Struct):
    duration: _Duration | None = None


class _Rank(msgspec.Struct):
    median_step_ns: float | None = None


class _Summary(msgspec.Struct):
    steps: _Steps | None = None
    training: list[_Rank] = []


class StepTime(NamedTuple):
    """A median. `traced`: measured from the trace; else by the training's own clock."""

    ns: float
    traced: bool


_decoder = msgspec.json.Decoder(_Summary)


def step_time(run: Run) -> StepTime | None:
    """The run's step time; None where no file has it."""
    return _of_summary(run) or _of_metrics(run)


def _of_summary(run: Run) -> StepTime | None:
    try:
        found = _decoder.decode(read_bounded(run.summary))
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError):
        return None
    if found.steps and found.steps.duration:
        return StepTime(found.steps.duration.median_ns, traced=True)
    return _slowest(rank.median_step_ns for rank in found.training)


def _of_metrics(run: Run) -> StepTime | None:
    """Of the first rank only: a run without a summary may have hundreds of ranks."""
    for path in run.metrics()[:1]:
        try:
            steps = [line for line in read_json_lines(path) if line.get("event") == "step"]
        except (OSError, ValueError):
            continue
        counted = [line for line in steps if line.get("phase") == "active"] or steps
        times = [line["step_ns"] for line in counted if isinstance(line.get("step_ns"), int)]
        return _slowest([median(times)] if times else [])
    return None


def _slowest(times: Iterable[float | None]) -> StepTime | None:
    known = [ns for ns in times if ns]
    return StepTime(max(known), traced=False) if known else None
