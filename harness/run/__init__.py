"""A run on disk: its directory, its record, how it is staged and found again."""

from harness.run.files import (
    SECRET_MODE,
    DiskError,
    disk_error,
    folder_bytes,
    make_shared,
    naming_flag,
    own_runs_root,
    run_roots,
    runs_root,
    typed,
    when,
    why_invalid,
    without_secrets,
    write_atomically,
)
from harness.run.find import (
    Stage,
    all_runs,
    claim_local_id,
    closed,
    find_run,
    no_runs,
    part_of,
    release_local_id,
    trainings,
)
from harness.run.run import SUBMITTED, TRACE_FOLDERS, Run

__all__ = [
    "SECRET_MODE", "SUBMITTED", "TRACE_FOLDERS", "DiskError", "Run",
    "Stage", "all_runs", "claim_local_id", "closed", "disk_error", "find_run", "folder_bytes",
    "make_shared", "naming_flag", "no_runs", "own_runs_root", "part_of", "release_local_id", "run_roots",
    "runs_root", "trainings", "typed", "when", "why_invalid", "without_secrets", "write_atomically",
]  # fmt: skip
