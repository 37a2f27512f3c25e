"""The answer says what puts its numbers in doubt, and how much the profiler itself costs."""

from __future__ import annotations

import json
import re
from math import hypot

import pytest

from harness.analysis.summary import (
    Problem,
    ProfilerCost,
    ProfilerOverhead,
    Quality,
    RecordingVerdict,
    Replay,
    Summary,
    TimeLost,
    Withheld,
)
from harness.explain.answer import answer
from harness.measure.jobs import corrected, without_profiler
from harness.report.brief import brief
from harness.report.page.compose import compose, render_page
from harness.report.page.inputs import Inputs
from harness.report.tables.terminal import render
from tests.report.given_summary import MS, run, summary, text


def test_a_doubtful_recording_is_said_in_the_first_line_of_the_answer() -> None:
    doubts = [Problem.doubt(what, "…") for what in ("ranks are missing", "ranks are missing", "a", "b", "c")]
    remark = Problem(severity=RecordingVerdict.GOOD, what="only a remark", evidence="…")
    quality = Quality(verdict=RecordingVerdict.DOUBTFUL, problems=[remark, *doubts])
    given = summary(quality=quality)
    first = "These numbers are doubtful: ranks are missing; a; and 2 more."
    assert answer(given).first[0] == first
    assert render(given).index(first) < render(given).index("A step takes")
    mystery = Quality(
        verdict=RecordingVerdict.DOUBTFUL, problems=doubts, withheld=[Withheld(field="findings", reason="…")]
    )
    assert answer(summary(quality=mystery)).first[0] == first
    good = Quality(problems=[remark])
    assert answer(summary(quality=good)).sentences[0].startswith("No part")


def test_the_doubt_that_is_told_is_the_one_that_matters() -> None:
    """What a file lacks in part comes last, and says which part; what every time depends on comes first."""
    what = ("the reader could not read everything", "a", "b", "there are more ranks than cores")
    problems = [Problem.doubt(each, "a.json: 3 records were left out" if "reader" in each else "…") for each in what]
    quality = Quality(verdict=RecordingVerdict.DOUBTFUL, problems=problems)
    first, second, *_ = answer(summary(quality=quality)).first
    assert first == "These numbers are doubtful: there are more ranks than cores; a; and 2 more."
    assert second == "Only counts and bytes are certain, and no time."
    alone = Quality(verdict=RecordingVerdict.DOUBTFUL, problems=problems[:1])
    assert answer(summary(quality=alone)).first[0] == "These numbers are doubtful: 3 records were left out."


def test_on_a_busy_machine_what_is_certain_is_still_named() -> None:
    busy = Problem.doubt("others used the cores while this was measured", "…")
    found = TimeLost(
        cause="host-stall", ranks=[0], lost_ns=3 * MS, low_ns=2 * MS, high_ns=4 * MS, share=0.3, every=1, evidence=""
    )
    replay = Replay(steps=9, processes=1, step_ns=10 * MS, replayed_ns=10 * MS, error=0.0)
    quality = Quality(verdict=RecordingVerdict.DOUBTFUL, problems=[busy])
    _, certain, main, *_ = answer(summary(quality=quality, findings=[found], replay=replay)).first
    assert certain == "It is certain that rank 0 loses at least 2.00 ms per step on average."
    assert main == "A stall of the host costs 3.0 of 10.0 ms a step (30 %; 2.0 to 4.0 ms), in every step."


def test_an_answer_begins_with_why_the_run_did_not_complete() -> None:
    why = "stuck since 18:19:04 in step 20: rank 0 waits in all_reduce (train.py:216); rank 1 is sleeping in a.py:4"
    ended = Problem(severity=RecordingVerdict.GOOD, what="the run did not complete", evidence=why)
    quality = Quality(verdict=RecordingVerdict.DOUBTFUL, problems=[Problem.doubt("a", "…"), ended])
    first, second, *_ = answer(summary(quality=quality)).first
    assert (first, second) == (f"The run did not complete: {why}.", "These numbers are doubtful: a.")


@pytest.mark.parametrize(("ratio", "said"), [(1.71, True), (1.15, False), (0.9, False)])
def test_an_answer_says_how_much_the_profiler_slows_the_steps(ratio: float, said: bool) -> None:
    cost = ProfilerCost(unprofiled_step_ns=70 * MS, profiled_step_ns=round(ratio * 70 * MS), ratio=ratio)
    given = summary(profiler_cost=cost)
    whole = " ".join(answer(given).further)
    sentence = (
        "With the profiler the median step, without waits for a core, is 1.71 times as long as without it. "
        "Times on the host are therefore too long. No number is corrected."
    )
    assert (sentence in whole) == said
    for shown in (render(given), brief(given), render_page(compose(given, Inputs()))):
        told = " ".join(re.sub("<a [^>]*>|</a>", "", shown).split())
        assert ("With the profiler the median step" in told) == said
    assert json.loads(given.model_dump_json())["profiler_cost"]["ratio"] == ratio


def lost(cause: str, ns: int) -> TimeLost:
    return TimeLost(
        cause=cause, ranks=[0], lost_ns=ns, low_ns=ns - MS, high_ns=ns + MS, share=ns / (90 * MS), evidence="…"
    )


def with_losses(*found: TimeLost, ratio: float = 1.5) -> Summary:
    """A run whose steps take 60 ms, and with the profiler `ratio` times as long."""
    cost = ProfilerCost(unprofiled_step_ns=60 * MS, profiled_step_ns=round(ratio * 60 * MS), ratio=ratio)
    return without_profiler(summary(profiler_cost=cost, findings=[*found]))


