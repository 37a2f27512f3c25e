"""A job's script that a person submits: it makes a run of its own, which keeps what was edited."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from harness.common.errors import WorkError
from harness.common.paths import ROOT
from harness.experiment.exercises import DDP, DeepSpeed, Experiment, Megatron, OwnTraining
from harness.launch.job import REQUEST, resolve
from harness.launch.on_node.by_hand import run_of_script, with_arguments
from harness.launch.render import BELOW, render
from harness.launch.submit import this_machine
from harness.run import Run, all_runs
from harness.run.ended import with_first_exits
from harness.run.record import NodeStatus
from harness.site.site import load_site
from tests.launch.own_shared import process
from tests.waiting import limit_s


def script_of(asked: Experiment, site: str = "local") -> str:
    return render(resolve(asked, load_site(site), this_machine()))


def by_bash(folder: Path, text: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A script as a person starts it in another folder."""
    (folder / "try.sbatch").write_text(text)
    env = {**os.environ, "HARNESS_SITE": "local", **more}
    argv = ["bash", str(folder / "try.sbatch")]
    return subprocess.run(argv, env=env, cwd="/", capture_output=True, text=True, check=False, timeout=limit_s())


def test_a_dry_runs_script_runs_as_it_is_and_as_it_was_edited(tmp_path: Path) -> None:
    """Without slurm.sh, from another folder, and also from a shell that is inside of another run."""
    printed = process(tmp_path, "run", "--dry-run", "--no-profile", "--", "bash", "-c", "echo plain", "x").stdout
    printed += f"\n{BELOW}# accelerate.yaml:\n"  # as a dry run of an exercise has it
    said, copy = [], tmp_path / "copy"
    copy.mkdir()
    for folder, text in ((tmp_path, printed), (copy, printed.replace("echo plain", "echo edited", 1))):
        done = by_bash(folder, text, HARNESS_SUPERVISED="7", JOB_ID="7")
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    plain, edited = all_runs(tmp_path / "runs")
    for run, text in zip((plain, edited), said, strict=True):
        assert text == f"run {run.job_id}: {run.path}\nfollow it: bash {ROOT}/slurm.sh logs {run.job_id} -f\n"
    assert [run.status().state for run in (plain, edited)] == ["completed", "completed"]
    assert plain.record.edited == ""
    changed = [line for line in edited.record.edited.splitlines() if line[0] in "+-"]
    assert [line[0] for line in changed] == ["-", "+", "-", "+"]
    assert [("echo plain" in line, "echo edited" in line) for line in changed[2:]] == [(True, False), (False, True)]
    assert (plain.out.read_text(), edited.out.read_text()) == ("plain\n", "edited\n")
    assert "echo edited" in edited.script.read_text()


def test_the_record_has_the_trainings_arguments_of_the_script() -> None:
    before = script_of(DeepSpeed(nodes=2), "leonardo")
    now = before.replace("--micro-batch-size 2", "--micro-batch-size 8").replace("--seed 1234", "--seed 7")
    changed = with_arguments(DeepSpeed(nodes=2), before, now)
    assert changed == DeepSpeed(nodes=2, micro_batch_size=8, seed=7)
    assert with_arguments(DeepSpeed(nodes=2), before, before) == DeepSpeed(nodes=2), "defaults stay defaults"
    wrong = before.replace("--micro-batch-size 2", "--micro-batch-size many")
    assert with_arguments(DeepSpeed(nodes=2), before, wrong) == DeepSpeed(nodes=2)


def own(*command: str) -> OwnTraining:
    return OwnTraining(command=command, gpus_per_node=2)


EDITS: list[tuple[Experiment, str, str, Experiment]] = [
    (DDP(), "--seed 1234", "--seed 1234\n  --mixed-precision", DDP(mixed_precision=True)),
    (DDP(), "--seed 1234", "--mixed-precision=tf32 --seed 1234", DDP(mixed_precision="tf32")),
    (DDP(mixed_precision=True), "--mixed-precision\n", "\n", DDP()),
    (DDP(), "--seed 1234", "--no-pin-memory --seed 5", DDP(pin_memory=False, seed=5)),
    (DDP(), "--seed 1234", "--fault pause,every=3,ms=5 --seed 1234", DDP(faults=("pause,every=3,ms=5",))),
    (DDP(), "--seed 1234", "--activation-checkpointing --seed 1234", DDP()),  # not without --mixed-precision
    (Megatron(), "--mixed-precision\n", "\n", Megatron(mixed_precision=False)),
    (own("train.py", "--lr", "1"), "--lr 1", "--lr 2 --fast", own("train.py", "--lr", "2", "--fast")),
    (own("-m", "a.b"), "a.b", "a.c", own("-m", "a.c")),
    (own("prog", "1"), "prog 1", "prog 2 3", own("prog", "2", "3")),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "old", "new", "ran"), EDITS)
