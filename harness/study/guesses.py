"""A student's guess before a lesson's runs: read from what was typed, kept with the runs, and compared with what they
measured. It neither asks nor prints."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from harness.common.run_folder.run_files import GUESS
from harness.compare.verdict import ChangeVerdict
from harness.run import Run, write_atomically
from harness.run.files import typed
from harness.study.lessons import Lesson
from harness.study.relations import OF_STEPS, LessonArm, number_text, step_time

HOW = "a or b, and how many times as much if you like (b 1.5), or Enter to skip"
_FORM = re.compile(r"([ab])(?:[ ,x×]+(\d+(?:\.\d+)?) ?[x×]?)?")
_UNDECIDED = (ChangeVerdict.SAME, ChangeVerdict.UNKNOWN)


class Guess(BaseModel):
    """arm: the run that should have more; None: the student skipped the question. times: how many times as much."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    lesson: str
    arm: Literal["a", "b"] | None = None
    times: float | None = None


GUESS_FILE = typed(GUESS, Guess)


def parse(lesson: str, text: str) -> Guess | None:
    """The guess that was typed; None: it is neither a guess nor empty.

    >>> parse("1a", "b 1.5")
    Guess(lesson='1a', arm='b', times=1.5)
    """
    words = text.strip().lower()
    found = _FORM.fullmatch(words)
    if found is None:
        return None if words else Guess(lesson=lesson)
    return Guess.model_validate({"lesson": lesson, "arm": found[1], "times": found[2]})


def keep(run: Run, guess: Guess) -> None:
    """Write the guess into a run. Raises DiskError."""
    write_atomically(GUESS.path(run.path), GUESS_FILE.encode(guess))


def guess_of(lesson: str, runs: Sequence[Run]) -> Guess | None:
    """The guess of a lesson that one of its runs keeps; a skipped question counts."""
    kept = (GUESS_FILE.known(GUESS.path(run.path)) for run in runs)
    return next((guess for guess in kept if guess is not None and guess.lesson == lesson), None)


def beside_measured(guess: Guess, lesson: Lesson, a: LessonArm, b: LessonArm) -> str:
    """One sentence: the guess, and what the runs measured. Empty if the question was skipped."""
    if lesson.guess is None or guess.arm is None:
        return ""
    metric = lesson.guess.metric
    guessed = guess.arm if guess.times is None else f"{guess.arm}, {guess.times:g} times as much"
    values = {"a": a.metrics.get(metric), "b": b.metrics.get(metric)}
    numbers = ", ".join(number_text(f"{arm}.{metric}", value) for arm, value in values.items() if value is not None)
    return f"Your guess: {guessed}. Measured: {_measured(metric, a, b)} ({numbers or 'no number'})."


def _measured(metric: str, a: LessonArm, b: LessonArm) -> str:
    of_a, of_b = a.metrics.get(metric), b.metrics.get(metric)
    if of_a is None or of_b is None:
        return "these runs cannot tell"
    step = step_time(a, b) if OF_STEPS.search(metric) else None
    if of_a == of_b or (step is not None and step.verdict in _UNDECIDED):
        return "no difference that these runs show"
    more, less = max(of_a, of_b), min(of_a, of_b)
    times = f", {more / less:.3g} times as much" if less > 0 else ", the other has none"
    return f"{'a' if of_a > of_b else 'b'}{times}"
