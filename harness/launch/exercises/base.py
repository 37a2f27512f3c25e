"""What a job takes from its exercise: the programs of a node, and this exercise's own defaults and errors. Knows sites
and models, exercises by the names in `LAUNCHES`, and no scheduler."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from harness.common.paths import ROOT, expanded
from harness.experiment.base import Experiment
from harness.experiment.model import Model
from harness.experiment.options import options_of
from harness.experiment.training import ProfiledTraining
from harness.launch.argv import MASTER_ADDR, MASTER_PORT, NODE, Word, concatenated, join, parent
from harness.site.site import Site

Requested = TypeVar("Requested", bound=Experiment)
DeviceKind = Literal["cuda", "cpu"]

# By the class of the experiment; imported when one of its kind is launched.
LAUNCHES = {
    "CommTests": "harness.launch.exercises.comm_tests:LAUNCH",
    "DDP": "harness.launch.exercises.ddp:LAUNCH",
    "DeepSpeed": "harness.launch.exercises.deepspeed:LAUNCH",
    "Megatron": "harness.launch.exercises.megatron:LAUNCH",
    "OwnTraining": "harness.launch.exercises.own:LAUNCH",
}
TORCHRUN_JSC = "torchrun_jsc"
_USUAL = ("python3", "python")
_PLAIN = re.compile(r"[\w/.+@ -]*")  # a path that the first line of a script can name


@dataclass(frozen=True)
class LaunchCommand:
    title: str
    argv: list[Word]
    observed: bool = False  # run under the profiler
    contained: bool = True  # run inside the site's container, if it has one
    decisive: bool = True  # its failure is the job's
    folder: str | None = None  # where it starts; None: anywhere
    name: str = "TRAINING"  # of its array in the script
    why: str = ""  # for a comment beside it


class CommandPlace(NamedTuple):
    """Where a command runs, and the files that it reads there."""

    site: Site
    device: DeviceKind
    model: Model | None
    model_file: str | None  # None: the run brings its own
    checkpoint: Word | None
    data: Word | None  # instruction data
    megatron_data: Word | None  # prefix of .bin and .idx; then there is no `data`
    python: Word  # that has PyTorch, inside the container if there is one
    launcher_python: Word  # on the node
    profiler: str


@dataclass(frozen=True)
class ExercisePlan:
    """What an exercise runs, and what it needs for that."""

    commands: list[LaunchCommand]  # on every node
    after: list[LaunchCommand] = field(default_factory=list)  # then on the first
    files: dict[str, str] = field(default_factory=dict)  # small files of the run
    folders: list[Word] = field(default_factory=list)  # a container must see them
    environment: dict[str, Word] = field(default_factory=dict)
    python_path: str = str(ROOT)  # where the training's Python finds what is ours
    keeps_users: bool = False  # PYTHONPATH and OMP_NUM_THREADS as the user or a module has set them
    image: str | None = None  # its own container's file; None: the site's usual one
    nsys_options: str = "default"  # by name, if the site asks for none of its own
    expects: list[str] | None = None  # reports that must be there afterwards; None: the profiler's


class TrainedModel(NamedTuple):
    """The model to train: its sizes, its file if it is one of ours, and the checkpoint's folder if one was named."""

    model: Model | None = None
    file: str | None = None
    checkpoint: str | None = None


class LaunchTarget(NamedTuple):
    """Where an experiment is resolved: the site, and what is known of it so far."""

    site: Site
    device: DeviceKind
    gpus_per_node: int
    model: Model | None
    checkpoint: str | None


