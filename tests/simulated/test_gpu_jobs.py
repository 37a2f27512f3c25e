"""A tenth of the proof of diagnosis.md, with seeds of its own: simulated jobs are reported as they are.

Without --all every fourth one of them: together they take minutes.
"""

from __future__ import annotations

from statistics import median

import pytest
from gpu_jobs.cases import requests
from gpu_jobs.judge import SURE, FaultResult, Result, judge
from gpu_jobs.tables import tables

SEED = 20_261
Due = list[tuple[Result, FaultResult]]


@pytest.fixture(scope="session")
def share(pytestconfig: pytest.Config) -> float:
    """How much of the jobs is looked at."""
    return 1.0 if pytestconfig.getoption("--all") else 0.25


@pytest.fixture(scope="module")
def results(share: float) -> list[Result]:
    return [judge(request) for request in requests(SEED, 1, 6, 10)[:: round(1 / share)]]


@pytest.fixture(scope="module")
def due(results: list[Result]) -> Due:
    return [(r, f) for r in results for f in r.faults if f.own_ns >= SURE * r.step_ns]


def test_cause_ranks_and_place_of_what_costs_time_are_named(due: Due, share: float) -> None:
    wrong = [f"{r.name}: {f}" for r, f in due if not f.right]
    assert len(due) >= 30 * share
    assert len(wrong) <= 0.06 * len(due), "\n".join(wrong)


def test_the_lost_time_is_that_of_the_same_program_without_the_fault(due: Due) -> None:
    errors = [abs(f.error) for _, f in due if f.right and f.error is not None]
    assert sum(error <= 0.1 for error in errors) >= 0.85 * len(errors)
    assert median(errors) < 0.03


def test_a_healthy_program_has_no_finding_that_is_not_its_own(results: list[Result]) -> None:
    assert [r.false for r in results if not r.faults and r.false] == []


def test_a_fault_that_costs_nothing_is_not_told(results: list[Result]) -> None:
    """A host that is ahead of its device has time for it."""
    cheap = [(r, f) for r in results for f in r.faults if f.own_ns < 0.01 * r.step_ns]
    assert [r.name for r, f in cheap if f.told_ns and f.told_ns > 0.05 * r.step_ns and len(r.faults) == 1] == []


def test_what_would_help_is_what_the_changed_program_takes(results: list[Result], share: float) -> None:
    errors = [abs(told / true - 1) for r in results for told, true in r.what_ifs.values()]
    assert len(errors) > 60 * share
    assert median(errors) < 0.03


def test_the_time_that_no_finding_explains_is_the_program_s_own(results: list[Result]) -> None:
    rest = [abs(r.unexplained_ns / r.own_ns - 1) for r in results if r.unexplained_ns]
    assert len(rest) == len(results)
    assert median(rest) < 0.05


def test_nothing_is_promised_that_the_devices_time_does_not_allow(results: list[Result]) -> None:
    assert [(r.name, r.broken) for r in results if r.broken] == []


def test_unchanged_each_is_replayed_as_it_ran(results: list[Result]) -> None:
    assert max(r.replay_error for r in results) < 1e-4


def test_the_tables_have_every_fault(results: list[Result]) -> None:
    text = tables(results)
    assert "cause, ranks and place right" in text
    assert "| slower-device |" in text
