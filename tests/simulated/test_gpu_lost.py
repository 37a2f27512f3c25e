"""Simulated jobs whose recordings lost a part of the devices' work: no number of them is told without a doubt."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from gpu_jobs.cases import healthy
from gpu_jobs.judge import summary_of
from gpu_jobs.program import COMM, Recording, Work
from gpu_jobs.simulate import mean_step_ns, run

from harness.analysis.summary import RecordingVerdict, Summary, problem_texts
from harness.explain.answer import answer
from tests.report.given_summary import text

SEED = 20_265
Lost = Callable[[int, Work, Recording], bool]


LOST: dict[str, Lost] = {
    "every tenth": lambda at, _work, _own: at % 10 == 3,
    "every thirtieth": lambda at, _work, _own: at % 30 == 3,
    "a tenth of the time": lambda at, _work, own: 4 <= 10 * at // len(own.work) < 5,
    "messages": lambda _at, work, _own: work.stream == COMM,
}


def _recorded(kind: str, tool: str, lost: Lost | None) -> Summary:
    t = replace(healthy(random.Random(f"{SEED} {kind}"), kind, "device"), steps=10, ranges=True)
    recordings = run(t)
    assert mean_step_ns(recordings) > 0
    if lost is not None:
        for own in recordings:
            own.work = [pair for at, pair in enumerate(own.work) if not lost(at, pair[0], own)]
    return summary_of(recordings, tool, python=t.stacks)


@pytest.mark.parametrize("tool", ["kineto", "nsys"])
@pytest.mark.parametrize("name", LOST)
def test_lost_work_is_a_doubt(name: str, tool: str) -> None:
    summary = _recorded("ddp" if name == "messages" else "alone", tool, LOST[name])
    texts = {problem.what for problem in summary.quality.problems}
    assert summary.quality.verdict is not RecordingVerdict.GOOD
    assert texts & {problem_texts.WORK_LOST, problem_texts.STEPS_LOST, problem_texts.WORK_MISSING}
    assert (problem_texts.STEPS_LOST in texts) == (name == "a tenth of the time"), "the others leave no step whole"
    said = text(answer(summary))
    assert any(text in said for text in (problem_texts.WORK_LOST, problem_texts.STEPS_LOST, problem_texts.WORK_MISSING))


@pytest.mark.parametrize("tool", ["kineto", "nsys"])
def test_a_whole_recording_has_none(tool: str) -> None:
    summary = _recorded("ddp", tool, None)
    assert not {problem.what for problem in summary.quality.problems} & {
        problem_texts.WORK_LOST,
        problem_texts.STEPS_LOST,
        problem_texts.WORK_MISSING,
    }
