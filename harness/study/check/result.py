"""Two arms compared: values, keys and the verdict as one document, also as Markdown for a continuous integration.
Neither launches nor prints."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Literal, NamedTuple

from harness.analysis.metric_values import tokens_per_step
from harness.analysis.metrics import metrics_by_name, worse_is
from harness.analysis.statistics import Sample
from harness.analysis.summary import Summary
from harness.common.display.format import metric_text
from harness.common.display.printable import printable
from harness.common.errors import RequestError, nearest_or_list
from harness.common.system.inherited import LIMITS, read_by_libraries
from harness.compare.arms import Arm, differences, key_of, unrecorded
from harness.compare.comparison import ArmValue, Comparison, ComparisonPart, Difference, compare_arms, without_verdict
from harness.compare.environment import VARIABLE
from harness.compare.groups import facts_of
from harness.compare.summaries import EnvironmentChanges, environment_changes, settings
from harness.compare.verdict import ChangeVerdict, Threshold
from harness.study.check.series import CheckArm, MeasuredRun
from harness.study.check.treatment import MACHINE, SOFTWARE

STEP, PER_TOKEN = "step_ns", "step_ns_per_token"
MEAN_STEP = "mean_step_ns"
USUAL = "step_time"  # as `compare --fail-if` calls it
_SAME_TOKENS = 1e-9
# Of the key (arms.py) and the environment: what the machine is, and what is done; all else is software.
_OF_MACHINE = {"devices", "host processor", "node names", "kernel", "governor", "nvidia driver"}
_OF_WORK = {"nodes", "ranks", "profiler", "model", "sequence length"}
_OTHER_KEYS = {"device", "hosts", "world_size", "model", "seq_length"}  # settings that the key has, too
_SPECIAL = frozenset("\\`*_[]<>|#&~$@!")


class JudgedMetric(NamedTuple):
    """What is judged, and why it is not the usual one; more_is_worse: else less is."""

    name: str
    more_is_worse: bool
    note: str | None = None


class Value(NamedTuple):
    run: MeasuredRun
    value: float


def choose_metric(arms: Sequence[CheckArm], metric_name: str | None) -> JudgedMetric:
    """The metric asked for; else the median step time, per token if A and B have different tokens per step.
    Raises RequestError: no run has it, or neither more nor less of it is worse."""
    if metric_name in (None, USUAL):
        return _step_time(arms)
    known = {name: None for arm in arms for run in arm.runs for name in metrics_by_name(run.summary)}
    judged = [name for name in known if worse_is(name)]
    if metric_name not in known:
        hint = nearest_or_list(str(metric_name), judged, "compare --json lists all")
        raise RequestError(f"--metric {metric_name}: these runs have no such number{hint}")
    worse = worse_is(metric_name)
    if worse is None:
        raise RequestError(
            f"--metric {metric_name}: a larger value is neither better nor worse; take one of {', '.join(judged)}"
        )
    return JudgedMetric(metric_name, worse == "more")


def _step_time(arms: Sequence[CheckArm]) -> JudgedMetric:
    tokens = [tokens_per_step(run.summary) for arm in arms for run in arm.runs]
    known = [count for count in tokens if count]
    if len(known) < len(tokens) or not known or max(known) / min(known) - 1 < _SAME_TOKENS:
        return JudgedMetric(STEP, True)
    counts = " and ".join(f"{count:,.0f}" for count in sorted(set(known)))
    return JudgedMetric(PER_TOKEN, True, f"per token, since a step is not the same work: {counts} tokens")


def values(arm: CheckArm, metric: str) -> list[Value]:
    """The number of each run that has it."""
    found = ((run, metrics_by_name(run.summary).get(metric)) for run in arm.runs)
    return [Value(run, value) for run, value in found if value is not None]


def lacking(arm: CheckArm, found: Sequence[Value], metric: str) -> list[str]:
    """A sentence for each run that lacks the number."""
    having = {value.run.name for value in found}
    return [f"{run.name} is left out: it has no {metric}" for run in arm.runs if run.name not in having]


class RunValue(ComparisonPart):
    """One run's number; doubts: what else used the machine while it was measured."""

    run: str
    value: float
    doubts: list[str]


