"""Jobs whose ranks' steps are known: replicated with noise, some nodes slower."""

from __future__ import annotations

import numpy as np

from harness.analysis.job.pacing import pacing
from harness.analysis.process.part import RankPart, StepsPart
from harness.analysis.summary import Pacing, TraceSource, Window
from harness.traces.trace import F64

STEP_NS = 100_000_000


def part(rank: int, took_ns: F64, per_node: int = 4, **steps: list[int]) -> RankPart:
    durations = took_ns.round().astype(np.int64)
    found = {"numbers": list(range(len(durations))), "own_ns": durations.tolist()}
    return RankPart(
        source=TraceSource(path=f"rank{rank}.json", tool="kineto", rank=rank, host=f"node{rank // per_node}"),
        window=Window.STEPS,
        steps=StepsPart(
            source="ProfilerStep",
            found=len(durations),
            warmup=0,
            cut_off=0,
            empty=0,
            durations_ns=durations.tolist(),
            **{**found, **steps},
        ),
        window_start_ns=0,
        window_end_ns=int(durations.sum()),
        epoch_ns=1_700_000_000_000_000_000,
        events=0,
    )


def job(
    nodes: int, steps: int, slow: dict[int, float] | None = None, noise: float = 0.03, per_node: int = 4
) -> list[RankPart]:
    random = np.random.default_rng(7)
    return [
        part(
            rank,
            STEP_NS * (1 + (slow or {}).get(rank // per_node, 0.0)) * (1 + noise * random.standard_normal(steps)),
            per_node,
        )
        for rank in range(nodes * per_node)
    ]


def paced(parts: list[RankPart], switches: dict[str, str] | None = None) -> Pacing:
    found = pacing(parts, switches)
    assert found is not None
    return found
