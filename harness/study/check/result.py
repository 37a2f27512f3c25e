"""Two arms compared: values, keys and the verdict as one document, also as Markdown and JUnit XML for a continuous
integration. Neither launches nor prints."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import exp
from statistics import geometric_mean
from typing import Any, Literal, NamedTuple
from xml.etree import ElementTree

from pydantic import BaseModel, ConfigDict

from harness.analysis.change import ChangeVerdict, JudgedChange, differences, judge, key_of, more_is_worse, unrecorded
from harness.analysis.compare import settings
from harness.analysis.machine import disturbances
from harness.analysis.metrics import Number, metrics_by_name, tokens_per_step
from harness.analysis.statistics import CONFIDENCE, POWER, Sample
from harness.common.errors import RequestError, nearest_or_list
from harness.common.format import metric_text, takes
from harness.common.printable import printable
from harness.study.check.series import CheckArm, MeasuredRun

STEP, PER_TOKEN = "step_ns", "step_ns_per_token"
MEAN_STEP = "mean_step_ns"
USUAL = "step_time"  # as `compare --fail-if` calls it
_SAME_TOKENS = 1e-9


class Metric(NamedTuple):
    """What is judged, and why it is not the usual one; more_is_worse: else less is."""

    name: str
    more_is_worse: bool
    note: str | None = None


class Value(NamedTuple):
    run: MeasuredRun
    value: float


def choose_metric(arms: Sequence[CheckArm], asked: str | None, numbers: Sequence[Number]) -> Metric:
    """The metric asked for; else the median step time, per token if A and B have different tokens per step.
    Raises RequestError: no run has it, or neither more nor less of it is worse."""
    if asked in (None, USUAL):
        return _step_time(arms)
    known = {name: None for arm in arms for run in arm.runs for name in metrics_by_name(run.summary, numbers)}
    judged = [name for name in known if more_is_worse(name) is not None]
    if asked not in known:
        hint = nearest_or_list(str(asked), judged, "compare --json lists all")
        raise RequestError(f"--metric {asked}: these runs have no such number{hint}")
    worse = more_is_worse(asked)
    if worse is None:
        raise RequestError(
            f"--metric {asked}: a larger value is neither better nor worse; take one of {', '.join(judged)}"
        )
    return Metric(asked, worse)


def _step_time(arms: Sequence[CheckArm]) -> Metric:
    tokens = [tokens_per_step(run.summary) for arm in arms for run in arm.runs]
    known = [count for count in tokens if count]
    if len(known) < len(tokens) or not known or max(known) / min(known) - 1 < _SAME_TOKENS:
        return Metric(STEP, True)
    counts = " and ".join(f"{count:,.0f}" for count in sorted(set(known)))
    return Metric(PER_TOKEN, True, f"per token, since a step is not the same work: {counts} tokens")


def values(arm: CheckArm, metric: str, numbers: Sequence[Number]) -> list[Value]:
    """The number of each run that has it."""
    found = ((run, metrics_by_name(run.summary, numbers).get(metric)) for run in arm.runs)
    return [Value(run, value) for run, value in found if value is not None]


def lacking(arm: CheckArm, found: Sequence[Value], metric: str) -> list[str]:
    """A sentence for each run that lacks the number."""
    having = {value.run.name for value in found}
    return [f"{run.name} is left out: it has no {metric}" for run in arm.runs if run.name not in having]


_OTHER_KEYS = {"device", "hosts", "world_size", "model", "seq_length"}  # settings that the key has, too


class ResultPart(BaseModel):
    """A piece of the result."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings", defer_build=True)


class RunValue(ResultPart):
    """One run's number; doubts: what else used the machine while it was measured."""

    run: str
    value: float
    doubts: list[str]


class ArmValues(ResultPart):
    """One arm: as it was asked for, its runs, and their geometric mean, since ratios are judged. commit, revision: of
    the user's repository, with `--rev`; as its whole hash, and as a short one with the first line of its message."""

    asked: str
    commit: str | None = None
    revision: str | None = None
    runs: list[RunValue]
    mean: float | None


