"""`slurm.sh status`, `logs` and `cancel`, and the state of a run that is looked at again and again."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.options import JsonOption, run_names
from harness.cli.watch.follow import Tail, tails, wait_for_end
from harness.cli.watch.of_job import of_job
from harness.common.display.format import span
from harness.common.display.printable import printable
from harness.common.errors import HarnessError, RequestError, WorkError
from harness.common.paths import COMMAND, PROGRAM
from harness.common.run_folder.job_folder import BACKEND
from harness.common.system.users import owner_of
from harness.heartbeats.bad_loss import first_bad_loss
from harness.heartbeats.hang import Hang, read_hang
from harness.launch.backends.protocol import Backend, Listed, PolledState
from harness.launch.backends.registry import BACKENDS, backend_of_run
from harness.launch.cancel import Cancellation
from harness.launch.cancel import cancel as cancel_run
from harness.launch.poll import look_at, state_of
from harness.run import Run, find_run
from harness.run.ended import same_rank
from harness.run.record import FINAL
from harness.run.state import RunState

NS = 1_000_000_000
ASK_S = 5.0  # between two questions to a queue
AGAIN_S = 10.0  # between two questions about a run that has left it, and whose end is not known yet
MOST_ASKED = 1000  # runs in one question, the newest
NO_ANSWER = "its queue does not answer; this is the last known state"
RUN_HELP = "job id, name, path, or last"
QUIET_S = 2.0  # most runs have ended by then, and nothing is said about the wait
UNHEARD_S = 30.0  # a busy controller needs time
MOST_S = 120.0  # for one that closes its traces


class WatchedState:
    """The state of a run. Between two questions to its queue, the last answer is valid."""

    def __init__(self, run: Run, clock: Callable[[], float] = time.monotonic) -> None:
        self._run, self._clock = run, clock
        self._state = RunState()
        self._next_s: dict[str, float] = {}  # by question

    def look(self) -> RunState:
        self._take_own_end()
        if not self._state.final:
            for backend, _ in _by_backend([self._run]):  # none if its record is lost
                if self._is_due("state", 0 if backend.RUNS_HERE else ASK_S):
                    self._ask(backend)
        return self._state

    def _ask(self, backend: Backend) -> None:
        entries = backend.listed([self._run])
        if entries is None:
            self._state = self._state._replace(why=NO_ANSWER)
            return
        entry = entries.get(self._run.path)
        if entry is not None and entry.polled.state not in FINAL:
            self._state = _state(self._run, entry)
        elif self._is_due("end", AGAIN_S):
            self._state = _state(self._run, Listed(_polled(self._run)))

    def _take_own_end(self) -> None:
        """An end that the run itself wrote down, if it is certain."""
        own = self._run.status()
        if not self._state.final and own is not None and own.is_settled:
            self._state = RunState(own.state, own.why or own.note, began_ns=own.started_ns)

    def _is_due(self, what: str, pause_s: float) -> bool:
        now_s = self._clock()
        if now_s < self._next_s.get(what, now_s):
            return False
        self._next_s[what] = now_s + pause_s
        return True


def unfinished(runs: Sequence[Run]) -> list[Run]:
    """Those that have not ended, as far as their own files and one question to each queue say, in their order."""
    waiting = [run for run in runs if (own := run.status()) is None or own.state not in FINAL][-MOST_ASKED:]
    found: set[Path] = set()
    for backend, several in _by_backend(waiting):
        entries = backend.listed(several)
        if entries is None:
            found |= {run.path for run in several if (own := run.status()) and own.state not in FINAL}
        else:
            found |= {path for path, entry in entries.items() if entry.polled.state not in (*FINAL, "unknown")}
    return [run for run in waiting if run.path in found]


def _by_backend(runs: Sequence[Run]) -> Iterator[tuple[Backend, list[Run]]]:
    """The runs of each backend; one whose backend is not here, or whose record is lost, is left out."""
    names: dict[str, list[Run]] = {}
    for run in runs:
        try:
            names.setdefault(run.record.backend, []).append(run)
        except HarnessError:
            continue
    yield from ((BACKENDS[name], several) for name, several in names.items() if name in BACKENDS)


def _state(run: Run, listed: Listed) -> RunState:
    polled, own = listed.polled, run.status()
    began_ns, ends_ns = own.started_ns if own else None, listed.ends_ns
    if ends_ns is None and began_ns is not None:
        ends_ns = began_ns + run.record.site.time_s * NS
    if polled.state == "queued":
        return RunState(polled.state, polled.why, starts_ns=listed.starts_ns)
    return RunState(polled.state, polled.why, began_ns=began_ns, deadline_ns=ends_ns, suspended=polled.suspended)


def _polled(run: Run) -> PolledState:
    try:
        return look_at(run)
    except HarnessError as error:
        return PolledState("unknown", str(error))


RunArgument = Annotated[str, typer.Argument(metavar="RUN", autocompletion=run_names, help=RUN_HELP)]


def status(run: RunArgument = "last", as_json: JsonOption = False) -> int:
    """Show the state of a run, why it is so, and missing files."""
    found = find_run(run)
    state, reason, *_ = look_at(found)
    own, nodes, bad, hang = found.status(), found.started_nodes(), first_bad_loss(found.path), read_hang(found.path)
    missing = own.missing if own else []
    if as_json:
        of_run = {"job_id": found.job_id, "name": found.name, "path": str(found.path), "state": state, "reason": reason}
        ends = {"exit_code": own.exit_code if own else None, "nodes": [n.model_dump() for n in nodes]}
        notes = {"bad_loss": bad, "hang": hang}
        told = {name: note._asdict() if note else None for name, note in notes.items()}
        print(json.dumps({**of_run, **ends, "missing": missing, **told}, indent=1))
        return 0
    exit_code = "" if own is None or own.exit_code is None else f", exit {own.exit_code}"
    lines = [*of_job(found, run), f"{found.job_id}  {state}{exit_code}  {found.name}", f"  {reason}" if reason else ""]
    alone = same_rank(found.path)
    lines += [f"  {alone}"] if alone and alone not in reason else []
    lines += [f"  {bad.sentence}"] if bad else []
    lines += _of_hang(hang) if hang else []
    lines += [f"  missing: {name}" for name in missing]
    print("\n".join(map(printable, filter(None, [*lines, f"  {found.path}"]))))
    return 0


def _of_hang(hang: Hang) -> list[str]:
    if hang.until_ns is not None:
        seconds = (hang.until_ns - hang.since_ns) / 1e9
        return [f"  it was stuck for {span(seconds)} {hang.sentence}"]
    return [*(f"  {line}" for line in hang.lines), f"  try: {hang.advice}"]


def logs(
    run: RunArgument = "last",
    follow: Annotated[bool, typer.Option("-f", "--follow", help="show new output until the run ends")] = False,
) -> int:
    """Print what a run printed: log.out to stdout, log.err to stderr. A terminal gets its text and colours, without
    what would move the cursor, set the title or write to the clipboard; a file or a pipe gets the log as it is.
    If a log is very large, only its end is shown, with the command that shows all of it."""
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
        lost = f"is {state_of(found)}, and its logs are missing: there is no {found.out}"
        said = lost if state_of(found) in FINAL else "has not printed anything yet"
        if found.record.backend == BACKEND:
            said = "was observed in a job of yours: what it printed is where that job printed it"
        print(f"{found.name} {said}", file=sys.stderr)
    return _unreadable(outputs)


def _why_it_ended(run: Run) -> str:
    """What comes before the last lines of many ranks: who failed first, or who is stuck where."""
    try:
        found = look_at(run)
    except WorkError:  # the backend of another installation
        return ""
    return f"{run.job_id}: {found.state}: {found.why}" if found.state != "completed" and found.why else ""


def _unreadable(outputs: list[Tail]) -> int:
    for tail in outputs:
        if tail.trouble:
            print(f"{PROGRAM}: {tail.trouble}", file=sys.stderr)
    return int(any(tail.trouble for tail in outputs))


def cancel(run: RunArgument = "last", as_json: JsonOption = False) -> int:
    """Stop a run. The traces it has so far are kept and marked."""
    found = find_run(run)
    owner = owner_of(found.record_file)
    if owner is not None and os.geteuid() != 0:
        raise RequestError(f"{found.job_id} belongs to {owner}: only {owner} can cancel it")
    try:
        met = cancel_run(found)
        after = met.before if met.before.state in FINAL else _end_of(found)
    except WorkError as error:
        raise WorkError(f"{error}; its state: {COMMAND} status {found.job_id}") from None
    except KeyboardInterrupt:
        print(f"\n{found.job_id} may have been asked to stop: {COMMAND} status {found.job_id}", file=sys.stderr)
        raise
    told = after.state in FINAL or after.ending
    if as_json:
        said = {"job_id": found.job_id, "before": met.before.state, "state": after.state, "ending": after.ending}
        print(json.dumps(said))
    else:
        print(_sentence(found, met, after), file=sys.stdout if told else sys.stderr)
    return 0 if told else 1


def _end_of(run: Run) -> PolledState:
    """Wait for the run's end, longer for one that is ending; returns its state."""
    began_s, pause_s, said = time.monotonic(), 0.3, False
    while True:
        after = look_at(run)
        waited_s = time.monotonic() - began_s
        if after.state in FINAL or after.silent or waited_s > (MOST_S if after.ending else UNHEARD_S):
            return after
        if after.ending and not said and waited_s > QUIET_S:
            said = True
            print(f"{run.job_id} is ending: it closes its traces (Ctrl-C ends this wait, not the run)", file=sys.stderr)
        time.sleep(pause_s)
        pause_s = min(1.5 * pause_s, max(backend_of_run(run).POLL_S, 0.3))


def _sentence(run: Run, met: Cancellation, after: PolledState) -> str:
    others = f", and with it {_names(met.others)} of the same allocation" * bool(met.others)
    again = f"{COMMAND} status {run.job_id}"
    if met.before.state in FINAL:
        return f"{run.job_id} has already ended: {met.before.state}"
    if after.state in FINAL:
        return f"{run.job_id}: {after.state}{others}"
    if after.ending:
        return f"{run.job_id} is ending, its last processes still run{others}: {again}"
    if after.silent:
        return f"{run.job_id} was asked to stop, but Slurm does not answer now: {again}"
    return f"{run.job_id} was asked to stop and is still {after.state}{others}: {again}"


def _names(runs: list[Run]) -> str:
    names = sorted(run.job_id for run in runs)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} others" if len(names) > 3 else "")
