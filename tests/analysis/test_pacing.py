"""Who is behind: injected slow nodes are named, and healthy jobs name nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from harness.analysis.job.pacing import MOST_PLACES, MOST_STEPS, middle, outlying, pace_table, pacing
from harness.analysis.process.part import RankPart
from harness.analysis.process.pipeline import StagePart
from harness.run.record import NodeStatus
from harness.traces.trace import F64
from tests.analysis.paced_jobs import job, paced, part

Noise = Callable[[np.random.Generator, tuple[int, int]], F64]
NOISES: dict[str, Noise] = {
    "normal": lambda random, shape: random.standard_normal(shape),
    "one-sided": lambda random, shape: random.exponential(1.0, shape),
    "heavy": lambda random, shape: np.abs(random.standard_cauchy(shape)),
}


def test_slow_nodes_among_250_are_named_with_switch_and_slowest_rank() -> None:
    switches = {f"node{n}": f"leaf{n // 16:02d}" for n in range(250)}
    found = paced(job(250, 50, {41: 0.123, 77: 0.2}), switches)
    assert [(x.node, x.switch, x.place) for x in found.outliers] == [
        ("node77", "leaf04", "node"),
        ("node41", "leaf02", "node"),
    ]
    slow = found.outliers[1]
    assert slow.rank is not None and slow.rank // 4 == 41
    assert slow.behind_share == pytest.approx(0.123, abs=0.02)
    assert (slow.measure, slow.steps, slow.steps_behind >= 48) == ("step", 50, True)


def test_a_synchronised_job_shows_the_slow_node_in_its_own_work_only() -> None:
    """Every rank's step is as long as the slowest's: the others wait in collectives."""
    parts = job(16, 20, noise=0.001)
    late = [int(ns * 1.2) for ns in parts[0].steps.durations_ns]
    parts = [
        part(r, np.array(late, float), own_ns=late if r // 4 == 5 else p.steps.durations_ns)
        for r, p in enumerate(parts)
    ]
    (named,) = paced(parts).outliers
    assert (named.node, named.measure) == ("node5", "own work")


@pytest.mark.parametrize("name", NOISES)
@pytest.mark.parametrize(("places", "steps"), [(2, 40), (8, 5), (250, 5), (250, 30)])
def test_healthy_jobs_name_somebody_in_at_most_one_of_twenty(name: str, places: int, steps: int) -> None:
    seeds, false = range(40), 0
    for seed in seeds:
        times = np.maximum(1 + 0.1 * NOISES[name](np.random.default_rng([seed, places, steps]), (places, steps)), 0.01)
        false += bool(len(outlying(times / middle(times) - 1)))
    assert false <= 0.05 * len(seeds)


def of_one_node(parts: list[RankPart]) -> list[RankPart]:
    return [p.model_copy(update={"source": p.source.model_copy(update={"host": "node0"})}) for p in parts]


def staged(parts: list[RankPart]) -> list[RankPart]:
    """The second half of the ranks has a pipeline stage of its own, which is compared with its own kind."""
    stages = [StagePart(stages=[s], microbatches=4, window_ns=1, busy_ns=1, iterations=[]) for s in (0, 1)]
    return [p.model_copy(update={"stage": stages[2 * r // len(parts)]}) for r, p in enumerate(parts)]


HALF = dict.fromkeys(range(8, 16), 0.5)


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        (job(2, 40, {1: 0.15}), [("node", "node1", None)]),
        (job(8, 40, {6: 0.15}, per_node=1), [("node", "node6", 6)]),
        (of_one_node(job(8, 40, {6: 0.15}, per_node=1)), [("rank", "node0", 6)]),
        (job(32, 50, {3: 0.04}, noise=0.002), []),  # less than a step in twenty is nobody's business
        (job(32, 50, {3: 0.06}, noise=0.002), [("node", "node3", None)]),
        (job(32, 30, dict.fromkeys(range(16, 32), 0.1), noise=0.01), []),  # two halves of a job
        (staged(job(16, 30, HALF)), []),
        (staged(job(16, 30, {**HALF, 11: 0.8})), [("node", "node11", None)]),
    ],
)
def test_who_is_behind_is_named(parts: list[RankPart], named: list[tuple[str, str, int | None]]) -> None:
    found = paced(parts).outliers
    assert [(x.place, x.node, rank and x.rank) for x, (_, _, rank) in zip(found, named, strict=True)] == named


def test_of_very_many_nodes_and_steps_the_farthest_behind_and_some_are_kept() -> None:
    found = paced(job(1100, 2, {1000: 0.5}, per_node=1))
    assert len(found.places) == MOST_PLACES and "node1000" in [place.node for place in found.places]
    table = pace_table(job(2, MOST_STEPS + 9))
    assert table is not None and len(table.steps) == MOST_STEPS


def test_steps_are_matched_by_their_numbers() -> None:
    """A rank that left out a step of its own warm-up is not one step off."""
    table = pace_table([part(0, np.array([3e8, 1e8, 1e8]), 1), part(1, np.array([2e8, 1e8]), 1, numbers=[1, 2])])
    assert table is not None and table.steps.tolist() == [0, 1, 2]
    assert np.array_equal(table.step_ns, [[3e8, 1e8, 1e8], [np.nan, 2e8, 1e8]], equal_nan=True)


def test_one_rank_has_no_pacing_and_neither_have_steps_of_other_kinds() -> None:
    first, second = job(1, 5, per_node=2)
    unlike: tuple[dict[str, Any], ...] = ({"source": "range iteration"}, {"numbers": [1]})
    others = [second.model_copy(update={"steps": second.steps.model_copy(update=more)}) for more in unlike]
    assert [pacing(parts) for parts in ([first], *([first, other] for other in others))] == [None] * 3


@pytest.mark.parametrize(
    ("topology", "pattern", "switch"),
    [
        ("root.leaf07.node0412", "switch.switch.node", "leaf07"),
        ("leaf07.node0412.site.eu", "switch.node", "leaf07"),
        ("node0412", "node", None),
        ("node0412.site.eu", "node", None),
        ("", "", None),
        ("node0412", "switch.node", None),
    ],
)
def test_the_switch_is_the_name_before_the_nodes(topology: str, pattern: str, switch: str | None) -> None:
    node = NodeStatus(
        node=0, host="node0412", exit=0, started_ns=0, ended_ns=1, topology=topology, topology_pattern=pattern
    )
    assert node.switch == switch