class Differing(ResultPart):
    """One thing that differs between the arms, or inside of one."""

    name: str
    a: Any
    b: Any


class Checked(ResultPart):
    """B against A. ratio: B / A with its 95 % interval. smallest_seen: the smallest change, as a share, that such runs
    see nine times in ten. run_deviation: of one run, as a share. needed_runs: of each arm, that would tell. next: the
    command that makes them. next_cost: what those that are missing should cost."""

    schema_version: Literal[1] = 1
    verdict: ChangeVerdict
    why: str
    metric: str
    worse_is: Literal["more", "less"]
    fail_above: float
    a: ArmValues
    b: ArmValues
    ratio: float | None
    low: float | None
    high: float | None
    confidence: float = CONFIDENCE
    smallest_seen: float | None
    power: float = POWER
    run_deviation: float | None
    in_blocks: bool
    needed_runs: int | None
    next: str | None = None
    next_cost: str | None = None
    key_differs: list[Differing]
    asked_differently: list[Differing]
    notes: list[str]


class Question(NamedTuple):
    """The share by which B may be worse, the metric (None: the step time), and the metrics that tables add."""

    fail_above: float
    metric: str | None = None
    numbers: Sequence[Number] = ()


def check_arms(a: CheckArm, b: CheckArm, asked: Question) -> Checked:
    """B against A; nothing is judged if the runs' hardware or software differs.
    Raises RequestError: there is no such metric, or neither more nor less of it is worse."""
    metric = choose_metric((a, b), asked.metric, asked.numbers)
    of_a, of_b = (values(arm, metric.name, asked.numbers) for arm in (a, b))
    judged = _judged(of_a, of_b, asked.fail_above, metric)
    keys = [[key_of(run.summary) for run in arm.runs] for arm in (a, b)]
    differs = differences(*keys)
    found = judged.found
    low, high = found.interval if found else (None, None)
    mean_a, mean_b = _mean(of_a), _mean(of_b)
    notes = [*filter(None, [metric.note]), *a.notes, *b.notes]
    notes += [*lacking(a, of_a, metric.name), *lacking(b, of_b, metric.name)]
    if names := unrecorded(*keys):
        notes.append(f"some runs did not record {', '.join(names)}: it is not known whether these differ")
    notes += _commits(a, b)
    if not differs:
        notes += _other_steps(a, b, asked, metric, judged)
    return Checked(
        verdict=ChangeVerdict.NOT_COMPARABLE if differs else judged.verdict,
        why="A and B did not run on the same hardware and software" if differs else judged.why,
        metric=metric.name,
        worse_is="more" if metric.more_is_worse else "less",
        fail_above=asked.fail_above,
        a=_arm(a, of_a, mean_a),
        b=_arm(b, of_b, mean_b),
        ratio=found.ratio if found else mean_b / mean_a if mean_a and mean_b else None,
        low=low,
        high=high,
        smallest_seen=found.smallest_seen if found else None,
        run_deviation=exp(found.deviation) - 1 if found else None,
        in_blocks=bool(found and found.in_blocks),
        needed_runs=None if differs else judged.needed,
        key_differs=[Differing(name=name, a=x, b=y) for name, (x, y) in differs.items()],
        asked_differently=list(_asked_differently(a, b)),
        notes=notes,
    )


def _judged(of_a: Sequence[Value], of_b: Sequence[Value], fail_above: float, metric: Metric) -> JudgedChange:
    if zero := next((each for each in (*of_a, *of_b) if each.value <= 0), None):
        why = f"{metric.name} is {zero.value:g} in {zero.run.name}, so there is no ratio"
        return JudgedChange(ChangeVerdict.UNKNOWN, why, None)
    a, b = ([Sample(each.value, each.run.block) for each in arm] for arm in (of_a, of_b))
    return judge(a, b, fail_above, metric.more_is_worse)


def _arm(arm: CheckArm, found: Sequence[Value], mean: float | None) -> ArmValues:
    runs = [
        RunValue(
            run=each.run.name,
            value=each.value,
            doubts=[f"{doubt.what}: {doubt.evidence}" for doubt in disturbances(each.run.summary)],
        )
        for each in found
    ]
    return ArmValues(asked=arm.arguments, runs=runs, mean=mean)


