"""What every exercise is: its fields, the rules between them, its advice, and what the other rooms ask of it.

A field is an option (options.py). A rule names the fields that it joins, so that one message holds all broken rules.
Knows no cluster, no path and no launcher.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from harness.common.faults.fault import Exercise
from harness.common.model.model_config import Sharding
from harness.experiment import nccl
from harness.experiment.options import SIZE, BrokenRule, switch, tags_of, value

Fields = Mapping[str, Any]
"""Field of an experiment -> its new value."""

IDLE_FOR_DATA = "The devices are idle while the training process fetches the next batch."

# Larger than any profiled run, and small enough for every 32-bit count behind it.
MOST = 10_000_000


class Suggestion(NamedTuple):
    """Something to try. fields: of the experiment; None: the change is in the reader's own program."""

    text: str
    fields: Fields | None = None


class Advice(NamedTuple):
    """Why time is lost, and what to do, the best first."""

    why: str
    changes: tuple[Suggestion, ...]


class AdviceNumbers(NamedTuple):
    """The numbers of a run that an exercise's advice needs. fits: whether the state under another sharding would fit
    beside the measured peak of memory."""

    on_cpu: bool
    micro_batch: int | None
    fits: Callable[[Sharding], bool]


FEWER_MESSAGES = Suggestion("fewer, larger messages, or more work to hide them behind (micro-batch, overlap)")
IDLE_LINKS = Advice("Devices wait for messages while they have nothing else to do.", (FEWER_MESSAGES,))


Count = Annotated[int, Field(ge=1, le=MOST)]
CountOrZero = Annotated[int, Field(ge=0, le=MOST)]


class Experiment(BaseModel):
    """What every exercise has: a place in the workshop, a size, an observer.

    folder: in exercises/.
    short: a run ends within a minute, so that a launch waits and shows its answer.
    without_trace: what a run without a trace shows.
    gpus_only: what its runs show on GPUs only, and why.
    instead: a flag of another exercise, and what to use here.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    title: ClassVar[str]
    folder: ClassVar[str]
    short: ClassVar[bool] = False
    without_trace: ClassVar[str] = ""
    gpus_only: ClassVar[tuple[str, str] | None] = None
    instead: ClassVar[Mapping[str, str]] = {}

    exercise: Annotated[Exercise, Field(description="number of the exercise"), value("-e", "--exercise", group="where")]
    nodes: int = value("-n", "--nodes", tag="n", tag_place=SIZE, group="where").option(
        1, "number of nodes", ge=1, le=10_000
    )
    gpus_per_node: int | None = value(
        "-g", "--gpus-per-node", tag="g", tag_place=SIZE, free=True, group="where"
    ).option(None, "GPUs (on a CPU machine: processes) per node", ge=1, le=64)
    monitor_hz: float = value("--monitor-hz", metavar="HZ", free=True, compared=False, group="where", rare=True).option(
        1.0, "samples per second of the GPU monitor", ge=0.01, le=10
    )
    on_hang: Literal["report", "stop"] = value(
        "--on-hang", metavar="WHAT", free=True, compared=False, group="where"
    ).option("report", "if no rank makes progress: report it, or stop the job as soon as no rank works")
    no_ib: bool = switch(
        "--no-ib",
        tag="noib",
        tag_if_on=True,
        # The plugin in NVIDIA's containers is not NCCL's own InfiniBand, and has a variable of its own.
        env={"NCCL_IB_DISABLE": "1", "NCCL_IBEXT_DISABLE": "1"},
        **nccl.PLACE,
    ).option(False, "NCCL without InfiniBand: sockets between nodes")
    nccl_p2p_level: Literal["LOC", "NVL", "PIX", "PXB", "PHB", "SYS"] | None = value(
        "--nccl-p2p-level", metavar="LOC", tag="p2p", env="NCCL_P2P_LEVEL", **nccl.PLACE
    ).option(
        None,
        "how far apart two GPUs may be for NCCL to copy between them directly: LOC never, NVL over NVLink, "
        "PIX one PCIe switch, PXB several, PHB a CPU, SYS between CPUs (default: NCCL's choice)",
    )
    nccl_settings: nccl.Settings = value(
        "--nccl", metavar="KEY=VALUE", tag="nccl-", tag_if_on=True, env=nccl.PREFIX, repeats=True, **nccl.PLACE
    ).option((), "a variable of NCCL, such as ALGO=Ring for NCCL_ALGO")
    nccl_debug: bool = nccl.log_flag().option(False, nccl.LOG_MEANING)

    @property
    def heading(self) -> str:
        """The title of a run's page."""
        return f"Exercise {self.exercise}: {self.title}"

    @property
    def job_name(self) -> str:
        """The name of its jobs in a queue."""
        return f"e{self.exercise}-{self.folder.split('_', 2)[2]}"

    def name(self, model_name: str | None) -> tuple[str, str]:
        """The run's name before and after the job's id. model_name: the trained model's."""
        return model_name or self.title.replace(" ", "-"), tags_of(self)

    @property
    def world_size(self) -> int | None:
        """Number of ranks, once the GPUs per node are known."""
        return None if self.gpus_per_node is None else self.nodes * self.gpus_per_node

    @property
    def in_bf16(self) -> bool:
        """Whether the training computes in bf16, or in part in less."""
        return False

    @property
    def sharding(self) -> Sharding | None:
        """What the data-parallel ranks shard; None: theory expects no messages."""
        return None

    @property
    def copy_ranks(self) -> int:
        """Ranks that share a second copy of the parameters; 1: without such a copy."""
        return 1

    @property
    def for_theory(self) -> dict[str, Any]:
        """What theory asks of a run: a plain record, as the numbers of a trace know no experiment."""
        return {"sharding": self.sharding, "in_bf16": self.in_bf16, "copy_ranks": self.copy_ranks}

    @property
    def stage_ranks(self) -> int:
        """Ranks that share the layers of one pipeline stage of one model."""
        return 1

    @property
    def batch_per_iteration(self) -> int | None:
        """Samples per iteration over all ranks, if the request gives them; None: they follow from other fields."""
        return None

    def more_work(self, micro_batch: int, batch: int | None) -> Fields:
        """The fields that double `micro_batch`. batch: samples per iteration over all ranks."""
        return {"micro_batch_size": 2 * micro_batch}

    def on_purpose(self, cause: Literal["communication", "data"], seen: AdviceNumbers) -> Advice | None:
        """Advice if this request itself makes `cause` cost time."""
        return None

    def send_less(self, seen: AdviceNumbers) -> Advice:
        """How to expose less communication."""
        return IDLE_LINKS

    def broken_rules(self) -> Iterator[BrokenRule]:
        yield from nccl.contradictions(self)
