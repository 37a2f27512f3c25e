"""References as they are stored: which there are, what each holds, and what two runs must share. Writes nothing.

A reference is a folder: `reference.json`, a small index, and one file per variant.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.analysis.labels import are_cpus
from harness.analysis.summary import Summary
from harness.common.errors import RequestError, WorkError, nearest_or_list
from harness.common.paths import COMMAND, CONFIGS, expanded
from harness.common.run_folder.submission import variables_in
from harness.common.system.bounded_read import MOST_BYTES, BoundedReadError, open_regular, read_bounded
from harness.experiment.exercises import (
    EXERCISES,
    AnyExperiment,
    OwnTraining,
    ProfiledTraining,
    Training,
    experiment_of,
)
from harness.experiment.options import options_of
from harness.run import runs_root, why_invalid

SHIPPED = CONFIGS / "references" / "stored"
INDEX = "reference.json"
UNKNOWN_DEVICE = "unknown"
MOST_INDEX_BYTES = 1_000_000  # of ours with 20 variants some 30 kB
INJECTED = ("faults", "mystery")  # what makes a run slow on purpose
_CONVERTS = "nsys2prv"  # after the run: it changes nothing that is measured
_PROFILERS = {"kineto": "torch"}  # a reader's name -> the profiler's, where they differ


class FilePart(BaseModel):
    """A piece of a file: unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Hardware(FilePart):
    """What times depend on. machine: of a run without a scheduler, a digest of its host's name: two computers with one
    kind of processor are two machines, and two nodes of a cluster are not."""

    device_kind: Literal["cpu", "gpu"]
    device: str
    cores: int | None = None
    machine: str | None = None


class Environment(FilePart):
    """With what runs were made. software: versions by name, also of driver, CUDA and NCCL; tools: what only records.

    container: sha256 of the image. commit: of the harness.
    """

    site: str
    hardware: Hardware
    software: dict[str, str]
    tools: dict[str, str] = {}
    container: str | None = None
    commit: str | None = None


class StoredRun(FilePart):
    """One run. path: from the folder of runs; created_ns: of its record, which tells it from another run of this path.
    environment: its place among those of the reference. steps_ns: each counted step, mean over ranks. doubts: why not
    to trust its times.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)  # earlier versions: `traces`

    path: str
    created_ns: int
    environment: int = 0
    nodes: tuple[str, ...]
    metrics: dict[str, float]
    steps_ns: tuple[int, ...]
    doubts: tuple[str, ...] = ()


class StoredRuns(FilePart):
    """variants/NAME.json."""

    schema_version: Literal[1] = 1
    variant: str
    runs: tuple[StoredRun, ...] = Field(min_length=1)


class StoredVariant(FilePart):
    """A variant in the index. asked: as typed, without what the site decides. compared: what two runs must have in
    common to be compared. sha256: of its file. step_ns: median of its runs' median steps."""

    name: str
    lessons: tuple[str, ...] = ()
    command: str
    asked: AnyExperiment
    compared: dict[str, Any]
    runs: int
    step_ns: int | None
    sha256: str


class Reference(FilePart):
    """reference.json. traces_in: the folder of the runs as a site file names it; None: they stayed among the runs.

    missing: variants of the list without a run, and why.
    """

    schema_version: Literal[1] = 1
    name: str
    variants_from: str  # the list's name
    created_ns: int
    site: str
    traces_in: str | None = None
    environments: tuple[Environment, ...] = Field(min_length=1)
    variants: tuple[StoredVariant, ...] = Field(min_length=1)
    missing: dict[str, str] = {}

    @property
    def hardware(self) -> Hardware:
        """On what it was recorded, by the first run that says it."""
        every = [each.hardware for each in self.environments]
        return next((each for each in every if each.device != UNKNOWN_DEVICE), every[0])

    @property
    def complete(self) -> bool:
        """Whether every variant of its list has its runs."""
        return not self.missing

    def missing_lines(self) -> list[str]:
        """What it lacks, a line for each reason."""
        names: dict[str, list[str]] = {}
        for name, why in self.missing.items():
            names.setdefault(why, []).append(name)
        return [f"missing: {', '.join(lacking)}: {why}" for why, lacking in names.items()]


Stored = TypeVar("Stored", bound=FilePart)


def own_place() -> Path:
    """Where new references go: HARNESS_REFERENCES, else references/ in the folder of the runs."""
    given = os.environ.get("HARNESS_REFERENCES")
    return expanded(given).absolute() if given else runs_root() / "references"


