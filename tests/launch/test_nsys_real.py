"""A real nsys on a machine without a GPU, as a student may have it: its help is read, then it records a training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.summary.problem_texts import BUSY, CROWDED, UNEVEN
from harness.common.run_folder.run_files import METRICS
from harness.experiment.nsys_sets import capturing_on_cpu, load_options, profile_words
from harness.launch.profilers.nsys import adapted, understood
from harness.traces import open_trace
from tests.launch.launch_shared import ROOT
from tests.planted import leaks, planted
from tests.real_nsys import EACH_NSYS, EACH_NSYS_AT_LENGTH, FIRST, checked, kept, recorded
from tests.waiting import limit_s

PLANTED = planted("beside-nsys")
SHORT = ("--skip-steps", "1", "--wait-steps", "0", "--warmup-steps", "1", "--active-steps", "8")


def said(nsys_folder: Path, *words: str) -> str:
    """The output of nsys."""
    argv = [str(nsys_folder / "nsys"), *words]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=limit_s()).stdout


@EACH_NSYS
def test_our_sets_are_understood_and_a_cpu_records_its_window_by_a_range(nsys_folder: Path) -> None:
    nsys = understood(said(nsys_folder, "--version"), said(nsys_folder, "profile", "--help"))
    assert nsys.version >= (2022, 4)
    argv, warnings = adapted(profile_words(load_options("default"), [], has_gpu=False), nsys)
    assert (warnings, [word for word in argv if "gpu" in word]) == ([], [])
    assert {"nvtx", "osrt"} <= set(argv[2].removeprefix("--trace=").split(","))
    lacks_python = ["this nsys (2022.4.2) has no --python-backtrace: left out"] * (nsys.version < (2023,))
    full = {"--sample=process-tree", "--backtrace=dwarf", "--cudabacktrace=all", "--export=sqlite"}
    for has_gpu in (True, False):
        argv, warnings = adapted(profile_words(load_options("full"), [], has_gpu=has_gpu), nsys)
        assert (warnings, full - {*argv}, "--capture-range=nvtx" in argv) == (lacks_python, set(), not has_gpu)
        assert set(argv[2].removeprefix("--trace=").split(",")) == {"cuda", "nvtx", "osrt", "cudnn", "cublas", "ucx"}
    assert capturing_on_cpu(load_options("cpu")) == load_options("cpu")


def launched(nsys_folder: Path, runs: Path, *words: str, exercise: int = 1) -> tuple[Path, Any, str]:
    """The folder of a run of two ranks under nsys, its summary, and what the launch said."""
    path = {"PATH": f"{nsys_folder}{os.pathsep}{os.environ['PATH']}", "HARNESS_RUNS": str(runs)}
    site = ["-e", str(exercise), "-g", "2", "--site", "local", "--profiler", "nsys", "--json"]
    argv = [*FIRST, "bash", str(ROOT / "slurm.sh"), *site, *words]
    env = {**os.environ, **PLANTED, **path}

    def made() -> tuple[Path, Any, str]:
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=limit_s(200))
        printed = "".join(path.read_text() for path in sorted(runs.glob("*/logs/*/log.*")))
        checked(done.returncode, done.stderr[-3000:] + printed[-5000:])
        run = json.loads(done.stdout)
        return Path(run["path"]), json.loads(Path(run["summary"]).read_text()), done.stderr

    def is_whole(run: tuple[Path, Any, str]) -> bool:
        reports = list(run[0].glob("nsys/*.nsys-rep"))
        return bool(reports) and all(len(open_trace(report).ranges.name) for report in reports)

    return kept(made, is_whole)


def own_durations_ns(run: Path, rank: int) -> list[int]:
    """The durations of a rank's steps by its own clock, in their order."""
    return [line["step_ns"] for line in METRICS.objects(METRICS.path(run, rank)) if line["event"] == "step"]


