"""Step 1: exercise 1 with Kineto, as students run it: five runs, their step, speed, MFU and HFU."""

from __future__ import annotations

import json
from statistics import median
from typing import Any

from failures import StepError
from numbers_text import first, ms, percent, scaled
from place import TRAINING, Place, has_gpu, require_packages
from results import Result
from runs import WINDOW, Case, Run, find, launched, sizes

GOAL_MFU = 0.5
ACCUMULATED = ("--gradient-accumulation-steps", "16")
# The accumulation's own window: 16 batches, so that one optimizer step is recorded.
LONG = ("--skip-steps", "15", "--wait-steps", "0", "--warmup-steps", "1", "--active-steps", "16")
NAMES = ("fp32", "bf16", "bf16-gas16", "slow-data", "checkpointing")
LARGER = "bf16-large-batch"


def cases() -> list[Case]:
    """The five cases; all but `fp32` in bf16, so that each differs from `bf16` in one thing."""
    common = ("-e", "1", *sizes(), "--profiler", "torch")
    bf16 = (*common, "--mixed-precision")
    return [
        Case("fp32", (*common, *WINDOW)),
        Case("bf16", (*bf16, *WINDOW)),
        Case("bf16-gas16", (*bf16, *LONG, *ACCUMULATED)),
        Case("slow-data", (*bf16, *WINDOW, "--slow-dataloading")),
        Case("checkpointing", (*bf16, *WINDOW, "--activation-checkpointing")),
    ]


def larger() -> Case:
    """The case to try where bf16 is below the goal: four times the micro-batch in the same optimizer step."""
    words = ("-e", "1", *sizes(), "--profiler", "torch", "--mixed-precision", *WINDOW)
    return Case(LARGER, (*words, "--micro-batch-size", "16"))


def training(place: Place, result: Result) -> None:
    """Run the missing cases until the time is over, and write their numbers."""
    require_packages(*TRAINING)
    found = {case.name: run for case in cases() if (run := _tried(place, result, case))}
    if not has_gpu():
        result.lacks("goal: bf16 MFU ≥ 50 %", "a GPU: the peak of a CPU is not measured")
    elif "bf16" in found:
        _goal(place, result, found["bf16"])


def _tried(place: Place, result: Result, case: Case) -> Run | None:
    if place.is_late and find(place, case.name) is None:
        result.is_partial(f"no time left for {case.name}")
        return None
    try:
        run = launched(place, case)
    except StepError as error:
        result.broke(f"{case.name} trains", error)
        return None
    numbers = figures(run.summary) | {"unprofiled_step_ns": unprofiled_step_ns(run)}
    result.numbers[case.name] = numbers
    result.check(f"{case.name} trains", True, sentence(numbers))
    return run


def figures(summary: dict[str, Any]) -> dict[str, Any]:
    """The numbers of one run for this step."""
    job, rank = summary.get("efficiency") or {}, first(summary.get("training"))
    return {
        "step_ns": job.get("step_ns"),
        "tokens_per_s": job.get("tokens_per_s"),
        "peak_flops_per_s": job.get("peak_flops_per_s"),
        "peak_source": job.get("peak_source"),
        "mfu": job.get("mfu"),
        "hfu": job.get("hfu"),
        "peak_memory_bytes": rank.get("peak_memory_bytes"),
        "device_name": rank.get("device_name"),
        "dtype": rank.get("dtype"),
        "first_loss": rank.get("first_loss"),
        "last_loss": rank.get("last_loss"),
        "versions": rank.get("versions"),
    }


def unprofiled_step_ns(run: Run) -> float | None:
    """The median step before the profiler is set up, without the first two; the difference is the cost of profiling."""
    path = run.path / "metrics" / "rank0.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    steps = [line["step_ns"] for line in lines if line.get("event") == "step" and line["phase"] == "skip"]
    return median(steps[2:]) if len(steps) > 2 else None


def sentence(numbers: dict[str, Any]) -> str:
    """The numbers in one line."""
    alone = numbers.get("unprofiled_step_ns")
    step = f"step {ms(numbers['step_ns'])}" + (f" ({ms(alone)} unprofiled)" if alone else "")
    parts = [step, scaled(numbers["tokens_per_s"], "tokens/s")]
    if numbers["mfu"] is not None:
        peak = scaled(numbers["peak_flops_per_s"], "FLOP/s")
        parts.append(f"MFU {percent(numbers['mfu'])} of {peak} ({numbers['peak_source']})")
    if numbers["hfu"] is not None:
        parts.append(f"HFU {percent(numbers['hfu'])}")
    return ", ".join([*parts, f"peak memory {scaled(numbers['peak_memory_bytes'], 'B')}"])


def _goal(place: Place, result: Result, run: Run) -> None:
    mfu = figures(run.summary)["mfu"]
    name = "goal: bf16 MFU ≥ 50 %"
    if mfu is None:
        result.check(name, False, "no MFU was given")
        return
    if mfu >= GOAL_MFU:
        result.check(name, True, percent(mfu))
        return
    tried = _tried(place, result, larger())
    better = figures(tried.summary)["mfu"] if tried else None
    said = f"{percent(mfu)} with the model file's micro-batch; {percent(better)} with a micro-batch of 16"
    result.check(name, (better or 0) >= GOAL_MFU, said)
