"""The two arms of a check: variants with their runs, from a stored reference or from runs on disk. Judges nothing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from harness.analysis.summary import problem_texts
from harness.common.errors import RequestError, WorkError
from harness.common.paths import PROGRAM
from harness.measure.matching import Settings, differing
from harness.measure.references import (
    Environment,
    Reference,
    StoredRun,
    StoredVariant,
    read_reference,
    read_runs,
    reference_folders,
)
from harness.run import Run
from harness.run.mystery import is_hidden
from harness.study.reference.collect import Collected, collect
from harness.study.reference.traces import damaged_traces, runs_here, traces_root

# Findings of a recording that is not whole.
BROKEN_TRACE = {
    problem_texts.UNREADABLE,
    problem_texts.READ_IN_PART,
    problem_texts.TRACE_MISSING,
    problem_texts.NO_TRACE,
}


class VariantRuns(NamedTuple):
    """One variant of an arm. problems: what is not as it was recorded."""

    variant: str
    compared: Settings
    runs: Sequence[StoredRun]
    environments: Sequence[Environment]
    problems: Sequence[str] = ()


class ReferenceArm(NamedTuple):
    """One arm. traces_absent: variants whose traces are not on this machine."""

    name: str
    variants: list[VariantRuns]
    missing: dict[str, str]
    traces_absent: list[str]


def arm_of_reference(folder: Path, whole: bool) -> ReferenceArm:
    """A stored reference as an arm. whole: compare every byte of its traces with the checksums.

    Raises:
        WorkError: its index cannot be read.
    """
    reference = read_reference(folder)
    root = traces_root(reference)
    held = [_variant_runs(folder, reference, variant, root, whole) for variant in reference.variants]
    absent = [
        each.variant
        for each in held
        if (traced := [run for run in each.runs if run.traces]) and not runs_here(root, traced)
    ]
    return ReferenceArm(reference.name, held, dict(reference.missing), absent)


def _variant_runs(
    folder: Path, reference: Reference, variant: StoredVariant, root: Path | None, whole: bool
) -> VariantRuns:
    try:
        runs = read_runs(folder, variant).runs
    except WorkError as error:
        return VariantRuns(variant.name, variant.compared, (), (), (str(error),))
    used = tuple(reference.environments[number] for number in sorted({run.environment for run in runs}))
    problems = [*damaged_traces(root, runs, whole), *_broken(runs)]
    return VariantRuns(variant.name, variant.compared, runs, used, problems)


def arm_of_runs(runs: Sequence[Run]) -> ReferenceArm:
    """Runs as an arm; those that asked for the same are one variant.

    Raises:
        RequestError: a run is a mystery, or was not made by the harness.
        WorkError: nothing was measured of one.
    """
    held: list[VariantRuns] = []
    for run in runs:
        if is_hidden(run.path, run.record.experiment):
            raise RequestError(f"{run.job_id} is a mystery: {PROGRAM} mystery reveal {run.job_id} ends it")
        found = collect(run)
        for number, other in enumerate(held):
            if other.compared == found.compared:
                held[number] = _with(other, found)
                break
        else:
            held.append(_of_run(run, found))
    return ReferenceArm(", ".join(run.job_id for run in runs), held, {}, [])


def _of_run(run: Run, found: Collected) -> VariantRuns:
    return VariantRuns(run.job_id, found.compared, (found.run,), (found.environment,), _broken((found.run,)))


def _with(held: VariantRuns, found: Collected) -> VariantRuns:
    environments = dict.fromkeys(each.model_dump_json() for each in (*held.environments, found.environment))
    return held._replace(
        runs=(*held.runs, found.run),
        environments=tuple(map(Environment.model_validate_json, environments)),
        problems=(*held.problems, *_broken((found.run,))),
    )


def _broken(runs: Sequence[StoredRun]) -> list[str]:
    return [
        f"trace damaged: {Path(run.path).name}: {doubt}"
        for run in runs
        for doubt in run.doubts
        if doubt in BROKEN_TRACE
    ]


def without_runs(stored: ReferenceArm, new: ReferenceArm) -> ReferenceArm:
    """The stored arm without the new arm's own runs, if it has them."""
    own = {(run.path, run.created_ns) for each in new.variants for run in each.runs}
    kept = [
        each._replace(runs=tuple(run for run in each.runs if (run.path, run.created_ns) not in own))
        for each in stored.variants
    ]
    return stored._replace(variants=kept)


def other_reference(own: Path, site: str) -> Path | None:
    """The reference to compare another with if none is named: the newest other one of the site that asked for some
    of the same, else None."""
    mine = [each.compared for each in read_reference(own).variants]
    found: list[tuple[int, Path]] = []
    for folder in reference_folders():
        with suppress(WorkError):
            other = read_reference(folder)
            shares = any(not differing(each.compared, one) for each in other.variants for one in mine)
            if folder.resolve() != own.resolve() and other.site == site and shares:
                found.append((other.created_ns, folder))
    return max(found, default=(0, None))[1]
