"""Before a launch from a file that somebody else may have written, its commands are shown and confirmed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.launch.untrusted_files import Source, UntrustedRequest, find_untrusted
from harness.common.errors import RequestError
from harness.common.printable import escaped

if TYPE_CHECKING:
    from harness.experiment.base import Experiment
    from harness.run import Run
    from harness.run.record import Record
    from harness.site.site import Site

ASKED = "run somebody else's commands without asking"
YesOption = Annotated[bool, typer.Option("--yes", help=ASKED)]


def source_of(run: Run, record: Record) -> Source:
    return Source(run.record_file, record.user, record.command)


def show_request(source: Source, experiments: Sequence[Experiment], site: Site | None) -> None:
    """Print the commands and paths of the file, as --dry-run does."""
    _show(find_untrusted(source, experiments, site))


def _show(untrusted: UntrustedRequest) -> None:
    lines = untrusted.lines or ["no command and no path"]
    reasons = [f"a launch asks first: {reason}" for reason in untrusted.why]
    print("\n  ".join([f"{escaped(str(untrusted.file))} would run or use:", *lines]), file=sys.stderr)
    print("".join(f"{each}\n" for each in reasons), end="", file=sys.stderr)


def may_launch(source: Source, experiments: Sequence[Experiment], site: Site | None, *, yes: bool) -> bool:
    """Whether to go on: the file holds nothing untrusted, or --yes was given, or the user agrees after seeing it.
    site: None, where the user chose it. Raises RequestError: there is no terminal to ask at."""
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


def agreed(question: str) -> bool:
    """Whether a person at the terminal says yes."""
    try:
        return typer.confirm(question, err=True)
    except typer.Abort:  # Ctrl-C or Ctrl-D
        raise KeyboardInterrupt from None
