"""What the metrics of a summary are computed from; metrics.py declares them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from statistics import median

from harness.analysis.expected import expected_metrics
from harness.analysis.summary import CollectivePhase, MemoryMoment, RankTraining, Summary
from harness.traces.vocabulary import POINT_TO_POINT, dtype_bytes

Metrics = dict[str, float]

MEMORY_OF_PLAN = tuple(f"{name}_bytes" for name in ("weights", "gradients", "optimizer", "activations", "buffers"))


class Facts:
    """A summary, and what several of its metrics need, computed once."""

    def __init__(self, summary: Summary) -> None:
        self.summary = summary

    @cached_property
    def step_ns(self) -> list[float]:
        return step_durations_ns(self.summary)

    @cached_property
    def window_ns(self) -> int:
        return sum(d.window_ns for d in self.summary.devices)

    @cached_property
    def expected(self) -> Metrics:
        return dict(expected_metrics(self.summary))

    @cached_property
    def memory_of_plan(self) -> Metrics:
        memory = self.summary.memory
        return memory_by_plan(memory.peak) if memory and memory.peak and memory.failure is None else {}

    @cached_property
    def stepped(self) -> int:
        """Steps of all ranks, if there are collectives in them; else 0."""
        return sum(len(r.durations_ns) for r in self.summary.steps.per_rank) if self.summary.collectives else 0

    @cached_property
    def idle_by_cause(self) -> dict[str, int]:
        """Empty where the idle time is not known."""
        known = bool(self.window_ns) and all(d.idle_ns is not None for d in self.summary.devices)
        return {cause.cause: cause.duration_ns for cause in self.summary.idle_causes} if known else {}

    def mean(self, field: str) -> float | None:
        """Mean over ranks of a field of RankTraining."""
        known = [value for t in self.summary.training if (value := getattr(t, field)) is not None]
        return sum(known) / len(known) if known else None


def of_training(field: str) -> Callable[[Facts], float | None]:
    return lambda facts: facts.mean(field)


def median_step_ns(facts: Facts) -> float | None:
    return median(facts.step_ns) if facts.step_ns else None


def mean_step_ns(facts: Facts) -> float | None:
    return sum(facts.step_ns) / len(facts.step_ns) if facts.step_ns else None


def kernels_per_step(facts: Facts) -> float | None:
    steps = sum(len(each.durations_ns) for each in facts.summary.steps.per_rank)
    return sum(device.kernels for device in facts.summary.devices) / steps if steps else None


def tokens(facts: Facts) -> float | None:
    return tokens_per_step(facts.summary)


def step_ns_per_token(facts: Facts) -> float | None:
    step, of_step = median_step_ns(facts), tokens(facts)
    return step / of_step if step and of_step else None


def speed_of_a_rank(facts: Facts) -> float | None:
    of_all, ranks = of_part("efficiency", "tokens_per_s")(facts), facts.summary.world_size
    return of_all / ranks if of_all and ranks else None


def share_of_window(field: str) -> Callable[[Facts], float | None]:
    """Of a time of the devices: its share of their windows."""

    def share(facts: Facts) -> float | None:
        times = [getattr(d, field) for d in facts.summary.devices]
        return sum(times) / facts.window_ns if facts.window_ns and None not in times else None

    return share


def overlap_fraction(facts: Facts) -> float | None:
    devices = facts.summary.devices
    if any(d.communication_ns is None for d in devices):
        return None
    communication = _total(d.communication_ns for d in devices)
    return _total(d.overlapped_communication_ns for d in devices) / communication if communication else None


def idle_share(cause: str) -> Callable[[Facts], float | None]:
    return lambda facts: facts.idle_by_cause.get(cause, 0) / facts.window_ns if facts.idle_by_cause else None


def gemm_share(precision: str) -> Callable[[Facts], float | None]:
    def share(facts: Facts) -> float | None:
        gemms = [k for k in facts.summary.kinds if k.kind == "gemm"]
        total = sum(k.duration_ns for k in gemms)
        return sum(k.duration_ns for k in gemms if k.precision == precision) / total if total else None

    return share


def by_theory(name: str) -> Callable[[Facts], float | None]:
    return lambda facts: facts.expected.get(name)


def of_plan(name: str) -> Callable[[Facts], float | None]:
    return lambda facts: facts.memory_of_plan.get(name)


def of_part(part: str, field: str) -> Callable[[Facts], float | None]:
    """A field of a part of the summary, which may be missing."""
    return lambda facts: getattr(getattr(facts.summary, part), field, None)


def part_of_job_time(part: str) -> Callable[[Facts], float | None]:
    def part_ns(facts: Facts) -> float | None:
        job_time = facts.summary.job_time
        return None if job_time is None else sum(x.duration_ns for x in job_time.parts if x.part == part)

    return part_ns


def message_bytes(facts: Facts) -> float | None:
    known = [c.least_bytes if c.bytes is None else c.bytes for c in facts.summary.collective_phases]
    return sum(known) / facts.stepped if facts.stepped and any(known) else None


def bytes_across_nodes(facts: Facts) -> float | None:
    s, ranks = facts.summary, _ranks_per_node(facts.summary.training)
    if not facts.stepped or not ranks:
        return None
    over_network = [c for c in s.collectives if (c.group_size or 0) > ranks]
    # Of all ranks; of sends and receives `bytes` is that sum already.
    across = sum((c.bytes or 0) * (1 if c.kind in POINT_TO_POINT else c.ranks) for c in over_network)
    stepped = sum(bool(r.durations_ns) for r in s.steps.per_rank) / len(s.steps.per_rank)
    return across * stepped / facts.stepped


def waiting_in_steps(facts: Facts) -> float | None:
    return waiting_share(facts.summary) if facts.stepped else None


def parameter_bytes(facts: Facts) -> float | None:
    first = facts.summary.training[0] if facts.summary.training else None
    size = dtype_bytes(first.dtype or "") if first else 0
    return first.parameters * size if first and first.parameters and size else None


def pageable_copy_bytes(facts: Facts) -> float | None:
    copied = [each for each in facts.summary.copies if each.memory and each.direction == "copy H2D"]
    return sum(each.bytes for each in copied if each.memory == "pageable") if copied else None


def peak_memory_bytes(facts: Facts) -> float | None:
    s = facts.summary
    peaks = [t.peak_memory_bytes for t in s.training] + [d.peak_memory_bytes for d in s.devices]
    return max(filter(None, peaks), default=None)


def tensor_peak_bytes(facts: Facts) -> float | None:
    memory = facts.summary.memory
    return max(rank.peak_bytes for rank in memory.ranks) if memory is not None and facts.memory_of_plan else None


def energy_joules(facts: Facts) -> float | None:
    energies = [m.energy_joules for m in facts.summary.monitor]
    return _total(energies) if energies and None not in energies else None


def sum_bytes(collective_phases: Sequence[CollectivePhase], steps: int) -> float | None:
    return (
        None if any(c.bytes is None for c in collective_phases) else _total(c.bytes for c in collective_phases) / steps
    )


def least_bytes(collective_phases: Sequence[CollectivePhase], steps: int) -> float | None:
    least = sum(c.least_bytes if c.bytes is None else c.bytes for c in collective_phases)
    return least / steps if least and any(c.bytes is None for c in collective_phases) else None


def step_durations_ns(summary: Summary) -> list[float]:
    """One duration per step: the mean over ranks of the profiled steps, else of the training's own clock.

    Ranks that recorded other steps may count other ones: steps with the same name are the same step. Where the names
    are not unique, the steps are matched from the last one backwards.
    """
    per_rank = [r.durations_ns for r in summary.steps.per_rank if r.durations_ns]
    if not per_rank:
        own = [t.step_durations_ns for t in summary.training if t.step_durations_ns]
        return [sum(step) / len(step) for step in zip(*own, strict=False)]
    shared = min(map(len, per_rank))
    steps = _by_name(summary, per_rank) or zip(*(d[-shared:] for d in per_rank), strict=True)
    return [sum(step) / len(step) for step in steps]


def _by_name(summary: Summary, per_rank: list[list[int]]) -> list[list[int]]:
    """Per step that all ranks counted, each rank's duration; empty where the names of the steps are not unique."""
    marks: dict[tuple[str, int | None, int | None], list[str]] = {}
    for d in summary.devices:  # of a process's devices the first: all have its steps
        if d.steps:
            marks.setdefault((d.source, d.pid, d.rank), [step.step for step in d.steps])
    if list(map(len, marks.values())) != list(map(len, per_rank)):
        return []
    named = [dict(zip(names, ns, strict=True)) for names, ns in zip(marks.values(), per_rank, strict=True)]
    if list(map(len, named)) != list(map(len, per_rank)):
        return []  # a name comes back, as where each epoch counts anew
    return [[n[name] for n in named] for name in named[0] if all(name in n for n in named)]