class CheckedArm(ArmValue):
    """One arm: as it was typed, its number (the geometric mean of its runs, since ratios are judged) and its runs.
    treatment: what it has of its own beside the launch that both share, as a revision or a variable. commit: the whole
    hash of its revision."""

    runs: list[RunValue]
    treatment: str | None = None
    commit: str | None = None


class HalvingStep(ComparisonPart):
    """One check of A against A with some things of B. share: of B's loss; None: it could not run."""

    things: list[str]
    series: str
    change: str
    share: float | None


class Halved(ComparisonPart):
    """What makes B slow. cause, acts_with: things by name. is_enough: A with these and no others was seen to be slow.
    cost, low, high: by how much the metric is worse with them, with the 95 % interval. told: in sentences."""

    things: list[str]
    steps: list[HalvingStep]
    cause: list[str]
    acts_with: list[str]
    is_enough: bool
    cost: float
    low: float
    high: float
    told: list[str]


class Checked(Comparison):
    """B against A. next: the command that makes the runs that would tell. next_cost: what the
    missing ones take at most. which: what makes B slow, with `--which`."""

    schema_version: Literal[3] = 3
    a: CheckedArm
    b: CheckedArm
    next: str | None = None
    next_cost: str | None = None
    key_differs: list[Difference]
    settings_differ: list[Difference]
    environment: EnvironmentChanges
    notes: list[str]
    which: Halved | None = None


class Question(NamedTuple):
    """The share by which B may be worse, and the metric (None: the step time)."""

    fail_above: float
    metric: str | None = None

    @property
    def threshold(self) -> Threshold:
        """B fails only if it is worse."""
        return Threshold(self.fail_above, one_sided=True)


def check_arms(a: CheckArm, b: CheckArm, question: Question, may_differ: Collection[str] = ()) -> Checked:
    """B against A. Nothing is judged if the runs' hardware or software differs and that was not asked. may_differ: what
    was (`Treatment.may_differ`); of the same request software may, since nothing else can be the question.
    Raises RequestError: there is no such metric, or neither more nor less of it is worse."""
    metric = choose_metric((a, b), question.metric)
    of_a, of_b = (values(arm, metric.name) for arm in (a, b))
    found = _compared((a, of_a), (b, of_b), question, metric)
    keys = [[key_of(run.summary) for run in arm.runs] for arm in (a, b)]
    notes = [*filter(None, [metric.note]), *a.notes, *b.notes]
    notes += [*lacking(a, of_a, metric.name), *lacking(b, of_b, metric.name)]
    if names := unrecorded(*keys):
        notes.append(f"some runs did not record {', '.join(names)}: it is not known whether these differ")
    notes += _commits(a, b)
    differs, asked = differences(*keys), list(_settings_differ(a, b))
    is_asked = partial(_is_asked, asked=asked, may_differ=may_differ)
    if not all(map(is_asked, differs)):
        why = "A and B did not run on the same hardware and software"
        found = without_verdict(found, ChangeVerdict.NOT_COMPARABLE, why)
    else:
        notes += _other_steps(a, b, question, found)
    if a.treatment and b.treatment:
        found = found.model_copy(update={"why": f"{b.treatment} against {a.treatment}: {found.why}"})
    return Checked(
        **found.model_dump(exclude={"a", "b", "why"}),
        why=_after_groups(found),
        a=_arm(a, found.a, of_a),
        b=_arm(b, found.b, of_b),
        key_differs=[Difference(name=name, a=x, b=y) for name, (x, y) in differs.items()],
        settings_differ=asked,
        environment=environment_changes(_summaries(a), _summaries(b), asked, is_asked),
        notes=notes,
    )


def _summaries(arm: CheckArm) -> list[Summary]:
    return [run.summary for run in arm.runs]


def _is_asked(name: str, asked: Sequence[Difference], may_differ: Collection[str]) -> bool:
    """Whether a thing of the key, or a fact of the environment, may differ."""
    if name in _OF_MACHINE:
        return MACHINE in may_differ
    if name.startswith(VARIABLE) and name.removeprefix(VARIABLE) in may_differ:
        return True
    of_launch = [d for d in asked if d.name not in ("python", *LIMITS) and not read_by_libraries([d.name])]
    return name not in _OF_WORK and (SOFTWARE in may_differ or not (of_launch or may_differ))


