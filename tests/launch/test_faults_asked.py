"""`--fault` is an option like any other: checked before a launch, recorded, part of the command, listed."""

from __future__ import annotations

import json

import pytest
from pydantic import TypeAdapter

from harness.cli.main import main
from harness.common.faults.fault import FAULTS
from harness.experiment.exercises import DDP, DeepSpeed, Experiment, Megatron, Recorded
from harness.experiment.parse import all_options, build_experiment, command_of
from harness.launch.job import Job, Machine, resolve
from harness.site.site import load_site

ASKED = ("data-stall,ms=20,rank=1", "pause,ms=5")


def job(asked: Experiment, machine: Machine) -> Job:
    return resolve(asked, load_site("local"), machine)


@pytest.fixture
def laptop() -> Machine:
    return Machine(cores=2, gpus=0, has_nsys=False, python="python", runs_dir="/runs")


@pytest.mark.parametrize("cls", [DDP, DeepSpeed, Megatron])
def test_each_training_script_gets_the_faults_as_arguments(
    cls: type[DDP | DeepSpeed | Megatron], laptop: Machine
) -> None:
    argv = job(cls(faults=ASKED), laptop).commands[0].argv
    places = [place for place, word in enumerate(argv) if word == "--fault"]
    assert [argv[place + 1] for place in places] == list(ASKED)
    assert "--fault" not in job(cls(), laptop).commands[0].argv


def test_the_run_s_name_has_the_faults_names(laptop: Machine) -> None:
    plain, faulty = job(DDP(), laptop), job(DDP(faults=(*ASKED, "pause,ms=7,rank=0")), laptop)
    assert faulty.run_name[1] == f"{plain.run_name[1]}-fault-data-stall+pause"
    assert job(DeepSpeed(faults=ASKED), laptop).run_name[1].endswith("-ZeRO3-fault-data-stall+pause")


def test_the_record_and_the_command_bring_them_back() -> None:
    asked = DDP(faults=ASKED, gpus_per_node=2)
    recorded = TypeAdapter[object](Recorded)
    assert recorded.validate_python(json.loads(recorded.dump_json(asked))) == asked
    words = command_of(asked) or []
    assert words[-4:] == ["--fault", ASKED[0], "--fault", ASKED[1]]
    pairs = [("-e", "1"), ("-g", "2"), ("--fault", ASKED), ("--fault", "pause,ms=6")]
    again = build_experiment(pairs, [], all_options())
    assert again == DDP(faults=(*ASKED, "pause,ms=6"), gpus_per_node=2)


def test_the_list_has_every_fault_with_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "faults"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n{name} " in shown for name in FAULTS)
    assert main(["help", "faults", "pause"]) == 0
    one = capsys.readouterr().out
    assert "--fault pause,ms=…[,rank=all][,every=1]" in one
    assert "data-stall" not in one
