"""Before a launch from a file that somebody else may have written, its commands are shown and confirmed. A run.json is
a program: its site's lines run as the user who starts it again."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, get_args

import typer
from pydantic import BaseModel

from harness.common.display.printable import escaped
from harness.common.errors import RequestError
from harness.common.paths import ROOT
from harness.common.system.secrets import masked_words
from harness.common.system.users import owner_of, this_user
from harness.experiment.exercises import Experiment, OwnTraining
from harness.experiment.model import model_names
from harness.experiment.nsys_sets import is_trace_list
from harness.experiment.options import VALUE, options_of
from harness.run import run_roots
from harness.site.site import Site

if TYPE_CHECKING:
    from harness.run import Run
    from harness.run.record import RunRecord

# What only describes the place or sizes the job: neither a command nor a path. What a launch found in
# the course's folder is in the site's own fields.
_HARMLESS = {
    "name", "description", "detect", "device", "time", "gpus", "cpus_per_node", "cpus_per_gpu", "memory", "exclusive",
    "course", "max_nodes", "network", "signal_seconds", "profiler", "defaults", "scheduler", "python_module",
    "reference_traces", "needs_account",
}  # fmt: skip
ASKED = "run somebody else's commands without asking"


class RequestOrigin(NamedTuple):
    """The file that a request was read from. user: who it says made it."""

    file: Path
    user: str | None = None


class UntrustedRequest(NamedTuple):
    """What a file brings. why: why somebody else may have written it, empty if it is this user's; lines: a command or
    a path each, for a terminal."""

    file: Path
    why: str
    lines: list[str]


def find_untrusted(
    source: RequestOrigin, experiments: Sequence[Experiment], site: Site | None = None
) -> UntrustedRequest:
    """What a launch of the experiments at the site takes from the file. site: None, if the user chose it."""
    own = dict.fromkeys(line for each in experiments for line in _own_lines(each))
    lines = [*([] if site is None else _site_lines(site)), *own]
    return UntrustedRequest(source.file, escaped(_not_ours(source)), [*map(escaped, lines)])


def _not_ours(source: RequestOrigin) -> str:
    """Why somebody else may have written the file; empty: it is this user's."""
    try:
        owner = owner_of(source.file)
    except OSError as error:
        owner = f"an unknown user ({error.strerror})"
    if owner is not None:
        return f"it belongs to {owner}"
    if source.user is not None and source.user not in (this_user(), str(os.getuid())):
        return f"it says that {source.user} made it"
    file, roots = source.file.resolve(), run_roots()
    is_here = any(file.is_relative_to(root.resolve()) for root in roots)
    return "" if is_here else f"it is not in {roots[0]}, with your runs"


def _site_lines(site: Site) -> Iterator[str]:
    flagged = {option.field: getattr(site, option.field) for option in options_of(Site)}
    for field, info in type(site).model_fields.items():
        value = getattr(site, field)
        if field not in {*_HARMLESS, *flagged} and value != info.default:
            yield from _field_lines(field, value)
    yield from (f"{name}: {value}" for name, value in flagged.items() if value not in (None, "auto") and name != "time")


def _field_lines(name: str, value: object) -> Iterator[str]:
    """A line for each text in a field: `setup: module purge`, `env.PATH: /x`, `container.image: x.sif`."""
    if isinstance(value, BaseModel):
        value = {field: getattr(value, field) for field in type(value).model_fields}
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _field_lines(f"{name}.{key}", inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _field_lines(name, inner)
    elif value is not None:
        yield f"{name}: {value}"


def _own_lines(experiment: Experiment) -> Iterator[str]:
    """The experiment's own files, and each variable that it sets, as one may name a library to load."""
    if isinstance(experiment, OwnTraining):
        yield f"-- {shlex.join(masked_words(experiment.command))} (in {experiment.start_in})"
    for option in options_of(type(experiment)):
        value = getattr(experiment, option.field)
        if option.flag.env is not None and isinstance(value, tuple):
            yield from (f"{option.written(value)} {text}" for text in value)
            continue
        takes_text = str in (option.info.annotation, *get_args(option.info.annotation))
        if not takes_text or is_trace_list(value) or value in model_names():
            continue
        flag = next(name for name, meaning in option.flag.names.items() if meaning is VALUE)
        yield f"{flag} {value}" + ("" if Path(value).is_absolute() else f" (in {ROOT})")


YesOption = Annotated[bool, typer.Option("--yes", help=ASKED)]


def source_of(run: Run, record: RunRecord) -> RequestOrigin:
    return RequestOrigin(run.record_file, record.user)


def show_request(source: RequestOrigin, experiments: Sequence[Experiment], site: Site | None) -> None:
    _show(find_untrusted(source, experiments, site))


def _show(untrusted: UntrustedRequest) -> None:
    lines = untrusted.lines or ["no command and no path"]
    print("\n  ".join([f"{escaped(str(untrusted.file))} would run or use:", *lines]), file=sys.stderr)
    if untrusted.why:
        print(f"a launch asks first: {untrusted.why}", file=sys.stderr)


def may_launch(source: RequestOrigin, experiments: Sequence[Experiment], site: Site | None, *, yes: bool) -> bool:
    """Whether to go on: it is this user's file, or the user agrees. site: None, where the user chose it."""
    found = find_untrusted(source, experiments, site)
    if not found.why or (site is None and not found.lines):
        return True
    _show(found)
    if yes:
        return True
    if not sys.stdin.isatty():
        raise RequestError(
            f"add --yes to run the commands of {found.file} shown above: without a terminal no question can be asked "
            "(nothing was started)"
        )
    if not (answer := agreed("run these commands as your user?")):
        print("nothing was started", file=sys.stderr)
    return answer


def confirmed(what: str, yes: bool, done: str) -> bool:
    """Whether to do it: with --yes, or if a person agrees. Raises RequestError: there is no terminal to ask at."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise RequestError(f"add --yes to {what}: there is no terminal to ask at (nothing was {done})")
    if not (answer := agreed(f"{what}?")):
        print(f"nothing was {done}", file=sys.stderr)
    return answer


def agreed(question: str) -> bool:
    try:
        return typer.confirm(question, err=True)
    except typer.Abort:  # Ctrl-C or Ctrl-D
        raise KeyboardInterrupt from None
