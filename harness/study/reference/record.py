"""Writes a reference: whole, under a temporary name, then renamed. A complete one is never replaced."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

from harness.common.errors import RequestError, WorkError
from harness.common.paths import COMMAND, PROGRAM
from harness.experiment.exercises import Experiment
from harness.experiment.parse import command_of
from harness.run import disk_error
from harness.site.site import Site
from harness.study.reference.collect import CollectedRun, shown_ns
from harness.study.reference.stored import (
    INDEX,
    Environment,
    Reference,
    StoredRun,
    StoredRuns,
    StoredVariant,
    file_digest,
    own_place,
    read_reference,
    reference_folders,
    variant_file,
)
from harness.study.reference.variants import (
    Variant,
    VariantList,
    at_site,
    collect_all,
    device_of,
    image_digest,
    keep_runs,
    load_list,
    missing_variants,
    recorded_runs,
    same_kind,
    series_of,
)
from harness.study.series.folder import refuse_name
from harness.study.series.points import SeriesPoint, SeriesTask, prepared
from harness.traces.progress import OnProgress, silent

ByVariant = Mapping[str, Sequence[CollectedRun]]


def refuse_taken(name: str) -> None:
    """Raises RequestError: there is a complete reference of this name."""
    taken = {folder.name: folder for folder in reference_folders()}.get(name)
    if taken is None:
        return
    try:
        complete = read_reference(taken).complete or taken.parent != own_place()
    except WorkError:
        complete = True  # whatever it is, it is not ours to replace
    if complete:
        raise RequestError(
            f"--name {name}: there is a reference of this name in {taken}, which is not overwritten: give another name"
        )


def write_reference(head: Reference, runs: Mapping[str, StoredRuns]) -> Path:
    """Write a reference to one's own place, and return its folder; an incomplete one of this name is replaced.

    head: `sha256` of its variants is set here.

    Raises:
        RequestError: there is a complete one of this name.
        DiskError: the disk refuses it; what was there stays.
    """
    refuse_taken(head.name)
    folder = own_place() / head.name
    with _new_folder(folder) as made:
        for name, content in runs.items():
            _write(variant_file(made, name), content.model_dump_json(indent=1, exclude_defaults=True))
        digests = {name: file_digest(variant_file(made, name)) for name in runs}
        variants = tuple(each.model_copy(update={"sha256": digests[each.name]}) for each in head.variants)
        _write(made / INDEX, head.model_copy(update={"variants": variants}).model_dump_json(indent=1))
    return folder


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which gets its name when it is whole; what had the name before is there until then."""
    made, before = (folder.with_name(f".{what}-{folder.name}-{os.getpid()}") for what in ("new", "before"))
    try:
        made.mkdir(parents=True)
        yield made
        _exchange(folder, made, before)
    except OSError as error:
        raise disk_error(folder, error) from None
    finally:
        shutil.rmtree(made, ignore_errors=True)
    shutil.rmtree(before, ignore_errors=True)


def _exchange(folder: Path, new_folder: Path, old_folder: Path) -> None:
    if folder.exists():
        folder.rename(old_folder)
    try:
        new_folder.rename(folder)
    except OSError:
        with suppress(OSError):
            old_folder.rename(folder)
        raise


def assemble(
    name: str, chosen: VariantList, by_variant: ByVariant, missing: Mapping[str, str], traces_in: str | None
) -> tuple[Reference, dict[str, StoredRuns]]:
    """The index of a reference, and the runs of its variants. by_variant: at least one run of each.
    Raises WorkError: no variant has a run."""
    environments: list[Environment] = []
    runs: dict[str, StoredRuns] = {}
    variants: list[StoredVariant] = []
    for variant in chosen.variants:
        of_variant = by_variant.get(variant.name, ())
        if of_variant:
            stored = tuple(_numbered(one, environments) for one in of_variant)
            runs[variant.name] = StoredRuns(variant=variant.name, runs=stored)
            variants.append(_entry(variant, of_variant, stored))
    if not variants:
        raise WorkError(f"{name}: no run of the list completed, so nothing was stored")
    newest = max((one for of_variant in by_variant.values() for one in of_variant), key=lambda one: one.run.created_ns)
    head = Reference(
        name=name,
        variants_from=chosen.name,
        created_ns=newest.run.created_ns,
        site=newest.environment.site,
        traces_in=traces_in,
        environments=tuple(environments),
        variants=tuple(variants),
        missing=dict(missing),
    )
    return head, runs


