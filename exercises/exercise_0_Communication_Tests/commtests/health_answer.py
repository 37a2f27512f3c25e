"""The health check: which ranks work when and with whom, and its answer. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal, NamedTuple

from harness.common.format import aligned

from .verdict import LIMIT, LinkFinding, SlowPlaces, judge_probe, number

NAMED = 3  # places in the sentence


class RankPlace(NamedTuple):
    node: int
    local_rank: int
    host: str


class Pair(NamedTuple):
    """Two neighbours, numbers of nodes or ranks, and the ranks that send to each other, one of each side."""

    one: int
    other: int
    lanes: list[tuple[int, int]]

    @property
    def label(self) -> str:
        return f"{self.one}-{self.other}"


def turns(rank_places: Sequence[RankPlace]) -> list[list[int]]:
    """Ranks that may work at the same time without a common core: one of each host.

    >>> turns([Place(0, 0, "a"), Place(0, 1, "a"), Place(1, 0, "b"), Place(1, 1, "b")])
    [[0, 2], [1, 3]]
    """
    by_host: dict[str, list[int]] = {}
    for rank, place in enumerate(rank_places):
        by_host.setdefault(place.host, []).append(rank)
    longest = max(map(len, by_host.values()))
    return [[ranks[k] for ranks in by_host.values() if k < len(ranks)] for k in range(longest)]


def nodes_of(rank_places: Sequence[RankPlace]) -> dict[int, list[int]]:
    """Node → its ranks."""
    found: dict[int, list[int]] = {}
    for rank, place in enumerate(rank_places):
        found.setdefault(place.node, []).append(rank)
    return found


def ring(rank_places: Sequence[RankPlace]) -> list[list[Pair]]:
    """The ring of neighbouring nodes, of one node the ring of its ranks, in phases: in each, no member is in two pairs.

    Empty if a slow pair would say nothing: two ranks of one node, which its all-reduce has as well.

    >>> [[pair.label for pair in phase] for phase in ring([Place(node, 0, "a") for node in range(5)])]
    [['0-1', '2-3'], ['1-2', '3-4'], ['4-0']]
    """
    nodes = nodes_of(rank_places)
    units = nodes if len(nodes) > 1 else {rank: [rank] for rank in range(len(rank_places))}
    names = list(units)
    if len(names) < (2 if len(nodes) > 1 else 3):
        return []
    last = len(names) - (len(names) == 2)  # the ring of two is one pair
    phases: list[list[Pair]] = [[], [], []]
    for k in range(last):
        one, other = names[k], names[(k + 1) % len(names)]
        closes_odd_ring = k == len(names) - 1 and len(names) % 2
        pair = Pair(one, other, list(zip(units[one], units[other], strict=False)))
        phases[2 if closes_odd_ring else k % 2].append(pair)
    return [phase for phase in phases if phase]


@dataclass(frozen=True)
class HealthAnswer:
    """What is printed and kept. Only `fail` is a failure of the run."""

    status: Literal["pass", "fail", "cannot tell"]
    verdict: str
    lines: list[str]
    problems: list[str]


class MeasuredJob:
    """What was measured, and the names of its places: nodes where there are several, else ranks."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = data
        self.places = [RankPlace(**place) for place in data["ranks"]]
        self.nodes = nodes_of(self.places)
        self.several = len(self.nodes) > 1
        self.probes: Sequence[Mapping[str, Any]] = data["probes"]
        self.limit = LIMIT[data["device"]]

    @property
    def units(self) -> list[str]:
        """Nodes or ranks, as labels have them."""
        return [*map(str, self.nodes if self.several else range(len(self.places)))]

    def name(self, unit: str) -> str:
        """As `node 3 (lrdn0123)` or `rank 1`."""
        if not self.several:
            return f"rank {unit}"
        return f"node {unit} ({self.places[self.nodes[int(unit)][0]].host})"

    def units_with(self, label: str, by: str) -> list[str]:
        """The places that a probe's label is about."""
        if by == "rank":
            return [str(self.places[int(label)].node) if self.several else label]
        if by.endswith("pair"):
            return label.split("-")
        return [label] if self.several and by == "node" else []


def health_answer(data: Mapping[str, Any], links: Sequence[LinkFinding] = ()) -> HealthAnswer:
    """The answer for health.json. links: the problems of the nodes' own tests."""
    job = MeasuredJob(data)
    judged = [judge_probe(probe, job.limit) for probe in job.probes]
    slow = [slow for each in judged for slow in each.slow]
    blamed = _blamed(job, slow)
    problems = [*_places(job, blamed), *_between(job, slow, blamed), *(finding.message for finding in links)]
    unsteady = [
        (str(probe["name"]), each.unsteady)
        for probe, each in zip(job.probes, judged, strict=True)
        if each.unsteady is not None
    ]
    table = _table(job, set(blamed))
    if problems:
        more = f"; and {len(problems) - NAMED} more" if len(problems) > NAMED else ""
        return HealthAnswer(
            "fail", f"HEALTH: fail: {'; '.join(problems[:NAMED])}{more}. Rates are medians.", table, problems
        )
    if why := _why_not(job, unsteady):
        return HealthAnswer("cannot tell", f"HEALTH: cannot tell: {why}.", table, [])
    return HealthAnswer("pass", _passed(job), table, [])


