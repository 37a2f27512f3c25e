"""The numbers of one job as one versioned document: what `report` prints and `compare` reads.

It knows no trace and no file. A field that is None was not recorded, or is withheld: `withheld` gives the reason.
docs/metrics.md is written from the texts of these classes and fields: `python scripts/documents/pages.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import msgspec

from harness.analysis.summary.base import CodeLocation as CodeLocation
from harness.analysis.summary.base import Problem as Problem
from harness.analysis.summary.base import Quality as Quality
from harness.analysis.summary.base import RecordingVerdict as RecordingVerdict
from harness.analysis.summary.base import SummaryPart as SummaryPart
from harness.analysis.summary.base import TraceSource as TraceSource
from harness.analysis.summary.base import Window as Window
from harness.analysis.summary.base import Withheld as Withheld
from harness.analysis.summary.communication import Clock as Clock
from harness.analysis.summary.communication import Collective as Collective
from harness.analysis.summary.communication import CollectiveFit as CollectiveFit
from harness.analysis.summary.communication import CollectivePhase as CollectivePhase
from harness.analysis.summary.communication import LongMessage as LongMessage
from harness.analysis.summary.communication import MessageSize as MessageSize
from harness.analysis.summary.communication import Straggler as Straggler
from harness.analysis.summary.communication import Traffic as Traffic
from harness.analysis.summary.efficiency import Efficiency as Efficiency
from harness.analysis.summary.efficiency import PopEfficiency as PopEfficiency
from harness.analysis.summary.efficiency import ProfilerCost as ProfilerCost
from harness.analysis.summary.efficiency import ProfilerOverhead as ProfilerOverhead
from harness.analysis.summary.environment import RunEnvironment as RunEnvironment
from harness.analysis.summary.kernels import ApiTime as ApiTime
from harness.analysis.summary.kernels import Copy as Copy
from harness.analysis.summary.kernels import CopySize as CopySize
from harness.analysis.summary.kernels import CounterOverTime as CounterOverTime
from harness.analysis.summary.kernels import KernelTime as KernelTime
from harness.analysis.summary.kernels import Launches as Launches
from harness.analysis.summary.kernels import MetricAverage as MetricAverage
from harness.analysis.summary.memory import Memory as Memory
from harness.analysis.summary.memory import MemoryGrowth as MemoryGrowth
from harness.analysis.summary.memory import MemoryHolder as MemoryHolder
from harness.analysis.summary.memory import MemoryKeeper as MemoryKeeper
from harness.analysis.summary.memory import MemoryMoment as MemoryMoment
from harness.analysis.summary.memory import MemoryRank as MemoryRank
from harness.analysis.summary.memory import MemoryTimeline as MemoryTimeline
from harness.analysis.summary.monitor import MonitorDevice as MonitorDevice
from harness.analysis.summary.monitor import NodeNetwork as NodeNetwork
from harness.analysis.summary.nccl import Nccl as Nccl
from harness.analysis.summary.nccl import NcclConnection as NcclConnection
from harness.analysis.summary.nccl import NcclNetwork as NcclNetwork
from harness.analysis.summary.nccl import NcclVariable as NcclVariable
from harness.analysis.summary.nccl import NcclWarning as NcclWarning
from harness.analysis.summary.pace import PaceChange as PaceChange
from harness.analysis.summary.pace import PaceOutlier as PaceOutlier
from harness.analysis.summary.pace import PacePlace as PacePlace
from harness.analysis.summary.pace import Pacing as Pacing
from harness.analysis.summary.pace import SlowestRank as SlowestRank
from harness.analysis.summary.pipeline import Pipeline as Pipeline
from harness.analysis.summary.pipeline import PipelineStage as PipelineStage
from harness.analysis.summary.ranges import RangeTime as RangeTime
from harness.analysis.summary.replay import LineShare as LineShare
from harness.analysis.summary.replay import Replay as Replay
from harness.analysis.summary.replay import TimeLost as TimeLost
from harness.analysis.summary.replay import WhatIf as WhatIf
from harness.analysis.summary.time import BeforeSteps as BeforeSteps
from harness.analysis.summary.time import Device as Device
from harness.analysis.summary.time import Gap as Gap
from harness.analysis.summary.time import HostActivity as HostActivity
from harness.analysis.summary.time import IdleCause as IdleCause
from harness.analysis.summary.time import KindTime as KindTime
from harness.analysis.summary.time import PhaseTime as PhaseTime
from harness.analysis.summary.time import RankSteps as RankSteps
from harness.analysis.summary.time import Spread as Spread
from harness.analysis.summary.time import Steps as Steps
from harness.analysis.summary.time import StepSplit as StepSplit
from harness.analysis.summary.time import TimeSplit as TimeSplit
from harness.analysis.summary.training import JobImport as JobImport
from harness.analysis.summary.training import JobTime as JobTime
from harness.analysis.summary.training import JobTimePart as JobTimePart
from harness.analysis.summary.training import PredictedNumber as PredictedNumber
from harness.analysis.summary.training import RankTraining as RankTraining

SCHEMA_VERSION: Literal[1] = 1
TOP_KERNELS = 200  # rows of `kernels`; a table as long as that may have been cut


class Summary(SummaryPart, kw_only=True):
    """One job, as `report --json` gives it."""

    as_html: ClassVar[Callable[[Summary], str] | None] = None  # how a notebook shows it; harness/ sets it

    schema_version: Literal[1] = SCHEMA_VERSION
    """Version of this document. A reader refuses versions that it does not know."""
    quality: Quality = msgspec.field(default_factory=Quality)
    """How reliable the recording is. Read it first."""
    findings: list[TimeLost] = []
    """Causes of lost time, the largest loss first. Without a replay (it differs from the run by over 2 %, or the traces
    have no work) they are shares of the devices' time. Empty if no cause costs a noticeable time."""
    window: Window = Window.STEPS
    """`steps` or `gpu`."""
    run: dict[str, Any] | None = None
    """From run.json: job id, backend, times, git state, versions, command, site, `device` (`cuda` or `cpu`),
    `resolved`: the experiment with the values that site, machine and model added, and `theory`: its `sharding`,
    `in_bf16` and `copy_ranks`, from which the expected bytes are computed."""
    experiment: dict[str, Any] | None = None
    """From run.json: what the user asked for."""
    sources: list[TraceSource] = []
    """One entry per process that was read."""
    world_size: int | None = None
    """From the traces or the training's metrics. Else, for nsys reports of a run, the number of ranks that name
    themselves."""
    ranks: list[int] = []
    """The ranks that were read."""
    hosts: list[str] = []
    """The hosts they ran on."""
    backend: str | None = None
    """The communication backend, if recorded."""
    steps: Steps = msgspec.field(default_factory=lambda: Steps(source="none"))
    """Which steps were found and how long they took."""
    pacing: Pacing | None = None
    """How evenly the ranks go through the same steps. Null if fewer than two ranks have a step in common."""
    devices: list[Device] = []
    """One entry per device of each process."""
    pop: PopEfficiency | None = None
    """The efficiencies that POP and TALP define. Null if they are withheld."""
    kinds: list[KindTime] = []
    """Kinds of work, summed over devices."""
    kernels: list[KernelTime] = []
    """The 200 kernels (CPU: operators) with most time, summed over ranks."""
    unclassified: list[KernelTime] = []
    """The 30 largest of kind `other`, by name."""
    idle_causes: list[IdleCause] = []
    """Idle time by cause, summed over devices."""
    before_steps: list[BeforeSteps] = []
    """What passed before the first step, one entry per process."""
    host_activities: list[HostActivity] = []
    """What the hosts did while devices had no work, most time of each process first."""
    phases: list[PhaseTime] = []
    """Device time by phase of training, summed over devices."""
    ranges: list[RangeTime] = []
    """The program's own ranges by label, summed over ranks."""
    collectives: list[Collective] = []
    """Per kind, group and element type."""
    collective_phases: list[CollectivePhase] = []
    """Per kind and phase of training."""
    traffic: list[Traffic] = []
    """Per rank, kind, group, phase and message size: what a step sends, and how exposed."""
    long_messages: list[LongMessage] = []
    """Per rank, kind, group, phase, message size and place: those that are exposed longest."""
    message_sizes: list[MessageSize] = []
    """Per kind, group size and message size."""
    collective_fits: list[CollectiveFit] = []
    """Latency and time per byte."""
    stragglers: list[Straggler] = []
    """The ranks that others wait for."""
    clocks: list[Clock] = []
    """Clock offsets, if ranks have more than one clock."""
    pipeline: Pipeline | None = None
    """Null if the ranks show fewer than two stages."""
    launches: list[Launches] = []
    """One entry per process with kernels."""
    copies: list[Copy] = []
    """Per direction, summed over ranks."""
    training: list[RankTraining] = []
    """What each rank's training script wrote about itself."""
    environments: list[RunEnvironment] = []
    """With what the training ran, one entry for nodes on which all of it is equal. Empty if nothing recorded it."""
    job_time: JobTime | None = None
    """Where the job's elapsed time went, from its begin to its end. Null if nothing recorded it."""
    pace_changes: list[PaceChange] = []
    """The steps of the whole training at which it became slower or faster. Empty if it is steady."""
    slowest_rank: SlowestRank | None = None
    """The rank that the others wait for in the whole training. Null with fewer than two ranks or 20 steps."""
    profiler_cost: ProfilerCost | None = None
    """The profiled steps against the other steps of the same run. Null without a trace, and if one of the two has
    fewer than three steps."""
    profiler_overhead: list[ProfilerOverhead] = []
    """One entry per process beside which the profiler recorded its own work."""
    efficiency: Efficiency | None = None
    """Throughput of the whole job."""
    monitor: list[MonitorDevice] = []
    """The samples of the monitor beside the job."""
    network: list[NodeNetwork] = []
    """Each node's network, as the monitor and nsys sampled it. Empty without samples."""
    nccl: Nccl | None = None
    """What NCCL's own log says of transports, with `--nccl-debug`. Null without a log; the report then says
    why."""
    memory: Memory | None = None
    """Who held the memory of tensors, with `--memory-snapshot` or `--memory`. Null without a file that can be read."""
    memory_growth: list[MemoryGrowth] = []
    """What grows with the steps of the whole training. Empty if nothing does, or fewer than 24 steps are known."""
    replay: Replay | None = None
    """The job's events replayed, and predicted steps with one thing changed. Null if the traces have no work."""
    predictions: list[PredictedNumber] = []
    """What the run's plan predicted, beside what was measured. Empty without a plan that can be read."""

    def with_problems(self, problems: Sequence[Problem]) -> Summary:
        """With more problems. One of many files that cannot be read makes the rest doubtful, not unusable."""
        order = list(RecordingVerdict)
        severities = [min(each.severity, RecordingVerdict.DOUBTFUL, key=order.index) for each in problems]
        worst = max([self.quality.verdict, *severities], key=order.index)
        every = [*problems, *self.quality.problems]
        return self.model_copy(
            update={"quality": self.quality.model_copy(update={"verdict": worst, "problems": every})}
        )

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """What IPython keeps beside the HTML. repr, 55 kB of two ranks, would be in every saved notebook too."""
        printer.text(f"Summary of {len(self.devices)} devices, {self.steps.counted} steps")

    def _repr_html_(self) -> str | None:
        return None if Summary.as_html is None else Summary.as_html(self)
