"""One word before the command, in jobs that their users wrote, on a real two-node Slurm: the training does not change,
and what it did is found by the job's id."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from own_trainings import SCRIPTS

from tests.slurm.observed_jobs import JOBS, STEPS, UsersJob
from tests.slurm.slurm_cluster import Slurm
from tests.slurm.slurm_sh import REPOSITORY

pytestmark = [pytest.mark.slurm, pytest.mark.train]


class Done:
    """A job that has ended: what it printed, its exit status, and what its trainings wrote."""

    def __init__(self, slurm: Slurm, job: UsersJob, folder: Path, word: str) -> None:
        self.slurm, self.folder, self.truth = slurm, folder, folder / "truth"
        shutil.copytree(SCRIPTS, folder, dirs_exist_ok=True)
        commands = folder / "commands"
        commands.mkdir()
        installed = commands / "training-traces"
        installed.write_text(
            f"#!{sys.executable}\nimport sys\nsys.path.append({str(REPOSITORY)!r})\n"
            "from harness.cli.main import program\nprogram()\n"
        )
        installed.chmod(0o755)
        text = job.text.replace("{observe}", word).replace("{{", "{").replace("}}", "}")
        script = folder / "train.sbatch"
        script.write_text(f"#!/bin/bash\n{text}\n")
        path = [commands, Path(sys.executable).parent, Path(shutil.which("sbatch") or "").parent, "/usr/bin", "/bin"]
        about = {"TRUTH": str(self.truth), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
        self.env = {"PATH": ":".join(map(str, path)), **about}
        output = ("--output", f"{folder}/out-%j")
        submit = ("sbatch", "--parsable", "--chdir", str(folder), *output, str(script))
        self.job_id = slurm.run(*submit, env=self.env, cwd=folder).stdout.strip()
        tasks = [f"{self.job_id}_0", f"{self.job_id}_1"] if job.array else [self.job_id]
        self.codes = []
        for task in tasks:
            slurm.wait(task)
            code, _, number = slurm.job(task)["ExitCode"].partition(":")
            self.codes.append(int(code) or 128 * bool(int(number)) + int(number))

    @property
    def printed(self) -> str:
        return "".join(path.read_text() for path in sorted(self.folder.glob("out-*")))

    def losses(self) -> dict[str, Any]:
        """By the file that a rank wrote: the hexadecimal losses of its steps."""
        return {path.name: json.loads(path.read_text())["losses"] for path in self.folder.glob("truth*.rank?")}

    def runs(self) -> list[Path]:
        return sorted((self.folder / "runs/own/profiler").glob("*"), key=lambda path: path.stat().st_ctime)


def steps_of(run: Path) -> dict[int, int]:
    """The steps that each rank's observer counted."""
    found = {}
    for path in (run / "metrics").glob("rank*.jsonl"):
        events = [json.loads(line)["event"] for line in path.read_text().splitlines()]
        found[int(path.stem.removeprefix("rank"))] = events.count("step")
    return dict(sorted(found.items()))


# Long: test_container_observe.py has the word before a container and inside of one, test_observe.py all that it does.
@pytest.mark.long
@pytest.mark.parametrize("job", [pytest.param(each, id=each.name) for each in JOBS])
def test_the_word_changes_nothing_and_finds_all(slurm: Slurm, tmp_path: Path, job: UsersJob) -> None:
    plain = Done(slurm, job, tmp_path / "plain", "")
    observed = Done(slurm, job, tmp_path / "observed", job.word)
    assert plain.codes == observed.codes == [job.code] * len(plain.codes), observed.printed
    assert observed.losses() == plain.losses(), observed.printed
    counted = [steps_of(run) for run in observed.runs()]
    wanted = [dict.fromkeys(range(ranks), STEPS) for ranks in job.ranks for _ in range(2 if job.array else 1)]
    assert sorted(map(str, counted)) == sorted(map(str, wanted)), observed.printed
    if not job.ranks:
        return
    done = slurm.run(
        *("bash", REPOSITORY / "slurm.sh", "status", observed.job_id + "_0" * job.array, "--json"),
        env=observed.env, cwd=tmp_path,  # Slurm knows where the job was started
    )  # fmt: skip
    said = json.loads(done.stdout)
    assert said["state"] == "completed", said
