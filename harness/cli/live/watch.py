"""`slurm.sh watch`: one live screen of a run, or a line for each of several."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.options import JsonOption
from harness.cli.terminal import NARROWEST, columns
from harness.common.errors import RequestError
from harness.common.paths import ROOT
from harness.common.printable import unguarded
from harness.run import Run, all_runs, find_run, no_runs, runs_root

if TYPE_CHECKING:
    from harness.live.watching import Actions

SCREEN_S, LINES_S, MOST_S = 2.0, 30.0, 3600.0
ONCE_WIDTH, ONCE_HEIGHT = 100, 60  # where there is no terminal

RunsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[RUN …]", help="runs [the newest that has not ended]")
]


def watch(
    runs: RunsArgument = None,
    *,
    all_: Annotated[bool, typer.Option("--all", help="every run that has not ended, a line for each")] = False,
    interval: Annotated[
        float | None, typer.Option(min=0.2, metavar="S", help="seconds between two looks; default: 2, or 30 for lines")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="look once, print the screen, and end")] = False,
    as_json: JsonOption = False,
) -> int:
    """Show how far a run is, how fast, which ranks are slow and what is stuck, while it runs.

    On a terminal it is one screen, with keys: c records five steps, l shows the output, x cancels, q quits. Without a
    terminal it prints a line every 30 s until the run has ended; with --json an object with everything, a line each.
    """
    from harness.cli.watch.status import States
    from harness.live.watching import WatchedRuns, has_screen, print_screen, watch_lines, watch_screen

    watching = WatchedRuns(_chosen(runs or [], all_), States().look)
    if not watching.runs:
        print("no run is unfinished")
        return 0
    if once and not as_json:
        return print_screen(watching, *_size(), colour=unguarded(sys.stdout).isatty())
    lines = as_json or not has_screen()
    pause_s = min(interval or (LINES_S if lines and not as_json else SCREEN_S), MOST_S)
    if lines:
        return watch_lines(watching, pause_s, as_json, once)
    return watch_screen(watching, pause_s, _actions())


def _chosen(tokens: list[str], every: bool) -> list[Run]:
    """Raises RequestError: there is no such run, or none at all."""
    from harness.cli.watch.status import unfinished

    if tokens and every:
        raise RequestError("watch: give runs, or --all")
    if tokens:
        return list({run.path: run for run in map(find_run, tokens)}.values())
    runs = all_runs()
    if not runs:
        raise RequestError(f"RUN: {no_runs(runs_root())}")
    running = unfinished(runs)
    if every:
        return running
    if not running:
        print(f"no run is unfinished; this is the newest, {runs[-1].name}", file=sys.stderr)
    return (running or runs)[-1:]


def _size() -> tuple[int, int]:
    if not unguarded(sys.stdout).isatty():
        return columns(ONCE_WIDTH), ONCE_HEIGHT
    size = os.get_terminal_size(unguarded(sys.stdout).fileno())
    return max(size.columns, NARROWEST), max(size.lines - 1, 10)


def _actions() -> Actions:
    from harness.live.watching import Actions

    ours = [sys.executable, "-m", "harness"]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return Actions(
        lambda run: [*ours, "capture", "start", str(run.path), "--steps", "5"],
        lambda run: [*ours, "cancel", str(run.path)],
        {**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
