"""`slurm.sh reference record`: run a list of variants, and store them."""

from __future__ import annotations

import json
import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.options import JsonOption
from harness.cli.study import series
from harness.cli.study.series import NameOption, PlanOnlyOption, RetryOption, StartOption
from harness.cli.words import CommandLine
from harness.common.display.text import how_many
from harness.common.errors import RequestError
from harness.common.paths import COMMAND
from harness.experiment.options import options_of
from harness.site.detection import choose_site
from harness.site.site import Site, override
from harness.study.series.cost import cost_document

if TYPE_CHECKING:
    from harness.study.reference.record import ReferencePlan, StoredReference
    from harness.study.series.runner import SeriesOutcome


def record(
    line: CommandLine,
    *,
    name: NameOption = None,
    variants: Annotated[
        str | None,
        typer.Option(
            "--list",
            metavar="NAME|FILE",
            help="the variants: workshop, miniatures or a file (default: by whether the site has GPUs)",
        ),
    ] = None,
    repeats: Annotated[
        int, typer.Option(min=1, max=series.MOST_REPEATS, help="runs of each variant; check needs 4 to judge times")
    ] = 1,
    yes: StartOption = False,
    retry_failed: RetryOption = False,
    dry_run: PlanOnlyOption = False,
    as_json: JsonOption = False,
) -> int:
    """Run a whole list of variants and store the result. The same command again continues: a run that is done is not
    repeated."""
    asked = series.arguments_of(
        line, "reference record", name=name, repeats=repeats, yes=yes, retry_failed=retry_failed, dry_run=dry_run,
        json=as_json,
    )  # fmt: skip
    recording = _recording(asked, variants)
    plan = series.plan_of(recording.series, recording.tasks, retry_failed=retry_failed)
    if not as_json:
        what = f"reference {recording.name}, list {recording.variants.name}, at site {recording.site.name}"
        print("\n".join([what, *series.plan_lines(plan)]), file=sys.stderr)
    if dry_run:
        return _show(recording, plan, asked)
    again = _again(recording)
    outcome = series.carried_out(plan, asked, again)
    if outcome is None:
        return 0
    print("".join(f"{each}\n" for each in series.closing_lines(outcome, again)), end="", file=sys.stderr)
    return _keep(recording, outcome, asked)


def _recording(training_arguments: series.Arguments, variants: str | None) -> ReferencePlan:
    from harness.study.reference.record import plan_recording
    from harness.study.reference.variants import device_of

    site = _site(training_arguments)
    given = variants or ("miniatures" if device_of(site) == "cpu" else "workshop")
    return plan_recording(training_arguments.name, given, training_arguments.repeats or 1, site)


def _site(training_arguments: series.Arguments) -> Site:
    """The site with the flags of a launch that change it. Raises RequestError: a flag is of the experiment."""
    fields = {name: option.field for option in options_of(Site) for name in option.flag.names}
    if unknown := [name for name in training_arguments.launch if name not in fields]:
        raise RequestError(f"{unknown[0]}: the list has the experiments: write your own list, or drop it")
    changes: dict[str, Any] = {fields[name]: value for name, value in training_arguments.launch.items()}
    return override(choose_site(training_arguments.site).site, changes)


def _show(recording: ReferencePlan, plan: series.SeriesPlan, arguments: series.Arguments) -> int:
    if arguments.json:
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
    if training_arguments.json:
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
