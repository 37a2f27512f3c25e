"""What NCCL does on the wire is asked for like anything else: checked, recorded, in the name, exported on GPUs."""

from __future__ import annotations

import json

import pytest
from pydantic import TypeAdapter

from harness.experiment.exercises import DDP, EXERCISES, CommTests, Experiment, Recorded
from harness.experiment.parse import all_options, build_experiment, command_of
from harness.launch.job import Job, Machine, resolve
from harness.launch.render import render
from harness.site.site import load_site
from tests.launch.launch_shared import exported

HERE = Machine(cores=8, gpus=0, has_nsys=True, python="python", runs_dir="/runs")
ASKED = {"no_ib": True, "nccl_p2p_level": "LOC", "nccl_settings": ("ALGO=Ring", "IB_HCA=mlx5_0;$HOME")}


def job(asked: Experiment, site: str = "leonardo", **env: str) -> Job:
    loaded = load_site(site)
    return resolve(asked, loaded.model_copy(update={"env": {**loaded.env, **env}}), HERE)


def nccl_of(asked: Experiment, **env: str) -> list[str]:
    return [each for each in exported(render(job(asked, **env))) if each.startswith("NCCL_")]


@pytest.mark.parametrize("cls", EXERCISES.values())
def test_every_exercise_exports_what_was_asked_and_text_stays_text(cls: type[Experiment]) -> None:
    asked = cls.model_validate(ASKED | {"nccl_debug": True})
    more = ",TUNING" if cls is CommTests else ""
    assert nccl_of(asked)[-8:] == [
        "NCCL_IB_DISABLE=1",
        "NCCL_IBEXT_DISABLE=1",
        "NCCL_P2P_LEVEL=LOC",
        "NCCL_ALGO=Ring",
        "NCCL_IB_HCA='mlx5_0;$HOME'",
        "NCCL_DEBUG=INFO",
        f"NCCL_DEBUG_SUBSYS=INIT,GRAPH,NET,ENV{more}",
        'NCCL_DEBUG_FILE="$RUN_DIR/nccl/%h.%p.log"',
    ]
    assert not {"NCCL_IB_DISABLE", "NCCL_DEBUG_FILE"} & job(cls.model_validate({})).env.keys()


def test_the_request_wins_over_the_site() -> None:
    env = {"NCCL_ALGO": "Tree", "NCCL_DEBUG": "TRACE", "NCCL_P2P_LEVEL": "SYS"}
    lines = nccl_of(DDP.model_validate(ASKED | {"nccl_debug": True}), **env)
    assert {"NCCL_ALGO=Ring", "NCCL_DEBUG=INFO", "NCCL_P2P_LEVEL=LOC"} <= {*lines}
    assert not [line for line in lines if line.endswith(("Tree", "TRACE", "SYS"))]


def test_the_run_makes_the_folder_of_the_log_and_no_other_run_has_one() -> None:
    assert job(DDP(nccl_debug=True)).folders == ["nccl"]
    assert job(DDP()).folders == []


def test_the_name_says_what_distinguishes() -> None:
    plain, loud = job(DDP()), job(DDP(nccl_debug=True))
    assert plain.run_name == loud.run_name
    assert "-noib1-p2pLOC-nccl-ALGO+IB_HCA-" in job(DDP.model_validate(ASKED)).run_name[1]
    many = tuple(f"{'A' * 60}{number}=/x" for number in range(50))
    assert len("".join(job(DDP(nccl_settings=many)).run_name)) < 240
    assert "/" not in "".join(job(DDP(nccl_settings=many)).run_name)


def test_the_record_and_the_command_bring_them_back() -> None:
    asked = DDP.model_validate(ASKED | {"nccl_debug": True})
    recorded = TypeAdapter[object](Recorded)
    assert recorded.validate_python(json.loads(recorded.dump_json(asked))) == asked
    assert command_of(asked) == [
        *("-e", "1", "--no-ib", "--nccl-p2p-level", "LOC", "--nccl", "ALGO=Ring"),
        *("--nccl", "IB_HCA=mlx5_0;$HOME", "--nccl-debug"),
    ]


def given(*pairs: tuple[str, object]) -> Experiment:
    return build_experiment([("-e", "1"), *pairs], [], all_options())


def test_nccls_prefix_may_be_written_or_left_out() -> None:
    assert given(("--nccl", "NCCL_ALGO=Ring")) == given(("--nccl", "ALGO=Ring"), ("--nccl", "NCCL_ALGO=Ring"))
    assert given(("--no-ib", True), ("--nccl", "IB_DISABLE=1")).no_ib
