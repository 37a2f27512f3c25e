"""Step 3: check the report of each run of step 1: what must always hold, and what the run shall show."""

from __future__ import annotations

from typing import Any

from numbers_text import first, percent, scaled
from place import Place, has_gpu
from results import Result
from runs import Run, answer, required
from step_training import LARGER, NAMES
from summary_checks import check_precision, check_summary


def reports(place: Place, result: Result) -> None:
    """Check every completed run, then the pairs of runs."""
    runs = {run.name: run for run in required(place, [*NAMES, LARGER])}
    for name, run in runs.items():
        check_summary(result, name, run.summary)
        check_precision(result, name, run.summary, "fp32" if name == "fp32" else "bf16")
        _device(result, name, run.summary)
        result.seen(f"{name}: the answer", sentences(answer(place, run.path)))
        result.numbers[name] = _figures(run.summary)
    _data(result, runs)
    _checkpointing(result, runs)
    missing = [name for name in NAMES if name not in runs]
    if missing:
        result.is_partial(f"the runs {', '.join(missing)} are not there")


def sentences(report: str) -> str:
    """The report's answer in one line, without its last block, which names the page and the command for more."""
    return " ".join(report.rpartition("\n\n")[0].split()) or report


def _figures(summary: dict[str, Any]) -> dict[str, Any]:
    return {
        "kinds": summary["kinds"],
        "idle_causes": summary["idle_causes"],
        "unclassified": summary["unclassified"][:10],
        "quality": summary["quality"],
        "copies": summary["copies"],
        "kernels": summary["kernels"][:15],
    }


def _device(result: Result, name: str, summary: dict[str, Any]) -> None:
    kinds = {device["device_kind"] for device in summary["devices"]}
    if not has_gpu():
        result.lacks(f"{name}: the device is a GPU", "GPU")
        return
    result.check(f"{name}: the device is a GPU", kinds == {"gpu"}, ", ".join(sorted(kinds)) or "no device")


def _data(result: Result, runs: dict[str, Run]) -> None:
    """Waiting for data is the first cause of idle time with slow loading, and no cause without it."""
    if "slow-data" not in runs or "bf16" not in runs:
        return
    slow, usual = (_share(runs[name].summary, "data loading") for name in ("slow-data", "bf16"))
    said = f"{percent(slow)} of the window with slow loading, {percent(usual)} without"
    result.check("waiting for data is seen where it is slow", slow > 2 * usual, said)


def _share(summary: dict[str, Any], cause: str) -> float:
    window = sum(device["window_ns"] for device in summary["devices"])
    named = sum(c["duration_ns"] for c in summary["idle_causes"] if c["cause"] == cause)
    return named / window if window else 0.0


def _checkpointing(result: Result, runs: dict[str, Run]) -> None:
    """Activation checkpointing needs less memory, and its HFU counts the recomputed FLOPs."""
    if "checkpointing" not in runs or "bf16" not in runs:
        return
    peaks = [first(runs[n].summary["training"]).get("peak_memory_bytes") for n in ("checkpointing", "bf16")]
    said = f"{scaled(peaks[0], 'B')} with checkpointing, {scaled(peaks[1], 'B')} without"
    if not has_gpu():
        result.lacks("checkpointing saves memory", f"GPU: a CPU's process holds more than activations ({said})")
        return
    result.check("checkpointing saves memory", (peaks[0] or 0) < (peaks[1] or 0), said)
    job = runs["checkpointing"].summary["efficiency"] or {}
    said = f"MFU {percent(job.get('mfu'))}, HFU {percent(job.get('hfu'))}"
    result.check("HFU is above MFU with checkpointing", (job.get("hfu") or 0) > (job.get("mfu") or 0), said)
