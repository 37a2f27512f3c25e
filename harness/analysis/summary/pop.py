"""How well the devices were used, in the hierarchy of POP and TALP. Fields only; no measurement."""

from __future__ import annotations

from harness.analysis.summary.base import SummaryPart

NO_REPLAY = "the time of the same steps with an ideal network was not replayed"


class PopEfficiency(SummaryPart):
    """The hierarchy of the POP Centre of Excellence, with TALP's orchestration efficiency for devices, over the counted
    steps. Uᵢ is the useful time of device i: its compute (on a CPU: its operators; Python between operators is not
    useful). Collectives, and waiting in them, are never useful. Aᵢ = Uᵢ + exposed communication + exposed copies is the
    active time of device i. E is the longest device's time. Each efficiency is a share from 0 to 1, and exactly

        parallel = load balance × communication × orchestration        communication = serialisation × transfer

    The times are those of the devices' windows in `devices`. If ranks counted different steps (another warm-up), they
    are those of the steps that all counted. Devices without a kernel do not count. Withheld if a rank was not read, the
    recording has holes, CUDA graphs hide communication, ranks share no counted step, or nothing was computed.
    Sources: POP standard metrics (co-design.pop-coe.eu/metrics); DLB's TALP, `src/talp/perf_metrics.c`, `gpu_*`;
    [what differs from them](decisions/010-pop-efficiency.md).

    **A series.** `compare` and `report` of several runs show these side by side. If the runs have different numbers
    of devices, each is compared with the run of fewest devices: computation scalability = Σ U per step and unit of
    work of that run / the same of this run, and global efficiency = parallel efficiency × computation scalability.
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
