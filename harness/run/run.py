"""Run: one submission and everything it left on disk. A caller that needs a file of a run asks here for its path. A
run's directory keeps its name."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from harness.common.bounded_read import read_bounded_text, why_unread
from harness.common.errors import WorkError
from harness.common.memory_snapshot import memory_file
from harness.common.metrics_lines import lines_file, metrics_file
from harness.common.mystery import hidden_faults
from harness.common.paths import NCCL_LOGS
from harness.run.files import SECRET_MODE, write_atomically

if TYPE_CHECKING:  # a run's traces are found without what reads its record
    from pydantic import BaseModel

    from harness.run.record import NodeStatus, RunRecord, State, Status

SUBMITTED = "submitted"
"""A word after a job's script: slurm.sh will move the run's directory into place. Without it the job makes one."""
LOCAL = ".local"  # in the runs' folder: one folder for each local run, named by its number
Written = TypeVar("Written", bound="BaseModel")
TRACE_FOLDERS = ("torch", "nsys")  # of a run, by its profiler


class Run:
    """A run's directory, `…/profiler/<name>/`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.script = path / "job.sbatch"
        self.record_file = path / "run.json"
        self.summary = path / "summary.json"
        self.page = path / "report.html"
        self.plan = path / "plan.json"  # what was expected of it before it started
        self.collectives = path / "comm" / "collectives.json"  # exercise 0: the measured times
        self.verdict = path / "comm" / "verdict.json"  # exercise 0: the conclusion

    @property
    def name(self) -> str:
        return self.path.name

    @cached_property
    def record(self) -> RunRecord:
        """What run.json says. Raises WorkError: it is missing or not one of ours."""
        from harness.run.record import RunRecord

        try:
            record = RunRecord.model_validate_json(read_bounded_text(self.record_file))
        except (OSError, ValueError) as error:
            raise WorkError(f"{self.record_file} cannot be read: {why_invalid(error)}") from None
        return record.with_faults(hidden_faults(self.path))

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
        return self.is_run or (self.path / "metrics").is_dir()

    @property
    def log_dir(self) -> Path:
        """Where log.out and log.err are: `…/logs/<jobid>/`."""
        return self.path.parent.parent / "logs" / self.job_id

    @property
    def out(self) -> Path:
        return self.log_dir / "log.out"

    @property
    def err(self) -> Path:
        return self.log_dir / "log.err"

    @property
    def controller_dir(self) -> Path:
        """The local backend's own folder: see `claim_local_id`."""
        return self.path.parents[2] / LOCAL / self.job_id.removeprefix("local-")

    @property
    def scheduler_log(self) -> Path:
        """What Slurm itself wrote (a cancellation, a time limit); absent when it wrote nothing."""
        return self.path.parent.parent / "logs" / f"slurm-{self.job_id}.out"

    def log_after(self, job_id: str) -> Path:
        """The output of a job that was queued to begin after this run."""
        return self.log_dir / f"after-{job_id}.out"

    def traces(self) -> list[Path]:
        """What a profiler left: Kineto files, else nsys reports or their exports."""
        kineto = sorted((self.path / "torch").glob("rank*.json.gz"))
        if kineto:
            return kineto
        reports = sorted((self.path / "nsys").glob("*.nsys-rep"))
        return reports or sorted((self.path / "nsys").glob("*.sqlite"))

    def metrics(self) -> list[Path]:
        """What the training wrote about its steps, one file per rank."""
        pattern = metrics_file(self.path, "*")
        return sorted(pattern.parent.glob(pattern.name))

    def lines(self) -> list[Path]:
        """Where the ranks' main threads were in their programs, as their observers sampled it; one file per rank."""
        pattern = lines_file(self.path, "*")
        return sorted(pattern.parent.glob(pattern.name))

    def monitors(self) -> list[Path]:
        """The monitor's folders, one per node."""
        return sorted(p for p in (self.path / "gpus-monitor").glob("*") if p.is_dir())

    def memory_snapshots(self) -> list[Path]:
        """Who held each rank's memory, one file per rank: see `--memory-snapshot`."""
        pattern = memory_file(self.path, "*")
        return sorted(pattern.parent.glob(pattern.name))

    def nccl_logs(self) -> list[Path]:
        """What NCCL wrote about itself, one file per process: see `--nccl-debug`."""
        return sorted((self.path / NCCL_LOGS).glob("*.log"))

    def nodes(self) -> list[NodeStatus]:
        """The reports of the nodes that have ended, without a file that cannot be read: a full disk may hold half."""
        return [status for status in self.started_nodes() if status.exit is not None]

    def started_nodes(self) -> list[NodeStatus]:
        """The nodes' own reports so far, also of those that still run."""
        from harness.run.record import NodeStatus

        found = (_read(NodeStatus, path) for path in (self.path / "node-status").glob("[0-9]*.json"))
        return sorted((status for status in found if status is not None), key=lambda status: status.node)

    def status(self) -> Status | None:
        """What the job itself last wrote; None before it started. Its end is in the record too, should this be lost."""
        from harness.run.record import Status

        return _read(Status, self.path / "status.json") or (self.known_record.status if self.known_record else None)

    def write_node(self, status: NodeStatus) -> None:
        write_atomically(self.path / "node-status" / f"{status.node}.json", status.model_dump_json() + "\n")

    def write_status(self, status: Status) -> None:
        write_atomically(self.path / "status.json", status.model_dump_json(indent=1) + "\n")

    def write_down(self, state: State, told_by: str, why: str = "") -> None:
        """Keep an end that the job could not write; `told_by` knows it. A job's own word about its end stays. Where
        this user may not write, nothing is kept."""
        from harness.run.record import Status

        own = self.status() or Status(state=state)
        learned = own.model_copy(update={"state": state, "told_by": told_by, "why": why or own.why})
        with suppress(WorkError):
            write_atomically(
                self.path / "status.json",
                learned.model_dump_json(indent=1) + "\n",
                still=lambda: (own := self.status()) is None or not own.is_settled or own.told_by is not None,
            )

    def write_record(self, record: RunRecord) -> None:
        text = record.model_dump_json(indent=1) + "\n"
        write_atomically(self.record_file, text, mode=SECRET_MODE if record.holds_secret else None)
        self.__dict__.pop("record", None)


def why_invalid(error: OSError | ValueError) -> str:
    """Why a file was not read as its model, in one line; of a model's errors the first, with its field."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return why_unread(error)
    first = error.errors(include_input=False, include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}{': ' * bool(where)}{first['msg']}"


def _read(record_class: type[Written], path: Path) -> Written | None:
    try:
        return record_class.model_validate_json(read_bounded_text(path))
    except (OSError, ValueError):
        return None
