"""accelerate's command and its configuration, one file per node. Knows no exercise."""

from __future__ import annotations

import yaml

from harness.common.paths import CONFIGS
from harness.experiment.base import Experiment
from harness.experiment.yaml_file import read_yaml
from harness.launch.argv import MASTER_ADDR, MASTER_PORT, NODE, RUN_DIR, Word, join
from harness.launch.exercises.base import CommandPlace

ACCELERATE = CONFIGS / "accelerate"


def accelerate(place: CommandPlace) -> list[Word]:
    """The words before the script."""
    program: list[Word] = [place.python, "-m", "exercises.utils.launch", "accelerate"]
    config: list[Word] = ["--config_file", join(RUN_DIR, "/accelerate_node", NODE, ".yaml")]
    meeting: list[Word] = ["--main_process_ip", join(MASTER_ADDR), "--main_process_port", join(MASTER_PORT)]
    return [*program, *config, *meeting]


def accelerate_files(asked: Experiment, base: str) -> dict[str, str]:
    """One file per node, from `base`.yaml, as each node has a machine rank of its own."""
    common = dict(read_yaml(ACCELERATE / f"{base}.yaml", "accelerate file")) | {
        "num_machines": asked.nodes,
        "num_processes": asked.world_size,
        "mixed_precision": "bf16" if asked.in_bf16 else "no",
    }
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # 10× faster: a dry run writes one per node
    return {
        f"accelerate_node{node}.yaml": yaml.dump(
            common | {"machine_rank": node}, Dumper=dumper, sort_keys=False
        )
        for node in range(asked.nodes)
    }
