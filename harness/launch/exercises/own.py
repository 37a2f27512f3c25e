"""The programs of a training of the user's own: a launcher, the script as it is, and what the observer reads. Nothing
of the checkout is on the training's path but the observer: the user's own packages may have any name."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from harness.common.errors import nearest
from harness.common.faults import parse_fault, wrong_device
from harness.common.paths import ROOT, expanded
from harness.common.printable import printable
from harness.common.run_files import HOSTS, OBSERVE
from harness.common.training_python import TrainingPython, ask_python
from harness.experiment.own import OwnTraining
from harness.launch.argv import MASTER_ADDR, MASTER_PORT, NODE, RUN_DIR, Word, join
from harness.launch.backends.registry import backend_of
from harness.launch.exercises import accelerate_settings
from harness.launch.exercises.base import (
    MODULES,
    TORCHRUN_JSC,
    CommandPlace,
    DeviceKind,
    ExercisePlan,
    FieldDefault,
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

_SHELL_NAMES = (".sh", ".bash", ".zsh", ".sbatch", ".slurm")
USUAL_HOSTS_FILE = Path("/job/hostfile")  # that deepspeed reads if none is named
OBSERVER = f"{ROOT}/harness/observe/site"


def program_missing(experiment: OwnTraining, site: Site, environ: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with the words after `--`."""
    folder = Path(experiment.start_in)
    if not folder.is_dir():
        yield f"{folder}: the folder where the training starts is not there any more"
    elif experiment.form == "module":
        yield from _wrong_module(folder, experiment)
    elif (folder / experiment.program).is_dir():
        yield (
            f"{printable(experiment.program)} is a folder{_script_in(folder / experiment.program, experiment.program)}"
        )
    elif experiment.form == "script":
        yield from _wrong_script(folder, experiment.program, in_container=site.container is not None)
    else:
        yield from _wrong_command(folder, experiment.program, site, environ)


def _wrong_script(folder: Path, name: str, in_container: bool) -> Iterator[str]:
    path = folder / name
    if not path.exists():
        if not (in_container and Path(name).is_absolute()):  # it may be one of the image
            yield f"{printable(name)}: there is no such script in {path.parent}{_near(path, name, _is_python)}"
    elif not path.is_file():
        yield f"{printable(name)} is no file"
    elif not os.access(path, os.R_OK):
        yield f"{printable(name)} cannot be read (Permission denied)"


def _script_in(folder: Path, name: str) -> str:
    """The script of a folder that is probably meant."""
    there = sorted(_names(folder))
    usual = [each for each in there if each in ("train.py", "main.py", "__main__.py")] or there
    return f": name a script in it, such as {printable(str(Path(name) / usual[0]))}" if usual else ""


def _is_python(path: Path) -> bool:
    return path.suffix == ".py"


def _is_shown(path: Path) -> bool:
    return not path.name.startswith(".")


def _names(folder: Path, fits: Callable[[Path], bool] = _is_python) -> list[str]:
    try:
        return [each.name for each in folder.iterdir() if fits(each) and each.is_file()]
    except OSError:
        return []


def _wrong_module(folder: Path, experiment: OwnTraining) -> Iterator[str]:
    """A module whose first package lies in the folder must be there; any other may be installed."""
    parts = experiment.program.split(".")
    if not all(part.isidentifier() for part in parts):
        hint = f": a script is named without -m, as in -- {printable(experiment.program)}"
        yield (
            f"-m {printable(experiment.program)}: is not the name of a "
            f"module{hint if '/' in experiment.program else ''}"
        )
        return
    place, first = folder.joinpath(*parts), folder / parts[0]
    if any(each.with_name(f"{each.name}.py").is_file() for each in (place, place / "__main__")):
        return
    if first.is_dir() and _names(first):
        near = nearest(parts[-1], [Path(name).stem for name in _names(place.parent)])
        hint = f": did you mean -m {'.'.join([*parts[:-1], near])}?" if near else ""
        yield f"-m {experiment.program}: there is no such module in {folder}{hint}"


def _wrong_command(folder: Path, name: str, site: Site, environ: Mapping[str, str]) -> Iterator[str]:
    path = folder / name
    if path.is_file() and ("/" in name or shutil.which(name, path=environ.get("PATH")) is None):
        if not os.access(path, os.X_OK):
            yield f"{printable(name)} {_how_to_start(path, name)}"
    elif path.is_file() or site.container is not None or site.modules or site.setup or site.node_setup:
        return
    elif "/" in name:
        if not path.exists():
            yield f"{printable(name)}: there is no such file{_near(path, name, _is_shown)}"
    elif shutil.which(name, path=environ.get("PATH")) is None:
        yield f"{printable(name)}: there is no such program on PATH, and no such file in {folder}" + (
            _near(path, name, _is_shown) or _near_on_path(name, environ)
        )


def _how_to_start(path: Path, name: str) -> str:
    first = b""
    with suppress(OSError), path.open("rb") as file:
        first = file.readline(200)
    words = first.decode(errors="replace").removeprefix("#!").split() if first.startswith(b"#!") else []
    by_env = len(words) > 1 and words[0].endswith("/env")
    interpreter = Path(words[1 if by_env else 0]).name if words else ""
    if path.suffix in _SHELL_NAMES or interpreter in ("sh", "bash", "zsh"):
        shell = interpreter if interpreter in ("sh", "zsh") else "bash"
        return f"is a shell script: say what runs it, as in -- {shell} {printable(name)}"
    if interpreter.startswith("python"):
        return f"is a Python script without the ending .py: start it as -- python {printable(name)}"
    return f"is not executable: say what runs it, or use chmod +x {printable(name)}"


