"""No sentence of an answer is constant: every number in it is the Summary's, of real recordings and of made ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

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
from tests.report.sentence_numbers import invented, numbers_of, too_much
from tests.synthetic.simulated import MS, US, Costs, CpuJob, GpuJob

_JOBS = [*gallery_jobs(), *real_jobs()]


def made() -> Iterator[Summary]:
    """Jobs on CPUs and GPUs, healthy and not, and every ninth of the simulated ones."""
    yield summary_of(GpuJob(launch_ns=300 * US, kernel_ns=50 * US).traces())
    yield summary_of(GpuJob(kernel_ns=MS, transfer_ns=30 * MS, late={(1, 2): 20 * MS}).traces())
    yield summary_of(CpuJob(Costs(ranks=2, stalls={(1, 1): 30 * MS})).traces())
    yield summary_of(CpuJob(Costs(ranks=2)).traces())
    for request in requests(20_262, 1, 2, 3)[::9]:
        case = request.case()
        yield simulated(run(case.training), case.tool, python=case.training.stacks)


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(job, id=job.name, marks=pytest.mark.long if i % 3 else ())  # a third, as each takes a second
        for i, job in enumerate(_JOBS)
    ],
)
def test_every_number_that_is_told_of_a_real_recording_is_in_its_summary(job: Path) -> None:
    for s in measure_jobs([job]):
        told = answer(s)
        assert not invented(s, told) and not too_much(told)


def test_every_number_that_is_told_of_a_made_recording_is_in_its_summary() -> None:
    for s in made():
        told = answer(s)
        assert not invented(s, told) and not too_much(told)


def test_a_number_that_is_invented_is_seen() -> None:
    """Each number with a unit, a little larger: nearly all are then none of the Summary's."""
    s = summary_of(GpuJob(kernel_ns=MS, transfer_ns=30 * MS, late={(1, 2): 20 * MS}).traces())
    told = answer(s)
    sentences = [*told.first, *told.rest]
    seen = changed = 0
    for sentence in sentences:
        for match in re.finditer(r"\d+\.\d+(?= (?:ms|%|µs|s)\b| %)", sentence):
            wrong = f"{float(match[0]) * 1.07 + 0.1:.{len(match[0].partition('.')[2])}f}"
            altered = sentence[: match.start()] + wrong + sentence[match.end() :]
            changed += 1
            seen += bool(invented(s, Diagnosis([altered])))
    assert changed >= 5 and seen >= 0.9 * changed
    assert too_much(Diagnosis(["A step takes 1.00 ms on average: 70.0 % computing, 40.0 % idle."]))
    assert too_much(Diagnosis(["The other 10.0 ms of the mean step, 20.0 ms: 9.00 ms kernels, 4.00 ms idle."]))
    assert [one.text for one in numbers_of("20.1 to 24.9 ms (3.1 %)")] == ["20.1 ms", "24.9 ms", "3.1 %"]
