"""Simulated jobs of which some ranks were recorded, and one large message: ranks, times and messages are told as the
simulation has them."""

from __future__ import annotations

import pytest

from tests.simulated.partly_recorded import judge_message, judge_some

SEEDS = [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))]


@pytest.mark.parametrize("seed", SEEDS)
def test_files_of_two_ranks_without_a_world_size_are_one_job_whose_late_rank_is_named(seed: int) -> None:
    found = judge_some(seed)
    assert (found.jobs, found.world_size, len(found.ranks)) == (1, 8, 2)
    assert found.late == (found.planted,)
    assert found.told_ns == pytest.approx(found.own_ns, rel=0.1)


@pytest.mark.parametrize("seed", SEEDS)
def test_files_of_two_runs_of_one_program_stay_two_jobs(seed: int) -> None:
    found = judge_some(seed, later=True)
    assert (found.jobs, found.world_size) == (2, None)


@pytest.mark.parametrize("tool", ["kineto", "nsys"])
@pytest.mark.parametrize("seed", SEEDS)
def test_one_large_message_is_named_with_its_size_and_time(seed: int, tool: str) -> None:
    told, own = judge_message(seed, tool)
    assert told[:4] == own[:4] and told[5]
    assert told[4] == pytest.approx(own[4], rel=0.1)
