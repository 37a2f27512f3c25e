"""Summary × Summary: what differs in configuration, then what differs in result. Traces are not needed.

Two runs differ when the distributions of their steps do: the ratio of medians with a bootstrap 95 % interval. Whether
the commands differ, one run of each does not say: that is `check`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from math import inf
from statistics import median
from typing import Any, Literal

from pydantic import Field

from harness.analysis.metric_values import step_durations_ns, tokens_per_step
from harness.analysis.metrics import metrics_by_name
from harness.analysis.process.steps import by_periodicity
from harness.analysis.scaling import Scaling, scaling
from harness.analysis.summary import TOP_KERNELS, Problem, Summary
from harness.analysis.summary.problem_texts import KINDS, UNMARKED_STEPS
from harness.common.errors import RequestError
from harness.common.run_folder.submission import AS_REQUESTED, edit_in, variables_in
from harness.common.system.inherited import LIMITS
from harness.compare.arms import Arm
from harness.compare.comparison import Comparison, ComparisonPart, Difference, compare_arms, samples, without_verdict
from harness.compare.environment import PACKAGE, VARIABLE, FactDifference, compare_environments
from harness.compare.moved import MovedStatistic, moved
from harness.compare.verdict import ChangeVerdict
from harness.experiment.exercises import EXERCISES, Experiment, OwnTraining, experiment_of
from harness.experiment.options import options_of

SAME_TOKENS = 1e-9
SAME_PRECISION = 0.02  # of a kind's time: a kernel at the window's edge may lie inside it in one run only

# Configuration in which the runs must agree: else a comparison has no meaning.
INCOMPARABLE = ("model", "seq_length")
# The script of a run, and by what two edited ones are told apart.
SCRIPT, EDITS = "script", "edits of the script"


class MetricChange(ComparisonPart):
    """One metric in both runs."""

    name: str
    a: float | None
    b: float | None
    ratio: float | None


class PrecisionChange(ComparisonPart):
    """A kind of work that the two runs compute in other precisions; shares are of that kind's time."""

    kind: str
    precision: str
    share_a: float
    share_b: float


class EnvironmentChanges(ComparisonPart):
    """What differs between the environments of two arms. asked: by the request. besides: by nobody. one_sided: what one
    of the arms did not record. unused: packages that no run used. whole: all runs recorded their whole environments."""

    asked: list[Difference] = Field(default_factory=list)
    besides: list[Difference] = Field(default_factory=list)
    one_sided: list[Difference] = Field(default_factory=list)
    unused: list[Difference] = Field(default_factory=list)
    whole: bool = False


class SummaryDifferences(ComparisonPart):
    """b against a."""

    schema_version: Literal[2] = 2
    a: str
    b: str
    normalisation: Literal["per step", "per token"]
    why_normalised: str
    configuration: list[Difference]
    environment: EnvironmentChanges = Field(default_factory=EnvironmentChanges)
    step_time: Comparison | None
    changes: list[MetricChange]
    precisions: list[PrecisionChange] = Field(default_factory=list)
    moved: list[MovedStatistic] = Field(default_factory=list)
    doubts: list[str] = Field(default_factory=list)  # kinds of recordings; what else used the machine meanwhile
    notes: list[str]
    on_cpu: bool = False  # all devices of both
    scaling: list[Scaling] = Field(default_factory=list)  # a's and b's, where a series' runs differ in devices


def compare_series(named_runs: Sequence[tuple[str, Summary]], force: bool = False) -> list[SummaryDifferences]:
    """Every run but the first against the first, with their places in the series of all. Raises RequestError as
    `compare` does."""
    (base, a), others = named_runs[0], named_runs[1:]
    pairs = [compare(a, b, (base, name), force) for name, b in others]
    rows = scaling([name for name, _ in named_runs], [s for _, s in named_runs])
    if not rows:
        return pairs
    return [pair.model_copy(update={"scaling": [rows[0], row]}) for pair, row in zip(pairs, rows[1:], strict=True)]


def compare(a: Summary, b: Summary, names_of_runs: tuple[str, str], force: bool = False) -> SummaryDifferences:
    """What differs between two runs. Raises RequestError: they train another model or sequence length and `force` is
    not set."""
    configuration = list(_differences(settings(a), settings(b)))
    obstacles = [d for d in configuration if d.name in INCOMPARABLE and d.a is not None and d.b is not None]
    if obstacles and not force:
        which = "; ".join(f"{d.name} {d.a} against {d.b}" for d in obstacles)
        raise RequestError(
            f"{names_of_runs[0]} and {names_of_runs[1]} are not comparable: {which} (--force compares them per token)"
        )
    normalisation, why, scale = _normalisation(a, b)
    return SummaryDifferences(
        a=names_of_runs[0],
        b=names_of_runs[1],
        normalisation=normalisation,
        why_normalised=why,
        configuration=configuration,
        environment=environment_changes([a], [b], configuration),
        step_time=_step_time(a, b, names_of_runs, scale),
        changes=_changes(metrics_by_name(a), metrics_by_name(b)),
        precisions=list(_precision_changes(a, b)),
        moved=moved(a, b),
        doubts=_doubts(a, b),
        notes=_notes(a, b),
        on_cpu=all(d.device_kind == "cpu" for s in (a, b) for d in s.devices),
    )


