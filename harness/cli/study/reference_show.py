"""`slurm.sh reference show` and `check`: the references there are, and what changed since one was recorded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.options import JsonOption
from harness.cli.terminal import columns
from harness.common.display.format import amount, duration, metric_text, percent
from harness.common.errors import WorkError
from harness.common.paths import COMMAND
from harness.compare.verdict import ChangeVerdict
from harness.report.compare.verdicts import verdict_table
from harness.report.elements import PageTable
from harness.report.tables.table import WHOLE, WIDTH, TableScreen
from harness.run import when
from harness.study.reference.check import ReferenceCheck, VariantCheck, VariantOutcome
from harness.study.reference.collect import medians
from harness.study.reference.request import checked_reference, checked_runs, likely_reasons, reference_named
from harness.study.reference.stored import (
    Environment,
    Reference,
    StoredVariant,
    own_place,
    read_reference,
    read_runs,
    reference_folder,
    reference_folders,
)

if TYPE_CHECKING:
    from pathlib import Path

    from harness.analysis.metric_values import Metrics

# The metrics of a variant: the head of their column, and how it writes them.
METRICS: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "exposed_communication_share": ("exposed", percent),
    "peak_memory_bytes": ("memory", amount),
    "tokens_per_s": ("tokens/s", lambda value: amount(value, "").strip()),
}
HEAD = ("variant", "runs", "step", *(head for head, _ in METRICS.values()), "lessons")
MOST_CHANGED = 6  # metrics in words; --json has all


def show_command(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="one reference; default: list all")] = None,
    as_json: JsonOption = False,
) -> int:
    """List the stored references, or the variants of one with their step times."""
    if name is None:
        return _list(as_json)
    folder = reference_folder(name)
    found = read_reference(folder)
    metrics = {variant.name: medians(read_runs(folder, variant).runs) for variant in found.variants}
    data = found.model_dump(mode="json", exclude={"variants"})
    data |= {"folder": str(folder), "variants": [_as_json(each, metrics[each.name]) for each in found.variants]}
    print(json.dumps(data, indent=1) if as_json else "\n".join(_shown(found, folder, metrics)))
    return 0


def _as_json(variant: StoredVariant, metrics: Metrics) -> dict[str, Any]:
    known = {"variant": variant.name, "command": variant.command, "runs": variant.runs, "step_ns": variant.step_ns}
    return known | {name: metrics.get(name) for name in METRICS} | {"lessons": variant.lessons}


def _list(as_json: bool) -> int:
    rows: list[dict[str, Any]] = []
    for folder in reference_folders():
        try:
            found = read_reference(folder)
        except WorkError as error:
            rows.append({"name": folder.name, "folder": str(folder), "damaged": str(error)})
            continue
        device = found.hardware.device
        state = "complete" if found.complete else f"{len(found.missing)} variants missing"
        rows.append(
            {"name": found.name, "folder": str(folder), "site": found.site, "device": device, "state": state}
            | {"variants": len(found.variants), "recorded": when(found.created_ns)}
        )
    if as_json:
        print(json.dumps(rows, indent=1))
        return 0
    if not rows:
        print(f"there are no references yet in {own_place()}; record one: {COMMAND} reference record")
    for row in rows:
        said = row.get("damaged") or (
            f"{row['variants']} variants on {row['site']} ({row['device']}), {row['recorded']}, {row['state']}"
        )
        print(f"{row['name']}: {said}")
    if rows:
        print(f"next: {COMMAND} reference show NAME · {COMMAND} reference check RUN")
    return 0


def _shown(reference: Reference, folder: Path, metrics: dict[str, Metrics]) -> list[str]:
    shown = PageTable("", HEAD, [_cells(variant, metrics[variant.name]) for variant in reference.variants])
    lines = [
        f"{reference.name}: {reference.variants_from}, recorded {when(reference.created_ns)} on {reference.site}",
        f"  {folder}",
        *(f"  {_made_with(each)}" for each in reference.environments),
        "",
        *TableScreen(columns(WHOLE)).block(shown, ("tokens/s", "memory", "exposed")),
        "",
        "Medians over the runs. exposed: share of the time with communication and no computation.",
        *["step of exercise 0: what its largest messages took."]
        * any(v.asked.exercise == 0 for v in reference.variants),
    ]
    lines += reference.missing_lines()
    again = f"{COMMAND} reference record --name {reference.name}"
    return [*lines, *([] if reference.complete else [f"next: {again} records the missing runs"])]


def _made_with(environment: Environment) -> str:
    hardware = environment.hardware
    cores = f", {hardware.cores} cores" if hardware.cores else ""
    known = environment.software | environment.tools
    versions = ", ".join(f"{name} {version}" for name, version in known.items())
    container = f"; container sha256 {environment.container[:12]}…" if environment.container else ""
    commit = f"; harness {environment.commit[:12]}" if environment.commit else ""
    return f"{hardware.device}{cores}; {versions}{container}{commit}"


def _cells(variant: StoredVariant, metrics: Metrics) -> tuple[str, ...]:
    return (
        variant.name,
        str(variant.runs),
        duration(variant.step_ns),
        *(text(metrics.get(name)) for name, (_, text) in METRICS.items()),
        ", ".join(variant.lessons) or "–",
    )


def check_command(
    new: Annotated[
        list[str] | None, typer.Argument(metavar="RUN…|NAME", help="runs, or a newly recorded reference [last]")
    ] = None,
    *,
    against: Annotated[
        str | None, typer.Option(metavar="NAME", help="the stored reference; default: the one with the same request")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """What changed since a reference was recorded, and the likely reason."""
    arguments = new or ["last"]
    folder = reference_named(arguments[0]) if len(arguments) == 1 else None
    found = checked_runs(arguments, against) if folder is None else checked_reference(folder, against)
    reasons = likely_reasons(found)
    data = found.model_dump(mode="json") | {"likely": reasons}
    print(json.dumps(data, indent=1) if as_json else "\n".join(lines_of(found, reasons, columns(WIDTH))))
    return found.exit_code


def lines_of(reference_check: ReferenceCheck, reasons: list[str], width: int) -> Iterator[str]:
    """The verdict first, then each variant, then what likely moved them."""
    yield from wrap(f"{reference_check.outcome.value}: {_heading(reference_check)}", width)
    yield ""
    ordered = sorted(reference_check.variants, key=lambda v: -list(VariantOutcome).index(v.outcome))
    times = [(_name(each), each.time) for each in ordered if each.time is not None]
    shown = verdict_table(
        times, (reference_check.reference, reference_check.new), "Mean step, geometric mean of the runs", "variant"
    )
    yield from TableScreen(width).block(shown)
    yield from [""] * bool(times)
    for each in ordered:
        yield from _variant(each, width)
    if reference_check.missing:
        yield from wrap(
            f"not in {reference_check.new}: {', '.join(reference_check.missing)}", width, subsequent_indent="  "
        )
    if reference_check.unmatched:
        yield from wrap(
            f"not in {reference_check.reference}: {', '.join(reference_check.unmatched)}", width, subsequent_indent="  "
        )
    if reasons:
        yield ""
        yield "Likely reason"
        for reason in reasons:
            yield from wrap(f"  - {reason}", width, subsequent_indent="    ")
    yield from _next(reference_check)


def _heading(reference_check: ReferenceCheck) -> str:
    if not reference_check.variants:
        return (
            f"no variant of {reference_check.new} has the settings of a variant of the reference "
            f"{reference_check.reference}"
        )
    counts = [f"{sum(v.outcome is o for v in reference_check.variants)} {o.value}" for o in VariantOutcome]
    said = ", ".join(text for text in counts if not text.startswith("0 "))
    return f"{reference_check.new} compared with the reference {reference_check.reference} ({said})"


def _name(each: VariantCheck) -> str:
    return each.variant if each.new == each.variant else f"{each.new} ({each.variant})"


def _variant(each: VariantCheck, width: int) -> Iterator[str]:
    groups = each.time.groups_of("the reference", "this variant") if each.time else []
    parts = [*each.problems, *groups, *_time(each), *_changed(each)]
    text = "; ".join(parts) or "nothing moved"
    yield from wrap(f"{each.outcome.value}: {_name(each)}: {text}", width, subsequent_indent="  ")


def _time(each: VariantCheck) -> Iterator[str]:
    """What the step became, or why it is not judged."""
    if each.time is None:
        return
    if each.time.verdict in (ChangeVerdict.UNKNOWN, ChangeVerdict.NOT_COMPARABLE):
        yield each.time.why
    elif each.time.verdict.is_change:
        yield f"a step is {each.time.verdict.value}"


def _changed(each: VariantCheck) -> Iterator[str]:
    for change in each.changed[:MOST_CHANGED]:
        stored, new = (
            "none" if value is None else metric_text(f"a.{change.name}", value) for value in (change.a, change.b)
        )
        yield f"{change.name} {stored} → {new}"
    if len(each.changed) > MOST_CHANGED:
        yield f"and {len(each.changed) - MOST_CHANGED} more (--json)"
    if not each.changed and all(each.runs):
        yield "counts and bytes are the same"


def _next(reference_check: ReferenceCheck) -> Iterator[str]:
    if reference_check.outcome is not VariantOutcome.UNKNOWN or reference_check.key or not reference_check.variants:
        return
    yield ""
    yield f"more runs would tell: {COMMAND} reference check RUN RUN RUN, or {COMMAND} reference record --repeats 4"
