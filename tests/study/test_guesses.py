"""A lesson asks once, at a terminal, what its runs will show, keeps the guess with them, and shows it beside them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.metric_values import Metrics
from harness.common.run_folder.run_files import GUESS
from harness.experiment.exercises import DDP
from harness.study.guesses import Guess, beside_measured, parse
from harness.study.lessons import load_lesson
from harness.study.relations import LessonArm
from tests.study.kit import Say, completed
from tests.study.reference_runs import made_run

TIMES = {True: 60.0, False: 20.0}  # milliseconds of a step, by slow_dataloading


@pytest.mark.parametrize(
    ("typed", "guess"),
    [
        ("b 1.5", Guess(lesson="1a", arm="b", times=1.5)),
        (" A, 3x", Guess(lesson="1a", arm="a", times=3)),
        ("a", Guess(lesson="1a", arm="a")),
        ("B × 2", Guess(lesson="1a", arm="b", times=2)),
        ("", Guess(lesson="1a")),
        ("both", None),
        ("b -2", None),
    ],
)
def test_what_is_typed_is_a_guess_or_is_asked_again(typed: str, guess: Guess | None) -> None:
    assert parse("1a", typed) == guess


def arm(name: str, metrics: Metrics, step_ms: float = 0.0) -> LessonArm:
    steps = [[step_ms * 1e6] * 20] if step_ms else []
    return LessonArm(name, metrics, on_gpu=False, over_network=False, doubts=[], steps_ns=steps)


@pytest.mark.parametrize(
    ("lesson", "a", "b", "said"),
    [
        ("1a", arm("x", {"step_ns": 2e7}, 20), arm("y", {"step_ns": 6e7}, 60), "b, 3 times as much (run a: 20.0 ms"),
        ("1a", arm("x", {"step_ns": 2e7}, 20), arm("y", {"step_ns": 2e7}, 20), "no difference that these runs show"),
        ("1a", arm("x", {"step_ns": 2e7}, 20), arm("y", {}), "these runs cannot tell (run a: 20.0 ms a step)"),
        ("1d", arm("x", {"all_reduce_count": 8}), arm("y", {"all_reduce_count": 2}), "a, 4 times as much"),
        ("1d", arm("x", {"all_reduce_count": 8}), arm("y", {"all_reduce_count": 0}), "a, the other has none"),
    ],
)
def test_a_guess_is_beside_what_was_measured(lesson: str, a: LessonArm, b: LessonArm, said: str) -> None:
    text = beside_measured(Guess(lesson=lesson, arm="b", times=2), load_lesson(lesson), a, b)
    assert text.startswith(f"Your guess: b, 2 times as much. Measured: {said}")
    assert beside_measured(Guess(lesson=lesson), load_lesson(lesson), a, b) == ""


@pytest.fixture
def typed(runs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What a person at the terminal answers, one after the other; runs are made at once, without a training."""
    answers: list[str] = []

    def start(prepared: Any, *_words: Any, **_more: Any) -> Any:
        experiment = prepared.experiment
        return made_run(runs, experiment, TIMES[experiment.slow_dataloading])

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.prompt", lambda *_a, **_k: answers.pop(0))
    monkeypatch.setattr("harness.cli.study.lesson.start_announced", start)
    monkeypatch.setattr("harness.cli.watch.follow.complete", lambda *_a: None)
    yield answers
    assert not answers, "every answer was asked for"


def test_it_is_asked_once_and_shown_with_the_answer(typed: list[str], say: Say, runs: Path) -> None:
    typed += ["slow", "b 2"]
    first = say("lesson", "1a", "--run")
    assert first.code == 0, first.err
    assert sorted(path.parent.name for path in runs.rglob(GUESS.name)) == sorted(
        path.name for path in runs.glob("exercise_1_DDP/profiler/*")
    )
    assert say("lesson", "1a", "--again", "--run").code == 0, "not asked again"
    assert "Your guess: b, 2 times as much. Measured: b, 3 times as much" in say("lesson", "1a", "--answer").out
    assert say("lesson", "1a", "--answer", "--json").json["guess"] == {"arm": "b", "times": 2.0}


def test_a_skipped_question_is_not_asked_again_and_shows_nothing(typed: list[str], say: Say) -> None:
    typed += [""]
    assert say("lesson", "1a", "--run").code == say("lesson", "1a", "--again", "--run").code == 0
    assert "guess" not in say("lesson", "1a", "--answer").out


def test_nobody_is_asked_without_a_terminal_or_for_json_or_by_a_lesson_without_a_guess(
    typed: list[str], say: Say, monkeypatch: pytest.MonkeyPatch, runs: Path
) -> None:
    assert typed == [] and say("lesson", "1a", "--run", "--json").code == 0
    monkeypatch.setattr("sys.stdin.isatty", lambda: False)
    assert say("lesson", "1a", "--again", "--run").code == 0
    assert load_lesson("4a").guess is None and not list(runs.rglob(GUESS.name))


def test_a_guess_of_another_lesson_with_the_same_run_is_not_this_ones(runs: Path) -> None:
    from harness.study.guesses import guess_of, keep

    run = completed(runs, "1", DDP())
    keep(run, Guess(lesson="1a", arm="a"))
    assert guess_of("1b", [run]) is None and guess_of("1a", [run]) == Guess(lesson="1a", arm="a")
