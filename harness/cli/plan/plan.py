"""The plan of a launch: in a few lines, as a launch prints it before it submits, or whole, as `--plan` prints it."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from harness.common.display.format import aligned, amount, duration, duration_range, quantity, quantity_range
from harness.common.paths import shown_file

if TYPE_CHECKING:
    from harness.launch.submit import PreparedLaunch
    from harness.plan.numbers import PlanSection, Quantity
    from harness.plan.plan import LaunchPlan


def show_plan(prepared: PreparedLaunch, as_json: bool) -> list[str]:
    """Print what the launch will need, take and cost; returns its warnings, which JSON holds."""
    from harness.launch.job import warnings_of
    from harness.plan.numbers import plan_document
    from harness.plan.plan import plan_of

    found = plan_of(prepared)
    warnings = [*warnings_of(prepared.job, os.environ), *found.warnings]
    document = {"site": prepared.job.site.name, **plan_document(found), "warnings": warnings} if as_json else {}
    print(json.dumps(document, indent=1) if as_json else "\n".join(_whole_form(found)))
    return warnings


def announced(prepared: PreparedLaunch, quiet: bool) -> tuple[list[str], dict[str, str]]:
    """The plan's warnings, and the files in which the run keeps it; its short form is printed, unless `quiet`."""
    from harness.plan.plan import plan_of
    from harness.plan.start import kept

    plan = plan_of(prepared)
    for line in [] if quiet else short_form(plan):
        print(line, file=sys.stderr)
    return plan.warnings, kept(plan)


def shown(plan_row: Quantity) -> str:
    if plan_row.low is None or plan_row.high is None:
        return quantity(plan_row.value, plan_row.unit)
    return quantity_range(plan_row.low, plan_row.high, plan_row.unit)


def short_form(launch_plan: LaunchPlan) -> list[str]:
    """At most six lines: memory, the usual micro-batch, the global batch, step, communication, cost; what is known."""
    from harness.plan.numbers import sections_of

    rows = {row.name: row for section in sections_of(launch_plan) for row in section.rows}
    memory = [_memory_line(launch_plan), launch_plan.memory.usual if launch_plan.memory else ""]
    of_steps = [_batch_line(launch_plan), _step_line(rows), _communication_line(launch_plan, rows)]
    lines = [*memory, *of_steps, "; ".join(filter(None, [_cost_line(rows), launch_plan.conversion]))]
    return [f"{'plan: ' if number == 0 else '      '}{text}" for number, text in enumerate(filter(None, lines))]


def _memory_line(launch_plan: LaunchPlan) -> str:
    memory = launch_plan.memory
    if memory is None:
        return ""
    parts = memory.peak.highest
    of = f" of {amount(memory.capacity.total_bytes)}" if memory.capacity.total_bytes else ""
    each = "GPU" if launch_plan.job.device == "cuda" else "process"
    largest = sorted(parts.__slots__, key=lambda name: -getattr(parts, name))[:3]
    named = ", ".join(f"{name} {amount(getattr(parts, name))}" for name in largest)
    verdict = "whether it fits is not known" if memory.verdict == "not known" else memory.verdict
    return f"memory {amount(parts.total)}{of} per {each}: {verdict} ({named})"


def _batch_line(launch_plan: LaunchPlan) -> str:
    from harness.plan.numbers import batch_factors

    w = launch_plan.workload
    if w is None or w.micro_batches == 1:
        return ""
    size = f"{w.global_batch:,} samples ({w.global_batch * w.seq_length:,} tokens)"
    return f"global batch of an optimizer step: {batch_factors(w)} = {size}"


def _step_line(quantities: dict[str, Quantity]) -> str:
    if "step_ns" not in quantities:
        return ""
    return f"step {shown(quantities['step_ns'])}, at an MFU of {shown(quantities['mfu'])} as usual"


def _communication_line(launch_plan: LaunchPlan, quantities: dict[str, Quantity]) -> str:
    if launch_plan.step is None or not launch_plan.step.sent:
        return ""
    sent = sum(each.traffic.message_bytes for each in launch_plan.step.sent)
    text = f"each rank communicates {amount(sent)} a step"
    if "communication_ns" in quantities:
        whole, least = quantities["communication_ns"].value, quantities["least_exposed_ns"].value
        hidden = f"exposed {duration_range(least, whole)}" if least < whole else "all of it exposed"
        text += f": {duration(whole)}, {hidden}"
    return text


def _cost_line(quantities: dict[str, Quantity]) -> str:
    if "most_gpu_hours" not in quantities:
        return ""
    at_most = f"at most {shown(quantities['most_gpu_hours'])} (time limit)"
    return f"{shown(quantities['gpu_hours'])} expected, {at_most}" if "gpu_hours" in quantities else at_most


def _whole_form(launch_plan: LaunchPlan) -> list[str]:
    """Every section, then the sources by the numbers that stand beside the rows."""
    from harness.plan.numbers import sections_of

    lines: list[str] = []
    sources: dict[str, int] = {}
    for section in sections_of(launch_plan):
        lines += ["", section.title, *_rows(section, sources), *(f"  {note}" for note in section.notes)]
    listed = [f"  [{number}] {source}" for source, number in sources.items()]
    title = f"Sources ({shown_file('docs/theory.md')} has all formulas)"
    return [*lines[1:], *(["", title] if listed else []), *listed]


def _rows(section: PlanSection, sources: dict[str, int]) -> list[str]:
    marks = [f"[{sources.setdefault(row.source, len(sources) + 1)}]" if row.source else "" for row in section.rows]
    texts = [(row.label, shown(row), mark, row.formula) for row, mark in zip(section.rows, marks, strict=True)]
    return [f"  {line}" for line in aligned(texts, {0, 2, 3})]
