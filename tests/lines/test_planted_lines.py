"""Real trainings with a stall at a known line: it is among the lines that were seen. That the finding's first line is
that one is shown by benchmarks/bench_own.py and own_shapes.py."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.process.view import ProcessView, views
from harness.common.run_files import LINES
from harness.measure.paths import lines_of, measure_one
from tests.lines.planted import Plant, record
from tests.synthetic.simulated import MS, Costs, CpuJob

pytest.importorskip("torch")


@pytest.mark.train
@pytest.mark.parametrize(
    "plant",
    [
        Plant("operators", "loop", (0,), every=3, ms=60),
        *(
            pytest.param(plant, marks=pytest.mark.long)  # the same of other stalls
            for plant in (
                Plant("sleep", "forward", (1,)),
                Plant("python", "data", (0, 1)),
                Plant("all-reduce", "forward", (0, 1)),
            )
        ),
    ],
    ids=lambda plant: f"{plant.stall}-{plant.place}",
)  # fmt: skip
def test_the_planted_line_is_seen_on_its_ranks_in_the_recorded_steps(tmp_path: Path, plant: Plant) -> None:
    run = tmp_path / "run"
    line = record(run, plant)
    source = (run / "train.py").read_text().splitlines()[line - 1]
    for rank in plant.ranks:
        events = [json.loads(text) for text in LINES.path(run, rank).read_text().splitlines()]
        places = {event["id"]: event for event in events if event["event"] == "place" and event["line"] == line}
        assert {place["file"] for place in places.values()} == {str(run / "train.py")}
        assert {place["source"][1] for place in places.values()} == {source}
        assert any(event["event"] == "at" and event["id"] in places for event in events)
    steps = measure_one([run]).steps
    assert steps.counted + steps.excluded_warmup == 2 * 12, "of two ranks"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose ranks 0 and 1 were in lines 10 and 11 from 100 ms on, with pids 100 and 101 of `node`."""
    (tmp_path / "lines").mkdir()
    for rank in (0, 1):
        place = {"event": "place", "id": 0, "file": "train.py", "line": 10 + rank, "function": "f"}
        rows = [
            {"event": "start", "rank": rank, "host": "node", "pid": 100 + rank, "hz": 50},
            place | {"source": [], "first_line": 9},
            {"event": "at", "unix_ns": 100 * MS, "id": 0},
        ]
        file = tmp_path / "lines" / f"rank{rank}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def seen(views_: Sequence[ProcessView]) -> Iterator[int | None]:
    for view in views_:
        found = lines_of(view)
        yield found.places[0].line if found else None


def of_trace(run: Path, folder: str = "torch", **identity: Any) -> list[ProcessView]:
    trace = CpuJob(Costs(steps=4)).traces()[1]
    known: dict[str, Any] = {"path": str(run / folder / "rank1.json.gz"), "clock": "unix"} | identity
    return views(replace(trace, identity=replace(trace.identity, **known)))


def test_a_process_has_the_lines_of_its_rank(run: Path) -> None:
    assert list(seen(of_trace(run))) == [11]
    assert list(seen(of_trace(run, "nsys"))) == [11]


def test_a_process_without_a_rank_has_those_of_its_pid(run: Path) -> None:
    assert list(seen(of_trace(run, rank=None))) == [11]
    assert list(seen(of_trace(run, rank=None, host="other"))) == [None]
    assert list(seen(of_trace(run, rank=None, host=None))) == [11]


def test_a_trace_elsewhere_or_on_a_clock_of_its_own_has_none(run: Path) -> None:
    assert list(seen(of_trace(run, "traces"))) == [None]
    assert list(seen(of_trace(run, clock="trace", epoch_ns=None))) == [None]
    (run / "lines" / "rank1.jsonl").unlink()
    assert list(seen(of_trace(run))) == [None]