@EACH_NSYS_AT_LENGTH
@pytest.mark.train
@pytest.mark.parametrize(
    ("per", "reports"),
    [
        pytest.param("rank", ["profile_node0_rank0.nsys-rep", "profile_node0_rank1.nsys-rep"], marks=pytest.mark.long),
        ("node", ["profile_node0.nsys-rep"]),
    ],
)
def test_on_a_cpu_it_records_each_rank_s_steps(nsys_folder: Path, tmp_path: Path, per: str, reports: list[str]) -> None:
    run, summary, said = launched(nsys_folder, tmp_path, "--nsys-per", per, *SHORT)
    assert sorted(path.name for path in (run / "nsys").glob("*.nsys-rep")) == reports
    of_load = (BUSY, CROWDED, UNEVEN)
    of_nsys = [f["what"] for f in summary["quality"]["problems"] if f["what"] not in of_load]
    assert of_nsys == ["recorded without a GPU"] * 2
    assert summary["steps"]["found"] == 16 and summary["steps"]["counted"] > 0
    assert [rank["rank"] for rank in summary["steps"]["per_rank"]] == [0, 1]
    for rank in summary["steps"]["per_rank"]:  # the first may be left out, as warm-up
        assert 0 < len(rank["durations_ns"]) <= len(own_durations_ns(run, rank["rank"]))
    assert leaks(tmp_path, PLANTED) == []
    assert "not passed to the training: AWS_ACCESS_KEY_ID" in said


EPOCHS = """
from harness.observe.capture import NsysRecording
from harness.observe.ranges import annotate

recording = NsysRecording("recording")
for epoch in range(2):
    with annotate(f"epoch_{epoch}"):
        for step in range(3 * epoch, 3 * epoch + 3):
            if step == 1:
                recording.begin()
            with annotate(f"batch_{step}"):
                pass
            if step == 4:
                recording.end(together=True)
"""


@EACH_NSYS_AT_LENGTH
@pytest.mark.train
def test_an_epoch_that_ends_inside_the_window_does_not_end_the_recording(
    nsys_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nsys = understood(said(nsys_folder, "--version"), said(nsys_folder, "profile", "--help"))
    words = [*profile_words(load_options("cpu"), [], has_gpu=False), "--force-overwrite=true"]
    argv, _ = adapted([*words, f"--output={tmp_path}/report"], nsys)
    monkeypatch.setenv("PATH", f"{nsys_folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def names(report: Path) -> set[str]:
        trace = open_trace(report)
        return {trace.names[index] for index in trace.ranges.name}

    report = tmp_path / "report.nsys-rep"
    done = recorded([*argv, sys.executable, "-c", EPOCHS], report, names)
    assert done.returncode == 0, done.stdout[-3000:]
    steps = sorted(name for name in names(report) if name.startswith("batch_"))
    assert steps == [f"batch_{step}" for step in range(1, 5)]


# Long: by the clock means by this machine's; PyTorch must have started within the delay.
@EACH_NSYS
@pytest.mark.train
@pytest.mark.long
@pytest.mark.parametrize("per", ["node", "rank"])
def test_by_the_clock_it_records_a_stretch_of_a_training_that_goes_on(
    nsys_folder: Path, tmp_path: Path, per: str
) -> None:
    delay = 20  # s: longer than PyTorch takes to start
    by_clock = ["--capture-delay", str(delay), "--capture-duration", "3", "--steps", "600"]
    _, summary, _ = launched(nsys_folder, tmp_path, "--nsys-per", per, *by_clock)
    for rank in summary["training"]:
        assert (rank["status"], rank["steps_total"], rank["phase_counted"]) == ("completed", 600, "active")
        assert 0 < rank["steps_counted"] < 300, "the training's own clock counts what nsys recorded"
    recorded = {rank["rank"]: len(rank["durations_ns"]) for rank in summary["steps"]["per_rank"]}
    counted = {rank["rank"]: rank["steps_counted"] for rank in summary["training"]}
    assert recorded.keys() == counted.keys()
    for rank, steps in recorded.items():
        assert steps == pytest.approx(counted[rank], rel=0.5)
    assert summary["steps"]["excluded_cut_off"] > 0, "a step that nsys ended is not a short step"
