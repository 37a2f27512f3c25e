"""Exercise 1 really trains as one model, and its variants differ where the lesson says they do."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from harness.common.run_folder.job_parts import COMPILATION, FROM_OBSERVER
from harness.common.run_folder.run_files import JOB_TIME
from harness.measure.job_time.records import rank_record
from harness.measure.request import ReportRequest, measure_request
from tests.exercises.launching import Run, collectives, completed, events, train
from tests.exercises.student_script import filled

pytestmark = pytest.mark.train

SCRIPT = "exercise_1_DDP/train.py"
RANGES = ("forward", "backward", "optimizer_step", "scheduler_step", "zero_grad")
RECORDED = ("--skip", "2", "--wait", "1", "--warmup", "1", "--active", "8", "--profiler", "torch")


@pytest.fixture(scope="module")
def default(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The exercise as it is, with a short window."""
    return completed(trained(tmp_path_factory.mktemp("d"), *RECORDED))


def trained(folder: Path, *options: str, script: str = SCRIPT, processes: int = 2) -> Run:
    return train(script, folder / "run", *options, model="tiny-llama", processes=processes)


def has_all_ranges(run: Run, rank: int) -> None:
    """Each range of the page's solution is in the trace, once a step."""
    names = Counter(event["name"] for event in events(run.folder, rank) if event.get("cat") == "user_annotation")
    numbered = [name for name in names if name.startswith(("batch_", "DataLoad batch "))]
    assert sorted(numbered) == sorted(f"{of}{step}" for of in ("batch_", "DataLoad batch ") for step in range(4, 12))
    assert {names[name] for name in (*numbered, "epoch_0-rank_0")} == {1, 0}
    assert {names[name] for name in RANGES} == {8}


def test_metrics_describe_the_run_from_start_to_end(default: Run) -> None:
    assert "Warning" not in default.log, "the first thing that a student sees"
    for rank in (0, 1):
        start, *steps, end = default.lines(rank)
        assert (start["event"], start["rank"], start["world_size"]) == ("start", rank, 2)
        assert (start["backend"], start["device"], start["weights"]) == ("gloo", "cpu", "random")
        assert [step["step"] for step in steps] == list(range(12))
        assert [step["phase"] for step in steps] == ["skip"] * 2 + ["wait", "warmup"] + ["active"] * 8
        assert (end["event"], end["status"], end["steps"]) == ("end", "completed", 12)
        parts = ("data_ns", "forward_ns", "backward_ns", "optimizer_ns")
        assert all(0 < sum(step[part] for part in parts) <= step["step_ns"] for step in steps)


def test_where_the_time_before_the_first_step_goes_is_recorded(default: Run) -> None:
    for rank in (0, 1):
        record = rank_record(default.folder, JOB_TIME.path(default.folder, rank))
        parts = {each.part for each in record.changes}  # the observer looks now and then: not each is long enough
        assert "imports" in parts and parts <= set(FROM_OBSERVER), parts
        assert any(each.packages for each in record.changes), "which package is imported"
        assert record.begun_ns < record.steps[0].begin_ns


def test_one_process_of_the_node_records_its_environment(default: Run) -> None:
    (file,) = (default.folder / "environment").iterdir()
    found = json.loads(file.read_text(encoding="utf-8"))
    assert {"torch", "accelerate"} <= {*found["used"]} and {*found["used"]} < {*found["packages"]}
    assert "versions" not in default.lines()[0]


def test_the_learning_rate_warms_up(default: Run) -> None:
    rates = [step["lr"] for step in default.steps(0)]
    assert rates[:5] == pytest.approx([2e-5 * n / 5 for n in range(1, 6)])
    assert set(rates[5:]) == {2e-5}


def test_all_ranges_are_in_the_trace_of_every_rank(default: Run) -> None:
    for rank in (0, 1):
        has_all_ranges(default, rank)  # step 3 only warms the profiler up


def test_accumulation_reduces_gradients_once_per_optimizer_step(tmp_path: Path, default: Run) -> None:
    run = completed(trained(tmp_path, *RECORDED, "--gradient-accumulation-steps", "4"))
    assert [step["step"] for step in run.steps(0) if step["synced"]] == [3, 7, 11]

    def reductions(folder: Path) -> int:
        return sum(c.kind == "all_reduce" and "backward" in c.within for c in collectives(folder, 0))

    assert reductions(default.folder) == 4 * reductions(run.folder) > 0


def test_the_students_version_with_the_pages_solution_trains_and_is_recorded_as_ours(
    tmp_path: Path, default: Run
) -> None:
    script = tmp_path / "my_train.py"
    script.write_text(filled())
    run = completed(trained(tmp_path, *RECORDED, script=str(script)))
    assert run.mean_losses() == pytest.approx(default.mean_losses(), abs=1e-6)
    has_all_ranges(run, 1)
    for each in (run, default):
        (summary,) = measure_request(ReportRequest([str(each.folder)])).summaries
        # on a busy machine the first steps may be so long that they are warm-up
        assert summary.steps.counted + summary.steps.excluded_warmup == 16
        assert ([own.steps_counted for own in summary.training], summary.world_size) == ([8, 8], 2)
    assert [step["step"] for step in run.steps(1) if step["phase"] == "active"] == list(range(4, 12))


def test_a_compiled_model_trains_alike_and_compiles_outside_of_the_steps(tmp_path: Path, default: Run) -> None:
    run = completed(trained(tmp_path, *RECORDED, "--compile"))
    assert run.mean_losses() == pytest.approx(default.mean_losses(), abs=1e-4)
    names = [{event["name"] for event in events(each.folder, 0)} for each in (run, default)]
    assert [any("cpp_fused_" in name for name in found) for found in names] == [True, False]
    told = next(line for line in run.lines(1) if line["event"] == "compiled")["notes"]
    assert told[-1] == "no graph break: torch.compile compiled the whole forward pass" and f"{told[-1]}." in run.log
    record = rank_record(run.folder, JOB_TIME.path(run.folder, 0))
    compiled = [each for each in record.changes if each.part == COMPILATION]
    assert 2 * sum(each.ns for each in compiled) > record.steps[0].duration_ns
    before = record.steps[4]  # the first profiled one
    assert all(each.end_ns <= before.begin_ns for each in compiled)


def test_a_data_set_smaller_than_a_batch_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text('[{"instruction": "Say hello.", "input": "", "output": "Hello."}]')
    run = trained(tmp_path, "--data", str(tmp_path / "one.json"), processes=1)
    assert run.exit_code != 0
    assert "takes 2 examples" in run.log
