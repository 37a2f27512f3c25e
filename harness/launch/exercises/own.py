"""The programs of a training of the user's own: a launcher, the script as it is, and what the observer reads.

Nothing of the checkout is on the training's path but the observer: the user's own packages may have any name.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.common.faults import parse_fault, wrong_device
from harness.common.paths import ROOT, expanded
from harness.experiment.own import Own
from harness.launch.argv import MASTER_ADDR, MASTER_PORT, NODE, RUN_DIR, Word, join
from harness.launch.exercises.accelerate import accelerate_files
from harness.launch.exercises.base import Command, CommandPlace, ExercisePlan, Launch, Target
from harness.launch.exercises.own_missing import program_missing, python_missing, without_torch
from harness.launch.exercises.training import (
    around_each_rank,
    paraver_command,
    whole_trace_list,
    wrong_trace_list,
)
from harness.site.site import Site

START_RANKS = f"{ROOT}/exercises/utils/launch.py"
OBSERVER = f"{ROOT}/harness/observe/site"
OBSERVE_FILE = "observe.json"


class OwnLaunch(Launch[Own]):
    """A launcher on each node, or the user's command as it is."""

    takes_weights = False
    usual_cpu_ranks = 1

    def site_for(self, asked: Own, site: Site) -> Site:
        return site if asked.python is None else site.model_copy(update={"container": None})

    def python(self, asked: Own) -> str | None:
        return asked.python

    def uses_our_python(self, asked: Own) -> bool:
        return asked.python is None and asked.form != "command"

    def defaults(self, asked: Own, target: Target) -> dict[str, Any]:
        if asked.form == "command":
            return {}
        ranks = asked.nodes * target.gpus_per_node
        return {"launcher": asked.launcher or ("torchrun" if ranks > 1 else "python")}

    def misfits(self, asked: Own, resolved: Own | None, target: Target) -> Iterator[str]:
        yield from wrong_device(map(parse_fault, asked.faults), target.device)

    def warnings(self, asked: Own) -> Iterator[str]:
        if warning := without_torch(asked):
            yield warning

    def missing(self, asked: Own, site: Site, environ: Mapping[str, str]) -> Iterator[str]:
        yield from program_missing(asked, site, environ)
        yield from python_missing(asked, site)
        yield from wrong_trace_list(asked)

    def with_whole_paths(self, asked: Own) -> Own:
        python = asked.python
        if python is not None and "/" not in python and not Path(python).exists():
            python = shutil.which(python) or python
        whole = super().with_whole_paths(asked.model_copy(update={"python": python}))
        return whole.model_copy(update={"python_trace": whole_trace_list(asked)})

    def plan(self, asked: Own, place: CommandPlace) -> ExercisePlan:
        training = Command(
            "training", _argv(asked, place), observed=place.profiler == "nsys", folder=asked.start_in
        )
        files = {OBSERVE_FILE: observe_text(asked, place.profiler)}
        if asked.launcher == "accelerate":
            files |= accelerate_files(asked, "ddp")
        return ExercisePlan(
            [training],
            [paraver_command(place)] if asked.nsys2prv else [],
            files,
            folders=list(_folders(asked)),
            environment={
                "HARNESS_OBSERVE": join(RUN_DIR, f"/{OBSERVE_FILE}"),
            },
            python_path=OBSERVER,
            keeps_users=True,
            expects=[],
        )


def observe_text(asked: Own, profiler: str) -> str:
    """What the observer in each rank reads."""
    told = {
        "profiler": profiler,
        "window": asdict(asked.window),
        "profile_memory": False,
        "faults": list(asked.faults),
    }
    return json.dumps(told, indent=1) + "\n"


def _argv(asked: Own, place: CommandPlace) -> list[Word]:
    node: list[Word] = [f"NNODES={asked.nodes}", join("NODE_RANK=", NODE)]
    if asked.form == "command":
        return ["env", *node, _found_here(asked), *asked.arguments]
    python = place.python
    ranks = around_each_rank(asked, place)
    if asked.launcher == "python":
        return ["env", *node, python, *ranks, *asked.command]
    words: list[Word] = [
        python,
        START_RANKS,
        asked.launcher or "torchrun",
        *_LAUNCHERS[asked.launcher](asked),
    ]
    # A launcher has a flag of its own for a module, unless a script of ours stands before the module.
    module = ["--module"] if asked.form == "module" and not ranks else []
    program = list(asked.command) if ranks or not module else list(asked.command[1:])
    return [*words, *module, *ranks, *program]


def _found_here(asked: Own) -> str:
    """The program's name as `env` finds it: one that only lies in the folder gets its path."""
    name = asked.program
    is_here = "/" not in name and os.access(Path(asked.start_in) / name, os.X_OK)
    return f"./{name}" if is_here and shutil.which(name) is None else name


def _torchrun(asked: Own) -> list[Word]:
    size = [f"--nnodes={asked.nodes}", f"--nproc-per-node={asked.gpus_per_node}"]
    meeting: list[Word] = ["--master-addr", join(MASTER_ADDR), "--master-port", join(MASTER_PORT)]
    return [*size, "--node-rank", join(NODE), *meeting]


def _accelerate(_asked: Own) -> list[Word]:
    config: list[Word] = ["--config_file", join(RUN_DIR, "/accelerate_node", NODE, ".yaml")]
    return [*config, "--main_process_ip", join(MASTER_ADDR), "--main_process_port", join(MASTER_PORT)]


def _deepspeed(asked: Own) -> list[Word]:
    world = {f"node{node}": list(range(asked.gpus_per_node or 1)) for node in range(asked.nodes)}
    meeting: list[Word] = [join("--master_addr=", MASTER_ADDR), join("--master_port=", MASTER_PORT)]
    return [json.dumps(world), join(NODE), *meeting]


_LAUNCHERS = {"torchrun": _torchrun, "accelerate": _accelerate, "deepspeed": _deepspeed, None: _torchrun}


def _folders(asked: Own) -> Iterator[Word]:
    """What a container must see: where it starts, and the script's folder with the modules beside it."""
    yield asked.start_in
    if asked.form == "script":
        yield str((Path(asked.start_in) / expanded(asked.program)).parent)


LAUNCH = OwnLaunch()
