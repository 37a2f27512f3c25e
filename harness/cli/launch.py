"""Launching: the command line derived from the experiments' options, then submit, follow, answer."""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple, TypeVar

import typer

from harness.cli.main import run_command
from harness.common.errors import RequestError
from harness.experiment.exercises import CommTests, Experiment
from harness.experiment.options import VALUE, Option, options_of
from harness.experiment.parse import all_options, build_experiment, command_of
from harness.run import Run, find_run
from harness.site.detection import Choice, choose_site, site_to_show
from harness.site.site import Site, override

T = TypeVar("T")


class Behaviour(NamedTuple):
    """What the command itself is asked to do, beside the experiment."""

    site: str | None = None
    dry_run: bool = False
    wait: bool = False
    follow: bool = False
    json: bool = False


class Declared(NamedTuple):
    """One command-line parameter: its spellings, and whether it takes a value."""

    names: tuple[str, ...]
    takes_value: bool
    help: str

    @property
    def key(self) -> str:
        """A Python name for the parameter."""
        return max(self.names, key=len).lstrip("-").replace("-", "_")


DRY_RUN = "print the script, warn of what a launch would miss, do nothing"
BEHAVIOUR = [
    Declared(("--site",), True, "site: a name (slurm.sh sites) or a site file"),
    Declared(("--dry-run",), False, DRY_RUN),
    Declared(("--wait",), False, "wait for the end, then report"),
    Declared(("--follow",), False, "as --wait, and show the output meanwhile"),
    Declared(("--json",), False, "print machine-readable JSON"),
    Declared(("-h", "--help"), False, "show this page"),
]


# Typer stops at the first flag it does not know; we want to tell of all, with what was probably meant.
LENIENT: dict[str, object] = {
    "ignore_unknown_options": True,
    "allow_extra_args": True,
    "help_option_names": [],
}


def launch_argv(argv: list[str]) -> int:
    """Launch from the words after `slurm.sh`."""
    words = [w for w in argv if w != "--"]  # flags may stand before or after it
    if not words or "-h" in words or "--help" in words:
        return _help(_value_of(words, "--site"))
    words, complaints = _parsable(_protected(words))
    return run_command("-e …", _launch_command(words, complaints), words, LENIENT)


def _help(site: str | None) -> int:
    from harness.cli.help import help_text  # noqa: PLC0415 - needs every exercise's text

    choice, complaint = site_to_show() if site is None else (choose_site(site), None)
    print(help_text(choice))
    if complaint:
        print(f"slurm.sh: {complaint}", file=sys.stderr)
    return 0


def _value_of(words: list[str], flag: str) -> str | None:
    """The value of the last `flag VALUE` or `flag=VALUE`."""
    spaced = {i: words[i + 1] for i, word in enumerate(words[:-1]) if word == flag}
    joined = {i: w.partition("=")[2] for i, w in enumerate(words) if w.startswith(f"{flag}=")}
    found = spaced | joined
    return found[max(found)] if found else None


def _parsable(words: list[str]) -> tuple[list[str], list[str]]:
    """The words that Typer can read, and a sentence for each at which it would stop and tell of nothing else."""
    switches = {name for d in declared() if not d.takes_value for name in d.names}
    valued = {name for d in declared() if d.takes_value for name in d.names}
    wrong = [w for w in words if "=" in w and w.partition("=")[0] in switches]
    complaints = [f"{w.partition('=')[0]} takes no value: leave out ={w.partition('=')[2]}" for w in wrong]
    kept: list[str] = []
    for word, following in zip(words, [*words[1:], None], strict=True):
        if word in valued and _is_flag(following, switches | valued):
            complaints.append(f"{word} requires an argument")
        elif word not in wrong:
            kept.append(word)
    return kept, complaints


