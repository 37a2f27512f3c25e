"""A run deleted so that it is there as a whole or not at all."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress

from harness.common.run_folder.run_files import RECORD
from harness.run.files import disk_error
from harness.run.run import Run

_GONE = ".deleted-"


def delete_run(run: Run) -> None:
    """Delete a run with its logs, and with it what an interrupted deletion left beside it. Its number is not given
    again. Raises DiskError."""
    gone = run.path.with_name(f"{_GONE}{os.getpid()}-{time.time_ns()}")
    logs = [run.log_dir, run.scheduler_log] if _is_alone(run) else []
    of_controller = list(run.controller_dir.glob("*")) if logs else []
    try:
        run.path.rename(gone)
        for each in logs:
            with suppress(FileNotFoundError):
                each.rename(gone / f"{_GONE}{each.name}")
        for file in of_controller:
            file.unlink(missing_ok=True)
        for left in gone.parent.glob(f"{_GONE}*"):
            shutil.rmtree(left, ignore_errors=left != gone)
    except OSError as error:
        raise disk_error(run.path, error) from None


def _is_alone(run: Run) -> bool:
    """Whether the logs of its id are its own: it lies where it was made, and beside it is no copy of it."""
    record, folder = run.known_record, run.path.parent
    others = (Run(path.parent).known_record for path in folder.glob(f"[!.]*/{RECORD.name}") if path.parent != run.path)
    return (
        record is not None
        and folder.name == "profiler"
        and all(other is None or other.job_id != record.job_id for other in others)
    )
