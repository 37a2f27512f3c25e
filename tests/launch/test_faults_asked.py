"""`--fault` is an option like any other: checked before a launch, recorded, part of the command, listed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from harness.analysis.summary import Summary
from harness.cli.main import main
from harness.common.errors import RequestError
from harness.common.faults import FAULTS
from harness.compare.summaries import compare
from harness.experiment.exercises import DDP, DeepSpeed, Experiment, Megatron, Recorded, as_recorded
from harness.experiment.parse import all_options, build_experiment, command_of
from harness.launch.job import Job, Machine, resolve
from harness.report.compare.tables import configuration_table
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


@pytest.mark.parametrize("exercise", ["1", "2", "3"])
def test_a_checkpoint_that_would_never_come_is_refused(exercise: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-e", exercise, "--no-profile", "--steps", "20", "--checkpoint-every", "21", "--dry-run"]
    assert main([*words, "--site", "leonardo"]) == 2
    said = "--checkpoint-every 21 would write none in a training of 20 steps: the nearest is --checkpoint-every 20"
    assert said in capsys.readouterr().err


def test_a_slow_checkpoint_needs_a_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-e", "1", "-n", "2", "--site", "leonardo", "--fault", "slow-checkpoint,ms=5", "--dry-run"]
    assert main(words) == 2
    assert "the training writes no checkpoints: add --checkpoint-every 5" in capsys.readouterr().err
    assert main([*words, "--checkpoint-every", "5"]) == 0
    assert "--checkpoint-every 5" in capsys.readouterr().out


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


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-e", "1", "--fault", "pauze,ms=5"], "--fault: there is no fault 'pauze': did you mean pause?"),
        (["-e", "1", "--fault", "pause,ms=5", "--fault", "pause"], "--fault: pause: ms is missing"),
        (["-e", "2", "-g", "2", "--fault", "pause,ms=5,rank=2"], "the nearest is rank=1"),
        (["-e", "1", "--fault", "pause,ms=5,rank=99"], "there is no rank 99"),
        (["-e", "0", "--fault", "pause,ms=5"], "takes no training flags"),
        (["-e", "3", "--engine", "megatron-lm", "--site", "leonardo", "--fault", "pause,ms=5"], "drop one"),
        (["-e", "1", "--active-steps", "4", "--fault", "pause,ms=5,every=21"], "steps: the nearest is every=20"),
        (["-e", "1", "--fault", "sync"], "--fault sync has no effect on the CPU, where this training runs: drop it"),
        (["-e", "3", "--fault", "tiny-kernels"], "works in exercise 1 and 2, not in exercise 3: drop it or use -e 1"),
        (["-e", "3", "--fault", "uneven-stages"], "a pipeline of one stage cannot be uneven: add --pp 2"),
        (["-e", "3", "--pp", "2", "--fault", "uneven-stages,layers=2"], "must keep one: the nearest is layers=1"),
        (["-e", "3", "--tp", "2", "--fault", "small-buckets,kb=8"], "has one replica, so no gradients are exchanged"),
        (["-e", "1", "-g", "1", "--fault", "slow-link,ms=1,rank=0"], "a single rank sends no messages"),
        (["help", "faults", "pause", "crash"], "help faults: unexpected word 'crash'"),
        (["help", "faults", "pauze"], "there is no fault 'pauze': did you mean pause?"),
    ],
)  # fmt: skip
def test_a_wrong_fault_is_refused_in_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path))
    monkeypatch.setenv("HARNESS_SITE", "local")
    assert main(words) == 2
    (line,) = (line for line in capsys.readouterr().err.splitlines() if not line.startswith("site:"))
    assert sentence in line
    assert list(tmp_path.iterdir()) == []


def test_a_comparison_shows_which_faults_each_run_had() -> None:
    faulty, plain = (Summary(experiment=as_recorded(asked)) for asked in (DDP(faults=ASKED), DDP()))
    compared = compare(faulty, plain, ("a", "b"))
    shown = configuration_table([compared])
    assert shown.rows == [("faults", "data-stall,ms=20,rank=1 pause,ms=5", "–")]


def test_every_wrong_fault_of_a_request_is_named() -> None:
    with pytest.raises(RequestError) as refused:
        build_experiment([("-e", "1"), ("--fault", ("a", "pause,ms=5", "b"))], [], all_options())
    assert [line[:29] for line in str(refused.value).splitlines()] == [
        "--fault: there is no fault 'a", "--fault: there is no fault 'b",
    ]  # fmt: skip


def test_the_list_has_every_fault_with_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "faults"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n{name} " in shown for name in FAULTS)
    assert main(["help", "faults", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in listed] == list(FAULTS)
    assert main(["help", "faults", "pause"]) == 0
    one = capsys.readouterr().out
    assert "--fault pause,ms=…[,rank=all][,every=1]" in one
    assert "data-stall" not in one
