"""`slurm.sh plan`: what a launch will need, take and cost, before it starts."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from harness.cli.command_line import RUN, declared, read_launch
from harness.cli.launch.plan_short import shown
from harness.cli.page import Page, as_text
from harness.common.errors import RequestError
from harness.common.format import aligned

if TYPE_CHECKING:
    from harness.study.plan.numbers import Section
    from harness.study.plan.plan import LaunchPlan


page = Page(
    usage=["plan -e EXERCISE [FLAGS OF A LAUNCH]"],
    about="What the launch with the same flags will need and take: the memory of each rank by its parts, the "
    "FLOPs and time of a step, the messages and their time, GPU hours and energy. Each number has its formula "
    "and its source.",
    flags=[
        ("--json", "print machine-readable JSON"),
        ("--strict", "a warning is an error: exit code 2"),
        ("all others", "as in a launch (slurm.sh --help)"),
    ],
    examples=[
        ("plan -e 1 -n 2", "two nodes"),
        ("plan -e 3 -n 2 -- --pp 2", "with a flag of training"),
        ("plan run -n 2 -- train.py", "a training of your own: its GPU hours at most"),
    ],
    docs="docs/theory.md",
)


def plan(arguments: list[str]) -> int:
    """Print the plan of a launch; returns the exit code. Raises RequestError: the launch is not valid; with --strict
    also a sentence for each warning."""
    if not arguments:
        print(as_text(page))
        return 0
    is_run = arguments[0] == RUN
    if not is_run and not arguments[0].startswith("-"):
        raise RequestError(f"plan: takes the flags of a launch, as in slurm.sh plan -e 1, and not {arguments[0]!r}")
    from harness.cli.launch.launch import behaviour_of, request_of, warn
    from harness.launch.job import warnings_of
    from harness.launch.submit import prepare
    from harness.study.plan.numbers import plan_document
    from harness.study.plan.plan import plan_of

    line = read_launch(arguments[is_run:], declared(), is_run)
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


def _page(found: LaunchPlan) -> list[str]:
    """Every section, then the sources by the numbers that stand beside the rows."""
    from harness.study.plan.numbers import sections_of

    lines: list[str] = []
    sources: dict[str, int] = {}
    for section in sections_of(found):
        lines += ["", section.title, *_rows(section, sources), *(f"  {note}" for note in section.notes)]
    listed = [f"  [{number}] {source}" for source, number in sources.items()]
    return [*lines[1:], *(["", "Sources (docs/theory.md has all formulas)"] if listed else []), *listed]


def _rows(section: Section, sources: dict[str, int]) -> list[str]:
    texts = [(row.label, shown(row), _mark(row.source, sources), row.formula) for row in section.rows]
    return [f"  {line}" for line in aligned(texts, {0, 2, 3})]


def _mark(source: str, sources: dict[str, int]) -> str:
    return f"[{sources.setdefault(source, len(sources) + 1)}]" if source else ""
