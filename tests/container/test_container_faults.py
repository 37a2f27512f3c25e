"""Faults of real containers, each a row of docs/development/reliability.md: on this machine, and on a real Slurm."""

from __future__ import annotations

import pytest

from tests.faults.conftest import played
from tests.faults.play import Case
from tests.faults.scene import Scene
from tests.faults.table import cases_of
from tests.faults.verdict import judge

__all__ = ["played"]


@pytest.mark.train
@pytest.mark.parametrize("case", cases_of("local", contained=True))
def test_a_run_in_a_container_survives(case: Case, played: dict[str, Scene]) -> None:
    judge(played[case.name])


@pytest.mark.slurm
@pytest.mark.train
@pytest.mark.parametrize("case", cases_of("slurm", contained=True))
def test_a_job_in_a_container_survives(case: Case, played: dict[str, Scene]) -> None:
    judge(played[case.name])
