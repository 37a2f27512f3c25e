"""A sweep or a scaling study as a series: its points at the site, its plan on the screen, its runs. No result."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from harness.cli.command_line import Declared
from harness.cli.launch.untrusted import may_launch, show_request
from harness.cli.page import Page, as_text
from harness.cli.study.campaign import (
    Arguments,
    SeriesPlan,
    closing_lines,
    confirmed,
    count_text,
    counts,
    flag_rows,
    limits_of,
    make,
    plan_lines,
    plan_of,
    read_arguments,
    state_lines,
    state_rows,
)
from harness.common.errors import RequestError, nearest
from harness.common.paths import expanded
from harness.common.secrets import masked_words
from harness.common.whole_number import whole_number

if TYPE_CHECKING:
    from harness.analysis.scaling import Size
    from harness.experiment.exercises import Experiment
    from harness.launch.untrusted import Source
    from harness.site.detection import SiteChoice
    from harness.site.site import Site
    from harness.study.campaign.runner import SeriesOutcome
    from harness.study.scaling import Axis, Mode, Study
    from harness.study.sweeps.axes import Sweep
    from harness.study.sweeps.expand import Expanded
    from harness.study.sweeps.stored import Kind, Stored

_NAMED = 3  # points that a line names
MOST_REPEATS = 1000


class Series(NamedTuple):
    """What is asked for. request: its sweep, site and kind, as they are stored. again: the command that continues."""

    name: str
    request: Stored
    found: Expanded
    again: str


class Flags(NamedTuple):
    """A launch's flags, parted: the site's options by field, and the experiment's as typed."""

    site: dict[str, Any]
    experiment: list[tuple[str, Any]]


def parted(arguments: Arguments) -> Flags:
    """The flags of a launch among the words."""
    from harness.experiment.options import options_of
    from harness.site.site import Site

    fields = {name: option.field for option in options_of(Site) for name in option.flag.names}
    return Flags(
        {fields[name]: value for name, value in arguments.launch.items() if name in fields},
        [(name, value) for name, value in arguments.launch.items() if name not in fields],
    )


def site_of(arguments: Arguments, stored: Stored | None) -> tuple[SiteChoice, str | None]:
    """The site where the series began, else the chosen one; and the word for it after --site."""
    from harness.site.detection import SiteChoice, choose_site

    word = arguments.wanted.site
    if stored is not None and word is None:
        return SiteChoice(stored.site, "where the series began"), stored.site_word
    return choose_site(word), word


def repeats_of(word: str) -> int:
    """The number after --repeats. Raises RequestError: it is none."""
    number = whole_number(word)
    if number is None or not 0 < number <= MOST_REPEATS:
        raise RequestError(f"--repeats: got {word!r}, takes a whole number from 1 to {MOST_REPEATS}")
    return number


def checked_series(name: str, sweep: Sweep, arguments: Arguments, again: str, kind: Kind = "sweep") -> Series:
    """The series at its site, every point valid, and the same as it was when it began.

    Raises RequestError: a line for each thing that is wrong.
    """
    from harness.study.campaign.series import checked_name
    from harness.study.sweeps.expand import expand
    from harness.study.sweeps.stored import Stored, refuse_another, stored_request

    checked_name(name, "--name")
    stored = stored_request(name)
    choice, word = site_of(arguments, stored)
    refuse_another(name, stored, sweep, choice.site)
    found = expand(sweep, _with_threads(choice.site, sweep, kind), word, parted(arguments).site)
    for flag, path in (("--csv", arguments.wanted.csv), ("--png", arguments.wanted.png)):
        if path is not None:
            _check_target(expanded(path), flag)
    request = Stored(sweep=sweep, site=found.site, site_word=word, kind=kind)
    return Series(name, request, found, again)