def _numbered(collected_run: CollectedRun, environments: list[Environment]) -> StoredRun:
    if collected_run.environment not in environments:
        environments.append(collected_run.environment)
    return collected_run.run.model_copy(update={"environment": environments.index(collected_run.environment)})


def _entry(variant: Variant, collected_runs: Sequence[CollectedRun], stored: Sequence[StoredRun]) -> StoredVariant:
    first = collected_runs[0]
    steps = [ns for run in stored if (ns := shown_ns(run)) is not None]
    return StoredVariant(
        name=variant.name,
        lessons=variant.lessons,
        command=" ".join([COMMAND, *(command_of(first.experiment) or ["run"])]),
        asked=first.experiment,  # type: ignore[arg-type]  # an instance of one of the union's classes
        compared=first.compared,
        runs=len(stored),
        step_ns=round(median(steps)) if steps else None,
        sha256="",
    )


class ReferencePlan(NamedTuple):
    """What is recorded. list_given: the list's name or file."""

    name: str
    list_given: str
    variants: VariantList
    site: Site
    repeats: int
    tasks: list[SeriesTask]

    @property
    def series(self) -> str:
        return series_of(self.name)


class StoredReference(NamedTuple):
    folder: Path
    reference: Reference


def plan_recording(name: str | None, list_given: str, repeats: int, site: Site) -> ReferencePlan:
    """The runs of a recording, in turn: every variant once, then every variant again.

    name: None: the list's and the site's. list_given: a list's name or file.

    Raises RequestError: there is a complete reference of this name, or a variant cannot run at the site.
    """
    asked_for = load_list(list_given)
    given = name or f"{asked_for.name}-{site.name}"
    refuse_name(series_of(given), f"--name {given}")
    refuse_taken(given)
    same_kind(asked_for, device_of(site))
    asked = [(variant.name, _at_site(variant.name, variant.asks, site)) for variant in asked_for.variants]
    points = [
        SeriesPoint(key, experiment, site, repeat, [PROGRAM, *(command_of(experiment) or [])])
        for repeat in range(repeats)
        for key, experiment in asked
    ]
    return ReferencePlan(given, list_given, asked_for, site, repeats, prepared(points))


def _at_site(name: str, asks: Experiment, site: Site) -> Experiment:
    try:
        return at_site(asks, site.defaults)
    except RequestError as error:
        raise RequestError("\n".join(f"{name}: {line}" for line in str(error).splitlines())) from None


def keep(recording: ReferencePlan, progress: OnProgress = silent) -> StoredReference:
    """Store what was run so far, with copies of the runs if the site names a folder for them; a reference with less is
    replaced. progress: called with runs done and in all.

    Raises:
        WorkError: no run completed, or nothing was measured of one.
        DiskError: the disk refuses it.
    """
    known = {variant.name for variant in recording.variants.variants}
    runs = {variant: found for variant, found in recorded_runs(recording.name).items() if variant in known}
    lacking = missing_variants(recording.variants, runs, recording.repeats)
    keep_runs((run for found in runs.values() for run in found), recording.name, recording.site)
    collected = collect_all(runs, image_digest(recording.site), progress)
    head, stored = assemble(recording.name, recording.variants, collected, lacking, recording.site.reference_traces)
    return StoredReference(write_reference(head, stored), head)
