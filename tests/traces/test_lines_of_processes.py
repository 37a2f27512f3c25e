"""Real trainings with a stall at a known line: it is among the lines that were seen. That the finding's first line is
that one is shown by benchmarks/bench_own.py and own_shapes.py."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.process.view import ProcessView, views
from harness.common.paths import ROOT
from harness.common.run_folder.run_files import LINES
from harness.measure.paths import lines_of, measure_one
from tests.synthetic.simulated import MS, Costs, CpuJob
from tests.waiting import limit_s

pytest.importorskip("torch")


PROGRAM = Path(__file__).parent / "program.py.txt"
STALL = "while time.perf_counter() < begun + 0.06: torch.tanh(extra)"  # on rank 0, in every third step
WORLD = 2


def recorded(folder: Path) -> int:
    """Trains and records into `folder`, a run's directory. Returns the planted line of its `train.py`."""
    lines = PROGRAM.read_text(encoding="utf-8").splitlines()
    planted = next(number for number, line in enumerate(lines) if line.endswith("# PLANT loop"))
    indent = lines[planted].partition("# PLANT")[0]
    lines[planted - 1] = f"{indent}begun = time.perf_counter() if rank == 0 and now.step % 3 == 0 else 0"
    lines[planted] = f"{indent}{STALL}"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    script = folder / "train.py"
    script.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    given = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "WORLD_SIZE": str(WORLD),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    ranks = [
        subprocess.Popen([sys.executable, str(script), str(folder)], env=os.environ | given | {"RANK": str(rank)})
        for rank in range(WORLD)
    ]
    assert [rank.wait(limit_s()) for rank in ranks] == [0] * WORLD
    return planted + 1


@pytest.mark.train
def test_the_planted_line_is_seen_on_its_rank_in_the_recorded_steps(tmp_path: Path) -> None:
    run = tmp_path / "run"
    line = recorded(run)
    source = (run / "train.py").read_text().splitlines()[line - 1]
    events = [json.loads(text) for text in LINES.path(run, 0).read_text().splitlines()]
    places = {event["id"]: event for event in events if event["event"] == "place" and event["line"] == line}
    assert {place["file"] for place in places.values()} == {str(run / "train.py")}
    assert {place["source"][1] for place in places.values()} == {source}
    assert any(event["event"] == "at" and event["id"] in places for event in events)
    steps = measure_one([run]).steps
    assert steps.counted + steps.excluded_warmup == WORLD * 12


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
