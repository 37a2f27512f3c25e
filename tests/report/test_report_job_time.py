"""The job's time in a report: one line if much of the job is outside of its steps, a bar whose parts add up on the
page, a sentence with rank, line and what to change."""

from __future__ import annotations

from typing import Any

import pytest

from harness.analysis.metric_values import Facts
from harness.analysis.metrics import METRICS
from harness.analysis.summary import CodeLocation, JobTime, Problem, Quality, RecordingVerdict, Summary, TimeLost
from harness.analysis.summary.problem_texts import NOT_COMPLETED
from harness.explain.answer import answer
from harness.explain.job_time import sentence
from harness.measure.job_time.time_lines import JobRecord, RankRecord, Stretch, TimedStep, job_time
from harness.report.first_screen import first_screen
from harness.report.page.compose import compose
from harness.report.page.inputs import Inputs
from harness.report.tables.job_time import facts
from harness.report.tables.terminal import render_rest

S = 1_000_000_000
STOPPED = Problem.remark(NOT_COMPLETED, "cancelled")
WHERE = CodeLocation(file="/home/ada/project/train.py", line=12, function="main")


def lost(share: float) -> TimeLost:
    return TimeLost(cause="data-stall", ranks=[0], lost_ns=round(share * S), share=share, basis="share", evidence="…")


def found(imports_s: int, steps: int = 20) -> JobTime:
    """A job of one rank that imports transformers, and then takes as many steps of a second."""
    begin = 3 + imports_s
    changes = [Stretch(2 * S, begin * S, "imports", WHERE, ("transformers",))]
    taken = [TimedStep((begin + i) * S, S, 0) for i in range(steps)]
    end = begin + steps
    record = RankRecord(0, 0, 2 * S, 2 * S, changes, taken, end * S)
    made = job_time(JobRecord(0, end * S, -5 * S, {0: (1 * S, end * S)}), [record])
    assert made is not None
    return made


OWN = {"exercise": "own", "command": ["train.py"]}


@pytest.mark.parametrize(
    ("imports_s", "more", "is_first"),
    [
        (30, {"experiment": OWN}, True),
        (30, {"experiment": {"exercise": 1}}, False),  # a lesson is about its steps
        (12, {"experiment": OWN}, False),  # the steps are the larger part
        (30, {"experiment": OWN, "findings": [lost(0.9)]}, True),  # 0.9 of 20 s are less than the imports
        (22, {"experiment": OWN, "findings": [lost(0.9)]}, True),
        (30, {"experiment": OWN, "quality": Quality(verdict=RecordingVerdict.GOOD, problems=[STOPPED])}, False),
    ],
)
def test_the_answer_begins_with_the_job_where_the_steps_are_its_smaller_part(
    imports_s: int, more: dict[str, Any], is_first: bool
) -> None:
    """Where a part of it costs more than what the steps lose."""
    given = Summary(job_time=found(imports_s), **more)
    first = answer(given).sentences[0]
    assert first.startswith(f"{imports_s + 3}.0 s of the job's {imports_s + 23}.0 s") is is_first, first
    assert "importing packages" in first or not is_first
    told = [value for value, what in compose(given, Inputs()).numbers if "job" in what]
    assert told == [f"{imports_s + 3}.0 s"], "the page, too"


def test_the_first_screen_tells_it_if_a_third_of_the_job_is_outside_of_its_steps() -> None:
    small, large = (" ".join(first_screen(Summary(job_time=found(s)), 80).plain.split()) for s in (5, 12))
    assert "job:" not in small
    assert "job: 15.0 s of 35.0 s outside of the steps: imports 13.0 s, job start 1.00 s, launch 1.00 s" in large


def test_the_sentence_has_the_package_the_rank_the_line_and_what_to_change() -> None:
    assert sentence(found(12)) == (
        "15.0 s of the job's 35.0 s (42.9 %) are outside of the steps: 13.0 s importing packages (transformers first "
        "of all) [rank 0, main (project/train.py:12)], 1.00 s until the first node began, 1.00 s starting container, "
        "launcher and Python [rank 0]. Try: import less before the first step, or from a disk of the node or an image."
    )


def test_the_page_has_the_job_as_a_bar_whose_parts_add_up() -> None:
    page = compose(Summary(job_time=found(12)), Inputs())
    (section,) = [each for each in page.before if each.id == "job-time"]
    assert section.lead == sentence(found(12))
    (figure,) = section.figures
    assert sum(bar["x"][0] for bar in figure.data) == pytest.approx(35)
    assert ("queue, before it", "5.00 s") in section.facts
    said = dict(facts(found(12).model_copy(update={"gpu_time_ns": round(8 * 3.6e12), "energy_joules": 7.2e6})))
    assert said["GPU hours"] == "8, of them 3.43 outside of the steps"
    assert said["energy"] == "2 kWh of the GPUs in the whole job"
    summary = Summary(job_time=found(12))
    values = {each.name: each.value(Facts(summary)) for each in METRICS if each.name.startswith("job_")}
    assert (values["job_imports_ns"], values["job_elapsed_ns"], values["job_tail_ns"]) == (13 * S, 35 * S, 0)
    assert "Where the job's" not in render_rest(Summary()), "without a record"
    assert section.tables[0].rows[0][0] == "job start"
