"""Exercise 1 really trains as one model, and its variants differ where the lesson says they do."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.common.job_parts import FROM_OBSERVER
from harness.common.run_files import JOB_TIME, MEMORY_SNAPSHOTS, METRICS
from harness.measure.job_time.records import rank_record
from harness.measure.request import ReportRequest, measure_request
from tests.exercises.launching import ROOT, Finished, collectives, events, start, train, wait_for
from tests.exercises.student_script import filled
from tests.waiting import limit_s

pytestmark = pytest.mark.train

SCRIPT = "exercise_1_DDP/train.py"
CHECK = ROOT / "exercises/exercise_1_DDP/check_ranges.py"
SHORT = ["--skip", "2", "--wait", "1", "--warmup", "1", "--active", "8"]


@pytest.fixture(scope="module")
def default(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The exercise as it is, with a short window."""
    return train(SCRIPT, tmp_path_factory.mktemp("d") / "run", *SHORT, "--profiler", "torch", model="tiny-llama")


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The same with --slow-dataloading."""
    options = [*SHORT, "--profiler", "torch", "--slow-dataloading"]
    return train(SCRIPT, tmp_path_factory.mktemp("s") / "run", *options, model="tiny-llama")


def test_metrics_describe_the_run_from_start_to_end(default: Finished) -> None:
    assert default.code == 0, default.stderr[-3000:]
    for rank in (0, 1):
        start, *steps, end = default.metrics(rank)
        assert (start["event"], start["rank"], start["world_size"]) == ("start", rank, 2)
        assert (start["backend"], start["device"], start["weights"]) == ("gloo", "cpu", "random")
        assert [step["step"] for step in steps] == list(range(12))
        assert [step["phase"] for step in steps] == ["skip"] * 2 + ["wait", "warmup"] + ["active"] * 8
        assert (end["event"], end["status"], end["steps"]) == ("end", "completed", 12)
        parts = ("data_ns", "forward_ns", "backward_ns", "optimizer_ns")
        assert all(0 < sum(step[part] for part in parts) <= step["step_ns"] for step in steps)


def test_where_the_time_before_the_first_step_goes_is_recorded(default: Finished) -> None:
    for rank in (0, 1):
        record = rank_record(default.folder, JOB_TIME.path(default.folder, rank))
        parts = {each.part for each in record.changes}  # the observer looks now and then: not each is long enough
        assert "imports" in parts and parts <= set(FROM_OBSERVER), parts
        assert any(each.packages for each in record.changes), "which package is imported"
        assert record.begun_ns < record.steps[0].begin_ns


def test_what_happens_before_the_first_step_is_said_once(default: Finished) -> None:
    assert default.stderr.count("building the model and reading the data …") == 1


def test_the_learning_rate_warms_up(default: Finished) -> None:
    rates = [step["lr"] for step in default.steps(0)]
    assert rates[:5] == pytest.approx([2e-5 * n / 5 for n in range(1, 6)])
    assert set(rates[5:]) == {2e-5}


def test_a_report_compares_the_profiled_steps_with_the_others(default: Finished, tmp_path: Path) -> None:
    """Of this run's lines, with times of a machine that has nothing else to do."""
    copy = Path(shutil.copytree(default.folder, tmp_path / "run"))
    parts = dict.fromkeys(("data_ns", "forward_ns", "backward_ns", "optimizer_ns"), 1_000_000)
    for rank in (0, 1):
        lines = default.metrics(rank)
        for line in lines:
            if line["event"] == "step":
                times = {"step_ns": 30_000_000 if line["phase"] == "active" else 20_000_000, "core_wait_ns": 0}
                line.update({**times, **parts})
        METRICS.path(copy, rank).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (summary,) = measure_request(ReportRequest([str(copy)])).summaries
    cost = summary.profiler_cost
    assert cost is not None
    assert (cost.profiled_step_ns, cost.unprofiled_step_ns, cost.ratio) == (30_000_000, 20_000_000, 1.5)


@pytest.mark.long  # a training of its own for what its arguments show
def test_slow_data_loading_changes_nothing_but_time(default: Finished, slow: Finished) -> None:
    """How long it takes is shown by recordings: tests/exercises/test_pages_h100.py."""
    assert slow.code == 0, slow.stderr[-3000:]
    assert slow.mean_losses() == pytest.approx(default.mean_losses(), abs=1e-6)


def test_all_ranges_are_in_the_trace_of_every_rank(default: Finished) -> None:
    checked = subprocess.run([sys.executable, str(CHECK), str(default.folder)], check=False, timeout=limit_s())
    assert checked.returncode == 0
    names = {event["name"] for event in events(default.folder, 1)}
    assert {"batch_4", "batch_11", "DataLoad batch 4"} <= names
    assert "batch_3" not in names, "step 3 only warms the profiler up"


def test_accumulation_reduces_gradients_once_per_optimizer_step(tmp_path: Path, default: Finished) -> None:
    options = [*SHORT, "--profiler", "torch", "--gradient-accumulation-steps", "4"]
    run = train(SCRIPT, tmp_path / "run", *options, model="tiny-llama")
    assert run.code == 0, run.stderr[-3000:]
    assert [step["step"] for step in run.steps(0) if step["synced"]] == [3, 7, 11]

    def reductions(folder: Path) -> int:
        return sum(c.kind == "all_reduce" and "backward" in c.within for c in collectives(folder, 0))

    assert reductions(default.folder) == 4 * reductions(run.folder) > 0


