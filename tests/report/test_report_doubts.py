"""The answer says what puts its numbers in doubt, and how much the profiler itself costs."""

from __future__ import annotations

import json
import re
from math import hypot
from typing import Any

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
from tests.report.given_summary import MS, summary, text


def lost(cause: str, ms: float, **more: Any) -> TimeLost:
    """A loss of some milliseconds of a step of 90 ms, one more or less."""
    ns = round(ms * MS)
    given: dict[str, Any] = {"ranks": [0], "low_ns": ns - MS, "high_ns": ns + MS, "share": ns / (90 * MS)}
    return TimeLost(cause=cause, lost_ns=ns, evidence="…", **given | more)


def replay(step_ms: float = 10.0, processes: int = 1) -> Replay:
    ns = round(step_ms * MS)
    return Replay(steps=9, processes=processes, step_ns=ns, replayed_ns=ns, error=0.0)


def doubtful(*what: str, withheld: tuple[str, ...] = (), **evidence: str) -> Quality:
    problems = [Problem.doubt(each, evidence.get(each.partition(" ")[0], "…")) for each in what]
    missing = [Withheld(field=field, reason="…") for field in withheld]
    return Quality(verdict=RecordingVerdict.DOUBTFUL, problems=problems, withheld=missing)


WHY = "stuck since 18:19:04 in step 20: rank 0 waits in all_reduce (train.py:216); rank 1 is sleeping in a.py:4"
ENDED = Problem(severity=RecordingVerdict.GOOD, what="the run did not complete", evidence=WHY)
REMARK = Problem(severity=RecordingVerdict.GOOD, what="only a remark", evidence="…")
READER, CROWDED = "the reader could not read everything", "there are more ranks than cores"
BUSY = "others used the cores while this was measured"
SEVERAL = "ranks are missing", "ranks are missing", "a", "b", "c"
FIRST = "These numbers are doubtful: ranks are missing; a; and 2 more."
STALL = lost("host-stall", 3, low_ns=2 * MS, high_ns=4 * MS, share=0.3, every=1)
DOUBTS: dict[str, tuple[Summary, list[str]]] = {  # given, how the answer begins
    "several": (summary(quality=doubtful(*SEVERAL)), [FIRST]),
    "of a mystery": (summary(quality=doubtful(*SEVERAL, withheld=("findings",))), [FIRST]),
    "a remark is none": (summary(quality=Quality(problems=[REMARK])), ["No part"]),
    # What a file lacks in part comes last, and says which part; what every time depends on comes first.
    "the one that matters": (
        summary(quality=doubtful(READER, "a", "b", CROWDED, the="a.json: 3 records were left out")),
        [f"These numbers are doubtful: {CROWDED}; a; and 2 more.", "Only counts and bytes are certain, and no time."],
    ),
    "a file read in part": (
        summary(quality=doubtful(READER, the="a.json: 3 records were left out")),
        ["These numbers are doubtful: 3 records were left out."],
    ),
    "what is certain on a busy machine": (
        summary(quality=doubtful(BUSY), findings=[STALL], replay=replay()),
        [f"These numbers are doubtful: {BUSY}.",
         "It is certain that rank 0 loses at least 2.00 ms per step on average.",
         "A stall of the host costs 3.0 of 10.0 ms a step (30 %; 2.0 to 4.0 ms), in every step."],
    ),
    "why the run did not complete": (
        summary(quality=Quality(verdict=RecordingVerdict.DOUBTFUL, problems=[Problem.doubt("a", "…"), ENDED])),
        [f"The run did not complete: {WHY}.", "These numbers are doubtful: a."],
    ),
    # The mean step differs from the median one if a step stalls now and then.
    "one step time": (
        summary(findings=[STALL.model_copy(update={"share": 0.242, "every": 4})], replay=replay(12.4, 2)),
        ["A stall of the host costs 3.0 of 12.4 ms a step (24 %; "],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DOUBTS)
def test_what_an_answer_begins_with(name: str) -> None:
    given, begins = DOUBTS[name]
    first = answer(given).first
    assert [said.startswith(begin) for said, begin in zip(first, begins, strict=False)] == [True] * len(begins), first
    if name == "several":
        assert render(given).index(FIRST) < render(given).index("A step takes")
    if name == "one step time":
        assert "A step takes 12.4 ms on average: " in text(answer(given)) and "10.0 ms" not in text(answer(given))


@pytest.mark.parametrize(("ratio", "said"), [(1.71, True), (1.15, False), (0.9, False)])
def test_an_answer_says_how_much_the_profiler_slows_the_steps(ratio: float, said: bool) -> None:
    cost = ProfilerCost(unprofiled_step_ns=70 * MS, profiled_step_ns=round(ratio * 70 * MS), ratio=ratio)
    given = summary(profiler_cost=cost)
    sentence = (
        "With the profiler the median step, without waits for a core, is 1.71 times as long as without it. "
        "Times on the host are therefore too long. No number is corrected."
    )
    for shown in (render(given), brief(given), render_page(compose(given, Inputs()))):
        assert (sentence in " ".join(re.sub("<a [^>]*>|</a>", "", shown).split())) == said
    assert json.loads(given.model_dump_json())["profiler_cost"]["ratio"] == ratio


def cost_of(profiled_ms: float) -> ProfilerCost:
    """Of a run whose steps take 60 ms without the profiler."""
    return ProfilerCost(unprofiled_step_ns=60 * MS, profiled_step_ns=round(profiled_ms * MS), ratio=profiled_ms / 60)


def test_what_the_profiler_adds_is_subtracted_from_a_loss_to_small_operators_and_from_no_stall() -> None:
    found = [lost("tiny-kernels", 45), lost("host-stall", 40), lost("data-stall", 9)]
    given = without_profiler(summary(profiler_cost=cost_of(90), findings=found))
    assert [(one.cause, one.lost_ns // MS) for one in given.findings] == [
        ("host-stall", 40),  # now the largest
        ("tiny-kernels", 15),
        ("data-stall", 9),
    ]
    small = given.findings[1]
    assert (small.recorded_lost_ns, small.low_ns, small.share) == (45 * MS, 14 * MS, 15 / 90)
    assert json.loads(given.model_dump_json())["findings"][1]["recorded_lost_ns"] == 45 * MS
    assert "What it adds to a step is subtracted from the loss to small operators." in text(answer(given))
    assert corrected(found, None) == corrected(found, cost_of(66)) == found, "it costs little, or that is not known"


@pytest.mark.parametrize(("profiled_ms", "told_ms", "said"), [(90, 33, True), (66, 42.6, True), (57, 45, False)])
def test_on_cpus_the_loss_to_small_operators_has_its_part_of_what_the_profiler_adds_also_if_that_is_little(
    profiled_ms: int, told_ms: float, said: bool
) -> None:
    """A threshold would make one run's loss jump beside the next one's. What is not subtracted is not said to be."""
    small = lost("tiny-kernels", 45, profiler_fraction=0.4)
    given = without_profiler(summary(profiler_cost=cost_of(profiled_ms), findings=[small]))
    (told,) = given.findings
    apart_ns = hypot(MS, 0.4 * 1.96 * 0.05 * 60 * MS)  # the loss's own interval, and two stretches of one run
    ends = told.lost_ns / MS, round(told_ms * MS - apart_ns), round(told_ms * MS + apart_ns)
    assert ends == (told_ms, told.low_ns, told.high_ns)
    assert ("is told without its part of what the profiler adds to a step." in text(answer(given))) == said


@pytest.mark.parametrize("ms", [29, 3])
def test_small_operators_that_are_the_profilers_own_are_not_told(ms: int) -> None:
    """The profiler adds 30 ms to a step."""
    found = [lost("tiny-kernels", ms), lost("host-stall", 20)]
    given = without_profiler(summary(profiler_cost=cost_of(90), findings=found))
    assert [one.cause for one in given.findings] == ["host-stall"]
    assert "A loss to small operators is not told: without what the profiler adds, it may be below 3.0 %" in text(
        answer(given)
    )
    assert any(one.field == "findings.tiny-kernels" for one in given.quality.withheld)


def test_an_answer_says_how_long_the_profiler_itself_worked() -> None:
    little = ProfilerOverhead(rank=0, window_ns=100 * MS, overhead_ns=2 * MS)
    much = ProfilerOverhead(rank=3, window_ns=100 * MS, overhead_ns=12 * MS)
    sentence = "The profiler recorded 12.0 ms of its own work beside rank 3, 12.0 % of the window."
    assert sentence in answer(summary(profiler_overhead=[little, much])).further
    assert "profiler" not in text(answer(summary(profiler_overhead=[little])))
