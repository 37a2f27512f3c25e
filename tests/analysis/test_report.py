"""`slurm.sh report` prints what the Summary says, or one sentence when it cannot."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.summary import Summary
from harness.cli.main import main
from tests.analysis.test_silent_errors import kernel, timed, write_decimals


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


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a command prints, which ends well."""
    assert main(list(words)) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("window", "times"),
    [
        ("steps", {"window_ns": 2000, "compute_ns": 1200, "communication_ns": 100, "idle_ns": 700}),
        ("gpu", {"window_ns": 1700, "compute_ns": 1200, "communication_ns": 100, "idle_ns": 400}),  # trims nothing
    ],
)
def test_json_has_every_time_as_integer_nanoseconds_per_device(
    trace: Path, capsys: pytest.CaptureFixture[str], window: str, times: dict[str, int]
) -> None:
    (device,) = json.loads(printed(capsys, "report", "--json", "--window", window, str(trace)))["devices"]
    assert {name: device[name] for name in times} == times
    assert all(isinstance(device[name], int) for name in device if name.endswith("_ns"))


def test_the_json_of_one_job_is_a_summary_and_of_several_a_list(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = printed(capsys, "report", "--json", str(trace))
    assert Summary.model_validate_json(one).steps.counted == 2
    other = tmp_path / "second.json"
    other.write_bytes(trace.read_bytes() + b"\n")  # another file, not a copy
    several = json.loads(printed(capsys, "report", "--json", str(trace), str(other)))
    assert [len(summary["devices"]) for summary in several] == [1, 1]


DEVICE = {"window_ns": 2000, "compute_ns": 1200, "idle_ns": 700}


def test_exported_tables_hold_the_same_numbers(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "tables"
    printed(capsys, "export", "csv", str(trace), "-o", str(folder))
    with (folder / "devices.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert {name: int(row[name]) for name in DEVICE} == DEVICE
    with (folder / "kernels.csv").open() as file:
        assert {r["kind"]: int(r["duration_ns"]) for r in csv.DictReader(file)} == {"gemm": 1200, "communication": 100}


START = {"event": "start", "rank": 0, "world_size": 1, "model": "tiny", "flops_per_token": 2.0}
STEP: dict[str, Any] = {"event": "step", "tokens": 10, "samples": 1}
ACTIVE = STEP | {"phase": "active", "step_ns": 1000, "data_ns": 250}
LINES = [
    START | {"device": "cpu"}, STEP | {"phase": "skip", "step_ns": 900, "loss": 3.0}, ACTIVE | {"loss": 2.0},
    ACTIVE | {"loss": 1.0}, {"event": "end", "status": "completed", "steps": 3},
]  # fmt: skip


def test_a_run_gets_its_summary_json_with_training_beside_the_trace_or_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    (run / "metrics").mkdir(parents=True)
    (run / "metrics" / "rank0.jsonl").write_text("\n".join(map(json.dumps, LINES)) + '\n{"event": "st')
    assert "10.0 Mtokens/s" in printed(capsys, "report", str(run), "--no-html", "--full")
    (run / "torch").mkdir()
    events = [timed("ProfilerStep#1", "user_annotation", 0, 1000), kernel(0, 600, 1)]
    (run / "torch" / "rank0.json.gz").write_bytes(gzip.compress(write_decimals(tmp_path, events).read_bytes()))
    printed(capsys, "report", str(run))
    summary = Summary.model_validate_json((run / "summary.json").read_text())
    (training,) = summary.training
    assert (training.steps_counted, training.data_fraction, training.last_loss) == (2, 0.25, 1.0)
    assert summary.efficiency is not None and summary.efficiency.tokens_per_s == pytest.approx(1e7)
    assert summary.efficiency.model_flops_per_s_per_device == pytest.approx(2e7)
    assert summary.devices[0].compute_ns == 600
    assert any("unreadable lines" in f.what for f in summary.quality.problems)
