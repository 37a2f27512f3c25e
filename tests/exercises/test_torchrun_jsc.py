"""JSC's torchrun_jsc in torchrun's place: with c10d, whose meeting it repairs."""

from __future__ import annotations

import pytest

from harness.experiment.exercises import Experiment, Megatron, OwnTraining
from harness.launch.argv import shown
from harness.launch.job import Machine, resolve
from harness.site.site import load_site

MACHINE = Machine(0, 2, True, "python", "/runs")
ASKED: dict[str, Experiment] = {
    "exercise 3": Megatron(nodes=2, tp=4),
    "an own training": OwnTraining(nodes=2, command=("train.py",), start_in="/home/u"),
}


def words_of(asked: Experiment, site: str) -> list[str]:
    (training,) = resolve(asked, load_site(site), MACHINE).commands
    return [shown(word) for word in training.argv]


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize("site", ["juwels-booster", "jureca", "jupiter"])
def test_several_nodes_meet_by_c10d_at_the_first_ones_name(asked: Experiment, site: str) -> None:
    words = words_of(asked, site)
    assert words[:3] == ["python3", "-m", "torchrun_jsc"]
    assert "--rdzv-backend=c10d" in words
    assert "--rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT" in words
    assert "--node-rank" not in words, "c10d gives out the numbers"


def test_one_node_starts_as_without_it() -> None:
    words = words_of(Megatron(tp=4), "jureca")
    assert words[:3] == ["python3", "-m", "torchrun_jsc"]
    assert words[words.index("--node-rank") + 1] == "%q{SLURM_NODEID}"


def test_elsewhere_torchrun_is_called_by_its_own_name() -> None:
    words = words_of(Megatron(nodes=2, tp=4), "leonardo")
    assert words[0] == "torchrun" and "--rdzv-backend=c10d" not in words
