"""Whether what a tool said of a run is right: line, ranks, lost time; and which findings in healthy runs are false."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from own_runs import Case, Said
from own_trainings import SCRIPTS, TRAININGS

CLOSE = 0.2  # of the lost time
# True of a machine with fewer cores than busy threads, whatever the program does.
CROWDED = {"noisy-neighbour", "pinned-together"}


@dataclass(frozen=True)
class CaseVerdict:
    """Of one planted case. lost: what was said over what was planted."""

    cause: str | None
    place: str | None
    line: bool
    ranks: bool
    lost: float | None

    @property
    def lost_is_close(self) -> bool:
        """Within 20 %."""
        return self.lost is not None and abs(self.lost - 1) <= CLOSE


def of_ours(case: Case, said: Said) -> CaseVerdict:
    """Of the first finding about the program. A collective of all ranks in each step is a steady loss as its others
    are: of the finding about them, the part at the first line counts."""
    planted = said.get("planted_ns")
    first = next((found for found in said.get("findings", []) if _is_about(case, found)), None)
    if first is None or case.plant is None:
        return CaseVerdict(None, None, False, False, None)
    where = place_of(first)
    line = where is not None and (
        str(where["file"]).endswith(f"/{case.plant.spot.file}") and where["line"] == case.plant.spot.line
    )
    part = first["lines"][0]["share"] if first["standing"] and first["lines"] else 1
    return CaseVerdict(
        first["cause"],
        None if where is None else f"{Path(where['file']).name}:{where['line']}",
        line,
        first["ranks"] == case.ranks,
        part * first["lost_ns"] / planted if planted else None,
    )


def _is_about(case: Case, found: Said) -> bool:
    """Whether a finding is a departure of the program, or what is planted can only be a part of it."""
    if found["standing"]:
        return case.plant is not None and case.plant.kind == "all-reduce" and found["cause"] == "communication"
    return found["cause"] not in CROWDED


def place_of(found: Said) -> dict[str, Any] | None:
    """The line that a finding names first."""
    if found["lines"]:
        return dict(found["lines"][0]["where"])
    return None if found["where"] is None else dict(found["where"])


def false_findings(case: Case, said: Said) -> Iterator[Said]:
    """Of a healthy run: findings of departures, but the ones that are true of it."""
    for found in said.get("findings", []):
        if _is_about(case, found) and not _really_loads(case, said, found):
            yield found


def _really_loads(case: Case, said: Said, found: Said) -> bool:
    """The training waits for its data, as long as its own stopwatch says, at the line where it asks for them."""
    where, loads_ns = place_of(found), said["own_data_ns"]
    if found["cause"] != "data-stall" or where is None or loads_ns is None:
        return False
    return where["line"] in loading_lines(case.training) and found["lost_ns"] <= (1 + CLOSE) * loads_ns


def loading_lines(training: str) -> set[int]:
    """The lines of a training that ask a loader for the next batch."""
    found = set()
    for file in {place.file for place in TRAININGS[training].places}:
        for node in ast.walk(ast.parse((SCRIPTS / file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "next":
                found.add(node.lineno)
    return found
