"""What the launches of all trainings share: the script's arguments, data and model, accelerate, and what a device
needs. Knows the training scripts' command line; knows no exercise by name and no scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import yaml

from harness.common.errors import RequestError
from harness.common.faults.fault import parse_fault, wrong_device
from harness.common.faults.mystery import HIDDEN_FILE, hidden_text
from harness.common.paths import COMMAND, ROOT, expanded
from harness.common.run_folder.run_files import ACCELERATE_SETTINGS, MODEL
from harness.experiment.base import Experiment
from harness.experiment.model import model_names
from harness.experiment.nsys_sets import check_trace_list, is_option_set, is_trace_list, trace_list
from harness.experiment.options import options_of
from harness.experiment.training import ProfiledTraining, Training
from harness.launch.argv import MASTER_ADDR, MASTER_PORT, NODE, RUN_DIR, Word, from_site, join, parent
from harness.launch.before.lookup import holds, why_missing
from harness.launch.exercises.accelerate_settings import accelerate_files
from harness.launch.exercises.base import CommandPlace, ExercisePlan, Launch, LaunchCommand, LaunchTarget, program
from harness.site.site import Site

if TYPE_CHECKING:
    from harness.theory.devices import DevicePeaks


class GpuNeed(NamedTuple):
    """Something that a flag asks of a GPU. met: by a device of the table. who: devices that can, for people. instead:
    what works on this one."""

    flag: str
    met: Callable[[DevicePeaks], bool]
    who: str
    instead: Callable[[DevicePeaks], str]


def device_misfits(experiment: Training, target: LaunchTarget) -> Iterator[str]:
    """Why the site's devices cannot do it, one sentence each; none if the table does not have them."""
    site = target.site
    if target.device == "cpu":
        if experiment.precision in ("tf32", "fp8"):
            other = "fp32" if experiment.precision == "tf32" else "bf16"
            yield (
                f"--mixed-precision {experiment.precision} works on GPUs only, and site {site.name} runs on CPUs: use "
                f"--mixed-precision {other}, or a --site with GPUs"
            )
        return
    from harness.theory.devices import find_device  # here: a dry run on a CPU asks for none

    found = find_device(site.gpus.name)
    for need in _needs(experiment):
        if found is not None and not need.met(found):
            yield (
                f"{need.flag} needs {need.who}, and site {site.name} has {site.gpus.name}: {need.instead(found)}, or "
                "use another --site"
            )


def _needs(experiment: Training) -> Iterator[GpuNeed]:
    if experiment.precision == "tf32":
        who = "GPUs from Ampere on (A100, H100 and newer)"
        yield GpuNeed(
            "--mixed-precision tf32", lambda d: "tf32" in d.tflops, who, lambda d: "use --mixed-precision fp32"
        )
    if experiment.precision == "fp8":
        who = "GPUs from Hopper on (H100, H200, GH200 and newer)"
        yield GpuNeed("--mixed-precision fp8", lambda d: "fp8" in d.tflops, who, _nearest_to_fp8)
    if getattr(experiment, "unified_memory", False):
        yield GpuNeed("--unified-memory", lambda d: "GH200" in d.match, "GH200", lambda d: "leave it out")


def _nearest_to_fp8(device_peaks: DevicePeaks) -> str:
    return f"use --mixed-precision {'bf16' if 'bf16' in device_peaks.tflops else 'fp32'}"


Trained = TypeVar("Trained", bound=Training)


class TrainingLaunch(Launch[Trained]):
    """One training, with or without a profiler; then a conversion for Paraver where the request has it."""

    def defaults(self, experiment: Trained, target: LaunchTarget) -> dict[str, Any]:
        if target.model is None:
            return {}
        size = target.model.defaults.micro_batch(experiment.in_bf16)
        return {
            "seq_length": target.model.defaults.seq_length,
            "micro_batch_size": getattr(target.model.defaults, size),
        }

    def misfits(self, experiment: Trained, resolved: Trained | None, target: LaunchTarget) -> Iterator[str]:
        yield from wrong_device(map(parse_fault, experiment.faults), target.device)
        yield from device_misfits(experiment, target)

    def warnings(self, experiment: Trained, site: Site) -> Iterator[str]:
        if experiment.recorded_by_time and experiment.steps is None:
            yield (
                f"nsys records by the clock, but the training ends after {experiment.window.end} steps, perhaps "
                f"earlier: "
                "make it longer with --steps"
            )

    def data(self, experiment: Trained, site: Site) -> Word | None:
        return experiment.data or (from_site(site.data) if site.data else None)

    def with_whole_paths(self, experiment: Trained) -> Trained:
        whole = super().with_whole_paths(experiment)
        model = expanded(experiment.model or "")
        is_own = experiment.model is not None and experiment.model not in model_names() and holds(Path.exists, model)
        return whole.model_copy(
            update={"model": str(model.absolute()) if is_own else experiment.model} | whole_nsys_files(experiment)
        )

    def missing(self, experiment: Trained, site: Site, environ: Mapping[str, str]) -> Iterator[str]:
        data = self.data(experiment, site)
        why = why_missing(data, environ, "file") if data is not None else ""
        if why and experiment.data:
            yield f"--data: {why}"
        elif why:
            yield f"site {site.name}: its data file: {why}: give yours with --data, or change the site file"
        yield from wrong_trace_list(experiment)


