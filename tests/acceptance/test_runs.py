"""A real launch through the command's own Python: a run, its checks, its small trace, the files to take home."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
import time

import pytest
import step_compiled
import step_faults
import step_reports
import step_traces
from failures import StepError
from interpreter import make_python
from pack import pack_outputs
from place import Place, has_gpu
from recorded import recorded
from results import Result
from runs import Case, find, launched
from step_training import figures

pytestmark = [
    pytest.mark.train,
    pytest.mark.skipif(has_gpu(), reason="with a GPU the command itself is the test: scripts/gpu-acceptance OUT"),
]
ATTEMPTS = 3
WORDS = (
    "--model",
    "tiny-llama",
    "--skip-steps",
    "1",
    "--wait-steps",
    "0",
    "--warmup-steps",
    "1",
    "--active-steps",
    "3",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """An empty folder for the results, without a limit that a test could reach."""
    pytest.importorskip("torch", reason="training needs PyTorch")
    folder = tmp_path_factory.mktemp("acceptance")
    (folder / "out").mkdir()
    python = make_python(folder / "work" / "python")
    return Place(folder / "out", folder / "work", python, time.monotonic() + 1800)


def verdicts(result: Result) -> dict[str, str]:
    return {check.name: check.verdict for check in result.checks}


def test_a_run_is_launched_checked_made_small_and_packed(place: Place) -> None:
    case = Case("fp32", ("-e", "1", *WORDS, "--profiler", "torch"), seconds=600)
    run = launched(place, case)
    assert figures(run.summary)["step_ns"] > 0
    assert launched(place, case).path == run.path, "what is there is not run again"
    assert run.path.is_relative_to(place.work)

    checked = Result("reports")
    step_reports.reports(place, checked)
    assert checked.state == "partial"
    assert "bf16, bf16-gas16" in checked.reason
    results = verdicts(checked)
    assert (results["fp32: conservation"], results["fp32: precision fp32"]) == ("pass", "pass")
    assert results["fp32: the device is a GPU"] == "lacks"
    said = {check.name: check.said for check in checked.checks}
    assert " a step" in said["fp32: the answer"]

    small = Result("traces")
    step_traces.traces(place, small)
    assert "fail" not in verdicts(small).values(), small.checks
    pack_outputs(place)
    with tarfile.open(place.out / "traces.tar.gz") as archive:
        assert sorted(archive.getnames()) == ["fp32.json.gz", "truth.json"]
        packed = archive.extractfile("truth.json")
        assert packed is not None
        assert json.load(packed)["fp32.json.gz"]["steps"] == 3
    with tarfile.open(place.out / "reports.tar.gz") as archive:
        assert {"fp32/summary.json", "fp32/report.html", "fp32/run.json"} <= set(archive.getnames())
    assert all(path.stat().st_size < 16_000_000 for path in place.out.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(
            ("--micro-batch-size", "5000"),
            "ended as failed: error: --micro-batch-size 5000: one batch on every",
            marks=pytest.mark.long,
        ),
        (("--data", "/nowhere.json"), "--data: /nowhere.json does not exist"),
    ],
)
def test_the_reason_of_a_failed_run_is_shown(place: Place, words: tuple[str, ...], said: str) -> None:
    with pytest.raises(StepError, match=re.escape(said)):
        launched(place, Case("broken", ("-e", "1", *WORDS, *words), seconds=600))
    assert find(place, "broken") is None
    assert said.partition(": ")[2] in (place.out / "acceptance.log").read_text()


def test_a_loop_of_ours_is_recorded_reported_and_its_stall_named(place: Place) -> None:
    case = Result("compiled")
    step_compiled.compiled(place, case)
    results = verdicts(case)
    assert (results["eager: runs and is reported"], results["eager: conservation"]) == ("pass", "pass")
    assert results["graphs"] == results["fp8"] == "lacks"
    for attempt in range(ATTEMPTS):  # what else this machine does can stall the loop longer than its data do
        case_folder = place.work / "loops" / "fault-data-stall"
        if attempt:
            shutil.rmtree(case_folder)
        stalled = recorded(place, "fault-data-stall", 600)
        waited_ns = sum(c["duration_ns"] for c in stalled.summary["idle_causes"] if c["cause"] == "data loading")
        assert waited_ns >= 0.95 * 20e6 * stalled.summary["steps"]["counted"], "the loop sleeps so long in each step"
        said = step_faults.finding(stalled.summary)
        if said.cause == "data-stall":
            break
    assert said.cause == "data-stall"
    assert said.each_ns is not None
    assert find(place, "fault-data-stall") is None, "a loop is no run"
