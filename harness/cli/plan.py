"""`slurm.sh plan`: what a launch will need, take and cost, before it starts; its short form is on a launch's screen."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from harness.cli.command_line import declared, read_line
from harness.format.format import amount, duration, duration_range, percent, rate

if TYPE_CHECKING:
    from harness.study.plan.plan import Plan
    from harness.study.plan.quantity import Quantity, Section

USAGE = """Usage: slurm.sh plan -e EXERCISE [FLAGS OF A LAUNCH] [--json] [--strict]

  What the launch with the same words would need and take: memory of each rank by its parts, FLOPs and the step's time,
  messages and their time, GPU hours and energy; each number with its formula and its source (docs/theory.md).

  --json     print machine-readable JSON
  --strict   a warning is an error: exit code 2
"""


def plan(words: list[str]) -> int:
    """Print the plan of a launch; returns the exit code.

    Raises:
        RequestError: the launch is not valid; with --strict also a sentence for each warning.
    """
    if not words or {"-h", "--help"} & set(words):
        print(USAGE, end="")
        return 0
    from harness.cli.launch import behaviour_of, request_of, warn
    from harness.launch.job import warnings_of
    from harness.launch.submit import prepare
    from harness.study.plan.plan import plan_of
    from harness.study.plan.stored import plan_document

    line = read_line(words, declared())
    behaviour = behaviour_of(line)
    experiment, choice = request_of(line)
    prepared = prepare(experiment, choice.site)
    found = plan_of(prepared)
    warnings = [*warnings_of(prepared.job, os.environ), *found.warnings]
    if behaviour.json:
        print(json.dumps({"site": choice.site.name, **plan_document(found), "warnings": warnings}, indent=1))
    else:
        print(f"site: {choice.site.name} ({choice.reason})", file=sys.stderr)
        print("\n".join(_page(found)))
    warn([] if behaviour.json and not behaviour.strict else warnings, behaviour)
    return 0


def _page(found: Plan) -> list[str]:
    """Every section, then the sources by the numbers that stand beside the rows."""
    from harness.study.plan.numbers import sections_of

    lines: list[str] = []
    sources: dict[str, int] = {}
    for section in sections_of(found):
        lines += ["", section.title, *_rows(section, sources), *(f"  {note}" for note in section.notes)]
    listed = [f"  [{number}] {source}" for source, number in sources.items()]
    return [*lines[1:], *(["", "Sources (docs/theory.md has all formulas)"] if listed else []), *listed]


def _rows(section: Section, sources: dict[str, int]) -> list[str]:
    texts = [
        (
            row.label,
            shown(row),
            f"[{sources.setdefault(row.source, len(sources) + 1)}]" if row.source else "",
            row.formula,
        )
        for row in section.rows
    ]
    widths = [max((len(each[column]) for each in texts), default=0) for column in range(3)]
    return [
        f"  {label:<{widths[0]}}  {value:>{widths[1]}}  {source:<{widths[2]}}  {formula}".rstrip()
        for label, value, source, formula in texts
    ]


def _mark(source: str, sources: dict[str, int]) -> str:
    return f"[{sources.setdefault(source, len(sources) + 1)}]" if source else ""


def shown(row: Quantity) -> str:
    """The number, or its range, with its unit."""
    if row.low is None or row.high is None:
        return _text(row.value, row.unit)
    if row.unit == "ns":
        return duration_range(row.low, row.high)
    low, high = _text(row.low, row.unit), _text(row.high, row.unit)
    unit = high.partition(" ")[2]
    return high if low == high else f"{low.removesuffix(f' {unit}')} to {high}"


def _text(value: float, unit: str) -> str:
    if unit == "ns":
        return duration(value)
    if unit == "share":
        return percent(value)
    if unit == "s":
        return f"{value:.0f} s" if value < 120 else f"{value / 60:.1f} min"
    if unit in ("GPU h", "kWh"):
        return f"{rate(value)} {unit}"
    return amount(value, "B" if unit == "bytes" else unit)


def short_form(found: Plan) -> list[str]:
    """At most four lines: memory and verdict, step, communication, cost. What is not known is left out."""
    from harness.study.plan.numbers import sections_of

    rows = {row.name: row for section in sections_of(found) for row in section.rows}
    lines = [_memory_line(found), _step_line(found, rows), _communication_line(found, rows), _cost_line(rows)]
    return [
        f"{'plan: ' if number == 0 else '      '}{text}" for number, text in enumerate(filter(None, lines))
    ]


def _memory_line(found: Plan) -> str:
    memory = found.memory
    if memory is None:
        return ""
    parts = memory.peak.highest
    of = f" of {amount(memory.capacity.total_bytes)}" if memory.capacity.total_bytes else ""
    each = "GPU" if found.job.device == "cuda" else "process"
    largest = sorted(parts.__slots__, key=lambda name: -getattr(parts, name))[:3]
    named = ", ".join(f"{name} {amount(getattr(parts, name))}" for name in largest)
    verdict = "whether it fits is not known" if memory.verdict == "not known" else memory.verdict
    return f"memory {amount(parts.total)}{of} per {each}: {verdict} ({named})"


def _step_line(found: Plan, rows: dict[str, Quantity]) -> str:
    if "step_ns" not in rows or found.step is None or isinstance(found.step.speed, str):
        return ""
    speed = found.step.speed
    mfu = f"an MFU of {shown(rows['mfu'])}" if "mfu" in rows else "the speed"
    return f"step {shown(rows['step_ns'])}, at {mfu} " + (
        "of earlier runs here" if speed.earlier else "as usual"
    )


def _communication_line(found: Plan, rows: dict[str, Quantity]) -> str:
    if found.step is None or not found.step.sent:
        return ""
    sent = sum(each.traffic.message_bytes for each in found.step.sent)
    text = f"each rank communicates {amount(sent)} a step"
    if "communication_ns" in rows:
        whole, least = rows["communication_ns"].value, rows["least_exposed_ns"].value
        text += f": {duration(whole)}, exposed {duration_range(least, whole)}"
    return text


def _cost_line(rows: dict[str, Quantity]) -> str:
    if "most_gpu_hours" not in rows:
        return ""
    at_most = f"at most {shown(rows['most_gpu_hours'])} (time limit)"
    return f"{shown(rows['gpu_hours'])} expected, {at_most}" if "gpu_hours" in rows else at_most
