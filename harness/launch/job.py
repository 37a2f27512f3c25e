"""A job: what an experiment is at a site. Its defaults that depend on the site, the machine or the model are filled in,
and all its rules are checked again. Pure: it reads and writes nothing of the run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from harness.common.errors import RequestError
from harness.common.faults.mystery import HIDDEN_FILE
from harness.common.paths import ROOT
from harness.common.system.secrets import holds_secret, kept_from_nsys, told_of_nsys
from harness.experiment.exercises import AnyExperiment, Experiment, OwnTraining, ProfiledTraining, Training
from harness.experiment.model import Model, find_model
from harness.experiment.options import InRun, for_nsys, options_of
from harness.experiment.parse import validate
from harness.launch.argv import RUN_DIR, Var, Word, concatenated, from_site, join, shown
from harness.launch.backends.registry import backend_of
from harness.launch.before.disturbing_variables import DISTURBING_VARIABLES
from harness.launch.before.lookup import only_here
from harness.launch.container import container_words
from harness.launch.exercises.base import (
    CommandPlace,
    DeviceKind,
    ExercisePlan,
    LaunchCommand,
    LaunchTarget,
    TrainedModel,
    launch_of,
    reports_of,
)
from harness.launch.profilers.choice import Profiler, choose_profiler, nsys_doubts, nsys_set, nsys_words
from harness.launch.profilers.record import seconds_of
from harness.launch.settings import flags_of_settings
from harness.site.site import Site

USUAL_GPUS_PER_NODE = 4
USUAL_CPU_RANKS = 4
REQUEST = "# The request, of which `sbatch` of a copy makes its record: "
_PLAIN_PATH = re.compile(r"[\w/.+@=-]+", re.ASCII)


class Machine(NamedTuple):
    """The machine that resolves a job; only a local job depends on it."""

    gpus: int
    cores: int
    has_nsys: bool
    python: str  # the interpreter the launcher runs in
    runs_dir: str  # the folder that holds the exercises' logs and profiler folders
    own_runs_dir: str = ""  # the same of the user's own trainings; empty: it is the exercises'


class ShellArray(NamedTuple):
    """An array of the script: a command, or what it is started in. why: what it is for, in a few words."""

    name: str
    words: list[Word]
    why: str = ""


@dataclass(frozen=True)
class Job:
    """All that the template needs, and all that run.json keeps."""

    experiment: AnyExperiment
    site: Site
    device: DeviceKind
    profiler: Profiler
    model: Model | None
    run_name: tuple[str, str]  # before and after the job id
    directives: list[str]  # sbatch options
    modules: list[str]
    setup: list[str]
    node_setup: list[str]  # on every node, before and after the commands
    node_cleanup: list[str]
    env: dict[str, Word]
    checkout: str
    output_dir: str  # the exercise's folder that holds logs/ and profiler/
    python: Word  # the harness's own, on the node
    training_python: Word  # of the training, inside the container if there is one
    container: list[Word]
    image: Word | None  # the container's file
    checkpoint: Word | None  # folder of the weights to start from
    data: Word | None  # instruction data
    megatron_data: Word | None  # prefix of .bin and .idx
    nsys_options: str
    nsys: list[Word]  # `nsys profile …`; empty: it does not record
    cpus_per_task: int | None
    commands: list[LaunchCommand]  # one after the other, on every node
    after: list[LaunchCommand]  # then on the first node only
    files: dict[str, str]  # small files of the run directory
    holds_secret: bool  # a word of a command looks like one
    folders: list[str]  # of the run directory, for what the training itself writes there
    expects: list[str]  # reports that must be there afterwards, relative to the run directory
    requested: AnyExperiment  # as it was resolved
    set_by: dict[str, str]  # flags, by the line of the settings that they set
    which_python: str = ""  # trains: of the user's shell or of the container, as a sentence

    def as_json(self) -> dict[str, Any]:
        left_out: dict[str, Any] = {"requested": True, "set_by": True, "which_python": True, "files": {HIDDEN_FILE}}
        return dict(_writer().dump_python(self, mode="json", exclude=left_out))

    @property
    def what(self) -> str:
        """What the job is, for the first lines of its script: a text without characters that could end a line."""
        base = self.experiment
        return (
            "A training of the user's own"
            if isinstance(base, OwnTraining)
            else f"Exercise {base.exercise} ({base.title})"
        )

    @property
    def nsys_inside(self) -> bool:
        """Whether nsys runs in the container, and not around it."""
        return self.site.in_srun

    @property
    def request(self) -> str:
        """One line of JSON: the experiment and the site as they were requested, and the profiler that they gave."""
        of_site = self.site.model_dump(mode="json", exclude_defaults=True)
        request = {"experiment": self.requested.model_dump(mode="json", exclude_defaults=True), "site": of_site}
        request["experiment"] |= {"exercise": self.requested.exercise} if hasattr(self.requested, "exercise") else {}
        return json.dumps(request | {"profiler": self.profiler})

    @property
    def script_directives(self) -> list[str]:
        """The options of sbatch in the script: the log's path is whole where sbatch would read it so."""
        whole = f"--output={self.output_dir}/logs/"
        plain = _PLAIN_PATH.fullmatch(self.output_dir) is not None
        return [d.replace("--output=logs/", whole) if plain else d for d in self.directives]

    @property
    def arrays(self) -> list[ShellArray]:
        """The parts of the commands, each an array of the script."""
        inside = ", in the container" if self.nsys_inside else ""
        ours: list[Word] = [self.training_python, f"{ROOT}/harness/launch/profilers/nsys.py"]
        words = [shown(word) for word in self.nsys]
        stops = "; the harness ends it after --duration, and the training continues" * bool(
            seconds_of(words, "duration")
        )
        why = f"records all that runs inside of it{inside}{stops}"
        outer = [ShellArray("NSYS", [*ours * self.nsys_inside, *self.nsys], why)]
        outer.append(ShellArray("CONTAINER", self.container, "has the software, and shows it these folders"))
        used = [bool(self.nsys), bool(self.container) and any(c.contained for c in self.commands)]
        kept = [array for array, is_used in zip(outer, used, strict=True) if is_used]
        return [*kept, *(ShellArray(c.name, c.argv, c.why or f"the {c.title}") for c in self.commands)]

    @property
    def node_lines(self) -> list[Word]:
        """The site's lines for every node, as options of the node's program."""
        pairs = [("--setup", line) for line in self.node_setup] + [("--cleanup", line) for line in self.node_cleanup]
        return [word for pair in pairs for word in pair]

    @property
    def node_program(self) -> list[Word]:
        """What Python starts on a node, with its options."""
        experiment, profiled = self.experiment, isinstance(self.experiment, ProfiledTraining)
        folder = next((command.folder for command in self.commands if command.folder), None)
        local = backend_of(self.site).RUNS_HERE
        return [
            f"{self.checkout}/harness/launch/on_node/node.py",
            *self.node_lines,
            *(["--nodes", str(experiment.nodes)] if local and experiment.nodes > 1 else []),
            *(
                ["--hz", str(experiment.monitor_hz)]
                if experiment.monitor_hz != type(experiment).model_fields["monitor_hz"].default
                else []
            ),
            *(["--on-hang", experiment.on_hang] if experiment.on_hang != "report" else []),
            *(["--nsys-per", "rank"] if profiled and self.nsys and experiment.nsys_per == "rank" else []),  # type: ignore[union-attr]
            *(["--folder", folder] if folder else []),
        ]

    @property
    def node_words(self) -> str:
        """The arrays as the node's program takes them, inside each other from left to right."""
        commands = []
        for command in self.commands:
            nsys = ["NSYS"] * (command.observed and bool(self.nsys))
            container = ["CONTAINER"] * (command.contained and bool(self.container))
            parts = [*container, *nsys] if self.nsys_inside else [*nsys, *container]
            commands.append(" :: ".join(f'"${{{name}[@]}}"' for name in [*parts, command.name]))
        return " :then: ".join(commands)

    def name_for(self, job_id: str) -> str:
        """The run's directory name, as on the workshop's slides."""
        return f"{self.run_name[0]}-{job_id}{self.run_name[1]}"


