"""The result of a check in words, for a terminal. Judges nothing."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from harness.analysis.change.verdict import MOST_RUNS, ChangeVerdict
from harness.format.format import metric_text, percent
from harness.report.tables.screen import table
from harness.study.check.result import ArmValues, Checked, Differing

_MEANS = {
    "step_ns": "step time",
    "step_ns_per_token": "step time per token",
    "mean_step_ns": "mean step time",
}


def lines_of(checked: Checked, width: int) -> Iterator[str]:
    """The verdict first, then what it rests on, then what to do."""
    yield from _wrapped(f"{checked.verdict.value}: {checked.why}", width)
    yield ""
    yield from _arms(checked)
    yield ""
    yield from _numbers(checked, width)
    yield from _differing("Not comparable: these differ", checked.key_differs)
    yield from _differing("Settings that differ", checked.asked_differently)
    notes = [f"note: {note}" for note in [*checked.notes, *_doubts(checked)]]
    yield from (line for note in notes for line in wrap(note, width, subsequent_indent="  "))
    yield from _next(checked, width)


def _arms(checked: Checked) -> Iterator[str]:
    for letter, arm in (("A", checked.a), ("B", checked.b)):
        yield f"{letter}: {arm.asked}"
        yield f"   {_runs(arm)}"
        shown = ", ".join(metric_text(checked.metric, run.value) for run in arm.runs)
        yield f"   {_name(checked)}: {shown or 'no run has it'}"


def _runs(arm: ArmValues) -> str:
    count = len(arm.runs)
    return f"{count} run{'s' * (count != 1)}: {', '.join(run.run for run in arm.runs)}" if count else "no run"


def _name(checked: Checked) -> str:
    return _MEANS.get(checked.metric, checked.metric)


def _numbers(checked: Checked, width: int) -> Iterator[str]:
    if checked.ratio is None:
        return
    text = f"B / A {checked.ratio:.3f}"
    if checked.low is not None and checked.high is not None and checked.smallest_seen is not None:
        text += (
            f", 95 % interval {checked.low:.3f} to {checked.high:.3f}: runs differ by "
            f"{percent(checked.run_deviation)}, so {len(checked.a.runs)} and {len(checked.b.runs)} runs show a change "
            f"of {percent(checked.smallest_seen)} nine times in ten"
        )
    yield from _wrapped(text, width)


def _differing(title: str, rows: list[Differing]) -> Iterator[str]:
    if rows:
        yield ""
        yield title
        yield from table(("", "A", "B"), [(row.name, _plain(row.a), _plain(row.b)) for row in rows], left=3)
        yield ""


def _plain(value: object) -> str:
    if isinstance(value, tuple | list):
        return " ".join(map(str, value)) or "–"
    return "–" if value is None else str(value)


def _doubts(checked: Checked) -> Iterator[str]:
    """Each doubt about the machine, with the runs that have it."""
    for letter, arm in (("A", checked.a), ("B", checked.b)):
        disturbed = [run for run in arm.runs if run.doubts]
        if disturbed:
            names = ", ".join(run.run for run in disturbed)
            yield f"{letter}: {disturbed[0].doubts[0]} (of {names})"


def _next(checked: Checked, width: int) -> Iterator[str]:
    if checked.verdict is not ChangeVerdict.UNKNOWN:
        return
    if checked.needed_runs is None:
        text = (
            f"even {MOST_RUNS} runs of each would not tell, if they vary like these: make the machine "
            "quieter, or allow more with --fail-above"
        )
        yield from _wrapped(text, width)
        return
    if _mostly_disturbed(checked):
        yield from _wrapped(
            "other programs used the machine during most runs: repeat the check when they do not", width
        )
    known = checked.low is not None
    text = (
        f"about {checked.needed_runs} runs of each would tell"
        if known
        else f"begin with {checked.needed_runs} of each"
    )
    yield text + (":" if checked.next else "")
    if checked.next:
        yield f"  {checked.next}"


def _mostly_disturbed(checked: Checked) -> bool:
    runs = [*checked.a.runs, *checked.b.runs]
    return 2 * sum(bool(run.doubts) for run in runs) > len(runs)


def _wrapped(text: str, width: int) -> list[str]:
    return wrap(text, width)
