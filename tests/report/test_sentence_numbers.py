"""The numbers of an answer agree with each other, of real recordings and of simulated ones: no share is above the
whole, and parts that are told together are not more than what they are parts of. That a number is the right one is the
matter of its own test."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from gpu_jobs.cases import requests
from gpu_jobs.judge import summary_of as simulated
from gpu_jobs.simulate import run

from harness.analysis.summary import Summary
from harness.explain.answer import Diagnosis, answer
from harness.measure.paths import measure_jobs
from tests.gallery import gallery_jobs
from tests.real_traces import real_jobs
from tests.replay.replaying import summary_of
from tests.synthetic.simulated import MS, US, Costs, CpuJob, GpuJob

_DIGITS = r"(-?\d+(?:,\d{3})*(?:\.\d+)?)"
_NUMBER = re.compile(rf"(?<![\w.#/-]){_DIGITS}(?: to {_DIGITS})? ?(ns|µs|ms|s|%)(?![\w/])")
_ROUNDING = 0.35  # percent, of parts that are told together
_JOBS = [*gallery_jobs(), *real_jobs()]


class Told(NamedTuple):
    """One number of a sentence with its unit, a range's ends apart."""

    value: float
    unit: str


def numbers_of(sentence: str) -> list[Told]:
    """
    >>> numbers_of("Rank 1 loses 20.1 to 24.9 ms, 3.1 % of 2 steps.")
    [Told(value=20.1, unit='ms'), Told(value=24.9, unit='ms'), Told(value=3.1, unit='%')]
    """
    found = [(text, unit) for *ends, unit in _NUMBER.findall(sentence) for text in filter(None, ends)]
    return [Told(float(text.replace(",", "")), unit) for text, unit in found]


def too_much(answer: Diagnosis) -> list[str]:
    """Sentences with a share above the whole, or with shares that are together more than it."""
    wrong = []
    for sentence in (*answer.first, *answer.rest):
        told = numbers_of(sentence)
        shares = [one.value for one in told if one.unit == "%" and "more time than" not in sentence]
        above = [share for share in shares if not 0 <= share <= 100]
        split = " computing, " in sentence and sum(shares) > 100 + _ROUNDING
        if above or split:
            wrong.append(sentence)
    return wrong


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(job, id=job.name, marks=pytest.mark.long if i % 3 else ())  # a third, as each takes a second
        for i, job in enumerate(_JOBS)
    ],
)
def test_the_numbers_told_of_a_real_recording_agree(job: Path) -> None:
    assert [too_much(answer(s)) for s in measure_jobs([job]) if too_much(answer(s))] == []


def made() -> Iterator[Summary]:
    """Jobs on CPUs and GPUs, healthy and not, and every ninth of the simulated ones."""
    yield summary_of(GpuJob(launch_ns=300 * US, kernel_ns=50 * US).traces())
    yield summary_of(GpuJob(kernel_ns=MS, transfer_ns=30 * MS, late={(1, 2): 20 * MS}).traces())
    yield summary_of(CpuJob(Costs(ranks=2, stalls={(1, 1): 30 * MS})).traces())
    for request in requests(20_262, 1, 2, 3)[::9]:
        case = request.case()
        yield simulated(run(case.training), case.tool, python=case.training.stacks)


def test_the_numbers_told_of_a_made_recording_agree() -> None:
    assert [found for s in made() if (found := too_much(answer(s)))] == []


@pytest.mark.parametrize(
    "sentence",
    ["A step takes 1.00 ms on average: 70.0 % computing, 40.0 % idle.", "A stall costs 3.0 ms a step (103 %)."],
)
def test_numbers_that_disagree_are_seen(sentence: str) -> None:
    assert too_much(Diagnosis([sentence])) == [sentence]
