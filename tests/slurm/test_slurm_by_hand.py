"""`sbatch` of a job's script, as it is and edited, on a real Slurm of two nodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.slurm.slurm_sh import SHORT, TWO_NODES, SlurmSh

pytestmark = [pytest.mark.slurm, pytest.mark.train]


@pytest.mark.long  # of a local run it is no long test
def test_an_edited_copy_is_a_run_of_its_own_that_says_what_was_edited(slurm_sh: SlurmSh, tmp_path: Path) -> None:
    site = slurm_sh.site("by-hand")
    first = slurm_sh.submit(site, *SHORT)
    slurm_sh.slurm.wait(first.job_id)
    copy = tmp_path / "try.sbatch"
    text = (first.path / "job.sbatch").read_text()
    copy.write_text(text.replace("--micro-batch-size 2", "--micro-batch-size 4"))
    job = slurm_sh.slurm.sbatch(f"--output={tmp_path}/out", copy)
    assert slurm_sh.slurm.wait(job) == "COMPLETED", (tmp_path / "out").read_text()
    said = slurm_sh.status(job)
    assert (said["state"], said["exit_code"], said["missing"]) == ("completed", 0, [])
    record = json.loads((Path(said["path"]) / "run.json").read_text())
    assert record["experiment"]["micro_batch_size"] == 4
    assert "+  --micro-batch-size 4\n" in record["edited"]
    assert [node["exit"] for node in record["nodes"]] == [0, 0]
    assert all("--micro-batch-size" in words for node in record["nodes"] for words in node["commands"])
    compared = slurm_sh("compare", first.job_id, job).stdout
    assert "micro_batch_size" in compared and "edited (1 line)" in compared
    assert "Its script was edited by hand (1 line differs)" in slurm_sh("report", job).stdout
    again = slurm_sh("run", job, "--dry-run", "--yes")
    assert "--micro-batch-size 4" in again.stdout, again.stderr


def test_a_dry_runs_script_can_be_submitted(slurm_sh: SlurmSh, tmp_path: Path) -> None:
    script = tmp_path / "dry.sbatch"
    script.write_text(slurm_sh(*TWO_NODES, *slurm_sh.light("dry"), "--dry-run", *SHORT).stdout)
    job = slurm_sh.slurm.sbatch(f"--output={tmp_path}/out", script)
    assert slurm_sh.slurm.wait(job) == "COMPLETED", (tmp_path / "out").read_text()
    said = slurm_sh.status(job)
    assert (said["state"], said["missing"]) == ("completed", [])
    assert json.loads((Path(said["path"]) / "run.json").read_text())["edited"] == ""
