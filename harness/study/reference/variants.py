"""The variants of a reference: their list (one YAML file, validated on load) and their runs."""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError

from harness.common.errors import RequestError, WorkError, nearest
from harness.common.paths import CONFIGS, expanded
from harness.experiment.exercises import AnyExperiment, Experiment
from harness.experiment.parse import validate
from harness.experiment.yaml_file import read_yaml
from harness.launch.argv import from_site, read_here
from harness.run import Run, disk_error, why_invalid
from harness.site.detection import runs_on_cpu
from harness.site.site import Site
from harness.study.reference.collect import CollectedRun, collect
from harness.study.reference.stored import FilePart, file_digest
from harness.study.series.folder import NAME
from harness.study.series.runs import completed_runs
from harness.traces.progress import OnProgress, silent

LISTS = CONFIGS / "references"
NAME_TAKES = "letters, digits, dots, dashes and underscores, at most 80, the first a letter or a digit"


def plain_name(text: str) -> str:
    """The text, if it can name a folder anywhere. Raises ValueError."""
    if not NAME.fullmatch(text):
        raise ValueError(f"a name takes {NAME_TAKES}, not {text!r}")
    return text


PlainName = Annotated[str, AfterValidator(plain_name)]


class Variant(FilePart):
    """One run of the list. lessons: those that it answers, together with another variant."""

    name: PlainName
    asks: AnyExperiment
    lessons: tuple[str, ...] = ()


class VariantList(FilePart):
    """A list. device: what its runs are about; runs on the other kind would answer other lessons."""

    name: PlainName
    title: str
    device: Literal["cpu", "gpu"]
    variants: tuple[Variant, ...] = Field(min_length=1)


def list_names() -> list[str]:
    """The lists that come with the harness."""
    return sorted(path.stem for path in LISTS.glob("*.yaml"))


def load_list(name_or_path: str) -> VariantList:
    """A list by name, or from a file. Raises RequestError: there is no such list, or its file is wrong."""
    is_path = "/" in name_or_path or name_or_path.endswith((".yaml", ".yml"))
    path = expanded(name_or_path) if is_path else LISTS / f"{name_or_path}.yaml"
    if not is_path and name_or_path not in list_names():
        near = nearest(name_or_path, list_names())
        raise RequestError(
            f"--list: there is no list {name_or_path!r}; there are {', '.join(list_names())}, or give a file"
            + (f": did you mean {near}?" if near else "")
        )
    try:
        found = VariantList.model_validate(read_yaml(path, "list of variants"))
    except ValidationError as error:
        said = why_invalid(error).replace("Value error, ", "", 1)
        raise RequestError(f"list of variants {path}: {said}") from None
    wrong = [f"variant {each.name}: {rule.sentence}" for each in found.variants for rule in each.asks.broken_rules()]
    if wrong:
        raise RequestError("\n".join(f"list of variants {path}: {sentence}" for sentence in wrong))
    return found


def at_site(asks: Experiment, defaults: Mapping[str, Any]) -> Experiment:
    """What a variant asks for, with the site's defaults if it leaves a field open, as in any launch there.
    Raises RequestError: they do not go together; one line per reason."""
    usual = {name: value for name, value in defaults.items() if name in type(asks).model_fields}
    given = {name: getattr(asks, name) for name in asks.model_fields_set}
    made, errors = validate(type(asks), {**usual, **given})
    if made is None:
        raise RequestError("\n".join(errors))
    return made


def series_of(name: str) -> str:
    """The series whose parts the runs of a recording are."""
    return f"reference-{name}"


def recorded_runs(name: str) -> dict[str, list[Run]]:
    """Variant -> its completed runs, in the order of their repeats."""
    runs: dict[str, list[Run]] = defaultdict(list)
    for slot, run in completed_runs(series_of(name)).items():
        runs[slot.key].append(run)
    return dict(runs)


def collect_all(
    runs: dict[str, list[Run]], container: str | None, progress: OnProgress = silent
) -> dict[str, list[CollectedRun]]:
    """What a reference keeps of each run. container: as in `collect`."""
    every = [(variant, run) for variant, of_variant in runs.items() for run in of_variant]
    found: dict[str, list[CollectedRun]] = defaultdict(list)
    for done, (variant, run) in enumerate(every, 1):
        found[variant].append(collect(run, container))
        progress(done, len(every))
    return found


def missing_variants(variant_list: VariantList, runs: dict[str, list[Run]], repeats: int) -> dict[str, str]:
    """Variant -> why the reference is not complete without it."""
    made = {variant.name: len(runs.get(variant.name, ())) for variant in variant_list.variants}
    return {name: f"{number} of {repeats} runs completed" for name, number in made.items() if number < repeats}


def image_digest(site: Site) -> str | None:
    """sha256 of the site's container image; None without one, or if it cannot be read from here."""
    path = here(site.container.image) if site.container else None
    return file_digest(path) if path is not None and path.is_file() else None


def here(text: str) -> Path | None:
    """A path of a site file as this machine expands it; None if a variable of it is not set."""
    found = read_here(from_site(text), os.environ)
    return None if found.unset else Path(found.text)


def device_of(site: Site) -> Literal["cpu", "gpu"]:
    """What runs at the site run on."""
    return "cpu" if runs_on_cpu(site) else "gpu"


def same_kind(chosen: VariantList, kind: Literal["cpu", "gpu"]) -> None:
    """Raises RequestError: the list is about the other kind of device."""
    if chosen.device != kind:
        words = {"cpu": "CPUs", "gpu": "GPUs"}
        other = "miniatures" if kind == "cpu" else "workshop"
        raise RequestError(
            f"--list {chosen.name}: its runs are for {words[chosen.device]}, and this site has {words[kind]}: "
            f"use --list {other}"
        )


def keep_runs(runs: Iterable[Run], name: str, site: Site) -> None:
    """Copy the runs of a recording to the site's folder for traces, if it names one; those there stay as they are.
    Raises WorkError: the folder cannot be written, or a variable in its name is not set here."""
    if site.reference_traces is None:
        return
    place = here(site.reference_traces)
    if place is None:
        raise WorkError(
            f"site {site.name}: reference_traces is {site.reference_traces}, and a variable in it is not set here"
        )
    for run in runs:
        _copy(run.path, place / name / run.path.relative_to(run.path.parents[2]))


def _copy(folder: Path, target: Path) -> None:
    if target.exists():
        return
    part = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        shutil.copytree(folder, part)
        part.rename(target)
    except (OSError, shutil.Error) as error:
        with suppress(OSError):
            shutil.rmtree(part)
        cause = error if isinstance(error, OSError) and error.strerror else OSError(5, str(error))
        raise disk_error(target, cause) from None