@cache
def _writer() -> TypeAdapter[Job]:
    return TypeAdapter(Job)


def resolve(requested: Experiment, site: Site, machine: Machine, flags: Mapping[str, str] | None = None) -> Job:
    """The job that `requested` is at `site`. flags: those that set a field of the request, by field. Raises
    RequestError: the experiment cannot run at the site; one line per reason."""
    site = launch_of(requested).site_for(requested, site)
    device: DeviceKind = ("cuda" if machine.gpus else "cpu") if site.device == "auto" else site.device
    chosen = _model(requested, device)
    model = chosen.model
    experiment = resolve_defaults(requested, site, machine, device, chosen)
    launch = launch_of(experiment)
    profiler = choose_profiler(experiment, site, device, has_nsys=machine.has_nsys)
    own_python = python_of(site, machine)
    python = launch.python(experiment) or (own_python if site.container is None else site.container.python)
    place = CommandPlace(
        site=site,
        device=device,
        model=model,
        model_file=chosen.file,
        checkpoint=_checkpoint(experiment, site, chosen),
        data=launch.data(experiment, site),
        megatron_data=launch.megatron_data(experiment, site),
        python=python,
        launcher_python=own_python,
        profiler=profiler,
    )
    plan = launch.plan(experiment, place)
    image = from_site(plan.image or site.container.image) if site.container else None
    runs_dir = machine.own_runs_dir or machine.runs_dir if isinstance(experiment, OwnTraining) else machine.runs_dir
    output_dir = f"{runs_dir}/{experiment.folder}"
    cpus = site.cpus_per_node or (site.cpus_per_gpu and site.cpus_per_gpu * (experiment.gpus_per_node or 1))
    nsys_options = nsys_set(experiment, site, device, plan)
    variables = _of_options(experiment)
    env = _environment(site, device, plan, variables, _threads(experiment, site, machine, cpus))
    folder = next((command.folder for command in plan.commands if command.folder), output_dir)
    own: list[Word] = [str(ROOT), runs_dir, *plan.folders]
    return Job(
        experiment=experiment,  # type: ignore[arg-type]  # an instance of one of the union's classes
        site=site,
        device=device,
        profiler=profiler,
        model=model,
        run_name=experiment.name(model.hub_name if model else None),
        directives=backend_of(site).directives(experiment, site, cpus) + site.nsys_sbatch * (profiler == "nsys"),
        modules=site.modules,
        setup=site.setup,
        node_setup=site.node_setup,
        node_cleanup=site.node_cleanup,
        env=env,
        checkout=str(ROOT),
        output_dir=output_dir,
        python=own_python,
        training_python=python,
        container=container_words(site, image, own, folder=folder, variables=list(env), cpus=cpus),
        image=image,
        checkpoint=place.checkpoint,
        data=place.data,
        megatron_data=place.megatron_data,
        nsys_options=nsys_options,
        nsys=nsys_words(experiment, nsys_options, device) if profiler == "nsys" else [],
        cpus_per_task=cpus,
        commands=plan.commands,
        after=plan.after,
        files=plan.files,
        holds_secret=isinstance(experiment, OwnTraining) and holds_secret(experiment.command),
        folders=sorted({str(PurePosixPath(t.path).parent) for t in variables.values() if isinstance(t, InRun)}),
        expects=reports_of(experiment, profiler) if plan.expects is None else plan.expects,
        requested=requested,  # type: ignore[arg-type]  # as above
        set_by=flags_of_settings(flags or {}, experiment, place, plan),
    )


