"""Whether the relations of a lesson hold between the two arms of a student's runs, and how runs ended."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from math import sqrt
from statistics import fmean, geometric_mean
from typing import TYPE_CHECKING, NamedTuple

from harness.analysis.expression import Unanswerable, evaluate
from harness.common.display.format import metric_text, rate
from harness.compare.comparison import TOO_FEW_STEPS, Comparison, compare_steps
from harness.compare.verdict import ChangeVerdict
from harness.heartbeats.dead import deaths, first_death
from harness.heartbeats.hang import read_hang
from harness.heartbeats.stuck import IN_COLLECTIVE
from harness.run import Run
from harness.study.lessons import MOST_PAIRS, Lesson, Relation

if TYPE_CHECKING:
    from harness.analysis.metric_values import Metrics

OF_STEPS = re.compile(r"step_ns|tokens_per_s(_|$)")  # metrics that the interval of the step's time is about
METRIC = re.compile(r"([ab])\.(\w+?)(_ns)?")


class RelationOutcome(str, Enum):
    """Whether a relation holds between a student's runs."""

    HOLDS = "yes"
    FAILS = "no"
    UNKNOWN = ChangeVerdict.UNKNOWN.value
    NOT_COMPARABLE = ChangeVerdict.NOT_COMPARABLE.value


MARKS = dict(zip(RelationOutcome, "✓✗?–", strict=True))


class RelationResult(NamedTuple):
    relation: Relation
    outcome: RelationOutcome
    numbers: dict[str, float]
    why: str


class LessonArm(NamedTuple):
    """One arm of a lesson: what it is called, and what was measured of it. doubts: what puts it in doubt, with the
    keys run, what and evidence. ending: how a run ended before its time. runs: the metrics of each of its runs, if
    there are several. steps_ns: the steps of each."""

    name: str
    metrics: Metrics
    on_gpu: bool
    over_network: bool
    doubts: list[dict[str, str]]
    ending: str = ""
    runs: Sequence[Metrics] = ()
    steps_ns: Sequence[Sequence[float]] = ()


def decide(lesson: Lesson, a: LessonArm, b: LessonArm) -> list[RelationResult]:
    """Every relation, decided on the metrics of the two arms. Times of steps have the interval of the steps; a relation
    of anything else must also hold without any one of several pairs of runs."""
    on_gpu = a.on_gpu and b.on_gpu
    nodes = a.over_network and b.over_network
    lacking = {
        "gpu": None if on_gpu else "this machine cannot show it: it needs runs on GPUs",
        "network": None if nodes else "this machine cannot show it: it needs two nodes with a network between them",
        None: None,
    }
    step = step_time(a, b)
    return [_decided(each, (a, b), lacking[each.needs], step) for each in lesson.here(cpu=not on_gpu).relations]


def step_time(a: LessonArm, b: LessonArm) -> Comparison | None:
    """b's step against a's; None: an arm has no steps."""
    return compare_steps((a.name, a.steps_ns), (b.name, b.steps_ns)) if a.steps_ns and b.steps_ns else None


def _decided(
    relation: Relation, arms: tuple[LessonArm, LessonArm], lacking: str | None, step: Comparison | None
) -> RelationResult:
    metrics = {"a": arms[0].metrics, "b": arms[1].metrics}
    labelled = [(label or text, text) for label, _, text in (s.rpartition(": ") for s in relation.shows)]
    numbers = {label: value for label, text in labelled if (value := _number(text, metrics)) is not None}
    if lacking:
        return RelationResult(relation, RelationOutcome.NOT_COMPARABLE, numbers, lacking)
    try:
        holds = evaluate(relation.holds, metrics)
        why = why_unknown(relation, arms, step)
    except Unanswerable as unknown:
        return RelationResult(relation, RelationOutcome.NOT_COMPARABLE, numbers, f"{unknown} in these runs")
    if why is not None:
        return RelationResult(relation, RelationOutcome.UNKNOWN, numbers, why)
    return RelationResult(relation, RelationOutcome.HOLDS if holds else RelationOutcome.FAILS, numbers, relation.holds)


