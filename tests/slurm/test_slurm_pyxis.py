"""The step that pyxis would put into a container, on a Slurm that has no pyxis: a stand-in takes its options away."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.slurm.slurm_sh import SlurmSh

pytestmark = [pytest.mark.slurm, pytest.mark.train]

STAND_IN = """#!/bin/bash
# As srun with pyxis: its options are read and the rest is srun's; the program then runs outside of any container.
rest=() image='' mounts='' names=''
while [[ $1 == --* ]]; do
  case $1 in
  --container-image=*) image=${1#*=} ;;
  --container-mounts=*) mounts=${1#*=} ;;
  --container-env=*) names=${1#*=} ;;
  --container-*) ;;
  *) rest+=("$1") ;;
  esac
  shift
done
IFS=, read -ra folders <<<"$mounts"
ls -d -- "$image" "${folders[@]}" >/dev/null || exit 1 # pyxis refuses what is not there
printf '%s %s %s\\n' "$(hostname -s)" "${rest[*]}" "$names" >>"$(dirname "$0")/steps"
exec srun "${rest[@]}" "$@"
"""


@pytest.mark.long  # another way to start what test_container_slides.py starts
def test_with_a_stand_in_for_pyxis_each_nodes_benchmark_is_a_step_of_its_own_there(slurm_sh: SlurmSh) -> None:
    folder = Path(slurm_sh.slurm.root) / "pyxis"
    folder.mkdir()
    program, image = folder / "srun-with-pyxis", folder / "training.sqsh"
    program.write_text(STAND_IN)
    program.chmod(0o755)
    image.touch()
    container = {"runtime": "pyxis", "command": str(program), "image": str(image), "python": sys.executable}
    site = slurm_sh.site("pyxis", container=container, cpus_per_node=4)
    run = slurm_sh.run("-e", "0", "-n", "2", "--site", site, "--wait", "--json", "--max-bytes", "4096")
    assert run.node_exits() == {"node1": 0, "node2": 0}
    assert "inter" in {result["scope"] for result in run.read("comm/collectives.json")["results"]}
    steps = sorted((folder / "steps").read_text().splitlines())
    assert [step.split()[0] for step in steps] == ["node1", "node2"], "the topology is the node's, outside"
    for node, step in zip(("node1", "node2"), steps, strict=True):
        assert f"--nodelist={node} --cpus-per-task=4" in step
        assert {"PYTHONPATH", "MASTER_ADDR"} <= set(step.split()[-1].split(","))
