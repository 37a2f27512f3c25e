"""`slurm.sh watch`: one live screen of a run."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from harness.cli.options import JsonOption
from harness.common.errors import RequestError
from harness.run import Run, all_runs, find_run, no_runs, runs_root

SCREEN_S, LINES_S, MOST_S = 2.0, 30.0, 3600.0


def watch(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="job id, name or path [the newest that has not ended]")
    ] = None,
    *,
    interval: Annotated[
        float | None, typer.Option(min=0.2, metavar="S", help="seconds between two looks; default: 2, or 30 for lines")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="look once, print the screen, and end")] = False,
    as_json: JsonOption = False,
) -> int:
    """Show how far a run is, how fast, which ranks are slow and what is stuck, while it runs.

    On a terminal it is one screen, until the run has ended or you press Ctrl-C. Without a terminal it prints a line
    every 30 s until the run has ended; with --json an object with everything, a line each.
    """
    from harness.cli.watch.status import WatchedState
    from harness.live import watching
    from harness.live.view import RunView, WatchedRun

    chosen = find_run(run) if run is not None else _newest()
    watched, state = WatchedRun(chosen), WatchedState(chosen)

    def look() -> RunView:
        return watched.look(state.look())

    if once or state.look().final:
        view = look()
        (watching.print_json if as_json else watching.print_screen)(view)
        return watching.exit_code(view)
    if as_json:
        show, pause_s = watching.print_json, SCREEN_S
    elif watching.has_screen():
        show, pause_s = watching.draw_screen, SCREEN_S
    else:
        show, pause_s = watching.print_line, LINES_S
    try:
        return watching.watch_run(look, show, min(interval or pause_s, MOST_S))
    except KeyboardInterrupt:
        if show is watching.draw_screen:  # its way to quit
            return 0
        raise


def _newest() -> Run:
    """The newest run that has not ended, else the newest. Raises RequestError: there is none."""
    from harness.cli.watch.status import unfinished

    runs = all_runs()
    if not runs:
        raise RequestError(f"RUN: {no_runs(runs_root())}")
    running = unfinished(runs)
    if not running:
        print(f"no run is unfinished; this is the newest, {runs[-1].name}", file=sys.stderr)
    return (running or runs)[-1]
