"""The state of a run and why it is so: from its backend, its own files and its heartbeats."""

from __future__ import annotations

from harness.common.display.printable import printable
from harness.common.run_folder.run_files import SCHEDULER_LOG
from harness.heartbeats.hang import read_hang
from harness.heartbeats.silent_nodes import SILENT_S, silent_nodes, who_is_silent
from harness.launch.backends.protocol import PolledState
from harness.launch.backends.registry import backend_of_run
from harness.run import Run
from harness.run.ended import why_it_wrote_no_more
from harness.run.record import FINAL, State


def why_never_begun(run: Run) -> str:
    """Of a job that wrote nothing: the last line that its shell printed; empty where there is none."""
    lines = SCHEDULER_LOG.end_text(run.scheduler_log, 1 << 12).strip().splitlines()
    if not lines:
        return ""
    python = run.record.job.get("python")
    hint = "; job_python of the site file names another Python" * (isinstance(python, str) and python in lines[-1])
    return printable(f"its script did not begin: {lines[-1]}{hint}")


def look_at(run: Run) -> PolledState:
    """The run's state and why, from its backend; raises WorkError where that is not here. An end that the job could not
    write is kept in the run."""
    found = backend_of_run(run).poll(run)
    own = run.status()
    if found.state in ("failed", "completed") and (full := why_it_wrote_no_more(run)):
        found = found._replace(why=full if found.state == "failed" else "; ".join(filter(None, [found.why, full])))
    if found.state == "failed" and own is None and not found.why:
        found = found._replace(why=why_never_begun(run))
    settled = own is not None and own.state == found.state and own.is_settled
    if found.state == "node_fail" and not settled and (silent := silent_nodes(run.path, SILENT_S)):
        found = found._replace(why="; ".join(filter(None, [found.why, who_is_silent(silent)])))
    if found.told_by is not None and found.state in FINAL and not settled:
        run.write_down(found.state, found.told_by, found.why)
    if found.state in FINAL and own and own.state == found.state and not found.why:
        found = found._replace(why=own.why or own.note)
    hang = None if found.why or found.state in ("queued", "completed", "unknown") else read_hang(run.path)
    if hang is not None and hang.until_ns is None:
        ending = hang.stops and found.state == "running"
        return found._replace(why=hang.since_clock + "; it is being ended" * ending, ending=found.ending or ending)
    return found


def state_of(run: Run) -> State:
    """The run's state alone. Raises as `look_at`."""
    return look_at(run).state
