"""The health check names the slow rank, node or link, and accuses nobody for what only spreads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import pytest
from commtests.answer import PARTS, comm_answer
from commtests.places import RankPlace, ring
from commtests.verdict import LinkFinding, judge_probe, number

from tests.exercise_0.conftest import EXERCISE
from tests.waiting import limit_s

ROUNDS = 9
Rates = Mapping[str, Sequence[float]]
health_answer = partial(comm_answer, "health")


def probe(
    name: str, by: str, rates: Mapping[str, float], noise: float = 0.01, bound: float | None = None
) -> dict[str, Any]:
    """A probe whose rounds scatter around each rate."""
    chance = Random(name)
    values = {label: [rate * chance.lognormvariate(0, noise) for _ in range(ROUNDS)] for label, rate in rates.items()}
    return {"name": name, "unit": "GB/s", "by": by, "bound": bound, "values": values}


def a_job(nodes: int, ranks_each: int, *probes: dict[str, Any], device: str = "cuda") -> dict[str, Any]:
    """health.json."""
    ranks = [{"node": n, "local_rank": k, "host": f"host{n}"} for n in range(nodes) for k in range(ranks_each)]
    return {"backend": "nccl", "device": device, "device_name": "A100", "ranks": ranks, "probes": list(probes)}


def equal(count: int, slow: Mapping[int, float] | None = None) -> dict[str, float]:
    """100 GB/s for each of `count` labels, but for those in `slow`."""
    return {str(k): 100.0 * (slow or {}).get(k, 1.0) for k in range(count)}


def pairs(count: int, slow: Callable[[int, int], bool]) -> dict[str, float]:
    labels = [pair for phase in ring([RankPlace(n, 0, "h") for n in range(count)]) for pair in phase]
    return {pair.label: 10.0 if slow(pair.one, pair.other) else 20.0 for pair in labels}


def test_equal_ranks_pass_with_their_numbers() -> None:
    found = health_answer(a_job(2, 2, probe("memory", "rank", equal(4))))
    assert found.status == "pass"
    assert found.verdict.startswith(
        "HEALTH: pass: of 4 ranks on 2 nodes, no part is more than 15% slower than the others: memory"
    )
    assert "It is not known whether all are equally slow" in found.verdict
    assert [round(float(line.split()[-1]), -1) for line in found.lines[2:4]] == [100, 100], "of each node"


def test_a_slow_rank_is_named_with_its_node_and_the_others() -> None:
    found = health_answer(a_job(2, 2, probe("memory", "rank", equal(4, {3: 0.5}), noise=0.0)))
    assert found.status == "fail"
    assert (
        found.verdict == "HEALTH: fail: node 1 (host1): memory of rank 3 50 GB/s (the others 100). Rates are medians."
    )
    assert [line.split()[-1] == "slow" for line in found.lines[2:]] == [False, True]


def test_on_one_node_the_places_are_ranks() -> None:
    assert "fail: rank 1: memory" in health_answer(a_job(1, 3, probe("memory", "rank", equal(3, {1: 0.5})))).verdict


def test_of_two_ranks_one_is_slow_against_the_other() -> None:
    assert "fail: rank 1: memory" in health_answer(a_job(1, 2, probe("memory", "rank", equal(2, {1: 0.5})))).verdict


def test_a_node_whose_ranks_are_all_slow_is_one_place() -> None:
    found = health_answer(a_job(4, 2, probe("GEMM", "rank", equal(8, {4: 0.6, 5: 0.5}), noise=0.0)))
    assert "fail: node 2 (host2): GEMM of 2 ranks 50 GB/s (the others 100)" in found.verdict


@pytest.mark.parametrize("count", [3, 4, 5, 8])
def test_a_slow_node_is_the_one_that_is_in_both_slow_pairs(count: int) -> None:
    found = health_answer(a_job(count, 1, probe("neighbours", "node pair", pairs(count, lambda a, b: 1 in (a, b)))))
    assert found.verdict.startswith("HEALTH: fail: node 1 (host1): neighbours"), found.verdict
    assert len(found.problems) == 1


def test_a_slow_link_is_named_by_its_ends() -> None:
    found = health_answer(a_job(6, 1, probe("neighbours", "node pair", pairs(6, lambda a, b: (a, b) == (2, 3)))))
    assert found.verdict.startswith("HEALTH: fail: the link between node 2 (host2) and node 3 (host3): neighbours")
    assert not any(line.endswith("slow") for line in found.lines)


def test_below_half_of_what_the_links_allow_fails_also_where_all_are_alike() -> None:
    nodes = {"0": 40.0, "1": 41.0}
    found = health_answer(a_job(2, 2, probe("all-reduce in node", "node", nodes, bound=300.0)))
    assert "node 0 (host0): all-reduce in node" in found.verdict and "(the site's links allow 300)" in found.verdict
    assert len(found.problems) == 2
    fine = health_answer(a_job(2, 2, probe("all-reduce in node", "node", nodes, bound=60.0)))
    assert fine.status == "pass" and "is not known" not in fine.verdict
    over_all = health_answer(a_job(2, 2, probe("all-reduce over all", "job", {"all": 4.0}, bound=25.0)))
    assert "fail: all ranks: all-reduce over all" in over_all.verdict


def test_what_spreads_more_than_the_limit_is_no_pass_and_no_accusation() -> None:
    found = health_answer(a_job(1, 4, probe("GEMM", "rank", equal(4), noise=0.5), device="cpu"))
    assert found.status == "cannot tell"
    assert "the repetitions spread too much (GEMM by" in found.verdict and not found.problems


@pytest.mark.parametrize("noise", [0.05, 0.2, 0.5])
def test_noise_alone_accuses_hardly_ever(noise: float) -> None:
    chance = Random(7)
    accused = 0
    for _ in range(60):
        values = {str(k): [chance.lognormvariate(0, noise) for _ in range(ROUNDS)] for k in range(16)}
        data = {"name": "GEMM", "unit": "GFLOP/s", "by": "rank", "bound": None, "values": values}
        accused += bool(judge_probe(data, 0.15).slow)
    assert accused <= 2


def test_a_disturbance_of_a_few_rounds_accuses_nobody() -> None:
    """Another program used one rank's core in three of nine rounds."""
    data = probe("GEMM", "rank", equal(4))
    data["values"]["2"] = [rate / 3 if k in (3, 4, 5) else rate for k, rate in enumerate(data["values"]["2"])]
    assert health_answer(a_job(1, 4, data)).status == "pass"


