"""What a run's files say of it: the record of the request, and how the job and its nodes ended."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.common.run_folder import run_files
from harness.common.system.bounded_read import BoundedReadError, parse_json
from harness.common.system.secrets import holds_secret, masked_words
from harness.experiment.exercises import AnyExperiment, OwnTraining, Training
from harness.run.files import typed
from harness.site.site import Site

State = Literal["queued", "running", "completed", "failed", "cancelled", "timeout", "node_fail", "stuck", "unknown"]
FINAL: frozenset[State] = frozenset({"completed", "failed", "cancelled", "timeout", "node_fail", "stuck"})

ITSELF = "the job itself"  # in `Status.told_by`: Slurm has forgotten the job, so nobody will know its end better

# What files say is computed with: numbers that no clock and no system gives are refused with the file.
UnixNs = Annotated[int, Field(ge=0, lt=1 << 63)]
Number = Annotated[int, Field(gt=-(1 << 31), lt=1 << 32)]  # of a node, a process, an exit


class NodeStatus(BaseModel):
    """What a node runs and how that ended, as the node wrote it. exit, ended_ns: None while it runs. commands: as they
    were started, after all changes; left_out: a sentence for each option that its nsys does not know."""

    model_config = ConfigDict(extra="ignore", defer_build=True)

    node: Number
    host: str
    exit: Number | None
    started_ns: UnixNs
    ended_ns: UnixNs | None
    commands: list[list[str]] = []
    left_out: list[str] = []
    topology: str = ""  # Slurm's SLURM_TOPOLOGY_ADDR and SLURM_TOPOLOGY_ADDR_PATTERN of the node's task
    topology_pattern: str = ""

    @property
    def elapsed_ns(self) -> int:
        """From its program's start to its end; 0 while it runs."""
        return 0 if self.ended_ns is None else self.ended_ns - self.started_ns

    @property
    def switch(self) -> str | None:
        """The network switch that the node hangs on, as Slurm's topology names it; None where Slurm knows of none.

        >>> names = {"topology": "root.leaf07.node4.site", "topology_pattern": "switch.switch.node"}
        >>> NodeStatus(node=4, host="node4", exit=0, started_ns=0, ended_ns=0, **names).switch
        'leaf07'
        """
        above = self.topology_pattern.split(".")[:-1]
        names = self.topology.split(".", len(above))
        return names[-2] if above and len(names) > len(above) else None


class Status(BaseModel):
    """The state that the job itself wrote, at its beginning and at its end; or its end as another learned it.

    told_by: the word of who said so, where the job could not: Slurm's, as NODE_FAIL. why: a sentence with it.
    note: what a completed job leaves open.
    """

    model_config = ConfigDict(extra="ignore", defer_build=True)

    state: State
    exit_code: Number | None = None
    pid: Number | None = None  # of the script, where the job runs on this machine
    host: str | None = None
    missing: list[str] = []  # reports that should be there and are not
    allocated_ns: UnixNs | None = None  # when Slurm gave the job its nodes, to a second
    started_ns: UnixNs | None = None
    ended_ns: UnixNs | None = None
    told_by: str | None = None
    why: str = ""
    note: str = ""

    @property
    def elapsed_ns(self) -> int | None:
        """From the script's start to its end; None: it did not write both."""
        if self.started_ns is None or self.ended_ns is None:
            return None
        return max(0, self.ended_ns - self.started_ns)

    @property
    def is_own_word(self) -> bool:
        """Whether the job itself wrote it."""
        return self.told_by in (None, ITSELF)

    @property
    def is_settled(self) -> bool:
        """Whether nobody knows its end better. A job that was stopped, or lost its neighbours, does not know for whom:
        its user, a node that failed, a job of higher priority."""
        return self.state in FINAL and (self.state in ("completed", "timeout", "stuck") or self.told_by is not None)


class SeriesPart(BaseModel):
    """A run's place among runs that were asked for together: a sweep, a reference, the two arms of a check.

    series: the whole's own name, as no other has it. point: the setting, the same text for the same setting.
    repeat: which of the runs with that setting, from 0.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    series: str
    point: str
    repeat: Number = 0


class Program(BaseModel):
    """The user's own training. script: its path, or the name of its module or command; git: of its repository."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    script: str
    arguments: list[str]
    python: str
    git: dict[str, str | bool | None]


class RunRecord(BaseModel):
    """run.json: enough to start the run again and to explain it later."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    schema_version: Literal[1] = 1
    job_id: str
    cluster: str | None = None  # that gave the job id, where sbatch named one
    backend: str  # its name among the backends of the launch
    experiment: AnyExperiment  # as asked
    site: Site  # as overridden
    job: dict[str, Any]  # as resolved
    command: list[str]
    git: dict[str, str | bool | None]
    versions: dict[str, str]
    program: Program | None = None
    user: str
    submit_host: str
    created_ns: UnixNs
    part: SeriesPart | None = None
    status: Status | None = None
    nodes: list[NodeStatus] = []
    inherited: dict[str, str] = {}  # variables of the submitting shell that change how a training communicates
    limits: dict[str, str] = {}  # umask and limits that it gave to the job
    for_sbatch: dict[str, str] = {}  # variables of that shell by which sbatch changed the job
    edited: str = ""  # of a script that was submitted by hand, how it differs from the request's

    def with_faults(self, faults: tuple[str, ...]) -> RunRecord:
        """The record with the faults of its mystery, if it is one."""
        experiment = self.experiment
        if not faults or not isinstance(experiment, Training) or experiment.mystery is None:
            return self
        mystery = experiment.mystery.model_copy(update={"faults": faults})
        return self.model_copy(update={"experiment": experiment.model_copy(update={"mystery": mystery})})

    @property
    def shown_command(self) -> list[str]:
        """The command as typed, for people: without the secrets in it."""
        return masked_words(self.command)

    @property
    def holds_secret(self) -> bool:
        """Whether only its owner may read it."""
        own = self.experiment.command if isinstance(self.experiment, OwnTraining) else ()
        return holds_secret([*self.command, *own])


class _JobParts(BaseModel):
    expects: list[str] | None = None
    experiment: dict[str, Any] | None = None


class _RecordParts(BaseModel):
    """The parts of run.json without which a reader of many, or damaged, records can do nothing."""

    experiment: dict[str, Any] | None = None
    site: dict[str, Any] | None = None
    job: _JobParts | None = None
    inherited: dict[str, str] = {}
    limits: dict[str, str] = {}
    edited: str = ""


def _with_valid_parts(text: str) -> dict[str, Any]:
    content = parse_json(text)
    try:
        _RecordParts.model_validate(content)
    except ValidationError as error:
        raise BoundedReadError(error.errors()[0]["msg"]) from None
    return dict(content)


NODE_STATUS_FILE = typed(run_files.NODE_STATUS, NodeStatus)
STATUS_FILE = typed(run_files.STATUS, Status)
RECORD_FILE = typed(run_files.RECORD, RunRecord)
PARTIAL_RECORD_FILE = run_files.RECORD.holding(_with_valid_parts)
"""The record as JSON has it, for who reads only its experiment, site and job: of another version, or damaged elsewhere,
it still counts."""
