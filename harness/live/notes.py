"""Sentences about a run that runs, each with its evidence and a command. Further ones are added to SOURCES."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np

from harness.analysis.pace import changes
from harness.analysis.pace_evidence import evidence
from harness.analysis.slowest_rank import slowest
from harness.common.display.format import span
from harness.common.display.text import clock
from harness.common.paths import COMMAND
from harness.common.run_folder.run_store import UnreadFileError
from harness.explain.pace import change_sentence, returns, slowest_sentence, worth_telling
from harness.heartbeats.bad_loss import earliest
from harness.heartbeats.dead import first_death
from harness.heartbeats.hang import read_hang
from harness.heartbeats.model import Live, aligned
from harness.heartbeats.preparing import preparation
from harness.heartbeats.silent_nodes import SilentNode, seen, who_is_silent
from harness.heartbeats.time_limit import Note, time_limit

MOST_LINES = 8  # of ranks, as evidence


def notes(live: Live) -> list[Note]:
    """What can be said now, the most urgent first."""
    return [note for source in SOURCES for note in source(live)]


def stuck(live: Live) -> Iterator[Note]:
    """No rank makes progress any more."""
    hang = read_hang(live.path)
    if hang is not None and hang.until_ns is None:
        lines = "; ".join(hang.lines[:MOST_LINES])
        yield Note("stuck", hang.ranks, f"{hang.now(live.now_ns)}.", lines, hang.advice)


def prepares(live: Live) -> Iterator[Note]:
    """No step has ended for long, and a rank works."""
    with suppress(UnreadFileError, OSError, ValueError, LookupError, TypeError):  # a damaged file of a node
        if not live.suspended and (said := preparation(seen(live.path, live.now_ns))):
            yield Note("prepares", (), f"{said}.", "", "")


def failed(live: Live) -> Iterator[Note]:
    """A rank has failed."""
    has_failed = any(rank.gone is not None and not rank.gone.ended for rank in live.ranks.values())
    if has_failed and (death := first_death(live.path)) is not None:
        said = death.sentence
        shows = "" if death.told else f"process {death.pid}, at {clock(death.unix_ns, live.now_ns)}"
        yield Note("failed", (death.rank,), f"{said[0].upper()}{said[1:]}.", shows, f"{COMMAND} logs {live.job_id}")


def nonfinite_loss(live: Live) -> Iterator[Note]:
    """The loss is NaN or infinite."""
    bad = earliest(live.losses.values())
    if bad is not None:
        said = f"{bad.sentence[0].upper()}{bad.sentence[1:]}."
        yield Note("loss", bad.ranks, said, "", f"{COMMAND} cancel {live.job_id}")


def silent_nodes(live: Live) -> Iterator[Note]:
    """Nodes do not report any more, although their processes should run."""
    nodes = [] if live.suspended else live.silent_nodes()
    if not nodes:
        return
    there = {node.name: tuple(rank.rank for rank in live.training if rank.node == node.name) for node in nodes}
    if len(nodes) < len(live.nodes):
        silent = [SilentNode(node.host or node.name, there[node.name], node.last_ns) for node in nodes]
        said = who_is_silent(silent)
    else:
        said = "no node reports any more"
    yield Note(
        "node",
        tuple(sorted(rank for ranks in there.values() for rank in ranks)),
        f"{said[0].upper()}{said[1:]}.",
        f"the last line is {span(max(node.age_s(live.now_ns) for node in nodes))} old",
        f"{COMMAND} status {live.job_id}",
    )


def pace(live: Live) -> Iterator[Note]:
    """Steps became slower or faster, or one rank is the slowest."""
    found = aligned(live.training)
    if found is None:
        return
    command = f"{COMMAND} capture start {live.job_id} --steps 5"
    seen = changes(found.us, found.own_us)
    for before, change in zip([None, *seen], seen, strict=False):
        if before is None or not returns(before, change):  # a return to the earlier pace has no sentence of its own
            ranks = tuple(found.ranks[row] for row in change.ranks)
            numbered = change._replace(
                step=change.step + found.first,
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
        yield Note("slowest", ranks, sentence, "", command)


# The most urgent first.
SOURCES: list[Callable[[Live], Iterator[Note]]] = [
    stuck,
    failed,
    nonfinite_loss,
    silent_nodes,
    prepares,
    time_limit,
    pace,
]
