"""`slurm.sh report` prints what the Summary says, or one sentence when it cannot."""

from __future__ import annotations

import csv
import gzip
import json
import sys
from pathlib import Path

import pytest

from harness.analysis.job.summarise import summarise_job
from harness.analysis.process.kinds import load_rules
from harness.analysis.summary import Summary, Window
from harness.cli.main import main
from harness.common.format import amount, duration
from harness.report.tables.table import WIDTH, table
from harness.report.tables.terminal import render
from tests.analysis.measuring import measure_trace
from tests.analysis.test_silent_errors import kernel, timed, write_decimals
from tests.synthetic.columns import Made


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A GPU trace with two steps: 1000 ns each, of which 600 are kernels."""
    events = []
    for i in range(2):
        events += [
            timed(f"ProfilerStep#{i}", "user_annotation", i * 1000, 1000),
            kernel(i * 1000 + 100, 600, 2 * i),
            kernel(i * 1000 + 750, 50, 2 * i + 1, "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
        ]
    return write_decimals(tmp_path, events)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def test_a_folder_without_traces_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert f"no trace was found in {tmp_path}: give a run" in capsys.readouterr().err


def test_json_has_every_time_as_integer_nanoseconds_per_device(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--json", str(trace)]) == 0
    (device,) = json.loads(said(capsys))["devices"]
    assert {k: device[k] for k in ("window_ns", "compute_ns", "communication_ns", "idle_ns")} == {
        "window_ns": 2000,
        "compute_ns": 1200,
        "communication_ns": 100,
        "idle_ns": 700,
    }
    assert all(isinstance(device[k], int) for k in device if k.endswith("_ns"))


def test_window_gpu_trims_nothing(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["report", "--json", "--window", "gpu", str(trace)])
    (device,) = json.loads(said(capsys))["devices"]
    assert (device["window_ns"], device["idle_ns"]) == (1700, 400)


def test_the_json_of_one_job_is_a_summary_and_of_several_a_list(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["report", "--json", str(trace)])
    assert Summary.model_validate_json(said(capsys)).steps.counted == 2
    other = tmp_path / "second.json"
    other.write_bytes(trace.read_bytes())
    main(["report", "--json", str(trace), str(other)])
    assert [len(s["devices"]) for s in json.loads(said(capsys))] == [1, 1]


def test_the_table_shows_quality_first_and_fits_the_terminal(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--full", str(trace)]) == 0
    lines = said(capsys).splitlines()
    assert max(map(len, lines)) <= WIDTH
    order = [
        next(i for i, line in enumerate(lines) if line.startswith(head)) for head in ("Recording", "Steps", "Where")
    ]
    assert order == sorted(order)
    assert any("60.0 %" in line and "35.0 %" in line for line in lines)


def test_csv_tables_hold_the_same_numbers(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "tables"
    assert main(["export", "csv", str(trace), "-o", str(folder)]) == 0
    with (folder / "devices.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["window_ns"], row["compute_ns"], row["idle_ns"]) == ("2000", "1200", "700")
    with (folder / "kernels.csv").open() as file:
        assert {r["kind"]: int(r["duration_ns"]) for r in csv.DictReader(file)} == {"gemm": 1200, "communication": 100}


def test_parquet_tables_hold_the_same_numbers(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    folder = tmp_path / "tables"
    assert main(["export", "parquet", str(trace), "-o", str(folder)]) == 0
    (row,) = parquet.read_table(folder / "devices.parquet").to_pylist()
    assert (row["window_ns"], row["compute_ns"], row["idle_ns"]) == (2000, 1200, 700)


def test_parquet_without_pyarrow_says_what_to_do_and_writes_nothing(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    before = sorted(tmp_path.rglob("*"))
    assert main(["export", "parquet", str(trace), "-o", str(tmp_path / "tables")]) == 2
    assert sorted(tmp_path.rglob("*")) == before
    assert "export parquet needs pyarrow: run `bash slurm.sh --install tables`" in capsys.readouterr().err


def broken_file(folder: Path, how: str) -> Path:
    name, content = {
        "gzip": ("rank0.json.gz", gzip.compress(b'{"traceEvents": [' + b" " * 10_000)[:40]),
        "text": ("notes.json", b"this is no trace"),
        "lfs": ("a.json", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
        "sqlite": ("b.sqlite", b"SQLite format 3\0" + b"\0" * 100),
    }[how]
    (folder / name).write_bytes(content)
    return folder / name


@pytest.mark.parametrize("how", ["gzip", "text", "lfs", "sqlite"])
def test_a_file_that_is_no_trace_is_one_sentence_and_exit_1_or_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    path = broken_file(tmp_path, how)
    assert main(["report", str(path)]) in (1, 2)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert path.name in captured.err
    assert "Traceback" not in captured.err


def test_a_broken_file_among_good_ones_costs_only_itself(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken_file(trace.parent, "sqlite")
    assert main(["report", "--json", str(trace.parent)]) == 0
    summary = Summary.model_validate_json(said(capsys))
    assert summary.devices[0].compute_ns == 1200
    assert any("b.sqlite" in f.evidence for f in summary.quality.problems)


def test_a_name_that_is_no_run_and_no_path_is_a_wrong_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "/nowhere/at/all"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_run_gets_its_summary_json_with_training_beside_the_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    (run / "torch").mkdir(parents=True)
    (run / "metrics").mkdir()
    events = [timed("ProfilerStep#1", "user_annotation", 0, 1000), kernel(0, 600, 1)]
    compressed = gzip.compress(write_decimals(tmp_path, events).read_bytes())
    (run / "torch" / "rank0.json.gz").write_bytes(compressed)
    start = {"event": "start", "rank": 0, "world_size": 1, "model": "tiny", "flops_per_token": 2.0}
    step = {"event": "step", "tokens": 10, "samples": 1}
    active = step | {"phase": "active", "step_ns": 1000, "data_ns": 250}
    lines = [
        start | {"device": "cpu"},
        step | {"phase": "skip", "step_ns": 900, "loss": 3.0},
        active | {"loss": 2.0},
        active | {"loss": 1.0},
        {"event": "end", "status": "completed", "steps": 3},
    ]
    (run / "metrics" / "rank0.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"event": "st')
    assert main(["report", str(run)]) == 0
    summary = Summary.model_validate_json((run / "summary.json").read_text())
    (training,) = summary.training
    assert (training.steps_counted, training.data_fraction, training.last_loss) == (2, 0.25, 1.0)
    assert summary.efficiency.tokens_per_s == pytest.approx(1e7)
    assert summary.efficiency.model_flops_per_s_per_device == pytest.approx(2e7)
    assert summary.devices[0].compute_ns == 600
    assert any("unreadable lines" in f.what for f in summary.quality.problems)


def test_a_run_without_traces_still_has_its_trainings_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "metrics").mkdir()
    lines = [
        {"event": "start", "rank": 0, "model": "tiny"},
        {"event": "step", "step_ns": 10**6, "tokens": 5, "loss": 2.0},
    ]
    (tmp_path / "metrics" / "rank0.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert main(["report", str(tmp_path), "--no-html", "--full"]) == 0
    assert "5.00 ktokens/s" in said(capsys)


def test_a_thousand_devices_are_shown_as_the_busiest_and_the_idlest() -> None:
    made = Made()
    for d in range(40):
        made.event(0, 10 + d, device=d).event(100, 101, device=d)
    text = render(summarise_job(measure_trace(made.trace(), Window.GPU, load_rules())))
    assert "the 5 busiest and the 5 idlest of 40" in text
    assert "device 39" in text
    assert "device 20" not in text


def test_numbers_are_printed_with_units_and_columns_line_up() -> None:
    assert (duration(999_949), duration(12_345_678), duration(1.5e9)) == ("1,000 µs", "12.3 ms", "1.50 s")
    assert (amount(1536), amount(0), amount(2.5e9, "B/s")) == ("1.54 kB", "0 B", "2.50 GB/s")
    assert table(("name", "n"), [["a", "10"], ["bcd", "5"]]) == ["  name   n", "  a     10", "  bcd    5"]
