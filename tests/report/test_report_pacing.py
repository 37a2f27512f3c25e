"""Pacing in page and terminal: who is behind is named."""

from __future__ import annotations

import pytest

from harness.analysis.summary import RankSteps, Steps, Summary
from harness.report.page.inputs import Inputs
from harness.report.page.steps import steps_section
from harness.report.tables.pace import pace_sentences
from harness.report.tables.terminal import render
from tests.analysis.paced_jobs import job, paced

SWITCHES = {f"node{n}": f"leaf{n // 16:02d}" for n in range(250)}
STEPS = Steps(source="ProfilerStep", per_rank=[RankSteps(rank=0, durations_ns=[10, 11, 12])])
MANY = Summary(pacing=paced(job(250, 50, {41: 0.123}), SWITCHES), steps=STEPS)


def test_who_is_behind_is_said_in_terminal_and_page() -> None:
    (sentence,) = pace_sentences(MANY)
    assert sentence.startswith("node41 (switch leaf02, slowest rank 16")
    assert sentence.endswith("behind the median step in 50 of 50 steps.")
    assert "node41 (switch leaf02" in render(MANY)
    assert "node41" in " ".join(steps_section(MANY, Inputs()).lead.split())
    assert "242 more places: export csv has all" in render(MANY)


@pytest.mark.parametrize(
    ("slow", "told"),
    [((), None), ((33, 34, 35, 36, 99), "2 more nodes are behind in the same way; 4 of all are on switch leaf02.")],
)
def test_nobody_is_named_where_nobody_is_behind_and_of_many_the_first_three(
    slow: tuple[int, ...], told: str | None
) -> None:
    texts = pace_sentences(Summary(pacing=paced(job(250, 50, dict.fromkeys(slow, 0.2)), SWITCHES)))
    assert texts[3:] == ([told] if told else []) and len(texts) == (4 if told else 0)
