"""Timelines of operations, which are no traces: what a report says of them."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from harness.cli.main import main
from harness.traces import TraceError, find_traces, open_trace
from tests.gallery import gallery

ROWS: list[dict[str, Any]] = [
    {"rank": stage, "stage": stage, "dp_rank": 0, "step": 10, "optype": kind, "start_ts": start, "duration": 0.02}
    for stage in (0, 1)
    for start, kind in ((0.0, "forward-compute"), (0.1, "backward-compute"))
]
SENTENCE = "is a timeline of operations, without kernels and launches: not a trace that a report reads"


def report(*arguments: object) -> int:
    return main(["report", *map(str, arguments)])


def _events() -> list[dict[str, Any]]:
    return [
        {
            "name": r["optype"],
            "ph": "X",
            "pid": r["dp_rank"],
            "tid": r["stage"],
            "ts": 1e6 * r["start_ts"],
            "dur": 1e6 * r["duration"],
            "args": {"step": r["step"], "pp_rank": r["stage"]},
        }
        for r in ROWS
    ]


def timelines(folder: Path) -> list[Path]:
    """The same timeline in each of its forms but Parquet."""
    path = folder / "job.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(ROWS[0]))
        writer.writeheader()
        writer.writerows(ROWS)
    (folder / "job.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
    (folder / "events.json").write_text(json.dumps(_events()))
    (folder / "trace.json.gz").write_bytes(gzip.compress(json.dumps({"traceEvents": _events()}).encode()))
    return sorted(folder.iterdir())


def test_a_report_of_a_timeline_says_what_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in timelines(tmp_path):
        assert report(path) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and str(path) in said and SENTENCE in said
        with pytest.raises(TraceError, match="not a trace that a report reads"):
            open_trace(path)


def test_in_a_folder_timelines_are_named_if_there_is_no_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = timelines(tmp_path)
    (tmp_path / "steps.csv").write_text("job,rank,step,duration_ns\n0,0,1,5\n")
    (tmp_path / "notes.json").write_text('{"name": "a name", "step": 1}')
    assert find_traces([tmp_path]) == []
    assert report(tmp_path) == 2
    said = capsys.readouterr().err
    assert said.count(SENTENCE) == len(paths) and all(str(path) in said for path in paths)
    assert "steps.csv" not in said and "notes.json" not in said


def test_a_published_timeline_is_recognised_in_both_forms(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("trace-ST.parquet", "timeline-ST.json.gz"):
        assert report(gallery("straggler-analysis") / name) == 2
        assert SENTENCE in capsys.readouterr().err


def test_a_profiler_s_trace_is_no_timeline(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "user_annotation", "name": "forward-compute", "ts": 1, "dur": 1, "args": {"step": 1}}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event]}))
    assert find_traces([tmp_path]) == [path]
    assert len(open_trace(path).ranges) == 1
