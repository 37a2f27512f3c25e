"""Wait for a run: show its output as it comes, then its report."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from harness.cli.watch.tail import Tail
from harness.common.errors import HarnessError, WorkError
from harness.launch.backends.registry import backend_of_run
from harness.launch.submit import cancel, look_at, state_of
from harness.run import FINAL, Run, State

if TYPE_CHECKING:
    from harness.analysis.summary import Summary
    from harness.measure.request import Measurement

GRACE_S = 60


def tails(run: Run) -> list[Tail]:
    """The run's logs, each with the stream it is written to."""
    others = [run.err, *backend_of_run(run).logs(run)]
    return [Tail(run.out, sys.stdout), *(Tail(path, sys.stderr) for path in others)]


def follow(run: Run, quiet: bool, as_json: bool) -> int:
    """Wait until the run has ended, then print its report; returns 0 if it completed, else 1."""
    return _answer(run, watch(run, quiet), as_json, shown=not quiet)


def watch(run: Run, quiet: bool) -> State:
    """Wait until the run has ended, and show its output unless `quiet`; returns its state."""
    with _interruptible(run):
        return wait_for_end(run, [] if quiet else tails(run))
    return state_of(run)  # Ctrl-C stopped it


def complete(run: Run, quiet: bool, ends: State = "completed") -> None:
    """Wait until the run has ended, and write its report.

    Raises WorkError: it did not end in the state `ends`.
    """
    state = watch(run, quiet)
    print(f"{state}: {run.path}", file=sys.stderr)
    if state != ends:
        wished = "did not complete" if ends == "completed" else f"should have ended as {ends}"
        raise WorkError(f"{run.job_id} {wished} ({state}): slurm.sh logs {run.job_id}")
    write_report(run)


def wait_for_end(run: Run, outputs: list[Tail]) -> State:
    """Poll until the state is final, and show `outputs` meanwhile.

    `unknown` is final when it lasts for GRACE_S, unless only the scheduler does not answer: the run goes on without it.
    """
    unknown_since: float | None = None
    shown = ""
    while True:
        look = look_at(run)
        state, reason = look.state, look.why
        for tail in outputs:
            tail.pump(last=state in FINAL)
        if state in FINAL:
            return state
        unknown_since = (
            (unknown_since or time.monotonic()) if state == "unknown" and not look.silent else None
        )
        if unknown_since and time.monotonic() - unknown_since > GRACE_S:
            return state
        if reason and reason != shown:
            print(f"{state}: {reason}", file=sys.stderr)
            shown = reason
        time.sleep(backend_of_run(run).POLL_S)


@contextmanager
def _interruptible(run: Run) -> Iterator[None]:
    """Ctrl-C stops a run on this machine; of a run elsewhere it only ends the watching."""
    try:
        yield
    except KeyboardInterrupt:
        if not backend_of_run(run).RUNS_HERE:
            next_commands = f"slurm.sh logs {run.job_id} -f · slurm.sh cancel {run.job_id}"
            print(f"\nstill running: {next_commands}", file=sys.stderr)
            raise
        print(
            "\nstopping: the traces so far are kept (a second Ctrl-C ends this wait, not the run)",
            file=sys.stderr,
        )
        cancel(run)
        wait_for_end(run, [])


def _answer(run: Run, state: State, as_json: bool, shown: bool) -> int:
    print(f"{state}: {run.path}", file=sys.stderr)
    if reason := look_at(run).why:
        print(f"{state}: {reason}", file=sys.stderr)
    summaries, page = write_report(run)
    if as_json:
        payload = {"job_id": run.job_id, "name": run.name, "path": str(run.path), "state": state}
        print(json.dumps(payload | {"summary": str(run.summary) if run.summary.is_file() else None}))
    elif text := _text(run, summaries, shown, page):
        print(text)
    if state != "completed":
        print(f"its output: slurm.sh logs {run.job_id}", file=sys.stderr)
    return 0 if state == "completed" else 1


def write_report(run: Run) -> tuple[list[Summary], bool]:
    """Write summary.json and report.html into the run; where nothing can be measured, print the reason to stderr.

    Returns the summaries, and whether the page was written.
    """
    from harness.study.finish import can_be_measured, measured

    if not can_be_measured(run):
        return [], False
    try:
        found = measured(run, page=True)
    except HarnessError as error:
        print(f"no report: {error}", file=sys.stderr)
        return [], False
    return found.summaries, _write_page(run, found)


def _text(run: Run, summaries: list[Summary], shown: bool, page: bool) -> str:
    """The report, without the lines that the run's own output has just shown."""
    from harness.cli.screen import columns
    from harness.report.exercise_0.terminal import is_comm_run, render_comm
    from harness.report.tables.screen import WIDTH
    from harness.report.tables.terminal import render_short

    if is_comm_run(run.path):
        return render_comm(run.path, shown)
    whole = f"slurm.sh report {run.job_id} --full"
    return "\n".join(render_short(s, columns(WIDTH), whole, page) for s in summaries)


def _write_page(run: Run, measured: Measurement) -> bool:
    """Write report.html beside summary.json; False where the disk refuses it."""
    from harness.report.page.write import write_pages

    try:
        pages = write_pages([str(run.path)], measured, None)
    except HarnessError as error:
        print(f"no page: {error}", file=sys.stderr)
        return False
    for page in pages:
        print(f"the page: {page}", file=sys.stderr)
    return bool(pages)
