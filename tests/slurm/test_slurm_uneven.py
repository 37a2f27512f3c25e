"""Runs over nodes that differ: what both have is enough, and a request that only one can serve is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.slurm.slurm_sh import SHORT, TWO_NODES, SlurmSh

# Long: a cluster of its own, since the nodes of the session's do not differ.
pytestmark = [pytest.mark.slurm, pytest.mark.train, pytest.mark.long]

FOUR_GPUS = {"per_node": 4, "request": "gres"}
ASKED: dict[str, dict[str, Any]] = {"four-gpus": {"gpus": FOUR_GPUS}, "nine-cpus": {"cpus_per_node": 9}}


@pytest.mark.parametrize("whole", [True, False])
def test_a_run_that_asks_for_what_the_smaller_node_has_trains_on_both(slurm_sh_uneven: SlurmSh, whole: bool) -> None:
    """Of a whole node Slurm gives all, which is not the same on both."""
    asked: dict[str, Any] = {"exclusive": True} if whole else {"cpus_per_node": 8, "memory": "3000M"}
    seen = slurm_sh_uneven.runs.parent / f"seen-{whole}"
    site = slurm_sh_uneven.site(
        f"smaller-{whole}",
        gpus={**FOUR_GPUS, "per_node": 1},
        node_setup=[f"echo \"$(hostname) $SLURM_CPUS_ON_NODE $CUDA_VISIBLE_DEVICES\" >>'{seen}'"],
        **asked,
    )
    run = slurm_sh_uneven.run(*TWO_NODES, "--site", site, "--wait", "--json", *SHORT)
    assert run.node_exits() == {"node1": 0, "node2": 0}
    assert slurm_sh_uneven.slurm.state(run.job_id) == "COMPLETED"
    given = {line.split()[0]: line.split()[1:] for line in seen.read_text().splitlines()}
    assert given == {"node1": ["16" if whole else "8", "0"], "node2": ["8", "0"]}


def test_what_only_the_larger_node_has_is_refused_for_two_nodes_and_taken_for_one(slurm_sh_uneven: SlurmSh) -> None:
    for name, asked in ASKED.items():
        refused = slurm_sh_uneven(*TWO_NODES, "--site", slurm_sh_uneven.site(name, **asked))
        assert refused.returncode == 1
        assert "Requested node configuration is not available" in refused.stderr
        waits = slurm_sh_uneven.site(f"{name}-held", sbatch=["--hold"], **asked)
        job_id = slurm_sh_uneven.run("-e", "1", "-n", "1", "--site", waits, "--json").job_id
        slurm_sh_uneven.slurm.run("scontrol", "release", job_id)
        slurm_sh_uneven.slurm.wait_running(job_id)
        assert slurm_sh_uneven.slurm.job(job_id)["NodeList"] == "node1"
        assert slurm_sh_uneven("cancel", job_id).returncode == 0


def test_the_doctor_says_that_one_node_is_enough(slurm_sh_uneven: SlurmSh) -> None:
    site = slurm_sh_uneven.site("doctor-four-gpus", gpus=FOUR_GPUS)
    done = slurm_sh_uneven("doctor", "--json", "--site", site)
    lines = {line["check"]: line for line in json.loads(done.stdout)["lines"]}
    assert lines["submission"]["level"] == "ok"