def resolve_defaults(
    experiment: Experiment, site: Site, machine: Machine, device_kind: DeviceKind, trained_model: TrainedModel
) -> Experiment:
    """The experiment with all fields filled in that depend on the site, the machine or the model. Raises RequestError:
    the experiment cannot run there; one line per reason."""
    if backend_of(site).RUNS_HERE and device_kind == "cuda" and not machine.gpus:
        raise RequestError(
            f"site {site.name} has device: cuda, but this machine shows no NVIDIA GPU "
            "(CUDA_VISIBLE_DEVICES can hide it): write device: auto or cpu, or choose another site"
        )
    launch = launch_of(experiment)
    usual = _gpus_per_node(experiment, site, machine, device_kind)
    gpus = experiment.gpus_per_node or usual
    target = LaunchTarget(site, device_kind, gpus, trained_model.model, trained_model.checkpoint)
    defaults = {"gpus_per_node": usual, **launch.defaults(experiment, target)}
    filled = {name: default for name, default in defaults.items() if getattr(experiment, name) is None}
    resolved, errors = validate(type(experiment), dict(experiment) | filled)
    errors += launch.misfits(experiment, resolved, target)
    errors += _misfits(experiment, target, machine)
    if errors or resolved is None:
        raise RequestError("\n".join(errors))
    return resolved


