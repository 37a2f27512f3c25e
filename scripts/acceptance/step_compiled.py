"""Step 6: CUDA graphs, torch.compile and FP8 in loops of our own: are the reports of them true?"""

from __future__ import annotations

import truth
from failures import StepError
from numbers_text import ms, percent
from place import LAUNCHER, Place, has_gpu, require_packages
from recorded import Recorded, recorded
from results import Result
from runs import report
from step_traces import check_truth
from summary_checks import check_summary, precisions

ON_CPU = ("eager",)
CASES = ("eager", "graphs", "compile", "fp8")
SECONDS = {"compile": 90.0}


def compiled(place: Place, result: Result) -> None:
    """Record each case and compare its report with the file."""
    require_packages("torch", *LAUNCHER)
    for case in CASES:
        if not has_gpu() and case not in ON_CPU:
            result.lacks(case, "GPU")
            continue
        if place.is_late:
            result.is_partial(f"no time left for {case}")
            continue
        try:
            _one(place, result, case, recorded(place, case, SECONDS.get(case, 45.0)))
        except StepError as error:
            result.broke(f"{case}: runs and is reported", error)
    result.numbers["transformer_engine"] = _te(result)


def _one(place: Place, result: Result, case: str, run: Recorded) -> None:
    said = f"step {ms(run.unrecorded_ns)}, {ms(run.recorded_ns)} recorded"
    result.check(f"{case}: runs and is reported", True, said)
    check_summary(result, case, run.summary)
    found = precisions(run.summary)
    result.numbers[case] = {
        "unrecorded_ns": run.unrecorded_ns,
        "recorded_ns": run.recorded_ns,
        "precisions_ns": found,
        "kinds": run.summary["kinds"],
        "kernels": run.summary["kernels"][:15],
    }
    if case == "fp8" and has_gpu():
        share = found.get("fp8", 0) / max(sum(found.values()), 1)
        result.check("fp8: its products are called fp8", share > 0.9, f"{percent(share)} of product time")
    _against_the_file(place, result, case, run)


def _against_the_file(place: Place, result: Result, case: str, run: Recorded) -> None:
    known = truth.truth(truth.read(run.trace))
    if not known["devices"]:
        result.lacks(f"{case}: the report is the truth", "GPU: a CPU's trace has no kernels to count")
        return
    whole = report(place, run.trace, "--window", "gpu")
    check_truth(result, case, whole, known)
    ours = sum(kernel["duration_ns"] for kernel in whole["kernels"])
    theirs = known["kernels"]["duration_ns"]
    said = f"{ms(ours)} in the report's table, {ms(theirs)} in the file ({known['kernels']['count']} kernels)"
    result.check(f"{case}: sum of kernels", ours == theirs, said)


def _te(result: Result) -> bool:
    """Whether FP8 can be tried here as students will use it."""
    try:
        require_packages("transformer_engine")
    except Exception as error:  # noqa: BLE001 - a broken installation may raise anything
        result.lacks("fp8 by Transformer Engine", str(error))
        return False
    result.seen("fp8 by Transformer Engine", "is installed; this step records PyTorch's own FP8 products")
    return True