def _is_flag(word: str | None, spellings: set[str]) -> bool:
    """Whether what follows a flag is the next one, or nothing, and so not its value: `-a --dry-run`."""
    return word is None or word.partition("=")[0] in spellings or re.match("--[A-Za-z]", word) is not None


def _protected(words: list[str]) -> list[str]:
    """A negative number after a flag is its value, not a flag."""
    joined: list[str] = []
    for word in words:
        if (
            joined
            and joined[-1].startswith("--")
            and "=" not in joined[-1]
            and word[:1] == "-"
            and word[1:].isdigit()
        ):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def declared() -> list[Declared]:
    """Every parameter of the launch command, each once: the experiments' options, the site's, ours."""
    found: dict[tuple[str, ...], Declared] = {}
    options = [o for pairs in all_options().values() for _, o in pairs] + list(options_of(Site))
    for option in options:
        for names, takes_value in _spellings(option):
            found.setdefault(names, Declared(names, takes_value, option.help))
    return [*_without_parts(list(found.values())), *BEHAVIOUR]


def _spellings(option: Option) -> Iterator[tuple[tuple[str, ...], bool]]:
    values = tuple(n for n, meaning in option.flag.names.items() if meaning is VALUE)
    if values:
        yield values, True
    for name, meaning in option.flag.names.items():
        if meaning is not VALUE:
            yield (name,), False


def _without_parts(found: list[Declared]) -> list[Declared]:
    """`--steps` alone goes where `--iters/--steps` stands: one parameter knows both."""
    return [d for d in found if not any(d is not o and set(d.names) < set(o.names) for o in found)]


def _launch_command(words: list[str], complaints: list[str]) -> Callable[..., int]:
    """The command with the parameters that occur in `words`: Typer takes half a millisecond for each that it knows."""
    parameters = [
        inspect.Parameter(
            d.key,
            inspect.Parameter.KEYWORD_ONLY,
            default=None if d.takes_value else False,
            annotation=Annotated[
                str | None if d.takes_value else bool, typer.Option(*d.names, help=d.help, show_default=False)
            ],
        )
        for d in declared()
        if "--help" not in d.names and _occurs(d, words)
    ]
    context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)

    def command(ctx: typer.Context, **given: Any) -> int:
        return launch(given, list(ctx.args), complaints)

    command.__signature__ = inspect.Signature([context, *parameters])  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in [context, *parameters]}
    return command


def _occurs(parameter: Declared, words: list[str]) -> bool:
    """Whether one of its spellings is there: `--name`, `--name=value`, or `-n`, to which a value may be stuck."""
    short = tuple(name for name in parameter.names if not name.startswith("--"))
    return any(w.split("=", 1)[0] in parameter.names or w.startswith(short) for w in words)


def launch(given: dict[str, Any], unknown: list[str], complaints: list[str]) -> int:
    """Launch what the parsed words say; returns the exit code. `complaints`: what was wrong before parsing."""
    names = {d.key: d.names[-1] for d in declared()}
    words = [(names[k], v) for k, v in given.items() if v is not None and v is not False]
    own = {n for d in BEHAVIOUR for n in d.names}
    site_fields = {n: o.field for o in options_of(Site) for n in o.flag.names}
    behaviour = Behaviour(**{k: given[k] for k in Behaviour._fields if k in given})
    errors = list(complaints)
    choice = _told(errors, lambda: choose_site(behaviour.site))
    known = [n for d in declared() for n in d.names]
    asked = [w for w in words if w[0] not in own | set(site_fields)]
    defaults = choice.site.defaults if choice else {}
    experiment = _told(errors, lambda: build_experiment(asked, _flags(unknown), known, defaults))
    place = (
        choice.site if choice else Site(name="unknown", description="")
    )  # the flags are judged all the same
    site = _told(errors, lambda: override(place, {site_fields[n]: v for n, v in words if n in site_fields}))
    if errors or choice is None or experiment is None or site is None:
        raise RequestError("\n".join(errors))
    if any(name == "--script" for name, _ in asked):
        from harness.launch.check import refuse_two_scripts  # noqa: PLC0415 - the help page does without

        refuse_two_scripts(experiment)  # only what was typed: a record's or a site's name is the exercise's
    return _go(experiment, Choice(site=site, reason=choice.reason), behaviour, ["slurm.sh", *sys.argv[1:]])


