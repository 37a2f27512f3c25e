"""How long a step takes: its FLOPs at a share of the device's peak, and its messages if they take longer."""

from __future__ import annotations

from typing import NamedTuple

from harness.launch.job import Job
from harness.study.plan.capacity import device_name
from harness.study.plan.history import EarlierRun
from harness.study.plan.workload import Workload
from harness.theory.devices import peak_flops_per_s
from harness.theory.flops import RECOMPUTED, USUAL_MFU, flops_per_token, step_seconds
from harness.theory.pipeline import expected_bubble

AROUND_ONE_RUN = 1.1  # a single earlier run says as much, up and down


class Speed(NamedTuple):
    """Model FLOP/s of one device, the slowest and the fastest that are expected, and why. peak: None: not known."""

    low: float
    high: float
    peak: float | None
    source: str
    earlier: bool


def expected_speed(job: Job, w: Workload, earlier: list[EarlierRun]) -> Speed | str:
    """The range of the site's own runs if there are some, else the usual share of the peak; else why not."""
    name = device_name(job) if w.device == "cuda" else None
    peak = peak_flops_per_s(name, w.precision) if name else None
    if earlier:
        rates = [each.flops_per_s_per_device for each in earlier]
        around = AROUND_ONE_RUN if len(rates) == 1 else 1.0
        runs = ", ".join(each.job_id for each in earlier)
        text = f"measured in {len(rates)} earlier run{'s' * (len(rates) > 1)} of this model here: {runs}"
        return Speed(min(rates) / around, max(rates) * around, peak[0] if peak else None, text, True)
    if peak is None:
        return _no_peak(w, name)
    usual = USUAL_MFU[w.precision]
    again = RECOMPUTED if w.checkpointing else 1.0
    slower = 1.0 if w.layout.pp == 1 else 1.0 - bubble(w)
    text = f"MFU {usual.low:.0%} to {usual.high:.0%} of {peak[0] / 1e12:g} TFLOP/s, {peak[1]}; {usual.source}"
    return Speed(
        usual.low * peak[0] / again * slower, usual.high * peak[0] / again * slower, peak[0], text, False
    )


def _no_peak(w: Workload, name: str | None) -> str:
    if w.device == "cpu":
        return (
            "no peak of these CPU cores is known, and no earlier run of this model here: its report will say"
        )
    if name is None:
        return "the site does not say what GPUs it has (gpus.name), so no peak is known"
    return f"configs/devices.yaml has no {w.precision} peak for {name!r}"


def bubble(w: Workload) -> float:
    """Idle share of the pipeline's schedule."""
    return expected_bubble(w.layout.pp, w.micro_batches, w.layout.vpp)


def flops_per_step(w: Workload) -> float:
    """Model FLOPs of all ranks in one step of the loop."""
    return flops_per_token(w.model, w.seq_length, w.lora).total * w.tokens_per_step


def compute_range_ns(w: Workload, speed: Speed) -> tuple[float, float]:
    """(shortest, longest) time of a step's FLOPs."""
    flops = flops_per_step(w)
    return tuple(1e9 * step_seconds(flops, w.ranks, rate, 1.0) for rate in (speed.high, speed.low))  # type: ignore[return-value]  # two
