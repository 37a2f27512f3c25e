"""Which process of a trace has which file of sampled lines: by its run, its rank or its pid."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.process.view import ProcessView, views
from harness.measure.paths import lines_of
from tests.synthetic.simulated import MS, Costs, CpuJob


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


@pytest.mark.parametrize(
    ("folder", "identity", "line"),
    [
        ("torch", {}, 11),
        ("nsys", {}, 11),
        ("torch", {"rank": None}, 11),  # by its pid
        ("torch", {"rank": None, "host": "other"}, None),
        ("torch", {"rank": None, "host": None}, 11),
        ("traces", {}, None),
        ("torch", {"clock": "trace", "epoch_ns": None}, None),  # a clock of its own
    ],
)
def test_a_process_has_the_lines_of_its_rank_or_pid(
    run: Path, folder: str, identity: dict[str, Any], line: int | None
) -> None:
    assert list(seen(of_trace(run, folder, **identity))) == [line]
    (run / "lines" / "rank1.jsonl").unlink()
    assert list(seen(of_trace(run, folder, **identity))) == [None]
