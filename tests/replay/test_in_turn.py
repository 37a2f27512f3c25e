"""Ranks on GPUs that wait for each other in turn, and a wait in a single step: what a step loses is simulated too."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_jobs.conservation import broken_promises

from harness.analysis.summary import TimeLost
from harness.replay.measure.hits import in_steps
from harness.traces.trace import Trace
from tests.replay.replaying import replayed, summary_of
from tests.synthetic.columns import MAIN, Made
from tests.synthetic.simulated import COMM_STREAM, MS, US, GpuJob

MICRO_BATCHES, STEPS, WORK, SEND = 2, 5, 2 * MS, 100 * US
SLOT = WORK + SEND  # from one micro-batch's message to the next one's
STEP = (MICRO_BATCHES + 1) * 2 * SLOT - SEND + 390 * US


def _first(lost: list[TimeLost]) -> TimeLost:
    """The largest; all products of these jobs are in fp32."""
    return next(found for found in lost if found.cause != "fp32")


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_have_more_work_in_turn_lose_what_they_wait_for_each_other(ranks: int) -> None:
    uneven = GpuJob(ranks=ranks, steps=8, heavier={(step % ranks, step): 3.0 for step in range(8)})
    mean = 1 + 2 / ranks
    even = GpuJob(ranks=ranks, steps=8, heavier={(r, s): mean for r in range(ranks) for s in range(8)})
    summary = summary_of(uneven.traces())
    first = _first(summary.findings)
    assert (first.cause, first.ranks, first.standing) == ("imbalance", list(range(ranks)), True)
    assert first.lost_ns == pytest.approx(uneven.mean_step_ns() - even.mean_step_ns(), rel=0.1)
    assert not broken_promises(summary)


def test_a_rank_that_always_has_more_work_leaves_nothing_to_wait_for_in_turn() -> None:
    for job in (GpuJob(), GpuJob(factor={1: 2.0}), GpuJob(late={(1, step): 8 * MS for step in range(6)})):
        assert "imbalance" not in [found.cause for found in replayed(job.traces())[1]]


def test_stages_that_only_send_and_receive_lose_the_bubble() -> None:
    """Two stages, two micro-batches and no range that names them: each stage works 4 of 6 slots."""
    replay, lost = replayed([_stage(0), _stage(1)])
    first = _first(lost)
    assert (first.cause, first.ranks) == ("bubble", [0, 1])
    assert first.lost_ns == pytest.approx(2 * SLOT, rel=0.1)
    assert replay.unknown_ns == 0


def _stage(rank: int) -> Trace:
    """All micro-batches forward, then all backward; the other stage's slots are those in which a receive waits."""
    made = Made(rank=rank, world_size=2, path=f"stage{rank}.json", host="node", clock="unix")
    for step in range(STEPS):
        first = 100 * MS + step * STEP
        begin = first - rank * SLOT  # the last stage ends its steps first
        free, called = begin + 20 * US, begin
        forward = [first + 20 * US + (i + rank) * SLOT for i in range(MICRO_BATCHES)]
        backward = [first + 20 * US + (MICRO_BATCHES + 2 - rank + i) * SLOT for i in range(MICRO_BATCHES)]
        for number, at in enumerate([*forward, *backward]):
            receives = (number < MICRO_BATCHES) == (rank == 1)
            if receives:
                called = _message(made, "recv", called, free, at)
            made.call(called, called + 5 * US, "cudaLaunchKernel")
            made.event(at + 2 * US, at + WORK, launch_ns=called, launch_thread=MAIN)
            called, free = called + 10 * US, at + WORK + 2 * US
            if not receives:
                called = _message(made, "send", called, free, at + SLOT)
        made.call(called, called + 5 * US, "cudaLaunchKernel")
        made.event(free, free + 350 * US, launch_ns=called, launch_thread=MAIN)
        made.call(called + 10 * US, begin + STEP - 10 * US, "cudaDeviceSynchronize")
        made.step(begin, begin + STEP, step)
    return made.trace()


def _message(made: Made, kind: str, called: int, start: int, end: int) -> int:
    """A message's kernel, which begins when its stage is ready and ends with the other one's."""
    made.call(called, called + 5 * US, "cudaLaunchKernelExC")
    made.collective(start, end, kind, size=1 << 20, peer=1 - int(made.identity["rank"]))
    stream = COMM_STREAM + (kind == "send")
    made.events[-1] |= {"stream": stream, "launch_ns": called, "launch_thread": MAIN}
    return called + 10 * US


def test_a_long_wait_in_a_single_step_is_told_because_the_device_was_seen_without_work() -> None:
    summary = summary_of(GpuJob(steps=6, late={(rank, 3): 20 * MS for rank in (0, 1)}).traces())
    first = _first(summary.findings)
    assert first.cause == "host-stall" and "in 1 of 6 steps" in first.evidence
    assert first.lost_ns == pytest.approx(20 * MS / 5, rel=0.25)
    assert not broken_promises(summary)


@pytest.mark.parametrize(
    ("each_ms", "said"),
    [
        ([10, 0, 4, 10, 1, 0], "10.0 ms in 2 of 6 steps"),
        ([10, 0, 6, 10, 1, 0], ""),
        ([29] * 19 + [222], "38.6 ms in 20 of 20 steps"),  # one long step is not most of it
        ([0, 30] * 9 + [0, 200], "47.0 ms in 10 of 20 steps"),
    ],
)
def test_steps_are_named_only_if_every_other_one_loses_less_than_half_as_much(each_ms: list[int], said: str) -> None:
    by_step = np.array(each_ms) * MS
    assert in_steps(by_step, by_step == by_step.max()) == said