def _near(path: Path, name: str, fits: Callable[[Path], bool]) -> str:
    """The file of that folder with the most similar name."""
    near = nearest(path.name, _names(path.parent, fits))
    return f": did you mean {printable(str(Path(name).with_name(near)))}?" if near else ""


def _near_on_path(name: str, environ: Mapping[str, str]) -> str:
    names: set[str] = set()
    for place in environ.get("PATH", "").split(os.pathsep):
        with suppress(OSError):
            names.update(os.listdir(place) if place else ())  # noqa: PTH208 - names only, of many folders
    near = nearest(name, [each for each in names if each[:1] == name[:1]])
    return f": did you mean {printable(near)}?" if near else ""


def python_missing(experiment: OwnTraining, site: Site) -> Iterator[str]:
    """What is wrong with the Python that trains, and what its launcher needs of it."""
    if experiment.python is None:
        yield from _lacking_ours(experiment, site)
        return
    found = ask_python(experiment.python)
    if isinstance(found, str):
        yield f"{printable(experiment.python)} {found}: name another with --python, or none for that of the site"
    elif experiment.form != "command" and not (
        site.modules or site.setup or site.node_setup
    ):  # which may bring packages
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


def _lacking_ours(experiment: OwnTraining, site: Site) -> Iterator[str]:
    """Our own Python trains on this machine: it has what the training extra brings."""
    launcher = experiment.launcher
    if launcher not in ("accelerate", "deepspeed") or site.container is not None or site.job_python:
        return
    here = backend_of(site).RUNS_HERE and importlib.util.find_spec("torch") is not None
    if here and importlib.util.find_spec(launcher) is None:
        yield f"--launcher {launcher}: our Python has no {launcher}: name one that has with --python"


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

    def defaults(self, experiment: OwnTraining, target: LaunchTarget) -> dict[str, FieldDefault]:
        if experiment.form == "command":
            return {}
        ranks = experiment.nodes * target.gpus_per_node
        return {"launcher": FieldDefault("torchrun" if ranks > 1 else "python")}

    def misfits(self, experiment: OwnTraining, resolved: OwnTraining | None, target: LaunchTarget) -> Iterator[str]:
        for word in ("::", ":then:"):
            if word in experiment.command:
                yield f"{word} cannot be a word of your program: in the job's script it separates parts of a command"
        yield from wrong_device(map(parse_fault, experiment.faults), target.device)

    def warnings(self, experiment: OwnTraining, site: Site) -> Iterator[str]:
        python = experiment.python if experiment.launcher == "python" else None
        if experiment.form == "command":
            python = shutil.which(experiment.program) if re.fullmatch(r"python[\d.]*", experiment.label) else None
            python = None if site.container else python
        if python is None or site.modules or site.setup or site.node_setup:  # which may bring packages
            return
        found = ask_python(python)
        if not isinstance(found, str) and "torch" not in found.modules:
            yield (
                f"{python} has no PyTorch: the script is started, and no step of it can be observed; install it there, "
                "or activate the environment that has it"
            )

    def notes(self, experiment: OwnTraining, device_kind: DeviceKind) -> Iterator[str]:
        if experiment.accelerate_config is not None:
            yield from accelerate_settings.notes(experiment, experiment.accelerate_config, device_kind == "cuda")
        if experiment.launcher == "deepspeed":
            files = [USUAL_HOSTS_FILE, *deepspeed_files(os.environ, experiment.start_in) * (experiment.nodes > 1)]
            for path in filter(Path.is_file, files):
                yield f"deepspeed does not read {path}: -n and -g say where the ranks run, with this shell's variables"

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
        told |= {"window": asdict(experiment.window), "profile_memory": False}
        told |= {"module_ranges": experiment.module_ranges} if experiment.module_ranges else {}
        files = {OBSERVE.name: json.dumps(told | {"faults": list(experiment.faults)}, indent=1) + "\n"}
        # A container must see where it starts, and the script's folder with the modules beside it.
        folders: dict[Word, str] = {experiment.start_in: "start_in"}
        if experiment.form == "script":
            folders.setdefault(str((Path(experiment.start_in) / expanded(experiment.program)).parent), "command")
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


def deepspeed_files(environ: Mapping[str, str], folder: str) -> list[Path]:
    """Where deepspeed, if it logs in to the nodes itself, reads variables for them."""
    name = environ.get("DS_ENV_FILE") or ".deepspeed_env"
    return list(dict.fromkeys([Path.home() / name, Path(folder) / name]))


def _deepspeed(experiment: OwnTraining) -> list[Word]:
    """Its launcher on each node, which logs in nowhere."""
    meeting: list[Word] = [join("--master_addr=", MASTER_ADDR), join("--master_port=", MASTER_PORT)]
    return [join("--hostfile=", RUN_DIR, f"/{HOSTS.name}"), "--no_ssh", f"--node_rank={NODE}", *meeting]


LAUNCH = OwnLaunch()
