"""`slurm.sh whatif`: what a step would take with one thing changed, and the command of a run that shows it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.options import JsonOption, run_names
from harness.cli.terminal import columns
from harness.common.display.format import duration, percent
from harness.run import Run

if TYPE_CHECKING:
    from harness.analysis.summary import Summary
    from harness.report.tables.replay import WhatIfRow
    from harness.report.tables.table import TableScreen


def whatif(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|PATH", autocompletion=run_names, help="a run, or trace files and folders of any origin"
        ),
    ],
    *,
    as_json: JsonOption = False,
) -> int:
    """Predict the step time with one thing changed, the largest gain first, from a replay of the run's events."""
    from harness.explain.findings import why_no_answer

    summaries = _jobs(paths)
    if as_json:
        rows = [_as_data(s) for s in summaries]
        print(json.dumps(rows[0] if len(rows) == 1 else rows, indent=1))
    else:
        print("\n\n".join("\n".join(_lines(s)) for s in summaries))
    return 0 if all(why_no_answer(s) is None for s in summaries) else 1


def _jobs(paths: list[str]) -> list[Summary]:
    """The stored summary of a run, where it has a replay; anything else is measured."""
    from harness.measure.request import ReportRequest, load_summary, measure_request, resolve_path

    stored = [resolve_path(token) for token in paths]
    if len(stored) == 1 and (stored[0].suffix == ".json" or Run(stored[0]).summary.is_file()):
        summary = load_summary(paths[0])[1]
        if summary.replay is not None or stored[0].is_file():
            return [summary]
    return measure_request(ReportRequest(tokens=paths)).summaries


def _lines(s: Summary) -> Iterator[str]:
    """The table, with each change's command below its row."""
    from harness.explain.answer import doubts
    from harness.explain.findings import has_marked_steps, what_is_not_charged, why_no_answer
    from harness.report.first_screen import place_of
    from harness.report.tables.replay import LEAST_GAIN, WHAT_IFS
    from harness.report.tables.table import WIDTH, TableScreen

    yield place_of(s)
    screen, refusal, replay = TableScreen(columns(WIDTH)), why_no_answer(s), s.replay
    if replay is None or refusal is not None:
        yield from screen.wrapped(refusal or "")
        return
    mean = f" (mean of {replay.steps})" if replay.steps > 1 else ""
    whole = "A step takes" if has_marked_steps(s) else "No steps are marked, so all that was recorded is one:"
    again = f"the replay without a change gives {duration(replay.replayed_ns)}, {percent(replay.error)} off"
    yield from screen.wrapped(f"{whole} {duration(replay.step_ns)}{mean}; {again}.", "  ")
    yield from screen.wrapped(" ".join([*doubts(s), what_is_not_charged(s) or ""]).strip(), "  ")
    yield ""
    rows = WHAT_IFS.rows(s)
    if not rows:
        yield f"No change that can be replayed would save {100 * LEAST_GAIN:g} % of the step."
        return
    yield from _table(s, rows, screen)


def _table(s: Summary, rows: Any, screen: TableScreen) -> Iterator[str]:
    from harness.explain.commands import in_lines
    from harness.report.tables.replay import WHAT_IFS

    narrow = replace(WHAT_IFS, columns=WHAT_IFS.columns[:-1])  # a command has a line of its own
    lines = screen.block(narrow.of(rows, s, on_page=False))
    yield from lines[: -len(rows)]
    changed: WhatIfRow
    for line, changed in zip(lines[-len(rows) :], rows, strict=True):
        yield screen.cut(line)
        if changed.command is not None:
            yield from (f"  {part}" for part in in_lines(changed.command, screen.width - 2))


def _as_data(s: Summary) -> dict[str, Any]:
    from harness.explain.answer import doubts
    from harness.explain.findings import why_no_answer
    from harness.report.first_screen import place_of
    from harness.report.tables.replay import all_changes

    told = {} if s.replay is None else s.replay.model_dump()
    changes = [row.what_if.model_dump() | {"command": row.command} for row in all_changes(s)]
    return {"of": place_of(s), "no_answer": why_no_answer(s), "doubts": doubts(s), **told, "what_ifs": changes}
