"""A reference check: its two arms, and whether the second moved. Reads stored references and runs on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field

from harness.analysis.summary import problem_texts
from harness.common.errors import RequestError, WorkError
from harness.common.paths import COMMAND
from harness.compare.arms import Arm, RunFacts, differences
from harness.compare.comparison import Comparison, ComparisonPart, Difference, compare_arms, samples, without_verdict
from harness.compare.groups import NODE
from harness.compare.verdict import ChangeVerdict
from harness.run import Run
from harness.run.mystery import is_hidden
from harness.study.reference.collect import CollectedRun, collect, judged_ns
from harness.study.reference.differences import changed_metrics, environment_key
from harness.study.reference.stored import (
    INJECTED,
    Environment,
    Reference,
    Settings,
    StoredRun,
    StoredVariant,
    differing,
    read_reference,
    read_runs,
    trusted_runs,
)

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
    """One arm: a stored reference, or runs."""

    name: str
    variants: list[VariantRuns]


def arm_of_reference(folder: Path) -> ReferenceArm:
    """A stored reference as an arm. Raises WorkError: its index cannot be read."""
    reference = read_reference(folder)
    return ReferenceArm(reference.name, [_variant_runs(folder, reference, each) for each in reference.variants])


def _variant_runs(folder: Path, reference: Reference, variant: StoredVariant) -> VariantRuns:
    try:
        runs = read_runs(folder, variant).runs
    except WorkError as error:
        return VariantRuns(variant.name, variant.compared, (), (), (str(error),))
    used = tuple(reference.environments[number] for number in sorted({run.environment for run in runs}))
    return VariantRuns(variant.name, variant.compared, runs, used, _broken(runs))


def arm_of_runs(runs: Sequence[Run]) -> ReferenceArm:
    """Runs as an arm; those that asked for the same are one variant.

    Raises:
        RequestError: a run is a mystery, or was not made by the harness.
        WorkError: nothing was measured of one.
    """
    held: list[tuple[str, list[CollectedRun]]] = []
    for run in runs:
        if is_hidden(run.path, run.record.experiment):
            raise RequestError(f"{run.job_id} is a mystery: {COMMAND} lesson mystery reveal {run.job_id} ends it")
        found = collect(run)
        same = next((of_variant for _, of_variant in held if of_variant[0].compared == found.compared), None)
        if same is None:
            held.append((run.job_id, [found]))
        else:
            same.append(found)
    variants = [_of_one_variant(name, of_variant) for name, of_variant in held]
    return ReferenceArm(", ".join(run.job_id for run in runs), variants)


def _of_one_variant(name: str, collected_runs: Sequence[CollectedRun]) -> VariantRuns:
    runs = [one.run for one in collected_runs]
    environments = {one.environment.model_dump_json(): one.environment for one in collected_runs}
    return VariantRuns(name, collected_runs[0].compared, runs, [*environments.values()], _broken(runs))


def _broken(runs: Sequence[StoredRun]) -> list[str]:
    return [
        f"trace damaged: {Path(run.path).name}: {doubt}"
        for run in runs
        for doubt in run.doubts
        if doubt in BROKEN_TRACE
    ]


def without_runs(stored: ReferenceArm, reference_arm: ReferenceArm) -> ReferenceArm:
    """The stored arm without the new arm's own runs, if it has them."""
    own = {(run.path, run.created_ns) for each in reference_arm.variants for run in each.runs}
    kept = [
        each._replace(runs=tuple(run for run in each.runs if (run.path, run.created_ns) not in own))
        for each in stored.variants
    ]
    return stored._replace(variants=kept)


class VariantOutcome(str, Enum):
    """Whether a variant is as it was stored: its step time, its counts and its files. The worst last."""

    SAME = ChangeVerdict.SAME.value
    UNKNOWN = ChangeVerdict.UNKNOWN.value
    NOT_COMPARABLE = ChangeVerdict.NOT_COMPARABLE.value
    MOVED = "moved"
    DAMAGED = "damaged"


class VariantCheck(ComparisonPart):
    """One variant. runs: stored and new. time: the new mean step (b) against the stored one (a).
    doubts: why the new runs' times are not to be trusted."""

    variant: str
    new: str
    outcome: VariantOutcome
    runs: tuple[int, int]
    time: Comparison | None = None
    changed: list[Difference] = Field(default_factory=list)
    settings_differ: list[Difference] = Field(default_factory=list)
    problems: list[str] = Field(default_factory=list)
    doubts: list[str] = Field(default_factory=list)


class ReferenceCheck(ComparisonPart):
    """The whole result. key: differences of hardware and software, with which no time is judged; beside: other
    differences. unmatched: new variants that the reference does not have; missing: the other way round.
    """

    schema_version: Literal[2] = 2
    reference: str
    new: str
    outcome: VariantOutcome
    variants: list[VariantCheck]
    key: list[Difference] = Field(default_factory=list)
    beside: list[Difference] = Field(default_factory=list)
    unmatched: list[str] = Field(default_factory=list)
    missing: list[str] = Field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """0 the same, 1 moved or damaged, 3 cannot tell; 2 is a wrong request."""
        return {VariantOutcome.SAME: 0, VariantOutcome.MOVED: 1, VariantOutcome.DAMAGED: 1}.get(self.outcome, 3)


