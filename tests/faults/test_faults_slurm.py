"""Faults of runs on a real Slurm: the state is true, nothing is lost, the user is told, no process is left."""

from __future__ import annotations

import pytest

from tests.faults.play import Case
from tests.faults.scene import Scene
from tests.faults.table import cases_of
from tests.faults.verdict import judge

pytestmark = [pytest.mark.slurm, pytest.mark.train]


@pytest.mark.parametrize("case", cases_of("slurm"))
def test_a_job_survives(case: Case, played: dict[str, Scene]) -> None:
    judge(played[case.name])
