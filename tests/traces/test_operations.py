"""Timelines of operations: in which columns and units the benchmark reads them, and what a report says of them."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from stragglers import table
from stragglers.__main__ import main as stragglers
from stragglers.events import read_operations
from stragglers.measure import measure
from stragglers.vocabulary import column_of

from harness.cli.main import main
from harness.common.errors import HarnessError, RequestError
from harness.traces import TraceError, find_traces, open_trace
from tests.gallery import gallery
from tests.synthetic.pipelines import Shape, job, slow_worker, write_csv

Rows = list[dict[str, Any]]
ROWS: Rows = job(Shape(2, 2, batches=4, steps=2), slow_worker(1, 1, 1.5)).rows()


def report(*arguments: object) -> int:
    return main(["report", *map(str, arguments)])


def slowdown(path: Path) -> float:
    return measure(path).slowdown


def renamed(rows: Rows, names: dict[str, str | None], times: float = 1.0) -> Rows:
    """The rows with other heads (None: without the column), and times in another unit."""
    scaled = [r | {"start_ts": r["start_ts"] * times, "duration": r["duration"] * times} for r in rows]
    return [{names.get(k, k): v for k, v in row.items() if names.get(k, k) is not None} for row in scaled]


@pytest.fixture
def expected(tmp_path: Path) -> float:
    return slowdown(write_csv(tmp_path / "expected.csv", ROWS))


OTHERS: dict[str, tuple[dict[str, str | None], float]] = {
    "Megatron's words": ({"dp_rank": None, "stage": "pp_rank", "optype": "operation", "mb_id": "micro_batch"}, 1.0),
    "no rank": ({"rank": None}, 1.0),
    "no stage": ({"stage": None}, 1.0),
    "no order and no chunk": ({"seq_id": None, "mc": None}, 1.0),
    "nanoseconds": ({"start_ts": "start_ns", "duration": "dur_ns"}, 1e9),
    "milliseconds": ({"start_ts": "start (ms)", "duration": "duration (ms)"}, 1e3),
}


@pytest.mark.parametrize("which", OTHERS)
def test_other_words_and_units_give_the_same(which: str, tmp_path: Path, expected: float) -> None:
    names, times = OTHERS[which]
    path = write_csv(tmp_path / "job.csv", renamed(ROWS, names, times))
    assert slowdown(path) == pytest.approx(expected, rel=1e-6)


def test_the_order_of_rows_and_columns_does_not_matter(tmp_path: Path, expected: float) -> None:
    rows = [dict(reversed(row.items())) for row in ROWS]
    random.Random(1).shuffle(rows)
    path = write_csv(tmp_path / "job.csv", rows)
    assert slowdown(path) == pytest.approx(expected, rel=1e-6)
    (tmp_path / "job.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert slowdown(tmp_path / "job.csv.gz") == pytest.approx(expected, rel=1e-6)


def test_steps_that_are_not_numbered_end_with_the_optimizer(tmp_path: Path, expected: float) -> None:
    path = write_csv(tmp_path / "job.csv", renamed(ROWS, {"step": None}))
    assert slowdown(path) == pytest.approx(expected, rel=1e-6)
    passes = [r for r in ROWS if r["optype"].startswith(("forward", "backward"))]
    numbered = slowdown(write_csv(tmp_path / "passes.csv", passes))
    path = write_csv(tmp_path / "unnumbered.csv", renamed(passes, {"step": None}))
    assert slowdown(path) == pytest.approx(numbered, rel=1e-6)


def test_one_timer_of_a_send_and_a_receive_is_both(tmp_path: Path) -> None:
    rows = [r for r in ROWS if (r["optype"], r["stage"]) != ("backward-recv", 0)]
    path = write_csv(
        tmp_path / "job.csv",
        [
            {**r, "optype": "forward-send-backward-recv"} if (r["optype"], r["stage"]) == ("forward-send", 0) else r
            for r in rows
        ],
    )
    names = read_operations(path).names
    assert {"forward-send", "backward-recv"} <= set(names) and "forward-send-backward-recv" not in names


def test_the_first_tensor_parallel_rank_stands_for_all(tmp_path: Path, expected: float) -> None:
    rows = [{**row, "rank": 2 * row["rank"] + tp, "tp_rank": tp} for row in ROWS for tp in (0, 1)]
    found = measure(write_csv(tmp_path / "job.csv", rows))
    assert found.slowdown == pytest.approx(expected, rel=1e-6)
    assert any("share a stage and a data-parallel rank" in note for note in found.notes)


@pytest.mark.parametrize(
    ("without", "words"),
    [
        ("optype", "a column for the operation (optype, op_type, operation"),
        ("start_ts", "for its start (start_ts, start"),
        ("duration", "for its duration (duration, dur"),
    ],
)
def test_a_missing_column_is_named_with_those_that_are_there(
    without: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_csv(tmp_path / "job.csv", renamed(ROWS, {without: "colour"}))
    assert stragglers([str(path)]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and words in said
    assert str(path) in said and "colour" in said.partition("its columns are ")[2]


def test_a_pipeline_needs_its_stages(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "job.csv", renamed(ROWS, {"stage": None, "dp_rank": None}))
    with pytest.raises(RequestError, match="lacks a column for the pipeline's stage"):
        measure(path)


HEAD = "rank,stage,optype,start,duration,step\n"
BROKEN = {
    "empty": b"",
    "only heads": HEAD.encode(),
    "null bytes": HEAD.encode() + b"0,0,forward-compute,\0,1,0\n",
    "not numbers": (HEAD + "0,0,forward-compute,nan,inf,0\n").encode(),
    "negative": (HEAD + "0,0,forward-compute,0,-5,0\n").encode(),
    "too long": (HEAD + "0,0,forward-compute,0,1e300,0\n").encode(),
    "no worker": (HEAD + "x,-1,forward-compute,0,1,0\n").encode(),
    "unknown operations": (HEAD + "0,0,paint,0,1,0\n").encode(),
    "huge numbers": (HEAD + "1e300,0,forward-compute,0,1,1e300\n").encode(),
    "a quote that does not end": (HEAD + '"' + "0" * 200_000 + "\n").encode(),
}


@pytest.mark.parametrize("which", BROKEN)
@pytest.mark.parametrize("packed", [False, True])
def test_a_damaged_table_gives_one_sentence(
    which: str, packed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / ("job.csv.gz" if packed else "job.csv")
    path.write_bytes(gzip.compress(BROKEN[which]) if packed else BROKEN[which])
    assert stragglers([str(path)]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and str(path) in said


def test_one_wrong_time_costs_its_step_only(tmp_path: Path) -> None:
    rows = [{**row, "duration": "nan"} if i == 0 else row for i, row in enumerate(ROWS)]
    found = measure(write_csv(tmp_path / "job.csv", rows))
    assert list(found.by_step) == [21 - ROWS[0]["step"]]
    assert found.left_out is not None and "1 of 2 steps were left out" in found.left_out


def test_a_cut_file_gives_a_sentence(tmp_path: Path) -> None:
    whole = gzip.compress(write_csv(tmp_path / "job.csv", ROWS).read_bytes())
    for name in ("cut.csv.gz", "cut.parquet"):
        (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TraceError, match="ends in the middle"):
        read_operations(tmp_path / "cut.csv.gz")
    pytest.importorskip("pyarrow")
    with pytest.raises(TraceError, match="cannot be read as Parquet"):
        read_operations(tmp_path / "cut.parquet")


def test_a_changed_byte_never_gives_a_traceback(tmp_path: Path) -> None:
    chance = random.Random(7)
    table = write_csv(tmp_path / "job.csv", ROWS[:60]).read_bytes()
    events = json.dumps(_events(ROWS[:60])).encode()
    for number in range(150):
        for name, content in (("a.csv", table), ("a.json", events)):
            changed = bytearray(content)
            for _ in range(1 + number % 5):
                changed[chance.randrange(len(changed))] = chance.randrange(256)
            path = tmp_path / name
            path.write_bytes(changed[: chance.randrange(1, len(changed)) if number % 7 == 0 else None])
            try:
                measure(path)
            except HarnessError as error:
                assert str(path) in str(error)


def _events(rows: Rows) -> list[dict[str, Any]]:
    return [
        {
            "name": r["optype"],
            "ph": "X",
            "pid": r["dp_rank"],
            "tid": r["stage"],
            "ts": 1e6 * r["start_ts"],
            "dur": 1e6 * r["duration"],
            "args": {
                "step": r["step"],
                "mb_id": r["mb_id"],
                "model_chunk": r["mc"],
                "pp_rank": r["stage"],
                "dp": r["dp_rank"],
            },
        }
        for r in rows
    ]


READ_BY = "`python -m stragglers FILE`"


def timelines(folder: Path) -> list[Path]:
    """The same timeline in each of its forms but Parquet."""
    path = write_csv(folder / "job.csv", ROWS)
    (folder / "job.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
    (folder / "events.json").write_text(json.dumps(_events(ROWS)))
    (folder / "trace.json.gz").write_bytes(gzip.compress(json.dumps({"traceEvents": _events(ROWS)}).encode()))
    return sorted(folder.iterdir())


def test_a_report_of_a_timeline_names_the_command_that_reads_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in timelines(tmp_path):
        assert report(path) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and str(path) in said and READ_BY in said
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
    assert said.count(READ_BY) == len(paths) and all(str(path) in said for path in paths)
    assert "steps.csv" not in said and "notes.json" not in said


def test_the_published_timeline_is_recognised_in_both_forms(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("trace-ST.parquet", "timeline-ST.json.gz"):
        assert report(gallery("straggler-analysis") / name) == 2
        assert READ_BY in capsys.readouterr().err


def test_a_profiler_s_trace_is_no_timeline(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "user_annotation", "name": "forward-compute", "ts": 1, "dur": 1, "args": {"step": 1}}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event]}))
    assert find_traces([tmp_path]) == [path]
    assert len(open_trace(path).ranges) == 1


def test_without_pyarrow_its_installation_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(table, "find_spec", lambda name: None)
    path = tmp_path / "job.parquet"
    path.write_bytes(b"PAR1")
    assert stragglers([str(path)]) == 1
    assert "`pip install pyarrow`" in capsys.readouterr().err


def test_several_files_are_several_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [write_csv(tmp_path / name, ROWS) for name in ("a.csv", "b.csv")]
    assert stragglers([str(path) for path in paths]) == 0
    said = capsys.readouterr().out
    assert said.count("times as slow as without stragglers") == 2
    assert all(str(path) in said for path in paths)


def test_a_head_may_end_with_its_unit() -> None:
    assert column_of("start_us") == ("start", 1e3)
    assert column_of("Duration (ms)") == ("duration", 1e6)
    assert column_of("dp rank") == ("dp_rank", None)
    assert column_of("us") is None
