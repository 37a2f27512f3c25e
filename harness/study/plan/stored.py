"""A plan as the document that a run keeps: the numbers by name, the verdict, the warnings."""

from __future__ import annotations

import json
from typing import Any

from harness.study.plan.numbers import sections_of
from harness.study.plan.plan import LaunchPlan


def plan_document(plan: LaunchPlan) -> dict[str, Any]:
    """The document. Each number has its value or range, its unit, its formula and its source."""
    memory = plan.memory
    numbers = [row for section in sections_of(plan) for row in section.rows]
    return {
        "schema_version": 1,
        "verdict": memory.verdict if memory else None,
        "fits_with": memory.nearest.command if memory and memory.nearest else None,
        "warnings": plan.warnings,
        "numbers": {row.name: row.as_json() for row in numbers},
        "notes": [note for section in sections_of(plan) for note in section.notes],
    }


def plan_text(plan: LaunchPlan) -> str:
    """The document's text."""
    return json.dumps(plan_document(plan), indent=1, ensure_ascii=False) + "\n"