def tokens_per_step(summary: Summary) -> float | None:
    """Tokens of all ranks in one step; None where the training did not record them."""
    return sum(t.tokens / t.steps_counted for t in summary.training if t.tokens and t.steps_counted) or None


def samples_per_step(summary: Summary) -> float | None:
    """Samples of all ranks in one step; None where the training did not record them."""
    return sum(t.samples / t.steps_counted for t in summary.training if t.samples and t.steps_counted) or None


def waiting_share(summary: Summary) -> float | None:
    """Waiting as a share of the time of all collectives, sends and receives, without what they wait for a profiler;
    None where no waiting was measured."""
    waiting = [c.waiting_ns for c in summary.collectives if c.waiting_ns is not None]
    duration = sum(c.duration_ns - c.profiler_ns for c in summary.collectives)
    return sum(waiting) / duration if duration and waiting else None


def memory_by_plan(moment: MemoryMoment) -> dict[str, float]:
    """Bytes of a moment by the names of the plan, which has no temporaries of its own: it counts those of forward and
    backward with the activations, and those of the optimizer's step with the buffers."""
    held = dict(moment.bytes)
    joined = "buffers" if moment.range == "optimizer_step" else "activations"
    held[joined] = held.get(joined, 0) + held.get("temporary", 0)
    return {name: float(held.get(name.removesuffix("_bytes"), 0)) for name in MEMORY_OF_PLAN}


def _ranks_per_node(training: list[RankTraining]) -> int | None:
    nodes = Counter(rank.node for rank in training if rank.node is not None)
    return max(nodes.values()) if len(nodes) > 1 else None


def _total(values: Iterable[float | None]) -> float:
    return float(sum(v for v in values if v is not None))
