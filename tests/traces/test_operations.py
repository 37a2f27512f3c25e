"""Timelines of operations: which files are read, in which columns and units, and what is said of those that are not."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from harness.cli.main import main
from harness.common.errors import HarnessError, RequestError, TablesNeeded
from harness.measure.paths import measure_one
from harness.traces import TraceError, find_traces
from harness.traces.operations import table as files
from harness.traces.operations.read import is_meant_as_timeline, read_operations
from harness.traces.operations.vocabulary import column_of
from tests.gallery import gallery
from tests.synthetic.pipelines import Shape, job, slow_worker, write_csv

Rows = list[dict[str, Any]]
ROWS: Rows = job(Shape(2, 2, batches=4, steps=2), slow_worker(1, 1, 1.5)).rows()


def report(*arguments: object) -> int:
    return main(["report", *map(str, arguments)])


def slowdown(path: Path) -> float:
    found = measure_one([path]).slowdown
    assert found is not None
    return found.slowdown


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
    summary = measure_one([write_csv(tmp_path / "job.csv", rows)])
    assert summary.slowdown is not None and summary.slowdown.slowdown == pytest.approx(expected, rel=1e-6)
    assert any("share a stage and a data-parallel rank" in p.evidence for p in summary.quality.problems)


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
    assert report(path) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and words in said
    assert str(path) in said and "colour" in said.partition("its columns are ")[2]


def test_a_pipeline_needs_its_stages(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "job.csv", renamed(ROWS, {"stage": None, "dp_rank": None}))
    with pytest.raises(RequestError, match="lacks a column for the pipeline's stage"):
        measure_one([path])


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
    assert report(path) in (1, 2)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and str(path) in said


def test_one_wrong_time_costs_its_step_only(tmp_path: Path) -> None:
    rows = [{**row, "duration": "nan"} if i == 0 else row for i, row in enumerate(ROWS)]
    found = measure_one([write_csv(tmp_path / "job.csv", rows)])
    assert found.slowdown is not None and list(found.slowdown.by_step) == [21 - ROWS[0]["step"]]
    assert any("1 of 2 steps were left out" in p.evidence for p in found.quality.problems)


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
                measure_one([path])
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


def test_a_folder_s_timeline_is_found_among_other_files(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "job.csv", ROWS)
    (tmp_path / "steps.csv").write_text("job,rank,step,duration_ns\n0,0,1,5\n")
    (tmp_path / "notes.json").write_text('{"name": "a name", "step": 1}')
    assert find_traces([tmp_path]) == [path]
    assert measure_one([tmp_path]).slowdown is not None


def test_a_timeline_in_two_forms_is_one_job(tmp_path: Path) -> None:
    write_csv(tmp_path / "job.csv", ROWS)
    (tmp_path / "events.json").write_text(json.dumps(_events(ROWS)))
    assert len(find_traces([tmp_path])) == 2
    assert [s.path for s in measure_one([tmp_path]).sources] == [str(tmp_path / "job.csv")]


def test_the_shared_folder_is_one_job() -> None:
    pytest.importorskip("pyarrow")
    assert measure_one([gallery("straggler-analysis")]).sources[0].tool == "operations"


def test_a_profiler_s_trace_is_none(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "user_annotation", "name": "forward-compute", "ts": 1, "dur": 1, "args": {"step": 1}}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event]}))
    assert not is_meant_as_timeline(path)


def test_without_pyarrow_one_command_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(files, "find_spec", lambda name: None)
    path = tmp_path / "job.parquet"
    path.write_bytes(b"PAR1")
    assert report(path) == TablesNeeded.exit_code
    assert "bash slurm.sh --install tables" in capsys.readouterr().err


def test_what_is_not_a_report_says_that_it_reads_no_timeline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_csv(tmp_path / "job.csv", ROWS)
    assert main(["export", "perfetto", str(path), "--out", str(tmp_path / "out.gz")]) == 1
    assert "is a timeline of operations" in capsys.readouterr().err


def test_two_timelines_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = write_csv(tmp_path / "slow.csv", ROWS)
    even = write_csv(tmp_path / "even.csv", job(Shape(2, 2, batches=4, steps=2)).rows())
    assert main(["compare", str(slow), str(even)]) == 0
    assert "slowdown by stragglers" in capsys.readouterr().out


def test_the_page_and_the_whole_report_show_the_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_csv(tmp_path / "job.csv", ROWS)
    assert report(path, "--full", "--html", tmp_path / "page.html") == 0
    said = capsys.readouterr().out
    assert "Slowdown by operation" in said and "Slowdown by worker" in said
    assert "Slowdown by stragglers" in (tmp_path / "page.html").read_text()
    assert main(["export", "csv", str(path), "-o", str(tmp_path / "tables")]) == 0
    assert (tmp_path / "tables" / "straggler_workers.csv").exists()


def test_the_json_has_the_slowdown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(write_csv(tmp_path / "job.csv", ROWS), "--json") == 0
    found = json.loads(capsys.readouterr().out)["stragglers"]
    assert found["slowdown"] > 1.1
    assert set(found["by_stage"]) == {"0", "1"} and set(found["by_worker"]) == {"0", "1", "2", "3"}
    assert found["by_operation"]["forward-compute"] > 1


def test_a_head_may_end_with_its_unit() -> None:
    assert column_of("start_us") == ("start", 1e3)
    assert column_of("Duration (ms)") == ("duration", 1e6)
    assert column_of("dp rank") == ("dp_rank", None)
    assert column_of("us") is None