def reference_folders() -> Iterator[Path]:
    """The folder of every stored reference; of two with one name, one's own."""
    seen = set[str]()
    for place in (own_place(), SHIPPED):
        for index in sorted(place.glob(f"[!.]*/{INDEX}")):
            if index.parent.name not in seen:
                seen.add(index.parent.name)
                yield index.parent


def reference_folder(name: str) -> Path:
    """The folder of a reference by its name, or the folder itself. Raises RequestError: there is no such reference."""
    given = expanded(name)
    if (given / INDEX).is_file():
        return given
    known = {folder.name: folder for folder in reference_folders()}
    if name in known:
        return known[name]
    hint = nearest_or_list(name, known, f"{COMMAND} reference show lists all")
    raise RequestError(f"there is no reference {name!r}{hint}")


def read_reference(folder: Path) -> Reference:
    """The index of a reference. Raises WorkError: it cannot be read or is not one of ours."""
    return _read(folder / INDEX, Reference, MOST_INDEX_BYTES)


def read_runs(folder: Path, variant: StoredVariant) -> StoredRuns:
    """The runs of a variant. Raises WorkError: they cannot be read, or were changed after they were recorded."""
    path = variant_file(folder, variant.name)
    found = _read(path, StoredRuns, MOST_BYTES)
    if file_digest(path) != variant.sha256:
        raise WorkError(f"{path}: was changed after it was recorded (its sha256 is not that of {INDEX})")
    return found


def variant_file(folder: Path, variant: str) -> Path:
    return folder / "variants" / f"{variant}.json"


def file_digest(path: Path) -> str:
    """sha256 of a regular file's content. Raises OSError or BoundedReadError."""
    digest = sha256()
    with open_regular(path) as content:
        while block := content.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _read(path: Path, shape: type[Stored], most_bytes: int) -> Stored:
    try:
        return shape.model_validate_json(read_bounded(path, most_bytes))
    except (OSError, ValueError) as error:
        what = "cannot be read" if isinstance(error, OSError | BoundedReadError) else "is not a reference"
        raise WorkError(f"{path}: {what} ({why_invalid(error)})") from None


def readable_references() -> Iterator[tuple[Path, Reference]]:
    """The references with their folders. One that cannot be read is left out: no check fails because of it."""
    for folder in reference_folders():
        with suppress(WorkError):
            yield folder, read_reference(folder)


Settings = dict[str, Any]


def compared_settings(s: Summary) -> Settings:
    """What must agree between two runs that are compared, as JSON has it, with the variables that they inherited from
    their shell; empty for traces from elsewhere. Settings that the request left open are those that were resolved."""
    resolved = (s.run or {}).get("resolved")
    asked = experiment_of(resolved if isinstance(resolved, dict) else s.experiment)
    if asked is None:
        return {}
    shown = {option.field for option in options_of(type(asked)) if option.flag.compared} - {_CONVERTS}
    settings = asked.model_dump(mode="json", include=shown)
    if isinstance(asked, Training):
        settings["model"] = next((t.model for t in s.training if t.model), settings["model"])
    if isinstance(asked, OwnTraining):
        settings |= {"exercise": asked.exercise, "command": list(asked.command)}
    if isinstance(asked, ProfiledTraining):
        tools = {_PROFILERS.get(source.tool, source.tool) for source in s.sources}
        settings["profiler"] = ", ".join(sorted(tools)) or "none"
    return settings | variables_in(s.run)


def differing(stored: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Setting -> (stored, own) where they differ. An option that is newer than the reference had its default; a value
    of an older version is that of today."""
    number = own.get("exercise")
    cls = OwnTraining if number == "own" else EXERCISES.get(number) if isinstance(number, int) else None
    usual = cls.model_validate({}).model_dump(mode="json") if cls else {}
    if cls is not None:
        known = {name: value for name, value in stored.items() if name in cls.model_fields}
        with suppress(ValidationError):  # a value that no option takes any more differs
            stored = {**stored, **cls.model_validate(known).model_dump(mode="json", include=set(known))}
    names = dict.fromkeys([*stored, *own])
    pairs = {name: (stored.get(name, usual.get(name)), own.get(name, usual.get(name))) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def device_kind(s: Summary) -> Literal["cpu", "gpu"]:
    on_cpu = are_cpus(s.devices) or (not s.devices and any(t.device == "cpu" for t in s.training))
    return "cpu" if on_cpu else "gpu"


def trusted_runs(runs: Sequence[StoredRun]) -> Sequence[StoredRun]:
    """Those whose times are not in doubt; all if each has a doubt, such as more ranks than cores."""
    return [run for run in runs if not run.doubts] or runs
