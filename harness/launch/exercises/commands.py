"""The argv of each exercise: which programs run on a node, with which words, in which order.

One function per exercise, chosen by its class. Knows the training scripts' command lines and the launchers
(accelerate, torchrun, DeepSpeed's and Megatron's settings), not the scheduler.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple

import yaml

from harness.common.paths import CONFIGS
from harness.experiment.exercises import DDP, CommTests, DeepSpeed, Experiment, Megatron, Training
from harness.experiment.model import Model
from harness.experiment.options import options_of
from harness.experiment.yaml_file import read_yaml
from harness.launch.argv import MASTER_ADDR, MASTER_PORT, NODE, RUN_DIR, Word, join, parent
from harness.site.site import Site

ACCELERATE = CONFIGS / "accelerate"


@dataclass(frozen=True)
class Command:
    """One program to run on a node."""

    title: str
    argv: list[Word]
    observed: bool = False  # run under the profiler
    contained: bool = True  # run inside the site's container, if it has one
    decisive: bool = True  # its failure is the job's


class Place(NamedTuple):
    """What a command needs to know of where it runs."""

    site: Site
    device: Literal["cuda", "cpu"]
    model: Model | None
    model_file: str | None  # None: the run brings its own
    checkpoint: Word | None
    data: Word | None  # instruction data
    megatron_data: Word | None  # prefix of .bin and .idx; then there is no `data`
    python: str  # that has PyTorch, inside the container if there is one
    launcher_python: str  # on the node
    checkout: str
    profiler: str


@dataclass(frozen=True)
class Plan:
    """What an exercise runs: on every node, then on the first; its small files; folders a container must see."""

    commands: list[Command]
    after: list[Command] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    folders: list[Word] = field(default_factory=list)


def commands_of(asked: Experiment, place: Place) -> Plan:
    """The plan of a fitted experiment (GPUs per node, model and batch are filled in)."""
    plans: dict[type[Experiment], Callable[[Any, Place], Plan]] = {
        CommTests: _comm_tests,
        DDP: _ddp,
        DeepSpeed: _deepspeed,
        Megatron: _megatron,
    }
    return plans[type(asked)](asked, place)


def _script(place: Place, asked: Experiment, name: str) -> str:
    return f"{place.checkout}/exercises/{asked.folder}/{name}"


def _comm_tests(asked: CommTests, place: Place) -> Plan:
    script = _script(place, asked, "comm_tests.py")
    run_dir: list[Word] = ["--run-dir", join(RUN_DIR)]
    network = place.site.network
    rate: list[Word] = ["--expected-rate-gbps", str(network.expected_gbps)] if network.expected_gbps else []
    links: list[Word] = []
    for flag, limit in (
        ("--link-gbps-intra", network.link_intra_gbps),
        ("--link-gbps-inter", network.link_inter_gbps),
    ):
        links += [flag, str(limit)] if limit else []
    size: list[Word] = ["--max-bytes", str(asked.max_bytes)] if asked.max_bytes else []
    device: list[Word] = ["--device", "cpu"] if place.device == "cpu" else []
    node_tools: list[Word] = [
        place.launcher_python,
        script,
        "topology",
        *run_dir,
        "--node",
        join(NODE),
        *rate,
    ]
    collectives: list[Word] = [
        *_torchrun(asked, place),
        script,
        "collectives",
        *run_dir,
        *device,
        *size,
        *links,
    ]
    verdict: list[Word] = [
        place.launcher_python,
        script,
        "verdict",
        *run_dir,
        "--nodes",
        str(asked.nodes),
        *rate,
    ]
    return Plan(
        commands=[
            Command(title="node topology", argv=node_tools, contained=False),  # ibstat is the node's
            Command(title="collective benchmark", argv=collectives),
        ],
        after=[Command(title="verdict over all nodes", argv=verdict, contained=False)],
    )


def _ddp(asked: DDP, place: Place) -> Plan:
    files = _accelerate_files(asked, place, "ddp", mixed=asked.mixed_precision)
    script = asked.script or "train.py"
    own = PurePosixPath(script).is_absolute()
    path = script if own else _script(place, asked, script)
    argv = [*_accelerate(asked, place), path, *_training_words(asked, place)]
    plan = _training_plan(asked, place, argv, files)
    if own:
        plan.folders.append(str(PurePosixPath(script).parent))  # with what it imports from beside it
    return plan


def _deepspeed(asked: DeepSpeed, place: Place) -> Plan:
    from harness.launch.exercises.deepspeed_config import deepspeed_config  # noqa: PLC0415 - only this exercise needs it

    settings = {
        option.flag.deepspeed: getattr(asked, option.field)
        for option in options_of(type(asked))
        if option.flag.deepspeed is not None
    }
    config = deepspeed_config(
        **settings,
        mixed_precision=asked.mixed_precision,
        activation_checkpointing=asked.activation_checkpointing,
        micro_batch_size=asked.micro_batch_size or 1,
        gradient_accumulation_steps=asked.gradient_accumulation_steps,
        tiny=place.model is not None and place.model.tiny_twin is None,
    )
    files = _accelerate_files(asked, place, "deepspeed", mixed=asked.mixed_precision)
    files["ds_config.json"] = json.dumps(config.model_dump(by_alias=True, exclude_none=True), indent=2) + "\n"
    words = [*_training_words(asked, place), "--deepspeed-config", join(RUN_DIR, "/ds_config.json")]
    argv = [*_accelerate(asked, place), _script(place, asked, "train.py"), *words]
    return _training_plan(asked, place, argv, files)


def _megatron(asked: Megatron, place: Place) -> Plan:
    prefix: list[Word] = ["--data-path", place.megatron_data] if place.megatron_data else []
    if asked.engine == "megatron-lm":
        from harness.launch.exercises.megatron_args import pretrain_gpt_argv  # noqa: PLC0415 - only this engine needs it

        observed = place.profiler == "nsys"
        script = pretrain_gpt_argv(asked, _model(place), profile=observed, mock_data=not prefix)
        return _training_plan(asked, place, [*_torchrun(asked, place), *script, *prefix], {})
    argv = [
        *_torchrun(asked, place),
        _script(place, asked, "train.py"),
        *_training_words(asked, place),
        *prefix,
    ]
    return _training_plan(asked, place, argv, {})


def _model(place: Place) -> Model:
    if place.model is None:
        raise ValueError("a training has a model")
    return place.model


def _training_plan(asked: Training, place: Place, argv: list[Word], files: dict[str, str]) -> Plan:
    observed = place.profiler == "nsys"
    if place.model is not None and place.model_file is None:
        files["model.yaml"] = yaml.safe_dump(place.model.model_dump(), sort_keys=False)
    convert: list[Word] = [place.launcher_python, "-m", "harness", "paraver", join(RUN_DIR)]
    after = (
        [Command(title="Paraver trace", argv=convert, contained=False, decisive=False)]
        if asked.nsys2prv
        else []
    )
    training = Command(title="training", argv=argv, observed=observed)
    return Plan([training], after, files, _folders(place))


def _folders(place: Place) -> list[Word]:
    """What a container must see of the command's own words: the checkout and the run are seen anyway."""
    prefix = parent(place.megatron_data) if place.megatron_data else None
    return [path for path in (place.checkpoint, place.data, prefix) if path]


