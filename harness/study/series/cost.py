"""What the runs of a series should take and may take at most, with what each estimate rests on: earlier runs of the
same settings, else the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from harness.common.format import quantity, quantity_range
from harness.launch.backends.registry import backend_of
from harness.launch.submit import PreparedLaunch
from harness.plan.history import elapsed_of_same
from harness.plan.numbers import Quantity, ranged
from harness.plan.plan import run_cost
from harness.plan.speed import AROUND_ONE_RUN
from harness.study.series.points import HOUR_NS, OPEN, ObservedRun, SeriesTask, cost_ns, devices_of, hours

LIMIT = "the time limit"
MINUTE_NS = 60e9


class Estimate(NamedTuple):
    """Of one run, from and to. with_start: False: of its steps alone."""

    low_ns: float
    high_ns: float
    basis: Literal["earlier runs", "plan"]
    with_start: bool


def estimate(prepared: PreparedLaunch) -> Estimate | None:
    """The time of a run; None: nothing is known. A start is included only if earlier runs measured one."""
    limit_ns = prepared.job.site.time_s * 1e9
    if same := elapsed_of_same(prepared.job):
        around = AROUND_ONE_RUN if len(same) == 1 else 1.0
        return Estimate(min(limit_ns, min(same) / around), min(limit_ns, max(same) * around), "earlier runs", True)
    cost = run_cost(prepared)
    span = cost.expected_s if cost.start_known else cost.steps_s
    if span is None:
        return None
    low, high = (min(limit_ns, each * 1e9) for each in span)
    return Estimate(low, high, "plan", cost.start_known)


class Use(NamedTuple):
    """So many devices for so long."""

    devices: int
    ns: float


def device_ns(uses: Iterable[Use]) -> float:
    return sum(use.devices * use.ns for use in uses)


def elapsed_ns(uses: Iterable[Use]) -> float:
    """One after the other."""
    return sum(use.ns for use in uses)


class RunCounts(NamedTuple):
    """Of the runs to make, how many have which estimate."""

    to_make: int
    from_earlier_runs: int
    from_plan: int
    without_estimate: int
    without_start: int


class SeriesCost(NamedTuple):
    """of_gpus: else of processes. here: the runs share this machine, so minutes are printed, and not device hours.

    spent: of the ended runs. running, worst: until the time limits of the open runs, and of those to make.
    """

    of_gpus: bool
    here: bool
    spent: list[Use]
    running: list[Use]
    worst: list[Use]
    to_make: Sequence[SeriesTask]
    estimates: list[Estimate | None]  # of those to make

    @property
    def unit(self) -> str:
        return "GPU hours" if self.of_gpus else "process hours"

    @property
    def most_ns(self) -> float:
        """Device nanoseconds that all runs of the series take at most, those that have ended included."""
        return device_ns([*self.spent, *self.running, *self.worst])

    def expected(self) -> tuple[list[Use], list[Use]]:
        """From and to, of the runs with an estimate."""
        known = [(task.devices, each) for task, each in zip(self.to_make, self.estimates, strict=True) if each]
        return [Use(n, each.low_ns) for n, each in known], [Use(n, each.high_ns) for n, each in known]

    def without_start(self) -> list[Use]:
        """A minute for each run whose start is not in its estimate."""
        pairs = zip(self.to_make, self.estimates, strict=True)
        return [Use(task.devices, MINUTE_NS) for task, each in pairs if each and not each.with_start]

    def counts(self) -> RunCounts:
        bases = [each.basis if each else None for each in self.estimates]
        return RunCounts(
            to_make=len(bases),
            from_earlier_runs=bases.count("earlier runs"),
            from_plan=bases.count("plan"),
            without_estimate=bases.count(None),
            without_start=len(self.without_start()),
        )


def series_cost(
    tasks: Sequence[SeriesTask], to_make: Sequence[SeriesTask], runs: Sequence[ObservedRun] = ()
) -> SeriesCost:
    """tasks, runs: all of the series. Tasks of one key have one estimate: they are repeats of each other."""
    by_key: dict[str, Estimate | None] = {}
    for task in to_make:
        if task.point.key not in by_key:
            by_key[task.point.key] = estimate(task.prepared)
    uses = [(each.state in OPEN, _use(each)) for each in runs]
    return SeriesCost(
        of_gpus=any(task.prepared.job.device == "cuda" for task in tasks),
        here=any(backend_of(task.point.site).RUNS_HERE for task in tasks),
        spent=[use for is_open, use in uses if not is_open],
        running=[use for is_open, use in uses if is_open],
        worst=[Use(task.devices, task.point.site.time_s * 1e9) for task in to_make],
        to_make=to_make,
        estimates=[by_key[task.point.key] for task in to_make],
    )


def _use(observed_run: ObservedRun) -> Use:
    devices = devices_of(observed_run.run)
    return Use(devices, cost_ns(observed_run) / devices)


def cost_lines(cost: SeriesCost) -> Iterator[str]:
    """What was spent, what the runs to make should take and at most, and what is not known."""
    if device_ns([*cost.spent, *cost.running]):
        running = f", at most {_shown(cost, cost.running)} more by the running jobs" if cost.running else ""
        yield f"spent so far: {_shown(cost, cost.spent)}{running}"
    if cost.to_make:
        yield f"to make: {making(cost)}"
        yield from _not_included(cost)


def making(cost: SeriesCost) -> str:
    """How many runs are to be made, what they should take, on what that rests, and the most."""
    sizes = sorted({(task.devices, task.point.site.time) for task in cost.to_make})
    limits = dict.fromkeys(time if cost.here else f"{devices} × {time}" for devices, time in sizes)
    at_most = f"at most {_shown(cost, cost.worst)} ({LIMIT}: {', '.join(limits)} each)"
    return f"{_runs(len(cost.to_make))}, {_expected(cost)}, {at_most}"


def _shown(cost: SeriesCost, uses: Sequence[Use]) -> str:
    return quantity(elapsed_ns(uses) / 1e9, "s") if cost.here else f"{hours(device_ns(uses))} {cost.unit}"


def _runs(number: int) -> str:
    return f"{number} run{'s' * (number != 1)}"


def _expected(cost: SeriesCost) -> str:
    low, high = cost.expected()
    if not low:
        return "expected: not known"
    if cost.here:
        span = quantity_range(elapsed_ns(low) / 1e9, elapsed_ns(high) / 1e9, "s")
    else:
        first, last = hours(device_ns(low)), hours(device_ns(high))
        span = f"{last if first == last else f'{first} to {last}'} {cost.unit}"
    number = cost.counts()
    by_plan = f"plan: {_runs(number.from_plan)}" if number.from_plan else ""
    by_runs = f"{number.from_earlier_runs} from earlier runs of the same settings" if number.from_earlier_runs else ""
    return f"expected {span} ({'; '.join(filter(None, (by_plan, by_runs)))})"


def _not_included(cost: SeriesCost) -> Iterator[str]:
    number = cost.counts()
    if number.without_estimate:
        which = _runs(number.without_estimate)
        yield f"  no estimate for {which}: no earlier run here shows the time, and the plan knows no speed"
    if number.without_start:
        yield (
            f"  not included: the start of {_runs(number.without_start)} (imports, weights, conversion), which no "
            f"earlier run here shows; a minute in each adds {_shown(cost, cost.without_start())}"
        )
    if cost.here and number.without_estimate < number.to_make:
        yield "  not included: reading each run's recording after its end"


def cost_document(cost: SeriesCost) -> dict[str, Any]:
    """For JSON: each number with its unit, and of how many runs what is known."""
    unit = "GPU h" if cost.of_gpus else "process h"
    rows = [
        Quantity("spent_device_hours", "", device_ns(cost.spent) / HOUR_NS, unit),
        Quantity("running_device_hours", "", device_ns(cost.running) / HOUR_NS, unit, source=LIMIT),
        Quantity("most_device_hours", "", device_ns(cost.worst) / HOUR_NS, unit, source=LIMIT),
        Quantity("most_elapsed_s", "", elapsed_ns(cost.worst) / 1e9, "s", source=LIMIT),
    ]
    low, high = cost.expected()
    if low:
        ends = (device_ns(low) / HOUR_NS, device_ns(high) / HOUR_NS)
        rows.append(ranged("expected_device_hours", "", ends, unit))
        rows.append(ranged("expected_elapsed_s", "", (elapsed_ns(low) / 1e9, elapsed_ns(high) / 1e9), "s"))
    return {"runs": cost.counts()._asdict(), **{row.name: row.as_json() for row in rows}}
