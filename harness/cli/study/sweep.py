"""`slurm.sh sweep`: every combination of a file's settings as runs, and what was measured at each."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from harness.cli.command_line import Declared
from harness.cli.page import Page, as_text
from harness.cli.study.campaign import (
    Arguments,
    closing_lines,
    count_text,
    counts,
    flag_rows,
    read_arguments,
    state_rows,
)
from harness.cli.study.series import Series, begin, carried_out, checked_series, parted, repeats_of, show_state
from harness.common.errors import RequestError, nearest
from harness.common.paths import expanded

if TYPE_CHECKING:
    from harness.analysis.scaling import PointValues
    from harness.study.campaign.runner import SeriesOutcome
    from harness.study.sweeps.axes import Sweep
    from harness.study.sweeps.expand import Expanded

FURTHER = (
    Declared(("--repeats",), True, "runs per point; default: the file's"),
    Declared(("--plot",), True, "the measured value that --png shows [the first of the file's show]"),
    Declared(("--against",), True, "the option on the plot's horizontal axis [the first that varies]"),
)


def sweep(arguments: list[str]) -> int:
    """Run a sweep, continue it, or show it; returns the exit code.

    Raises:
        RequestError: a sentence for each thing that is wrong.
    """
    if not arguments or arguments[0].startswith("-"):
        wanted = read_arguments(arguments, "sweep", FURTHER).wanted
        return _list(wanted.json)
    return _sweep(arguments[0], read_arguments(arguments[1:], "sweep", FURTHER))


def page(_: list[str]) -> str:
    """The help page."""
    return as_text(
        Page(
            usage=[
                "sweep FILE.yaml|NAME [FLAGS] [-- FLAGS OF A LAUNCH, for all points]",
                "sweep: the sweeps of the harness, and the series that you started",
            ],
            about="All combinations of a file's settings as runs, within a budget, and the numbers of each. The same "
            "command again continues: a run that is done is not repeated.",
            flags=flag_rows(FURTHER),
            examples=[
                ("sweep micro-batch --dry-run", "the runs that would be made"),
                ("sweep micro-batch", "make them"),
            ],
            docs="docs/sweeps.md",
        )
    )


def _list(as_json: bool) -> int:
    from harness.study.sweeps.axes import read_sweep, shipped_sweep, sweep_names
    from harness.study.sweeps.stored import all_series, stored_request

    shipped = {name: read_sweep(path).title for name in sweep_names() if (path := shipped_sweep(name))}
    began = {name: request.sweep.title for name in all_series() if (request := stored_request(name))}
    if as_json:
        print(json.dumps({"sweeps": shipped, "series": began}, indent=1))
        return 0
    width = max(map(len, [*shipped, *began]), default=0)
    print("sweeps (slurm.sh sweep NAME starts one):")
    print("\n".join(f"  {name:<{width}}  {title}" for name, title in shipped.items()))
    if began:
        print("started here (slurm.sh sweep NAME continues or shows it; --status: the state of each point):")
        print("\n".join(f"  {name:<{width}}  {title}" for name, title in began.items()))
    return 0


def _sweep(word: str, arguments: Arguments) -> int:
    from harness.study.sweeps.stored import asked_sweep

    if arguments.script is not None:
        raise RequestError(
            "sweep: a training of your own is in the file: exercise: own and command: in its base (docs/sweeps.md)"
        )
    asked = asked_sweep(word, arguments.wanted.name)
    changed = _with_flags(asked.sweep, parted(arguments).experiment)
    if (repeats := arguments.further.get("--repeats")) is not None:
        changed = changed.model_copy(update={"repeats": repeats_of(repeats)})
    series = checked_series(asked.series, changed, arguments, f"slurm.sh sweep {asked.series}")
    against = _against(series.found, arguments.further.get("--against")) if arguments.wanted.png else ""
    plan = begin(series, arguments)
    if arguments.wanted.dry_run or arguments.wanted.status:
        return show_state(series, plan, arguments)
    outcome = carried_out(series, plan, arguments)
    return 0 if outcome is None else _answer(series, outcome, arguments, against)


def _with_flags(sweep: Sweep, flags: list[tuple[str, Any]]) -> Sweep:
    """The sweep with a launch's flags in its base. Raises RequestError: a flag is not one of the exercise's."""
    from harness.experiment.parse import flags_as_fields
    from harness.study.sweeps.axes import exercise_of

    given, wrong = flags_as_fields(exercise_of(sweep), flags)
    wrong += [f"{name} varies in this sweep: drop its flag" for name in given if name in sweep.axes]
    if any(name in ("-e", "--exercise") for name, _ in flags):
        wrong.append(f"-e: this sweep is of exercise {sweep.base['exercise']}: drop it")
    if wrong:
        raise RequestError("\n".join(wrong))
    return sweep.model_copy(update={"base": {**sweep.base, **given}}) if given else sweep


def _answer(series: Series, outcome: SeriesOutcome, arguments: Arguments, against: str) -> int:
    """Print the table, write the files, and say what failed."""
    from harness.report.tables.catalogue import numbers
    from harness.study.sweeps.results import results

    found = series.found
    told = results(outcome.places, found.settings, numbers())
    metrics = [name for name in found.sweep.show if any(name in point.values for point in told.points)]
    written = _write_files(found, told.points, metrics, arguments, against) if told.points else []
    if arguments.wanted.json:
        points = [point.model_dump() for point in told.points]
        states = state_rows(outcome.places)
        print(
            json.dumps(
                {"series": series.name, "points": points, "states": states, "stopped": outcome.stopped or None},
                indent=1,
            )
        )
    elif told.points:
        _print_table(found, told.points, metrics)
    lacking = [name for name in found.sweep.show if name not in metrics and told.points]
    lines = [*told.unmeasured, *closing_lines(outcome, series.again), *written]
    doubtful = next((run for point in told.points for run in point.doubtful), None)
    lines += [f"the reason why a recording is doubtful: slurm.sh report {doubtful}"] * (doubtful is not None)
    lines += [f"not measured here: {', '.join(lacking)}"] * bool(lacking)
    print("\n".join([*lines, count_text(counts(outcome.places))]), file=sys.stderr)
    return 0 if outcome.complete else 1


def _print_table(found: Expanded, points: list[PointValues], metrics: list[str]) -> None:
    from harness.cli.command_line import columns
    from harness.report.sweeps import lines
    from harness.report.tables.table import WIDTH, Screen

    title = found.sweep.title or found.sweep.name
    print("\n".join(lines(title[0].upper() + title[1:], points, metrics, Screen(columns(WIDTH)))))


def _write_files(
    found: Expanded, points: list[PointValues], metrics: list[str], arguments: Arguments, against: str
) -> list[str]:
    from harness.study.sweeps.results import known_metric

    wanted, written = arguments.wanted, list[str]()
    if wanted.csv is not None:
        from harness.report.sweeps import write_csv

        write_csv(points, expanded(wanted.csv))
        written.append(f"the table: {wanted.csv}")
    if wanted.png is not None:
        from harness.report.sweeps import plot_series

        metric = arguments.further.get("--plot", metrics[0] if metrics else found.sweep.show[0])
        known_metric(metric, points, "--plot")
        plot_series(found.sweep.title, points, metric, against, expanded(wanted.png))
        written.append(f"the plot: {wanted.png}")
    return written


def _against(found: Expanded, word: str | None) -> str:
    """The option of the plot's horizontal axis. Raises RequestError: it does not vary."""
    axes = found.sweep.axes
    if not axes:
        raise RequestError("--png: nothing varies in this sweep, so there is no horizontal axis")
    name = axes[0] if word is None else word
    if name in axes:
        return name
    near = nearest(name, axes)
    there = f": did you mean {near}?" if near else f"; there are {', '.join(axes)}"
    raise RequestError(f"--against: {name} does not vary in this sweep{there}")