def _gpus_per_node(experiment: Experiment, site: Site, machine: Machine, device_kind: DeviceKind) -> int:
    launch = launch_of(experiment)
    if of_site := site.defaults.get("gpus_per_node"):
        return int(of_site)
    if device_kind == "cpu" and launch.usual_cpu_ranks is not None:
        return launch.usual_cpu_ranks
    if not backend_of(site).RUNS_HERE:
        return site.gpus.per_node or USUAL_GPUS_PER_NODE
    if device_kind == "cuda":
        return machine.gpus
    return launch.cpu_ranks(experiment, max(1, min(machine.cores, USUAL_CPU_RANKS)))


def _misfits(experiment: Experiment, target: LaunchTarget, machine: Machine) -> Iterator[str]:
    """Why no exercise could run there with these options, one sentence each."""
    site, device, gpus = target.site, target.device, target.gpus_per_node
    for option in options_of(type(experiment)):
        value = getattr(experiment, option.field)
        if option.flag.gpus_only and device == "cpu" and value not in (None, (), option.default):
            yield (
                f"{option.written(value)} has an effect on GPUs only, and site {site.name} runs on CPUs: "
                "leave it out, or use a --site with GPUs"
            )
    if site.gpus.vendor != "nvidia" and isinstance(experiment, ProfiledTraining):
        flags = ["--profiler nsys"] * (experiment.profiler == "nsys") + list(for_nsys(experiment).values())
        flags += ["--engine megatron-lm"] * (launch_of(experiment).profiler(experiment) == "nsys")
        for flag in dict.fromkeys(flags):
            yield (
                f"{flag} needs nsys, which records NVIDIA's GPUs only, and site {site.name} has AMD's: leave it out; "
                "torch.profiler records there"
            )
    here, limit = backend_of(site).RUNS_HERE, site.gpus.per_node
    if here and device == "cuda" and experiment.nodes * gpus > machine.gpus:
        yield (
            f"-n {experiment.nodes} × -g {gpus} needs {experiment.nodes * gpus} GPUs and this machine has "
            f"{machine.gpus}: "
            f"the nearest is -n 1 -g {machine.gpus}"
        )
    if not here and limit is not None and gpus > limit:
        yield f"-g/--gpus-per-node: got {gpus}, a node of {site.name} has {limit}: use -g {limit}"


def python_of(site: Site, machine: Machine) -> Word:
    """The harness's own Python in the site's jobs: that of this process, unless the site names another."""
    return from_site(site.job_python) if site.job_python else machine.python


