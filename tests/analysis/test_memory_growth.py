"""Growth of memory over the steps: leaks of many kinds are found with their rate, healthy trainings are not blamed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.analysis.memory_fit import fit
from harness.analysis.memory_growth import growth
from harness.analysis.summary import CodeLocation, MemoryGrowth, MemoryKeeper, RankTraining, Summary
from harness.explain.answer import answer
from harness.explain.memory import fit_sentences, growth_sentence, steady_sentences
from harness.measure.memory_growth import MemorySeries, read_growth

MB = 10**6
STEPS = 200
START = {"host": "node0", "host_limit_bytes": 64_000 * MB, "device_limit_bytes": 80_000 * MB}


def of_seed(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def leaking(rate: float, seed: int, every: int = 1) -> Any:
    """A leak beside noise of 3 MB."""
    steps = np.arange(STEPS)
    return 500 * MB + rate * every * (steps // every) + of_seed(seed).normal(0, 3 * MB, STEPS)


@pytest.mark.parametrize("every", [1, 10])
def test_of_a_leak_the_rate_is_inside_of_its_interval(every: int) -> None:
    found = [growth(range(STEPS), leaking(2 * MB, seed, every), "host") for seed in range(100)]
    rates = [rate for rate in found if rate is not None]
    assert len(rates) >= 98
    assert sum(rate.low <= 2 * MB <= rate.high for rate in rates) >= 0.95 * len(rates)
    assert all(abs(rate.per_step - 2 * MB) < 0.1 * MB for rate in rates)


def test_a_leak_that_begins_late_is_dated() -> None:
    values = 500 * MB + 5 * MB * np.maximum(np.arange(STEPS) - 60, 0) + of_seed(1).normal(0, MB, STEPS)
    found = growth(range(STEPS), values, "device")
    assert found is not None and abs(found.since - 60) <= 3


def fills_up(seed: int) -> Any:
    """A cache that is full at some step."""
    until = of_seed(seed).uniform(0.05, 0.7) * STEPS
    return 500 * MB + 2 * MB * np.minimum(np.arange(STEPS), until) + of_seed(seed).normal(0, MB, STEPS)


def saturates(seed: int) -> Any:
    return 500 * MB + 300 * MB * (1 - np.exp(-np.arange(STEPS) / of_seed(seed).uniform(5, 40)))


def wanders(seed: int) -> Any:
    """A level that takes random steps up and down, as an allocator's."""
    return 500 * MB + np.cumsum(of_seed(seed).choice([0.0, 1.0, -1.0], STEPS, p=[0.9, 0.05, 0.05])) * 4 * MB


def jumps(seed: int) -> Any:
    """Few new levels, at any time, always upwards, as larger batches make them."""
    rng = of_seed(seed)
    return 500 * MB + sum(20 * MB * (np.arange(STEPS) >= at) for at in rng.integers(0, STEPS, 3))


def noise(seed: int) -> Any:
    return 500 * MB + of_seed(seed).standard_t(2, STEPS) * 10 * MB


@pytest.mark.parametrize("healthy", [fills_up, saturates, wanders, jumps, noise])
def test_healthy_trainings_are_blamed_in_at_most_one_of_fifty(healthy: Any) -> None:
    blamed = sum(growth(range(STEPS), healthy(seed), "host") is not None for seed in range(300))
    assert blamed <= 6


def test_growth_with_the_largest_batch_is_the_batchs() -> None:
    sizes = np.linspace(1000, 5000, STEPS)
    found = growth(range(STEPS), 500 * MB + 1e5 * sizes, "host", sizes)
    assert found is not None and found.by_batch
    random_sizes = of_seed(0).uniform(100, 5000, STEPS)
    leak = growth(range(STEPS), leaking(2 * MB, 0), "host", random_sizes)
    assert leak is not None and not leak.by_batch


def test_of_few_steps_nothing_is_said() -> None:
    assert growth(range(20), [1e9 + 1e7 * step for step in range(20)], "host") is None


def series(*ranks: dict[str, Any]) -> MemorySeries:
    found = MemorySeries()
    for rank, fields in enumerate(ranks):
        lines = [
            {"event": "step", "step": step, "samples": 8, **{name: values[step] for name, values in fields.items()}}
            for step in range(STEPS)
        ]
        found.add(rank, START, lines)
    return found


