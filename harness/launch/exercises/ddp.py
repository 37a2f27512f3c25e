"""The programs of exercise 1: accelerate with DDP, and the script that a student brings."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Mapping
from pathlib import Path, PurePosixPath

from harness.common.errors import RequestError, nearest
from harness.common.paths import expanded
from harness.experiment.ddp import DDP
from harness.launch.before.lookup import holds, why_missing
from harness.launch.exercises.base import CommandPlace, ExercisePlan, script_path
from harness.launch.exercises.training import TrainingLaunch, accelerated_plan
from harness.site.site import Site

OWN_SCRIPT = "train.py"


class DDPLaunch(TrainingLaunch[DDP]):
    """accelerate starts the exercise's script, or another one."""

    def plan(self, experiment: DDP, place: CommandPlace) -> ExercisePlan:
        script = PurePosixPath(experiment.script or OWN_SCRIPT)
        own = script.is_absolute()
        path = str(script) if own else script_path(experiment, str(script))
        plan = accelerated_plan(experiment, place, "ddp", path)
        if own:
            plan.folders.append(str(script.parent))  # with the modules beside it
        return plan

    def with_whole_paths(self, experiment: DDP) -> DDP:
        whole = super().with_whole_paths(experiment)
        return (
            whole.model_copy(update={"script": _script_path(experiment, experiment.script)})
            if experiment.script
            else whole
        )

    def refuse_ambiguous(self, experiment: DDP, typed: Container[str]) -> None:
        if "--script" not in typed or experiment.script is None or "/" in experiment.script:
            return
        here, theirs = Path(experiment.script).absolute(), _folder(experiment) / experiment.script
        if holds(Path.is_file, here) and holds(Path.is_file, theirs) and not here.samefile(theirs):
            raise RequestError(
                f"--script {here.name}: there is one here and one in the exercise's folder: give ./{here.name} for "
                f"yours, or {theirs}"
            )

    def missing(self, experiment: DDP, site: Site, environ: Mapping[str, str]) -> Iterator[str]:
        if experiment.script is not None:
            yield from _wrong_script(_folder(experiment), experiment.script)
        yield from super().missing(experiment, site, environ)


def _folder(experiment: DDP) -> Path:
    return Path(script_path(experiment, "")).resolve()


def _script_path(experiment: DDP, given: str) -> str | None:
    """The script's name when the exercise's folder has it, else its whole path; None for the exercise's own."""
    folder, typed = _folder(experiment), expanded(given).absolute()
    in_folder = "/" not in given and holds(Path.is_file, folder / given)
    name = given if in_folder else typed.name if typed.parent.resolve() == folder else None
    return None if name == OWN_SCRIPT else name or str(typed)


def _wrong_script(folder: Path, script: str) -> Iterator[str]:
    """Why `--script` cannot train."""
    path = folder / script
    why = why_missing(str(path), {}, "file")
    if not why and path.suffix != ".py":
        why = f"{path} is not a Python file (*.py)"
    if not why and not os.access(path, os.R_OK):
        why = f"{path} cannot be read (Permission denied)"
    if why:
        own = sorted(found.name for found in folder.glob("train*.py"))
        near = nearest(path.name, own)
        hint = f": did you mean {near}?" if near and near != path.name else ""
        yield f"--script: {why}; give a path, or one of the exercise's own ({', '.join(own)}){hint}"


LAUNCH = DDPLaunch()
