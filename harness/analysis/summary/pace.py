"""How the pace of a whole training changed, and which of its ranks is the slowest. Fields only; no measurement."""

from __future__ import annotations

from harness.analysis.summary.base import SummaryPart


class PaceChange(SummaryPart):
    """A step from which on the job's steps are longer or shorter, by the training's own clock, in all its steps without
    those in which a profiler worked. The job's step is the median over ranks. Found are changes by about 8 % and more
    that last 15 steps and more, if they are larger than the steps' own noise; slow steps in a period, and slow steps
    at the start, are none. A change of the time that a rank did not wait in (its own time), by phase, is found in more
    noise: it counts if the steps would be shorter by at least half of it without it, and if waiting for a core does
    not explain it.

    **Method.** Clipped CUSUM in seeded intervals, of which the narrowest counts. A jump must be 5.5 standard errors by
    the long-run variance, which is that of medians of blocks, and 1.15 times as abrupt as is rare in the noise itself
    (98th percentile of the distance of medians of 12 steps side by side), or 3 and 2.2 times. Its step is the likeliest
    under noise with lag-1 autocorrelation and Student's t distribution. Sources: Kovács et al., Seeded binary
    segmentation, Biometrika 2023; Baranowski et al., Narrowest-over-threshold detection, JRSS B 2019.

    **How often it is right.** In 1800 simulated trainings of 150 to 1000 steps with noise of many kinds
    (`benchmarks/bench_pace.py`, a seed that chose no threshold) 83 % of the changes by 8 %, 96 % of those by 15 % and
    all by 60 % are found; at most 1 % of these are off by more than two steps, and the ranks are right. One of 1800
    steady ones had a change. In 60 real trainings of two ranks on two cores (changes by 10 to 60 % in data, forward or
    backward, on one rank or both) all were found, each within two steps and on the right ranks. Of 100 steady ones 5
    had a change, in each of which the same product of two matrices also took longer: the machine was slower. While
    other tests used the machine, 29 of 30 were found, and 4 of 30 steady ones had a change, 2 of which the waiting for
    cores explains. Steps do change their pace where other programs use the machine, and where the C library gives
    memory back to the kernel: `evidence` then says that threads waited for cores, or counts page faults."""

    step: int
    """The first step of the new pace."""
    low_step: int
    """Start of the 95 % interval of `step`."""
    high_step: int
    """End of that interval."""
    last_step: int | None = None
    """The last step of the new pace. Null: to the end."""
    before_ns: int
    """Median step of up to 200 steps before."""
    after_ns: int
    """Median step of up to 200 steps after. If noise hides a change of own time: before, plus that change."""
    ratio: float
    """After / before."""
    ranks: list[int]
    """The ranks whose own time changed: their step without the phases in which they wait for other ranks (backward, and
    phases with collectives in the traces; on GPUs also the time in no phase). On CPUs, backward counts up to
    the start of its last collective, where PyTorch records that and ranks wait in backward only. All ranks if `named`
    is false."""
    named: bool
    """Whether their own time shows it. A rank that stalls where the others wait for it cannot be named."""
    phase: str | None = None
    """The phase that changed by at least half of it: data, forward, backward, optimizer. Null if none did."""
    evidence: str = ""
    """The own times before and after, in words."""


class SlowestRank(SummaryPart):
    """Which rank the others wait for, by the ranks' own time in all steps that were not profiled (as in
    `pace_changes`). Whether it is chance is found by permutation of the ranks in blocks of ten steps."""

    kind: str
    """`always` (clearly the slowest in 90 % of the steps), `often` (30 %), `rarely`, `in turns` (no rank stands out),
    `never` (the median rank waits less than 3 % of a step)."""
    rank: int | None = None
    """Null if no rank stands out."""
    share: float
    """Of the steps, in which the rank is clearly the slowest: by 5 % of a step."""
    costs_ns: int
    """Per step: what a step would gain if the rank was only as slow as the next one. `in turns`, `never`: how long the
    median rank waits for the slowest one."""
    step_ns: int
    """The job's median step, of the same steps."""
    chance: float
    """The probability that one of ranks that are alike is the slowest as often, or as expensively."""
