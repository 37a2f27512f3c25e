"""The runs of a recording, found again on disk by the series that they are a part of. Starts none."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import Literal

from harness.common.errors import RequestError
from harness.launch.argv import from_site, read_here
from harness.measure.references import file_digest
from harness.run import Run, part_of
from harness.site.detection import visible_gpus
from harness.site.site import Site
from harness.study.campaign.series import runs_of
from harness.study.reference.collect import Collected, collect
from harness.study.reference.variants import VariantList
from harness.traces.progress import OnProgress, silent


def series_of(name: str) -> str:
    """The series whose parts the runs of a recording are."""
    return f"reference-{name}"


def recorded_runs(name: str) -> dict[str, list[Run]]:
    """Variant -> its completed runs, in the order of their repeats; of one that was made twice the first."""
    found: dict[tuple[str, int], Run] = {}
    for run in runs_of(series_of(name)):
        part, status = part_of(run), run.status()
        if part is not None and status is not None and status.state == "completed":
            found.setdefault((part.point, part.repeat), run)
    runs: dict[str, list[Run]] = defaultdict(list)
    for (variant, _), run in sorted(found.items(), key=lambda item: item[0]):
        runs[variant].append(run)
    return dict(runs)


def collect_all(
    runs: dict[str, list[Run]], container: str | None, traces: bool = True, progress: OnProgress = silent
) -> dict[str, list[Collected]]:
    """What a reference keeps of each run. container, traces: as in `collect`."""
    every = sum(map(len, runs.values()))
    found: dict[str, list[Collected]] = {variant: [] for variant in runs}
    for done, (variant, run) in enumerate(((v, r) for v, of_v in runs.items() for r in of_v), 1):
        found[variant].append(collect(run, container, traces))
        progress(done, every)
    return found


def missing_variants(
    whole: VariantList, chosen: VariantList, runs: dict[str, list[Run]], repeats: int
) -> dict[str, str]:
    """Variant -> why the reference is not complete without it."""
    asked = {variant.name for variant in chosen.variants}
    lacking: dict[str, str] = {}
    for variant in whole.variants:
        there = len(runs.get(variant.name, ()))
        if variant.name not in asked and not there:
            lacking[variant.name] = "not asked for (--only)"
        elif variant.name in asked and there < repeats:
            lacking[variant.name] = f"{there} of {repeats} runs completed"
    return lacking


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
    cpu = site.device == "cpu" or (site.device == "auto" and not visible_gpus())
    return "cpu" if cpu else "gpu"


def same_kind(chosen: VariantList, kind: Literal["cpu", "gpu"]) -> None:
    """Raises RequestError: the list is about the other kind of device."""
    if chosen.device != kind:
        words = {"cpu": "CPUs", "gpu": "GPUs"}
        other = "miniatures" if kind == "cpu" else "workshop"
        raise RequestError(
            f"--list {chosen.name}: its runs are for {words[chosen.device]}, and this site has {words[kind]}: "
            f"use --list {other}"
        )
