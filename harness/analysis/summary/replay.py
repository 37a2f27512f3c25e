"""The causes of lost time, and steps with one thing changed. Fields only."""

from __future__ import annotations

from typing import Literal

from harness.analysis.summary.base import CodeLocation, SummaryPart

NO_REPLAY = "the time of the same steps with an ideal network was not replayed"


class LineShare(SummaryPart, kw_only=True):
    """A line of the user's own code with a part of a loss. The observer of each rank samples the line in which the main
    thread is, 25 times per second in steps and 200 times in profiled ones: the innermost one that belongs neither to
    Python nor to an installed package. Of a stall it is the line in which the host was then; of work, the line with
    more time than on the other ranks, or in the other steps; of communication, the line in which the host waits for it;
    of kernels, the line that launched them."""

    where: CodeLocation
    """The line."""
    share: float
    """Of the loss, at most 1. The rest was in other lines, or in none that is known."""
    source: list[str] = []
    """The line and those around it, as they were during the run, without what looks like a secret. Empty: the file
    could not be read."""
    first_line: int = 1
    """The number of the first line in `source`."""
    inside: CodeLocation | None = None
    """Where the line is a call: the line in what it calls with the largest part of the loss."""
    called_at: CodeLocation | None = None
    """The outermost line of the user's code that leads to this one and to little else. None: there is none farther out,
    or no callers were recorded."""


class TimeLost(SummaryPart, kw_only=True):
    """One cause of lost time: the time that a step would save without this cause alone, so the savings of several
    causes do not add up. Waiting is charged to the ranks that are waited for. Reported from 3 % of the step on, if the
    interval is above zero."""

    cause: str
    """The name of the fault that causes it ([faults.md](faults.md)), also if nobody asked for a fault."""
    ranks: list[int | None]
    """The ranks that have the cause, not those that wait for them; null: not known."""
    phase: str | None = None
    """Forward, backward, optimizer, data loading, between steps or other. Null: not in a single phase."""
    what: str | None = None
    """What the host was doing, or what the device did: the operator, the call, the function, the range. Null: nothing
    was recorded, or the cause is not a single activity."""
    where: CodeLocation | None = None
    """The place in the user's own code, if it was recorded or sampled."""
    lines: list[LineShare] = []
    """The lines of the user's code with most of the loss, at most three, the largest share first. Empty: none were
    sampled, or the loss is at no line more than at others."""
    basis: Literal["replay", "share"] = "replay"
    """`replay`: measured step minus the step replayed without the cause, at most the time in which the device did
    nothing else. `share`: no replay was possible, so it is the cause's share of the devices' time."""
    every: int | None = None
    """k, if it recurs in every k-th step. Null: it has no period."""
    lost_ns: int
    """The measured step minus the step replayed without the cause, mean over the steps."""
    profiler_fraction: float | None = None
    """Of small operators on a CPU, how much of what a profiler adds to a step lies in the loss: the operators that no
    other one calls, over all operators, in these phases."""
    recorded_lost_ns: int | None = None
    """`lost_ns` as recorded, if `lost_ns` is corrected for the profiler's cost ([ProfilerCost](#profilercost))."""
    low_ns: int | None = None
    """Lower end of its 95 % interval: bootstrap over the steps (percentile method, Efron 1979). Null with fewer than
    three steps."""
    high_ns: int | None = None
    """Upper end of it."""
    share: float
    """`lost_ns` / the measured step; with the basis `share` of the devices' time."""
    standing: bool = False
    """True: a steady loss, present in every step."""
    alone: bool = False
    """True: only these ranks do it. Where cores are missing it is told although other ranks may hide what it costs."""
    at_ns: int | None = None
    """The start of the first step that it hits, on the clock of that rank's trace."""
    at_rank: int | None = None
    """The rank of `at_ns`."""
    evidence: str
    """What was seen, in words."""


class WhatIf(SummaryPart, kw_only=True):
    """The step with one thing changed: a prediction for this run on this machine, or a bound
    ([what a prediction says](investigate.md#what-would-help))."""

    name: str
    """Of the change."""
    meaning: str
    """The change in words."""
    step_ns: int
    """The step with the change: the mean measured step minus the mean over steps of (replayed − replayed with the
    change)."""
    low_ns: int | None = None
    """Lower end of the 95 % interval of the mean step of such a run: `step_ns` ± 1.96 · √(σ² + σ'² + σ''²), with the
    standard errors σ and σ' of the mean replayed step without and with the change, by bootstrap over the steps. On CPUs
    also σ'' = 5 % of `step_ns`, by which two runs differ beyond that ([measured](development/diagnosis.md)). Null with
    fewer than three steps, and with `at_most`."""
    high_ns: int | None = None
    """Upper end of it. Null with `bound`."""
    gain: float
    """1 − `step_ns` / the measured step."""
    bound: bool = False
    """True: no run reaches this step. It says how much can be gained at most."""
    ranged: bool = False
    """True: how much the change brings depends on what this run does not show, so `low_ns` to `high_ns` is the range of
    what is possible, and `step_ns` its careful end."""
    at_most: bool = False
    """True: the step is no longer with the change, and may be shorter. Example: if the cores that compute also send the
    messages, fewer messages leave them more time."""
    per: int = 1
    """Micro-batches of the present step in a step with the change. `step_ns` is divided by it, so that it is the time
    of the same work."""
    same_work: bool = False
    """True: the model's operators are the same with the change, so their times in two runs show how much slower the
    machine was in one of them."""


class Replay(SummaryPart, kw_only=True):
    """The events of all ranks are one graph: an arc for each stretch of a host's or a stream's time, with its
    measured length, and arcs from a launch to its kernel, from a kernel to the host that waits for it, and between
    the ranks of a collective. In the replay every event begins when all events before it have ended. The first of
    more than three steps is replayed and not counted, because the ranks begin it as far apart as they were before
    the recording. Without marked steps all that was recorded is one step."""

    steps: int
    """Counted steps that were replayed."""
    processes: int
    """Ranks that were replayed."""
    step_ns: int
    """The job's measured step, mean over the steps."""
    replayed_ns: int
    """The same, replayed with nothing changed."""
    error: float
    """abs(`replayed_ns` − `step_ns`) / `step_ns`. Above 2 % no question is answered."""
    ideal_network_ns: int | None = None
    """The step replayed with a network of zero latency and infinite bandwidth."""
    unexplained_ns: int | None = None
    """The step replayed without all findings together: the time that no finding explains."""
    model_work_ns: int | None = None
    """Operators of forward and backward on CPUs, kernels without communication on GPUs: median over steps of the mean
    over ranks. Null without any."""
    alone: int = 0
    """Collectives whose other ranks were not read. They keep their measured length."""
    unknown_ns: int = 0
    """The time in collectives that take at least 0.3 ms and have a rank that was not read, or that the trace does not
    name: per step, of the rank with the most. The missing ranks are charged with nothing."""
    what_ifs: list[WhatIf] = []
    """The step with one thing changed, best first. Empty if `error` is above 2 %."""
