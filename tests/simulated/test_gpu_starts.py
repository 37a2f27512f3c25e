"""Simulated jobs that were recorded from their start: what comes before the first step, and what is used for the first
time, are told with their time, and nothing else is told for it."""

from __future__ import annotations

import pytest
from gpu_jobs.judge import StartResult, judge_start
from gpu_jobs.simulate import run
from gpu_jobs.start_cases import KINDS, StartRequest, start_requests

SEED = 20_262


@pytest.fixture(scope="module")
def results(pytestconfig: pytest.Config) -> list[StartResult]:
    return [judge_start(request) for request in start_requests(SEED, 8 if pytestconfig.getoption("--all") else 2)]


def test_the_start_and_first_use_are_told_with_their_time_and_nothing_else_for_it(results: list[StartResult]) -> None:
    wrong = [f"{r.name}: {r.wrong}: {r.said}" for r in results if r.wrong]
    assert len(wrong) <= 0.03 * len(results), "\n".join(wrong)


def test_the_times_are_those_of_the_simulation(results: list[StartResult]) -> None:
    errors = [abs(r.error) for r in results if r.error is not None]
    assert len(errors) >= 0.6 * len(results)
    assert sum(error <= 0.1 for error in errors) >= 0.95 * len(errors)


def test_a_job_without_its_cause_is_another_job() -> None:
    """A judge that compares a job with itself would find everything right."""
    for kind in KINDS:
        case = StartRequest(SEED, kind, 0).case()
        with_it, without = (max(r.end for r in run(t)) for t in (case.training, case.without))
        assert with_it > 1.1 * without, kind
