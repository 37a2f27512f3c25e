"""`slurm.sh reference show`: the references there are, or the variants of one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.options import JsonOption
from harness.common.errors import WorkError
from harness.common.paths import PROGRAM

if TYPE_CHECKING:
    from pathlib import Path

    from harness.measure.references import Environment, Reference
    from harness.study.reference.numbers import Row

HEAD = ("variant", "runs", "step", "exposed", "memory", "tokens/s", "lessons")


def command(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="one reference; default: list all")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """List the stored references, or the variants of one with their step times."""
    from harness.measure.references import read_reference, reference_folder
    from harness.study.reference.numbers import rows

    if name is None:
        return _list(as_json)
    folder = reference_folder(name)
    found = read_reference(folder)
    table = rows(folder, found)
    if as_json:
        shown = found.model_dump(mode="json", exclude={"variants"})
        print(json.dumps(shown | {"folder": str(folder), "variants": [r._asdict() for r in table]}, indent=1))
    else:
        print("\n".join(_shown(found, folder, table)))
    return 0


def _list(as_json: bool) -> int:
    from harness.measure.references import own_place, read_reference, reference_folders
    from harness.run import when

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
        print(f"there are no references yet in {own_place()}; record one: {PROGRAM} reference record")
    for row in rows:
        said = row.get("damaged") or (
            f"{row['variants']} variants on {row['site']} ({row['device']}), {row['recorded']}, {row['state']}"
        )
        print(f"{row['name']}: {said}")
    if rows:
        print(f"next: {PROGRAM} reference show NAME · {PROGRAM} reference check RUN")
    return 0


def _shown(found: Reference, folder: Path, table: list[Row]) -> list[str]:
    from harness.run import when

    lines = [
        f"{found.name}: {found.variants_from}, recorded {when(found.created_ns)} on {found.site}",
        f"  {folder}",
        *(f"  {_made_with(each)}" for each in found.environments),
        "",
        *_aligned([HEAD, *map(_cells, table)]),
        "",
        "Medians over the runs. exposed: share of the time with communication and no computation.",
        *["step of exercise 0: what its largest messages took."]
        * any(v.asked.exercise == 0 for v in found.variants),
    ]
    lines += found.missing_lines()
    again = f"{PROGRAM} reference record --name {found.name}"
    return [*lines, *([] if found.complete else [f"next: {again} records the missing runs"])]


def _made_with(each: Environment) -> str:
    hardware = each.hardware
    cores = f", {hardware.cores} cores" if hardware.cores else ""
    known = each.software | each.tools
    versions = ", ".join(f"{name} {version}" for name, version in known.items())
    container = f"; container sha256 {each.container[:12]}…" if each.container else ""
    commit = f"; harness {each.commit[:12]}" if each.commit else ""
    return f"{hardware.device}{cores}; {versions}{container}{commit}"


def _cells(row: Row) -> tuple[str, ...]:
    from harness.format.format import amount, duration, percent

    return (
        row.variant,
        str(row.runs),
        duration(row.step_ns),
        percent(row.exposed_communication_share),
        amount(row.peak_memory_bytes),
        amount(row.tokens_per_s, "").strip(),
        ", ".join(row.lessons) or "–",
    )


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    """Names to the left, numbers to the right."""
    wide = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    left = {0, len(HEAD) - 1}
    return [
        "  ".join(
            f"{cell:<{size}}" if column in left else f"{cell:>{size}}"
            for column, (cell, size) in enumerate(zip(row, wide, strict=True))
        ).rstrip()
        for row in rows
    ]