class Launch(Generic[Requested]):
    """How one exercise is launched. The methods here are for an exercise without needs of its own."""

    takes_weights = True  # of the site's checkpoints, or of one that --model names
    usual_cpu_ranks: int | None = (
        None  # without GPUs, where -g is not given; None: as many as the machine has cores for
    )

    def site_for(self, experiment: Requested, site: Site) -> Site:
        """The site as this request uses it."""
        return site

    def python(self, experiment: Requested) -> str | None:
        """The Python that trains, of the user's own; None: that of the container, else the harness's."""
        return None

    def uses_our_python(self, experiment: Requested) -> bool:
        """Whether the harness's own Python trains where there is no container."""
        return True

    def plan(self, experiment: Requested, place: CommandPlace) -> ExercisePlan:
        """What a resolved experiment runs. GPUs per node, model and batch are filled in."""
        raise NotImplementedError

    def cpu_ranks(self, experiment: Requested, usual: int) -> int:
        """Processes on a machine without GPU; usual: their number for other exercises."""
        return usual

    def defaults(self, experiment: Requested, target: LaunchTarget) -> dict[str, Any]:
        """The fields that depend on the site, the device or the model, as they are if the request leaves them open."""
        return {}

    def misfits(self, experiment: Requested, resolved: Requested | None, target: LaunchTarget) -> Iterator[str]:
        """Why the request cannot run there, one sentence each. resolved: None if its own rules are broken."""
        yield from ()

    def warnings(self, experiment: Requested, site: Site) -> Iterator[str]:
        """What works and is probably not intended, one sentence each."""
        yield from ()

    def notes(self, experiment: Requested) -> Iterator[str]:
        """What a launch takes from the user's own files, one sentence each."""
        yield from ()

    def profiler(self, experiment: Requested) -> Literal["nsys", "none"] | None:
        """The profiler, where only one can record this experiment."""
        return None

    def data(self, experiment: Requested, site: Site) -> Word | None:
        """The file of instruction data; None: ours, or the exercise reads no such file."""
        return None

    def megatron_data(self, experiment: Requested, site: Site) -> Word | None:
        """The prefix of .bin and .idx; None: the run builds the files, or does not read them."""
        return None

    def with_whole_paths(self, experiment: Requested) -> Requested:
        """The request with a user's paths made absolute: the job runs in another folder than this."""
        paths = {o.field: getattr(experiment, o.field) for o in options_of(type(experiment)) if o.flag.path}
        whole = {name: str(expanded(path).absolute()) for name, path in paths.items() if path is not None}
        return experiment.model_copy(update=whole)

    def refuse_ambiguous(self, experiment: Requested, typed: Container[str]) -> None:
        """Raises RequestError: a flag among `typed` names one file here and another in the exercise's folder."""

    def missing(self, experiment: Requested, site: Site, environ: Mapping[str, str]) -> Iterator[str]:
        """A sentence for each thing that the resolved request names and does not exist."""
        yield from ()


def launch_of(experiment: Requested) -> Launch[Requested]:
    """How this experiment is launched."""
    launch: Launch[Requested] = resolve_name(LAUNCHES[type(experiment).__name__])
    return launch


def reports_of(experiment: Experiment, profiler: str) -> list[str]:
    """The profiler's reports of a resolved experiment, relative to the run directory."""
    if profiler == "torch":
        return [f"torch/rank{rank}.json.gz" for rank in range(experiment.world_size or 1)]
    if profiler != "nsys":
        return []
    nodes = [f"nsys/profile_node{node}" for node in range(experiment.nodes)]
    if isinstance(experiment, ProfiledTraining) and experiment.nsys_per == "rank":
        ranks, per_node = range(experiment.world_size or 1), experiment.gpus_per_node or 1
        return [f"{nodes[rank // per_node]}_rank{rank}.nsys-rep" for rank in ranks]
    return [f"{node}.nsys-rep" for node in nodes]


def script_path(experiment: Experiment, name: str) -> str:
    return f"{ROOT}/exercises/{experiment.folder}/{name}"


MODULES = {"accelerate": "accelerate.commands.accelerate_cli", "deepspeed": "deepspeed.launcher.runner"}
MODULES |= {"torchrun": "torch.distributed.run"}


def program(python: Word, name: str) -> list[Word]:
    """A launcher by its own name: the script that lies beside the Python whose package it is of. By its module where
    there is none, as in an environment that borrows another one's packages, and of a Python that is named by version:
    a script of PATH belongs to the usual one."""
    if not isinstance(python, str):
        folder = parent(python)
        return [python, "-m", MODULES[name]] if folder is None else [concatenated(folder, f"/bin/{name}")]
    folder, slash, _ = python.rpartition("/")
    script = f"{folder}{slash}{'bin/' * python.endswith('/harness-python')}{name}"
    is_its_own = (Path(script).exists() or not Path(python).exists()) if slash else python in _USUAL
    return [script] if is_its_own and _PLAIN.fullmatch(folder) else [python, "-m", MODULES[name]]


def torchrun(experiment: Experiment, place: CommandPlace) -> list[Word]:
    """torchrun for all ranks of a node, before the script."""
    jsc = place.site.network.torchrun == TORCHRUN_JSC
    launcher = [place.python, "-m", TORCHRUN_JSC] if jsc else program(place.python, "torchrun")
    return [*launcher, *torchrun_options(experiment, jsc=jsc)]


def torchrun_options(experiment: Experiment, jsc: bool = False) -> list[Word]:
    """How many ranks there are, and where they meet. jsc: by torchrun_jsc, which repairs how nodes find each other with
    c10d; it gives out the nodes' numbers itself."""
    size: list[Word] = [f"--nnodes={experiment.nodes}", f"--nproc-per-node={experiment.gpus_per_node}"]
    if jsc and experiment.nodes > 1:
        return [*size, "--rdzv-backend=c10d", join("--rdzv-endpoint=", MASTER_ADDR, ":", MASTER_PORT)]
    meeting: list[Word] = ["--master-addr", join(MASTER_ADDR), "--master-port", join(MASTER_PORT)]
    return [*size, "--node-rank", NODE, *meeting]
