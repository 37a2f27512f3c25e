"""Exercises 2 and 3 on one GPU, and exercise 1's further options: they start, train and report."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tests.gpu.claims import Claim, of_each_report
from tests.gpu.work import Run, Work, figures, needs

pytestmark = pytest.mark.gpu
KINETO = (
    *("--skip-steps", "2", "--wait-steps", "1", "--warmup-steps", "1", "--active-steps", "3"),
    *("--profiler", "torch"),
)
# Four micro-batches of one sample: the exercise's own 128 samples take too long here.
FOUR_SAMPLES = ("--micro-batch-size", "1", "--global-batch-size", "4")


class Case(NamedTuple):
    """A launch, and the package of its framework."""

    framework: str
    words: tuple[str, ...]
    on_cpu: bool = False  # exercise 1 differs from a CPU's in these: the other tests run the rest of it


CASES = {
    "megatron-tp1-pp1": Case("megatron", ("-e", "3", *KINETO, "--tp", "1", "--pp", "1", *FOUR_SAMPLES), on_cpu=True),
    "zero-3": Case("deepspeed", ("-e", "2", *KINETO, "--mixed-precision"), on_cpu=True),
    "zero-2": Case("deepspeed", ("-e", "2", *KINETO, "--mixed-precision", "--ds-stage2"), on_cpu=True),
    "tf32": Case("torch", ("-e", "1", *KINETO, "--mixed-precision", "tf32")),
    "memory-snapshot": Case("torch", ("-e", "1", *KINETO, "--mixed-precision", "--memory-snapshot")),
    "activation-offload": Case("torch", ("-e", "1", *KINETO, "--mixed-precision", "--activation-offload")),
    "fp8": Case("torchao", ("-e", "1", *KINETO, "--mixed-precision", "fp8")),
    "lora": Case("peft", ("-e", "1", *KINETO, "--mixed-precision", "--lora")),
}


@pytest.fixture(scope="session", params=CASES)
def run(request: pytest.FixtureRequest, work: Work) -> Run:
    case = CASES[request.param]
    if not case.on_cpu:
        request.getfixturevalue("gpu")
    needs(case.framework)
    return work.launched(request.param, *case.words)


def test_it_trains(run: Run, record_property: Any) -> None:
    record_property("run", figures(run.summary))
    assert figures(run.summary)["step_ns"] > 0


@of_each_report
def test_its_report(run: Run, claim: Claim) -> None:
    claim(run.summary)