def environment_changes(
    a: Sequence[Summary],
    b: Sequence[Summary],
    configuration: Sequence[Difference],
    is_asked: Callable[[str], bool] = lambda fact: False,
) -> EnvironmentChanges:
    """What differs between the environments of two arms and is no setting, as a variable of the shell or of an option
    is. is_asked: whether a fact, by its name (environment.py), was to differ."""
    settings = {difference.name.lower() for difference in configuration}
    settings |= {"executable"} if "python" in settings else set()
    found = EnvironmentChanges(whole=all(each.environments for each in (*a, *b)))
    compared = compare_environments(a, b)
    for fact in compared.differs:
        (found.asked if is_asked(fact.name) else found.besides).append(_difference(fact))
    found.one_sided.extend(map(_difference, compared.one_sided))
    found.unused.extend(map(_difference, compared.unused))
    for each in (found.asked, found.besides, found.one_sided):
        each[:] = [difference for difference in each if difference.name.lower() not in settings]
    return found


def _difference(fact: FactDifference) -> Difference:
    return Difference(name=fact.name.removeprefix(PACKAGE).removeprefix(VARIABLE), a=fact.a, b=fact.b)


def settings(summary: Summary) -> dict[str, Any]:
    """The configuration by name: the experiment's fields, what the training and the traces record, the variables and
    limits that the job inherited from its shell, and whether its script was edited by hand."""
    experiment = experiment_of(summary.experiment)
    asked = experiment.model_dump() if experiment else summary.experiment
    if isinstance(experiment, OwnTraining):
        asked = _of_own(experiment, summary)
    of_training = ("model", "seq_length", "micro_batch_size", "dtype")
    recorded = {
        **{name: getattr(first, name) for first in summary.training[:1] for name in of_training},
        "world_size": summary.world_size,
        "hosts": len(summary.hosts) or None,
        "device": ", ".join(sorted({d.name for d in summary.devices if d.name})) or None,
        "backend": summary.backend,
    }
    found = dict(asked or {}) | {name: value for name, value in recorded.items() if value is not None}
    left_out = _not_compared()
    kept = {name: value for name, value in found.items() if name not in left_out}
    return kept | variables_in(summary.run) | variables_in(summary.run, "limits") | _of_script(summary)


def _of_script(summary: Summary) -> dict[str, str]:
    if not summary.run:
        return {}
    edit = edit_in(summary.run)
    return {SCRIPT: edit.setting, EDITS: edit.checksum} if edit else {SCRIPT: AS_REQUESTED}


def _of_own(experiment: OwnTraining, summary: Summary) -> dict[str, Any]:
    """The fields of a user's own training, with its command in one line and the state of its code."""
    git = ((summary.run or {}).get("program") or {}).get("git") or {}
    changes = f" with changes {git['differences']}" if git.get("differences") else ""
    code = f"{str(git['commit'])[:12]}{changes}" if git.get("commit") else None
    found = experiment.model_dump(exclude={"start_in"}) | {"command": shlex.join(experiment.command)}
    return found | ({"code": code} if code else {})


def _not_compared() -> set[str]:
    """Fields in which two runs may differ with the same result."""
    classes: list[type[Experiment]] = [*EXERCISES.values(), OwnTraining]
    options = (option for cls in classes for option in options_of(cls))
    return {option.field for option in options if not option.flag.compared}


def _differences(a: dict[str, Any], b: dict[str, Any]) -> Iterator[Difference]:
    for name in dict.fromkeys([*a, *b]):
        # Traces from elsewhere have no script, and one that was edited has no other edits to be compared with; a run
        # from before has no limits.
        needs_both = name in (EDITS, *LIMITS) or (name == SCRIPT and AS_REQUESTED in (a.get(name), b.get(name)))
        if a.get(name) != b.get(name) and not (needs_both and (name not in a or name not in b)):
            yield Difference(name=name, a=a.get(name), b=b.get(name))


def _normalisation(a: Summary, b: Summary) -> tuple[Literal["per step", "per token"], str, tuple[float, float]]:
    tokens = tokens_per_step(a), tokens_per_step(b)
    if tokens[0] is None or tokens[1] is None:
        return "per step", "the tokens per step are not recorded for both runs", (1.0, 1.0)
    if abs(tokens[0] / tokens[1] - 1) < SAME_TOKENS:
        return "per step", f"both runs take {tokens[0]:,.0f} tokens per step", (1.0, 1.0)
    why = f"a step is {tokens[0]:,.0f} tokens in the first and {tokens[1]:,.0f} in the other"
    return "per token", why, (tokens[0], tokens[1])


