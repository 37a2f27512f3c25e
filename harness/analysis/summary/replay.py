"""A job's events replayed: the time lost per cause, and the step with one thing changed. Fields only."""

from __future__ import annotations

from pydantic import Field

from harness.analysis.summary.base import SummaryPart


class TimeLost(SummaryPart):
    """One cause of lost time. Times per step, mean over the counted steps, nanoseconds, with a 95 % interval (None: of
    fewer than three steps).

    lost_ns: the measured step minus the step replayed without the cause. ranks: those that do it, not those that wait
    for them. phase: where in a step, None: in no single phase. every: k, where it recurs in every k-th step. at_ns: an
    instance of it, on the clock of the timeline's rank `at_rank`.
    """

    cause: str
    ranks: list[int | None]
    phase: str | None = None
    every: int | None = None
    lost_ns: int
    low_ns: int | None = None
    high_ns: int | None = None
    share: float  # of the step
    standing: bool = False  # it is the program's usual course, and no departure from it
    at_ns: int | None = None
    at_rank: int | None = None
    evidence: str


class WhatIf(SummaryPart):
    """The step with one thing changed. `bound`: the step can be no shorter, and no run is expected to reach it.

    at_most: the step is no longer, and shorter by what no replay can know. low_ns, high_ns: where the mean step of such
    a run lies, 95 %; None: of fewer than three steps, or no such end is known.
    """

    name: str
    meaning: str
    step_ns: int
    low_ns: int | None = None
    high_ns: int | None = None
    gain: float  # share of the step
    bound: bool = False
    at_most: bool = False
    per: int = 1  # micro-batches of now in the changed step, by which step_ns is divided
    same_work: bool = (
        False  # the model's operators are the same with it: what they take tells runs' machines apart
    )


class Replay(SummaryPart):
    """A job's events replayed. error: replayed unchanged against measured, of the step's mean.

    what_ifs: empty where the error is above 2 %, best first.
    """

    steps: int
    processes: int
    step_ns: int
    replayed_ns: int
    error: float
    ideal_network_ns: int | None = None  # the step with messages that take no time
    model_work_ns: int | None = (
        None  # operators of forward and backward on CPUs, kernels on GPUs; median step
    )
    alone: int = 0  # collectives whose other ranks are not known
    unknown_ns: int = 0  # what a step waits in collectives with a rank that is not known
    what_ifs: list[WhatIf] = Field(default_factory=list)
