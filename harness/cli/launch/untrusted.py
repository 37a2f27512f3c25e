"""Before a launch from a file that somebody else may have written, its commands are shown and confirmed. A run.json is
a program: its site's lines run as the user who starts it again."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from harness.common.display.printable import escaped
from harness.common.errors import RequestError
from harness.common.system.users import owner_of, this_user
from harness.experiment.exercises import Experiment
from harness.run import run_roots
from harness.site.site import Site

if TYPE_CHECKING:
    from harness.run import Run
    from harness.run.record import RunRecord

ASKED = "run somebody else's commands without asking"


class RequestOrigin(NamedTuple):
    """The file that a request was read from. user: who it says made it."""

    file: Path
    user: str | None = None


def not_ours(source: RequestOrigin) -> str:
    """Why somebody else may have written the file; empty: it is this user's."""
    try:
        owner = owner_of(source.file)
    except OSError as error:
        owner = f"an unknown user ({error.strerror})"
    if owner is not None:
        return escaped(f"it belongs to {owner}")
    if source.user is not None and source.user not in (this_user(), str(os.getuid())):
        return escaped(f"it says that {source.user} made it")
    file, roots = source.file.resolve(), run_roots()
    is_here = any(file.is_relative_to(root.resolve()) for root in roots)
    return "" if is_here else escaped(f"it is not in {roots[0]}, with your runs")


def _told(experiments: Sequence[Experiment], site: Site | None) -> Iterator[str]:
    """What the file brings, as JSON, which steers no terminal: the site, and the experiments that are not numbers only.
    site: None: the user chose it."""
    if site is not None:
        yield json.dumps(site.model_dump(mode="json", exclude_defaults=True))
    for each in experiments:
        values = each.model_dump(mode="json", exclude_defaults=True)
        if any(isinstance(value, str | list | dict) for value in values.values()):
            yield json.dumps(values)


YesOption = Annotated[bool, typer.Option("--yes", help=ASKED)]


def source_of(run: Run, record: RunRecord) -> RequestOrigin:
    return RequestOrigin(run.record_file, record.user)


def show_request(source: RequestOrigin, experiments: Sequence[Experiment], site: Site | None) -> None:
    """Print what a launch would take from the file, and whether one asks first."""
    lines = dict.fromkeys(_told(experiments, site))
    print("\n  ".join([f"{escaped(str(source.file))} would run or use:", *lines]), file=sys.stderr)
    if why := not_ours(source):
        print(f"a launch asks first: {why}", file=sys.stderr)


def may_launch(source: RequestOrigin, experiments: Sequence[Experiment], site: Site | None, *, yes: bool) -> bool:
    """Whether to go on: it is this user's file, or the user agrees. site: None, where the user chose it."""
    if not not_ours(source) or not any(_told(experiments, site)):
        return True
    show_request(source, experiments, site)
    if yes:
        return True
    if not sys.stdin.isatty():
        raise RequestError(
            f"add --yes to run the commands of {source.file} shown above: without a terminal no question can be asked "
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
    with _as_interrupt():
        return typer.confirm(question, err=True)


def typed_text(question: str) -> str:
    """A line that a person types; it may be empty."""
    with _as_interrupt():
        return str(typer.prompt(question, default="", show_default=False, err=True))


@contextmanager
def _as_interrupt() -> Iterator[None]:
    """Ctrl-C and Ctrl-D at a question end the command as anywhere else."""
    try:
        yield
    except typer.Abort:
        raise KeyboardInterrupt from None