def _with_threads(site: Site, sweep: Sweep, kind: Kind) -> Site:
    """The site; of a scaling study on this machine's CPUs, with the same threads for each process."""
    if kind != "scaling":
        return site
    from harness.study.scaling import threads_of

    return site.model_copy(update={"env": {**site.env, **threads_of(sweep, site)}})


def _check_target(path: Path, flag: str) -> None:
    """Raises RequestError: no file can be written there, which would be found out after the last run."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        why = "is a folder" if path.is_dir() else "is in a folder that is not there"
        raise RequestError(f"{flag} {path}: {why}: name a file")


def begin(series: Series, arguments: Arguments) -> SeriesPlan:
    """Where the series stands; printed, unless JSON was asked for."""
    plan = plan_of(series.name, series.found.tasks, limits_of(arguments.wanted, series.found.tasks))
    if not arguments.wanted.json:
        _print_plan(series, plan)
    return plan


def _print_plan(series: Series, plan: SeriesPlan) -> None:
    found = series.found
    title = f": {found.sweep.title}" if found.sweep.title else ""
    points = f"{len(found.settings)} points" + (f" × {found.repeats} runs" if found.repeats > 1 else "")
    sizes = {name: len({str(each[name]) for each in found.settings.values()}) for name in found.sweep.axes}
    axes = " × ".join(f"{name} ({n})" for name, n in sizes.items())
    lines = [
        f"{series.request.kind} {plan.series}{title}, at site {found.site.name}",
        f"  {points}" + (f" over {axes}" if axes else ""),
    ]
    for why in dict.fromkeys(left.why for left in found.left_out):
        keys = [left.key for left in found.left_out if left.why == why]
        more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
        lines.append(f"  left out: {'; '.join(keys[:_NAMED])}{more}: {why}")
    print("\n".join([*lines, *plan_lines(plan)]), file=sys.stderr)


def _request(series: Series, arguments: Arguments) -> tuple[Source, list[Experiment], Site | None] | None:
    """What comes from the series' stored request; None if it begins now. A site that was typed does not."""
    from harness.launch.untrusted import Source
    from harness.study.sweeps.stored import request_file

    file, word = request_file(series.name), series.request.site_word
    if not file.is_file():
        return None
    asked = [task.prepared.asked for task in series.found.tasks]
    site = series.found.site if arguments.wanted.site is None else None
    return Source(file, command=["--site", word] if word else []), asked, site


def _trusted(series: Series, arguments: Arguments) -> bool:
    """Whether to run what the stored request brings, as `may_launch`."""
    request = _request(series, arguments)
    return request is None or may_launch(*request, yes=arguments.wanted.yes)


def show_state(series: Series, plan: SeriesPlan, arguments: Arguments) -> int:
    """What --dry-run and --status print; returns the exit code."""
    found = series.found
    if arguments.wanted.json:
        data = {
            "series": plan.series,
            "site": found.site.name,
            "points": state_rows(plan.places),
            "left_out": [left._asdict() for left in found.left_out],
            "device_ns": plan.estimate._asdict(),
        }
        print(json.dumps(data, indent=1))
    elif arguments.wanted.dry_run:
        if (request := _request(series, arguments)) is not None:
            show_request(*request)
        print("\n".join(f"{task.point.slot}: {' '.join(masked_words(task.point.command))}" for task in plan.to_make))
    else:
        print("\n".join(state_lines(plan)))
    return 0


def carried_out(series: Series, plan: SeriesPlan, arguments: Arguments) -> SeriesOutcome | None:
    """Make what is not done, after the question; None if a person said no."""
    from harness.study.campaign.runner import SeriesOutcome
    from harness.study.sweeps.stored import store_request

    if not plan.to_make and all(place.status != "running" for place in plan.places):
        return SeriesOutcome(list(plan.places))
    if plan.to_make and not _trusted(series, arguments):
        return None
    if plan.to_make and not confirmed(plan, arguments.wanted):
        print("nothing was started", file=sys.stderr)
        return None
    store_request(series.name, series.request)
    return make(plan, series.again)


