"""The answer says what puts its numbers in doubt, and how much the profiler itself costs."""

from __future__ import annotations

import json

import pytest

from harness.analysis.summary import (
    Problem,
    ProfilerCost,
    Quality,
    RecordingVerdict,
    Replay,
    Summary,
    TimeLost,
    Withheld,
)
from harness.explain.answer import answer
from harness.report.brief import brief
from harness.report.page.compose import compose, render_page
from harness.report.page.inputs import Inputs
from harness.report.tables.terminal import render
from tests.report.given_summary import MS, run, summary


def test_a_doubtful_recording_is_said_in_the_first_line_of_the_answer() -> None:
    doubts = [Problem.doubt(what, "…") for what in ("ranks are missing", "ranks are missing", "a", "b", "c")]
    remark = Problem(severity=RecordingVerdict.GOOD, what="only a remark", evidence="…")
    quality = Quality(verdict=RecordingVerdict.DOUBTFUL, problems=[remark, *doubts])
    given = summary(quality=quality)
    first = "These numbers are doubtful: ranks are missing; a; and 2 more."
    assert answer(given).sentences[0] == first
    assert render(given).index(first) < render(given).index("A step takes")
    mystery = Quality(
        verdict=RecordingVerdict.DOUBTFUL, problems=doubts, withheld=[Withheld(field="findings", reason="…")]
    )
    assert answer(summary(quality=mystery)).sentences[0] == first
    good = Quality(problems=[remark])
    assert answer(summary(quality=good)).sentences[0].startswith("A step takes")


@pytest.mark.parametrize(("ratio", "said"), [(1.71, True), (1.15, False), (0.9, False)])
def test_an_answer_says_how_much_the_profiler_slows_the_steps(ratio: float, said: bool) -> None:
    cost = ProfilerCost(unprofiled_step_ns=70 * MS, profiled_step_ns=round(ratio * 70 * MS), ratio=ratio)
    given = summary(profiler_cost=cost)
    whole = " ".join(answer(given).further)
    sentence = (
        "The profiler slows the steps: the median step is 1.71 times as long as without it. Losses on the host are "
        "therefore too large. No number is corrected."
    )
    assert (sentence in whole) == said
    for text in (render(given), brief(given), render_page(compose(given, Inputs()))):
        assert ("The profiler slows the steps" in text) == said
    assert json.loads(given.model_dump_json())["profiler_cost"]["ratio"] == ratio


def test_a_summary_from_before_the_profilers_cost_is_read() -> None:
    old = json.loads(summary(**run(1)).model_dump_json())
    old.pop("profiler_cost")
    for rank in old["training"]:
        rank.pop("unprofiled_steps"), rank.pop("median_unprofiled_step_ns")
    assert Summary.model_validate(old).profiler_cost is None


def test_an_answer_has_one_step_time_and_its_word() -> None:
    """The mean step differs from the median one if a step stalls now and then."""
    loss = TimeLost(cause="host-stall", ranks=[0], lost_ns=3 * MS, share=0.242, evidence="…", every=4)
    replayed = Replay(steps=10, processes=2, step_ns=round(12.4 * MS), replayed_ns=round(12.4 * MS), error=0)
    said = answer(summary(findings=[loss], replay=replayed))
    text = " ".join([*said.sentences, *said.further])
    assert "loses 3.00 ms per step, 24.2 % of the time" in text
    assert "A step takes 10.0 ms (median)" in text and "12.4 ms" not in text
