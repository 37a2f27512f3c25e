"""A sweep or a scaling study as a series: its points at the site, its plan on the screen, its runs. No result."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.cli.launch.untrusted import may_launch, show_request
from harness.cli.study.campaign import (
    Arguments,
    SeriesPlan,
    confirmed,
    limits_of,
    make,
    plan_lines,
    plan_of,
    state_lines,
    state_rows,
)
from harness.common.errors import RequestError
from harness.common.paths import expanded
from harness.common.secrets import masked_words
from harness.common.whole_number import whole_number

if TYPE_CHECKING:
    from harness.experiment.exercises import Experiment
    from harness.launch.untrusted import Source
    from harness.site.detection import SiteChoice
    from harness.site.site import Site
    from harness.study.campaign.runner import SeriesOutcome
    from harness.study.sweeps.expand import Expanded
    from harness.study.sweeps.request import Sweep
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
    from harness.study.scaling.request import threads_of

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
        print(
            "\n".join(
                f"{task.point.slot}: {' '.join(masked_words(task.point.command))}" for task in plan.to_make
            )
        )
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
