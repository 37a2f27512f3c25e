"""Which number of each run is judged: the metric, its value per run, and the runs that lack it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from harness.analysis.change.metric import more_is_worse
from harness.analysis.metrics import Number, metrics_by_name, tokens_per_step
from harness.analysis.statistics import Sample
from harness.common.errors import RequestError, nearest_or_list
from harness.study.check.arms import CheckArm, MeasuredRun

STEP, PER_TOKEN = "step_ns", "step_ns_per_token"
MEAN_STEP = "mean_step_ns"
USUAL = "step_time"  # as `compare --fail-if` calls it
_SAME_TOKENS = 1e-9


class Metric(NamedTuple):
    """What is judged, and why it is not the usual one; more_is_worse: else less is."""

    name: str
    more_is_worse: bool
    note: str | None = None


class Value(NamedTuple):
    """One run's number."""

    run: MeasuredRun
    value: float

    @property
    def sample(self) -> Sample:
        """As the statistics take it."""
        return Sample(self.value, self.run.block)


def choose_metric(arms: Sequence[CheckArm], asked: str | None, numbers: Sequence[Number]) -> Metric:
    """The metric asked for; else the median step time, per token if A and B have different tokens per step.

    Raises:
        RequestError: no run has it, or neither more nor less of it is worse.
    """
    if asked in (None, USUAL):
        return _step_time(arms)
    known = {name: None for arm in arms for run in arm.runs for name in metrics_by_name(run.summary, numbers)}
    judged = [name for name in known if more_is_worse(name) is not None]
    if asked not in known:
        hint = nearest_or_list(str(asked), judged, "compare --json lists all")
        raise RequestError(f"--metric {asked}: these runs have no such number{hint}")
    worse = more_is_worse(asked)
    if worse is None:
        raise RequestError(
            f"--metric {asked}: a larger value is neither better nor worse; take one of {', '.join(judged)}"
        )
    return Metric(asked, worse)


def _step_time(arms: Sequence[CheckArm]) -> Metric:
    tokens = [tokens_per_step(run.summary) for arm in arms for run in arm.runs]
    known = [count for count in tokens if count]
    if len(known) < len(tokens) or not known or max(known) / min(known) - 1 < _SAME_TOKENS:
        return Metric(STEP, True)
    counts = " and ".join(f"{count:,.0f}" for count in sorted(set(known)))
    return Metric(PER_TOKEN, True, f"per token, since a step is not the same work: {counts} tokens")


def values(arm: CheckArm, metric: str, numbers: Sequence[Number]) -> list[Value]:
    """The number of each run that has it."""
    return list(_values(arm, metric, numbers))


def _values(arm: CheckArm, metric: str, numbers: Sequence[Number]) -> Iterator[Value]:
    for run in arm.runs:
        value = metrics_by_name(run.summary, numbers).get(metric)
        if value is not None:
            yield Value(run, value)


def lacking(arm: CheckArm, found: Sequence[Value], metric: str) -> list[str]:
    """A sentence for each run that lacks the number."""
    having = {value.run.name for value in found}
    return [f"{run.name} is left out: it has no {metric}" for run in arm.runs if run.name not in having]
