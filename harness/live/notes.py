"""Sentences about a run that runs, each with its evidence and a command. Further ones are added to SOURCES."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from harness.common.bounded_read import BoundedReadError
from harness.common.format import duration, percent
from harness.common.heartbeats import LEAST_S, PERIOD_S
from harness.common.mystery import hides
from harness.common.paths import PROGRAM
from harness.common.slurm_notation import clock_text
from harness.live.dead import ends_of_ranks, first_death
from harness.live.hang import read_hang
from harness.live.lines import LossLine, both_ends, node_files
from harness.live.model import BEATS, NS, History, Live, Rank
from harness.live.node_file import Silent, who_is_silent
from harness.live.pace import changes
from harness.live.pace_words import change_sentence, evidence, returns, slowest, slowest_sentence, worth_telling
from harness.live.text import how_many, ranks_named, span
from harness.run.mystery import is_hidden


class BadLoss(NamedTuple):
    """The first step with a loss that is not finite, and the ranks that had one in it."""

    step: int
    ranks: tuple[int, ...]
    loss: str
    weights_were_finite: bool | None

    @property
    def sentence(self) -> str:
        """What is known, and what it means."""
        name = {"nan": "NaN", "inf": "infinite", "-inf": "minus infinity"}.get(self.loss, self.loss)
        said = f"the loss is {name} since step {self.step} on {ranks_named(self.ranks)}"
        if self.weights_were_finite is None:
            return f"{said}; whether the weights were before it cannot be known from this"
        if self.weights_were_finite:
            return f"{said}: the weights were finite, so look at the batch and the forward pass of that step"
        return f"{said}: the weights were not finite before it, so gradients of an earlier step were not"


def first_bad_loss(run: Path) -> BadLoss | None:
    """The first of all ranks; None: every loss that is known is finite."""
    found = []
    for path in node_files(run):
        with suppress(OSError, BoundedReadError):
            found += [line for line in both_ends(path) if isinstance(line, LossLine)]
    return earliest(found)


def earliest(lines: Iterable[LossLine]) -> BadLoss | None:
    """Of those of all nodes."""
    known = sorted(lines, key=lambda line: (line.step, line.rank))
    if not known:
        return None
    first = [line for line in known if line.step == known[0].step]
    weights = [line.weights for line in first if line.weights is not None]
    return BadLoss(known[0].step, tuple(line.rank for line in first), known[0].loss, all(weights) if weights else None)


Matrix = npt.NDArray[np.float64]
PACE_STEPS = 1024  # the last ones, in which changes of pace are looked for


class Aligned(NamedTuple):
    """ranks: their numbers, one for each row. first: the number of the first column's step. us, own_us: microseconds of
    a step, in all and without waiting for other ranks; NaN: not known."""

    ranks: tuple[int, ...]
    first: int
    us: Matrix
    own_us: Matrix


def aligned(ranks: Sequence[Rank], most: int = PACE_STEPS) -> Aligned | None:
    """The last `most` steps of these ranks; None: no step is known. A mean of several steps stands for each of them."""
    known = [rank for rank in ranks if len(rank.history)]
    if not known:
        return None
    last = max(int(rank.history.steps[-1]) for rank in known)
    first = max(0, last - most + 1)
    us, own_us = (np.full((len(known), last - first + 1), np.nan) for _ in range(2))
    for row, rank in enumerate(known):
        entries, columns = _columns(rank.history, first, last)
        us[row, columns] = rank.history.us[entries]
        own_us[row, columns] = rank.history.own_us[entries]
    return Aligned(tuple(rank.rank for rank in known), first, us, own_us)


def _columns(history: History, first: int, last: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]]:
    """Entries, each as often as it has steps in these columns, and the columns."""
    steps = history.steps
    back = np.flatnonzero(np.diff(steps) <= 0)  # steps were counted anew
    begins = int(back[-1]) + 1 if len(back) else 0
    begins = max(begins, int(np.searchsorted(steps[begins:], first, "right")) + begins - 1)
    widths = np.diff(steps[begins:])
    usual = int(np.median(widths)) if len(widths) else 1
    counts = np.append(np.minimum(widths, max(1, usual)), max(1, usual))  # a wider gap was not recorded
    entries = np.repeat(np.arange(begins, len(steps)), counts)
    inside = np.arange(len(entries)) - np.repeat(np.cumsum(counts) - counts, counts)
    columns = steps[entries] + inside - first
    there = (columns >= 0) & (columns <= last - first)
    return entries[there], columns[there]


LEAST_BEATS = 20  # of all ranks, before their phases say anything
MOST_LINES = 8  # of ranks, as evidence
LIMIT_FACTOR = 1.05  # of the time that a run needs: the next one may be slower
LIMIT_S = 300  # a time limit is a multiple of it
DATA_SHARE = 0.15  # of the beats, in which ranks wait for data


class Note(NamedTuple):
    """A finding. kind: a word for scripts. sentence: what is so. evidence: what was seen. command: what to do next."""

    kind: str
    ranks: tuple[int, ...]
    sentence: str
    evidence: str
    command: str


def notes(live: Live) -> list[Note]:
    """What can be said now, the most urgent first."""
    return [note for source in SOURCES for note in source(live)]


def stuck(live: Live) -> Iterator[Note]:
    """No rank makes progress any more."""
    hang = read_hang(live.path)
    if hang is not None and hang.until_ns is None:
        lines = "; ".join(hang.lines[:MOST_LINES])
        yield Note("stuck", hang.ranks, f"{hang.now(live.now_ns)}.", lines, hang.advice)


def failed(live: Live) -> Iterator[Note]:
    """A rank has failed."""
    if any(rank.gone is not None and not rank.gone.ended for rank in live.ranks.values()):
        if hides(live.path, "crash") and is_hidden(live.path, None):
            said = f"A rank ended: {ends_of_ranks(live.path)}."
            asked = "which one was the first is hidden, because this run is a mystery"
            answer = f"{PROGRAM} lesson mystery answer {live.job_id} --cause … --rank … --step …"
            yield Note("failed", (), said, asked, answer)
        elif (death := first_death(live.path)) is not None:
            said = death.sentence
            yield Note(
                "failed", (death.rank,), f"{said[0].upper()}{said[1:]}.", death.seen_at, f"{PROGRAM} logs {live.job_id}"
            )


def nonfinite_loss(live: Live) -> Iterator[Note]:
    """The loss is NaN or infinite."""
    bad = earliest(live.losses.values())
    if bad is not None:
        said = f"{bad.sentence[0].upper()}{bad.sentence[1:]}."
        now = {rank.rank: rank.beat.loss for rank in live.training if rank.beat and rank.rank in bad.ranks}
        shows = "; ".join(f"the loss of rank {rank} is now {loss}" for rank, loss in list(now.items())[:MOST_LINES])
        yield Note("loss", bad.ranks, said, shows, f"{PROGRAM} cancel {live.job_id}")


def silent_nodes(live: Live) -> Iterator[Note]:
    """Nodes do not report any more, although their processes should run."""
    nodes = [] if live.suspended else live.silent_nodes()
    if not nodes:
        return
    there = {node.name: tuple(rank.rank for rank in live.training if rank.node == node.name) for node in nodes}
    age = span(max(node.age_s(live.now_ns) for node in nodes))
    report = len(live.nodes) - len(nodes)
    if report:
        silent = [Silent(node.host or node.name, there[node.name], node.last_ns) for node in nodes]
        said = who_is_silent(silent)
        others = f"{how_many(report, 'other node')} still do{'es' * (report == 1)}"
        waiting = [rank for rank in live.training if rank.node not in there and rank.is_idle()]
        if waiting:
            idle = span(min(rank.idle_s() for rank in waiting))
            others += f"; {ranks_named(rank.rank for rank in waiting)} made no progress for {idle}"
    else:
        said = "no node reports any more"
        others = "a node reports every few seconds while its monitor runs"
    yield Note(
        "node",
        tuple(sorted(rank for ranks in there.values() for rank in ranks)),
        f"{said[0].upper()}{said[1:]}.",
        f"the last line is {age} old; {others}",
        f"{PROGRAM} status {live.job_id}",
    )


def quiet_ranks(live: Live) -> Iterator[Note]:
    """Ranks show no sign of life, and it is not known yet that the run is stuck."""
    if next(stuck(live), None) is not None:
        return
    quiet = {rank.rank: rank.quiet_s() for rank in live.training if rank.quiet_s() >= LEAST_S}
    if quiet:
        longest = max(quiet, key=lambda rank: quiet[rank])
        rank = live.ranks[longest]
        place = f", at {rank.place.short}" if rank.place else ""
        yield Note(
            "quiet",
            tuple(sorted(quiet)),
            f"{ranks_named(quiet).capitalize()} of {len(live.ranks):,} show{'s' * (len(quiet) == 1)} no sign of life.",
            f"rank {longest} for {span(quiet[longest])}, in step {rank.step or 0:,}{place}",
            f"{PROGRAM} logs {live.job_id}",
        )


def pace(live: Live) -> Iterator[Note]:
    """Steps became slower or faster, or one rank is the slowest."""
    found = aligned(live.training)
    if found is None:
        return
    command = f"{PROGRAM} capture start {live.job_id} --steps 5"
    seen = changes(found.us, found.own_us)
    for before, change in zip([None, *seen], seen, strict=False):
        if before is None or not returns(before, change):  # a return to the earlier pace has no sentence of its own
            ranks = tuple(found.ranks[row] for row in change.ranks)
            numbered = change._replace(
                step=change.step + found.first,
                low=change.low + found.first,
                high=change.high + found.first,
                lasts=None if change.lasts is None else change.lasts + found.first,
                ranks=ranks,
            )
            kind, named = "slower" if change.ratio > 1 else "faster", ranks if change.named else ()
            shows = evidence(change, found.own_us, {}, found.ranks, unit_ns=1e3)
            yield Note(kind, named, change_sentence(numbered, None, 1e3), shows, command)
    if len(found.ranks) < 2:
        return
    step = float(np.nanmedian(found.us))
    apart = slowest(found.own_us, step)
    if worth_telling(apart, seen):
        ranks = () if apart.rank is None else (found.ranks[apart.rank],)
        sentence = slowest_sentence(apart._replace(rank=ranks[0]) if ranks else apart, step, 1e3)
        chance = f"of ranks that are alike, one is the slowest as often with a probability of {apart.chance:.1g}"
        yield Note("slowest", ranks, sentence, chance if ranks else "", command)


def time_limit(live: Live) -> Iterator[Note]:
    """The time limit, or the request to end that comes before it, comes before the last step."""
    progress = live.progress()
    if live.deadline_ns is None or progress.remaining_s is None or not progress.remaining_s:
        return
    warning_s = float(live.warning_s)
    if live.began_ns is not None:
        warning_s = min(warning_s, (live.deadline_ns - live.began_ns) / NS / 4)
    left_s = (live.deadline_ns - live.now_ns) / NS - warning_s
    if progress.remaining_s > left_s >= 0:
        steps, enough = (progress.steps or 0) - (progress.step or 0), _long_enough(live, progress.remaining_s)
        asked = f"; the run is asked to end {span(warning_s)} before its limit" if warning_s else ""
        yield Note(
            "limit",
            (),
            f"The time limit ends the run before its last step: {span(left_s)} are left, and it needs "
            f"{span(progress.remaining_s)}{f'; {enough} is long enough' if enough else ''}.",
            f"{steps:,} steps of {duration(progress.step_ns)} are left{asked}",
            f"start the next run with {enough or 'a longer --time'}",
        )


def _long_enough(live: Live, remaining_s: float) -> str:
    """A time limit in which the run ends by itself, as --time HH:MM:SS; empty: nobody knows when it began."""
    if live.began_ns is None:
        return ""
    needed_s = LIMIT_FACTOR * ((live.now_ns - live.began_ns) / NS + remaining_s)
    limit_s = min(needed_s + live.warning_s, needed_s * 4 / 3)
    return f"--time {clock_text(math.ceil(limit_s / LIMIT_S) * LIMIT_S)}"


def waits_for_data(live: Live) -> Iterator[Note]:
    """All ranks, or some more than the others, are often in the phase of data loading."""
    looks = {rank.rank: rank.phases for rank in live.training if rank.phases}
    beats, found = sum(map(len, looks.values())), sum(phases.count("d") for phases in looks.values())
    if beats < LEAST_BEATS or not found:
        return
    shares = {rank: phases.count("d") / len(phases) for rank, phases in looks.items()}
    share, more = found / beats, _more_than_others(looks, found / beats)
    worst = max(more or shares, key=lambda rank: shares[rank])
    if more:
        sentence = f"{ranks_named(more).capitalize()} of {len(looks):,} wait{'s' * (len(more) == 1)} for data"
        often = f"in {percent(sum(shares[rank] for rank in more) / len(more))} of the time"
    elif share >= DATA_SHARE:
        sentence, often = "The training waits for data", f"in {percent(share)} of the time"
    else:
        return
    yield Note(
        "data",
        tuple(sorted(more or (rank for rank, own in shares.items() if own >= DATA_SHARE))),
        f"{sentence} {often}.",
        f"one look each {PERIOD_S:g} s: rank {worst} was loading data in {looks[worst].count('d')} of "
        f"{len(looks[worst])}, all ranks in {found:,} of {beats:,}{_at(live, 'data')}",
        f"{PROGRAM} capture start {live.job_id} --steps 5",
    )


def _more_than_others(looks: dict[int, str], share: float) -> list[int]:
    """The ranks that load data so often that chance does not explain it, not even among a thousand ranks."""
    least = max(2 * DATA_SHARE, share + 5 * math.sqrt(share * (1 - share) / BEATS))
    return [rank for rank, phases in looks.items() if len(phases) == BEATS and phases.count("d") >= least * BEATS]


def _at(live: Live, phase: str) -> str:
    """The line in which most of the ranks in this phase are, as the end of a sentence."""
    places = Counter(rank.place for rank in live.training if rank.phase == phase and rank.place is not None)
    return "".join(f", at {place.short}" for place, _ in places.most_common(1))


# The most urgent first.
SOURCES: list[Callable[[Live], Iterator[Note]]] = [
    stuck,
    failed,
    nonfinite_loss,
    silent_nodes,
    quiet_ranks,
    time_limit,
    pace,
    waits_for_data,
]