def _why_not(job: MeasuredJob, unsteady: Sequence[tuple[str, float]]) -> str:
    """Why nothing can be said although nothing was found; empty if it can."""
    if len(job.places) == 1:
        return "one process has no others to be compared with (-g 2 starts two)"
    if not unsteady:
        return ""
    names = " and ".join(f"{name} by {spread:.0%}" for name, spread in unsteady)
    return (
        f"the repetitions spread too much ({names}; a place counts as slow from {job.limit:.0%} on): something "
        "else uses this machine; try again when it is idle. Nothing slow was found"
    )


def _passed(job: MeasuredJob) -> str:
    where = f"{_ranks(job)} on {len(job.nodes)} node{'s' if job.several else ''}"
    rates = ", ".join(_usual(probe) for probe in job.probes)
    bounds = [probe for probe in job.probes if probe["bound"] is not None]
    unknown = " It is not known whether all are equally slow: the site file gives no rates of its links."
    return (
        f"HEALTH: pass: of {where}, no part is more than {job.limit:.0%} slower than the others"
        f"{' or below half of the nominal links' if bounds else ''}: {rates}.{'' if bounds else unknown}"
    )


def _ranks(job: MeasuredJob) -> str:
    return f"{len(job.places)} rank{'' if len(job.places) == 1 else 's'}"


def _usual(probe: Mapping[str, Any]) -> str:
    return f"{probe['name']} {number(median(map(median, probe['values'].values())))} {probe['unit']}"


def _blamed(job: MeasuredJob, slow: Sequence[SlowPlaces]) -> dict[str, list[SlowPlaces]]:
    """Place → what is slow there. A slow pair counts for a place that is slow with each of its two neighbours."""
    culprits = _culprits(job, [each for each in slow if each.is_pair])
    found: dict[str, list[SlowPlaces]] = {}
    for each in slow:
        for unit in job.units_with(each.label, str(each.probe["by"])):
            if not each.is_pair or unit in culprits:
                found.setdefault(unit, []).append(each)
    return dict(sorted(found.items(), key=lambda item: int(item[0])))


def _places(job: MeasuredJob, blamed: Mapping[str, Sequence[SlowPlaces]]) -> Iterator[str]:
    """A text for each place with all that is slow there."""
    for unit, found in blamed.items():
        names = dict.fromkeys(str(each.probe["name"]) for each in found)
        texts = (_worst(job, [each for each in found if each.probe["name"] == name]) for name in names)
        yield f"{job.name(unit)}: {', '.join(texts)}"


def _between(job: MeasuredJob, slow: Sequence[SlowPlaces], blamed: Mapping[str, Sequence[SlowPlaces]]) -> Iterator[str]:
    """A text for each slow link between places that are not to blame, and for what is slow over all."""
    for each in slow:
        units = job.units_with(each.label, str(each.probe["by"]))
        if each.is_pair and not any(unit in blamed for unit in units):
            yield f"the link between {' and '.join(map(job.name, units))}: {each.text()}"
        elif not units:
            yield f"all ranks: {each.text()}"


def _worst(job: MeasuredJob, slow_places: Sequence[SlowPlaces]) -> str:
    """The slowest of one probe at one place, and of how many it is."""
    worst = min(slow_places, key=lambda each: each.value)
    if worst.probe["by"] != "rank" or not job.several:
        return worst.text()
    return worst.text(f" of rank {worst.label}" if len(slow_places) == 1 else f" of {len(slow_places)} ranks")


def _culprits(job: MeasuredJob, slow: Sequence[SlowPlaces]) -> set[str]:
    """The places that are in a slow pair with each of two neighbours."""
    labels = {each.label for each in slow}
    all_pairs = [label for probe in job.probes if str(probe["by"]).endswith("pair") for label in probe["values"]]
    found = set()
    for unit in job.units:
        mine = [label for label in all_pairs if unit in label.split("-")]
        if len(mine) > 1 and set(mine) <= labels:
            found.add(unit)
    return found


def _table(job: MeasuredJob, slow: set[str]) -> list[str]:
    """A row per node, or per rank of one node: the lowest of its medians for each probe that tells places apart."""
    probes = [probe for probe in job.probes if probe["by"] != "job" and (job.several or probe["by"] != "node")]
    head = ["place", *(f"{probe['name']} {probe['unit']}" for probe in probes)]
    rows = [[job.name(unit), *(_cell(job, probe, unit) for probe in probes)] for unit in job.units]
    marks = ["", *("  slow" if unit in slow else "" for unit in job.units)]
    lines = [line + mark for line, mark in zip(aligned([head, *rows], {0}), marks, strict=True)]
    others = [_usual(probe) for probe in job.probes if probe not in probes]
    device = f"{job.data['backend']}, {job.data['device_name']}"
    about = f"Health: {_ranks(job)}, {device}; the lowest median of each place"
    return [about, *(f"  {line}" for line in lines), *([f"  {', '.join(others)}"] if others else [])]


def _cell(job: MeasuredJob, probe: Mapping[str, Any], unit: str) -> str:
    mine = [median(row) for label, row in probe["values"].items() if unit in job.units_with(label, str(probe["by"]))]
    return number(min(mine)) if mine else "–"