def test_the_first_thing_a_student_sees_is_no_warning(default: Finished) -> None:
    assert "Warning" not in default.stderr


@pytest.mark.long  # a training of its own; what a run says it computes in is in test_precision.py
def test_mixed_precision_multiplies_in_bfloat16(tmp_path: Path, default: Finished) -> None:
    run = train(SCRIPT, tmp_path / "run", *SHORT, "--profiler", "torch", "--mixed-precision", model="tiny-llama")
    assert run.code == 0, run.stderr[-3000:]

    def precisions(folder: Path) -> set[str]:
        types = [e["args"].get("Input type", [""])[0] for e in events(folder, 0) if e["name"] == "aten::mm"]
        return set(types)

    assert precisions(default.folder) == {"float"}
    assert "c10::BFloat16" in precisions(run.folder)


def test_the_students_version_with_the_pages_solution_trains_and_is_recorded_as_ours(
    tmp_path: Path, default: Finished
) -> None:
    script = tmp_path / "my_train.py"
    script.write_text(filled())
    run = train(str(script), tmp_path / "run", *SHORT, "--profiler", "torch", model="tiny-llama")
    assert run.code == 0, run.stderr[-3000:]
    assert run.mean_losses() == pytest.approx(default.mean_losses(), abs=1e-6)
    checked = subprocess.run(
        [sys.executable, str(CHECK), str(run.folder)], capture_output=True, text=True, check=False, timeout=limit_s()
    )
    assert checked.returncode == 0, checked.stdout
    summaries = [measure_request(ReportRequest([str(each.folder)])).summaries[0] for each in (run, default)]
    # on a busy machine the first steps may be so long that they are warm-up
    found = [s.steps.counted + s.steps.excluded_warmup for s in summaries]
    counted = [
        [n, [own.steps_counted for own in s.training], s.world_size] for n, s in zip(found, summaries, strict=True)
    ]
    assert counted == [[16, [8, 8], 2]] * 2
    assert [step["step"] for step in run.steps(1) if step["phase"] == "active"] == list(range(4, 12))


@pytest.mark.long
def test_a_copy_of_the_students_version_runs_from_anywhere(tmp_path: Path) -> None:
    """As `--script ~/my_train.py` starts it: in the checkout, which is on PYTHONPATH."""
    mine = tmp_path / "my_train.py"
    shutil.copy(ROOT / "exercises/exercise_1_DDP/train_todo.py", mine)
    done = subprocess.run(
        [sys.executable, str(mine), "--model", str(ROOT / "configs/models/tiny-llama.yaml"),
         "--run-dir", str(tmp_path / "run"), "--steps", "2", "--device", "cpu"],
        capture_output=True, text=True, check=False, timeout=limit_s(), env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_data_set_smaller_than_a_batch_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text('[{"instruction": "Say hello.", "input": "", "output": "Hello."}]')
    run = train(SCRIPT, tmp_path / "run", "--data", str(tmp_path / "one.json"), model="tiny-llama", processes=1)
    assert run.code != 0
    assert "takes 2 examples" in run.stderr


@pytest.mark.long  # exercise 3, whose loop is the same, is stopped so, and test_slurm_nsys.py cancels exercise 1
def test_sigterm_ends_a_training_cleanly_on_every_rank(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    started = start(SCRIPT, folder, *SHORT[:-1], "1000", "--profiler", "torch", model="tiny-llama")
    try:
        rank1 = folder / "metrics" / "rank1.jsonl"
        wait_for(lambda: rank1.exists() and '"phase": "active"' in rank1.read_text(), "a recorded step", started)
        os.kill(json.loads(rank1.read_text().splitlines()[0])["pid"], signal.SIGTERM)
        _, stderr = started.communicate(timeout=limit_s())
    finally:
        started.kill()
    run = Finished(started.returncode, stderr, folder)
    ends = [run.metrics(rank)[-1] for rank in (0, 1)]
    assert [(end["status"], end["reason"]) for end in ends] == [("stopped", "SIGTERM")] * 2
    assert ends[0]["steps"] == ends[1]["steps"] < 1000
    assert "exitcode  : 143" in stderr
    assert sorted(path.name for path in (folder / "torch").iterdir()) == ["rank0.json.gz", "rank1.json.gz"]


@pytest.mark.long
def test_a_memory_snapshot_of_ddp_has_the_bytes_of_the_parameters(tmp_path: Path) -> None:
    done = train(SCRIPT, tmp_path / "run", *SHORT, "--memory-snapshot", model="tiny-llama")
    assert done.code == 0, done.stderr[-3000:]
    start = json.loads((tmp_path / "run/metrics/rank1.jsonl").read_text().splitlines()[0])
    found = json.loads(MEMORY_SNAPSHOTS.path(tmp_path / "run", 1).read_text())
    most = {name: max(line) for name, line in found["bytes"].items()}
    weights = 4 * start["parameters"]
    assert (most["weights"], most["gradients"]) == (weights, weights)
    assert 2 * weights < most["optimizer"] < 2 * weights + 4096  # and the counters of steps
    assert weights <= most["buffers"] < weights + 4096  # DDP's buckets, and what the ranks compare
