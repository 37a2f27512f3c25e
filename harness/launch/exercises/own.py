"""The programs of a training of the user's own: a launcher, the script as it is, and what the observer reads. Nothing
of the checkout is on the training's path but the observer: the user's own packages may have any name."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from harness.common.display.printable import printable
from harness.common.errors import nearest
from harness.common.faults.fault import parse_fault, wrong_device
from harness.common.paths import ROOT, expanded
from harness.common.run_folder.run_files import HOSTS, OBSERVE
from harness.common.system.training_python import TrainingPython, ask_python
from harness.experiment.own import OwnTraining
from harness.launch.argv import MASTER_ADDR, MASTER_PORT, NODE, RUN_DIR, Word, join
from harness.launch.exercises import accelerate_settings
from harness.launch.exercises.base import (
    MODULES,
    TORCHRUN_JSC,
    CommandPlace,
    ExercisePlan,
    Launch,
    LaunchCommand,
    LaunchTarget,
    program,
    torchrun,
    torchrun_options,
)
from harness.launch.exercises.training import (
    accelerate_options,
    around_each_rank,
    paraver_command,
    ranks_of,
    whole_nsys_files,
    wrong_trace_list,
)
from harness.site.site import Site

OBSERVER = f"{ROOT}/harness/observe/site"


def program_missing(experiment: OwnTraining, site: Site, environ: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with the words after `--`."""
    folder, name = Path(experiment.start_in), experiment.program
    path = folder / name
    if not folder.is_dir():
        yield f"{folder}: the folder where the training starts is not there any more"
    elif experiment.form == "module":
        yield from _wrong_module(folder, name)
    elif path.is_dir():
        yield f"{printable(name)} is a folder: name a script in it"
    elif experiment.form == "command":
        yield from _wrong_command(path, name, site, environ)
    elif not path.is_file() and not (site.container is not None and Path(name).is_absolute()):  # of the image
        yield f"{printable(name)}: there is no such script in {path.parent}{_near(path, name)}"


def _wrong_module(folder: Path, name: str) -> Iterator[str]:
    """A module whose first package lies in the folder must be there; any other may be installed."""
    parts = name.split(".")
    place = folder.joinpath(*parts)
    if not all(part.isidentifier() for part in parts):
        yield f"-m {printable(name)}: is not the name of a module; a script is named without -m"
    elif (folder / parts[0]).is_dir() and not any(
        each.with_name(f"{each.name}.py").is_file() for each in (place, place / "__main__")
    ):
        yield f"-m {name}: there is no such module in {folder}"


def _wrong_command(path: Path, name: str, site: Site, environ: Mapping[str, str]) -> Iterator[str]:
    if "/" not in name and shutil.which(name, path=environ.get("PATH")) is not None:
        return
    if path.is_file():
        if not os.access(path, os.X_OK):
            yield f"{printable(name)} is not executable: say what runs it, as in -- bash {printable(name)}"
    elif site.container is None and not _may_bring_programs(site):
        yield f"{printable(name)}: there is no such program on PATH or file in {path.parent}{_near(path, name)}"


def _may_bring_programs(site: Site) -> bool:
    """Whether a module or a line of the site may bring programs and packages."""
    return bool(site.modules or site.setup or site.node_setup)


def _near(path: Path, name: str) -> str:
    """The file of that folder with the most similar name."""
    with suppress(OSError):
        names = [each.name for each in path.parent.iterdir() if each.is_file() and not each.name.startswith(".")]
        if near := nearest(path.name, names):
            return f": did you mean {printable(str(Path(name).with_name(near)))}?"
    return ""


def python_missing(experiment: OwnTraining, site: Site) -> Iterator[str]:
    """What is wrong with the Python that trains, and what its launcher needs of it."""
    if experiment.python is None:
        return
    found = ask_python(experiment.python)
    if isinstance(found, str):
        yield f"{printable(experiment.python)} {found}: name another with --python, or none for that of the site"
    elif experiment.form != "command" and not _may_bring_programs(site):
        yield from _lacking(experiment, found)


def _lacking(experiment: OwnTraining, training_python: TrainingPython) -> Iterator[str]:
    needed = ["torch"] if experiment.launcher != "python" else []
    needed += [experiment.launcher] if experiment.launcher in ("accelerate", "deepspeed") else []
    for name in needed:
        if name not in training_python.modules:
            whom = f"which {experiment.launcher} needs" if name == "torch" else "which --launcher asks for"
            yield (
                f"{experiment.python} has no {name}, {whom}: install it there, activate the environment that "
                f"has it, or "
                "name another Python with --python"
            )
            return


