"""How well the devices were used, as POP defines it, by FLOPs, and what the profiler cost: the fields, and of each of
POP's efficiencies its words for tables, comparisons and sweeps."""

from __future__ import annotations

from dataclasses import dataclass

from harness.analysis.summary.base import SummaryPart
from harness.analysis.summary.replay import NO_REPLAY


class ProfilerCost(SummaryPart, kw_only=True):
    """How much longer the profiled steps take than the other steps of the same run, by the training's own clock and
    without waits for a core, which other programs cause. From a ratio of 1.15 on, what the profiler adds to a step is
    subtracted from the loss to small operators. On CPUs it is the part that lies between operators
    (`TimeLost.profiler_fraction`), at any ratio above 1. The interval of the loss then includes the same part of
    1.96 · 5 % of a step, by which two parts of a run may differ ([measured](development/diagnosis.md)). The loss is not
    told if less than 3 % of the step is left. Nothing is subtracted from other numbers, because the profiler adds time
    to operators and calls, and stalls and waits hold few of them. The answer says the ratio from 1.15 on, or if it
    subtracts something."""

    profiled_step_ns: int
    """Median of the ranks' `median_step_on_core_ns`."""
    unprofiled_step_ns: int
    """Median of the ranks' `median_unprofiled_step_on_core_ns`."""
    ratio: float
    """Profiled step / unprofiled step."""


class ProfilerOverhead(SummaryPart, kw_only=True):
    """The profiler's own work beside a process, as the profiler recorded it: filling and writing its buffers
    (`PROFILER_OVERHEAD` and CUPTI's overhead in nsys, `overhead` in torch.profiler). It is only a part of what
    profiling costs, because the time that it adds to each operator and call is not recorded."""

    rank: int | None = None
    """Of the process."""
    window_ns: int
    """The window of its devices."""
    overhead_ns: int
    """Time in the window in which the profiler worked."""


class Efficiency(SummaryPart, kw_only=True):
    """What the job achieved, all ranks together."""

    tokens_per_s: float | None = None
    """Every rank's tokens / the slowest rank's time."""
    samples_per_s: float | None = None
    """The same for samples."""
    step_ns: int | None = None
    """Median of the ranks' median steps."""
    model_flops_per_s_per_device: float | None = None
    """Tokens per second × FLOPs per token / ranks."""
    peak_flops_per_s: float | None = None
    """Of one device at the training's precision, dense. With `float8` that of fp8, although attention and the
    output are in bf16."""
    peak_source: str | None = None
    """Measured on the device (not for `float8`), or configs/devices.yaml. A device in neither has no peak."""
    mfu: float | None = None
    """Model FLOP/s per device / peak."""
    hfu: float | None = None
    """MFU × 4/3 if activations are checkpointed (the forward runs twice: 8 FLOPs per parameter and token in place
    of 6). Null if nothing is recomputed."""


