"""`slurm.sh sweep`: every combination of a file's settings as a series of runs, and what was measured at each."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from harness.cli.launch.untrusted import RequestOrigin, may_launch, show_request
from harness.cli.options import JsonOption
from harness.cli.study.series import (
    MOST_REPEATS,
    Arguments,
    NameOption,
    PlanOnlyOption,
    RetryOption,
    SeriesPlan,
    StartOption,
    arguments_of,
    carried_out,
    close,
    command_lines,
    plan_lines,
    plan_of,
    state_rows,
)
from harness.cli.terminal import columns
from harness.cli.words import CommandLine
from harness.common.display.text import first_of, how_many
from harness.common.errors import RequestError
from harness.common.paths import COMMAND, shown_file
from harness.experiment.options import options_of
from harness.experiment.parse import flags_as_fields
from harness.site.detection import SiteChoice, choose_site
from harness.site.site import Site
from harness.study.series.cost import cost_document
from harness.study.series.folder import refuse_name
from harness.study.sweeps import stored
from harness.study.sweeps.axes import Sweep, exercise_of, read_sweep, shipped_sweep, sweep_names
from harness.study.sweeps.expand import SweepPoints, expand, threads_of

if TYPE_CHECKING:
    from harness.compare.points import PointValues, Size
    from harness.experiment.exercises import Experiment
    from harness.study.series.runner import SeriesOutcome
_NAMED = 3  # points that a line names


def sweep(
    line: CommandLine,
    sweep_name: Annotated[
        str | None, typer.Argument(metavar="FILE.yaml|NAME", autocompletion=sweep_names, help="the sweep [list all]")
    ] = None,
    *,
    name: NameOption = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, max=MOST_REPEATS, help="runs per point; default: the file's")
    ] = None,
    yes: StartOption = False,
    retry_failed: RetryOption = False,
    dry_run: PlanOnlyOption = False,
    as_json: JsonOption = False,
) -> int:
    """Make all combinations of a file's settings as runs, and print the numbers of each. The flags of a launch are for
    all points. The same command again continues: a run that is done is not repeated."""
    arguments = arguments_of(
        line, "sweep", name=name, repeats=repeats, yes=yes, retry_failed=retry_failed, dry_run=dry_run, json=as_json
    )
    return _list(as_json) if sweep_name is None else _sweep(sweep_name, arguments)


def _list(as_json: bool) -> int:
    shipped = {name: read_sweep(path).title for name in sweep_names() if (path := shipped_sweep(name))}
    began = {name: request.sweep.title for name in stored.all_series() if (request := stored.stored_request(name))}
    if as_json:
        print(json.dumps({"sweeps": shipped, "series": began}, indent=1))
        return 0
    width = max(map(len, [*shipped, *began]), default=0)
    print(f"sweeps ({COMMAND} sweep NAME starts one):")
    print("\n".join(f"  {name:<{width}}  {title}" for name, title in shipped.items()))
    if began:
        print(f"started here ({COMMAND} sweep NAME continues or shows it):")
        print("\n".join(f"  {name:<{width}}  {title}" for name, title in began.items()))
    return 0


def _sweep(word: str, arguments: Arguments) -> int:
    if arguments.script is not None:
        raise RequestError(
            "sweep: a training of your own is in the file: exercise: own and command: in its base "
            f"({shown_file('docs/studies.md')})"
        )
    asked = stored.asked_sweep(word, arguments.name)
    changed = _with_flags(asked.sweep, parted(arguments)[1])
    if arguments.repeats is not None:
        changed = changed.model_copy(update={"repeats": arguments.repeats})
    return run_sweep(asked.series, changed, arguments)


def _with_flags(sweep: Sweep, flags: list[tuple[str, Any]]) -> Sweep:
    """The sweep with a launch's flags in its base. Raises RequestError: a flag is not one of the exercise's."""
    given, wrong = flags_as_fields(exercise_of(sweep), flags)
    wrong += [f"{name} varies in this sweep: drop its flag" for name in given if name in sweep.axes]
    if any(name in ("-e", "--exercise") for name, _ in flags):
        wrong.append(f"-e: this sweep is of exercise {sweep.base['exercise']}: drop it")
    if wrong:
        raise RequestError("\n".join(wrong))
    return sweep.model_copy(update={"base": {**sweep.base, **given}}) if given else sweep


def _answer(series: SweepSeries, outcome: SeriesOutcome, arguments: Arguments) -> int:
    from harness.compare.points import what_limits
    from harness.study.sweeps.results import results

    found = series.points
    told = results(outcome.completed, found.settings, found.sweep)
    metrics = [name for name in found.sweep.show if any(name in point.values for point in told.points)]
    limit = what_limits(told.sizes) if found.sweep.scales else None
    if arguments.json:
        states = {"states": state_rows(outcome.places), "stopped": outcome.stopped or None}
        data = {"points": [point.model_dump() for point in told.points]} | ({"limit": limit} if limit else {})
        print(json.dumps({"series": series.name, **data, **states}, indent=1))
    elif told.sizes and limit:
        _print_sizes(found, told.sizes, limit)
    elif told.points:
        _print_table(found, told.points, metrics)
    lacking = [name for name in found.sweep.show if name not in metrics and told.points]
    doubtful = next((run for point in told.points for run in point.doubtful), None)
    notes = [f"the reason why a recording is doubtful: {COMMAND} report {doubtful}"] * (doubtful is not None)
    notes += [f"not measured here: {', '.join(lacking)}"] * bool(lacking)
    return close(outcome, series.again, told.unmeasured, notes)


def _print_table(sweep_points: SweepPoints, points: list[PointValues], metrics: list[str]) -> None:
    from harness.report.sweeps import group_notes, shown_table
    from harness.report.tables.table import WIDTH, TableScreen

    title, screen = sweep_points.sweep.title or sweep_points.sweep.name, TableScreen(columns(WIDTH))
    print("\n".join(screen.block(shown_table(title[0].upper() + title[1:], points, metrics))))
    print("".join(f"{line}\n" for note in group_notes(points) for line in screen.wrapped(note, "  ")), end="")


def _print_sizes(sweep_points: SweepPoints, sizes: list[Size], limit: str) -> None:
    from harness.report.sweeps import group_notes, scaling_table, why_table
    from harness.report.tables.table import WIDTH, TableScreen

    title, screen = sweep_points.sweep.title or sweep_points.sweep.name, TableScreen(columns(WIDTH))
    print("\n".join(screen.block(scaling_table(title[0].upper() + title[1:], sizes))))
    print("".join(f"{line}\n" for note in group_notes(sizes) for line in screen.wrapped(note, "  ")), end="")
    print("\n".join(["", *screen.block(why_table(sizes)), "", *screen.wrapped(limit[0].upper() + limit[1:] + ".", "")]))
    print(f"next: {COMMAND} report {sizes[-1].runs[0]}")


class SweepSeries(NamedTuple):
    """What is asked for. request: its sweep and site, as they are stored. again: the command that continues."""

    name: str
    request: stored.StoredSweep
    points: SweepPoints
    again: str


def parted(arguments: Arguments) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    """The flags of a launch among the words: the site's options by field, and the experiment's as typed."""
    fields = {name: option.field for option in options_of(Site) for name in option.flag.names}
    of_site = {fields[name]: value for name, value in arguments.launch.items() if name in fields}
    return of_site, [(name, value) for name, value in arguments.launch.items() if name not in fields]


def site_of(arguments: Arguments, before: stored.StoredSweep | None) -> tuple[SiteChoice, str | None]:
    """The site where the series began, else the chosen one; and the word for it after --site."""
    word = arguments.site
    if before is not None and word is None:
        return SiteChoice(before.site, "where the series began"), before.site_word
    return choose_site(word), word


def run_sweep(name: str, sweep: Sweep, arguments: Arguments) -> int:
    """Run the sweep as the series of this name, continue it, or show it, as the flags say; returns the exit code.
    Raises RequestError: a point is invalid, or the series began with other settings."""
    series = _checked_series(name, sweep, arguments)
    plan = plan_of(series.name, series.points.tasks, retry_failed=arguments.retry_failed)
    if not arguments.json:
        _print_plan(series, plan)
    if arguments.dry_run:
        return _show_plan(series, plan, arguments)

    def allowed() -> bool:
        request = _request(series, arguments)
        return request is None or may_launch(*request, yes=arguments.yes)

    outcome = carried_out(
        plan, arguments, series.again, allowed, lambda: stored.store_request(series.name, series.request)
    )
    return 0 if outcome is None else _answer(series, outcome, arguments)


def _checked_series(name: str, sweep: Sweep, arguments: Arguments) -> SweepSeries:
    refuse_name(name, "--name")
    before = stored.stored_request(name)
    choice, word = site_of(arguments, before)
    stored.refuse_another(name, before, sweep, choice.site)
    found = expand(sweep, choice.site, word, parted(arguments)[0])
    if threads := threads_of(found):
        site = choice.site.model_copy(update={"env": {**choice.site.env, **threads}})
        found = expand(sweep, site, word, parted(arguments)[0])
    request = stored.StoredSweep(sweep=sweep, site=found.site, site_word=word)
    return SweepSeries(name, request, found, f"{COMMAND} sweep {name}")


def _print_plan(series: SweepSeries, plan: SeriesPlan) -> None:
    found = series.points
    title = f": {found.sweep.title}" if found.sweep.title else ""
    repeats = found.sweep.repeats
    points = how_many(len(found.settings), "point") + (f" × {repeats} runs" if repeats > 1 else "")
    axes = ", ".join(found.sweep.axes)
    lines = [
        f"sweep {plan.series}{title}, at site {found.site.name}",
        f"  {points}" + (f" over {axes}" if axes else ""),
    ]
    for why in dict.fromkeys(left.why for left in found.left_out):
        keys = [left.key for left in found.left_out if left.why == why]
        lines.append(f"  left out: {first_of(keys, _NAMED, separator='; ')}: {why}")
    print("\n".join([*lines, *plan_lines(plan)]), file=sys.stderr)


def _request(series: SweepSeries, arguments: Arguments) -> tuple[RequestOrigin, list[Experiment], Site | None] | None:
    """What comes from the series' stored request; None if it begins now. A site that was typed does not."""
    file = stored.request_file(series.name)
    if not file.is_file():
        return None
    asked = [task.prepared.experiment for task in series.points.tasks]
    site = series.points.site if arguments.site is None else None
    return RequestOrigin(file), asked, site


def _show_plan(series: SweepSeries, plan: SeriesPlan, arguments: Arguments) -> int:
    found = series.points
    if arguments.json:
        data = {"series": plan.series, "site": found.site.name, "points": state_rows(plan.places)}
        left_out = [left._asdict() for left in found.left_out]
        print(json.dumps({**data, "left_out": left_out, "cost": cost_document(plan.to_make)}, indent=1))
    else:
        if (request := _request(series, arguments)) is not None:
            show_request(*request)
        print("\n".join(command_lines(plan.to_make)))
    return 0
