"""Launch: from the command line to an experiment and a site, then submit, follow, and report."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any, TypeVar

import typer

from harness.cli.launch.parameters import SITE
from harness.cli.launch.start import announced, start
from harness.cli.options import Behaviour
from harness.cli.rooms import SHOW_PLAN
from harness.cli.words import CommandLine
from harness.common.display.printable import unguarded
from harness.common.errors import RequestError
from harness.common.paths import COMMAND, PROGRAM
from harness.common.system.training_python import active_python
from harness.experiment.exercises import Experiment
from harness.experiment.options import options_of
from harness.experiment.own import HOW_TO_TYPE
from harness.experiment.parse import build_experiment
from harness.launch.exercises.base import launch_of
from harness.run import Run
from harness.site.detection import SiteChoice, choose_site
from harness.site.site import Site, override

T = TypeVar("T")


def launch(
    line: CommandLine,
    *,
    behaviour: Behaviour,
    whole: Annotated[bool, typer.Option("--all", help="with --help: also the rarely used flags")] = False,
) -> int:
    """Launch an exercise, or a training of your own behind --. The flags of a training may come behind --, too."""
    return launch_line(line, behaviour, [])


def launch_line(line: CommandLine, behaviour: Behaviour, command: list[str]) -> int:
    """Launch what the line asks for; returns the exit code. command: the words before the line's own."""
    experiment, choice = request_of(line)
    launch_of(experiment).refuse_ambiguous(experiment, line.given)  # a record's or a site's word is the exercise's
    return go(experiment, choice, behaviour, [PROGRAM, *command, *line.argv])


def request_of(line: CommandLine) -> tuple[Experiment, SiteChoice]:
    """The experiment and the site of a command line. Raises RequestError: a sentence for each wrong word."""
    given: dict[str, Any] = line.given
    site_fields = {name: o.field for o in options_of(Site) for name in o.flag.names}
    errors = list(line.complaints)
    choice = _or_error(errors, lambda: choose_site(given.get(SITE)))
    asked = [pair for pair in given.items() if pair[0] not in {SITE, *site_fields}]
    defaults = choice.site.defaults if choice else {}

    def build() -> Experiment:
        own = own_fields(line.script) if line.script is not None else None
        return build_experiment(asked, [*line.unknown, *line.words], line.flags, defaults, own)

    experiment = _or_error(errors, build)
    # The site's flags are checked even where the site is not known.
    place = choice.site if choice else Site(name="unknown", description="")
    changes = {site_fields[name]: value for name, value in given.items() if name in site_fields}
    site = _or_error(errors, lambda: override(place, changes))
    if errors or choice is None or experiment is None or site is None:
        raise RequestError("\n".join(errors))
    return experiment, SiteChoice(site, choice.reason, _flags_of_fields(line, experiment))


def _flags_of_fields(line: CommandLine, experiment: Experiment) -> dict[str, str]:
    """The flags that set fields of the experiment, as they were typed, by field."""
    found = {}
    for option in options_of(type(experiment)):
        if written := [name for name in line.typed if name in option.flag.names]:
            found[option.field] = written[-1]
    return found


def own_fields(script: tuple[str, ...]) -> dict[str, Any]:
    """What the words after `--` say of a training of the user's own. Raises RequestError: no program begins there."""
    if not script:
        raise RequestError(f"nothing comes after --: name your script there, as in {HOW_TO_TYPE}")
    if script[0].startswith("-") and (script[0] != "-m" or len(script) == 1):
        what = (
            "-m: a module's name comes after it" if script[0] == "-m" else f"{script[0]}: it comes before your script"
        )
        raise RequestError(f"{what}: after -- comes a script, -m and a module, or a program, as in {HOW_TO_TYPE}")
    return {"command": script, "start_in": str(Path.cwd()), "python": active_python(os.environ)}


def _or_error(errors: list[str], ask: Callable[[], T]) -> T | None:
    """What `ask` returns; where it raises, None, and the message is added to `errors`."""
    try:
        return ask()
    except RequestError as error:
        errors.append(str(error))
        return None


def go(experiment: Experiment, choice: SiteChoice, behaviour: Behaviour, command: list[str]) -> int:
    from harness.launch.backends.allocation import NAME as ALLOCATION
    from harness.launch.before.check import check, forewarnings, require_training
    from harness.launch.before.from_shell import what_the_shell_brings
    from harness.launch.job import warnings_of
    from harness.launch.render import script_of, settings_of
    from harness.launch.submit import prepare

    print(f"site: {choice.site.name} ({choice.reason})", file=sys.stderr)
    prepared = prepare(experiment, choice.site, choice.flags)
    job = prepared.job
    if prepared.where:
        print(f"runs {prepared.where}" if job.site.scheduler == ALLOCATION else prepared.where, file=sys.stderr)
    if behaviour.plan:
        warnings = resolve_name(SHOW_PLAN)(prepared, behaviour.json)
        warn([] if behaviour.json else warnings)
        return 0
    if behaviour.dry_run:
        for line in what_the_shell_brings(os.environ, job):
            print(line, file=sys.stderr)
        warn([*warnings_of(job, os.environ), *forewarnings(job, os.environ)])
        text = script_of(job)
        # A file gets the script to the character; a terminal is not steered by a folder's name.
        out = sys.stdout if sys.stdout.isatty() else unguarded(sys.stdout)
        out.write(json.dumps(job.as_json(), indent=1) + "\n" if behaviour.json else text + settings_of(job))
        return 0
    require_training(job, os.environ)
    check(job, os.environ)  # before the plan: what cannot start gets its sentence alone
    plan = announced(prepared, quiet=behaviour.json)
    warn([*warnings_of(job, os.environ), *plan.warnings])
    return after_submission(start(prepared, command, plan.files), behaviour)


def warn(warnings: list[str]) -> None:
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)


def after_submission(run: Run, behaviour: Behaviour) -> int:
    """Print where the run is; follow it as asked, and always on this machine and in exercise 0, which is short."""
    from harness.cli.watch.follow import follow
    from harness.launch.backends.registry import backend_of_run

    local = backend_of_run(run).HELD
    shown = run.record.experiment.short and not behaviour.json
    stays = local or shown or behaviour.wait or behaviour.follow
    if not behaviour.json:
        verb = "started" if local else "submitted"
        print(f"{verb} {run.job_id}: {run.path}", file=sys.stderr)
        if not stays:
            print("next: " + " · ".join(f"{COMMAND} {then} {run.job_id}" for then in ("status", "logs -f", "report")))
    if stays:
        quiet = behaviour.json or (behaviour.wait and not behaviour.follow)
        return follow(run, quiet=quiet, as_json=behaviour.json)
    if behaviour.json:
        print(json.dumps({"job_id": run.job_id, "name": run.name, "path": str(run.path)}))
    return 0
