"""What the whole job achieved: throughput, model FLOPs as a share of the devices' peak, what profiling cost."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from harness.analysis.summary import Efficiency, ProfilerCost, RankTraining
from harness.common.precision import PRECISION_OF
from harness.theory.devices import peak_flops_per_s

FEWEST_STEPS = 3  # of which a median is compared
RECOMPUTED = 4 / 3  # a second forward pass: 8 FLOPs per parameter and token in place of 6


def efficiency(training: Sequence[RankTraining], recomputes: bool = False) -> Efficiency | None:
    """The job's throughput: every rank's tokens over the slowest rank's time. None without counted steps.

    `recomputes`: the backward pass runs the forward again (activation checkpointing), which HFU counts and MFU
    does not. The peak is the one measured on the device where the training says it, else the device table's.
    Source: Chowdhery et al., PaLM, 2022, appendix B.
    """
    seconds = max((sum(t.step_durations_ns) for t in training), default=0) / 1e9
    if not seconds:
        return None
    tokens, samples = (sum(getattr(t, f) or 0 for t in training) for f in ("tokens", "samples"))
    per_token = training[0].flops_per_token
    flops = tokens / seconds * per_token / len(training) if tokens and per_token else None
    peak = _peak(training[0])
    mfu = flops / peak[0] if flops is not None and peak is not None else None
    return Efficiency(
        tokens_per_s=tokens / seconds if tokens else None,
        samples_per_s=samples / seconds if samples else None,
        step_ns=round(median(t.median_step_ns for t in training if t.median_step_ns is not None)),
        model_flops_per_s_per_device=flops,
        peak_flops_per_s=peak[0] if peak else None,
        peak_source=peak[1] if peak else None,
        mfu=mfu,
        hfu=mfu * RECOMPUTED if mfu is not None and recomputes else None,
    )


def profiler_cost(training: Sequence[RankTraining]) -> ProfilerCost | None:
    """The profiled steps against the other steps of the same ranks; None: too few of either, or none was profiled."""
    both = [
        (t.median_step_ns, t.median_unprofiled_step_ns)
        for t in training
        if t.phase_counted == "active" and min(t.steps_counted, t.unprofiled_steps) >= FEWEST_STEPS
    ]
    times = [(inside, outside) for inside, outside in both if inside and outside]
    if not times:
        return None
    inside_ns, outside_ns = (round(median(column)) for column in zip(*times, strict=True))
    return ProfilerCost(
        profiled_step_ns=inside_ns, unprofiled_step_ns=outside_ns, ratio=inside_ns / outside_ns
    )


def _peak(training: RankTraining) -> tuple[float, str] | None:
    if training.peak_flops_per_s:  # a file that was changed may say 0
        return training.peak_flops_per_s, "measured on the device"
    precision = PRECISION_OF.get((training.dtype or "").removeprefix("torch."))
    if training.device_name is None or precision is None:
        return None
    return peak_flops_per_s(training.device_name, precision)
