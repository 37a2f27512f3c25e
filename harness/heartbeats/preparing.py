"""Which ranks work in a run that makes no progress, and which wait for them. Before the first step it is not stuck
while one works: nobody knows how long it takes to compile, to read data or to load weights. No job is ended meanwhile.
"""

from __future__ import annotations

from harness.common.display.format import span
from harness.common.display.text import ranks_named, where
from harness.common.run_folder.heartbeats import Evidence
from harness.heartbeats.hang import place_of, waits_for_ranks
from harness.heartbeats.silent_nodes import QUIET_NS, NodeEvidence

UNKNOWN_S = 60.0  # without progress, before steps have ended: loading and connecting take long
_COMPILERS = {"ninja", "make", "cmake", "nvcc", "cicc", "ptxas", "hipcc", "gcc", "g++", "c++", "cc1", "cc1plus", "ld"}
_AT_WORK = "RD"  # states of a process that runs, or is ready to, or waits for a disk


def at_work(node_evidence: NodeEvidence) -> dict[int, str]:
    """What the ranks do that work, as follows "rank 1 is", the busiest first; if none does, those of which it cannot be
    seen."""
    ranks = sorted(node_evidence.ranks, key=lambda rank: rank.quiet_ns)
    if works := {rank.rank: doing for rank in ranks if (doing := work_of(rank, UNKNOWN_S))}:
        return works
    there = {rank.rank for rank in ranks} | set(node_evidence.gone)
    unseen = dict.fromkeys(set(range(node_evidence.world)) - there, "not there yet")
    return unseen | {rank: f"on {node.host}, which is silent" for node in node_evidence.silent for rank in node.ranks}


def work_of(rank: Evidence, least_s: float = QUIET_NS / 1e9) -> str:
    """Empty: none, also of one that is quiet for `least_s`. The processor time of one that waits in a collective may be
    the waiting itself; one whose Python does not answer may wait for a core."""
    children = [child["program"] for child in rank.children]
    busy = [child["program"] for child in rank.children if child["computes"] or child["state"] in _AT_WORK]
    least_s *= 1 if rank.threads or rank.state in "Tt" else 3
    asleep = rank.state != "D" and (waits_for_ranks(rank) is not None or rank.quiet_ns >= least_s * 1e9)
    at = f" in {where(place)}" if (place := place_of(rank)) else ""
    if busy or (_COMPILERS.intersection(children) and not asleep):
        works = f": {busy[0]} works" if busy else ""
        return f"{'compiling' if _COMPILERS.intersection(children) else 'waiting for a child'}{at}{works}"
    if asleep:
        return ""
    quiet = f"quiet for {span(rank.quiet_ns / 1e9)}" if rank.quiet_ns > QUIET_NS else "reading or writing"
    return f"{'computing' if rank.computes else 'waiting for a disk' if rank.state == 'D' else quiet}{at}"


def preparation(node_evidence: NodeEvidence) -> str:
    """The run's state as a sentence; empty: a step has ended, nobody works, or it is too early to tell."""
    ranks, works = node_evidence.ranks, at_work(node_evidence)
    if node_evidence.alive or not ranks or not works or any(rank.usual_ns for rank in ranks):
        return ""
    idle_s = (node_evidence.now_ns - max(rank.since_ns for rank in ranks)) / 1e9
    if idle_s < UNKNOWN_S:
        return ""
    doing = next(iter(works.values()))
    alike = [rank for rank in works if works[rank] == doing]
    waiting = [rank.rank for rank in ranks if rank.rank not in alike]
    waits = f"{ranks_named(waiting)} wait{'s' * (len(waiting) == 1)}" if waiting else "the run waits"
    which = f"{ranks_named(alike)}, which {'are' if alike[1:] else 'is'} {doing}"
    return f"No step has ended yet: {waits} {span(idle_s)} for {which}"
