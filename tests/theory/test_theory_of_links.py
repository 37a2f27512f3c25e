"""Messages of each strategy, the links that they cross, and their time."""

from __future__ import annotations

from collections import Counter

import pytest

from harness.common.model.megatron_layout import Layout
from harness.experiment.model import find_model
from harness.plan.speed import Cost
from harness.theory.communication import (
    MegatronMessages,
    NominalRates,
    PlannedTraffic,
    megatron_traffic_per_step,
    ranks_in_node,
    time_by_rates_ns,
)

TINY = find_model("tiny-mistral")[0]
HIDDEN = 2 * 128 * 128 * 4  # a micro-batch's hidden states, in float32


def counted(layout: Layout, **changes: object) -> Counter[tuple[str, str, str]]:
    """(group, collective, part) -> messages."""
    pieces = {"parameters": 1000, "micro_batch": 2, "seq_length": 128, "micro_batches": 8, "bf16": False} | changes
    found: Counter[tuple[str, str, str]] = Counter()
    for each in megatron_traffic_per_step(TINY, layout, MegatronMessages(**pieces)):  # type: ignore[arg-type]
        found[each.group, each.kind, each.part] += each.messages or 1  # type: ignore[assignment]
    return found


def test_tensor_parallelism_sends_what_a_trace_of_it_showed() -> None:
    """Counted in a recording of exercise 3 with --tp 2: per step 72 and 72 forward, 144 and 72 backward."""
    assert counted(Layout(2, tp=2)) == {
        ("tensor", "all_gather", "forward"): 72,
        ("tensor", "reduce_scatter", "forward"): 72,
        ("tensor", "all_gather", "backward"): 144,
        ("tensor", "reduce_scatter", "backward"): 72,
    }


def test_stages_send_across_each_boundary_once_in_each_direction() -> None:
    for pp, vpp in ((2, 1), (4, 1), (2, 2)):
        found = counted(Layout(pp, pp=pp, vpp=vpp))
        assert found["pipeline", "send_recv", "forward"] * pp == 8 * (pp * vpp - 1)
        assert found["pipeline", "send_recv", "forward"] == found["pipeline", "send_recv", "backward"]


def test_a_rank_alone_in_its_group_sends_nothing() -> None:
    assert counted(Layout(1)) == {}
    assert {group for group, _, _ in counted(Layout(8, tp=2, cp=2))} == {"tensor", "context", "data"}


def test_computing_a_layer_again_sends_its_messages_again() -> None:
    plain, again = counted(Layout(2, tp=2)), counted(Layout(2, tp=2), checkpointing=True)
    assert again["tensor", "all_gather", "backward"] - plain["tensor", "all_gather", "backward"] == 2 * 4 * 8


@pytest.mark.parametrize(
    ("group", "layout", "inside"),
    [
        ("tensor", Layout(8, tp=4), 4),
        ("tensor", Layout(8, tp=8), 4),
        ("data", Layout(8, tp=4), 1),
        ("data", Layout(8), 4),
        ("pipeline", Layout(8, tp=2, pp=4), 2),
        ("context", Layout(8, tp=2, cp=2), 2),
    ],
)
def test_megatrons_order_of_ranks_says_which_groups_leave_a_node(group: str, layout: Layout, inside: int) -> None:
    assert ranks_in_node(group, layout, 4) == inside  # type: ignore[arg-type]


def test_without_a_measurement_the_slowest_link_of_the_ring_says_the_time() -> None:
    whole = PlannedTraffic("all_gather", "forward", 8, 8e9)
    carried = 7e9 * 8  # bits of (n−1)/n of the message
    assert time_by_rates_ns(whole, True, 4, NominalRates(2400, 200)) == pytest.approx(carried / (4 * 200))
    assert time_by_rates_ns(whole, True, 4, NominalRates(400, 200)) == pytest.approx(carried / 400)
    assert time_by_rates_ns(whole, True, 4, NominalRates(2400, None)) is None
    assert time_by_rates_ns(whole, False, 8, NominalRates(None, 200)) is None


def test_a_run_costs_its_gpus_for_its_time() -> None:
    cost = Cost(gpus=8, limit_s=1800, watts=500)
    assert (cost.most_gpu_hours, cost.most_kwh()) == (4, 2)