def whole_nsys_files(experiment: ProfiledTraining) -> dict[str, str | None]:
    """The fields that name a file for nsys; a file of the user's with its whole path."""
    known = {"python_trace": is_trace_list, "nsys_options": is_option_set}
    return {field: _whole(getattr(experiment, field), is_ours) for field, is_ours in known.items()}


def _whole(name: str | None, is_ours: Callable[[str | None], bool]) -> str | None:
    if name is None or is_ours(name) or not holds(Path.exists, expanded(name)):
        return name
    return str(expanded(name).absolute())


def wrong_trace_list(experiment: ProfiledTraining) -> Iterator[str]:
    if experiment.python_trace is not None:
        try:
            check_trace_list(trace_list(experiment.python_trace))
        except RequestError as error:
            yield f"--python-trace: {error}"


def training_plan(experiment: Training, place: CommandPlace, argv: list[Word], files: dict[str, str]) -> ExercisePlan:
    """The plan that runs `argv` with `files` beside it."""
    if place.model is not None and place.model_file is None:
        given = asdict(place.model, dict_factory=lambda items: {name: v for name, v in items if v is not None})
        files[MODEL.name] = yaml.safe_dump(given, sort_keys=False)
    if experiment.mystery is not None:
        if not experiment.mystery.faults:
            again = f"{COMMAND} lesson mystery -e {experiment.exercise} starts a new one"
            raise RequestError(f"run: it is a mystery, and its faults are not in its run.json: {again}")
        files[HIDDEN_FILE] = hidden_text(experiment.mystery.faults)
    after = [paraver_command(place, experiment)] if experiment.nsys2prv else []
    training = LaunchCommand("training", argv, observed=place.profiler == "nsys", why=ranks_of(experiment))
    return ExercisePlan([training], after, files, _folders(experiment, place))


def ranks_of(experiment: Experiment) -> str:
    """How many a launcher starts, for a comment beside it."""
    many = experiment.gpus_per_node or 1
    return f"starts {many} ranks on each node" if many > 1 else "starts one rank on each node"


def paraver_command(place: CommandPlace, experiment: ProfiledTraining) -> LaunchCommand:
    """The conversion of the run's traces, by the harness on the first node. On a cluster's GPUs, which would be held
    for it, by a job of its own that this one submits."""
    own = ["-u", "PYTHONHOME", f"PYTHONPATH={ROOT}"]  # whatever the training's are
    ours: list[Word] = ["env", *own, place.launcher_python, "-m", "harness", "export", "paraver"]
    apart = place.device == "cuda" and place.site.scheduler == "slurm"
    convert = [*ours, join(RUN_DIR), *["--compress"] * (experiment.nsys2prv == "compress"), *["--submit"] * apart]
    title = "Submission of the job that makes the Paraver trace" if apart else "Paraver trace"
    return LaunchCommand(title, convert, contained=False, decisive=False)


def _folders(experiment: Training, place: CommandPlace) -> list[Word]:
    """The folders of the command that a container must see, besides the checkout and the run."""
    prefix = parent(place.megatron_data) if place.megatron_data else None
    named = [place.checkpoint, place.data, prefix]
    if place.profiler == "nsys":
        files = (experiment.python_trace, experiment.nsys_options)
        named += [name for name in files if name and Path(name).is_absolute()]
    return list(dict.fromkeys(path for path in named if path))


def around_each_rank(experiment: ProfiledTraining, place: CommandPlace) -> list[Word]:
    """The words between the launcher and the training script: what the launcher starts in its place, if anything."""
    if place.profiler != "nsys" or experiment.nsys_per == "node":
        return []
    return [f"{ROOT}/harness/launch/profilers/rank.py", join(RUN_DIR, f"/nsys_node{NODE}.json")]


def training_argv(experiment: Training, place: CommandPlace) -> list[Word]:
    model: Word = place.model_file if place.model_file else join(RUN_DIR, f"/{MODEL.name}")
    words: list[Word] = ["--run-dir", join(RUN_DIR), "--model", model]
    if place.checkpoint is not None:
        words += ["--checkpoint", place.checkpoint]
    if place.data is not None:
        words += ["--data", place.data]
    for option in options_of(type(experiment)):
        words += option.arguments(getattr(experiment, option.field))
    words += ["--profiler", place.profiler]
    return [*words, "--device", "cpu"] if place.device == "cpu" else words


def accelerated_plan(
    experiment: Training,
    place: CommandPlace,
    base: str,
    script: str,
    *more: Word,
    files: Mapping[str, str] | None = None,
) -> ExercisePlan:
    """The plan in which accelerate starts the script on every rank. base: of `accelerate_files`; more: arguments."""
    launcher = [*program(place.python, "accelerate"), "launch", *accelerate_options()]
    argv = [*launcher, *around_each_rank(experiment, place), script, *training_argv(experiment, place), *more]
    return training_plan(experiment, place, argv, accelerate_files(experiment, base) | dict(files or {}))


def accelerate_options() -> list[Word]:
    """The file of `accelerate_files`, which node this is, and where the ranks meet."""
    config: list[Word] = ["--config_file", join(RUN_DIR, f"/{ACCELERATE_SETTINGS.name}"), "--machine_rank", NODE]
    return [*config, "--main_process_ip", join(MASTER_ADDR), "--main_process_port", join(MASTER_PORT)]
