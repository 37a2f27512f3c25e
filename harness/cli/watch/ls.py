"""`slurm.sh ls`: all runs, newest last, as wide as the terminal, with what tells them apart."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from harness.cli.options import JsonOption
from harness.cli.terminal import columns
from harness.cli.watch.results import result_of
from harness.common.display.format import aligned, amount, cut, duration, middle, percent, span
from harness.common.display.printable import printable
from harness.common.errors import RequestError, WorkError
from harness.common.paths import COMMAND
from harness.common.system.users import whose
from harness.experiment.parse import asked_text
from harness.launch.backends.protocol import PolledState
from harness.run import Run, all_runs, closed, folder_bytes, no_runs, runs_root, when
from harness.run.record import RunRecord

Row = dict[str, Any]
HEAD = ("id", "state", "asked", "step", "useful", "verdict", "age", "size")
_LEFT = {"id", "state", "asked", "verdict"}
_LEAST = {"asked": 16, "verdict": 19}  # characters, where the terminal is narrow
_DROPPED = ("size", "useful", "age", "step", "asked")  # in this order, where it is narrower
SHOWN = 20  # runs
NO_TERMINAL = 100_000  # characters: nothing is cut in a file or a pipe
NARROWEST = 20


def ls(
    as_json: JsonOption = False,
    limit: Annotated[
        int | None, typer.Option("-n", "--limit", min=1, help=f"runs to show, newest first [{SHOWN}]")
    ] = None,
) -> int:
    """List the runs, newest last: state, flags that differ from the default, step time, the steps' share of the job's
    time, the largest loss or why it failed, age and size."""
    runs = all_runs()
    rows = rows_of(runs[-(limit or SHOWN) :])
    if as_json:
        print(json.dumps(rows, indent=1))
    elif not rows and closed(runs_root()):
        raise RequestError(no_runs(runs_root()))
    elif not rows:
        print(no_runs(runs_root()))
    else:
        lines, notes = table(rows)
        print("\n".join(lines))
        if len(rows) < len(runs):
            notes.append(
                f"{len(rows)} of {len(runs)} runs are shown, the newest: {COMMAND} ls -n {len(runs)} shows all"
            )
        if shut := closed(runs_root()):
            more = f" (and {len(shut) - 1} more)" if len(shut) > 1 else ""
            notes.append(f"not shown: you may not read {shut[0]}{more}{whose(shut[0])}")
        print("".join(f"{note}\n" for note in notes), end="", file=sys.stderr)
    return 0


def rows_of(runs: Sequence[Run]) -> list[Row]:
    """What the list has of each run. The site is among the flags if the runs are of several."""
    sites = {run.known_record.site.name for run in runs if run.known_record}
    return [_row(run, len(sites) > 1) for run in runs]


def _row(run: Run, name_site: bool) -> Row:
    record = run.known_record
    poll = _look(run) if record else PolledState("unknown")
    step, verdict, doubtful, useful = result_of(run, poll)
    return {
        "job_id": record.job_id if record else "?",
        "state": poll.state,
        "own_word": own.state if poll.silent and (own := run.status()) else None,
        "asked": _asked(record, name_site) if record else run.name,  # without its id, it is given by name
        "site": record.site.name if record else None,
        "step_ns": step.ns if step else None,
        "step_traced": step.traced if step else None,
        "useful_share": useful,
        "verdict": verdict,
        "doubtful": doubtful,
        "submitted": when(record.created_ns if record else None),
        "age_s": max(0, time.time_ns() - record.created_ns) // 1_000_000_000 if record else None,
        "size_bytes": folder_bytes(run.path),
        "name": run.name,
        "path": str(run.path),
    }


def _asked(record: RunRecord, name_site: bool) -> str:
    site = record.site
    return asked_text(record.experiment, record.command[1:], site.name if name_site else None, site.defaults)


def _look(run: Run) -> PolledState:
    """A final state does not change: asking Slurm again for every old run would cost a second each."""
    from harness.launch.poll import look_at

    own = run.status() or run.record.status
    try:
        return PolledState(own.state) if own and own.is_settled else look_at(run)
    except WorkError:  # the backend of another installation
        return PolledState("unknown")


def table(cells_of_rows: Sequence[Row], names: Sequence[str] = HEAD) -> tuple[list[str], list[str]]:
    """The lines of the list, as wide as the terminal, and notes on what they abbreviate or leave out."""
    width = columns(NO_TERMINAL, NARROWEST)
    cells = [{name: name for name in names}, *({name: _cells(row)[name] for name in names} for row in cells_of_rows)]
    if all(row.get("useful") in ("–", None) for row in cells[1:]):
        cells = [{each: text for each, text in row.items() if each != "useful"} for row in cells]
    whole = {name: max(len(row[name]) for row in cells) for name in cells[0]}
    wide = _fitting(whole, width)
    lines = aligned(
        [[middle(row[name], wide[name]) for name in wide] for row in cells],
        {place for place, name in enumerate(wide) if name in _LEFT},
    )
    notes = _notes(cells_of_rows)
    if "useful" in wide:
        notes.append(f"useful: the steps' share of the job's time: {COMMAND} report RUN says where the rest went")
    if wide != whole:
        notes.append(f"shortened for this terminal: {COMMAND} ls -n {len(cells_of_rows)} --json shows all")
    return [cut(line, width) for line in lines], notes


def _cells(row: Row) -> dict[str, str]:
    age = "–" if row["age_s"] is None else " ".join(span(row["age_s"]).split()[:2])
    cells = {
        "id": row["job_id"],
        "state": f"{row['own_word']}?" if row["own_word"] else row["state"],
        "asked": row["asked"],
        "step": "~" * (row["step_traced"] is False) + duration(row["step_ns"]),
        "useful": percent(row["useful_share"]),
        "verdict": (row["verdict"] or "–") + "?" * row["doubtful"],
        "age": age,
        "size": amount(row["size_bytes"]),
    }
    return {name: printable(text) for name, text in cells.items()}


def _fitting(whole: dict[str, int], width: int) -> dict[str, int]:
    """The columns that fit, with their widths: few are dropped, the others share the line, the narrowest first."""
    wide = {name: min(wanted, _LEAST.get(name, wanted)) for name, wanted in whole.items()}
    for name in _DROPPED:
        if sum(wide.values()) + 2 * (len(wide) - 1) > width:
            wide.pop(name, None)
    spare = width - sum(wide.values()) - 2 * (len(wide) - 1)
    while spare > 0 and (cut_short := [name for name in wide if wide[name] < whole[name]]):
        wide[min(cut_short, key=wide.__getitem__)] += 1
        spare -= 1
    return wide


def _notes(rows: Sequence[Row]) -> list[str]:
    """On the marks that a cell may have."""
    notes = []
    if any(row["step_traced"] is False for row in rows):
        notes.append("~: measured by the training itself; the others are from the trace")
    if any(row["own_word"] for row in rows):
        notes.append("?: Slurm does not answer; this is the last state that the job wrote")
    if any(row["doubtful"] for row in rows):
        notes.append(f"%?: the recording has problems: {COMMAND} report RUN names them")
    return notes