def check(stored: ReferenceArm, reference_arm: ReferenceArm, whole: bool) -> ReferenceCheck:
    """`reference_arm` against `stored`. whole: `reference_arm` should have every variant of `stored`."""
    pairs = [(_match(each, stored.variants), each) for each in reference_arm.variants]
    both = [(before, now) for before, now in pairs if before is not None]
    variants = [_checked(before, now) for before, now in both]
    matched = {before.variant for before, _ in both}
    missing = [each.variant for each in stored.variants if each.variant not in matched] if whole else []
    return ReferenceCheck(
        reference=stored.name,
        new=reference_arm.name,
        outcome=_worst([each.outcome for each in variants], bool(missing)),
        variants=variants,
        key=_differences(both),
        beside=_beside(both),
        unmatched=[each.variant for before, each in pairs if before is None],
        missing=missing,
    )


def _worst(outcomes: Sequence[VariantOutcome], lacking: bool) -> VariantOutcome:
    order = list(VariantOutcome)
    least = VariantOutcome.UNKNOWN if lacking or not outcomes else VariantOutcome.SAME
    return max([least, *outcomes], key=order.index)


def _match(new: VariantRuns, stored: Sequence[VariantRuns]) -> VariantRuns | None:
    """The variant that asked for the same; else one that differs only in injected faults."""
    differ = [(set(differing(each.compared, new.compared)), each) for each in stored]
    for allowed in (set[str](), set(INJECTED)):
        for names, each in differ:
            if names <= allowed:
                return each
    return None


def _checked(stored: VariantRuns, new: VariantRuns) -> VariantCheck:
    problems = [*(f"stored: {each}" for each in stored.problems), *(f"new: {each}" for each in new.problems)]
    found = VariantCheck(
        variant=stored.variant,
        new=new.variant,
        outcome=VariantOutcome.DAMAGED if problems else VariantOutcome.UNKNOWN,
        runs=(len(stored.runs), len(new.runs)),
        settings_differ=_as_differences(differing(stored.compared, new.compared)),
        problems=problems,
        doubts=list(dict.fromkeys(doubt for run in new.runs for doubt in run.doubts)),
    )
    if stored.runs and new.runs:
        same_key = not _differences([(stored, new)])
        on_gpu = same_key and new.environments[0].hardware.device_kind == "gpu"
        found.time = _time(stored, new, same_key)
        found.changed = _as_differences(changed_metrics(stored.runs, new.runs, on_gpu))
        found.outcome = found.outcome if problems else _outcome(found)
    elif not problems:
        lacking = "the reference has no other run of this variant" if new.runs else "there is no run of this variant"
        found.problems = [lacking]
    return found


def _outcome(variant_check: VariantCheck) -> VariantOutcome:
    verdict = variant_check.time.verdict if variant_check.time else ChangeVerdict.SAME
    if variant_check.changed or variant_check.settings_differ or verdict.is_change:
        return VariantOutcome.MOVED
    return VariantOutcome(verdict.value)


def _time(stored: VariantRuns, new: VariantRuns, same_key: bool) -> Comparison | None:
    """None: an arm has no time."""
    before = _arm(stored.variant, trusted_runs(stored.runs))
    found = compare_arms("mean_step_ns", before, _arm(new.variant, new.runs))  # doubts of the new ones are told
    if found.ratio is None:
        return None
    return found if same_key else without_verdict(found, ChangeVerdict.NOT_COMPARABLE, "hardware or software differ")


def _arm(name: str, runs: Sequence[StoredRun]) -> Arm:
    timed = [(ns, run) for run in runs if (ns := judged_ns(run))]
    facts = [RunFacts({NODE: run.nodes} if run.nodes else {}, run.created_ns) for _, run in timed]
    return Arm(name, samples([ns for ns, _ in timed]), facts=facts)


def _differences(pairs: Sequence[tuple[VariantRuns, VariantRuns]]) -> list[Difference]:
    """Hardware and software that differ between the arms of any pair, each once."""
    found: dict[str, tuple[str, str]] = {}
    for stored, new in pairs:
        keys = [[environment_key(each) for each in arm.environments] for arm in (stored, new)]
        found = differences(*keys) | found
    return _as_differences(found)


def _beside(pairs: Sequence[tuple[VariantRuns, VariantRuns]]) -> list[Difference]:
    """The harness's commit and the tools that record."""
    arms = [[each for pair in pairs for each in pair[arm].environments] for arm in (0, 1)]
    keys = [[{"harness": each.commit or "", **each.tools} for each in arm] for arm in arms]
    return _as_differences(differences(*keys))


def _as_differences(pairs: Mapping[str, tuple[Any, Any]]) -> list[Difference]:
    return [Difference(name=name, a=stored, b=new) for name, (stored, new) in pairs.items()]
