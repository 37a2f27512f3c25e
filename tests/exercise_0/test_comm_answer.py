"""The answer names the slow rank, node or link, accuses nobody for what only spreads, and says how much overlapped."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import pytest
from commtests.answer import PARTS, Overlap, health_answer
from commtests.places import RankPlace, ring
from commtests.verdict import LinkFinding, judge_probe, number

from tests.exercise_0.kit import run_script, torchrun

ROUNDS = 9


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


def of_node_1(count: int) -> dict[str, Any]:
    return a_job(count, 1, probe("neighbours", "node pair", pairs(count, lambda a, b: 1 in (a, b))))


LINK = probe("neighbours", "node pair", pairs(6, lambda a, b: (a, b) == (2, 3)))
IN_NODE = {"0": 40.0, "1": 41.0}
DISTURBED = probe("GEMM", "rank", equal(4))  # another program used one rank's core in three of nine rounds
DISTURBED["values"]["2"] = [rate / 3 if k in (3, 4, 5) else rate for k, rate in enumerate(DISTURBED["values"]["2"])]

# Job, status, number of problems, what the verdict says.
HEALTH: dict[str, tuple[dict[str, Any], str, int, tuple[str, ...]]] = {
    "equal ranks": (
        a_job(2, 2, probe("memory", "rank", equal(4))), "pass", 0,
        ("HEALTH: pass: of 4 ranks on 2 nodes, no part is more than 15% slower than the others: memory",
         "It is not known whether all are equally slow"),
    ),
    "a slow rank": (
        a_job(2, 2, probe("memory", "rank", equal(4, {3: 0.5}), noise=0.0)), "fail", 1,
        ("HEALTH: fail: node 1 (host1): memory of rank 3 50 GB/s (the others 100). Rates are medians.",),
    ),
    "on one node": (a_job(1, 3, probe("memory", "rank", equal(3, {1: 0.5}))), "fail", 1, ("fail: rank 1: memory",)),
    "one of two": (a_job(1, 2, probe("memory", "rank", equal(2, {1: 0.5}))), "fail", 1, ("fail: rank 1: memory",)),
    "all ranks of a node": (
        a_job(4, 2, probe("GEMM", "rank", equal(8, {4: 0.6, 5: 0.5}), noise=0.0)), "fail", 1,
        ("fail: node 2 (host2): GEMM of 2 ranks 50 GB/s (the others 100)",),
    ),
    **{f"a node in both pairs, of {count}": (of_node_1(count), "fail", 1, ("fail: node 1 (host1): neighbours",))
       for count in (3, 4, 5, 8)},
    "a slow link": (
        a_job(6, 1, LINK), "fail", 1, ("fail: the link between node 2 (host2) and node 3 (host3): neighbours",)
    ),
    "below the links": (
        a_job(2, 2, probe("all-reduce in node", "node", IN_NODE, bound=300.0)), "fail", 2,
        ("node 0 (host0): all-reduce in node", "(the site's links allow 300)"),
    ),
    "above half of the links": (
        a_job(2, 2, probe("all-reduce in node", "node", IN_NODE, bound=60.0)), "pass", 0, ("half of the nominal links",)
    ),
    "all below the links": (
        a_job(2, 2, probe("all-reduce over all", "job", {"all": 4.0}, bound=25.0)), "fail", 1,
        ("fail: all ranks: all-reduce over all",),
    ),
    "noise": (
        a_job(1, 4, probe("GEMM", "rank", equal(4), noise=0.5), device="cpu"), "cannot tell", 0,
        ("the repetitions spread too much (GEMM by",),
    ),
    "a disturbance of a few rounds": (a_job(1, 4, DISTURBED), "pass", 0, ()),
    "one process": (a_job(1, 1, probe("GEMM", "rank", equal(1))), "cannot tell", 0, ("(-g 2 starts two)",)),
}  # fmt: skip


@pytest.mark.parametrize("case", HEALTH)
def test_the_health_check_blames_the_place_that_is_slow(case: str) -> None:
    job, status, problems, said = HEALTH[case]
    found = health_answer(job)
    assert (found.status, len(found.problems)) == (status, problems)
    assert not [words for words in said if words not in found.verdict], found.verdict


def test_the_table_marks_the_slow_place_and_none_for_a_link() -> None:
    found = health_answer(HEALTH["a slow rank"][0])
    assert [line.split()[-1] == "slow" for line in found.lines[2:]] == [False, True]
    assert not any(line.endswith("slow") for line in health_answer(HEALTH["a slow link"][0]).lines)
    assert [number(value) for value in (0.5301, 26.14, 1520.3)] == ["0.53", "26.1", "1520"]


def test_a_problem_of_the_nodes_own_tests_fails_too() -> None:
    port = LinkFinding("problem", "infiniband", "node 0 (host0): mlx5_1 port 1 is Down")
    found = health_answer(a_job(1, 2, probe("GEMM", "rank", equal(2))), [port])
    assert found.verdict == "HEALTH: fail: node 0 (host0): mlx5_1 port 1 is Down. Rates are medians."


@pytest.mark.parametrize("noise", [0.05, 0.2, 0.5])
def test_noise_alone_accuses_hardly_ever(noise: float) -> None:
    chance = Random(7)
    accused = 0
    for _ in range(60):
        values = {str(k): [chance.lognormvariate(0, noise) for _ in range(ROUNDS)] for k in range(16)}
        data = {"name": "GEMM", "unit": "GFLOP/s", "by": "rank", "bound": None, "values": values}
        accused += bool(judge_probe(data, 0.15).slow)
    assert accused <= 2


@pytest.mark.parametrize(("nodes", "local", "phases"), [
    (1, 1, []), (1, 2, []), (1, 3, [["0-1"], ["1-2"], ["2-0"]]), (2, 1, [["0-1"]]),
    (4, 2, [["0-1", "2-3"], ["1-2", "3-0"]]),
])  # fmt: skip
def test_nobody_is_in_two_pairs_at_once(nodes: int, local: int, phases: list[list[str]]) -> None:
    found = ring([RankPlace(n, k, "h") for n in range(nodes) for k in range(local)])
    assert [[pair.label for pair in phase] for phase in found] == phases
    if nodes == 4:
        assert found[1][1].lanes == [(6, 0), (7, 1)]


def times(*ms: float, together: Sequence[float] = (1, 1, 1, 1, 1)) -> dict[str, list[float]]:
    """Compute, communication, and both together, of five repetitions."""
    rows = {part: [each] * 5 for part, each in zip(PARTS, ms, strict=True)}
    return {**rows, "together": [ms[2] * factor for factor in together]}


# Times, device, the share of the shorter one that was hidden, what the answer says.
OVERLAP: dict[str, tuple[dict[str, list[float]], str, float, str]] = {
    "measured": (times(60, 50, 70), "cuda", 0.8, "hidden of the shorter: 80%, quartiles 80% to 80%. In a training"),
    "all of it": (times(60, 50, 58), "cuda", 1.0, "hidden of the shorter: 100%"),
    "nothing": (times(60, 50, 130), "cuda", 0.0, "hidden of the shorter: 0%"),
    "on CPUs": (times(60, 50, 70), "cpu", 0.8, "only a GPU can show"),
    "slow for a while": (
        {part: [ms * k for ms, k in zip(row, (1, 1, 3, 3, 3), strict=True)] for part, row in times(60, 50, 70).items()},
        "cuda", 0.8, "hidden of the shorter: 80%, quartiles 80% to 80%",
    ),
    "unlike": (
        times(60, 10, 65), "cuda", 0.5, "cannot tell: computation took 60 ms and communication 10 ms, too different"
    ),
    "unsteady": (
        times(60, 50, 1, together=(60, 62, 85, 108, 110)), "cuda", 0.5,
        "cannot tell: a quarter of the repetitions hid less than 4% and a quarter more than 96%: something",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OVERLAP)
def test_the_table_ends_with_what_was_hidden_or_why_it_cannot_tell(case: str) -> None:
    values, device, hidden, said = OVERLAP[case]
    assert Overlap(values).hidden == pytest.approx(hidden)
    work = "40 matrix products of 1.1 TFLOP; 20 all-reduces of 25 MiB"
    each = {"name": work, "unit": "ms", "by": "part", "bound": None, "values": values}
    found = health_answer(a_job(1, 2, probe("GEMM", "rank", equal(2)), each, device=device))
    assert found.status == "pass", "what overlaps is no reason to fail"
    assert said in " ".join(found.lines) and max(map(len, found.lines)) < 80


def test_a_file_of_an_earlier_version_is_refused_in_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "comm/health.json"
    file.parent.mkdir()
    file.write_text('{"schema": 1, "probes": []}')
    code, output, errors = run_script(tmp_path, "answer", python=("-S",))
    sentence = f"--run-dir: {file} was written by an earlier version of these tests; run them again\n"
    assert (code, output, errors) == (2, "", sentence)


@pytest.mark.long  # real processes of exercise 0 are in test_comm_benchmark.py
@pytest.mark.train
def test_two_real_processes_measure_every_probe_and_the_slow_one_is_never_the_other(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    torchrun(tmp_path, "health", "--slow-rank", "1")
    code, output, errors = run_script(tmp_path, "answer", python=("-S",))
    assert errors == "" and max(map(len, output.splitlines())) < 100
    measured, verdict = (json.loads((tmp_path / f"comm/{name}.json").read_text()) for name in ("health", "verdict"))
    *probes, overlap = measured["probes"]
    assert [each["name"] for each in probes] == ["GEMM", "memory", "all-reduce in node", "small all-reduce"]
    assert all(rate > 0 for each in probes for row in each["values"].values() for rate in row)
    for alone in probes[:2]:
        assert median(alone["values"]["1"]) < median(alone["values"]["0"])
    assert all(ms > 0 for part in PARTS for ms in overlap["values"][part])
    answer = health_answer(measured)
    assert (verdict["status"], verdict["verdict"], code) == (answer.status, answer.verdict, answer.status == "fail")
    assert verdict["verdict"].startswith(("HEALTH: fail: rank 1: ", "HEALTH: cannot tell: "))
