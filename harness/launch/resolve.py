"""An experiment's defaults that depend on the site, the machine or the model; then all its rules are checked again.

Pure. The rules here hold for every exercise and depend on the place; the rules of one exercise are in exercises/.
"""

from __future__ import annotations

from typing import NamedTuple

from harness.common.errors import RequestError
from harness.experiment.base import Experiment
from harness.experiment.options import for_nsys, options_of
from harness.experiment.parse import validate
from harness.experiment.training import Profiled
from harness.launch.backends.registry import backend_of
from harness.launch.exercises.base import Chosen, DeviceKind, Launch, Target, launch_of
from harness.site.site import Site

USUAL_GPUS_PER_NODE = 4
USUAL_CPU_RANKS = 4


class Machine(NamedTuple):
    """The machine that resolves a job; only a local job depends on it."""

    gpus: int
    cores: int
    has_nsys: bool
    python: str  # the interpreter the launcher runs in
    runs_dir: str  # the folder that holds the exercises' logs and profiler folders
    own_runs_dir: str = ""  # the same of the user's own trainings; empty: it is the exercises'


def resolve_defaults(
    experiment: Experiment, site: Site, machine: Machine, device: DeviceKind, chosen: Chosen
) -> Experiment:
    """The experiment with all fields filled in that depend on the site, the machine or the model.

    Raises RequestError: the experiment cannot run there; one line per reason.
    """
    if backend_of(site).RUNS_HERE and device == "cuda" and not machine.gpus:
        raise RequestError(
            f"site {site.name} has device: cuda, but this machine shows no NVIDIA GPU "
            "(CUDA_VISIBLE_DEVICES can hide it): write device: auto or cpu, or choose another site"
        )
    launch = launch_of(experiment)
    gpus = int(
        experiment.gpus_per_node
        or site.defaults.get("gpus_per_node")
        or _gpus_per_node(experiment, launch, site, machine, device)
    )
    target = Target(site, device, gpus, chosen.model, chosen.checkpoint)
    given = experiment.model_dump() | {"gpus_per_node": gpus} | launch.defaults(experiment, target)
    resolved, errors = validate(type(experiment), given)
    errors += launch.misfits(experiment, resolved, target)
    errors += _for_gpus_only(experiment, site, device)
    errors += _for_nvidia_only(experiment, launch, site)
    errors += _too_many_gpus(experiment.nodes, gpus, site, machine, device)
    if errors or resolved is None:
        raise RequestError("\n".join(errors))
    return resolved


def _gpus_per_node(
    experiment: Experiment, launch: Launch[Experiment], site: Site, machine: Machine, device: DeviceKind
) -> int:
    if device == "cpu" and launch.usual_cpu_ranks is not None:
        return launch.usual_cpu_ranks
    if not backend_of(site).RUNS_HERE:
        return site.gpus.per_node or USUAL_GPUS_PER_NODE
    if device == "cuda":
        return machine.gpus
    return launch.cpu_ranks(experiment, max(1, min(machine.cores, USUAL_CPU_RANKS)))


def _for_gpus_only(experiment: Experiment, site: Site, device: DeviceKind) -> list[str]:
    fields = type(experiment).model_fields
    asked = [(option, getattr(experiment, option.field)) for option in options_of(type(experiment))]
    return [
        f"{option.written(value)} has an effect on GPUs only, and site {site.name} runs on CPUs: "
        "leave it out, or use a --site with GPUs"
        for option, value in asked
        if option.flag.gpus_only and device == "cpu" and value not in (None, (), fields[option.field].default)
    ]


def _for_nvidia_only(experiment: Experiment, launch: Launch[Experiment], site: Site) -> list[str]:
    if site.gpus.vendor == "nvidia" or not isinstance(experiment, Profiled):
        return []
    flags = ["--profiler nsys"] * (experiment.profiler == "nsys") + list(for_nsys(experiment).values())
    if launch.profiler(experiment) == "nsys":
        flags.append("--engine megatron-lm")
    return [
        f"{flag} needs nsys, which records NVIDIA's GPUs only, and site {site.name} has AMD's: leave it out; "
        "torch.profiler records there"
        for flag in dict.fromkeys(flags)
    ]


def _too_many_gpus(nodes: int, gpus: int, site: Site, machine: Machine, device: DeviceKind) -> list[str]:
    here = backend_of(site).RUNS_HERE
    if here and device == "cuda" and nodes * gpus > machine.gpus:
        return [
            f"-n {nodes} × -g {gpus} needs {nodes * gpus} GPUs and this machine has {machine.gpus}: "
            f"the nearest is -n 1 -g {machine.gpus}"
        ]
    limit = site.gpus.per_node
    if not here and limit is not None and gpus > limit:
        return [f"-g/--gpus-per-node: got {gpus}, a node of {site.name} has {limit}: use -g {limit}"]
    return []
