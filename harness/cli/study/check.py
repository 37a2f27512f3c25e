"""`slurm.sh check`: whether B is worse than A, by several runs of each, or that it cannot be told."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Annotated

import typer

from harness.cli.options import JsonOption
from harness.cli.study.check_runs import (
    AskedArms,
    CheckRequest,
    check_plan,
    continuing,
    launch,
    make_arms,
    of_launches,
    pair_of,
    series_of,
    under_treatment,
)
from harness.cli.study.check_treatment import (
    Images,
    Modules,
    Nodes,
    Pythons,
    Requirements,
    Revisions,
    Sets,
    TreatmentFlags,
    Unsets,
    treatment_of,
)
from harness.cli.study.check_which import Halving, halved_runs, say_plan, with_cause
from harness.cli.study.series import StartOption
from harness.cli.terminal import columns
from harness.cli.words import RUN
from harness.common.display.format import metric_text, percent
from harness.common.display.text import how_many
from harness.common.errors import RequestError, WorkError
from harness.common.paths import COMMAND, PROGRAM, expanded
from harness.compare.comparison import MOST_RUNS, USUAL_RUNS, Difference
from harness.compare.verdict import SAME_SHARE, ChangeVerdict
from harness.report.compare.tables import environment_sentences
from harness.report.compare.verdicts import metric_words, verdict_table
from harness.report.tables.table import WIDTH, TableScreen, setting, table
from harness.run import naming_flag, write_atomically
from harness.study.check import series
from harness.study.check.ends import ends_of
from harness.study.check.result import Checked, CheckedArm, Question, as_markdown, check_arms
from harness.study.series.cost import making

USUAL_SHARE = f"{100 * SAME_SHARE:g}%"
LEAST_SHARE, MOST_SHARE = 0.001, 1.0
CANNOT_TELL = 3
EXAMPLE = f"{COMMAND} check '-e 1 -g 2' '-e 1 -g 2 -- --mixed-precision'"


def launches_named(words: list[str]) -> list[str]:
    """The words of the command line; before a launch stands the program, also where it was pasted with its path: else
    its first flag would be one of ours. Raises RequestError: the quotes lack."""
    if bare := next((word for word in words if word in ("-e", "--exercise", RUN)), None):
        raise RequestError(f"check: {bare}: put each launch into quotes, as in {EXAMPLE}")
    named = re.compile(rf"(?:(?:bash )?(?:\S*/)?{re.escape(PROGRAM)} )?(-.* .*|-e.*|{RUN} .*)", re.DOTALL)
    return [f"{PROGRAM} {found[1]}" if (found := named.fullmatch(word)) else word for word in words]


def _refuse_wrong(markdown: Path) -> None:
    """Raises RequestError: a file cannot be there. Asked before anything runs."""
    if not markdown.parent.is_dir() or markdown.is_dir():
        what = "is a folder" if markdown.is_dir() else f"there is no folder {markdown.parent}"
        raise RequestError(f"--markdown {markdown}: {what}: give the name of a file")


def check(
    a: Annotated[str | None, typer.Argument(metavar="A", help="the base, given in the same way as B")] = None,
    b: Annotated[
        str | None,
        typer.Argument(metavar="B", help="runs with commas, a series, or a launch in quotes, of which runs are made"),
    ] = None,
    *,
    rev: Revisions = None,
    set_: Sets = None,
    unset: Unsets = None,
    python: Pythons = None,
    requirements: Requirements = None,
    image: Images = None,
    nodes: Nodes = None,
    modules: Modules = None,
    which: Annotated[bool, typer.Option("--which", help="if B is worse: halve what differs until one is left")] = False,
    yes: StartOption = False,
    fail_above: Annotated[str, typer.Option(metavar="P%", help="how much worse B may be")] = USUAL_SHARE,
    metric: Annotated[str | None, typer.Option(metavar="NAME", help="the number to judge [step_time]")] = None,
    runs: Annotated[
        int | None, typer.Option(metavar="N", min=2, max=MOST_RUNS, help=f"runs of A and of B [{USUAL_RUNS}]")
    ] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="SERIES", help="make only the missing runs of this check; for launches")
    ] = None,
    markdown: Annotated[str | None, typer.Option(metavar="FILE", help="also write the result as Markdown")] = None,
    as_json: JsonOption = False,
) -> int:
    """Whether B is slower than A, from several runs of each. If the runs differ too much, it cannot tell and prints
    the command that would."""
    question = Question(_share(fail_above), metric)
    if markdown is not None:
        _refuse_wrong(expanded(markdown))
    given = (("--fail-above", fail_above * (fail_above != USUAL_SHARE)), ("--metric", metric))
    options = [word for flag, value in given if value for word in (flag, value)] + ["--which"] * which
    asked = CheckRequest(question, runs, resume, options, which, yes)
    flags = TreatmentFlags(rev, set_ or [], unset or [], python, requirements, image, nodes, modules)
    try:
        checked = _of_treatment(flags, a, b, asked) if flags.first else _of_two(a, b, asked)
    except WorkError as error:
        error.exit_code = CANNOT_TELL  # its runs failed; 1 says that B is worse
        raise
    lines = list(lines_of(checked, columns(WIDTH)))
    if markdown is not None:
        with naming_flag("--markdown"):
            write_atomically(expanded(markdown), as_markdown(checked, lines))
    print(checked.model_dump_json(indent=1) if as_json else "\n".join(lines))
    return checked.verdict.exit_code


def _words_of_launch(word: str) -> list[str]:
    try:
        return shlex.split(word)
    except ValueError as error:
        raise RequestError(f"check: {word.removeprefix(PROGRAM).strip()!r} is no command line ({error})") from None


def _of_treatment(flags: TreatmentFlags, a: str | None, b: str | None, request: CheckRequest) -> Checked:
    if a is None or b is not None or not a.startswith(f"{PROGRAM} "):
        raise RequestError(f"{flags.first} takes {flags.takes}, as in {COMMAND} check {flags.example}")
    if request.which and flags.revisions:
        raise RequestError(
            "--which halves packages, variables and modules; commits are for git bisect (docs/studies.md)"
        )
    base = launch(_words_of_launch(a))
    pair = pair_of(flags.revisions, base) if flags.revisions else None
    treatment = treatment_of(flags, base)
    name = series_of(request)
    ends = ends_of(treatment.a, treatment.b) if request.which else None
    if ends is not None:
        say_plan(ends, base, request.runs or USUAL_RUNS, request.yes)
    with under_treatment(treatment, base, pair, name) as asked:
        checked = _made(asked, name, request, treatment.may_differ)
        again = continuing(asked, request.runs or USUAL_RUNS, request, name)
    return checked if ends is None else with_cause(Halving(ends, base, checked, name, request, again))


def _of_two(a: str | None, b: str | None, request: CheckRequest) -> Checked:
    if request.which and any(word.startswith(f"{PROGRAM} ") for word in (a, b) if word):
        what = "--set, --python, --requirements or --modules, and give one launch"
        raise RequestError(f"--which halves what A and B have of their own: add {what}")
    if a is None or b is None:
        raise RequestError(f"check: {'A' if a is None else 'B'} is missing ({COMMAND} help check)")
    launches = [word.startswith(f"{PROGRAM} ") for word in (a, b)]
    if any(launches) and not all(launches):
        raise RequestError("check: one of A and B is runs, the other a launch: give two launches, which then alternate")
    if not any(launches) and not request.which and (request.runs or request.resume):
        raise RequestError(f"{'--runs' if request.runs else '--resume'} is for launches in quotes, as in {EXAMPLE}")
    if all(launches):
        return _made(of_launches([_words_of_launch(word) for word in (a, b)]), series_of(request), request)
    arms = series.arms_of_runs((a, b))
    checked = check_arms(*arms, request.question)
    if request.which:
        return halved_runs(checked, arms, series_of(request, "1"), request)
    return checked.model_copy(update={"next": _next(checked, arms, request.options)})


def _made(asked: AskedArms, name: str, request: CheckRequest, may_differ: Collection[str] = ()) -> Checked:
    """The verdict on runs that are made now, with the command that makes more of them."""
    checked = check_arms(*make_arms(asked, name, request), request.question, may_differ)
    if checked.needed_runs is None:
        return checked
    to_make = check_plan(name, series.tasks_of(asked.launches, checked.needed_runs)).to_make
    following = continuing(asked, checked.needed_runs, request, name)
    return checked.model_copy(update={"next": following, "next_cost": making(to_make) if to_make else None})


def _share(text: str) -> float:
    """`5%` as 0.05. Raises RequestError: it is anything else."""
    found = re.fullmatch(r"([0-9]+|[0-9]*\.[0-9]+)%", text)
    share = float(found[1]) / 100 if found else None
    if share is not None and LEAST_SHARE <= share <= MOST_SHARE:
        return share
    raise RequestError(f"--fail-above takes a percentage from 0.1% to 100%, as {USUAL_SHARE}, not {text!r}")


def _next(checked: Checked, arms: Sequence[series.CheckArm], options: Sequence[str]) -> str | None:
    launches = [launch for arm in arms if (launch := series.launch_of_arm(arm)) is not None]
    if checked.needed_runs is None or len(launches) < len(arms):
        return None
    commits = {commit[:12]: None for arm in arms if (commit := series.commit_of_arm(arm)) is not None}
    if len(commits) > 1:  # the launches alone would both run what is in the working tree now
        launches = ["--rev", *commits, launches[0]] if len(set(launches)) == 1 else []
    if not launches:
        return None
    return f"{COMMAND} check {shlex.join([*launches, '--runs', str(checked.needed_runs), *options])}"


def lines_of(checked: Checked, width: int, advice: bool = True) -> Iterator[str]:
    """The verdict first, then what it rests on, then what to do, if advice is wanted."""
    yield from wrap(f"{checked.verdict.value}: {checked.why}", width)
    for sentence in checked.which.told if checked.which else ():
        yield from wrap(sentence, width)
    yield ""
    for letter, arm in (("A", checked.a), ("B", checked.b)):
        yield f"{letter}: {arm.treatment}: {arm.name}" if arm.treatment else f"{letter}: {arm.name}"
        yield f"   {_runs(arm)}"
        shown = ", ".join(metric_text(checked.metric, run.value) for run in arm.runs)
        yield f"   {metric_words(checked.metric)}: {shown or 'no run has it'}"
    yield ""
    yield from _numbers(checked, width)
    if checked.verdict is ChangeVerdict.NOT_COMPARABLE:
        yield from _differing("Not comparable: these differ", checked.key_differs)
    yield from _differing("Settings that differ", checked.settings_differ)
    if sentences := [*environment_sentences((), checked.environment, "b")]:
        yield from [""] * (not checked.settings_differ)  # a table ends with a blank line
        yield from (line for each in sentences for line in wrap(each, width, subsequent_indent="  "))
    notes = [f"note: {note}" for note in [*checked.notes, *_doubts(checked)]]
    yield from (line for note in notes for line in wrap(note, width, subsequent_indent="  "))
    yield from _advice(checked, width) if advice else ()


def _runs(arm: CheckedArm) -> str:
    return f"{how_many(arm.n, 'run')}: {', '.join(run.run for run in arm.runs)}" if arm.n else "no run"


def _numbers(checked: Checked, width: int) -> Iterator[str]:
    if checked.ratio is None:
        return
    shown = verdict_table([(metric_words(checked.metric), checked)], ("A", "B"), "Geometric means of the runs")
    yield from TableScreen(width).block(shown)
    if checked.smallest_seen is not None:
        text = (
            f"runs differ by {percent(checked.run_deviation)}, so {checked.a.n} and {checked.b.n} runs show a change "
            f"of {percent(checked.smallest_seen)} nine times in ten"
        )
        yield from wrap(text, width)


def _differing(title: str, differences: list[Difference]) -> Iterator[str]:
    if differences:
        yield ""
        yield title
        yield from table(("", "A", "B"), [(row.name, setting(row.a), setting(row.b)) for row in differences], left=3)
        yield ""


def _doubts(checked: Checked) -> Iterator[str]:
    for letter, arm in (("A", checked.a), ("B", checked.b)):
        disturbed = [run for run in arm.runs if run.doubts]
        if disturbed:
            names = ", ".join(run.run for run in disturbed)
            yield f"{letter}: {disturbed[0].doubts[0]} (of {names})"


def _advice(checked: Checked, width: int) -> Iterator[str]:
    if checked.verdict is not ChangeVerdict.UNKNOWN:
        return
    if checked.groups_advice:
        yield from wrap(checked.groups_advice, width)
        return
    if checked.needed_runs is None:
        text = (
            f"even {MOST_RUNS} runs of each would not tell, if they vary like these: make the machine "
            "quieter, or allow more with --fail-above"
        )
        yield from wrap(text, width)
        return
    runs = [*checked.a.runs, *checked.b.runs]
    if 2 * sum(bool(run.doubts) for run in runs) > len(runs):
        yield from wrap("other programs used the machine during most runs: repeat the check when they do not", width)
    known = checked.low is not None
    text = (
        f"about {checked.needed_runs} runs of each would tell" if known else f"begin with {checked.needed_runs} of each"
    )
    yield text + (":" if checked.next else "")
    if checked.next:
        yield f"  {checked.next}"
    if checked.next_cost:
        yield from wrap(f"to make: {checked.next_cost}", width)
