"""Trainings of other people through `slurm.sh run -- …` on a real two-node Slurm: each unchanged, one rank per node."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from own_trainings import SCRIPTS, TRAININGS, Training

from harness.measure.job_time.records import read_job_time
from harness.run import Run
from tests.exercises.launching import trace_events
from tests.slurm.slurm_sh import SlurmSh, Submitted

pytestmark = [pytest.mark.slurm, pytest.mark.train]

STEPS = 14
WINDOW = ("--skip-steps", "4", "--warmup-steps", "1", "--active-steps", "6")
IN_CI = ("plain_ddp",)


def launched(slurm_sh: SlurmSh, training: Training, *options: str) -> Submitted:
    """A run of the training over both nodes, to its end."""
    launcher = "deepspeed" if training.name == "deepspeed_engine" else training.launcher
    nodes = ("-n", str(training.ranks), "-g", "1")
    site = slurm_sh.site("own", env=dict(training.environment) | {"GLOO_SOCKET_IFNAME": "eth0"})
    words = (*nodes, *WINDOW, "--launcher", launcher, "--site", site, "--wait", "--json")
    return slurm_sh.run("run", *words, "--", *training.words, *options, seconds=600, cwd=SCRIPTS)


def marked_steps(trace: Path) -> list[int]:
    """The numbers of the steps in a trace."""
    names = (str(event.get("name", "")) for event in trace_events(trace))
    return sorted({int(name[6:]) for name in names if name.startswith("batch_")})


@pytest.mark.parametrize(
    "training",
    [pytest.param(each, id=name, marks=() if name in IN_CI else pytest.mark.long) for name, each in TRAININGS.items()],
)
def test_all_ranks_count_and_record_the_same_steps(slurm_sh: SlurmSh, tmp_path: Path, training: Training) -> None:
    truth = tmp_path / "truth"
    run = launched(slurm_sh, training, "--steps", str(STEPS), "--truth", str(truth))
    assert run.read("status.json")["state"] == "completed"
    for rank in range(training.ranks):
        events = run.events(rank)
        counted = json.loads(Path(f"{truth}.rank{rank}").read_text(encoding="utf-8"))["steps"]
        assert sum(event["event"] == "step" for event in events) == counted == STEPS
        assert events[-1]["status"] == "completed"
        assert marked_steps(run.path / "torch" / f"rank{rank}.json.gz") == list(range(5, 11))
        assert (run.path / "lines" / f"rank{rank}.jsonl").is_file()
    hosts = {run.events(rank)[0]["host"] for rank in range(training.ranks)}
    assert len(hosts) == training.ranks
    time = read_job_time(Run(run.path))
    assert sum(part.duration_ns for part in time.parts) == time.elapsed_ns
    assert {"job start", "launch", "imports", "steps", "ending"} <= {part.part for part in time.parts}


@pytest.mark.long  # another launcher of the training above
def test_a_command_starts_on_each_node_as_it_is(slurm_sh: SlurmSh, tmp_path: Path) -> None:
    """With its own torchrun, which meets where the job says."""
    text = "torchrun --nnodes $NNODES --nproc-per-node 1 --node-rank $NODE_RANK --master-addr $MASTER_ADDR \\\n"
    text += '  --master-port $MASTER_PORT plain_ddp.py --steps 6 && touch "$1.$NODE_RANK"'
    site = slurm_sh.site("own-command")
    words = ("-n", "2", "-g", "1", "--site", site, "--wait", "--json", "--skip-steps", "1", "--active-steps", "2")
    path = f"{Path(sys.executable).parent}:{Path(shutil.which('sbatch')).parent}:/usr/bin:/bin"
    command = ("--", "bash", "-c", text, "--", tmp_path / "done")
    run = slurm_sh.run("run", *words, *command, env={"PATH": path}, seconds=300, cwd=SCRIPTS)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["done.0", "done.1"]
    assert [sum(event["event"] == "step" for event in run.events(rank)) for rank in (0, 1)] == [6, 6]
