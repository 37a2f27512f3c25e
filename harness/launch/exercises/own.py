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
from typing import Any

from harness.common.errors import nearest
from harness.common.faults import parse_fault, wrong_device
from harness.common.paths import ROOT, expanded
from harness.common.printable import printable
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


def program_missing(asked: OwnTraining, site: Site, environ: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with the words after `--`."""
    folder = Path(asked.start_in)
    if not folder.is_dir():
        yield f"{folder}: the folder where the training starts is not there any more"
    elif asked.form == "module":
        yield from _wrong_module(folder, asked)
    elif (folder / asked.program).is_dir():
        yield f"{printable(asked.program)} is a folder{_script_in(folder / asked.program, asked.program)}"
    elif asked.form == "script":
        yield from _wrong_script(folder, asked.program, in_container=site.container is not None)
    else:
        yield from _wrong_command(folder, asked.program, site, environ)


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


def _wrong_module(folder: Path, asked: OwnTraining) -> Iterator[str]:
    """A module whose first package lies in the folder must be there; any other may be installed."""
    parts = asked.program.split(".")
    if not all(part.isidentifier() for part in parts):
        hint = f": a script is named without -m, as in -- {printable(asked.program)}"
        yield f"-m {printable(asked.program)}: is not the name of a module{hint if '/' in asked.program else ''}"
        return
    place, first = folder.joinpath(*parts), folder / parts[0]
    if any(each.with_name(f"{each.name}.py").is_file() for each in (place, place / "__main__")):
        return
    if first.is_dir() and _names(first):
        near = nearest(parts[-1], [Path(name).stem for name in _names(place.parent)])
        hint = f": did you mean -m {'.'.join([*parts[:-1], near])}?" if near else ""
        yield f"-m {asked.program}: there is no such module in {folder}{hint}"


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


def python_missing(asked: OwnTraining, site: Site) -> Iterator[str]:
    """What is wrong with the Python that trains, and what its launcher needs of it."""
    if asked.python is None:
        yield from _lacking_ours(asked, site)
        return
    found = ask_python(asked.python)
    if isinstance(found, str):
        yield f"{printable(asked.python)} {found}: name another with --python, or none for that of the site"
    elif asked.form != "command" and not (site.modules or site.setup or site.node_setup):  # which may bring packages
        yield from _lacking(asked, found)


def _lacking(asked: OwnTraining, found: TrainingPython) -> Iterator[str]:
    needed = ["torch"] if asked.launcher != "python" else []
    needed += [asked.launcher] if asked.launcher in ("accelerate", "deepspeed") else []
    for name in needed:
        if name not in found.modules:
            whom = f"which {asked.launcher} needs" if name == "torch" else "which --launcher asks for"
            yield (
                f"{asked.python} has no {name}, {whom}: install it there, activate the environment that has it, or "
                "name another Python with --python"
            )
            return


def _lacking_ours(asked: OwnTraining, site: Site) -> Iterator[str]:
    """Our own Python trains on this machine: it has what the training extra brings."""
    launcher = asked.launcher
    if launcher not in ("accelerate", "deepspeed") or site.container is not None or site.job_python:
        return
    here = backend_of(site).RUNS_HERE and importlib.util.find_spec("torch") is not None
    if here and importlib.util.find_spec(launcher) is None:
        yield f"--launcher {launcher}: our Python has no {launcher}: name one that has with --python"


HOSTS_FILE = "hostfile"
USUAL_HOSTS_FILE = Path("/job/hostfile")  # that deepspeed reads if none is named
OBSERVER = f"{ROOT}/harness/observe/site"
OBSERVE_FILE = "observe.json"


class OwnLaunch(Launch[OwnTraining]):
    """A launcher on each node, or the user's command as it is."""

    takes_weights = False
    usual_cpu_ranks = 1

    def site_for(self, asked: OwnTraining, site: Site) -> Site:
        return site if asked.python is None else site.model_copy(update={"container": None})

    def python(self, asked: OwnTraining) -> str | None:
        return asked.python

    def uses_our_python(self, asked: OwnTraining) -> bool:
        return asked.python is None and asked.form != "command"

    def defaults(self, asked: OwnTraining, target: LaunchTarget) -> dict[str, Any]:
        if asked.form == "command":
            return {}
        ranks = asked.nodes * target.gpus_per_node
        return {"launcher": asked.launcher or ("torchrun" if ranks > 1 else "python")}

    def misfits(self, asked: OwnTraining, resolved: OwnTraining | None, target: LaunchTarget) -> Iterator[str]:
        for word in ("::", ":then:"):
            if word in asked.command:
                yield f"{word} cannot be a word of your program: in the job's script it separates parts of a command"
        yield from wrong_device(map(parse_fault, asked.faults), target.device)

    def warnings(self, asked: OwnTraining, site: Site) -> Iterator[str]:
        python = asked.python if asked.launcher == "python" else None
        if asked.form == "command":
            python = shutil.which(asked.program) if re.fullmatch(r"python[\d.]*", asked.label) else None
            python = None if site.container else python
        if python is None or site.modules or site.setup or site.node_setup:  # which may bring packages
            return
        found = ask_python(python)
        if not isinstance(found, str) and "torch" not in found.modules:
            yield (
                f"{python} has no PyTorch: the script is started, and no step of it can be observed; install it there, "
                "or activate the environment that has it"
            )

    def notes(self, asked: OwnTraining, device: DeviceKind) -> Iterator[str]:
        if asked.accelerate_config is not None:
            yield from accelerate_settings.notes(asked, asked.accelerate_config, device == "cuda")
        if asked.launcher == "deepspeed":
            files = [USUAL_HOSTS_FILE, *deepspeed_files(os.environ, asked.start_in) * (asked.nodes > 1)]
            for path in filter(Path.is_file, files):
                yield f"deepspeed does not read {path}: -n and -g say where the ranks run, with this shell's variables"

    def missing(self, asked: OwnTraining, site: Site, environ: Mapping[str, str]) -> Iterator[str]:
        yield from program_missing(asked, site, environ)
        yield from python_missing(asked, site)
        yield from wrong_trace_list(asked)

    def with_whole_paths(self, asked: OwnTraining) -> OwnTraining:
        python = asked.python
        if python is not None and "/" not in python and not Path(python).exists():
            python = shutil.which(python) or python
        changes: dict[str, object] = {"python": python}
        if asked.launcher == "accelerate" and asked.accelerate_config is None:
            users = accelerate_settings.users_file(os.environ)
            changes["accelerate_config"] = None if users is None else str(users)
        whole = super().with_whole_paths(asked.model_copy(update=changes))
        return whole.model_copy(update=whole_nsys_files(asked))

    def plan(self, asked: OwnTraining, place: CommandPlace) -> ExercisePlan:
        why = "" if asked.launcher in (None, "python") else ranks_of(asked)
        observed = place.profiler == "nsys"
        training = LaunchCommand("training", _argv(asked, place), observed, folder=asked.start_in, why=why)
        told: dict[str, object] = {"profiler": place.profiler, "launcher": asked.launcher}
        told |= {"window": asdict(asked.window), "profile_memory": False}
        told |= {"module_ranges": asked.module_ranges} if asked.module_ranges else {}
        files = {OBSERVE_FILE: json.dumps(told | {"faults": list(asked.faults)}, indent=1) + "\n"}
        # A container must see where it starts, and the script's folder with the modules beside it.
        folders: list[Word] = [asked.start_in]
        if asked.form == "script":
            folders.append(str((Path(asked.start_in) / expanded(asked.program)).parent))
        if asked.launcher == "accelerate":
            files |= accelerate_settings.accelerate_files(asked, "ddp", asked.accelerate_config)
        if asked.launcher == "deepspeed":
            files[HOSTS_FILE] = "".join(f"node{node} slots={asked.gpus_per_node}\n" for node in range(asked.nodes))
        return ExercisePlan(
            [training],
            [paraver_command(place, asked)] if asked.nsys2prv else [],
            files,
            folders=folders,
            environment={"HARNESS_OBSERVE": join(RUN_DIR, f"/{OBSERVE_FILE}")},
            python_path=OBSERVER,
            keeps_users=True,
            expects=[],
        )


def _argv(asked: OwnTraining, place: CommandPlace) -> list[Word]:
    node: list[Word] = [f"NNODES={asked.nodes}", f"NODE_RANK={NODE}"]
    if asked.form == "command":
        name = asked.program  # as `env` finds it: one that only lies in the folder gets its path
        is_here = "/" not in name and os.access(Path(asked.start_in) / name, os.X_OK)
        return ["env", *node, f"./{name}" if is_here and shutil.which(name) is None else name, *asked.arguments]
    python = place.python
    ranks = around_each_rank(asked, place)
    if asked.launcher == "python":
        return ["env", *node, python, *ranks, *asked.command]
    words = _launcher(asked, place, asked.launcher or "torchrun")
    # A launcher has a flag of its own for a module, unless a script of ours stands before the module.
    module = ["--module"] if asked.form == "module" and not ranks else []
    program = list(asked.command) if ranks or not module else list(asked.command[1:])
    return [*words, *module, *ranks, *program]


def _launcher(asked: OwnTraining, place: CommandPlace, name: str) -> list[Word]:
    if name == "torchrun" and place.site.network.torchrun == TORCHRUN_JSC:
        return torchrun(asked, place)
    found = program(place.python, name)
    if asked.python is not None and not os.access(str(found[0]), os.X_OK):  # a package without its script
        found = [asked.python, "-m", MODULES[name]]
    if name == "accelerate":
        return [*found, "launch", *accelerate_options()]
    return [*found, *(torchrun_options(asked) if name == "torchrun" else _deepspeed(asked))]


def deepspeed_files(environ: Mapping[str, str], folder: str) -> list[Path]:
    """Where deepspeed, if it logs in to the nodes itself, reads variables for them."""
    name = environ.get("DS_ENV_FILE") or ".deepspeed_env"
    return list(dict.fromkeys([Path.home() / name, Path(folder) / name]))


def _deepspeed(asked: OwnTraining) -> list[Word]:
    """Its launcher on each node, which logs in nowhere."""
    meeting: list[Word] = [join("--master_addr=", MASTER_ADDR), join("--master_port=", MASTER_PORT)]
    return [join("--hostfile=", RUN_DIR, f"/{HOSTS_FILE}"), "--no_ssh", f"--node_rank={NODE}", *meeting]


LAUNCH = OwnLaunch()
