"""The two arms of a lesson, from runs or from a reference, and the relations decided between them. Prints nothing."""

from __future__ import annotations

import re
from typing import NamedTuple

from harness.analysis.metrics import Metrics
from harness.format.format import metric_text, rate
from harness.study.lessons import Lesson, RelationResult, answers

METRIC = re.compile(r"[ab]\.\w+")


class LessonArm(NamedTuple):
    """One arm of a lesson: what it is called, and what was measured of it. doubts: what puts it in doubt, with the
    keys run, what and evidence. ending: how a run ended before its time."""

    name: str
    metrics: Metrics
    on_gpu: bool
    over_network: bool
    doubts: list[dict[str, str]]
    ending: str = ""


def decide(lesson: Lesson, a: LessonArm, b: LessonArm) -> list[RelationResult]:
    """Every relation, decided between the two arms."""
    on_gpu, over_network = a.on_gpu and b.on_gpu, a.over_network and b.over_network
    return answers(lesson, a.metrics, b.metrics, on_gpu, over_network)


def because(lesson: Lesson, a: LessonArm, b: LessonArm) -> str:
    """The explanation, as this kind of device has it."""
    return lesson.here(cpu=not (a.on_gpu and b.on_gpu)).because


def numbers_text(one: RelationResult) -> str:
    """A relation's numbers with their units."""
    return ", ".join(
        f"{name} = {metric_text(name, value) if METRIC.fullmatch(name) else rate(value)}"
        for name, value in one.numbers.items()
    )
