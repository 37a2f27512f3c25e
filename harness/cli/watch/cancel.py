"""`slurm.sh cancel`: ask a run to end, and wait while it closes its traces."""

from __future__ import annotations

import json
import os
import sys
import time

from harness.cli.options import JsonOption
from harness.cli.watch.status import RunArgument
from harness.common.errors import RequestError, WorkError
from harness.common.paths import PROGRAM
from harness.common.users import owner_of
from harness.launch.backends.protocol import PolledState
from harness.launch.backends.registry import backend_of_run
from harness.launch.submit import Cancelled, look_at
from harness.launch.submit import cancel as cancel_run
from harness.run import FINAL, Run, find_run

QUIET_S = 2.0  # most runs have ended by then, and nothing is said about the wait
UNHEARD_S = 30.0  # a busy controller needs time
MORE_S = 5.0  # after the kill, until it is known
MOST_S = 120.0  # of a site that leaves its jobs more time, the wait is not the command's


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
        raise WorkError(f"{error}; its state: {PROGRAM} status {found.job_id}") from None
    except KeyboardInterrupt:
        print(
            f"\n{found.job_id} may have been asked to stop: {PROGRAM} status {found.job_id}", file=sys.stderr
        )
        raise
    told = after.state in FINAL or after.ending
    if as_json:
        said = {
            "job_id": found.job_id,
            "before": met.before.state,
            "state": after.state,
            "ending": after.ending,
        }
        print(json.dumps(said))
    else:
        print(_sentence(found, met, after), file=sys.stdout if told else sys.stderr)
    return 0 if told else 1


def _end_of(run: Run) -> PolledState:
    """Wait for the run's end, at most as long as its scheduler lets it close its traces; returns its state."""
    backend = backend_of_run(run)
    began_s, patience_s, pause_s = time.monotonic(), UNHEARD_S, 0.3
    said = False
    while True:
        after = look_at(run)
        waited_s = time.monotonic() - began_s
        if after.state in FINAL or after.silent or waited_s > patience_s:
            return after
        if after.ending and not said and waited_s > QUIET_S:
            said, kill_s = True, backend.kill_s(run)
            patience_s = min(kill_s + MORE_S, MOST_S)
            print(
                f"{run.job_id} is ending: it has {kill_s:g} s to close its traces (Ctrl-C ends this wait, not the run)",
                file=sys.stderr,
            )
        time.sleep(pause_s)
        pause_s = min(1.5 * pause_s, max(backend.POLL_S, 0.3))


def _sentence(run: Run, met: Cancelled, after: PolledState) -> str:
    others = f", and with it {_names(met.others)} of the same allocation" * bool(met.others)
    again = f"{PROGRAM} status {run.job_id}"
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