FURTHER = (
    Declared(("--gpus",), True, "GPUs of one node (without GPUs: processes), as in 1,2,4, instead of --nodes"),
    Declared(("--strong",), False, "strong scaling: the same global batch, split over more devices"),
    Declared(("--weak",), False, "weak scaling: the same batch per device [default]"),
    Declared(("--repeats",), True, "runs per size, for the intervals [3]"),
)
REPEATS = 3


def scaling(arguments: list[str]) -> int:
    """Run a scaling study, continue it, or show it; returns the exit code.

    Raises:
        RequestError: a sentence for each thing that is wrong.
    """
    if not arguments:
        print(page(arguments))
        return 0
    if arguments[0].startswith("-"):
        read = read_arguments(arguments, "scaling", FURTHER)
        found = _sweep(read)
        name = read.wanted.name or found.name
    else:
        read = read_arguments(arguments[1:], "scaling", FURTHER)
        name, found = arguments[0], _stored(arguments[0])
        if "--repeats" in read.further:
            found = found.model_copy(update={"repeats": repeats_of(read.further["--repeats"])})
    return _study(checked_series(name, found, read, f"slurm.sh scaling {name}", "scaling"), read)


def page(_: list[str]) -> str:
    """The help page."""
    return as_text(
        Page(
            usage=[
                "scaling -e EXERCISE --nodes 1,2,4,8 [--strong|--weak] [FLAGS] [-- FLAGS OF A LAUNCH]",
                "scaling -e EXERCISE --gpus 1,2,4 …: the devices of one node",
                "scaling --nodes 1,2,4 -- train.py …: a training of your own",
                "scaling NAME: continue a study, or show it",
            ],
            about="One training on more and more devices: speed-up, efficiency, and what limits them. The same command "
            "again continues: a run that is done is not repeated.",
            flags=flag_rows(FURTHER),
            examples=[("scaling -e 1 --nodes 1,2,4 --dry-run", "the runs that would be made")],
            docs="docs/sweeps.md",
        )
    )


def _stored(name: str) -> Sweep:
    from harness.study.sweeps.stored import all_series, stored_request

    found = stored_request(name)
    if found is None or found.kind != "scaling":
        near = nearest(name, all_series())
        hint = f": did you mean {near}?" if near else "; to begin one: slurm.sh scaling -e 1 --nodes 1,2,4"
        raise RequestError(f"scaling: there is no study {name!r}{hint}")
    return found.sweep


def _sweep(arguments: Arguments) -> Sweep:
    """The study that the flags ask for, as a sweep."""
    from harness.site.site import override
    from harness.study.scaling import study_sweep
    from harness.study.sweeps.stored import stored_request

    axis, sizes = _sizes(arguments)
    flags = parted(arguments)
    stored = stored_request(arguments.wanted.name) if arguments.wanted.name else None
    site = override(site_of(arguments, stored)[0].site, flags.site)
    study = _asked(arguments, flags.experiment, axis, sizes)
    return study_sweep(study, site)


def _sizes(arguments: Arguments) -> tuple[Axis, list[int]]:
    """The axis and its sizes; they are taken from the launch's flags."""
    from harness.study.scaling import sizes_of

    nodes, gpus = str(arguments.launch.get("--nodes", "")), arguments.further.get("--gpus")
    if "," in nodes and gpus is not None:
        raise RequestError("--nodes and --gpus both name sizes: a study has one of them")
    if gpus is not None:
        if arguments.launch.pop("--gpus-per-node", None):
            raise RequestError("--gpus names the sizes, and -g/--gpus-per-node one of them: drop -g")
        return "gpus_per_node", sizes_of("--gpus", gpus)
    if not nodes:
        raise RequestError("scaling: the sizes are missing: --nodes 1,2,4,8, or --gpus 1,2,4 on one node")
    arguments.launch.pop("--nodes")
    return "nodes", sizes_of("--nodes", nodes)


