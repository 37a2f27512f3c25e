"""The numbers of one job as one versioned document: what `report` prints and `compare` reads.

It knows no trace and no file. A field that is None was not recorded, or is withheld: `withheld` gives the reason.
docs/metrics.md defines every field, with formula and source; a test keeps that page complete.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

from pydantic import Field

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
from harness.analysis.summary.communication import MessageSize as MessageSize
from harness.analysis.summary.communication import Pipeline as Pipeline
from harness.analysis.summary.communication import PipelineStage as PipelineStage
from harness.analysis.summary.communication import Straggler as Straggler
from harness.analysis.summary.machine import ApiTime as ApiTime
from harness.analysis.summary.machine import Copy as Copy
from harness.analysis.summary.machine import Efficiency as Efficiency
from harness.analysis.summary.machine import Launches as Launches
from harness.analysis.summary.machine import MonitorDevice as MonitorDevice
from harness.analysis.summary.machine import NetworkOverTime as NetworkOverTime
from harness.analysis.summary.machine import NodeNetwork as NodeNetwork
from harness.analysis.summary.machine import RankTraining as RankTraining
from harness.analysis.summary.memory import Memory as Memory
from harness.analysis.summary.memory import MemoryHolder as MemoryHolder
from harness.analysis.summary.memory import MemoryMoment as MemoryMoment
from harness.analysis.summary.memory import MemoryRank as MemoryRank
from harness.analysis.summary.memory import MemoryTimeline as MemoryTimeline
from harness.analysis.summary.nccl import Nccl as Nccl
from harness.analysis.summary.nccl import NcclChoice as NcclChoice
from harness.analysis.summary.nccl import NcclCommunicator as NcclCommunicator
from harness.analysis.summary.nccl import NcclConnection as NcclConnection
from harness.analysis.summary.nccl import NcclNetwork as NcclNetwork
from harness.analysis.summary.nccl import NcclRank as NcclRank
from harness.analysis.summary.nccl import NcclVariable as NcclVariable
from harness.analysis.summary.nccl import NcclWarning as NcclWarning
from harness.analysis.summary.pacing import PaceHeat as PaceHeat
from harness.analysis.summary.pacing import PaceOutlier as PaceOutlier
from harness.analysis.summary.pacing import PacePlace as PacePlace
from harness.analysis.summary.pacing import PaceRow as PaceRow
from harness.analysis.summary.pacing import Pacing as Pacing
from harness.analysis.summary.plan import Predicted as Predicted
from harness.analysis.summary.pop import PopEfficiency as PopEfficiency
from harness.analysis.summary.reference import ReferenceStep as ReferenceStep
from harness.analysis.summary.replay import Replay as Replay
from harness.analysis.summary.replay import TimeLost as TimeLost
from harness.analysis.summary.replay import WhatIf as WhatIf
from harness.analysis.summary.time import Device as Device
from harness.analysis.summary.time import Gap as Gap
from harness.analysis.summary.time import HtaSplit as HtaSplit
from harness.analysis.summary.time import IdleCause as IdleCause
from harness.analysis.summary.time import KernelTime as KernelTime
from harness.analysis.summary.time import KindTime as KindTime
from harness.analysis.summary.time import MetricAverage as MetricAverage
from harness.analysis.summary.time import PhaseTime as PhaseTime
from harness.analysis.summary.time import RangeTime as RangeTime
from harness.analysis.summary.time import RankSteps as RankSteps
from harness.analysis.summary.time import Spread as Spread
from harness.analysis.summary.time import Steps as Steps
from harness.analysis.summary.time import StepSplit as StepSplit
from harness.analysis.summary.time import TimeSplit as TimeSplit
from harness.experiment.exercises import Recorded

SCHEMA_VERSION: Literal[1] = 1
TOP_KERNELS = 200  # rows of `kernels`; a table as long as that may have been cut


class Summary(SummaryPart):
    """One job."""

    as_html: ClassVar[Callable[[Summary], str] | None] = None  # how a notebook shows it; harness/ sets it

    schema_version: Literal[1] = SCHEMA_VERSION
    quality: Quality = Field(default_factory=Quality)
    findings: list[TimeLost] = Field(default_factory=list)
    window: Window = Window.STEPS
    run: dict[str, Any] | None = None
    experiment: Recorded = None
    sources: list[TraceSource] = Field(default_factory=list)
    world_size: int | None = None
    ranks: list[int] = Field(default_factory=list)
    hosts: list[str] = Field(default_factory=list)
    backend: str | None = None
    steps: Steps = Field(default_factory=lambda: Steps(source="none"))
    pacing: Pacing | None = None
    devices: list[Device] = Field(default_factory=list)
    pop: PopEfficiency | None = None
    kinds: list[KindTime] = Field(default_factory=list)
    kernels: list[KernelTime] = Field(default_factory=list)
    unclassified: list[KernelTime] = Field(default_factory=list)
    idle_causes: list[IdleCause] = Field(default_factory=list)
    phases: list[PhaseTime] = Field(default_factory=list)
    ranges: list[RangeTime] = Field(default_factory=list)
    collectives: list[Collective] = Field(default_factory=list)
    collective_phases: list[CollectivePhase] = Field(default_factory=list)
    message_sizes: list[MessageSize] = Field(default_factory=list)
    collective_fits: list[CollectiveFit] = Field(default_factory=list)
    stragglers: list[Straggler] = Field(default_factory=list)
    clocks: list[Clock] = Field(default_factory=list)
    pipeline: Pipeline | None = None
    launches: list[Launches] = Field(default_factory=list)
    copies: list[Copy] = Field(default_factory=list)
    training: list[RankTraining] = Field(default_factory=list)
    efficiency: Efficiency | None = None
    monitor: list[MonitorDevice] = Field(default_factory=list)
    network: list[NodeNetwork] = Field(default_factory=list)
    nccl: Nccl | None = None
    memory: Memory | None = None
    hta: list[HtaSplit] = Field(default_factory=list)
    replay: Replay | None = None
    reference: ReferenceStep | None = None
    predictions: list[Predicted] = Field(default_factory=list)

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """What IPython keeps beside the HTML. repr, 55 kB of two ranks, would be in every saved notebook too."""
        printer.text(f"Summary of {len(self.devices)} devices, {self.steps.counted} steps")

    def _repr_html_(self) -> str | None:
        return None if Summary.as_html is None else Summary.as_html(self)
