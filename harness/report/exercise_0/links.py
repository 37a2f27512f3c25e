"""The results of exercise 0 that a page shows: of its run, and of other runs at the same site."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from harness.analysis.summary import Summary
from harness.common.errors import WorkError
from harness.explain.commands import resolved
from harness.report.exercise_0.results import (
    CollectiveResults,
    LinkVerdict,
    MeasuredCollective,
    read_results,
    read_verdict,
)
from harness.run import Run, all_runs
from harness.run.record import PARTIAL_RECORD_FILE, RunRecord

_File = TypeVar("_File")
_Found = dict[tuple[str, int], list[MeasuredCollective]]  # by scope and ranks


@dataclass(frozen=True)
class LinkResults:
    """The results, and a sentence for every damaged file that was skipped."""

    fits: Sequence[MeasuredCollective] = ()
    left_out: Sequence[str] = ()
    verdict: LinkVerdict | None = None  # of this run, when it is exercise 0


@dataclass(frozen=True)
class NodeLayout:
    """The number of nodes and of ranks on each, which say where a group of ranks can be."""

    nodes: int
    per_node: int

    def scopes(self, ranks: int) -> list[str]:
        """The scopes of exercise 0 in which a group of this size can be.

        >>> NodeLayout(2, 4).scopes(8), NodeLayout(2, 4).scopes(4), NodeLayout(2, 2).scopes(2)
        (['world'], ['intra'], ['intra', 'inter'])
        """
        several = self.nodes > 1
        found = {
            "intra": 1 < ranks <= self.per_node,
            "inter": several and ranks == self.nodes,
            "world": several and self.per_node > 1 and ranks == self.nodes * self.per_node,
        }
        return [scope for scope, holds in found.items() if holds]


def links_of_site(record: RunRecord | None, summary: Summary) -> LinkResults:
    """For each group of this run the fits of the newest run of exercise 0 on as many ranks, scope, site and backend."""
    layout = _layout(summary)
    if record is None or layout is None:
        return LinkResults()
    groups = {c.group_size for c in summary.collectives if c.group_size}
    wanted = {ranks: layout.scopes(ranks) for ranks in sorted(groups)}
    left_out: list[str] = []
    found: _Found = {}
    for run, measured in _measured_on(record.site.name, summary.backend, left_out):
        if not _missing(wanted, found):
            break
        found = _by_place(_results(run, measured)) | found
    fits = [fit for ranks, scopes in wanted.items() for s in scopes for fit in found.get((s, ranks), [])]
    return LinkResults(fits, left_out)


def _by_place(results: Sequence[MeasuredCollective]) -> _Found:
    found: _Found = {}
    for result in results:
        if result.fit is not None:
            found.setdefault((result.scope, result.ranks), []).append(result)
    return found


def _missing(scopes_by_ranks: dict[int, list[str]], results: _Found) -> dict[int, list[str]]:
    """The groups with a scope for which no result was found."""
    lacks = {
        ranks for ranks, scopes in scopes_by_ranks.items() if not any((scope, ranks) in results for scope in scopes)
    }
    return {ranks: scopes for ranks, scopes in scopes_by_ranks.items() if scopes and ranks in lacks}


def _layout(summary: Summary) -> NodeLayout | None:
    asked = resolved(summary)
    if asked is None:
        return None
    per_node = asked.gpus_per_node or (summary.world_size or 0) // asked.nodes
    return NodeLayout(asked.nodes, per_node) if per_node else None


def _measured_on(site: str, backend: str | None, left_out: list[str]) -> Iterator[tuple[Run, CollectiveResults]]:
    """Runs of exercise 0 on this site over this backend, the newest first; damaged ones go to `left_out`."""
    for run in reversed(all_runs()):
        if not run.collectives.is_file():
            continue
        record = run.known(PARTIAL_RECORD_FILE) or {}
        if (record.get("site") or {}).get("name") != site:
            continue
        measured = _unless_damaged(read_results, run.path, left_out)
        if measured is not None and backend in (None, measured.backend):
            yield run, measured


def links_of_run(run: Run | None) -> LinkResults:
    """The results of this run itself; empty when it is not a run of exercise 0."""
    if run is None:
        return LinkResults()
    left_out: list[str] = []
    measured = _unless_damaged(read_results, run.path, left_out)
    verdict = _unless_damaged(read_verdict, run.path, left_out)
    return LinkResults(_results(run, measured) if measured else (), left_out, verdict=verdict)


def _unless_damaged(read: Callable[[Path], _File | None], run: Path, left_out: list[str]) -> _File | None:
    """The result of `read`; of a damaged file None, and the error's text is added to `left_out`."""
    try:
        return read(run)
    except WorkError as error:
        left_out.append(str(error))
        return None


def _results(run: Run, collective_results: CollectiveResults) -> list[MeasuredCollective]:
    """The collectives that were measured, each with the run's job id."""
    return [r.model_copy(update={"run": run.job_id}) for r in collective_results.results if r.points]