def test_what_the_profiler_adds_is_subtracted_from_a_loss_to_small_operators_and_from_no_stall() -> None:
    given = with_losses(lost("tiny-kernels", 45 * MS), lost("host-stall", 40 * MS), lost("data-stall", 9 * MS))
    assert [(one.cause, one.lost_ns // MS) for one in given.findings] == [
        ("host-stall", 40),  # now the largest
        ("tiny-kernels", 15),
        ("data-stall", 9),
    ]
    small = given.findings[1]
    assert (small.recorded_lost_ns, small.low_ns, small.share) == (45 * MS, 14 * MS, 15 / 90)
    assert json.loads(given.model_dump_json())["findings"][1]["recorded_lost_ns"] == 45 * MS
    assert (
        "1.50 times as long as without it. What it adds to a step is subtracted from the loss to small operators."
        in " ".join(answer(given).further)
    )


def test_on_cpus_the_loss_to_small_operators_has_its_part_of_what_the_profiler_adds() -> None:
    cost = ProfilerCost(unprofiled_step_ns=60 * MS, profiled_step_ns=90 * MS, ratio=1.5)
    small = lost("tiny-kernels", 45 * MS).model_copy(update={"profiler_fraction": 0.4})
    given = without_profiler(summary(profiler_cost=cost, findings=[small]))
    (told,) = given.findings
    assert (told.lost_ns, told.recorded_lost_ns) == (33 * MS, 45 * MS)
    apart_ns = hypot(MS, 0.4 * 1.96 * 0.05 * 60 * MS)  # the loss's own interval, and two stretches of one run
    assert (told.low_ns, told.high_ns) == (round(33 * MS - apart_ns), round(33 * MS + apart_ns))
    said = " ".join(answer(given).further)
    assert "The loss to small operators is told without its part of what the profiler adds to a step." in said


@pytest.mark.parametrize(("profiled_ms", "told_ms", "said"), [(66, 42.6, True), (57, 45, False)])
def test_on_cpus_it_has_its_part_also_if_that_is_little(profiled_ms: int, told_ms: float, said: bool) -> None:
    """A threshold would make one run's loss jump beside the next one's. What is not subtracted is not said to be."""
    cost = ProfilerCost(unprofiled_step_ns=60 * MS, profiled_step_ns=profiled_ms * MS, ratio=profiled_ms / 60)
    small = lost("tiny-kernels", 45 * MS).model_copy(update={"profiler_fraction": 0.4})
    (told,) = corrected([small], cost)
    assert told.lost_ns == round(told_ms * MS)
    apart_ns = hypot(MS, 0.4 * 1.96 * 0.05 * 60 * MS)
    assert (told.low_ns, told.high_ns) == (round(told_ms * MS - apart_ns), round(told_ms * MS + apart_ns))
    sentences = " ".join(answer(summary(profiler_cost=cost, findings=[told])).further)
    assert ("without its part of what the profiler adds" in sentences) == said


@pytest.mark.parametrize("ms", [29, 3])
def test_small_operators_that_are_the_profilers_own_are_not_told(ms: int) -> None:
    """The profiler adds 30 ms to a step."""
    given = with_losses(lost("tiny-kernels", ms * MS), lost("host-stall", 20 * MS))
    assert [one.cause for one in given.findings] == ["host-stall"]
    said = text(answer(given))
    assert (
        "A loss to small operators is not told: without what the profiler adds, it may be below 3.0 % of a step."
        in said
    )
    assert any(one.field == "findings.tiny-kernels" for one in given.quality.withheld)


def test_losses_stay_as_they_are_where_the_profiler_costs_little_or_its_cost_is_not_known() -> None:
    found = [lost("tiny-kernels", 45 * MS), lost("host-stall", 50 * MS)]
    assert with_losses(*found, ratio=1.1).findings == found[::-1]
    assert corrected(found, None) == found


def test_an_answer_says_how_long_the_profiler_itself_worked() -> None:
    little = ProfilerOverhead(rank=0, window_ns=100 * MS, overhead_ns=2 * MS)
    much = ProfilerOverhead(rank=3, window_ns=100 * MS, overhead_ns=12 * MS)
    sentence = "The profiler recorded 12.0 ms of its own work beside rank 3, 12.0 % of the window."
    assert sentence in answer(summary(profiler_overhead=[little, much])).further
    assert not [x for x in answer(summary(profiler_overhead=[little])).further if "profiler" in x]


def test_a_summary_from_before_the_profilers_cost_is_read() -> None:
    old = json.loads(summary(**run(1)).model_dump_json())
    old.pop("profiler_cost")
    for rank in old["training"]:
        rank.pop("unprofiled_steps"), rank.pop("median_unprofiled_step_on_core_ns")
    assert Summary.model_validate(old).profiler_cost is None


def test_an_answer_has_one_step_time_and_its_word() -> None:
    """The mean step differs from the median one if a step stalls now and then."""
    loss = TimeLost(cause="host-stall", ranks=[0], lost_ns=3 * MS, share=0.242, evidence="…", every=4)
    replayed = Replay(steps=10, processes=2, step_ns=round(12.4 * MS), replayed_ns=round(12.4 * MS), error=0)
    said = answer(summary(findings=[loss], replay=replayed))
    assert "costs 3.0 of 12.4 ms a step (24 %; " in text(said)
    assert "A step takes 12.4 ms on average: " in text(said) and "10.0 ms" not in text(said)