@pytest.mark.parametrize("test", ["health", "overlap"])
def test_one_process_has_nobody_to_measure_with(test: str) -> None:
    found = comm_answer(test, a_job(1, 1, *([probe("GEMM", "rank", equal(1))] if test == "health" else [])))
    assert found.status == "cannot tell" and "(-g 2 starts two)" in found.verdict
    assert found.lines[0].startswith(f"{test.title()}: 1 rank, nccl, A100; ")


def test_a_problem_of_the_nodes_own_tests_fails_too() -> None:
    port = LinkFinding("problem", "infiniband", "node 0 (host0): mlx5_1 port 1 is Down")
    found = health_answer(a_job(1, 2, probe("GEMM", "rank", equal(2))), [port])
    assert found.verdict == "HEALTH: fail: node 0 (host0): mlx5_1 port 1 is Down. Rates are medians."


@pytest.mark.parametrize(("nodes", "local", "phases"), [
    (1, 1, []), (1, 2, []), (1, 3, [["0-1"], ["1-2"], ["2-0"]]), (2, 1, [["0-1"]]),
    (4, 2, [["0-1", "2-3"], ["1-2", "3-0"]]),
])  # fmt: skip
def test_nobody_is_in_two_pairs_at_once(nodes: int, local: int, phases: list[list[str]]) -> None:
    found = ring([RankPlace(n, k, "h") for n in range(nodes) for k in range(local)])
    assert [[pair.label for pair in phase] for phase in found] == phases
    if nodes == 4:
        assert found[1][1].lanes == [(6, 0), (7, 1)]


def test_numbers_have_no_powers_of_ten() -> None:
    assert [number(value) for value in (0.5301, 26.14, 1520.3)] == ["0.53", "26.1", "1520"]


def torchrun(folder: Path, *words: str) -> dict[str, Any]:
    """Two real processes, then the answer: verdict.json, and how `answer` ended."""
    argv = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        str(EXERCISE / "comm_tests.py"), *words, "--run-dir", str(folder), "--device", "cpu",
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=limit_s(), env=environment)
    assert done.returncode == 0, done.stderr
    argv = [sys.executable, "-S", str(EXERCISE / "comm_tests.py"), "answer", words[0], "--run-dir", str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env={}, timeout=limit_s())
    assert done.stderr == "" and max(map(len, done.stdout.splitlines())) < 100
    return {**json.loads((folder / "comm/verdict.json").read_text()), "exit": done.returncode}


@pytest.mark.long  # real processes of exercise 0 are in test_comm_benchmark.py
@pytest.mark.train
def test_two_real_processes_measure_every_probe_and_get_the_answer_to_their_rates(tmp_path: Path) -> None:
    """Which rank is slower depends on what else the machine does."""
    pytest.importorskip("torch")
    verdict = torchrun(tmp_path, "health", "--slow-rank", "1")
    measured = json.loads((tmp_path / "comm/health.json").read_text())
    assert measured["slow_rank"] == 1
    assert [each["name"] for each in measured["probes"]] == ["GEMM", "memory", "all-reduce in node", "small all-reduce"]
    assert [set(alone["values"]) for alone in measured["probes"][:2]] == [{"0", "1"}] * 2
    assert all(rate > 0 for each in measured["probes"] for row in each["values"].values() for rate in row)
    answer = health_answer(measured)
    assert (verdict["status"], verdict["verdict"]) == (answer.status, answer.verdict)
    assert verdict["exit"] == (answer.status == "fail")


@pytest.mark.train
@pytest.mark.long  # only on a machine that does nothing else
def test_of_two_real_processes_the_slow_one_is_named_and_never_the_other(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    verdict = torchrun(tmp_path, "health", "--slow-rank", "1")
    assert verdict["verdict"].startswith(("HEALTH: fail: rank 1: ", "HEALTH: cannot tell: "))
    measured = json.loads((tmp_path / "comm/health.json").read_text())
    for alone in measured["probes"][:2]:
        assert median(alone["values"]["1"]) < median(alone["values"]["0"])


@pytest.mark.train
@pytest.mark.long
def test_two_real_processes_overlap(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    verdict = torchrun(tmp_path, "overlap")
    assert verdict["exit"] == 0 and verdict["verdict"].startswith("OVERLAP: ")
    (probe,) = json.loads((tmp_path / "comm/overlap.json").read_text())["probes"]
    assert all(3 <= len(row) <= 15 for row in probe["values"].values())  # fewer where they take more than a minute
    for together, *each in zip(*(probe["values"][part] for part in PARTS[2:]), strict=True):
        assert together == max(each)
