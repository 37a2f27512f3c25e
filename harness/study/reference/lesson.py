"""A lesson's two arms found among a reference's variants. Prints nothing, and needs the stored summaries alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from harness.analysis.metrics import Metrics
from harness.common.errors import RequestError
from harness.measure.references import Reference, StoredRun, StoredVariant, read_runs
from harness.study.lesson_arms import LessonArm
from harness.study.lessons import Lesson, fixed_fields, is_asked, open_fields
from harness.study.reference.numbers import medians


class StoredArm(NamedTuple):
    """One arm of a lesson from a reference: the medians over its runs."""

    variant: StoredVariant
    runs: tuple[StoredRun, ...]
    metrics: Metrics

    @property
    def over_network(self) -> bool:
        """Whether it ran on several nodes."""
        return all(len(run.nodes) > 1 for run in self.runs)

    @property
    def doubts(self) -> list[str]:
        """Why its numbers may not be trusted."""
        return list(dict.fromkeys(doubt for run in self.runs for doubt in run.doubts))


def on_gpu(reference: Reference) -> bool:
    """Whether the reference was recorded on GPUs."""
    return reference.hardware.device_kind == "gpu"


def stored_pair(folder: Path, reference: Reference, lesson: Lesson) -> tuple[StoredArm, StoredArm]:
    """The two arms, which agree in everything that the lesson leaves open.

    Raises:
        RequestError: the reference has no such pair.
        WorkError: a file of it is damaged.
    """
    pair = lesson.pair(cpu=not on_gpu(reference))
    fixed = fixed_fields(pair)
    of_a, of_b = (
        [each for each in reference.variants if is_asked(each.asked, arm, fixed)] for arm in (pair.a, pair.b)
    )
    for a in of_a:
        for b in of_b:
            if open_fields(a.asked, fixed) == open_fields(b.asked, fixed):
                return _arm(folder, a), _arm(folder, b)
    answered = lessons_of(reference)
    there = f"it answers {', '.join(answered)}" if answered else "it answers none"
    raise RequestError(f"--reference {reference.name}: has no two runs for lesson {lesson.name}; {there}")


def lessons_of(reference: Reference) -> list[str]:
    """The lessons of which the reference has both arms, by name."""
    named = Counter(name for each in reference.variants for name in each.lessons)
    return sorted(name for name, arms in named.items() if arms > 1)


def arm_of(stored: StoredArm, reference: Reference) -> LessonArm:
    """An arm as a lesson's relations read it."""
    name = stored.variant.name
    doubts = [{"run": name, "what": doubt, "evidence": ""} for doubt in stored.doubts]
    return LessonArm(name, stored.metrics, on_gpu(reference), stored.over_network, doubts)


def _arm(folder: Path, variant: StoredVariant) -> StoredArm:
    runs = read_runs(folder, variant).runs
    return StoredArm(variant, runs, medians(runs))
