"""References as they are stored: which there are, what each holds, and reading them. Writes nothing, and knows neither
who records a reference nor what it is compared with.

A reference is a folder: `reference.json`, a small index that every report may read, and `variants/NAME.json` with the
numbers of each variant's runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.common.bounded_read import MOST_BYTES, BoundedReadError, open_regular, read_bounded, why_unread
from harness.common.errors import RequestError, WorkError, nearest_or_list
from harness.common.paths import CONFIGS, PROGRAM, expanded
from harness.experiment.exercises import AnyExperiment
from harness.run import runs_root

SHIPPED = CONFIGS / "references" / "stored"
INDEX = "reference.json"
UNKNOWN_DEVICE = "unknown"
MOST_INDEX_BYTES = (
    1_000_000  # of ours with 20 variants some 30 kB: a report reads no file that is much larger
)


class StoredPart(BaseModel):
    """A piece of a stored reference: unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Hardware(StoredPart):
    """What times depend on. machine: of a run without a scheduler, a digest of its host's name: two computers with one
    kind of processor are two machines, and two nodes of a cluster are not."""

    device_kind: Literal["cpu", "gpu"]
    device: str
    cores: int | None = None
    machine: str | None = None


class Environment(StoredPart):
    """With what runs were made. software: versions by name, also of driver, CUDA and NCCL; tools: what only records.

    container: sha256 of the image. commit: of the harness.
    """

    site: str
    hardware: Hardware
    software: dict[str, str]
    tools: dict[str, str] = {}
    container: str | None = None
    commit: str | None = None


class StoredTrace(StoredPart):
    """A trace that a run left. path: from the folder of runs."""

    path: str
    size_bytes: int
    sha256: str


class StoredRun(StoredPart):
    """One run. path: from the folder of runs. environment: its place among those of the reference. steps_ns: each
    counted step, mean over ranks; of many steps their percentiles, the least first. doubts: why not to trust its times.
    """

    path: str
    created_ns: int
    environment: int = 0
    nodes: tuple[str, ...]
    metrics: dict[str, float]
    steps_ns: tuple[int, ...]
    doubts: tuple[str, ...] = ()
    traces: tuple[StoredTrace, ...] = ()


class StoredRuns(StoredPart):
    """variants/NAME.json."""

    schema_version: Literal[1] = 1
    variant: str
    runs: tuple[StoredRun, ...] = Field(min_length=1)


class StoredVariant(StoredPart):
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


class Reference(StoredPart):
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
        reasons = dict.fromkeys(self.missing.values())
        return [
            f"missing: {', '.join(name for name, why in self.missing.items() if why == reason)}: {reason}"
            for reason in reasons
        ]


Stored = TypeVar("Stored", bound=StoredPart)


def own_place(environ: Mapping[str, str] = os.environ) -> Path:
    """Where new references go: HARNESS_REFERENCES, else references/ in the folder of the runs."""
    given = environ.get("HARNESS_REFERENCES")
    return expanded(given).absolute() if given else runs_root(environ) / "references"


def places() -> list[Path]:
    """The folders that hold references: one's own, then the harness's."""
    return [own_place(), SHIPPED]


def reference_folders() -> Iterator[Path]:
    """The folder of every stored reference; of two with one name, one's own."""
    seen = set[str]()
    for place in places():
        for index in sorted(place.glob(f"[!.]*/{INDEX}")):
            if index.parent.name not in seen:
                seen.add(index.parent.name)
                yield index.parent


def reference_folder(name: str) -> Path:
    """The folder of a reference by its name, or the folder itself.

    Raises:
        RequestError: there is no such reference.
    """
    given = expanded(name)
    if (given / INDEX).is_file():
        return given
    known = {folder.name: folder for folder in reference_folders()}
    if name in known:
        return known[name]
    hint = nearest_or_list(name, known, f"{PROGRAM} reference show lists all")
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
    """Where a variant's runs are."""
    return folder / "variants" / f"{variant}.json"


def file_digest(path: Path) -> str:
    """sha256 of a regular file's content. Raises OSError or SmallFileError."""
    digest = sha256()
    with open_regular(path) as content:
        while block := content.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _read(path: Path, shape: type[Stored], most_bytes: int) -> Stored:
    try:
        return shape.model_validate_json(read_bounded(path, most_bytes))
    except (OSError, BoundedReadError) as error:
        raise WorkError(f"{path}: cannot be read ({why_unread(error)})") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise WorkError(f"{path}: is not a reference ({where}: {first['msg']})") from None
    except ValueError as error:
        raise WorkError(f"{path}: is not a reference ({error})") from None


def some_references(most: int) -> Iterator[tuple[Path, Reference]]:
    """At most so many references with their folders. One that cannot be read is left out: a report must not fail."""
    for _, folder in zip(range(most), reference_folders(), strict=False):
        with suppress(WorkError):
            yield folder, read_reference(folder)
