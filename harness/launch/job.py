"""Experiment × site, resolved: what will run, as data. Pure: reads no file but the models and option sets named.

Nothing here is text for a shell; a word that only the running job can complete is a `Shell` word.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple

from harness.common.errors import RequestError
from harness.common.paths import ROOT
from harness.experiment.exercises import AnyExperiment, CommTests, Experiment, Megatron, Training
from harness.experiment.model import Model, find_model
from harness.experiment.options import options_of
from harness.launch.argv import Word, from_site, prefixed, shown
from harness.launch.backends.registry import backend_of
from harness.launch.exercises.commands import Command, Place, commands_of
from harness.launch.resolve import Device, Machine, fit, uses_megatron_lm
from harness.site.site import Site

DEFAULT_MODELS = {1: "llama-3.2-1b", 2: "mistral-7b", 3: "mistral-7b"}
# The slides' order, which scripts that read run names rely on.
TAG_ORDER = (
    *("n", "g", "mbs", "gas", "gbs", "mixed", "actckpt", "tp", "pp"),
    *("commoverlap", "heavycomm", "hpz", "ZeRO", "slowdl", "script"),
)
_LONGEST_TAG = 40  # characters: a file system takes 255 for the whole name

SLOWING = {"CUDA_LAUNCH_BLOCKING": "1", "NCCL_DEBUG": "TRACE"}


@dataclass(frozen=True)
class Job:
    """All that the template needs, and all that run.json keeps."""

    experiment: AnyExperiment
    site: Site
    device: Device
    profiler: Literal["nsys", "torch", "none"]
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
    python: str
    container: list[Word]
    image: Word | None  # the container's file
    checkpoint: Word | None  # folder of the weights to start from
    data: Word | None  # instruction data
    megatron_data: Word | None  # prefix of .bin and .idx
    nsys_options: str
    cpus_per_task: int | None
    commands: list[Command]  # one after the other, on every node
    after: list[Command]  # then on the first node only
    files: dict[str, str]  # small files of the run directory
    expects: list[str]  # reports that must be there afterwards, relative to the run directory

    def as_json(self) -> dict[str, Any]:
        """What run.json keeps."""
        from pydantic import TypeAdapter  # noqa: PLC0415 - its schema takes longer than all of a dry run

        dumped: dict[str, Any] = TypeAdapter(Job).dump_python(self, mode="json")
        return dumped

    def name_for(self, job_id: str) -> str:
        """The run's directory name, as on the workshop's slides."""
        return f"{self.run_name[0]}-{job_id}{self.run_name[1]}"


def resolve(experiment: Experiment, site: Site, machine: Machine) -> Job:
    """The job that `experiment` is at `site`.

    Raises:
        RequestError: they do not fit; every reason is one line.
    """
    device = _device(site, machine)
    model, place_model = _model(experiment, device)
    asked = fit(experiment, site, machine, device, model)
    profiler = _profiler(asked, site, device, machine)
    python = machine.python if site.container is None else site.container.python
    place = Place(
        site=site,
        device=device,
        model=model,
        model_file=place_model.file,
        checkpoint=_checkpoint(asked, site, model, place_model.checkpoint),
        data=_data(asked, site),
        megatron_data=_megatron_data(asked, site),
        python=python,
        launcher_python=machine.python,
        checkout=str(ROOT),
        profiler=profiler,
    )
    plan = commands_of(asked, place)
    image = _image(asked, site)
    cpus = site.cpus_per_node or (site.cpus_per_gpu and site.cpus_per_gpu * (asked.gpus_per_node or 1))
    return Job(
        experiment=asked,  # type: ignore[arg-type]  # an instance of one of the union's classes
        site=site,
        device=device,
        profiler=profiler,
        model=model,
        run_name=_run_name(asked, model),
        directives=backend_of(site).directives(asked, site, cpus),
        modules=site.modules,
        setup=site.setup,
        node_setup=site.node_setup,
        node_cleanup=site.node_cleanup,
        env=_environment(asked, site, device, _threads(asked, site, machine, cpus)),
        checkout=str(ROOT),
        output_dir=f"{machine.runs_dir}/{asked.folder}",
        python=machine.python,
        container=_container(site, image, machine.runs_dir, plan.folders),
        image=image,
        checkpoint=place.checkpoint,
        data=place.data,
        megatron_data=place.megatron_data,
        nsys_options=_nsys_options(asked, site, device),
        cpus_per_task=cpus,
        commands=plan.commands,
        after=plan.after,
        files=plan.files,
        expects=_expected_reports(asked, profiler),
    )


class _ModelPlace(NamedTuple):
    file: str | None
    checkpoint: str | None


def warnings_of(job: Job, environ: Mapping[str, str]) -> list[str]:
    """What works and is probably not meant, one sentence each. `environ`: what sbatch would pass on."""
    asked = job.experiment
    found = []
    if isinstance(asked, Megatron) and asked.tp and asked.gpus_per_node and asked.tp > asked.gpus_per_node:
        found.append(
            f"--tp {asked.tp} is more than the {asked.gpus_per_node} GPUs of a node: tensor-parallel all-reduces will "
            "cross the slow network; pipeline stages (--pp) are meant for that"
        )
    found += backend_of(job.site).warnings(asked, job.site, environ)
    if isinstance(asked, Training) and asked.profiler == "auto" and job.device == "cuda":
        found += [NO_NSYS] * (job.profiler == "torch" and job.site.profiler is None)
    for name, bad in SLOWING.items():
        if job.env.get(name, environ.get(name)) == bad:
            found.append(f"{name}={bad} slows the training down: its throughput is not worth publishing")
    return found


NO_NSYS = (
    "nothing here brings nsys, so torch.profiler records instead: name its module in a site file, or insist with "
    "--profiler nsys"
)


def _device(site: Site, machine: Machine) -> Device:
    if site.device == "auto":
        return "cuda" if machine.gpus else "cpu"
    return site.device


def _model(experiment: Experiment, device: Device) -> tuple[Model | None, _ModelPlace]:
    if not isinstance(experiment, Training):
        return None, _ModelPlace(None, None)
    model, file, checkpoint = find_model(experiment.model or DEFAULT_MODELS[experiment.exercise])
    if device == "cpu" and experiment.model is None and model.tiny_twin:
        model, file, checkpoint = find_model(model.tiny_twin)
    return model, _ModelPlace(str(file) if file else None, str(checkpoint) if checkpoint else None)


def _profiler(
    asked: Experiment, site: Site, device: Device, machine: Machine
) -> Literal["nsys", "torch", "none"]:
    if not isinstance(asked, Training):
        return "none"
    if asked.profiler != "auto":
        return asked.profiler
    if uses_megatron_lm(asked) or (asked.nsys2prv and device == "cuda"):
        return "nsys"
    if site.profiler:
        return site.profiler
    return "torch" if device == "cpu" or _lacks_nsys(site, machine) else "nsys"


def _lacks_nsys(site: Site, machine: Machine) -> bool:
    """True when nothing promises an nsys: this machine has none, and no module or line of the site brings it."""
    return not machine.has_nsys and not (site.modules or site.setup)


def _checkpoint(asked: Experiment, site: Site, model: Model | None, given: str | None) -> Word | None:
    if not isinstance(asked, Training) or asked.random_weights or model is None:
        return None
    if given is not None:
        return given
    if site.models_dir is None or model.tiny_twin is None or isinstance(asked, Megatron):
        return None
    return from_site(f"{site.models_dir}/{model.hub_name}")


def _data(asked: Experiment, site: Site) -> Word | None:
    if not isinstance(asked, Training) or _megatron_data(asked, site) is not None or uses_megatron_lm(asked):
        return None
    return asked.data or (from_site(site.data) if site.data else None)


def _megatron_data(asked: Experiment, site: Site) -> Word | None:
    if not isinstance(asked, Megatron):
        return None
    if asked.data_path is not None or asked.data is not None:
        return asked.data_path
    return from_site(site.megatron_data) if site.megatron_data else None


def _run_name(asked: Experiment, model: Model | None) -> tuple[str, str]:
    tags = {
        option.flag.tag: f"-{option.flag.tag}{_short(getattr(asked, option.field))}"
        for option in options_of(type(asked))
        if option.flag.tag and getattr(asked, option.field) is not None and _shown(asked, option.field)
    }
    return (model.hub_name if model else "comm-tests"), "".join(tags[t] for t in TAG_ORDER if t in tags)


def _shown(asked: Experiment, field: str) -> bool:
    """Switches that most runs leave alone only show when they are on, so that names stay the slides'."""
    return field not in ("slow_dataloading", "heavy_comm") or bool(getattr(asked, field))