def warnings_of(job: Job, environ: Mapping[str, str]) -> list[str]:
    """What works and is probably not intended, one sentence each. environ: the variables that sbatch passes on."""
    experiment = job.experiment
    sentences = [
        *launch_of(experiment).warnings(experiment, job.site),
        *backend_of(job.site).warnings(experiment, job.site, environ),
    ]
    if not backend_of(job.site).RUNS_HERE and (where := only_here(Path(job.output_dir))):
        sentences.append(
            f"{job.output_dir} {where}, which usually no other machine sees: the nodes write there, too, so let "
            "HARNESS_RUNS name a folder that all of them share"
        )
    sentences += nsys_doubts(experiment, job.site, job.device, job.profiler)
    for name, disturbs in ((each.name, each.disturbs) for each in DISTURBING_VARIABLES if each.slows):
        if disturbs(value := str(job.env.get(name, environ.get(name, "")))):
            sentences.append(f"{name}={value} slows the training down: its throughput is not representative")
    if job.profiler == "nsys" and (secrets := kept_from_nsys(environ)):
        sentences.append(told_of_nsys(secrets))
    return sentences


def _model(experiment: Experiment, device_kind: DeviceKind) -> TrainedModel:
    if not isinstance(experiment, Training):
        return TrainedModel()
    model, file, checkpoint = find_model(experiment.model or experiment.default_model)
    if device_kind == "cpu" and experiment.model is None and model.tiny_twin:
        model, file, checkpoint = find_model(model.tiny_twin)
    return TrainedModel(model, str(file) if file else None, str(checkpoint) if checkpoint else None)


def _checkpoint(experiment: Experiment, site: Site, trained_model: TrainedModel) -> Word | None:
    """The folder of the weights to start from; None for a user's model file, which has sizes only."""
    if not isinstance(experiment, Training) or experiment.random_weights or not launch_of(experiment).takes_weights:
        return None
    if trained_model.checkpoint is not None or trained_model.model is None:
        return trained_model.checkpoint
    if site.models_dir is None or trained_model.model.tiny or trained_model.file is None:
        return None
    return from_site(f"{site.models_dir}/{trained_model.model.hub_name}")


def _environment(
    site: Site, device_kind: DeviceKind, plan: ExercisePlan, variables: Mapping[str, str | InRun], threads: int
) -> dict[str, Word]:
    of_site = site.env.get("PYTHONPATH")  # ours, then the site's, then the user's own where it is kept
    path = concatenated(f"{plan.python_path}:", from_site(of_site)) if of_site else plan.python_path
    path = concatenated(path, join(Var("PYTHONPATH", before=":"))) if plan.keeps_users else path
    env: dict[str, Word] = {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    if site.container is not None:  # what a user installed into ~/.local would hide the image's packages
        env["PYTHONNOUSERSITE"] = "1"
    if interface := site.network.interface or ("lo" if backend_of(site).RUNS_HERE else None):
        env |= {"NCCL_SOCKET_IFNAME": interface, "GLOO_SOCKET_IFNAME": interface}
    if device_kind == "cpu":
        # Without the last, DeepSpeed looks for GPUs and warns of their absence in each process.
        env |= {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
    own = {name: from_site(text) for name, text in site.env.items() if name != "PYTHONPATH"}
    env |= plan.environment | own
    env |= {
        name: join(RUN_DIR, f"/{text.path}") if isinstance(text, InRun) else text for name, text in variables.items()
    }
    number: Word = join(Var("OMP_NUM_THREADS", otherwise=str(threads))) if plan.keeps_users else str(threads)
    return {**env, "OMP_NUM_THREADS": env.get("OMP_NUM_THREADS", number)}


def _of_options(experiment: Experiment) -> dict[str, str | InRun]:
    pairs = [(option, getattr(experiment, option.field)) for option in options_of(type(experiment))]
    return {name: text for option, value in pairs for name, text in option.environment(value).items()}


def _threads(experiment: Experiment, site: Site, machine: Machine, cpus: int | None) -> int:
    ranks = experiment.gpus_per_node or 1
    available = machine.cores // experiment.nodes if backend_of(site).RUNS_HERE else cpus or ranks
    return max(1, available // ranks)
