"""A site: one YAML file, validated on load. Everything that may reach a `#SBATCH` line is checked against a narrow
alphabet, so that neither a site file nor a flag can add a second line to a script. Knows of the experiments only their
fields, and writes no script."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from harness.common.errors import RequestError, nearest, nearest_or_list
from harness.common.paths import COMMAND, CONFIGS, README_OF_IMAGES, expanded
from harness.common.system.slurm_notation import seconds_of
from harness.experiment.exercises import EXERCISES, OwnTraining
from harness.experiment.options import options_of, setting, value
from harness.experiment.yaml_file import read_yaml
from harness.site.alphabets import (
    CLOCK_PATTERN,
    TAKES,
    WORD_PATTERN,
    Environment,
    Name,
    PlainWord,
    SbatchLine,
    ShellLine,
    Suffix,
    Text,
    TimeLimit,
)

SITES = CONFIGS / "sites"


def _known_defaults(defaults: dict[str, Any]) -> dict[str, Any]:
    of_exercises = {name for cls in EXERCISES.values() for name in cls.model_fields}
    fields = {*of_exercises, *OwnTraining.model_fields} - {"exercise", "command", "start_in"}
    for name in defaults.keys() - fields:
        near = nearest(name, fields)
        raise ValueError(f"no exercise has a field {name}" + (f" (did you mean {near}?)" if near else ""))
    return defaults


class SitePart(BaseModel):
    """A piece of a site file: unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @field_validator("*")
    @classmethod
    def _no_nul(cls, value: Any) -> Any:
        texts = value if isinstance(value, list) else (*value, *value.values()) if isinstance(value, dict) else [value]
        if any(isinstance(text, str) and "\0" in text for text in texts):
            raise ValueError("no command line can carry a NUL byte")
        return value


class Detect(SitePart):
    """How a machine of this site is recognised."""

    hosts: list[str] = setting([], "shell patterns of full host names")
    clusters: list[str] = setting([], "values of SLURM_CLUSTER_NAME")


class Gpus(SitePart):
    """The GPUs of a node and how Slurm is asked for them."""

    per_node: int | None = setting(None, "GPUs per node; default of -g", ge=1)
    request: Literal["gres", "gpus-per-node", "gpus-per-task", "none"] = setting("gres", "syntax that the site accepts")
    type: PlainWord | None = setting(None, "GPU type in the request, if the site requires it")
    name: str | None = setting(None, "model, for people")
    vendor: Literal["nvidia", "amd"] = setting(
        "nvidia", "their vendor; amd: torch.profiler records, because nsys supports NVIDIA only"
    )