def kept(folder: Path, name: str = "rank0", **more: Any) -> Path:
    line = ["train.py", 31, "main"]
    growing = [{"name": "history", "kind": "graph", "bytes_per_step": 1000, "where": line}]
    tensors = [{"where": ["train.py", 12, "forward"], "bytes_per_step": 5 * MB}]
    path = folder / f"{name}.json"
    document = {"version": 1, "rank": 0, "worker": None, "growing": growing, "tensors": tensors, "objects": []}
    path.write_text(json.dumps(document | more), encoding="utf-8")
    return path


def test_the_ranks_of_a_host_share_its_memory_and_a_graph_has_the_bytes_of_the_tracker(tmp_path: Path) -> None:
    growing = {"host_memory_bytes": [int(500 * MB + 5 * MB * step) for step in range(STEPS)]}
    (found,), problems = read_growth(series(growing, growing), [kept(tmp_path)])
    assert (found.of, found.ranks, found.since_step, problems) == ("host", [0, 1], 0, [])
    last = 500 * MB + 5 * MB * (STEPS - 1)
    assert found.steps_left == (64_000 * MB - 2 * last) // (2 * 5 * MB)
    (keeper,) = found.keepers
    assert (keeper.name, keeper.bytes_per_step, keeper.where and keeper.where.line) == ("history", 5 * MB, 31)


def test_of_a_host_the_growth_is_of_what_the_program_holds() -> None:
    held, holes = ([int(300 * MB + rate * MB * step) for step in range(STEPS)] for rate in (2, 3))
    whole = [one + other for one, other in zip(held, holes, strict=True)]
    rare = [free if step % 10 == 0 else None for step, free in enumerate(holes)]
    (found,), _ = read_growth(series({"host_memory_bytes": whole, "host_free_bytes": rare}), [])
    assert (round(found.per_step), found.is_free) == (2 * MB, False)
    level = [one - 2 * MB * step for step, one in enumerate(whole)]
    (found,), _ = read_growth(series({"host_memory_bytes": level, "host_free_bytes": rare}), [])
    assert (round(found.per_step), found.is_free) == (3 * MB, True)
    little = {"host_memory_bytes": [int(300 * MB + MB * step / 2) for step in range(STEPS)]}
    free = {"host_free_bytes": [int(MB * step / 2) if step % 10 == 0 else None for step in range(STEPS)]}
    assert read_growth(series(little | free), []) == ([], []), "the C library keeps that much"
    assert len(read_growth(series(little), [])[0]) == 1


