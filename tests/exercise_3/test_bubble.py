"""The pipeline's bubble is the one that theory predicts: (p−1)/(m+p−1) for p stages and m micro-batches."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.exercise_3.megatron_runs import Run, Span, completed, train

TOLERANCE = 0.05
ATTEMPTS = 6
ENOUGH = 2  # of the iterations: stages that run one after the other never reach it
WINDOW = ("--skip", 0, "--wait", 0, "--warmup", 1, "--active", 3, "--profiler", "torch")


def bubble(work: list[list[Span]]) -> float:
    """Idle share of the stages' time, from the first work of any stage to the last; one list of work per stage."""
    begin = min(span.start for stage in work for span in stage)
    end = max(span.end for stage in work for span in stage)
    busy = sum(span.end - span.start for stage in work for span in stage)
    return 1 - busy / (len(work) * (end - begin))


def test_bubble_of_a_schedule_drawn_by_hand() -> None:
    def work(*begins: float) -> list[Span]:
        return [Span("work", begin, begin + 1, thread=0) for begin in begins]

    assert bubble([work(0, 1), work(1, 2)]) == pytest.approx(1 / 3)
    assert bubble([work(0, 1), work(0, 1)]) == 0


def measured_bubbles(run: Run, stages: int = 2) -> list[float]:
    """Of each recorded iteration."""
    iterations = zip(*(run.spans(rank, "iteration_") for rank in range(stages)), strict=True)
    return [
        bubble([[s for s in run.spans(rank) if " mb" in s.name and own.holds(s)] for rank, own in enumerate(each)])
        for each in iterations
    ]


@pytest.mark.train
@pytest.mark.timed
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two stages at the same time need two cores")
@pytest.mark.parametrize("microbatches", [2, *(pytest.param(each, marks=pytest.mark.long) for each in (4, 8))])
def test_measured_bubble_is_the_predicted_one(tmp_path: Path, microbatches: int) -> None:
    expected = 1 / (microbatches + 1)
    seen: list[float] = []
    for attempt in range(ATTEMPTS):  # other work on this machine can delay a stage: then a second attempt
        flags = ("--pp", 2, "--global-batch-size", microbatches, *WINDOW)
        folder = tmp_path / f"attempt{attempt}"
        run = completed(train(folder, *flags, model="tiny-mistral-deep", first=True))
        seen += measured_bubbles(run)
        if sum(abs(found - expected) <= TOLERANCE for found in seen) >= ENOUGH:
            return
    pytest.fail(f"bubbles {seen}, expected {expected:.3f} ± {TOLERANCE}")
