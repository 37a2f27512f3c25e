"""What a run of exercise 0 measured of the links: this one, or the latest on the same site."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.errors import WorkError
from harness.report.comm_results import RESULTS, Point, read_measured
from harness.report.page_inputs import LinkFit
from harness.run import Record, Run, all_runs


@dataclass(frozen=True)
class Links:
    """The fits found, and a sentence for every damaged file that was passed over to find them."""

    fits: Sequence[LinkFit] = ()
    left_out: Sequence[str] = ()


def links_of_site(record: Record | None) -> Links:
    """The fits of the newest run of exercise 0 on the record's site that has any; empty when there is none."""
    left_out: list[str] = []
    if record is None:
        return Links()
    for run in reversed(all_runs()):
        if not (run.path / RESULTS).is_file() or _site(run) != record.site.name:
            continue
        links = links_of_run(run)
        left_out += links.left_out
        if links.fits:
            return Links(links.fits, left_out)
    return Links(left_out=left_out)


def _site(run: Run) -> str | None:
    try:
        return str(json.loads((run.path / "run.json").read_text(encoding="utf-8"))["site"]["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def links_of_run(run: Run | None) -> Links:
    """What this run itself measured; empty when it is not one of exercise 0."""
    if run is None:
        return Links()
    try:
        return Links(fits=list(_fits(run)))
    except WorkError as error:
        return Links(left_out=[str(error)])


def _fits(run: Run) -> Iterator[LinkFit]:
    measured = read_measured(run.path)
    for result in measured.results if measured is not None else ():
        if result.fit is not None:
            yield LinkFit(
                kind=result.collective,
                scope=result.scope,
                ranks=result.ranks,
                alpha_ns=result.fit.alpha_ns,
                beta_ns_per_byte=result.fit.beta_ns_per_byte,
                run=run.job_id,
                points=[_point(p) for p in result.points],
            )


def _point(point: Point) -> tuple[int, float, float]:
    return point.message_bytes, point.time_ns, point.busbw_gbytes_per_s