def test_tensors_are_kept_on_the_device_and_objects_on_the_host(tmp_path: Path) -> None:
    both = [int(500 * MB + 5 * MB * step) for step in range(STEPS)]
    rows = [{"name": "rows", "kind": "objects", "bytes_per_step": 5 * MB, "where": None}]
    files = [kept(tmp_path, "rank0"), kept(tmp_path, "rank1", growing=rows, tensors=[])]
    found, _ = read_growth(series({"host_memory_bytes": both, "device_memory_bytes": both}), files)
    assert {one.of: [keeper.name for keeper in one.keepers] for one in found} == {
        "device": ["history"],
        "host": ["rows"],
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"version": 2}',
        '{"version": 1, "rank": -1, "growing": []}',
        json.dumps({"version": 1, "rank": 0, "growing": [{"name": "x" * 2000, "kind": "graph", "bytes_per_step": 1}]}),
        json.dumps({"version": 1, "rank": 0, "growing": [{"name": "x", "kind": "gold", "bytes_per_step": 1}]}),
    ],
)
def test_a_damaged_file_is_a_problem_and_no_traceback(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(text, encoding="utf-8")
    _, problems = read_growth(series({}), [path])
    assert len(problems) == 1


def grown(**changes: Any) -> MemoryGrowth:
    found = MemoryGrowth(of="device", ranks=[0], per_step=5.9e6, low=5.6e6, high=6.2e6, since_step=12)
    return found.model_copy(update=changes)


def test_a_leak_leads_the_answer_with_its_line_and_what_to_change() -> None:
    where = CodeLocation(file="train.py", line=31, function="main")
    keeper = MemoryKeeper(name="history", kind="graph", bytes_per_step=5 * MB, where=where, ranks=[0])
    rank = RankTraining(rank=0, median_step_ns=10**7)
    said = answer(Summary(training=[rank], memory_growth=[grown(keepers=[keeper])]))
    assert said.sentences[0] == "GPU memory grows by 5.90 MB a step (5.60 to 6.20 MB) on rank 0 since step 12."
    assert said.where[0] == (
        "memory: 5.00 MB a step at train.py:31 in `main`: `history` keeps tensors with their autograd graphs"
    )
    assert said.attempt is not None and "loss.item()" in said.attempt.text


def test_growth_with_the_batch_does_not_lead() -> None:
    rank = RankTraining(rank=0, median_step_ns=10**7)
    said = answer(Summary(training=[rank], memory_growth=[grown(by_batch=True)]))
    assert not any("grows" in sentence for sentence in said.sentences)
    assert any("no leak" in sentence for sentence in said.further)


def test_what_the_program_has_freed_does_not_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = Summary(training=[RankTraining(rank=0, median_step_ns=10**7)], memory_growth=[grown(is_free=True)])
    said = answer(summary)
    assert not any("grows" in sentence for sentence in said.sentences)
    (of_it,) = [sentence for sentence in said.further if "The program has freed it" in sentence]
    summary.training[0].typical_memory_bytes = summary.training[0].sampled_peak_bytes = MB
    monkeypatch.setattr("harness.explain.memory.asked_words", lambda _summary: "run --memory -- train.py")
    asked = answer(summary)
    assert (asked.sentences[0], of_it in asked.further) == (of_it, False)


def test_growth_of_workers_leads_with_a_line_only() -> None:
    rank = RankTraining(rank=0, median_step_ns=10**7)
    keeper = MemoryKeeper(name="seen", kind="tensor", bytes_per_step=5 * MB, ranks=[0])
    for keepers, leads in (([keeper], True), ([], False)):
        said = answer(Summary(training=[rank], memory_growth=[grown(of="workers", keepers=keepers)]))
        start = "Memory of the processes that load data grows by 5.90 MB a step"
        assert said.sentences[0].startswith(start) is leads
        assert any(each.startswith(start) and "with --memory" in each for each in said.further) is not leads


def test_whoever_asked_for_memory_is_told_that_none_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.explain.memory.asked_words", lambda _summary: "run --memory -- train.py")
    rank = RankTraining(rank=0, typical_memory_bytes=250 * MB, sampled_peak_bytes=300 * MB)
    told = {
        steps: steady_sentences(Summary(training=[rank.model_copy(update={"steps_total": steps})]))
        for steps in (23, 24)
    }
    assert told == {
        23: ["Whether memory grows is not known: it takes 24 steps to tell, and there are 23."],
        24: ["No memory grows over the 24 steps: rank 0 has 250 MB after a step, and 300 MB at most."],
    }
    assert steady_sentences(Summary(training=[rank], memory_growth=[grown()])) == []


def test_counts_are_no_bytes() -> None:
    files = grown(of="files", per_step=1.0, low=0.9, high=1.1)
    assert growth_sentence(files).startswith("The number of open files grows by 1 a step (0.9 to 1.1) on rank 0")


def test_two_batches_say_what_a_third_needs() -> None:
    runs = [
        Summary(
            training=[
                RankTraining(
                    rank=0,
                    device="cuda",
                    samples=10 * batch,
                    steps_counted=10,
                    peak_memory_bytes=5_000 * MB + 2_000 * MB * batch,
                    device_limit_bytes=80_000 * MB,
                )
            ]
        )
        for batch in (8, 16)
    ]
    assert fit_sentences(runs) == [
        "A rank's peak is 5.00 GB and 2.00 GB a sample: batch 24 would need 53.0 GB of 80.0 GB, and the largest that "
        "fits is 35."
    ]
    assert fit_sentences(runs[:1] * 2) == [] and fit([(8, 10), (16, 5)]) is None