def _mean(found: Sequence[Value]) -> float | None:
    positive = found and all(each.value > 0 for each in found)
    return geometric_mean(each.value for each in found) if positive else None


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


def _asked_differently(a: CheckArm, b: CheckArm) -> Iterator[Differing]:
    """What was asked, by the first run of each arm."""
    if not a.runs or not b.runs:
        return
    of_a, of_b = (settings(arm.runs[0].summary) for arm in (a, b))
    for name in dict.fromkeys([*of_a, *of_b]):
        if name not in _OTHER_KEYS and of_a.get(name) != of_b.get(name):
            yield Differing(name=name, a=of_a.get(name), b=of_b.get(name))


def _other_steps(a: CheckArm, b: CheckArm, asked: Question, metric: Metric, judged: JudgedChange) -> list[str]:
    """A sentence if only the mean step shows the change: one that affects few of the steps."""
    if metric.name != STEP:
        return []
    of_a, of_b = (values(arm, MEAN_STEP, ()) for arm in (a, b))
    of_means = _judged(of_a, of_b, asked.fail_above, Metric(MEAN_STEP, True))
    if of_means.verdict is not ChangeVerdict.WORSE or judged.verdict is ChangeVerdict.WORSE or of_means.found is None:
        return []
    return [
        f"B's mean step takes {takes(of_means.found.ratio)}, its interval is above 1; the median step is not worse: "
        f"some steps take longer, most do not; --metric {MEAN_STEP} judges that"
    ]


_SPECIAL = frozenset("\\`*_[]<>|#&~$@!")


def as_markdown(checked: Checked, lines: Sequence[str]) -> str:
    """The verdict, a row for A and one for B, and the whole text below. lines: the text of the terminal."""
    head = ["", "revision", "runs", checked.metric] if checked.a.revision else ["", "launch", "runs", checked.metric]
    rows = [head, ["---"] * len(head), *(_row(letter, arm, checked) for letter, arm in _both(checked))]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    text = "\n".join(f"    {line}".rstrip() for line in lines)  # an indented block ends with no sign of its own
    return f"**{checked.verdict.value}**: {_escaped(checked.why)}\n\n{table}\n\n{text}\n"


def as_junit(checked: Checked, lines: Sequence[str]) -> str:
    """One test: it failed if B is worse, and is skipped if that cannot be told."""
    name = " against ".join(arm.revision or arm.asked for _, arm in reversed(_both(checked)))
    counts = {
        "tests": 1,
        "failures": int(checked.verdict is ChangeVerdict.WORSE),
        "skipped": int(checked.verdict in (ChangeVerdict.UNKNOWN, ChangeVerdict.NOT_COMPARABLE)),
        "errors": 0,
    }
    suite = ElementTree.Element("testsuite", {"name": "check"} | {key: str(n) for key, n in counts.items()})
    case = ElementTree.SubElement(suite, "testcase", {"classname": f"check.{checked.metric}", "name": _xml(name)})
    what = "failure" if counts["failures"] else "skipped" if counts["skipped"] else None
    if what is not None:
        ElementTree.SubElement(case, what, {"message": _xml(f"{checked.verdict.value}: {checked.why}")})
    ElementTree.SubElement(case, "system-out").text = "\n".join(map(_xml, lines))
    ElementTree.indent(suite)
    written: bytes = ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)
    return written.decode() + "\n"


def _both(checked: Checked) -> list[tuple[str, ArmValues]]:
    return [("A", checked.a), ("B", checked.b)]


def _row(letter: str, arm: ArmValues, checked: Checked) -> list[str]:
    mean = "–" if arm.mean is None else metric_text(checked.metric, arm.mean)
    return [letter, _escaped(arm.revision or arm.asked), str(len(arm.runs)), mean]


def _escaped(text: str) -> str:
    return "".join(f"\\{sign}" if sign in _SPECIAL else sign for sign in printable(text))


def _xml(text: str) -> str:
    """Without the characters that no XML may hold."""
    return re.sub("[\ufffe\uffff]", "", printable(text))
