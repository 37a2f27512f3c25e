"""The numbers of one job as one versioned document: what `report` prints and `compare` reads.

It knows no trace and no file. A field that is None was not recorded, or was withheld: `withheld` says why.
Every field is defined, with its formula and source, in docs/metrics.md; a test keeps that page complete.
"""
# ruff: noqa: F403, F405 - this is the one place from which the schema is imported

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

from pydantic import Field

from harness.analysis.summary.base import *
from harness.analysis.summary.communication import *
from harness.analysis.summary.machine import *
from harness.analysis.summary.time import *
from harness.experiment.exercises import Recorded

SCHEMA_VERSION: Literal[1] = 1
TOP_KERNELS = 200  # rows of `kernels`; a table as long as that may have been cut


class Summary(SummaryPart):
    """One job."""

    as_html: ClassVar[Callable[[Summary], str] | None] = (
        None  # how a notebook shows it; set by who knows words
    )

    schema_version: Literal[1] = SCHEMA_VERSION
    quality: Quality = Field(default_factory=Quality)
    window: Window = Window.STEPS
    run: dict[str, Any] | None = None
    experiment: Recorded = None
    sources: list[TraceSource] = Field(default_factory=list)
    world_size: int | None = None
    ranks: list[int] = Field(default_factory=list)
    hosts: list[str] = Field(default_factory=list)
    backend: str | None = None
    steps: Steps = Field(default_factory=lambda: Steps(source="none"))
    devices: list[Device] = Field(default_factory=list)
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
    hta: list[HtaSplit] = Field(default_factory=list)

    def _repr_html_(self) -> str | None:
        return None if Summary.as_html is None else Summary.as_html(self)
