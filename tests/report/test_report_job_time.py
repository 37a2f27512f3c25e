"""The job's time in a report: one line if much of the job is outside of its steps, a bar whose parts add up on the
page, a sentence with rank, line and what to change."""

from __future__ import annotations

import pytest

from harness.analysis.metric_values import Facts
from harness.analysis.metrics import METRICS
from harness.analysis.summary import CodeLocation, JobTime, Summary
from harness.measure.job_time.time_lines import JobRecord, RankRecord, Stretch, TimedStep, job_time
from harness.report.first_screen import first_screen
from harness.report.page.compose import compose
from harness.report.page.inputs import Inputs
from harness.report.tables.job_time import facts, sentence, short_words
from harness.report.tables.terminal import render_rest

S = 1_000_000_000
WHERE = CodeLocation(file="/home/ada/project/train.py", line=12, function="main")


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


def test_the_first_screen_tells_it_in_one_line_if_a_third_of_the_job_is_outside_of_its_steps() -> None:
    for imports_s, is_told in ((5, False), (12, True)):
        screen = first_screen(Summary(job_time=found(imports_s)), 80).plain.splitlines()
        told = [line for line in screen if line.startswith("  job:")]
        assert len(told) == is_told
    assert told == ["  job:     15.0 s of 35.0 s outside of the steps: imports 13.0 s"]


def test_the_sentence_has_the_package_the_rank_the_line_and_what_to_change() -> None:
    assert sentence(found(12)) == (
        "15.0 s of 35.0 s (42.9 %) are outside of the steps: 13.0 s importing packages (transformers first of all) "
        "[rank 0, main (project/train.py:12)], 1.00 s until the first node began, 1.00 s starting container, launcher "
        "and Python [rank 0]. Try: import less before the first step, or from a disk of the node or an image."
    )


@pytest.mark.parametrize("width", [40, 55, 70])
def test_the_line_has_as_many_parts_as_fit(width: int) -> None:
    assert len(short_words(found(12), width)) <= max(width, len("15.0 s of 35.0 s outside of the steps"))


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