def why_unknown(
    relation: Relation, arms: tuple[LessonArm, LessonArm], step: Comparison | None, pairs: float = 1.0
) -> str | None:
    """Why the runs do not decide a relation; None: they do. pairs: how many times as many there would be that vary
    like these. Raises Unanswerable: one of its metrics was not measured."""
    a, b = (arm.metrics for arm in arms)
    if relation.depends_on_load and step is not None and step.why == TOO_FEW_STEPS:
        return TOO_FEW_STEPS
    if OF_STEPS.search(relation.holds) is None:
        others = [_without(arms, left_out) for left_out in range(len(arms[0].runs))] if len(arms[0].runs) > 1 else []
        holds = [evaluate(relation.holds, each) for each in [{"a": a, "b": b}, *others]]
        return None if len(set(holds)) == 1 else "the pairs of runs do not agree"
    if step is None or step.interval is None:
        return None
    ratio, low, high = step.interval
    ends = (1.0, (low / ratio) ** (1 / sqrt(pairs)), (high / ratio) ** (1 / sqrt(pairs)))
    holds = [evaluate(relation.holds, {"a": a, "b": _with_steps(b, by)}) for by in ends]
    return None if len(set(holds)) == 1 else f"b's step differs from a's by {step.change} (95 % interval)"


def _without(arms: tuple[LessonArm, LessonArm], left_out: int) -> dict[str, Metrics]:
    """The metrics of both arms without one pair of runs."""
    kept = [[*arm.runs[:left_out], *arm.runs[left_out + 1 :]] for arm in arms]
    return dict(zip("ab", map(mean_metrics, kept), strict=True))


def mean_metrics(runs: Sequence[Metrics]) -> Metrics:
    """The mean of each metric that all of these runs have; of the step, as in its comparison, the geometric one."""
    shared = [name for name in runs[-1] if all(name in run for run in runs)]
    return {name: (geometric_mean if name == "step_ns" else fmean)(run[name] for run in runs) for name in shared}


def _with_steps(metrics: Metrics, by: float) -> Metrics:
    """The metrics, where those of the step's time are taken times a factor."""
    return {name: value * by if OF_STEPS.search(name) else value for name, value in metrics.items()}


def needed_pairs(decided: Sequence[RelationResult], arms: tuple[LessonArm, LessonArm]) -> int | None:
    """The fewest pairs, more than now, that would decide what is unknown; None: not even `MOST_PAIRS` like these."""
    now, step = len(arms[0].steps_ns), step_time(*arms)
    unknown = [one.relation for one in decided if one.outcome is RelationOutcome.UNKNOWN]
    return next(
        (
            pairs
            for pairs in range(now + 1, MOST_PAIRS + 1)
            if not any(why_unknown(relation, arms, step, pairs / max(now, 1)) for relation in unknown)
        ),
        None,
    )


def _number(text: str, metrics: dict[str, Metrics]) -> float | None:
    try:
        return float(evaluate(text, metrics))
    except Unanswerable:
        return None


class Ending(NamedTuple):
    """sentence: as `status` says it; empty: nobody saw it. numbers: by name; of what did not happen there is none.

    `stuck_rank` and `stuck_ranks_count` are the first of the ranks that cause it, and how many these are,
    `stuck_waiting_count` the ranks that wait for them; `stuck_in_collective` is 1 if all wait in collectives.
    `failed_rank` is the first one, `failed_by_error` 1 if it ended by an error or a signal, 0 if it left without;
    `failed_others_count` are the ranks that told an error later.
    """

    sentence: str
    numbers: Metrics


def ending_of(run: Run) -> Ending:
    """The end of a run that is over."""
    hang = read_hang(run.path)
    if hang is not None and hang.until_ns is None:
        numbers = {
            "stuck_rank": float(hang.ranks[0]),
            "stuck_ranks_count": float(len(hang.ranks)),
            "stuck_waiting_count": float(len(hang.waiting)),
            "stuck_in_collective": float(hang.kind in IN_COLLECTIVE),
        }
        return Ending(hang.since_clock, numbers if hang.ranks else {})
    first = first_death(run.path, run.err)
    if first is None:
        return Ending("", {})
    others = [death for death in deaths(run.path, run.err) if death.rank != first.rank and death.error]
    numbers = {
        "failed_rank": float(first.rank),
        "failed_by_error": float(not first.left),
        "failed_others_count": float(len({death.rank for death in others})),
    }
    return Ending(first.sentence, numbers)


def because(lesson: Lesson, a: LessonArm, b: LessonArm) -> str:
    """The explanation, as this kind of device has it."""
    return lesson.here(cpu=not (a.on_gpu and b.on_gpu)).because


def numbers_text(one: RelationResult) -> str:
    """A relation's numbers with their units: `run a: 243 ms a step, run b: data loading share 28.1 %`."""
    return ", ".join(map(number_text, one.numbers, one.numbers.values()))


def number_text(name: str, value: float) -> str:
    """One number of an arm, as `a.step_ns`, with its unit; other names keep their own."""
    if (metric := METRIC.fullmatch(name)) is None:
        return f"{name}: {rate(value)}"
    text = metric_text(name, value)
    said = f"{text} a step" if name.endswith(".step_ns") else f"{metric[2].replace('_', ' ')} {text}"
    return f"run {metric[1]}: {said}"
