"""Run: one submission and everything it left on disk. A caller that needs a file of a run asks here for its path. A
run's directory keeps its name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from harness.common.errors import WorkError
from harness.common.faults.mystery import hidden_faults
from harness.common.run_folder import run_files
from harness.common.run_folder.run_store import Content, RunFile
from harness.run.files import SECRET_MODE, write_atomically

if TYPE_CHECKING:  # a run's traces are found without what reads its record
    from harness.run.record import NodeStatus, RunRecord, State, Status

SUBMITTED = "submitted"
"""A word after a job's script: slurm.sh will move the run's directory into place. Without it the job makes one."""
LOCAL = ".local"  # in the runs' folder: one folder for each local run, named by its number
TRACE_FOLDERS = ("torch", "nsys")  # of a run, by its profiler


class Run:
    """A run's directory, `…/profiler/<name>/`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.script = run_files.SCRIPT.path(path)
        self.record_file = run_files.RECORD.path(path)
        self.summary = run_files.SUMMARY.path(path)
        self.page = run_files.PAGE.path(path)
        self.plan = run_files.PLAN.path(path)
        self.collectives = run_files.COLLECTIVES.path(path)

    @property
    def name(self) -> str:
        return self.path.name

    def where(self, run_file: RunFile[Content], member: int | str = "") -> Path:
        """The path of a file of the table. member: of a kind, the rank, node or number."""
        if run_file.kept_in == "run":
            return run_file.path(self.path, member)
        return run_file.path(self.log_dir if run_file.kept_in == "log" else self.log_dir.parent, member)

    def read(self, run_file: RunFile[Content], member: int | str = "") -> Content:
        """What the file has. Raises UnreadFileError: it is missing or damaged."""
        return run_file.read(self.where(run_file, member))

    def known(self, run_file: RunFile[Content], member: int | str = "") -> Content | None:
        """What the file has; None where it is missing or damaged."""
        return run_file.known(self.where(run_file, member))

    def write(
        self,
        run_file: RunFile[Content],
        content: Content,
        member: int | str = "",
        still: Callable[[], bool] = lambda: True,
        mode: int | None = None,
    ) -> None:
        """Write the file as a whole or not at all; still, mode and errors as of `write_atomically`."""
        write_atomically(self.where(run_file, member), run_file.encode(content), still, mode)

    @cached_property
    def record(self) -> RunRecord:
        """What run.json says. Raises WorkError: it is missing or not one of ours."""
        from harness.run.record import RECORD_FILE

        return self.read(RECORD_FILE).with_faults(hidden_faults(self.path))

    @property
    def known_record(self) -> RunRecord | None:
        """The record, or None where it is lost."""
        try:
            return self.record
        except WorkError:
            return None

    @property
    def job_id(self) -> str:
        return self.record.job_id

    @property
    def is_run(self) -> bool:
        return self.record_file.is_file()

    @property
    def looks_like_run(self) -> bool:
        """Whether the directory is a run, also where its record was lost."""
        return self.is_run or run_files.METRICS.folder(self.path).is_dir()

    @property
    def log_dir(self) -> Path:
        """Where log.out and log.err are: `…/logs/<jobid>/`."""
        return self.path.parent.parent / "logs" / self.job_id

    @property
    def out(self) -> Path:
        return self.where(run_files.OUT)

    @property
    def err(self) -> Path:
        return self.where(run_files.ERR)

    @property
    def controller_dir(self) -> Path:
        """The local backend's own folder: see `claim_local_id`."""
        return self.path.parents[2] / LOCAL / self.job_id.removeprefix("local-")

    @property
    def scheduler_log(self) -> Path:
        """What Slurm itself wrote (a cancellation, a time limit); absent when it wrote nothing."""
        return self.where(run_files.SCHEDULER_LOG, self.job_id)

    def log_after(self, job_id: str) -> Path:
        """The output of a job that was queued to begin after this run."""
        return self.where(run_files.AFTER, job_id)

    def traces(self) -> list[Path]:
        """What a profiler left: Kineto files, else nsys reports or their exports."""
        kineto = run_files.KINETO.paths(self.path)
        return kineto or run_files.NSYS_REPORTS.paths(self.path) or run_files.NSYS_EXPORTS.paths(self.path)

    def metrics(self) -> list[Path]:
        """What the training wrote about its steps, one file per rank."""
        return run_files.METRICS.paths(self.path)

    def lines(self) -> list[Path]:
        """Where the ranks' main threads were in their programs, as their observers sampled it; one file per rank."""
        return run_files.LINES.paths(self.path)

    def monitors(self) -> list[Path]:
        """The monitor's folders, one per node."""
        return [path for path in run_files.MONITORS.paths(self.path) if path.is_dir()]

    def memory_snapshots(self) -> list[Path]:
        """Who held each rank's memory, one file per rank: see `--memory-snapshot`."""
        return run_files.MEMORY_SNAPSHOTS.paths(self.path)

    def nccl_logs(self) -> list[Path]:
        """What NCCL wrote about itself, one file per process: see `--nccl-debug`."""
        return run_files.NCCL_LOGS.paths(self.path)

    def nodes(self) -> list[NodeStatus]:
        """The reports of the nodes that have ended, without a file that cannot be read: a full disk may hold half."""
        return [status for status in self.started_nodes() if status.exit is not None]

    def started_nodes(self) -> list[NodeStatus]:
        """The nodes' own reports so far, also of those that still run."""
        from harness.run.record import NODE_STATUS_FILE

        paths = (path for path in NODE_STATUS_FILE.paths(self.path) if path.name[0].isdecimal())
        known = (status for path in paths if (status := NODE_STATUS_FILE.known(path)) is not None)
        return sorted(known, key=lambda status: status.node)

    def status(self) -> Status | None:
        """What the job itself last wrote; None before it started. Its end is in the record too, should this be lost."""
        from harness.run.record import STATUS_FILE

        return self.known(STATUS_FILE) or (self.known_record.status if self.known_record else None)

    def write_node(self, status: NodeStatus) -> None:
        from harness.run.record import NODE_STATUS_FILE

        self.write(NODE_STATUS_FILE, status, status.node)

    def write_status(self, status: Status) -> None:
        from harness.run.record import STATUS_FILE

        self.write(STATUS_FILE, status)

    def write_down(self, state: State, told_by: str, why: str = "") -> None:
        """Keep an end that the job could not write; `told_by` knows it. A job's own word about its end stays. Where
        this user may not write, nothing is kept."""
        from harness.run.record import STATUS_FILE, Status

        own = self.status() or Status(state=state)
        learned = own.model_copy(update={"state": state, "told_by": told_by, "why": why or own.why})
        with suppress(WorkError):
            self.write(
                STATUS_FILE,
                learned,
                still=lambda: (own := self.status()) is None or not own.is_settled or own.told_by is not None,
            )

    def write_record(self, record: RunRecord) -> None:
        from harness.run.record import RECORD_FILE

        self.write(RECORD_FILE, record, mode=SECRET_MODE if record.holds_secret else None)
        self.__dict__.pop("record", None)
