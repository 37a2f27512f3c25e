"""Commands about a run: status and logs."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.options import JsonOption
from harness.common.errors import WorkError
from harness.common.paths import PROGRAM
from harness.common.printable import printable
from harness.live.hang import Hang, read_hang
from harness.live.losses import first_bad_loss
from harness.live.text import span
from harness.run import FINAL, Run, find_run

if TYPE_CHECKING:
    from harness.cli.watch.tail import Tail
    from harness.live.notes import Note

RUN_HELP = "job id, name, path, or last"
RunArgument = Annotated[str, typer.Argument(metavar="[RUN]", help=RUN_HELP, show_default=True)]


def status(run: RunArgument = "last", as_json: JsonOption = False) -> int:
    """Show the state of a run, the exit status of each node, and missing files."""
    from harness.launch.submit import look_at

    found = find_run(run)
    state, reason, *_ = look_at(found)
    if state == "failed" and not reason and (snapshots := found.memory_snapshots()):
        from harness.measure.memory import why_out_of_memory

        reason = why_out_of_memory(snapshots)
    own, nodes = found.status(), found.nodes()
    limit = _time_limit(found) if state == "running" else None
    if as_json:
        payload = {
            "job_id": found.job_id,
            "name": found.name,
            "path": str(found.path),
            "state": state,
            "reason": reason,
            "exit_code": own.exit_code if own else None,
            "nodes": [n.model_dump() for n in nodes],
            "missing": own.missing if own else [],
            "bad_loss": bad._asdict() if (bad := first_bad_loss(found.path)) else None,
            "hang": hang._asdict() if (hang := read_hang(found.path)) else None,
            "time_limit": limit._asdict() if limit else None,
        }
        print(json.dumps(payload, indent=1))
        return 0
    exit_code = "" if own is None or own.exit_code is None else f", exit {own.exit_code}"
    lines = [f"{found.job_id}  {state}{exit_code}  {found.name}", f"  {reason}" if reason else ""]
    for node in nodes:
        seconds = (node.ended_ns - node.started_ns) / 1e9
        lines.append(f"  node {node.node} ({node.host}): exit {node.exit}, {seconds:.1f} s")
    if bad := first_bad_loss(found.path):
        lines.append(f"  {bad.sentence}")
    if hang := read_hang(found.path):
        lines += _of_hang(hang)
    if limit:
        lines.append(f"  {limit.sentence}")
    lines += [f"  missing: {name}" for name in (own.missing if own else [])]
    print("\n".join(map(printable, filter(None, [*lines, f"  {found.path}"]))))
    return 0


def _time_limit(run: Run) -> Note | None:
    """What is to be said if the time limit of a run comes before its last step, as far as its heartbeats tell."""
    from harness.cli.watch.states import States
    from harness.live.notes import time_limit
    from harness.live.read import Reader

    live = Reader(run.path, run.job_id).read()
    if live.progress().remaining_s is None:
        return None
    (told,) = States().look([run])
    live.began_ns, live.deadline_ns = told.began_ns, told.deadline_ns
    live.warning_s = run.record.site.signal_seconds
    return next(time_limit(live), None)


def _of_hang(hang: Hang) -> list[str]:
    """Who is, or was, stuck where."""
    if hang.until_ns is not None:
        seconds = (hang.until_ns - hang.since_ns) / 1e9
        return [f"  it was stuck for {span(seconds)} {hang.sentence}"]
    return [*(f"  {line}" for line in hang.lines), f"  try: {hang.advice}"]


def logs(
    run: RunArgument = "last",
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="show new output until the run ends")
    ] = False,
) -> int:
    """Print what a run printed: log.out to stdout, log.err to stderr. A terminal gets its text and colours, without
    what would move the cursor, set the title or write to the clipboard; a file or a pipe gets the log as it is.
    If a log is very large, only its end is shown, with the command that shows all of it."""
    from harness.cli.watch.follow import tails, wait_for_end

    found = find_run(run)
    outputs = tails(found)
    if follow:
        state = wait_for_end(found, outputs)
        print(f"{state}: {found.path}", file=sys.stderr)
        return _unreadable(outputs)
    if why := _why_it_ended(found):
        print(f"{printable(why)}\n", file=sys.stderr)
    for tail in outputs:
        tail.pump(last=True)
    if not any(tail.trouble or tail.path.is_file() for tail in outputs):
        print(f"{found.name} {_why_no_logs(found)}", file=sys.stderr)
    return _unreadable(outputs)


def _why_it_ended(run: Run) -> str:
    """What comes before the last lines of many ranks: who failed first, or who is stuck where."""
    from harness.launch.submit import look_at

    try:
        found = look_at(run)
    except WorkError:  # the backend of another installation
        return ""
    return f"{run.job_id}: {found.state}: {found.why}" if found.state != "completed" and found.why else ""


def _unreadable(outputs: list[Tail]) -> int:
    """Say which logs cannot be read; returns the exit code."""
    for tail in outputs:
        if tail.trouble:
            print(f"{PROGRAM}: {tail.trouble}", file=sys.stderr)
    return int(any(tail.trouble for tail in outputs))


def _why_no_logs(run: Run) -> str:
    from harness.launch.submit import state_of

    if (state := state_of(run)) not in FINAL:
        return "has not printed anything yet"
    return f"is {state}, and its logs are missing: there is no {run.out}"
