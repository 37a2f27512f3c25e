"""Simulated jobs of which some ranks were recorded without a world size, and jobs with one large message: what the
report says of their ranks and messages, beside what is true."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpu_jobs.cases import STEPS, healthy
from gpu_jobs.faults import FAULTS, Planted
from gpu_jobs.judge import Jobs, message_of, summaries_of, summary_of
from gpu_jobs.kineto_file import write_kineto
from gpu_jobs.program import Recording
from gpu_jobs.simulate import mean_step_ns, run, run_step_ns

SKEW_NS = 1_700_000  # of the second node's clock
_LATER_NS = 7_000_000_000  # of another run


@dataclass(frozen=True)
class PartsResult:
    """jobs: how many it was told as. world_size, ranks: of the first. planted, late: the rank with the planted fault,
    and those of the finding of its cause, whose loss is told_ns, and own_ns in the simulation."""

    jobs: int
    world_size: int | None
    ranks: tuple[int, ...]
    planted: int
    late: tuple[int | None, ...]
    told_ns: float
    own_ns: float


def _late(seed: int, ranks: int) -> Planted:
    """A data-parallel training in which one rank's host does more between the steps."""
    rng = random.Random(f"{seed} parts {ranks}")
    base = replace(healthy(rng, "ddp", "host"), ranks=ranks, stacks=True, ranges=True, steps=STEPS, item_every=0)
    return FAULTS["late-rank"].apply(base, rng, round(rng.uniform(0.3, 0.6) * run_step_ns(base)))


def judge_some(seed: int, *, later: bool = False) -> PartsResult:
    """The late rank of eight and one of the other node, each in a file that does not name the world size. later: the
    two files are of two runs of the same program, some seconds apart."""
    planted = _late(seed, 8)
    recordings = run(planted.training)
    late = planted.ranks[0]
    with tempfile.TemporaryDirectory() as folder:
        for rank in (late, (late + 4) % 8):
            path = Path(folder) / f"rank{rank}.json"
            skew = _LATER_NS if later else SKEW_NS
            write_kineto(recordings[rank], 8, path, python=True, skew_ns=skew, named=False)
        return _result(planted, recordings, summaries_of(Path(folder)))


Message = tuple[str, int | None, int | None, str | None, float, bool]


def judge_message(seed: int, tool: str = "kineto") -> tuple[Message, Message]:
    """The largest message as it is told, and as it is: kind, bytes, ranks, range, its time in a step, and whether it is
    a single one."""
    rng = random.Random(f"{seed} message")
    base = replace(healthy(rng, "ddp", "device", 2), ranges=True, steps=STEPS)
    planted = FAULTS["one-large-message"].apply(base, rng, round(rng.uniform(0.4, 0.9) * run_step_ns(base)))
    t = planted.training
    recordings = run(t)
    sent = [work.message for work, _ in recordings[0].work if work.message is not None]
    ns = sum(message.ns for message in sent if message.kind == "all_gather") / t.steps
    told = message_of(summary_of(recordings, tool, python=t.stacks))
    return told, ("all_gather", t.logits_bytes, t.ranks, "lm_head", ns, True)


def _result(planted: Planted, recordings: Sequence[Recording], found: Jobs) -> PartsResult:
    first = found[0]
    told = next((one for one in first.findings if one.cause in planted.causes), None)
    own_ns = mean_step_ns([*recordings]) - run_step_ns(planted.without(planted.training))
    return PartsResult(
        len(found),
        first.world_size,
        tuple(first.ranks),
        planted.ranks[0],
        tuple(told.ranks) if told else (),
        float(told.lost_ns) if told else 0.0,
        own_ns,
    )
