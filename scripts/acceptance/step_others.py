"""Step 5: exercises 2 and 3 on one GPU, and exercise 1's further options: they start, train and report."""

from __future__ import annotations

import importlib.util

from failures import StepError
from place import TRAINING, Place, has_gpu, require_packages
from results import Result
from runs import Case, find, launched, sizes
from step_training import figures, sentence
from summary_checks import check_summary

SHORT = ("--skip-steps", "2", "--wait-steps", "1", "--warmup-steps", "1", "--active-steps", "3")
WITH_KINETO = ("--profiler", "torch")


def others(place: Place, result: Result) -> None:
    """Run each case whose framework is installed."""
    require_packages(*TRAINING)
    common = (*sizes(), *SHORT, *WITH_KINETO)
    zero = ("-e", "2", *common, "--mixed-precision")
    _cases(
        place, result, "megatron", [Case("megatron-tp1-pp1", ("-e", "3", *common, "--tp", "1", "--pp", "1", *_batch()))]
    )
    _cases(place, result, "deepspeed", [Case("zero-3", zero), Case("zero-2", (*zero, "--ds-stage2"))])
    result.lacks("ZeRO-Offload", "exercise 2 has no option for it yet")
    if has_gpu():
        _further(place, result, ("-e", "1", *common))
    else:
        result.lacks("exercise 1 in TF32 and fp8, with CUDA's memory", "a GPU: the tests run the rest of it on CPUs")


def _further(place: Place, result: Result, ddp: tuple[str, ...]) -> None:
    """What exercise 1 does differently on a GPU than on a CPU."""
    bf16 = (*ddp, "--mixed-precision")
    _cases(
        place,
        result,
        "torch",
        [
            Case("tf32", (*ddp, "--mixed-precision", "tf32")),
            Case("memory-snapshot", (*bf16, "--memory-snapshot")),
            Case("activation-offload", (*bf16, "--activation-offload")),
        ],
    )
    _cases(place, result, "torchao", [Case("fp8", (*ddp, "--mixed-precision", "fp8"))])
    _cases(place, result, "peft", [Case("lora", (*bf16, "--lora"))])


def _batch() -> tuple[str, ...]:
    """Four micro-batches of one sample: the exercise's own 128 samples take too long here."""
    return ("--micro-batch-size", "1", "--global-batch-size", "4")


def _cases(place: Place, result: Result, framework: str, cases: list[Case]) -> None:
    for case in cases:
        if importlib.util.find_spec(framework) is None:
            result.lacks(case.name, f"the package of {framework} (step inventory names the command)")
        elif place.is_late and find(place, case.name) is None:
            result.is_partial(f"no time left for {case.name}")
        else:
            _one(place, result, case)


def _one(place: Place, result: Result, case: Case) -> None:
    try:
        run = launched(place, case)
    except StepError as error:
        result.broke(f"{case.name} trains", error)
        return
    numbers = figures(run.summary)
    result.numbers[case.name] = numbers
    result.check(f"{case.name} trains", True, sentence(numbers))
    check_summary(result, case.name, run.summary)
