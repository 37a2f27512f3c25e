"""Whether a launch uses the allocation of its shell, by what a stand-in for scontrol says of it (tests/slurm has a real
Slurm: test_slurm_salloc.py)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.common.errors import RequestError
from harness.experiment.exercises import DDP
from harness.launch.backends import allocation
from harness.launch.backends.allocation import allocation_of, placed
from harness.site.site import Site, load_site

INSIDE = {"SLURM_JOB_ID": "4711"}
HALF_A_NODE = "NumNodes=1 NumCPUs=16 NodeList=lrdn0001 TRES=cpu=16,mem=1G,node=1,billing=16,gres/gpu=2"
TWO_NODES = "NumNodes=2 NumCPUs=64 NodeList=lrdn[1-2] AllocTRES=cpu=64,node=2,gres/gpu=8,gres/gpu:a100=8"
NO_GPU = "NumNodes=1 NumCPUs=4 NodeList=lrdn0001 TRES=cpu=4,mem=1G,node=1,billing=4"
NO_TRES = "NumNodes=1 NumCPUs=8 NodeList=lrdn0001 TRES=cpu=8,node=1 TresPerNode=gres:gpu:a100:4"


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A stand-in for scontrol, which prints the file `says` of the returned folder."""
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\ncat "{tmp_path}/says"\n')
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    allocation_of.cache_clear()
    yield tmp_path
    allocation_of.cache_clear()


def says(shell: Path, fields: str, state: str = "RUNNING") -> None:
    (shell / "says").write_text(f"JobId=4711 JobState={state} EndTime=2030-01-01T00:00:00 {fields}\n")


def leonardo(**changes: object) -> Site:
    return load_site("leonardo").model_copy(update=changes)


def test_a_run_that_fits_uses_it_with_its_cpus_and_gpus(shell: Path) -> None:
    says(shell, HALF_A_NODE)
    site, where = placed(DDP(), leonardo(), INSIDE)
    assert where == "in allocation 4711 (1 node, 2 GPUs each), without sbatch"
    assert (site.scheduler, site.gpus.per_node, site.cpus_per_node) == (allocation.NAME, 2, 16)


@pytest.mark.parametrize(("fields", "gpus"), [(TWO_NODES, 4), (NO_TRES, 4), (HALF_A_NODE, 2), (NO_GPU, None)])
def test_the_gpus_of_a_node_are_read_from_what_each_slurm_prints(shell: Path, fields: str, gpus: int | None) -> None:
    says(shell, fields)
    found = allocation_of("4711")
    assert found is not None and found.gpus == gpus


@pytest.mark.parametrize(
    ("fields", "asked", "why"),
    [
        (HALF_A_NODE, DDP(nodes=2), "it has 1 node, and -n asks for 2"),
        (HALF_A_NODE, DDP(gpus_per_node=4), "it has 2 GPUs per node, and -g asks for 4"),
        (NO_GPU, DDP(), "Slurm lists no GPU of it"),
    ],
)
def test_a_run_that_does_not_fit_is_submitted_or_refused(shell: Path, fields: str, asked: DDP, why: str) -> None:
    says(shell, fields)
    site, where = placed(asked, leonardo(), INSIDE)
    assert site == leonardo()
    assert where == f"not in allocation 4711 of this shell, because {why}: a job of its own is submitted"
    with pytest.raises(RequestError, match=f"^--allocation use: allocation 4711 is too small, because {why}$"):
        placed(asked, leonardo(allocation="use"), INSIDE)


def test_without_an_allocation_or_where_a_job_is_wanted_nothing_changes(shell: Path) -> None:
    says(shell, TWO_NODES)
    assert placed(DDP(), leonardo(), {}) == (leonardo(), "")
    alone = leonardo(allocation="submit")
    assert placed(DDP(), alone, INSIDE) == (alone, "")
    assert placed(DDP(), load_site("local"), INSIDE) == (load_site("local"), "")
    with pytest.raises(RequestError, match=r"^--allocation use: this shell has none"):
        placed(DDP(), leonardo(allocation="use"), {})


def test_an_allocation_that_has_ended_is_none(shell: Path) -> None:
    says(shell, TWO_NODES, state="COMPLETED")
    assert placed(DDP(), leonardo(), INSIDE) == (leonardo(), "")
    with pytest.raises(RequestError, match=r"^--allocation use: Slurm knows no running job 4711"):
        placed(DDP(), leonardo(allocation="use"), INSIDE)