class PopEfficiency(SummaryPart, kw_only=True):
    """The hierarchy of the POP Centre of Excellence, with TALP's orchestration efficiency for devices, over the counted
    steps. Uᵢ is the useful time of device i: its compute (on a CPU: its operators; Python between operators is not
    useful). Collectives, and waiting in them, are never useful. Aᵢ = Uᵢ + exposed communication + exposed copies is the
    active time of device i. E is the longest device's time. Each efficiency is a share from 0 to 1, and exactly

        parallel = load balance × communication × orchestration        communication = serialisation × transfer

    The times are those of the devices' windows in `devices`. If ranks counted different steps (another warm-up), they
    are those of the steps that all counted. Devices without a kernel do not count. Withheld if a rank was not read, the
    recording has holes, CUDA graphs hide communication, ranks share no counted step, or nothing was computed.
    Sources: POP standard metrics (co-design.pop-coe.eu/metrics); DLB's TALP, `src/talp/perf_metrics.c`, `gpu_*`;
    [what differs from them](development/decisions/010-pop-efficiency.md).

    **A series.** `compare` of runs with different numbers of devices shows these side by side. Each is compared with
    the run of fewest devices: computation scalability = Σ U per step and unit of work of that run / the same of this
    run, and global efficiency = parallel efficiency × computation scalability.
    Work is the tokens, else the samples, of a step (in strong scaling the same in every run, so that the ratio is
    that of Σ U). Both may exceed 1, for example if smaller matrices fit into a cache. Not known if the training did
    not record its tokens or samples."""

    devices: int
    """N."""
    steps: int
    """Counted steps of each device; 0 if the window is not one of steps."""
    elapsed_ns: int
    """E, the largest window of a device."""
    useful_ns: int
    """Σ Uᵢ."""
    max_useful_ns: int
    """max Uᵢ."""
    max_active_ns: int
    """max Aᵢ."""
    parallel: float
    """Σ Uᵢ / (N · E)."""
    load_balance: float
    """Σ Uᵢ / (N · max Uᵢ)."""
    communication: float
    """max Uᵢ / max Aᵢ."""
    orchestration: float
    """max Aᵢ / E: the share that is not lost to the host, launches and data loading."""
    ideal_elapsed_ns: int | None = None
    """E of a replay of the same steps with a network of zero latency and infinite bandwidth. Null without a replay."""
    serialisation: float | None = None
    """`communication` / `transfer`: the loss is the time in which devices wait for each other."""
    transfer: float | None = None
    """`ideal_elapsed_ns` / E: the loss is the time in which data move."""
    split_unknown: str | None = NO_REPLAY
    """Why `transfer` and `serialisation` are null: no replay; the replay takes longer than the run did; or an ideal
    network also saves idle time, and `serialisation` would exceed 1."""


@dataclass(frozen=True)
class EfficiencyFactor:
    """An efficiency. depth: below how many efficiencies it is a factor. of_what: of what it is a share. limit: what it
    costs time by, if it is low."""

    field: str
    depth: int
    label: str
    of_what: str = ""
    limit: str = ""

    @property
    def metric(self) -> str:
        """Its name for compare and --fail-if."""
        return self.field if self.field == "load_balance" else f"{self.field}_efficiency"

    def indented(self, indent: str) -> str:
        """Its label, indented below the efficiency of which it is a factor."""
        return indent * self.depth + self.label

    @property
    def in_series(self) -> str:
        """Its label where not all numbers are efficiencies."""
        return self.label if self.depth else f"{self.label} (POP)"


# The fields of PopEfficiency, each below the one of which it is a factor.
POP_FACTORS = (
    EfficiencyFactor("parallel", 0, "parallel efficiency", "mean compute of the devices / elapsed time"),
    EfficiencyFactor(
        "load_balance",
        1,
        "load balance",
        "mean compute of the devices / largest compute of a device",
        "unequal work of the devices",
    ),
    EfficiencyFactor(
        "communication",
        1,
        "communication efficiency",
        "largest compute of a device / largest active time of a device",
        "communication that no computation hides",
    ),
    EfficiencyFactor(
        "serialisation",
        2,
        "serialisation",
        "the part that remains after waiting for other ranks",
        "ranks that wait for each other",
    ),
    EfficiencyFactor(
        "transfer", 2, "transfer", "elapsed time with an ideal network / elapsed time", "the time to send the messages"
    ),
    EfficiencyFactor(
        "orchestration",
        1,
        "orchestration efficiency",
        "largest active time of a device / elapsed time",
        "devices that wait for their host (launches, data, Python)",
    ),
)
# Those of a run among others, as analysis/scaling.py computes them.
SERIES_FACTORS = (
    EfficiencyFactor(
        "computation_scalability",
        1,
        "computation scalability",
        limit="more computing time for the same work (smaller pieces, or shared cores)",
    ),
    EfficiencyFactor("global_efficiency", 0, "global efficiency"),
)