def _after_groups(comparison: Comparison) -> str:
    """The reason of the verdict, behind what explains a wide interval."""
    groups, why = comparison.groups_text, comparison.why
    return f"{groups}. {why[:1].upper()}{why[1:]}" if groups else why


def _compared(
    a: tuple[CheckArm, Sequence[Value]], b: tuple[CheckArm, Sequence[Value]], question: Question, metric: JudgedMetric
) -> Comparison:
    arm_a, arm_b = (
        Arm(
            arm.arguments,
            [Sample(each.value, each.run.block) for each in of_arm],
            facts=facts_of([each.run.summary for each in of_arm]),
        )
        for arm, of_arm in (a, b)
    )
    return compare_arms(metric.name, arm_a, arm_b, question.threshold, more_is_worse=metric.more_is_worse)


def _arm(check_arm: CheckArm, arm: ArmValue, of_arm: Sequence[Value]) -> CheckedArm:
    runs = [
        RunValue(
            run=each.run.name,
            value=each.value,
            doubts=[f"{doubt.what}: {doubt.evidence}" for doubt in each.run.summary.quality.disturbances],
        )
        for each in of_arm
    ]
    return CheckedArm(**arm.model_dump(), runs=runs, treatment=check_arm.treatment, commit=check_arm.commit)


def _commits(a: CheckArm, b: CheckArm) -> list[str]:
    """If the runs of one arm were made of unlike code, its change may be in the spread: the code of this harness, or of
    a user's own training."""
    found = []
    for letter, arm in (("A", a), ("B", b)):
        facts = [run.summary.run or {} for run in arm.runs]
        commits = {(each.get("git") or {}).get("commit") for each in facts} - {None}
        if len(commits) > 1:
            found.append(f"the runs of {letter} were started from {len(commits)} commits of this checkout")
        states = [(each.get("program") or {}).get("git") or {} for each in facts]
        if len(own := {(git.get("commit"), git.get("differences")) for git in states}) > 1:
            found.append(f"the script of {letter} had {len(own)} states of its repository")
    return found


def _settings_differ(a: CheckArm, b: CheckArm) -> Iterator[Difference]:
    """The settings of the first run of each arm that differ."""
    if not a.runs or not b.runs:
        return
    of_a, of_b = (settings(arm.runs[0].summary) for arm in (a, b))
    for name in dict.fromkeys([*of_a, *of_b]):
        if name not in _OTHER_KEYS and of_a.get(name) != of_b.get(name):
            yield Difference(name=name, a=of_a.get(name), b=of_b.get(name))


def _other_steps(a: CheckArm, b: CheckArm, question: Question, comparison: Comparison) -> list[str]:
    """A sentence if only the mean step shows the change: one that affects few of the steps."""
    if comparison.metric != STEP or comparison.verdict is ChangeVerdict.WORSE:
        return []
    arms = [(arm, values(arm, MEAN_STEP)) for arm in (a, b)]
    of_means = _compared(arms[0], arms[1], question, JudgedMetric(MEAN_STEP, True))
    if of_means.verdict is not ChangeVerdict.WORSE:
        return []
    return [
        f"B's mean step is worse ({of_means.change}); the median step is not: some steps take longer, most do not; "
        f"--metric {MEAN_STEP} judges that"
    ]


def as_markdown(checked: Checked, lines: Sequence[str]) -> str:
    """The verdict, a row for A and one for B, and the whole text below. lines: the text of the terminal."""
    head = ["", "treatment" if checked.a.treatment else "launch", "runs", checked.metric]
    rows = [head, ["---"] * len(head), *(_row(letter, arm, checked) for letter, arm in _both(checked))]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    text = "\n".join(f"    {line}".rstrip() for line in lines)  # an indented block ends with no sign of its own
    return f"**{checked.verdict.value}**: {_escaped(checked.why)}\n\n{table}\n\n{text}\n"


def _both(checked: Checked) -> list[tuple[str, CheckedArm]]:
    return [("A", checked.a), ("B", checked.b)]


def _row(letter: str, arm: CheckedArm, checked: Checked) -> list[str]:
    mean = "–" if arm.value is None else metric_text(checked.metric, arm.value)
    return [letter, _escaped(arm.treatment or arm.name), str(arm.n), mean]


def _escaped(text: str) -> str:
    return "".join(f"\\{sign}" if sign in _SPECIAL else sign for sign in printable(text))
