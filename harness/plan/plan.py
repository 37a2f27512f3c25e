"""A launch before it starts: what it will need, take and cost. Puts the parts together; theory computes them.

Nothing here refuses: what an estimate says is a warning, and the launch decides what a warning is worth.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from harness.experiment.exercises import Experiment
from harness.launch.job import Job
from harness.launch.submit import PreparedLaunch
from harness.plan.memory import (
    FITS,
    TIGHT,
    Capacity,
    NearestFit,
    Workload,
    capacity_of,
    nearest_fit,
    peak_memory,
    workload_of,
)
from harness.plan.speed import (
    Cost,
    ExposedMessages,
    PlannedMessage,
    Speed,
    compute_range_ns,
    cost_of,
    expected_speed,
    exposed,
    sent_per_step,
)
from harness.theory.peak import Peak


@dataclass(frozen=True)
class MemoryPlan:
    """The peak of the rank that needs most, its memory, and the verdict: fits, tight, does not fit, or not known.

    other: the peak with activation checkpointing if the request has none, else without. usual: of a micro-batch that is
    smaller than the model's usual one, what that one would need, as a sentence.
    """

    peak: Peak
    other: Peak
    capacity: Capacity
    nearest: NearestFit | None = None
    usual: str = ""

    @property
    def verdict(self) -> str:
        if self.capacity.total_bytes is None:
            return "not known"
        share = self.peak.highest.total / self.capacity.total_bytes
        return "fits" if share <= FITS else "tight" if share <= TIGHT else "does not fit"


@dataclass(frozen=True)
class StepPlan:
    """One step of the training's loop. speed: a sentence if it is not known. Times in nanoseconds."""

    speed: Speed | str
    compute_ns: tuple[float, float] | None
    step_ns: tuple[float, float] | None
    sent: list[PlannedMessage]
    exposed: ExposedMessages | None


@dataclass(frozen=True)
class LaunchPlan:
    """All that is known of a launch. memory, step: None if it trains nothing."""

    job: Job
    cost: Cost
    workload: Workload | None = None
    memory: MemoryPlan | None = None
    step: StepPlan | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def conversion(self) -> str:
        """When the Paraver trace is made; empty: it is not asked for."""
        submits = any("--submit" in command.argv for command in self.job.after)
        how = "a job of its own, without GPUs" if submits else "the same job, for which no time is planned"
        return f"afterwards the Paraver trace is made by {how}" * bool(getattr(self.job.experiment, "nsys2prv", False))


def plan_of(prepared: PreparedLaunch) -> LaunchPlan:
    job = prepared.job
    w = workload_of(job)
    if w is None:
        return LaunchPlan(job, cost_of(job, None, None))
    memory = _memory(prepared.experiment, job, w)
    step = _step(job, w)
    cost = cost_of(job, w, step.step_ns)
    return LaunchPlan(job, cost, w, memory, step, _warnings(job, memory, cost))


def _memory(experiment: Experiment, job: Job, w: Workload) -> MemoryPlan:
    capacity = capacity_of(job, w.ranks_per_node)
    found = MemoryPlan(peak_memory(w), peak_memory(w, checkpointing=not w.checkpointing), capacity)
    if found.verdict == "does not fit":
        return replace(found, nearest=nearest_fit(experiment, job))
    return replace(found, usual=_usual(experiment, w, capacity))


def _usual(experiment: Experiment, w: Workload, capacity: Capacity) -> str:
    usual = w.model.defaults.micro_batch_size
    if getattr(experiment, "micro_batch_size", None) is not None or w.micro_batch >= usual:
        return ""
    needs = peak_memory(replace(w, micro_batch=usual)).highest.total
    of = f" of {capacity.total_bytes / 1e9:.1f}" if capacity.total_bytes else ""
    fits = capacity.total_bytes is not None and needs <= FITS * capacity.total_bytes
    size = f"{needs / 1e9:.1f}{of} GB"
    would = f"would fit ({size}): --micro-batch-size {usual}" if fits else f"would need {size}"
    return f"micro-batch {w.micro_batch}; {usual}, as on the slides, {would}"


def _step(job: Job, w: Workload) -> StepPlan:
    speed = expected_speed(job, w)
    compute = None if isinstance(speed, str) else compute_range_ns(w, speed)
    sent = sent_per_step(w, job.site.network)
    hidden = exposed(sent, compute[1] if compute else None)
    # From the fastest computation, or all messages if they take longer, to the slowest; or the fastest with every
    # message exposed if that is longer.
    step_ns = compute
    if compute is not None and hidden is not None:
        fastest, slowest = compute
        step_ns = max(fastest, hidden.total_ns), max(slowest, fastest + hidden.total_ns)
    return StepPlan(speed, compute, step_ns, sent, hidden)


def _warnings(job: Job, memory: MemoryPlan, cost: Cost) -> list[str]:
    found = []
    of = "GPU" if job.device == "cuda" else "process"
    if memory.verdict in ("tight", "does not fit") and memory.capacity.total_bytes:
        need, has = memory.peak.highest.total / 1e9, memory.capacity.total_bytes / 1e9
        text = f"an estimated {need:.1f} GB per {of} {'does' if memory.verdict != 'tight' else 'may'} not fit into "
        found.append(f"{text}{has:.1f} GB ({memory.capacity.source})")
        if memory.nearest is not None:
            found[-1] += f": the nearest that {memory.nearest.verdict} is {memory.nearest.command}"
    if cost.steps_s is not None and cost.steps_s[0] > job.site.time_s:
        found.append(
            f"the run takes an estimated {cost.steps_s[0] / 60:.0f} minutes or more, and the time limit is "
            f"{job.site.time}: raise --time or lower --steps"
        )
    return found
