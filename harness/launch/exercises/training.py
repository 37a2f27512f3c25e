"""What the launches of all trainings share: the training script's arguments, its data, its model's file.

Knows the training scripts' command line; knows no exercise by name and no scheduler.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import yaml

from harness.common.errors import RequestError
from harness.common.faults import parse_fault, wrong_device
from harness.common.mystery import sealed_file
from harness.common.paths import ROOT, expanded
from harness.experiment.model import model_names
from harness.experiment.options import options_of
from harness.experiment.profiled import Profiled
from harness.experiment.training import Training
from harness.launch.argv import NODE, RUN_DIR, Word, from_site, join, parent
from harness.launch.exercises.base import Command, CommandPlace, ExercisePlan, Launch, Target
from harness.launch.exercises.device_needs import device_misfits
from harness.launch.lookup import holds, why_missing
from harness.launch.profilers.nsys import check_trace_list, is_trace_list, trace_list
from harness.site.site import Site

Trained = TypeVar("Trained", bound=Training)


class TrainingLaunch(Launch[Trained]):
    """One training, with or without a profiler; then a conversion for Paraver where the request has it."""

    def defaults(self, asked: Trained, target: Target) -> dict[str, Any]:
        if target.model is None:
            return {}
        usual = target.model.defaults
        return {
            "seq_length": asked.seq_length or usual.seq_length,
            "micro_batch_size": asked.micro_batch_size or usual.micro_batch_size,
        }

    def misfits(self, asked: Trained, resolved: Trained | None, target: Target) -> Iterator[str]:
        yield from wrong_device(map(parse_fault, asked.faults), target.device)
        yield from device_misfits(asked, target)

    def warnings(self, asked: Trained) -> Iterator[str]:
        if asked.recorded_by_time and asked.steps is None:
            yield (
                f"nsys records by the clock, but the training ends after {asked.window.end} steps, perhaps earlier: "
                "make it longer with --steps"
            )

    def data(self, asked: Trained, site: Site) -> Word | None:
        return asked.data or (from_site(site.data) if site.data else None)

    def with_whole_paths(self, asked: Trained) -> Trained:
        whole = super().with_whole_paths(asked)
        model = expanded(asked.model or "")
        is_own = asked.model is not None and asked.model not in model_names() and holds(Path.exists, model)
        return whole.model_copy(
            update={
                "model": str(model.absolute()) if is_own else asked.model,
                "python_trace": whole_trace_list(asked),
            }
        )

    def missing(self, asked: Trained, site: Site, environ: Mapping[str, str]) -> Iterator[str]:
        data = self.data(asked, site)
        why = why_missing(data, environ, "file") if data is not None else ""
        if why and asked.data:
            yield f"--data: {why}"
        elif why:
            yield f"site {site.name}: its data file: {why}: give yours with --data, or change the site file"
        yield from wrong_trace_list(asked)


def whole_trace_list(asked: Profiled) -> str | None:
    """The list of Python functions; a file of the user's with its whole path."""
    name = asked.python_trace
    if name is None or is_trace_list(name) or not holds(Path.exists, expanded(name)):
        return name
    return str(expanded(name).absolute())


def wrong_trace_list(asked: Profiled) -> Iterator[str]:
    """Why nsys could not read the list of Python functions."""
    if asked.python_trace is not None:
        try:
            check_trace_list(trace_list(asked.python_trace))
        except RequestError as error:
            yield f"--python-trace: {error}"


def training_plan(
    asked: Training, place: CommandPlace, argv: list[Word], files: dict[str, str]
) -> ExercisePlan:
    """The plan that runs `argv` with `files` beside it."""
    if place.model is not None and place.model_file is None:
        given = {name: value for name, value in asdict(place.model).items() if value is not None}
        files["model.yaml"] = yaml.safe_dump(given, sort_keys=False)
    if asked.mystery is not None:
        files[sealed_file(Path()).name] = asked.mystery.sealed
    after = [paraver_command(place)] if asked.nsys2prv else []
    training = Command("training", argv, observed=place.profiler == "nsys")
    return ExercisePlan([training], after, files, _folders(asked, place))


def paraver_command(place: CommandPlace) -> Command:
    """The conversion of the run's traces, by the harness on the first node."""
    ours: list[Word] = ["env", f"PYTHONPATH={ROOT}", place.launcher_python]  # whatever the training's is
    convert = [*ours, "-m", "harness", "paraver", join(RUN_DIR)]
    return Command("Paraver trace", convert, contained=False, decisive=False)


def _folders(asked: Training, place: CommandPlace) -> list[Word]:
    """The folders of the command that a container must see, besides the checkout and the run."""
    prefix = parent(place.megatron_data) if place.megatron_data else None
    listed = None if asked.python_trace is None else str(trace_list(asked.python_trace))
    own = listed if place.profiler == "nsys" and not is_trace_list(asked.python_trace) else None
    return [path for path in (place.checkpoint, place.data, prefix, own) if path]


def around_each_rank(asked: Profiled, place: CommandPlace) -> list[Word]:
    """The words between the launcher and the training script: what the launcher starts in its place, if anything."""
    if place.profiler != "nsys" or asked.nsys_per == "node":
        return []
    return [f"{ROOT}/harness/launch/profilers/rank.py", join(RUN_DIR, "/nsys_node", NODE, ".json")]


def training_argv(asked: Training, place: CommandPlace) -> list[Word]:
    """The training script's arguments."""
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
