"""A launch names what sbatch obeys beside the job's own options, and run.json keeps it."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.common.submission import for_sbatch, option_of_variable
from harness.experiment.exercises import DDP
from harness.launch.from_shell import sbatch_variables
from harness.launch.job import Machine, resolve
from harness.run import Run
from harness.site.site import load_site
from tests.launch.launch_shared import Harness
from tests.launch.test_backends_fake_slurm import programs, site

__all__ = ["programs", "site"]  # fixtures
NAMED = "from your shell, for sbatch: "
OBEYED = {
    "SBATCH_MEM_PER_NODE": "100M", "SBATCH_CONSTRAINT": "a100", "SBATCH_GPUS": "1", "SBATCH_HINT": "nomultithread",
    "SBATCH_EXCLUSIVE": "1", "SBATCH_RESERVATION": "course", "SBATCH_NEW_IN_2030": "1",
}  # fmt: skip
OVERRULED = {"SBATCH_JOB_NAME": "x", "SBATCH_TIMELIMIT": "1", "SBATCH_SIGNAL": "9", "SBATCH_REQUEUE": "1"}
NO_JOB = {"SBATCH_DEBUG": "1", "SBATCH_WAIT": "1", "SBATCH_ARRAY_INX": "1-2"}


@pytest.mark.parametrize("also", [(), ("--dry-run",)])
def test_a_launch_names_them_in_one_line_and_keeps_them(
    programs: Path, site: str, harness: Harness, tmp_path: Path, also: tuple[str, ...]
) -> None:
    secret = {"SBATCH_EXPORT": "ALL,HF_TOKEN=hf_abcdefghijk"}
    done = harness("-e", "1", "--site", site, *also, **OBEYED, **OVERRULED, **NO_JOB, **secret)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith(NAMED)]
    shown = {**OBEYED, "SBATCH_EXPORT": "***"}
    assert line.removeprefix(NAMED).split(", ") == [f"{name}={shown[name]}" for name in sorted(shown)]
    assert "hf_abc" not in done.stderr
    records = list(tmp_path.rglob("run.json"))
    assert len(records) == (not also)
    for path in records:
        assert Run(path.parent).record.for_sbatch == shown
        assert "hf_abc" not in path.read_text()


def test_what_the_job_asks_for_itself_counts(machine: Machine) -> None:
    slurm = load_site("slurm").model_copy(update={"exclusive": True, "memory": "64G", "sbatch": ["-C a100 # ours"]})
    job = resolve(DDP(nodes=1), slurm, machine)
    assert set(sbatch_variables(OBEYED, job)) == set(OBEYED) - {
        "SBATCH_EXCLUSIVE", "SBATCH_MEM_PER_NODE", "SBATCH_CONSTRAINT",
    }  # fmt: skip
    here = resolve(DDP(nodes=1, gpus_per_node=1), load_site("local"), machine)
    assert sbatch_variables(OBEYED, here) == {}, "nothing is submitted"


def test_every_variable_has_its_option() -> None:
    names = ("SBATCH_GPUS_PER_NODE", "SBATCH_CPUS_PER_GPU", "SBATCH_ACCTG_FREQ", "SBATCH_WAIT4SWITCH", "SLURM_CLUSTERS")
    options = ["--gpus-per-node", "--cpus-per-gpu", "--acctg-freq", "--switches", "--clusters"]
    assert [option_of_variable(name) for name in names] == options
    assert for_sbatch(dict.fromkeys(names, "1"), [f"{option}=1" for option in options]) == {}
