"""A job of the installed wheel on a real Slurm: its nodes find launcher, exercise and observer in the wheel."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm.slurm_sh import SHORT, TWO_NODES, SlurmSh, submitted
from tests.wheel.conftest import built, source, training_venv, wheel

pytestmark = [pytest.mark.slurm, pytest.mark.train, pytest.mark.long]
__all__ = ["built", "source", "training_venv", "wheel"]  # the fixtures


def test_exercise_1_trains_over_two_nodes_without_a_checkout(slurm_sh: SlurmSh, training_venv: Path) -> None:
    words = ("--site", slurm_sh.site("of-the-wheel"), "--wait", "--json", "--", *SHORT)
    done = slurm_sh.slurm.run(
        training_venv / "bin" / "training-traces", *TWO_NODES, *words, check=False, seconds=600, env=slurm_sh.env
    )
    assert done.returncode == 0, done.stderr
    run = submitted(done.stdout)
    assert run.node_exits() == {"node1": 0, "node2": 0}
    assert "slurm.sh" not in (run.path / "job.sbatch").read_text()
    assert {file.name for file in run.path.glob("torch/*")} == {"rank0.json.gz", "rank1.json.gz"}
