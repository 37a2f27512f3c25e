"""Devices of one process that do not work alike, as if one only gets a copy: their mean says nothing, so an answer is
about those that work longest."""

from __future__ import annotations

from collections import defaultdict

from harness.analysis.process.device import kind_table
from harness.analysis.process.idle import cause_table
from harness.analysis.summary import Device, Summary
from harness.common.display.format import duration

_LEAST_WORK = 0.1  # of the device that works longest
_LEAST_WINDOW = 0.5  # of its window


def of_peers(s: Summary) -> tuple[Summary, str]:
    """The summary with the devices that may be averaged, and a sentence on those that are left out; empty: none is."""
    kept, aside = list[Device](), list[Device]()
    of_process = defaultdict[object, list[Device]](list)
    for device in s.devices:
        of_process[device.source, device.pid].append(device)
    for devices in of_process.values():
        most = max(devices, key=_work_ns)
        alike = [d for d in devices if _work_ns(d) >= _LEAST_WORK * _work_ns(most)]
        alike = [d for d in alike if d.window_ns >= _LEAST_WINDOW * most.window_ns]
        kept += alike
        aside += [d for d in devices if d not in alike]
    if not aside:
        return s, ""
    causes, kinds = defaultdict[str, int](int), defaultdict[tuple[str, str | None], list[int]](lambda: [0, 0])
    for device in kept:
        for cause in device.idle_causes:
            causes[cause.cause] += cause.duration_ns
        for kind in device.kinds:
            kinds[kind.kind, kind.precision][0] += kind.count
            kinds[kind.kind, kind.precision][1] += kind.duration_ns
    table = kind_table([(kind, precision, count, ns) for (kind, precision), (count, ns) in kinds.items()])
    told = {"devices": kept, "idle_causes": cause_table(causes), "kinds": table}
    left = ", ".join(f"device {d.device} works for {duration(_work_ns(d))} of {duration(d.window_ns)}" for d in aside)
    return s.model_copy(update=told), f"Not averaged, because they work less than others of their process: {left}."


def _work_ns(device: Device) -> int:
    return device.compute_ns + (device.exposed_communication_ns or 0) + device.exposed_memory_ns