def _told(errors: list[str], ask: Callable[[], T]) -> T | None:
    """What `ask` returns; or None, and its complaint is among the errors."""
    try:
        return ask()
    except RequestError as error:
        errors.append(str(error))
        return None


def _flags(unknown: list[str]) -> list[str]:
    """Unknown words; what follows an unknown flag is taken for its value and not complained about twice."""
    return [
        w for i, w in enumerate(unknown) if w.startswith("-") or i == 0 or not unknown[i - 1].startswith("-")
    ]


def _go(experiment: Experiment, choice: Choice, behaviour: Behaviour, command: list[str]) -> int:
    from harness.launch.check import forewarnings  # noqa: PLC0415 - the help page does without
    from harness.launch.job import warnings_of  # noqa: PLC0415 - as above
    from harness.launch.submit import prepare, script_of  # noqa: PLC0415

    print(f"site: {choice.site.name} ({choice.reason})", file=sys.stderr)
    job = prepare(experiment, choice.site)
    warnings = warnings_of(job, os.environ)
    if behaviour.dry_run:  # a real launch says it as errors
        warnings += forewarnings(job, os.environ)
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if behaviour.dry_run:
        text = script_of(job)
        sys.stdout.write(json.dumps(job.as_json(), indent=1) + "\n" if behaviour.json else text)
        return 0
    from harness.launch.submit import submit  # noqa: PLC0415

    run = submit(experiment, choice.site, command)
    return after_submission(run, behaviour)


def after_submission(run: Run, behaviour: Behaviour) -> int:
    """Say where it is; wait, follow and report as asked.

    A run on this machine is always followed, and so is exercise 0, which is there to be read: it takes a minute.
    """
    from harness.cli.follow import follow  # noqa: PLC0415
    from harness.launch.backends.registry import backend_of_run  # noqa: PLC0415

    local = backend_of_run(run).RUNS_HERE
    shown = isinstance(run.record.experiment, CommTests) and not behaviour.json
    stays = local or shown or behaviour.wait or behaviour.follow
    if not behaviour.json:
        verb = "started" if local else "submitted"
        print(f"{verb} {run.job_id}: {run.path}", file=sys.stderr)
        if not stays:
            print(
                f"next: slurm.sh status {run.job_id} · slurm.sh logs {run.job_id} -f · slurm.sh report {run.job_id}"
            )
    if stays:
        quiet = behaviour.json or (behaviour.wait and not behaviour.follow)
        return follow(run, quiet=quiet, as_json=behaviour.json)
    if behaviour.json:
        print(json.dumps({"job_id": run.job_id, "name": run.name, "path": str(run.path)}))
    return 0


def rerun(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="job id, name, path of a run or its run.json, or last")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help=DRY_RUN)] = False,
    wait: Annotated[bool, typer.Option("--wait", help="wait for the end, then report")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="as --wait, and show the output")] = False,
    json_: Annotated[bool, typer.Option("--json", help="print machine-readable JSON")] = False,
) -> int:
    """Run a run.json again: the same experiment at the same site, as a new run."""
    record = find_run(run).record
    choice = Choice(site=record.site, reason=f"run.json of {record.job_id}")
    typed = record.command[1:2] and record.command[1].startswith("-")  # else a lesson's or a program's own
    asked = command_of(record.experiment, record.site.name, record.site.defaults)
    command = record.command if typed else ["slurm.sh", *(asked or ["rerun", record.job_id])]
    return _go(record.experiment, choice, Behaviour(None, dry_run, wait, follow, json_), command)