def _training_words(asked: Training, place: Place) -> list[Word]:
    model: Word = place.model_file if place.model_file else join(RUN_DIR, "/model.yaml")
    words: list[Word] = ["--run-dir", join(RUN_DIR), "--model", model]
    if place.checkpoint is not None:
        words += ["--checkpoint", place.checkpoint]
    if place.data is not None:
        words += ["--data", place.data]
    for option in options_of(type(asked)):
        words += option.arguments(getattr(asked, option.field))
    words += ["--profiler", place.profiler]
    return [*words, "--device", "cpu"] if place.device == "cpu" else words


def _accelerate(asked: Training, place: Place) -> list[Word]:
    return [
        place.python,
        "-m",
        "exercises.utils.launch",
        "accelerate",
        "--config_file",
        join(RUN_DIR, "/accelerate_node", NODE, ".yaml"),
        "--main_process_ip",
        join(MASTER_ADDR),
        "--main_process_port",
        join(MASTER_PORT),
    ]


def _accelerate_files(asked: Training, place: Place, base: str, *, mixed: bool) -> dict[str, str]:
    """accelerate's own configuration, one file per node: its machine rank is not its neighbour's."""
    path = ACCELERATE / f"{base}.yaml"
    common = dict(read_yaml(path, "accelerate file")) | {
        "num_machines": asked.nodes,
        "num_processes": asked.world_size,
        "mixed_precision": "bf16" if mixed else "no",
    }
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # 10× faster: a dry run writes one per node
    return {
        f"accelerate_node{node}.yaml": yaml.dump(
            common | {"machine_rank": node}, Dumper=dumper, sort_keys=False
        )
        for node in range(asked.nodes)
    }


def _torchrun(asked: Experiment, place: Place) -> list[Word]:
    return [
        place.python,
        "-m",
        "exercises.utils.launch",
        "torchrun",
        f"--nnodes={asked.nodes}",
        f"--nproc-per-node={asked.gpus_per_node}",
        "--node-rank",
        join(NODE),
        "--master-addr",
        join(MASTER_ADDR),
        "--master-port",
        join(MASTER_PORT),
    ]
