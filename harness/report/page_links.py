"""What a run of exercise 0 measured of the links: this one, or the latest on the same site. Knows its file's
shape."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from harness.report.page_inputs import LinkFit
from harness.run import Record, Run, all_runs

_RESULTS = Path("comm") / "collectives.json"


def links_of_site(record: Record | None) -> Sequence[LinkFit]:
    """The fits of the newest run of exercise 0 on the record's site that has any; empty when there is none."""
    if record is None:
        return ()
    for run in reversed(all_runs()):
        if not (run.path / _RESULTS).is_file() or _site(run) != record.site.name:
            continue
        if found := list(_fits(run)):
            return found
    return ()


def _site(run: Run) -> str | None:
    try:
        return str(json.loads((run.path / "run.json").read_text(encoding="utf-8"))["site"]["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def links_of_run(run: Run | None) -> Sequence[LinkFit]:
    """What this run itself measured; empty when it is not one of exercise 0."""
    return list(_fits(run)) if run is not None and (run.path / _RESULTS).is_file() else ()


def _fits(run: Run) -> Iterator[LinkFit]:
    try:
        results: list[dict[str, Any]] = json.loads((run.path / _RESULTS).read_text(encoding="utf-8"))[
            "results"
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return
    for result in results:
        fit = result.get("fit")
        if fit:
            yield LinkFit(
                kind=str(result["collective"]),
                scope=str(result["scope"]),
                ranks=int(result["ranks"]),
                alpha_ns=float(fit["alpha_ns"]),
                beta_ns_per_byte=float(fit["beta_ns_per_byte"]),
                run=run.job_id,
                points=[_point(p) for p in result.get("points", ())],
            )


def _point(point: dict[str, Any]) -> tuple[int, float, float]:
    return int(point["message_bytes"]), float(point["time_ns"]), float(point["busbw_gbytes_per_s"])