def test_a_switch_or_a_word_that_was_added_or_removed_is_recorded(
    asked: Experiment, old: str, new: str, ran: Experiment
) -> None:
    before = script_of(asked, "leonardo")
    assert with_arguments(asked, before, before) == asked
    head, begins, training = before.partition("TRAINING=(")
    assert old in training
    assert with_arguments(asked, before, head + begins + training.replace(old, new, 1)) == ran


def test_an_edited_copy_can_name_settings_of_its_own(tmp_path: Path) -> None:
    """The run keeps them, and its name, its record and `run RUN` say what they say."""
    own, script = tmp_path / "own.json", tmp_path / "try.sbatch"
    asked = DeepSpeed(gpus_per_node=2)
    text = script_of(asked)
    files = resolve(asked, load_site("local"), this_machine()).files
    own.write_text(files["ds_config.json"].replace('"overlap_comm": true', '"overlap_comm": false'))
    script.write_text(text.replace('"$RUN_DIR/ds_config.json"', str(own)))
    run_dir = tmp_path / "runs" / "exercise_2_DeepSpeed" / "profiler" / "tiny-by-hand-x"
    run = run_of_script(script, run_dir, "by-hand")
    assert (run.path / "ds_config.json").read_text() == own.read_text()
    assert (run.path / "accelerate.yaml").read_text() == files["accelerate.yaml"]
    assert "-commoverlap0-" in run.name and "--ds-no-overlap" in run.record.command
    own.unlink()
    with pytest.raises(WorkError, match=r"--deepspeed-config .*own\.json cannot be read: No such file"):
        run_of_script(script, run_dir, "by-hand")


def test_files_and_name_of_an_edited_run_agree_with_it(tmp_path: Path) -> None:
    """DeepSpeed refuses a batch that differs from its file's."""
    text = script_of(DeepSpeed(gpus_per_node=2)).replace("--micro-batch-size 2", "--micro-batch-size 4")
    script = tmp_path / "try.sbatch"
    script.write_text(text)
    run_dir = tmp_path / "runs" / "exercise_2_DeepSpeed" / "profiler" / "tiny-by-hand-x"
    run = run_of_script(script, run_dir, "by-hand")
    assert isinstance(run.record.experiment, DeepSpeed) and run.record.experiment.micro_batch_size == 4
    assert '"train_micro_batch_size_per_gpu": 4' in (run.path / "ds_config.json").read_text()
    assert "-mbs4-" in run.name
    assert f"-$JOB_ID{run.name.partition(run.job_id)[2]}" in run.script.read_text(), "the script finds its folder"
    assert run.record.command[:3] == ["slurm.sh", "-e", "2"]


@pytest.mark.parametrize("text", ["echo x\n", f"{REQUEST}{{}}\n", f"{REQUEST}[\n"])
def test_a_script_without_a_request_is_one_sentence(tmp_path: Path, text: str) -> None:
    script = tmp_path / "try.sbatch"
    script.write_text(text)
    with pytest.raises(WorkError, match="its last line is no request of the harness"):
        run_of_script(script, tmp_path / "runs/e/profiler/x-by-hand", "by-hand")
    assert not (tmp_path / "runs").exists()


def test_a_run_of_a_script_has_its_own_state_and_is_not_overwritten(tmp_path: Path) -> None:
    script = tmp_path / "try.sbatch"
    script.write_text(script_of(DDP(gpus_per_node=1)))
    folder = tmp_path / "runs" / "exercise_1_DDP" / "profiler"
    first = run_of_script(script, folder / "x-by-hand", "by-hand")
    assert Run(first.path).job_id.startswith("local-") and first.log_dir.is_dir()
    run_of_script(script, folder / "x", "7")
    with pytest.raises(WorkError, match="exists already: nothing was overwritten"):
        run_of_script(script, folder / "x", "7")
    assert len(all_runs(tmp_path / "runs")) == 2


def node(number: int, exit_code: int, host: str = "n") -> NodeStatus:
    return NodeStatus(node=number, host=f"{host}{number}", exit=exit_code, started_ns=0, ended_ns=number + 1)


@pytest.mark.parametrize(
    ("exits", "told", "found"),
    [
        ([1], [("n0.cluster", 7)], [7]),
        ([1], [("localhost", -9)], [137]),
        ([1], [("", -11)], [139]),
        ([1], [], [1]),
        ([0], [("n0", 7)], [0]),
        ([143, 1], [("n1", 7)], [143, 7]),
        ([1, 1], [("n1", -9), ("n0", 1)], [1, 137]),
        ([247], [], [137]),  # deepspeed's
        ([255], [], [255]),  # a container's own
        ([137], [("n0", 7)], [137]),  # the launcher itself was killed
    ],
)
def test_a_nodes_exit_status_is_that_of_the_rank_that_failed_first(
    exits: list[int], told: list[tuple[str, int]], found: list[int]
) -> None:
    nodes = [node(number, code) for number, code in enumerate(exits)]
    assert [each.exit for each in with_first_exits(nodes, told)] == found