def _short(value: object) -> str:
    if isinstance(value, str):  # of a file, what a folder's name may have
        return re.sub(r"\W", "_", PurePosixPath(value).stem, flags=re.ASCII)[:_LONGEST_TAG]
    return str(int(value)) if isinstance(value, bool) else str(value)


def _environment(asked: Experiment, site: Site, device: Device, threads: int) -> dict[str, Word]:
    env: dict[str, Word] = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    if site.network.interface:
        env |= dict.fromkeys(("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"), site.network.interface)
    elif backend_of(site).RUNS_HERE:
        env |= dict.fromkeys(("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"), "lo")
    if device == "cpu":
        env |= {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}
    if isinstance(asked, Megatron) and device == "cuda":
        # Kernels start in the order they were launched, so that communication overlaps; Megatron-LM insists on it.
        env["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    env |= {name: from_site(text) for name, text in site.env.items()}
    if site.env.get("PYTHONPATH"):
        env["PYTHONPATH"] = prefixed(f"{ROOT}:", env["PYTHONPATH"])
    return {**env, "OMP_NUM_THREADS": env.get("OMP_NUM_THREADS", str(threads))}


def _image(asked: Experiment, site: Site) -> Word | None:
    if site.container is None:
        return None
    nemo = site.container.nemo_image if uses_megatron_lm(asked) else None
    return from_site(nemo or site.container.image)


def _container(site: Site, image: Word | None, runs_dir: str, folders: list[Word]) -> list[Word]:
    """The words before the program to run inside; none when there is no container.

    Raises:
        RequestError: a folder's name cannot be written as a bind.
    """
    if site.container is None or image is None:
        return []
    ours: list[Word] = [str(ROOT), runs_dir, *folders]
    for bind in ours:
        if set(shown(bind)) & set(",:"):
            raise RequestError(
                f"{shown(bind)}: {site.container.command} cannot bind a path with a comma or a colon in its name: "
                "rename it, or use another place"
            )
    binds = [*ours[:2], *map(from_site, site.container.binds), *ours[2:]]
    unique = [b for i, b in enumerate(binds) if b not in binds[:i]]
    flags = [word for bind in unique for word in ("--bind", bind)]
    return [site.container.command, *site.container.arguments, *flags, image]


def _nsys_options(asked: Experiment, site: Site, device: Device) -> str:
    if device == "cpu":
        return "cpu"
    if site.nsys == "default" and isinstance(asked, Megatron):
        return "megatron"
    return site.nsys


def _threads(asked: Experiment, site: Site, machine: Machine, cpus: int | None) -> int:
    ranks = asked.gpus_per_node or 1
    available = machine.cores // asked.nodes if backend_of(site).RUNS_HERE else cpus or ranks
    return max(1, available // ranks)


def _expected_reports(asked: Experiment, profiler: str) -> list[str]:
    if isinstance(asked, CommTests):
        return ["comm/collectives.json"]
    world = asked.world_size or 1
    if profiler == "torch":
        return [f"torch/rank{r}.json.gz" for r in range(world)]
    if profiler == "nsys":
        return [f"nsys/profile_node{n}.nsys-rep" for n in range(asked.nodes)]
    return []
