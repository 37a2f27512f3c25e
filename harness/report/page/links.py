"""What runs of exercise 0 measured of the links: this one, or the latest on the same site that asked for the same.
Reads runs, draws nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from harness.analysis.expected import resolved
from harness.analysis.summary import Summary
from harness.common.errors import WorkError
from harness.report.exercise_0.results import LinkVerdict, Measured, Point, read_measured, read_verdict
from harness.report.page.inputs import LinkFit
from harness.run import Record, Run, all_runs

_PLACES = {"intra": "inside a node", "inter": "one per node", "world": "over all nodes"}


@dataclass(frozen=True)
class Links:
    """The fits found, a sentence for every damaged file that was passed over to find them, and why some are missing."""

    fits: Sequence[LinkFit] = ()
    left_out: Sequence[str] = ()
    note: str = ""
    verdict: LinkVerdict | None = None  # of this run, when it is exercise 0


@dataclass(frozen=True)
class Layout:
    """Nodes and ranks of each, by which a group of ranks has its place."""

    nodes: int
    per_node: int

    def scopes(self, ranks: int) -> list[str]:
        """Where a group of so many ranks can be, in the words of exercise 0.

        >>> Layout(2, 4).scopes(8), Layout(2, 4).scopes(4), Layout(1, 4).scopes(4), Layout(2, 2).scopes(2)
        (['world'], ['intra'], ['intra'], ['intra', 'inter'])
        """
        several = self.nodes > 1
        found = {
            "intra": 1 < ranks <= self.per_node,
            "inter": several and ranks == self.nodes,
            "world": several and self.per_node > 1 and ranks == self.nodes * self.per_node,
        }
        return [scope for scope, holds in found.items() if holds]

    def command(self, scope: str, ranks: int) -> str:
        """What measures it."""
        nodes, per_node = {
            "intra": (1, ranks),
            "inter": (self.nodes, self.per_node),
            "world": (self.nodes, self.per_node),
        }[scope]
        return f"bash slurm.sh -e 0 -n {nodes} -g {per_node}"


_File = TypeVar("_File")
_Found = dict[tuple[str, int], list[LinkFit]]  # by scope and ranks


def links_of_site(record: Record | None, summary: Summary) -> Links:
    """For each group of this run: the fits of the newest run of exercise 0 on its site that measured as many ranks in
    the same scope, over the same backend. Empty when exercise 0 never ran there."""
    layout = _layout(record, summary)
    if record is None or layout is None:
        return Links()
    wanted = {ranks: layout.scopes(ranks) for ranks in sorted(_groups(summary))}
    left_out: list[str] = []
    found: _Found = {}
    for run, measured in _measured_on(record.site.name, summary.backend, left_out):
        if not _missing(wanted, found):
            break
        found = _by_place(_fits(run, measured)) | found
    fits = [fit for ranks, scopes in wanted.items() for s in scopes for fit in found.get((s, ranks), [])]
    return Links(fits, left_out, _note(layout, _missing(wanted, found)) if found else "")


def _by_place(fits: Iterable[LinkFit]) -> _Found:
    found: _Found = {}
    for fit in fits:
        if fit.line is not None:
            found.setdefault((fit.scope, fit.ranks), []).append(fit)
    return found


def _missing(wanted: dict[int, list[str]], found: _Found) -> dict[int, list[str]]:
    """The groups that have a place of which nothing was found."""
    return {
        ranks: scopes
        for ranks, scopes in wanted.items()
        if scopes and not any((scope, ranks) in found for scope in scopes)
    }


def _groups(summary: Summary) -> set[int]:
    """The sizes of the groups that communicated."""
    return {c.group_size for c in summary.collectives if c.group_size}


def _layout(record: Record | None, summary: Summary) -> Layout | None:
    asked = resolved(summary)
    if record is None or asked is None:
        return None
    per_node = asked.gpus_per_node or (summary.world_size or 0) // asked.nodes
    return Layout(asked.nodes, per_node) if per_node else None


def _note(layout: Layout, missing: dict[int, list[str]]) -> str:
    """Which groups of the run exercise 0 has not measured here, and what would."""
    if not missing:
        return ""
    ranks, scopes = next(reversed(missing.items()))
    where = " or ".join(_PLACES[scope] for scope in scopes)
    return (
        f"No run of exercise 0 on this site measured {ranks} ranks {where}, as this run's groups are "
        f"(`{layout.command(scopes[-1], ranks)}` would), so there is nothing to hold them against"
    )


def _measured_on(site: str, backend: str | None, left_out: list[str]) -> Iterator[tuple[Run, Measured]]:
    """Runs of exercise 0 on that site over that backend, the newest first; damaged ones go to `left_out`."""
    for run in reversed(all_runs()):
        if not run.collectives.is_file() or _site(run) != site:
            continue
        try:
            measured = read_measured(run.path)
        except WorkError as error:
            left_out.append(str(error))
            continue
        if measured is not None and backend in (None, measured.backend):
            yield run, measured


def _site(run: Run) -> str | None:
    try:
        return str(json.loads(run.record_file.read_text(encoding="utf-8"))["site"]["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def links_of_run(run: Run | None) -> Links:
    """What this run itself measured; empty when it is not one of exercise 0."""
    if run is None:
        return Links()
    left_out: list[str] = []
    measured = _unless_damaged(read_measured, run.path, left_out)
    verdict = _unless_damaged(read_verdict, run.path, left_out)
    fits = [] if measured is None else list(_fits(run, measured))
    return Links(fits=fits, left_out=left_out, verdict=verdict)


def _unless_damaged(read: Callable[[Path], _File | None], run: Path, left_out: list[str]) -> _File | None:
    """What `read` finds in the run; None where its file is damaged, and then why is added to `left_out`."""
    try:
        return read(run)
    except WorkError as error:
        left_out.append(str(error))
        return None


def _fits(run: Run, measured: Measured) -> Iterable[LinkFit]:
    for result in measured.results:
        if result.points:
            yield LinkFit(
                kind=result.collective,
                scope=result.scope,
                ranks=result.ranks,
                line=result.fit,
                run=run.job_id,
                points=[_point(p) for p in result.points],
            )


def _point(point: Point) -> tuple[int, float, float]:
    return point.message_bytes, point.time_ns, point.busbw_gbytes_per_s