class Container(SitePart):
    """What the training runs in; leave it out to run on the node itself."""

    runtime: Literal["singularity", "apptainer", "pyxis", "none"] = setting(
        "singularity", "what starts the container; pyxis: Slurm's srun; none: no container, as without this section"
    )
    command: PlainWord | None = setting(None, "the runtime's program, if it has another name or path")
    image: Text = Field(description="the .sif file or sandbox; with pyxis a .sqsh file, or an image of a registry")
    nemo_image: Text | None = setting(None, "the image with Megatron-LM, for --engine megatron-lm")
    arguments: list[str] = setting(
        ["exec", "--nv"], "options before the image; with pyxis options of srun, [--container-mount-home] by default"
    )
    binds: list[Text] = setting([], "HOST[:INSIDE] paths beside the checkout and the run")
    python: str = setting(
        "python3", "the Python inside that has PyTorch; with pyxis its full path, because srun looks for names outside"
    )

    @model_validator(mode="before")
    @classmethod
    def _as_the_runtime_has_it(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        own: dict[str, Any] = {}
        if given.get("runtime") == "pyxis":
            own = {"arguments": given.get("arguments", ["--container-mount-home"])}
        elif given.get("runtime") == "none":
            own = {"image": given.get("image", "")}
        return {**given, **own}

    @field_validator("image", "nemo_image")
    @classmethod
    def _of_the_runtimes_kind(cls, image: str | None, info: ValidationInfo) -> str | None:
        if image is None or info.data.get("runtime") != "pyxis":
            return image
        if image.endswith(".sif"):
            raise ValueError(f"pyxis reads .sqsh files and images of a registry ({README_OF_IMAGES})")
        if image.endswith(".sqsh") and not image.startswith(("/", "$")):
            raise ValueError("pyxis looks for it in a registry: write the whole path, from / on")
        return image

    @property
    def in_srun(self) -> bool:
        """Whether srun makes the container, and the program is no child of what started it."""
        return self.runtime == "pyxis"

    @property
    def program(self) -> str:
        """The program that makes it."""
        return self.command or ("srun" if self.in_srun else self.runtime)


class Network(SitePart):
    """Between the nodes."""

    interface: PlainWord | None = setting(None, "NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME")
    host_suffix: Suffix | None = setting(None, "added to the head node's name to reach its fast network")
    torchrun: Literal["torchrun", "torchrun_jsc"] = setting(
        "torchrun", "how the ranks of several nodes find each other; torchrun_jsc: PyTorch's c10d with the fix of JSC"
    )
    ports: int | None = setting(None, "network ports of a node that trainings use", ge=1)
    expected_gbps: float | None = setting(None, "rate of one port, Gb/s; exercise 0 compares ibstat with it", gt=0)
    link_intra_gbps: float | None = setting(
        None, "nominal rate of one GPU's links inside a node, one direction, Gb/s", gt=0
    )
    link_inter_gbps: float | None = setting(
        None, "nominal rate of one GPU's share of the network, one direction, Gb/s", gt=0
    )


class Course(SitePart):
    """The folder of a course, whose files come first where you can read them. Its parts are named inside it."""

    folder: Text | None = setting(None, "the folder; HARNESS_COURSE_FOLDER sets another")
    image: Text = setting("containers/ai-profiling-workshop.sif", "instead of container.image")
    models_dir: Text = setting("models", "instead of models_dir")
    data: Text = setting("DATA/alpaca-cleaned/alpaca_data_cleaned.json", "instead of data")
    packages: Text = setting("packages", "Python packages that the image lacks; bound, and on PYTHONPATH")


class Site(SitePart):
    """One place to run. Fields with a flag can be overridden on the command line."""

    name: PlainWord
    description: str
    scheduler: PlainWord = setting("slurm", "name of the backend that runs the jobs")
    device: Literal["cuda", "cpu", "auto"] = setting("cuda", "auto: detect (local only)")
    # Factories: an instance here would build its class's validator at every start.
    detect: Detect = Field(default_factory=Detect)
    login: PlainWord | None = setting(
        None, "the address that a laptop reaches by ssh (default: this machine's full name)"
    )
    account: PlainWord | None = value("-a", "--account", metavar="NAME", group="where").option(None, "Slurm account")
    needs_account: bool = setting(False, "Slurm refuses jobs here that name no account")
    partition: PlainWord | None = value("-p", "--partition", metavar="NAME", group="where").option(
        None, "Slurm partition"
    )
    qos: PlainWord | None = value("-q", "--queue", metavar="NAME", group="where").option(
        None, "Slurm quality of service"
    )
    time: TimeLimit = value("--time", metavar="HH:MM:SS", group="where").option("00:30:00", "time limit, HH:MM:SS")
    allocation: Literal["auto", "use", "submit"] = value("--allocation", metavar="WORD", group="where").option(
        "auto", "inside an allocation (salloc): use it, or submit a job; auto: use it if the run fits"
    )
    gpus: Gpus = Field(default_factory=Gpus)
    cpus_per_node: int | None = setting(None, "CPUs of a node's one launcher task", ge=1)
    cpus_per_gpu: int | None = setting(None, "CPUs per GPU, if nodes are shared", ge=1)
    memory: PlainWord | None = setting(None, "--mem; leave out if the site sets it")
    exclusive: bool = False
    nodelist: PlainWord | None = setting(None, "the nodes of a job, by name, with commas; as many as -n takes")
    max_nodes: int | None = setting(None, "largest job that this file's partition and QOS allow, in nodes", ge=1)
    sbatch: list[SbatchLine] = setting([], "further sbatch options, one --option=value each")
    nsys_sbatch: list[SbatchLine] = setting([], "as sbatch, only for jobs that nsys records")
    modules: list[PlainWord] = setting([], "modules the job loads")
    purge_modules: bool = setting(False, "first unload those of the shell that submits: module purge")
    python_module: PlainWord | None = setting(None, "module with a Python ≥ 3.10, for the launcher")
    job_python: Text | None = setting(
        None, "the harness's Python on the nodes, if the Python that submits does not run there"
    )
    setup: list[ShellLine] = setting([], "shell lines the job runs first (trusted: they are yours)")
    node_setup: list[ShellLine] = setting([], "as setup, but on every node; a line that fails only gives a warning")
    node_cleanup: list[ShellLine] = setting([], "shell lines that every node runs after the training; as node_setup")
    env: Environment = setting({}, "environment of the training")
    container: Container | None = None
    course: Course = Field(default_factory=Course)
    network: Network = Field(default_factory=Network)
    signal_seconds: int = setting(120, "warning before the time limit; 0: none", ge=0, le=3600)
    profiler: Literal["nsys", "torch", "none"] | None = setting(
        None, "what --profiler auto means here (default: nsys if it is there)"
    )
    nsys: str = setting("default", "a name from configs/nsys, or a file")
    defaults: Annotated[dict[Name, int | float | bool | str], AfterValidator(_known_defaults)] = setting(
        {}, "defaults of experiment fields here, e.g. active_steps: 5; a flag overrides them"
    )
    data: Text | None = setting(None, "instruction data in Alpaca's JSON format")
    megatron_data: Text | None = setting(None, "Megatron .bin/.idx prefix")
    models_dir: Text | None = setting(None, "folder of checkpoints, one per hub name")
    reference_traces: Text | None = setting(
        None, "folder to which `reference record` copies its runs (default: they stay among the runs)"
    )

    @field_validator("container")
    @classmethod
    def _none_is_no_container(cls, container: Container | None) -> Container | None:
        return None if container is not None and container.runtime == "none" else container

    @field_validator("profiler")
    @classmethod
    def _nsys_knows_no_amd(cls, profiler: str | None, info: ValidationInfo) -> str | None:
        gpus = info.data.get("gpus")
        if profiler == "nsys" and gpus is not None and gpus.vendor == "amd":
            raise ValueError("it records NVIDIA's GPUs only, and gpus.vendor is amd: leave the field out")
        return profiler

    @field_validator("job_python")
    @classmethod
    def _found_in_every_folder(cls, path: str | None) -> str | None:
        if path is not None and not path.startswith(("/", "$")):
            raise ValueError("a job runs in another folder: write the whole path, from / on")
        return path

    @property
    def in_srun(self) -> bool:
        """Whether srun makes the container of a job here."""
        return self.container is not None and self.container.in_srun

    @property
    def time_s(self) -> int:
        return seconds_of(self.time) or 0

    @property
    def warning_s(self) -> int:
        """Seconds before the time limit at which the job is warned; at most a quarter of a short limit."""
        return min(self.signal_seconds, self.time_s // 4)


def site_names() -> list[str]:
    """The sites that come with the harness."""
    return sorted(p.stem for p in SITES.glob("*.yaml"))


def load_site(name_or_path: str, source: str = "--site") -> Site:
    """The site of this name, or the one in this file; `source`: the flag or variable that named it. Raises
    RequestError: there is no such site, or its file cannot be read or is not valid."""
    path = SITES / f"{name_or_path}.yaml"
    if "/" in name_or_path or name_or_path.endswith((".yaml", ".yml")):
        path = expanded(name_or_path)
    elif name_or_path not in site_names():
        where = f"{COMMAND} sites lists all; the path of a site file is taken, too"
        hint = nearest_or_list(name_or_path, site_names(), where)
        raise RequestError(f"{source}: there is no site {name_or_path!r}{hint}")
    return _validated(path, read_yaml(path, "site file"))


def override(site: Site, given: Mapping[str, Any]) -> Site:
    """The site with some of its fields replaced, as `-a`, `-p`, `-q` and `--time` do. Raises RequestError: a value is
    not allowed; one line each."""
    # What `max_nodes` limits is the site's QOS, or its partition where it names no QOS.
    queue = ("qos",) if site.qos else ("qos", "partition")
    is_same = all(given.get(name, getattr(site, name)) == getattr(site, name) for name in queue)
    limits = {} if is_same else {"max_nodes": None}
    try:
        return Site.model_validate(site.model_dump() | limits | dict(given)) if given else site
    except ValidationError as error:
        spelling = {o.field: o.spelling for o in options_of(Site)}
        takes = {"time": TAKES[CLOCK_PATTERN]}
        takes |= {str(e["loc"][0]): e["ctx"]["expected"] for e in error.errors() if e["type"] == "literal_error"}
        lines = [
            f"{spelling[str(e['loc'][0])]}: got {e['input']!r}, "
            f"takes {takes.get(str(e['loc'][0]), TAKES[WORD_PATTERN])}"
            for e in error.errors()
        ]
        raise RequestError("\n".join(lines)) from None


def _validated(path: Path, data: object) -> Site:
    if not isinstance(data, Mapping):
        raise RequestError(f"site file {path}: it must be a mapping of fields (see configs/sites/slurm.yaml)")
    try:
        return Site.model_validate(data)
    except ValidationError as error:
        raise RequestError(f"site file {path}: {'; '.join(_sentences(error))}") from None


def _sentences(error: ValidationError) -> Iterator[str]:
    for e in error.errors():
        where, given = ".".join(map(str, e["loc"])), e["input"]
        if e["type"] == "extra_forbidden":
            near = nearest(str(e["loc"][-1]), _known_fields(e["loc"][:-1]))
            yield f"unknown field {where}" + (f" (did you mean {near}?)" if near else "")
        elif e["type"] in ("secret", "taken"):
            yield f"field {where}: {e['msg']}"
        elif e["type"] == "missing":
            yield f"field {where} is missing"
        elif e["type"] == "string_type" and isinstance(given, int | float | date):
            yield f"field {where} is text, and YAML reads it as {given}: quote it"
        elif e["type"] == "literal_error":
            near = nearest(str(given), re.findall("'([^']*)'", e["ctx"]["expected"]))
            hint = f" (did you mean {near}?)" if near else ""
            yield f"field {where}: got {given!r}, takes {e['ctx']['expected']}{hint}"
        elif e["type"] == "string_pattern_mismatch":
            yield f"field {where}: got {given!r}, takes {TAKES[e['ctx']['pattern']]}"
        else:
            said = e["msg"].removeprefix("Value error, ")
            yield f"field {where} is {given!r}: {said[0].lower()}{said[1:]}"


def _known_fields(loc: tuple[int | str, ...]) -> list[str]:
    part: type[BaseModel] = Site
    for name in loc:
        annotation = part.model_fields[str(name)].annotation if str(name) in part.model_fields else None
        inner = [a for a in (annotation, *getattr(annotation, "__args__", ())) if isinstance(a, type)]
        part = next((a for a in inner if issubclass(a, BaseModel)), part)
    return list(part.model_fields)
