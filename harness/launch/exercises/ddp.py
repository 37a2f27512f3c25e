"""The programs of exercise 1: accelerate with DDP, and the script that a student brings."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Mapping
from pathlib import Path, PurePosixPath

from harness.common.errors import RequestError, nearest
from harness.common.paths import expanded
from harness.experiment.ddp import DDP
from harness.launch.exercises.base import CommandPlace, ExercisePlan, LaunchTarget, script_path
from harness.launch.exercises.training import TrainingLaunch, accelerated_plan
from harness.launch.lookup import holds, why_missing
from harness.site.site import Site

OWN_SCRIPT = "train.py"


class DDPLaunch(TrainingLaunch[DDP]):
    """accelerate starts the exercise's script, or another one."""

    def plan(self, asked: DDP, place: CommandPlace) -> ExercisePlan:
        script = PurePosixPath(asked.script or OWN_SCRIPT)
        own = script.is_absolute()
        path = str(script) if own else script_path(asked, str(script))
        plan = accelerated_plan(asked, place, "ddp", path)
        plan.folders.extend([str(script.parent)] * own)  # with the modules beside it
        return plan

    def misfits(self, asked: DDP, resolved: DDP | None, target: LaunchTarget) -> Iterator[str]:
        yield from super().misfits(asked, resolved, target)
        model = target.model
        if asked.lora is not None and model is not None and model.num_local_experts > 1:
            yield (
                f"--lora adapts the matrices of dense layers, and {model.name} is a mixture of experts: "
                "use a dense --model, such as llama-3.2-1b"
            )

    def with_whole_paths(self, asked: DDP) -> DDP:
        whole = super().with_whole_paths(asked)
        return whole.model_copy(update={"script": _script_path(asked, asked.script)}) if asked.script else whole

    def refuse_ambiguous(self, asked: DDP, typed: Container[str]) -> None:
        if "--script" not in typed or asked.script is None or "/" in asked.script:
            return
        here, theirs = Path(asked.script).absolute(), _folder(asked) / asked.script
        if holds(Path.is_file, here) and holds(Path.is_file, theirs) and not here.samefile(theirs):
            raise RequestError(
                f"--script {here.name}: there is one here and one in the exercise's folder: give ./{here.name} for "
                f"yours, or {theirs}"
            )

    def missing(self, asked: DDP, site: Site, environ: Mapping[str, str]) -> Iterator[str]:
        if asked.script is not None:
            yield from _wrong_script(_folder(asked), asked.script)
        yield from super().missing(asked, site, environ)


def _folder(asked: DDP) -> Path:
    return Path(script_path(asked, "")).resolve()


def _script_path(asked: DDP, given: str) -> str | None:
    """The script's name when the exercise's folder has it, else its whole path; None for the exercise's own."""
    folder, typed = _folder(asked), expanded(given).absolute()
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