class OwnLaunch(Launch[OwnTraining]):
    """A launcher on each node, or the user's command as it is."""

    takes_weights = False
    usual_cpu_ranks = 1

    def site_for(self, experiment: OwnTraining, site: Site) -> Site:
        return site if experiment.python is None else site.model_copy(update={"container": None})

    def python(self, experiment: OwnTraining) -> str | None:
        return experiment.python

    def uses_our_python(self, experiment: OwnTraining) -> bool:
        return experiment.python is None and experiment.form != "command"

    def profiler(self, experiment: OwnTraining) -> Literal["none"] | None:
        return "none" if experiment.memory else None

    def defaults(self, experiment: OwnTraining, target: LaunchTarget) -> dict[str, Any]:
        if experiment.form == "command":
            return {}
        ranks = experiment.nodes * target.gpus_per_node
        return {"launcher": "torchrun" if ranks > 1 else "python"}

    def misfits(self, experiment: OwnTraining, resolved: OwnTraining | None, target: LaunchTarget) -> Iterator[str]:
        for word in ("::", ":then:"):
            if word in experiment.command:
                yield f"{word} cannot be a word of your program: in the job's script it separates parts of a command"
        yield from wrong_device(map(parse_fault, experiment.faults), target.device)

    def notes(self, experiment: OwnTraining) -> Iterator[str]:
        if experiment.accelerate_config is not None:
            yield from accelerate_settings.notes(experiment.accelerate_config)

    def missing(self, experiment: OwnTraining, site: Site, environ: Mapping[str, str]) -> Iterator[str]:
        yield from program_missing(experiment, site, environ)
        yield from python_missing(experiment, site)
        yield from wrong_trace_list(experiment)

    def with_whole_paths(self, experiment: OwnTraining) -> OwnTraining:
        python = experiment.python
        if python is not None and "/" not in python and not Path(python).exists():
            python = shutil.which(python) or python
        changes: dict[str, object] = {"python": python}
        if experiment.launcher == "accelerate" and experiment.accelerate_config is None:
            users = accelerate_settings.users_file(os.environ)
            changes["accelerate_config"] = None if users is None else str(users)
        whole = super().with_whole_paths(experiment.model_copy(update=changes))
        return whole.model_copy(update=whole_nsys_files(experiment))

    def plan(self, experiment: OwnTraining, place: CommandPlace) -> ExercisePlan:
        why = "" if experiment.launcher in (None, "python") else ranks_of(experiment)
        observed = place.profiler == "nsys"
        training = LaunchCommand("training", _argv(experiment, place), observed, folder=experiment.start_in, why=why)
        told: dict[str, object] = {"profiler": place.profiler, "launcher": experiment.launcher}
        told["window"] = asdict(experiment.window)
        told |= {"module_ranges": experiment.module_ranges} if experiment.module_ranges else {}
        told |= {"memory": True} if experiment.memory else {}
        files = {OBSERVE.name: json.dumps(told | {"faults": list(experiment.faults)}, indent=1) + "\n"}
        # A container must see where it starts, and the script's folder with the modules beside it.
        folders: list[Word] = [experiment.start_in]
        if experiment.form == "script":
            folders.append(str((Path(experiment.start_in) / expanded(experiment.program)).parent))
        if experiment.launcher == "accelerate":
            files |= accelerate_settings.accelerate_files(experiment, "ddp", experiment.accelerate_config)
        if experiment.launcher == "deepspeed":
            files[HOSTS.name] = "".join(
                f"node{node} slots={experiment.gpus_per_node}\n" for node in range(experiment.nodes)
            )
        return ExercisePlan(
            [training],
            [paraver_command(place, experiment)] if experiment.nsys2prv else [],
            files,
            folders=folders,
            environment={"HARNESS_OBSERVE": join(RUN_DIR, f"/{OBSERVE.name}")},
            python_path=OBSERVER,
            keeps_users=True,
            expects=[],
        )


def _argv(experiment: OwnTraining, place: CommandPlace) -> list[Word]:
    node: list[Word] = [f"NNODES={experiment.nodes}", f"NODE_RANK={NODE}"]
    if experiment.form == "command":
        name = experiment.program  # as `env` finds it: one that only lies in the folder gets its path
        is_here = "/" not in name and os.access(Path(experiment.start_in) / name, os.X_OK)
        return ["env", *node, f"./{name}" if is_here and shutil.which(name) is None else name, *experiment.arguments]
    python = place.python
    ranks = around_each_rank(experiment, place)
    if experiment.launcher == "python":
        return ["env", *node, python, *ranks, *experiment.command]
    words = _launcher(experiment, place, experiment.launcher or "torchrun")
    # A launcher has a flag of its own for a module, unless a script of ours stands before the module.
    module = ["--module"] if experiment.form == "module" and not ranks else []
    program = list(experiment.command) if ranks or not module else list(experiment.command[1:])
    return [*words, *module, *ranks, *program]


def _launcher(experiment: OwnTraining, place: CommandPlace, name: str) -> list[Word]:
    if name == "torchrun" and place.site.network.torchrun == TORCHRUN_JSC:
        return torchrun(experiment, place)
    found = program(place.python, name)
    if experiment.python is not None and not os.access(str(found[0]), os.X_OK):  # a package without its script
        found = [experiment.python, "-m", MODULES[name]]
    if name == "accelerate":
        return [*found, "launch", *accelerate_options()]
    return [*found, *(torchrun_options(experiment) if name == "torchrun" else _deepspeed(experiment))]


def _deepspeed(experiment: OwnTraining) -> list[Word]:
    """Its launcher on each node, which logs in nowhere."""
    meeting: list[Word] = [join("--master_addr=", MASTER_ADDR), join("--master_port=", MASTER_PORT)]
    return [join("--hostfile=", RUN_DIR, f"/{HOSTS.name}"), "--no_ssh", f"--node_rank={NODE}", *meeting]


LAUNCH = OwnLaunch()
