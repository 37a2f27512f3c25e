"""What `report` and `status` say of a job that has several trainings, if it is named by its id."""

from __future__ import annotations

from harness.common.paths import COMMAND
from harness.common.run_folder.job_folder import failed_commands
from harness.launch.poll import look_at
from harness.run import Run, trainings

_WORST_FIRST = ["failed", "node_fail", "stuck", "timeout", "cancelled", "unknown", "queued", "running", "completed"]
MOST_SHOWN = 12


def of_job(run: Run, token: str) -> list[str]:
    """The worst state, and a line for each training, the worst first; nothing if there is one. token: by which the run
    was named."""
    found = trainings(run, token)
    failed = failed_commands(run.path.parent.parent, token) if found else {}
    rows = [("failed", f"{name}: failed, exit {code}, before anything trained") for name, code in failed.items()]
    rows += map(_row, found)
    if len(rows) < 2:
        return []
    rows.sort(key=lambda row: _WORST_FIRST.index(row[0]))
    count = sum(state == rows[0][0] for state, _ in rows)
    return [
        f"{token}   {rows[0][0]}: {count} of {len(rows)} trainings in this job",
        *(f"  {line}" for _, line in rows[:MOST_SHOWN]),
    ]


def _row(run: Run) -> tuple[str, str]:
    state, status = look_at(run).state, run.status()
    code = f", exit {status.exit_code}" if status is not None and status.exit_code else ""
    return state, f"{run.name}: {state}{code}: {COMMAND} report {run.job_id}"
