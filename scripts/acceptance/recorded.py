"""The loops of loops.py as processes, and their traces as the product reports them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from failures import StepError
from place import ROOT, Place, require_success
from results import read_json, write_json
from runs import answer, report

LOOPS = ROOT / "scripts" / "acceptance" / "loops.py"


class Recorded(NamedTuple):
    """A loop's trace, its two step times by its own clock in ns, and the product's report of it."""

    trace: Path
    unrecorded_ns: float
    recorded_ns: float
    summary: dict[str, Any]
    text: str


def recorded(place: Place, case: str, seconds: float) -> Recorded:
    """Run a loop, or take its earlier trace, and report it. Raises StepError: the loop failed or left no trace."""
    folder = place.work / "loops" / case
    trace, times = folder / "rank0.json.gz", folder / "times.json"
    if not times.is_file():
        argv: list[str | Path] = [place.python, LOOPS, case, "--folder", folder]
        done = require_success(place.run(argv, place.seconds_for(seconds), place.out / "acceptance.log"), case)
        write_json(times, json.loads(done.stdout.splitlines()[-1]))
    said = read_json(times)
    if not trace.is_file() or not said:
        raise StepError(f"{case}: left no trace")
    return Recorded(trace, said["unrecorded_ns"], said["recorded_ns"], report(place, trace), answer(place, trace))
