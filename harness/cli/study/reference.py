"""`slurm.sh reference`: its parts by name, and of these `record`."""

from __future__ import annotations

import json
import shlex
import sys
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from harness.cli.help import HelpPage, as_text, flag_rows, of_function
from harness.cli.parser import DeclaredParameter, run_command
from harness.cli.study import series
from harness.common.display.text import how_many
from harness.common.errors import RequestError, nearest_or_list
from harness.common.paths import COMMAND
from harness.experiment.options import options_of
from harness.site.detection import choose_site
from harness.site.site import Site, override
from harness.study.series.cost import cost_document

if TYPE_CHECKING:
    from harness.study.reference.record import ReferencePlan, StoredReference
    from harness.study.series.runner import SeriesOutcome

_DOCS = "docs/studies.md"
_SHOW = "harness.cli.study.reference_show"
PARTS = {
    "record": (f"{__name__}:record", "[--site S] [--name N]: run a whole list of variants, and store it"),
    "check": (
        f"{_SHOW}:check_command",
        "[RUN|NAME]: what changed since a reference was recorded, and the likely reason",
    ),
    "show": (f"{_SHOW}:show_command", "[NAME]: all references, or the variants of one"),
}
FURTHER = (
    DeclaredParameter(
        ("--list",), "NAME|FILE", "the variants: workshop, miniatures or a file [by whether the site has GPUs]"
    ),
    DeclaredParameter(("--repeats",), "N", "runs of each variant [1]; check needs 4 to judge times"),
)
CHECK_EXITS = [("0", "the same"), ("1", "moved or damaged"), ("2", "wrong request"), ("3", "cannot tell")]

_RECORD_PAGE = HelpPage(
    usage=["reference record [FLAGS]"],
    about="Run a whole list of variants and store the result. The same command again continues: a run that is done is "
    "not repeated.",
    flags=flag_rows(series.flags_of(FURTHER)),
    examples=[("reference record --dry-run", "the runs that would be made")],
    docs=_DOCS,
)


def reference(arguments: list[str]) -> int:
    """One of the parts; returns its exit code."""
    if not arguments:
        print(page(arguments))
        return 0
    if arguments[0] not in PARTS:
        raise RequestError(_no_part(arguments[0]))
    if arguments[0] == "record":  # it takes the flags of a launch
        return record(arguments[1:])
    return run_command(f"reference {arguments[0]}", resolve_name(PARTS[arguments[0]][0]), arguments[1:])


def page(arguments: list[str]) -> str:
    """The help page, or that of the part that is the second word."""
    part = arguments[1] if len(arguments) > 1 else ""
    if part == "record":
        return as_text(_RECORD_PAGE)
    if part in PARTS:
        exits = CHECK_EXITS if part == "check" else ()
        return as_text(of_function(f"reference {part}", resolve_name(PARTS[part][0]), exits, docs=_DOCS))
    if part and not part.startswith("-"):
        raise RequestError(_no_part(part))
    return as_text(
        HelpPage(
            usage=[
                *(f"reference {name} {text}" for name, (_, text) in PARTS.items()),
                "lesson 2a --reference NAME: the answer of a lesson from the runs of a reference",
            ],
            about="A reference is a list of variants that were run and stored.",
            examples=[
                ("reference record --dry-run", "the runs that would be made"),
                ("reference check last", "compare a run with the stored runs of the same request"),
            ],
            docs=_DOCS,
        )
    )


def _no_part(word: str) -> str:
    hint = nearest_or_list(word, PARTS, f"{COMMAND} help reference lists all")
    return f"reference: there is no part {word!r}{hint}"


def record(arguments: list[str]) -> int:
    """Run what is missing of a list and keep it, or say what would run; returns the exit code."""
    asked = series.read_arguments(arguments, "reference record", FURTHER)
    wanted = asked.wanted
    recording = _recording(asked)
    plan = series.plan_of(recording.series, recording.tasks, retry_failed=wanted.retry_failed)
    if not wanted.json:
        what = f"reference {recording.name}, list {recording.variants.name}, at site {recording.site.name}"
        print("\n".join([what, *series.plan_lines(plan)]), file=sys.stderr)
    if wanted.dry_run:
        return _show(recording, plan, wanted)
    again = _again(recording)
    outcome = series.carried_out(plan, wanted, again)
    if outcome is None:
        return 0
    for line in series.closing_lines(outcome, again):
        print(line, file=sys.stderr)
    return _keep(recording, outcome, asked)


def _recording(training_arguments: series.Arguments) -> ReferencePlan:
    from harness.study.reference.record import plan_recording
    from harness.study.reference.variants import device_of

    wanted, further = training_arguments.wanted, training_arguments.further
    site = _site(training_arguments)
    given = further.get("--list") or ("miniatures" if device_of(site) == "cpu" else "workshop")
    return plan_recording(wanted.name, given, series.repeats_of(further.get("--repeats", "1")), site)


def _site(training_arguments: series.Arguments) -> Site:
    """The site with the flags of a launch that change it. Raises RequestError: a flag is of the experiment."""
    fields = {name: option.field for option in options_of(Site) for name in option.flag.names}
    if unknown := [name for name in training_arguments.launch if name not in fields]:
        raise RequestError(f"{unknown[0]}: the list has the experiments: write your own list, or drop it")
    changes: dict[str, Any] = {fields[name]: value for name, value in training_arguments.launch.items()}
    return override(choose_site(training_arguments.wanted.site).site, changes)


def _show(recording: ReferencePlan, plan: series.SeriesPlan, wanted: series.SeriesOptions) -> int:
    if wanted.json:
        head = {"name": recording.name, "site": recording.site.name, "list": recording.list_given}
        told = {"runs": series.state_rows(plan.places), "cost": cost_document(plan.to_make)}
        print(json.dumps(head | told, indent=1))
    else:
        print("\n".join(series.command_lines(plan.to_make)))
    return 0


def _keep(recording: ReferencePlan, outcome: SeriesOutcome, training_arguments: series.Arguments) -> int:
    from harness.study.reference.record import keep
    from harness.traces.progress import ProgressLine

    with ProgressLine("keeping", unit="runs") as progress:
        kept = keep(recording, progress)
    found = kept.reference
    if training_arguments.wanted.json:
        shown = {"name": found.name, "folder": str(kept.folder), "complete": found.complete}
        variants = [each.name for each in found.variants]
        print(json.dumps(shown | {"variants": variants, "missing": found.missing}, indent=1))
    else:
        print("\n".join(_kept_lines(recording, kept)))
    return 0 if outcome.complete else 1


def _kept_lines(recording: ReferencePlan, kept: StoredReference) -> list[str]:
    found = kept.reference
    runs = sum(each.runs for each in found.variants)
    what = f"{how_many(runs, 'run')} of {how_many(len(found.variants), 'variant')}"
    lines = [f"{found.name}: kept {what} in {kept.folder}", *found.missing_lines()]
    if not found.complete:
        lines.append(f"continue with: {_again(recording)}")
    return [*lines, f"next: {COMMAND} reference show {found.name}"]


def _again(recording: ReferencePlan) -> str:
    """The command that makes what is missing."""
    arguments = ["reference", "record", "--site", recording.site.name, "--name", recording.name]
    arguments += ["--list", recording.list_given, "--repeats", str(recording.repeats)]
    return f"{COMMAND} {shlex.join(arguments)}"