def _asked(arguments: Arguments, flags: list[tuple[str, Any]], axis: Axis, sizes: list[int]) -> Study:
    from harness.experiment.exercises import EXERCISES, Own, listing
    from harness.experiment.parse import flags_as_fields
    from harness.study.scaling import Study

    number = str(arguments.launch.get("--exercise", ""))
    cls: type[Experiment] = Own
    own = _own(arguments.script) if arguments.script is not None else {}
    if not own and number not in map(str, EXERCISES):
        raise RequestError(f"-e/--exercise: got {number!r}, there are {listing()}, or a training of your own after --")
    if not own:
        cls = EXERCISES[int(number)]
    given, wrong = flags_as_fields(cls, flags)
    modes = [mode for mode in ("strong", "weak") if f"--{mode}" in arguments.further]
    if len(modes) > 1:
        wrong.append("--strong and --weak exclude each other: drop one")
    if wrong:
        raise RequestError("\n".join(wrong))
    repeats = repeats_of(arguments.further["--repeats"]) if "--repeats" in arguments.further else REPEATS
    return Study(cls, own | given, axis, sizes, cast("Mode", modes[0] if modes else "weak"), repeats)


def _own(script: tuple[str, ...]) -> dict[str, Any]:
    """The fields of the user's own training, as a stored request has them."""
    from harness.cli.launch.launch import own_fields

    given = {name: value for name, value in own_fields(script).items() if value is not None}
    return given | {"command": list(script)}


def _study(series: Series, arguments: Arguments) -> int:
    plan = begin(series, arguments)
    if arguments.wanted.dry_run or arguments.wanted.status:
        return show_state(series, plan, arguments)
    outcome = carried_out(series, plan, arguments)
    return 0 if outcome is None else _answer(series, outcome, arguments)


def _answer(series: Series, outcome: SeriesOutcome, arguments: Arguments) -> int:
    from harness.analysis.scaling import what_limits
    from harness.study.scaling_result import sizes
    from harness.study.sweeps.results import measured_runs

    measured, lacking = measured_runs(outcome.places)
    found = sizes(measured, series.found.settings)
    said = what_limits(found)
    written = _write_files(series, found, arguments) if found else []
    if arguments.wanted.json:
        data = {"series": series.name, "sizes": [size.model_dump() for size in found], "limit": said}
        print(json.dumps({**data, "states": state_rows(outcome.places), "stopped": outcome.stopped or None}, indent=1))
    elif found:
        _print(series, found, said)
    lines = [*lacking, *closing_lines(outcome, series.again), *written, count_text(counts(outcome.places))]
    print("\n".join(lines), file=sys.stderr)
    return 0 if outcome.complete else 1


def _print(series: Series, found: list[Size], said: str) -> None:
    from harness.cli.command_line import columns
    from harness.report.sweeps import scaling_table, why_table
    from harness.report.tables.table import WIDTH, Screen

    screen = Screen(columns(WIDTH))
    title = series.found.sweep.title
    print("\n".join(screen.block(scaling_table(title[0].upper() + title[1:], found))))
    print("\n".join(["", *screen.block(why_table(found)), "", *screen.wrapped(said[0].upper() + said[1:] + ".", "")]))
    print(f"next: slurm.sh report {found[-1].runs[0]}")


def _write_files(series: Series, found: list[Size], arguments: Arguments) -> list[str]:
    from harness.report.sweeps import plot_scaling, write_scaling_csv

    written = list[str]()
    if arguments.wanted.csv is not None:
        write_scaling_csv(found, expanded(arguments.wanted.csv))
        written.append(f"the table: {arguments.wanted.csv}")
    if arguments.wanted.png is not None:
        plot_scaling(series.found.sweep.title, found, expanded(arguments.wanted.png))
        written.append(f"the plot: {arguments.wanted.png}")
    return written
