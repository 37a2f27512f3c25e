"""Step 4: small anonymous traces of step 1, with their truth beside them, for the repository's own tests."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import truth
from failures import StepError
from place import Place, has_gpu
from results import Result, write_json
from runs import Run, report, required
from scrub import LIMIT_BYTES, STEPS, Scrubbed, leaks, scrubbed, secrets
from step_training import NAMES


def traces(place: Place, result: Result) -> None:
    """Write `work/traces`: one file per run, and truth.json."""
    runs = required(place, NAMES)
    folder = place.work / "traces"
    folder.mkdir(parents=True, exist_ok=True)
    known: dict[str, Any] = {}
    result.numbers["truth"] = known
    with ProcessPoolExecutor() as pool:  # a large trace takes a core for many seconds
        made = {pool.submit(scrubbed, run.trace): run for run in runs}
        for future in as_completed(made):
            run = made[future]
            try:
                known[f"{run.name}.json.gz"] = _one(place, result, run, future.result())
            except (ValueError, OSError, EOFError, StepError, BrokenProcessPool) as error:
                result.broke(f"{run.name}: a small trace", error)
            write_json(folder / "truth.json", known)
    if missing := [name for name in NAMES if name not in {run.name for run in runs}]:
        result.is_partial(f"the runs {', '.join(missing)} are not there")


def _one(place: Place, result: Result, run: Run, made: Scrubbed) -> dict[str, Any]:
    path = place.work / "traces" / f"{run.name}.json.gz"
    path.write_bytes(made.packed)
    left = f", without {', '.join(made.left_out)}" if made.left_out else ""
    said = f"{len(made.packed):,} bytes, {made.steps} steps{left}"
    result.check(f"{run.name}: below {LIMIT_BYTES:,} bytes", len(made.packed) <= LIMIT_BYTES, said)
    found = leaks(made.packed, secrets())
    result.check(f"{run.name}: no path, host or user in it", not found, ", ".join(found) or "none found")
    if made.steps < STEPS:
        result.seen(f"{run.name}: fewer than {STEPS} steps", str(made.steps))
    about = {"recorded_with": _recorded_with(run), "left_out": made.left_out, "steps": made.steps}
    return {**about, **_truth(place, result, run.name, path)}


def _recorded_with(run: Run) -> dict[str, Any]:
    rank = run.summary["training"][0]
    return {key: rank[key] for key in ("device_name", "dtype", "seq_length", "micro_batch_size", "versions")}


def _truth(place: Place, result: Result, name: str, path: Path) -> dict[str, Any]:
    known = truth.truth(truth.read(path))
    if not known["devices"]:
        why = "GPU: a CPU's trace has no kernels to count" if not has_gpu() else "kernels in the trace"
        result.lacks(f"{name}: the report is the truth", why)
        return known
    check_truth(result, name, report(place, path, "--window", "gpu"), known)
    return known


def check_truth(result: Result, name: str, summary: dict[str, Any], known: dict[str, Any]) -> None:
    """Compare every number with the product's report of the same file and window, to the nanosecond."""
    wrong: list[str] = []
    for number, expected in known["devices"].items():
        device: dict[str, Any] = next((d for d in summary["devices"] if str(d["device"]) == number), {})
        wrong += [f"{k} {device.get(k)} for {v}" for k, v in expected.items() if device.get(k) != v]
    said = (
        "; ".join(wrong[:5]) or f"{len(known['devices'])} device, {len(next(iter(known['devices'].values())))} numbers"
    )
    result.check(f"{name}: the report is the truth", not wrong, said)
