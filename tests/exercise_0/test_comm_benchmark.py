"""The benchmark counts as nccl-tests counts, checks its results, and says what its line is worth."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from commtests import COLLECTIVES
from commtests.benchmark import document, table
from commtests.measure import (
    CollectiveResult,
    LinkRates,
    RingMember,
    SizeResult,
    bus_bound,
    prepare,
    rounded_bytes,
    scope_groups,
)

from harness.common.model.alpha_beta import bus_factor, fit_alpha_beta
from tests.exercise_0.kit import ALONE, run_script, torchrun

torch = pytest.importorskip("torch")


QUAD_A100 = LinkRates(intra_gbps=2400, inter_gbps=200, gpus_per_node=4)  # four HDR200 cards, as JUWELS Booster
DGX_H100 = LinkRates(intra_gbps=3600, inter_gbps=400, gpus_per_node=8)
SLOW_BRIDGE = LinkRates(intra_gbps=500, inter_gbps=200, gpus_per_node=4)


@pytest.mark.parametrize(
    ("collective", "scope", "ranks", "links", "gbps"),
    [
        ("all_reduce", "intra", 4, QUAD_A100, 2400),
        ("all_reduce", "inter", 2, QUAD_A100, 200),
        ("all_reduce", "world", 8, QUAD_A100, 800),  # a ring crosses with all four rails
        ("all_gather", "world", 16, DGX_H100, 3200),
        ("broadcast", "world", 8, SLOW_BRIDGE, 500),  # inside the node it is slower than the node's network
        # Of the 7 parts that each rank sends, 4 cross at 200: all 7 move at 350.
        ("all_to_all", "world", 8, QUAD_A100, 350),
        ("all_to_all", "world", 8, LinkRates(100, 1000, 4), 700 / 3),  # here the 3 that stay in the node are slower
        ("reduce_scatter", "world", 8, LinkRates(None, 200, 4), 800),
        ("all_reduce", "world", 8, LinkRates(None, None, 4), None),
        ("send_recv", "world", 8, QUAD_A100, None),  # the backend chooses through how many cards
    ],
)
def test_the_bound_is_what_the_links_of_all_gpus_carry(
    collective: str, scope: str, ranks: int, links: LinkRates, gbps: float | None
) -> None:
    assert bus_bound(collective, scope, ranks, links) == (gbps if gbps is None else pytest.approx(gbps))


def a_result(collective: str, busbw_gbytes_per_s: float) -> CollectiveResult:
    point = SizeResult(1 << 30, 20, 1e7, 1e7, busbw_gbytes_per_s, busbw_gbytes_per_s, True)
    return CollectiveResult(collective, "world", ranks=8, groups=1, points=[point])


def test_four_full_rails_are_the_whole_link_and_not_four_of_them() -> None:
    results = [a_result("all_reduce", 100.0), a_result("all_to_all", 21.875), a_result("send_recv", 25.0)]
    shares = [r["points"][0]["share_of_link"] for r in document({}, results, QUAD_A100)["results"]]
    assert shares == [pytest.approx(1.0), pytest.approx(0.5), None]
    assert "100%" in table(results[0], QUAD_A100)


def test_a_table_has_the_bandwidth_of_an_endless_message_in_both_definitions_or_says_why_not() -> None:
    result = a_result("all_gather", 100.0)
    assert "no α and β: they need 3 message sizes, and here 1 was measured" in table(result, QUAD_A100)
    sizes = [1024 * 4**k for k in range(11)]
    result.fit = fit_alpha_beta(sizes, [1000 + size / 80 for size in sizes])
    assert "1/β = 80 GB/s algbw = 70 GB/s busbw" in table(result, QUAD_A100)  # of 8 ranks
    result.fit = fit_alpha_beta(sizes, [1e5, 1e3] * 5 + [1e4])
    assert "no α and β: its 11 message sizes do not lie on a straight line (R² -" in table(result, QUAD_A100)


def test_scopes_are_nodes_lanes_and_world() -> None:
    scopes = scope_groups([(0, 0), (0, 1), (1, 0), (1, 1)])
    assert scopes == {
        "intra": {"node 0": [0, 1], "node 1": [2, 3]},
        "inter": {"local rank 0": [0, 2], "local rank 1": [1, 3]},
        "world": {"world": [0, 1, 2, 3]},
    }
    assert list(scope_groups([(0, 0), (0, 1)])) == ["intra"]
    assert list(scope_groups([(0, 0), (1, 0)])) == ["inter"]


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("ranks", [2, 3])
def test_the_check_knows_what_must_come_out_and_refuses_anything_else(collective: str, ranks: int) -> None:
    members = [RingMember(None, r, ranks, (r - 1) % ranks, (r + 1) % ranks, 0) for r in range(ranks)]
    buffers = [prepare(collective, 4096, member, torch.device("cpu")) for member in members]
    sent = [b.source.clone() for b in buffers]
    share = rounded_bytes(4096, ranks) // 4 // ranks
    for rank, mine in enumerate(buffers):
        part = slice(rank * share, (rank + 1) * share)
        expected = {
            "all_reduce": sum(sent),
            "broadcast": sent[0],
            "all_gather": torch.cat(sent),
            "reduce_scatter": sum(s[part] for s in sent),
            "all_to_all": torch.cat([s[part] for s in sent]),
            "send_recv": sent[(rank - 1) % ranks],
        }
        mine.output.copy_(expected[collective])
        assert mine.correct()
        mine.output[-1] += 1
        assert not mine.correct()


@pytest.mark.train
def test_two_real_processes_measure_every_collective_and_all_are_right(tmp_path: Path) -> None:
    output = torchrun(tmp_path, "collectives", "--max-bytes", "65536", "--link-gbps-intra", "80")
    (environment,) = (tmp_path / "environment").iterdir()
    assert "torch" in json.loads(environment.read_text())["used"]
    data = json.loads((tmp_path / "comm/collectives.json").read_text())
    assert (data["backend"], data["world_size"]) == ("gloo", 2)
    assert [result["collective"] for result in data["results"]] == list(COLLECTIVES)
    for result in data["results"]:
        points = result["points"]
        assert (result["scope"], result["ranks"], result["reason"]) == ("intra", 2, None)
        assert [point["message_bytes"] for point in points] == [1024, 4096, 16384, 65536]
        assert all(point["correct"] and point["iterations"] >= 3 and point["time_ns"] > 0 for point in points)
        last = points[-1]
        assert last["algbw_gbytes_per_s"] == pytest.approx(65536 / last["time_ns"])
        assert last["busbw_gbytes_per_s"] == pytest.approx(
            65536 / last["time_ns"] * bus_factor(result["collective"], 2)
        )
        assert last["share_of_link"] == pytest.approx(last["busbw_gbytes_per_s"] / 10)
        assert result["fit"]["points"] == 4
    assert (tmp_path / "comm/collectives.png").stat().st_size > 10_000
    assert output.count("busbw GB/s") == 6 and "WRONG" not in output


def test_one_process_alone_is_named_as_the_reason(tmp_path: Path) -> None:
    code, output, _ = run_script(tmp_path, "collectives", environment={**os.environ, **ALONE})
    assert code == 0 and "needs two processes or more, and this run has one (-g 2" in output
    assert json.loads((tmp_path / "comm/collectives.json").read_text())["results"] == []
