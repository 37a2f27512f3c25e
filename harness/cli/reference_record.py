"""`slurm.sh reference record`: run a whole list of variants as one series, and keep the result."""

from __future__ import annotations

import json
import os
import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.options import JsonOption
from harness.common.errors import RequestError
from harness.common.paths import PROGRAM

if TYPE_CHECKING:
    from harness.study.campaign.drive import Change, Limits, Outcome
    from harness.study.reference.record import Ahead, Kept, Recording


def command(
    *,
    site: Annotated[str | None, typer.Option("--site", help="where to run, as for a launch")] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="N", help="of the reference [the list's and the site's]")
    ] = None,
    list_: Annotated[
        str | None,
        typer.Option(
            "--list", metavar="NAME|FILE", help="the variants [with GPUs workshop, without miniatures]"
        ),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="VARIANT", help="this one alone; repeat for more")
    ] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", metavar="R", min=1, max=64, help="runs of each variant")
    ] = 1,
    max_gpu_hours: Annotated[
        float | None,
        typer.Option(
            "--max-gpu-hours",
            metavar="H",
            min=0.0,
            help="stop before so much is used, with earlier runs",
        ),
    ] = None,
    max_parallel: Annotated[
        int | None, typer.Option("--max-parallel", metavar="N", min=1, help="runs at a time on a cluster [4]")
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="also runs that failed before")
    ] = False,
    no_traces: Annotated[
        bool, typer.Option("--no-traces", help="keep numbers alone: no checksums of traces, no copies")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask before submitting")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would run, and do nothing")] = False,
    as_json: JsonOption = False,
) -> int:
    """Run every variant of a list, and keep their numbers, traces' checksums and environment as a reference. Asked for
    again, it goes on where it ended."""
    from harness.study.campaign.drive import Limits
    from harness.study.reference.record import USUAL_PARALLEL, ahead

    recording = _recording(site, name, list_, only or [], repeats)
    if recording.runs_here and max_parallel not in (None, 1):
        raise RequestError(
            f"--max-parallel {max_parallel}: runs on this machine would slow each other down: drop it"
        )
    found = ahead(recording, retry_failed)
    if dry_run:
        return _dry(recording, found, as_json)
    _say_ahead(recording, found)
    _ask(recording, found, yes)
    most = 1 if recording.runs_here else max_parallel or USUAL_PARALLEL
    outcome = _made(recording, Limits(most, max_gpu_hours, retry_failed), found)
    return _keep(recording, outcome, not no_traces, as_json)


def _recording(
    site: str | None, name: str | None, list_: str | None, only: list[str], repeats: int
) -> Recording:
    from harness.site.detection import choose_site
    from harness.study.reference.gather import device_of
    from harness.study.reference.record import plan_recording

    choice = choose_site(site)
    print(f"site: {choice.site.name} ({choice.reason})", file=sys.stderr)
    given = list_ or ("miniatures" if device_of(choice.site) == "cpu" else "workshop")
    return plan_recording(name, given, only, repeats, choice.site)


def _dry(recording: Recording, found: Ahead, as_json: bool) -> int:
    from harness.study.campaign.budget import hours

    rows = [{"variant": each.point.key, "repeat": each.point.repeat, "command": shlex.join(each.point.command),
             "devices": each.devices} for each in found.to_make]  # fmt: skip
    if as_json:
        worst = found.cost.worst_ns / 3.6e12
        head = {"name": recording.name, "site": recording.site.name, "runs": found.runs, "done": found.done}
        print(json.dumps(head | {"to_make": rows, "worst_device_hours": worst}, indent=1))
        return 0
    print(f"{recording.name} at {recording.site.name}: {_counts(found)}")
    width = max((len(str(row["variant"])) for row in rows), default=0)
    for row in rows:
        if row["repeat"] == 0 or found.done:
            print(f"  {row['variant']!s:<{width}}  {row['command']}")
    print(f"at most {hours(found.cost.worst_ns)} device hours, if every run takes its time limit")
    return 0


def _counts(found: Ahead) -> str:
    done = f", {found.done} of them done" if found.done else ""
    return f"{found.runs} runs{done}, {len(found.to_make)} to make"


def _say_ahead(recording: Recording, found: Ahead) -> None:
    from harness.study.campaign.budget import hours

    text = f"{recording.name}: {_counts(found)}"
    if not recording.runs_here and found.to_make:
        text += f"; at most {hours(found.cost.worst_ns)} GPU hours, if each takes its time limit"
        if found.cost.expected_ns is not None:
            text += f"; about {hours(found.cost.expected_ns)}, as those that are done"
    print(text, file=sys.stderr)


def _ask(recording: Recording, found: Ahead, yes: bool) -> None:
    """Runs on a cluster cost the account, so a person is asked. Raises RequestError: there is nobody to ask."""
    if recording.runs_here or yes or not found.to_make:
        return
    if not sys.stdin.isatty():
        raise RequestError(
            f"{recording.name}: {len(found.to_make)} to submit at {recording.site.name}: add --yes"
        )
    if not typer.confirm("submit?", err=True):
        raise RequestError("nothing was submitted")


def _made(recording: Recording, limits: Limits, found: Ahead) -> Outcome:
    from harness.launch.check import require_training
    from harness.study.reference.record import make_runs

    for task in found.to_make[:1]:
        require_training(task.prepared.job, os.environ)
    try:
        return make_runs(recording, limits, lambda change: _tell(change, found.runs))
    except KeyboardInterrupt:
        print(f"its runs are kept, and this goes on: {_again(recording)}", file=sys.stderr)
        raise


def _tell(change: Change, of: int) -> None:
    run = f": {change.run.job_id}" if change.run else ""
    note = f" ({change.note})" if change.note else ""
    print(f"{change.counts['done']} of {of} done; {change.slot} {change.what}{run}{note}", file=sys.stderr)


def _keep(recording: Recording, outcome: Outcome, traces: bool, as_json: bool) -> int:
    from harness.study.reference.record import keep
    from harness.traces.progress import Progress

    if outcome.stopped:
        print(outcome.stopped, file=sys.stderr)
    with Progress("keeping", unit="runs") as progress:
        kept = keep(recording, traces, progress)
    whole = kept.reference.complete
    if as_json:
        shown = {"name": kept.reference.name, "folder": str(kept.folder), "complete": whole}
        variants = [each.name for each in kept.reference.variants]
        print(json.dumps(shown | {"variants": variants, "missing": kept.reference.missing}, indent=1))
    else:
        print("\n".join(_kept_lines(recording, kept)))
    asked = {variant.name for variant in recording.chosen.variants}
    return int(bool(asked & kept.reference.missing.keys()))


def _kept_lines(recording: Recording, kept: Kept) -> list[str]:
    found = kept.reference
    runs = sum(each.runs for each in found.variants)
    lines = [f"{found.name}: {runs} runs of {len(found.variants)} variants are kept in {kept.folder}"]
    lines += [f"missing: {name}: {why}" for name, why in found.missing.items()]
    if not found.complete:
        lines.append(f"this goes on: {_again(recording)}")
    lines.append(
        f"next: {PROGRAM} reference show {found.name} · {PROGRAM} reference package {found.name} -o FILE.tar.gz"
    )
    return lines


def _again(recording: Recording) -> str:
    """The command that makes what is missing."""
    words = ["reference", "record", "--site", recording.site.name, "--name", recording.name]
    words += ["--list", recording.list_given, "--repeats", str(recording.repeats)]
    return shlex.join([PROGRAM, *words])
