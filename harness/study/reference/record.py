"""A recording: the runs of a list, made by the campaign as one series, then kept as a reference. Prints nothing.

What is done is read from the runs on disk, so that the same recording asked for again continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from harness.common.errors import RequestError
from harness.experiment.exercises import Experiment
from harness.experiment.parse import command_of
from harness.launch.backends.registry import backend_of
from harness.measure.references import Reference
from harness.run import Run
from harness.site.site import Site
from harness.study.campaign.points import Point, Task, prepared
from harness.study.campaign.series import checked_name
from harness.study.reference.gather import (
    collect_all,
    device_of,
    image_digest,
    missing_variants,
    recorded_runs,
    same_kind,
    series_of,
)
from harness.study.reference.store import assemble, refuse_taken, write_reference
from harness.study.reference.traces import keep_runs
from harness.study.reference.variants import VariantList, at_site, load_list
from harness.traces.progress import OnProgress, silent


class Recording(NamedTuple):
    """What is recorded. list_given: the list's name or file; chosen: those of its variants that are run."""

    name: str
    list_given: str
    whole: VariantList
    chosen: VariantList
    site: Site
    repeats: int
    tasks: list[Task]

    @property
    def series(self) -> str:
        """The series whose parts its runs are."""
        return series_of(self.name)

    @property
    def runs_here(self) -> bool:
        """Whether the runs share this machine."""
        return backend_of(self.site).RUNS_HERE


class StoredReference(NamedTuple):
    """A recording that was stored."""

    folder: Path
    reference: Reference


def plan_recording(
    name: str | None, list_given: str, only: Sequence[str], repeats: int, site: Site
) -> Recording:
    """The runs of a recording, in turn: every variant once, then every variant again.

    name: None: the list's and the site's. list_given: a list's name or file. only: these variants alone, if any.

    Raises:
        RequestError: there is a complete reference of this name, or a variant cannot run at the site.
    """
    whole = load_list(list_given)
    given = name or f"{whole.name}-{site.name}"
    checked_name(series_of(given), f"--name {given}")
    refuse_taken(given)
    chosen = whole.only(tuple(only))
    same_kind(whole, device_of(site))
    asked = [(variant.name, _at_site(variant.name, variant.asks, site)) for variant in chosen.variants]
    points = [
        Point(key, experiment, site, repeat, ["slurm.sh", *(command_of(experiment) or [])])
        for repeat in range(repeats)
        for key, experiment in asked
    ]
    return Recording(given, list_given, whole, chosen, site, repeats, prepared(points))


def _at_site(name: str, asks: Experiment, site: Site) -> Experiment:
    try:
        return at_site(asks, site.defaults)
    except RequestError as error:
        raise RequestError("\n".join(f"{name}: {line}" for line in str(error).splitlines())) from None


def keep(recording: Recording, traces: bool = True, progress: OnProgress = silent) -> StoredReference:
    """Store what was run so far; a reference with less is replaced.

    traces: also the traces' checksums, and copies of the runs if the site names a folder for them. progress: called
    with runs done and in all.

    Raises:
        WorkError: no run completed, or nothing was measured of one.
        DiskError: the disk refuses it.
    """
    runs = recorded_runs(recording.name)
    known = {variant.name for variant in recording.whole.variants}
    runs = {variant: found for variant, found in runs.items() if variant in known}
    lacking = missing_variants(recording.whole, recording.chosen, runs, recording.repeats)
    every: list[Run] = [run for found in runs.values() for run in found]
    place = recording.site.reference_traces if traces else None
    if traces:
        keep_runs(every, recording.name, recording.site)
    collected = collect_all(runs, image_digest(recording.site), traces, progress)
    head, stored = assemble(recording.name, recording.whole, collected, lacking, place)
    return StoredReference(write_reference(head, stored), head)