def _step_time(a: Summary, b: Summary, names: tuple[str, str], scale: tuple[float, float]) -> Comparison | None:
    steps = [[ns / tokens for ns in step_durations_ns(s)] for s, tokens in zip((a, b), scale, strict=True)]
    if not all(steps):
        return None
    metric = "step_ns" if scale == (1.0, 1.0) else "step_ns_per_token"
    arm_a, arm_b = (Arm(name, samples([median(each)]), each) for name, each in zip(names, steps, strict=True))
    found = compare_arms(metric, arm_a, arm_b)
    if kinds_without_causes(a) or kinds_without_causes(b):
        return without_verdict(found, ChangeVerdict.UNKNOWN, "no verdict on this kind of recording")
    if any(by_periodicity(s.steps.source) for s in (a, b)):
        return without_verdict(found, ChangeVerdict.UNKNOWN, UNMARKED_STEPS)
    return found


def kinds_without_causes(s: Summary) -> set[str]:
    """The kinds of its recording that carry no cause of idle time, and so no verdict on the program."""
    return {one.reason for one in s.quality.withheld if one.field == "idle_causes"} & {*KINDS}


def _changes(a: dict[str, float], b: dict[str, float]) -> list[MetricChange]:
    return [
        MetricChange(name=name, a=x, b=y, ratio=y / x if x and y is not None else None)
        for name, x, y in ((name, a.get(name), b.get(name)) for name in dict.fromkeys([*a, *b]))
    ]


def _precision_changes(a: Summary, b: Summary) -> Iterator[PrecisionChange]:
    shares = _precision_shares(a), _precision_shares(b)
    kinds = {kind for kind, _ in shares[0]} & {kind for kind, _ in shares[1]}
    for kind, precision in sorted({*shares[0], *shares[1]}):
        share_a, share_b = (found.get((kind, precision), 0.0) for found in shares)
        if kind in kinds and abs(share_a - share_b) > SAME_PRECISION:
            yield PrecisionChange(kind=kind, precision=precision, share_a=share_a, share_b=share_b)


def _precision_shares(summary: Summary) -> dict[tuple[str, str], float]:
    """(kind, precision) -> share of the kind's time, for the kinds that have a precision."""
    known = [k for k in summary.kinds if k.precision is not None]
    total = {kind: sum(k.duration_ns for k in known if k.kind == kind) for kind in {k.kind for k in known}}
    return {(k.kind, k.precision): k.duration_ns / total[k.kind] for k in known if k.precision and total[k.kind]}


def _doubts(a: Summary, b: Summary) -> list[str]:
    return [
        f"{arm}: {finding.what}: {finding.evidence}"
        for arm, summary in (("a", a), ("b", b))
        for finding in (*kinds_of_recording(summary), *summary.quality.disturbances)
    ]


def kinds_of_recording(s: Summary) -> list[Problem]:
    """The problems that say what kind of recording it is."""
    return [problem for problem in s.quality.problems if problem.what in KINDS]


def _notes(a: Summary, b: Summary) -> list[str]:
    arms = (("a", a), ("b", b))
    notes = [
        f"{arm}: {finding.what}"
        for arm, summary in arms
        for finding in summary.quality.problems
        if finding not in (*kinds_of_recording(summary), *summary.quality.disturbances)
    ]
    notes += [
        f"{arm}: no kernel was recorded: only the training's own numbers can be compared"
        for arm, summary in arms
        if not summary.kernels
    ]
    notes += [
        f"{arm}: only the {TOP_KERNELS} kernels with most time are known: a shorter kernel may have appeared "
        "or vanished, and one that is named may only have become much shorter"
        for arm, summary in arms
        if len(summary.kernels) >= TOP_KERNELS
    ]
    if any(d.device_kind == "cpu" for s in (a, b) for d in s.devices):
        notes.append(
            "a CPU run cannot show the overlap of communication with computation, or the speed-up of lower precision"
        )
    return notes


def ratios(comparison: SummaryDifferences) -> dict[str, float | None]:
    """The ratios for `--fail-if`: b over a for every metric, and `step_time`, which is normalised.

    None: not measured in both. From zero to more, the ratio is infinite; from zero to zero it is 1."""
    found = {c.name: _times(c) for c in comparison.changes}
    return found | {"step_time": comparison.step_time.ratio if comparison.step_time else None}


def _times(change: MetricChange) -> float | None:
    if change.a != 0 or change.b is None:
        return change.ratio
    return 1.0 if change.b == 0 else inf
