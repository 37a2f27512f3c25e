"""The benchmark counts as nccl-tests counts, checks its results, and says what its line is worth."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commtests import COLLECTIVES
from commtests.benchmark import bounds, document, marks_and_lines, table
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

from harness.common.alpha_beta import bus_factor, fit_alpha_beta
from tests.exercise_0.conftest import EXERCISE
from tests.waiting import limit_s

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
    ],
)
def test_the_bound_is_what_the_links_of_all_gpus_carry(
    collective: str, scope: str, ranks: int, links: LinkRates, gbps: float | None
) -> None:
    assert bus_bound(collective, scope, ranks, links).gbps == (gbps if gbps is None else pytest.approx(gbps))


def a_result(collective: str, busbw_gbytes_per_s: float) -> CollectiveResult:
    point = SizeResult(1 << 30, 20, 1e7, 1e7, 1e7, busbw_gbytes_per_s, busbw_gbytes_per_s, True, {"world": 1e7})
    return CollectiveResult(collective, "world", ranks=8, groups=1, points=[point])


def test_four_full_rails_are_the_whole_link_and_not_four_of_them() -> None:
    results = [a_result("all_reduce", 100.0), a_result("all_to_all", 21.875), a_result("send_recv", 25.0)]
    shares = [r["points"][0]["share_of_link"] for r in document({}, results, QUAD_A100)["results"]]
    assert shares == [pytest.approx(1.0), pytest.approx(0.5), None]
    assert "100%" in table(results[0], QUAD_A100)
    assert "of link: – because only one pair per node crosses the network" in table(results[2], QUAD_A100)


def test_the_pictures_dashed_lines_are_the_bounds() -> None:
    results = [a_result(name, 50.0) for name in COLLECTIVES]
    lines = bounds(document({}, results, QUAD_A100)["results"])
    assert lines == {100.0: "", 43.75: " (all-to-all)"}


SIZES = [1024 * 4**k for k in range(11)]


def test_a_table_without_a_line_says_why_and_its_picture_promises_none(tmp_path: Path) -> None:
    result = a_result("all_reduce", 100.0)
    assert "no α and β: they need 3 message sizes, and here 1 was measured" in table(result, QUAD_A100)
    data = document({"backend": "nccl", "device_name": "A100"}, [result], QUAD_A100)
    assert "lines" not in marks_and_lines(data)
    data["results"][0]["fit"] = {"alpha_ns": 1.0}
    assert marks_and_lines(data) == "measured (marks) and α + β·bytes (lines)"


def test_the_bandwidth_of_an_endless_message_is_given_in_both_definitions() -> None:
    result = a_result("all_gather", 100.0)
    result.fit = fit_alpha_beta(SIZES, [1000 + size / 80 for size in SIZES])
    assert "1/β = 80 GB/s algbw = 70 GB/s busbw" in table(result, QUAD_A100)  # of 8 ranks


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
    argv = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        str(EXERCISE / "comm_tests.py"), "collectives", "--run-dir", str(tmp_path), "--max-bytes", "64K",
        "--iterations", "5", "--time-budget-s", "3600", "--link-gbps-intra", "80",
    ]  # fmt: skip
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, timeout=limit_s(), env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
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
    assert done.stdout.count("busbw GB/s") == 6 and "WRONG" not in done.stdout


def test_one_process_alone_is_named_as_the_reason(tmp_path: Path) -> None:
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    argv = [sys.executable, str(EXERCISE / "comm_tests.py"), "collectives", "--run-dir", str(tmp_path)]
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, env={**os.environ, **alone}, timeout=limit_s()
    )
    assert done.returncode == 0 and "needs two processes or more, and this run has one (-g 2" in done.stdout
    assert json.loads((tmp_path / "comm/collectives.json").read_text())["results"] == []
