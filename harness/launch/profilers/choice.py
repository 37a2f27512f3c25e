"""Which profiler records a job, and the words of its nsys, as the experiment, the site and the machine say. Pure. What
the nsys of a node makes of the words is in `nsys.py`, which runs there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from harness.common.errors import RequestError
from harness.experiment.exercises import Experiment, ProfiledTraining
from harness.experiment.nsys_sets import load_options, profile_words
from harness.experiment.options import for_nsys, options_of
from harness.launch.argv import NODE, RUN_DIR, Word, join
from harness.launch.exercises.base import DeviceKind, ExercisePlan, launch_of
from harness.site.site import Site

Profiler = Literal["nsys", "torch", "none"]

NO_NSYS = (
    "neither this machine nor the site has nsys, so torch.profiler records: name its module in a site file, or use "
    "--profiler nsys"
)
NO_NSYS_INSIDE = (
    "it is not known from here whether the container has nsys, so torch.profiler records: if it has, write profiler: "
    "nsys in the site file, or use --profiler nsys"
)


def choose_profiler(experiment: Experiment, site: Site, device_kind: DeviceKind, *, has_nsys: bool) -> Profiler:
    """The profiler of --profiler; `auto`: by the site and the machine. Raises RequestError: an option of nsys, where
    `auto` chose another profiler, or where nsys cannot do it."""
    profiler = _profiler(experiment, site, device_kind, has_nsys)
    if isinstance(experiment, ProfiledTraining) and experiment.nsys_per == "rank" and site.in_srun:
        raise RequestError(
            f"--nsys-per rank: at site {site.name} srun starts the container, and one nsys inside records all ranks of "
            "a node: leave it out"
        )
    if profiler != "nsys" and (flags := for_nsys(experiment)):
        raise RequestError(
            f"{' and '.join(flags.values())}: for nsys only, and at site {site.name} --profiler auto means {profiler}: "
            "add --profiler nsys, or leave it out"
        )
    return profiler


def _profiler(experiment: Experiment, site: Site, device_kind: DeviceKind, has_nsys: bool) -> Profiler:
    if not isinstance(experiment, ProfiledTraining):
        return "none"
    if experiment.profiler != "auto":
        return experiment.profiler
    on_nvidia = device_kind == "cuda" and site.gpus.vendor == "nvidia"
    if only := launch_of(experiment).profiler(experiment):
        return only
    if (experiment.nsys2prv or for_nsys(experiment)) and on_nvidia:
        return "nsys"
    if site.profiler:
        return site.profiler
    # nsys has to be inside a container that srun starts; else it is here, or a module or line of the site brings it.
    may_have = not site.in_srun and bool(has_nsys or site.modules or site.setup)
    return "nsys" if on_nvidia and may_have else "torch"


def nsys_doubts(experiment: Experiment, site: Site, device_kind: DeviceKind, profiler: Profiler) -> Iterator[str]:
    """That `auto` means torch.profiler on GPUs of which nsys could record more, with the reason."""
    is_auto = isinstance(experiment, ProfiledTraining) and experiment.profiler == "auto" and device_kind == "cuda"
    if is_auto and profiler == "torch" and site.profiler is None and site.gpus.vendor == "nvidia":
        yield NO_NSYS_INSIDE if site.in_srun else NO_NSYS


def nsys_set(experiment: Experiment, site: Site, device_kind: DeviceKind, plan: ExercisePlan) -> str:
    """The set of options: the experiment's, else the site's; on CPUs one without GPU's events."""
    of_experiment = experiment.nsys_options if isinstance(experiment, ProfiledTraining) else None
    return of_experiment or (
        "cpu" if device_kind == "cpu" else plan.nsys_options if site.nsys == "default" else site.nsys
    )


def nsys_words(experiment: Experiment, options: str, device_kind: DeviceKind) -> list[Word]:
    """`nsys profile …` with this set and what the experiment's options change in it."""
    changes: dict[str, str | None] = {}
    for option in options_of(experiment.__class__):
        changes |= option.nsys_options(getattr(experiment, option.field))
    words = [f"--no-{name}" if text is None else f"--{name}={text}" for name, text in changes.items()]
    rank = "_rank%q{RANK}" if isinstance(experiment, ProfiledTraining) and experiment.nsys_per == "rank" else ""
    output = join("--output=", RUN_DIR, f"/nsys/profile_node{NODE}{rank}")
    try:
        named = load_options(options)
    except RequestError:  # harness.launch.before.check says it, before a launch
        named = {}
    return [*profile_words(named, words, has_gpu=device_kind == "cuda"), output]
