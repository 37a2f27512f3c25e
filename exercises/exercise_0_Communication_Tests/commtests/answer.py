"""The answer of the health check: as a table, and in one sentence. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from textwrap import wrap
from typing import Any

from harness.common.display.format import aligned

from .places import RankPlace, nodes_of
from .verdict import LIMIT, LinkFinding, SlowPlaces, judge_probe, number, quartiles

NAMED = 3  # places in the sentence
BUSY = "something else uses this machine; try again when it is idle"
PARTS = ("compute", "communication", "together")
"""The times of the overlap: of each alone, and of both at once."""
BALANCED = 2.0  # where one takes so many times the other, the share says little
UNSTEADY = 0.5  # so far apart, the quartiles of the share tell nothing
MEANING = {
    "cuda": "In a training this share is an upper limit: communication that starts late cannot be hidden.",
    "cpu": "On CPUs both need the same cores, so this is the cost of sharing them; only a GPU can show what a network "
    "card hides.",
}


@dataclass(frozen=True)
class HealthAnswer:
    """What is printed and kept. Only `fail` is a failure of the run."""

    status: str  # pass | fail | cannot tell
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
        self.probes: Sequence[Mapping[str, Any]] = [each for each in data["probes"] if each["by"] != "part"]
        self.overlaps: Sequence[Mapping[str, Any]] = [each for each in data["probes"] if each["by"] == "part"]
        self.limit = LIMIT[data["device"]]

    @property
    def units(self) -> list[str]:
        """Nodes or ranks, as labels have them."""
        return [*map(str, self.nodes if self.several else range(len(self.places)))]

    @property
    def ranks(self) -> str:
        return f"{len(self.places)} rank{'' if len(self.places) == 1 else 's'}"

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
    """What is slow: of the ranks, nodes and pairs against each other, and against the nominal links.

    data: of health.json. links: the problems of the nodes' own tests.
    """
    job = MeasuredJob(data)
    judged = [judge_probe(probe, job.limit) for probe in job.probes]
    slow = [slow for each in judged for slow in each.slow]
    blamed = _blamed(job, slow)
    problems = [*_places(job, blamed), *_between(job, slow, blamed), *(finding.message for finding in links)]
    doubt = _doubt(job, [each.unsteady for each in judged])
    status, result = ("cannot tell", f"cannot tell: {doubt}.") if doubt else ("pass", _passed(job))
    if problems:
        more = f"; and {len(problems) - NAMED} more" if len(problems) > NAMED else ""
        status, result = "fail", f"fail: {'; '.join(problems[:NAMED])}{more}. Rates are medians."
    lines = [*_table(job, set(blamed)), *(line for probe in job.overlaps for line in _overlap(job, probe))]
    return HealthAnswer(status, f"HEALTH: {result}", lines, problems)


def _doubt(job: MeasuredJob, unsteady: Sequence[float | None]) -> str:
    """Why there is no answer where nothing slow was found; empty if there is one."""
    if len(job.places) == 1:
        return "one process has no others to measure with (-g 2 starts two)"
    spreads = [f"{probe['name']} by {each:.0%}" for probe, each in zip(job.probes, unsteady, strict=True) if each]
    if not spreads:
        return ""
    return (
        f"the repetitions spread too much ({' and '.join(spreads)}; a place counts as slow from {job.limit:.0%} on): "
        f"{BUSY}. Nothing slow was found"
    )


def _passed(job: MeasuredJob) -> str:
    where = f"{job.ranks} on {len(job.nodes)} node{'s' if job.several else ''}"
    rates = ", ".join(_usual(probe) for probe in job.probes)
    bounds = [probe for probe in job.probes if probe["bound"] is not None]
    unknown = " It is not known whether all are equally slow: the site file gives no rates of its links."
    return (
        f"pass: of {where}, no part is more than {job.limit:.0%} slower than the others"
        f"{' or below half of the nominal links' if bounds else ''}: {rates}.{'' if bounds else unknown}"
    )


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
    heading = f"Health: {job.ranks}, {job.data['backend']}, {job.data['device_name']}; the lowest median of each place"
    return [heading, *(f"  {line}" for line in lines), *([f"  {', '.join(others)}"] if others else [])]


def _cell(job: MeasuredJob, probe: Mapping[str, Any], unit: str) -> str:
    mine = [median(row) for label, row in probe["values"].items() if unit in job.units_with(label, str(probe["by"]))]
    return number(min(mine)) if mine else "–"


class Overlap:
    """Computation beside communication, from the milliseconds of each repetition by `PARTS`.

    ms: quartiles of computation, communication and both together. hidden: the share of the shorter one that was hidden,
    from the medians; shares: its quartiles, from the single repetitions.
    """

    def __init__(self, values: Mapping[str, Sequence[float]]) -> None:
        rows = [values[part] for part in PARTS]
        self.ms = [quartiles(row) for row in rows]
        compute_ms, communication_ms, together_ms = (ms[1] for ms in self.ms)
        self.shorter_ms, self.best_ms = sorted((compute_ms, communication_ms))
        self.apart_ms = compute_ms + communication_ms
        self.hidden = _hidden(compute_ms, communication_ms, together_ms)
        self.shares = quartiles([_hidden(*times) for times in zip(*rows, strict=True)])

    def doubt(self) -> str:
        """Why the times allow no comparison; empty if they do."""
        if self.best_ms > BALANCED * self.shorter_ms:
            compute, communication = (f"{ms[1]:.3g} ms" for ms in self.ms[:2])
            return f"computation took {compute} and communication {communication}, too different to compare: {BUSY}"
        low, _, high = self.shares
        if high - low > UNSTEADY:
            return f"a quarter of the repetitions hid less than {low:.0%} and a quarter more than {high:.0%}: {BUSY}"
        return ""

    def table(self) -> list[str]:
        names = ("compute only", "communication only", "both together")
        return aligned(
            [
                ("", "ms, median", "quartiles"),
                *(
                    (name, f"{ms[1]:.1f}", f"{ms[0]:.1f} to {ms[2]:.1f}")
                    for name, ms in zip(names, self.ms, strict=True)
                ),
                ("best: the longer of both", f"{self.best_ms:.1f}", ""),
                ("no overlap: one after the other", f"{self.apart_ms:.1f}", ""),
            ],
            {0, 2},
        )


def _hidden(compute: float, communication: float, together: float) -> float:
    """The share of the shorter one that took no time; none where both took longer together."""
    share = (compute + communication - together) / min(compute, communication)
    return min(1.0, max(0.0, share))


def _overlap(job: MeasuredJob, probe: Mapping[str, Any]) -> Iterator[str]:
    """How much was hidden, or why the times do not tell."""
    found = Overlap(probe["values"])
    low, _, high = found.shares
    doubt, hidden = found.doubt(), f"hidden of the shorter: {found.hidden:.0%}, quartiles {low:.0%} to {high:.0%}."
    yield from ("", "Overlap: the slowest rank's times", f"  {probe['name']}")
    yield from (f"  {line}".rstrip() for line in found.table())
    yield from wrap(f"cannot tell: {doubt}." if doubt else f"{hidden} {MEANING[job.data['device']]}", 76)
