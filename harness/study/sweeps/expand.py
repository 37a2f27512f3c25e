"""A sweep's file at a site, expanded to points: every combination, validated, with all errors at once.

Starts nothing and knows no run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from harness.common.display.text import first_of
from harness.common.errors import RequestError
from harness.common.paths import PROGRAM
from harness.experiment.exercises import Experiment, OwnTraining
from harness.experiment.options import VALUE, options_of
from harness.experiment.parse import command_of, validate
from harness.launch.argv import read_here
from harness.launch.backends.registry import backend_of
from harness.launch.submit import PreparedLaunch, prepare
from harness.site.detection import runs_on_cpu
from harness.site.site import Site, override
from harness.study.series.points import SeriesPoint, SeriesTask
from harness.study.sweeps.axes import (
    SITE_FIELDS,
    Settings,
    Sweep,
    command_words,
    exercise_of,
    fields_of,
    is_script_flag,
    varying,
    with_flags,
)

_NAMED = 3  # points that a message names


class LeftOutPoint(NamedTuple):
    """A combination that is no point, and why."""

    key: str
    why: str


class SweepPoints(NamedTuple):
    """A sweep's points at a site. settings: by key, the value of each option that varies."""

    sweep: Sweep
    site: Site
    tasks: list[SeriesTask]
    settings: dict[str, Settings]
    left_out: list[LeftOutPoint]


class _Common(NamedTuple):
    """What all points share. given: the site's defaults, and the file's base above them. keys: words of the site."""

    cls: type[Experiment]
    site: Site
    given: Settings
    repeats: int
    keys: list[str]


def expand(
    sweep: Sweep, site: Site, site_word: str | None = None, changes: Mapping[str, Any] | None = None
) -> SweepPoints:
    """The points of the sweep at the site.

    site_word: as given to --site. changes: the site's options from the command line, which stand above the file's.

    Raises RequestError: something in the file is wrong, or the rules refuse a combination; a line for each thing.
    """
    cls = exercise_of(sweep)
    sweep = sweep.here(runs_on_cpu(site))
    varies, wrong = varying(sweep, cls)
    asked = {name: value for name, value in sweep.base.items() if name in SITE_FIELDS}
    try:
        here = override(site, asked | dict(changes or {}))
    except RequestError as error:
        raise _refusal(sweep, [*wrong, *str(error).splitlines()]) from None
    if wrong:
        raise _refusal(sweep, wrong)
    own = fields_of(cls)
    given = {name: value for name, value in {**here.defaults, **sweep.base}.items() if name in own}
    if cls is OwnTraining:
        given |= {"command": command_words(sweep.base["command"]), "start_in": sweep.base["start_in"]}
    common = _Common(cls, here, given, sweep.repeats, _place(site_word, site, here))
    found = SweepPoints(sweep, here, [], {}, [])
    refused: dict[str, list[str]] = {}
    for settings in varies.combinations():
        for line in _add(found, common, settings, varies.exclude):
            refused.setdefault(line, []).append(key_of(settings))
    if refused:
        raise _refusal(sweep, [_with_points(line, keys) for line, keys in refused.items()])
    if not found.tasks:
        why = dict.fromkeys(left.why for left in found.left_out)
        raise _refusal(sweep, ["no combination is left: all are excluded or refused by the rules", *why])
    return found


def key_of(settings: Settings) -> str:
    """A point's name, the same for the same settings: `micro_batch_size=2 mixed_precision=true`."""
    return " ".join(f"{name.removesuffix('=')}={value_text(value)}" for name, value in settings.items()) or "base"


def value_text(value: Any) -> str:
    """An option's value as a sweep's file writes it."""
    if isinstance(value, tuple | list):
        return "+".join(map(str, value)) or "none"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _refusal(sweep: Sweep, lines: Sequence[str]) -> RequestError:
    return RequestError("\n".join(f"sweep {sweep.name}: {line}" for line in dict.fromkeys(lines)))


def _with_points(sentence: str, point_keys: Sequence[str]) -> str:
    return f"{sentence} (at {first_of(point_keys, _NAMED, separator='; ')}; exclude it, or say skip_invalid: true)"


def _add(sweep_points: SweepPoints, common: _Common, settings: Settings, exclude: Sequence[Settings]) -> list[str]:
    """Add a combination to what was found; returns why it is none, if that is an error."""
    key = key_of(settings)
    if any(all(settings[name] == value for name, value in rule.items()) for rule in exclude):
        sweep_points.left_out.append(LeftOutPoint(key, "excluded"))
        return []
    tasks, errors = _tasks(common, settings, key)
    if errors and sweep_points.sweep.skip_invalid:
        sweep_points.left_out.append(LeftOutPoint(key, " · ".join(errors)))
        return []
    sweep_points.settings[key] = settings
    sweep_points.tasks.extend(tasks)
    return errors


def _tasks(common: _Common, settings: Settings, key: str) -> tuple[list[SeriesTask], list[str]]:
    """A combination's runs, one per repeat; or why it cannot run."""
    flags = {name: value for name, value in settings.items() if is_script_flag(common.cls, name)}
    given = common.given | {name: value for name, value in settings.items() if name not in flags}
    if flags:  # of a user's own script: they are in its command
        given["command"] = with_flags(common.given["command"], flags)
    asked, errors = validate(common.cls, given)
    if asked is None:
        return [], errors
    try:
        ready = prepare(asked, common.site)
    except RequestError as error:
        return [], str(error).splitlines()
    return [_task(common, ready, key, repeat) for repeat in range(common.repeats)], []


def _task(common: _Common, ready: PreparedLaunch, key: str, repeat: int) -> SeriesTask:
    arguments = command_of(ready.experiment, None, common.site.defaults) or []
    where = arguments.index("--") if "--" in arguments else len(arguments)
    command = [PROGRAM, *arguments[:where], *common.keys, *arguments[where:]]
    return SeriesTask(SeriesPoint(key, ready.experiment, common.site, repeat, command), ready)


def threads_of(sweep_points: SweepPoints) -> dict[str, str]:
    """Of a sweep over devices, on CPUs of this machine: as many threads for each process at every size as at the
    largest; else empty.

    Without it one process alone would compute on all cores, and be no smaller than two.
    """
    site = sweep_points.site
    if not sweep_points.sweep.scales or not backend_of(site).RUNS_HERE or "OMP_NUM_THREADS" in site.env:
        return {}
    largest = max((task.prepared.job for task in sweep_points.tasks), key=lambda job: job.experiment.world_size or 1)
    threads = read_here(largest.env["OMP_NUM_THREADS"], os.environ).text
    return {"OMP_NUM_THREADS": threads} if largest.device == "cpu" else {}


def _place(site_word: str | None, site: Site, here: Site) -> list[str]:
    """The words that name the site and what is changed of it."""
    arguments = ["--site", site_word] if site_word is not None else []
    for option in options_of(Site):
        value = getattr(here, option.field)
        if value != getattr(site, option.field):
            spelled = [name for name, meaning in option.flag.names.items() if meaning is VALUE]
            arguments += [spelled[-1], str(value)]
    return arguments
