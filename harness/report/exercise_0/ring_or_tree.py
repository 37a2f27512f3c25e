"""Ring or tree: what the α-β model prefers for the all-reduces that exercise 0 measured. Not what NCCL chose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.common.display.format import amount, binary_size, duration
from harness.report.exercise_0.results import MeasuredCollective
from harness.theory.ring_or_tree import Hop, hop_of_ring

HEAD = ("scope", "ranks", "message", "ring", "tree", "measured", "faster")
TITLE = "All-reduce as a ring and as a tree"
_NOTE = (
    "The line of the all-reduce is taken for a ring's, and the tree is computed from it. It is a model: --nccl-debug "
    "keeps NCCL's own choice."
)
_SHOWN = 3  # sizes of each scope: the smallest, one between, the largest


def _modelled(results: Sequence[MeasuredCollective]) -> list[tuple[MeasuredCollective, Hop]]:
    """The all-reduces with a line, each with the hop that its line gives if it is a ring; between two ranks there is
    nothing to choose."""
    found = [(r, r.line) for r in results if r.collective == "all_reduce" and r.ranks > 2 and r.points]
    return [(r, hop_of_ring(f.alpha_ns, f.beta_ns_per_byte, r.ranks)) for r, f in found if f]


def rows(results: Sequence[MeasuredCollective]) -> list[tuple[str, ...]]:
    """Per scope some of the measured sizes: the model's times, the measured one, and which of the two is faster."""
    return [row for result, hop in _modelled(results) for row in _rows(result, hop)]


def _rows(result: MeasuredCollective, hop: Hop) -> Iterator[tuple[str, ...]]:
    points, ranks = result.points, result.ranks
    for at in sorted({i * (len(points) - 1) // (_SHOWN - 1) for i in range(_SHOWN)}):
        size = points[at].message_bytes
        ring, tree = hop.ring_ns(ranks, size), hop.tree_ns(ranks, size)
        faster = "ring" if ring < tree else "tree" if tree < ring else "equal"
        times = (duration(ring), duration(tree), duration(points[at].time_ns))
        yield result.scope, str(ranks), binary_size(size), *times, faster


def answers(results: Sequence[MeasuredCollective]) -> str:
    """At which size the two cross in each scope, in words; empty without an all-reduce that has a line."""
    said = [f"{r.scope}, {r.ranks} ranks: {_preferred(hop.tree_up_to_bytes(r.ranks))}" for r, hop in _modelled(results)]
    return f"Ring or tree, by the α-β model: {'; '.join(said)}. {_NOTE}" if said else ""


def _preferred(border: float) -> str:
    return f"the tree up to {amount(border)}, the ring above" if border >= 1 else "the ring at every size"
