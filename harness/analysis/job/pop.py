"""The efficiencies of POP and TALP from the devices' times. Knows neither traces nor a replay: `with_ideal_network`
takes the one number that a replay adds.

Sources: POP standard metrics (co-design.pop-coe.eu/metrics): parallel, load balance, communication, serialisation and
transfer efficiency; TALP's hierarchy of devices (DLB, src/talp/perf_metrics.c, gpu_*), which adds orchestration.
docs/decisions/010-pop-efficiency.md says where this differs from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from harness.analysis.summary import Device, PopEfficiency, TimeSplit, Window, Withheld

FIELD = "pop"


@dataclass(frozen=True)
class Times:
    """One device over the steps that count; useful <= active <= elapsed."""

    useful_ns: int
    active_ns: int
    elapsed_ns: int


def pop_efficiency(
    devices: Sequence[Device], window: Window, missing: str
) -> tuple[PopEfficiency | None, list[Withheld]]:
    """The efficiencies of a job's devices, else the reason why there are none; without devices neither.

    Useful is compute; active adds exposed communication and exposed copies; elapsed is the longest device's time, as
    TALP takes the longest process's. Devices without a kernel are not counted. `missing`: the ranks that were not read,
    in words; empty when all were.
    """
    working = [d for d in devices if d.kernels]
    if not working:
        return None, []
    shared = _shared_steps(working) if window is Window.STEPS else []
    times = _times(working, shared)
    if reason := missing or _obstacle(working, shared, times):
        return None, [Withheld(field=FIELD, reason=reason)]
    return from_times(times, len(shared or ())), []


def _obstacle(devices: Sequence[Device], shared: list[str] | None, times: Sequence[Times]) -> str:
    """Why the efficiencies of these devices would mislead; empty: they do not."""
    if any(d.exposed_communication_ns is None for d in devices):
        return "what a device communicates inside CUDA graphs counts as compute"
    if any(d.idle_ns is None for d in devices):
        return "the recording of a device has holes"
    if shared is None:
        return "the ranks did not count the same steps"
    if not any(t.useful_ns for t in times):
        return "no device computed anything"
    return ""


def _shared_steps(devices: Sequence[Device]) -> list[str] | None:
    """The names of the steps that every device counted, in order; None: the devices share no step, or a name is not
    unique. Devices without steps share their whole windows, which is an empty list."""
    names = [[step.step for step in d.steps] for d in devices]
    if all(own == names[0] for own in names):
        return names[0]
    common = set(names[0]).intersection(*names)
    unique = all(len(own) == len({*own}) for own in names)
    return [name for name in names[0] if name in common] if common and unique else None


def _times(devices: Sequence[Device], shared: list[str] | None) -> list[Times]:
    """Each device's times: of its whole window, or, where devices counted other steps, of the shared steps alone."""
    if not shared or all(len(d.steps) == len(shared) for d in devices):
        return [_sum([d]) for d in devices]
    return [_sum([s for s in d.steps if s.step in shared]) for d in devices]


def _sum(splits: Sequence[TimeSplit]) -> Times:
    useful = sum(s.compute_ns for s in splits)
    exposed = sum((s.exposed_communication_ns or 0) + s.exposed_memory_ns for s in splits)
    return Times(useful, useful + exposed, sum(s.window_ns for s in splits))


def from_times(times: Sequence[Times], steps: int) -> PopEfficiency:
    """The efficiencies of at least one device that computed."""
    useful, most = sum(t.useful_ns for t in times), max(t.useful_ns for t in times)
    active, elapsed = max(t.active_ns for t in times), max(t.elapsed_ns for t in times)
    return PopEfficiency(
        devices=len(times),
        steps=steps,
        elapsed_ns=elapsed,
        useful_ns=useful,
        max_useful_ns=most,
        max_active_ns=active,
        parallel=useful / (elapsed * len(times)),
        load_balance=useful / (most * len(times)),
        communication=most / active,
        orchestration=active / elapsed,
    )


def with_ideal_network(efficiency: PopEfficiency, ideal_elapsed_ns: int) -> PopEfficiency:
    """The efficiencies with `serialisation` and `transfer`, from the elapsed time that a replay of the same steps gives
    for a network of zero latency and infinite bandwidth: transfer = ideal elapsed / elapsed.

    Both stay None, with the reason in `split_unknown`, where one of them would exceed 1: the replay takes longer than
    the run did, or it also saves idle time, which is no part of communication efficiency.
    """
    e = efficiency
    reason = ""
    if ideal_elapsed_ns > e.elapsed_ns:
        reason = "with an ideal network the replay takes longer than the run did: it is not exact enough"
    elif Fraction(ideal_elapsed_ns, e.elapsed_ns) < Fraction(e.max_useful_ns, e.max_active_ns):
        reason = "an ideal network also saves idle time, which is no part of communication efficiency"
    if reason:
        unknown = {"serialisation": None, "transfer": None, "split_unknown": reason}
        return e.model_copy(update={**unknown, "ideal_elapsed_ns": ideal_elapsed_ns})
    transfer = ideal_elapsed_ns / e.elapsed_ns
    serialisation = (e.max_useful_ns * e.elapsed_ns) / (e.max_active_ns * ideal_elapsed_ns)
    known = {"serialisation": serialisation, "transfer": transfer, "split_unknown": None}
    return e.model_copy(update={**known, "ideal_elapsed_ns": ideal_elapsed_ns})
