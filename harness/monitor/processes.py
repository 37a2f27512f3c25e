"""Without a GPU: CPU time and memory (PSS) of the job's processes and of the whole machine."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness.common.system import processes
from harness.common.system.processes import RunningProcess
from harness.common.system.programs import usable_cores
from harness.monitor.source import MonitorError, SampleValue, boot_id

# The kernel walks all pages of a process for its PSS: 13 ms a GiB of 4-KiB pages were measured. Reading may take this
# share of one core; between two readings of a process, its PSS changes as its RSS does.
_SHARE = 1 / 100
# An unused share may be made up for: so all processes of a small job are read in each sample.
_BURST_S = 1.0
# A process that begins or ends changes the PSS of others: a fork that of its parent. Then they are read in advance.
_AHEAD_S = 10.0
_PSS = re.compile(rb"^Pss: +(\d+) kB", re.MULTILINE)

# A scan for new processes reads the whole process table. It may take this share of one core: the longer a scan takes,
# the rarer it is, so that the monitor costs no more on a login node with thousands of processes.
_SCAN_SHARE = 1 / 250
_LONGEST_BETWEEN_SCANS_S = 10.0
_IDLE = (3, 4)  # columns of a machine's ticks: idle, waits for a disk


class PssMeter:
    """Sums the PSS of processes, with a bounded cost at each call."""

    def __init__(self) -> None:
        self._offsets: dict[RunningProcess, float] = {}  # last read PSS less the estimate of that moment
        self._next_s = 0.0

    def sum_bytes(self, resident: Mapping[RunningProcess, tuple[int, int]]) -> int:
        """Bytes of these processes together. resident: RSS and, of it, pages of files and of shared memory, bytes."""
        # Without its PSS, a process's part of what it may share is taken as if it shared that with all others.
        estimates = {each: rss - shared + shared / len(resident) for each, (rss, shared) in resident.items()}
        new = [each for each in resident if each not in self._offsets]
        oldest_first = [each for each in self._offsets if each in resident]
        ahead_s = _AHEAD_S if new or len(oldest_first) < len(self._offsets) else 0.0
        for process in [*new, *oldest_first]:
            if time.monotonic() + ahead_s < self._next_s:
                break
            self._read(process, estimates[process])
        self._offsets = {each: offset for each, offset in self._offsets.items() if each in resident}
        return round(sum(max(0.0, size + self._offsets.get(each, 0.0)) for each, size in estimates.items()))

    def _read(self, process: RunningProcess, estimate: float) -> None:
        before_s = time.thread_time()
        pss_bytes = read_pss(process.pid)
        cost_s = time.thread_time() - before_s
        self._next_s = max(self._next_s, time.monotonic() - _BURST_S) + cost_s / _SHARE
        self._offsets.pop(process, None)  # it moves to the end
        self._offsets[process] = 0.0 if pss_bytes is None else pss_bytes - estimate


def read_pss(pid: int) -> int | None:
    """The process's PSS, bytes; None if it cannot be read: Linux before 4.14, another user's process."""
    try:
        found = _PSS.search(Path(f"/proc/{pid}/smaps_rollup").read_bytes())
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def find_process(pid: int, flag: str) -> RunningProcess:
    """The process with this id, which `flag` gave. Raises MonitorError: there is none."""
    if (process := processes.process_of(pid)) is None:
        raise MonitorError(f"{flag} {pid}: there is no such process")
    return process


def is_alive(process: RunningProcess) -> bool:
    """Whether it still runs: it has not ended, is not a zombie, and its id is not another process's now."""
    return processes.process_of(process.pid) == process and processes.lives(process.pid)


class ProcessTree:
    """The job's processes: all below the root and, on request, the root; never this process, nor those left out."""

    def __init__(self, root: RunningProcess, with_root: bool, left_out: Iterable[int] = ()) -> None:
        self.root = root
        self._left_out = {os.getpid(), *left_out}
        self._with_root = with_root
        self._members: set[RunningProcess] = set()
        self._next_scan_s = 0.0

    def members(self) -> set[RunningProcess]:
        """The processes found by the last scan. New ones may appear late on machines with a long process table."""
        if time.monotonic() >= self._next_scan_s:
            before_s = time.process_time()  # CPU time, so that the job's load does not make the scans rarer
            self._members = self._scan()
            cost_s = time.process_time() - before_s
            self._next_scan_s = time.monotonic() + min(cost_s / _SCAN_SHARE, _LONGEST_BETWEEN_SCANS_S)
        return self._members

    def _scan(self) -> set[RunningProcess]:
        known = processes.everyone()
        root, found = self.root, {self.root} if self._with_root else set[RunningProcess]()
        if root.pid in known and known[root.pid].started == root.started:  # else its children are no longer the job's
            found |= {RunningProcess(pid, known[pid].started) for pid in processes.descendants(root.pid, known)}
        return {process for process in found if process.pid not in self._left_out}


class ProcessUse(NamedTuple):
    """What a process has used. cpu_s: since its start."""

    cpu_s: float
    resident: tuple[int, int]


def use_of(process: RunningProcess) -> ProcessUse | None:
    """None: it has ended."""
    stat, resident = processes.stat_of(process.pid), processes.resident(process.pid)
    if stat is None or resident is None or stat.started != process.started:
        return None
    return ProcessUse(stat.own_cpu_ns / 1e9, resident)


def _machine_percent(before: Sequence[int], now: Sequence[int]) -> float | None:
    """How much of all cores was used between two counts of ticks; a column that went back counts as 0."""
    spent = [max(0, later - earlier) for earlier, later in zip(before, now, strict=True)]
    whole = sum(spent)
    return round(100 * (whole - sum(spent[at] for at in _IDLE)) / whole, 1) if whole else 0.0


class ProcessSource:
    """The job as one device. 100 % is all CPUs that this process may use."""

    kind = "processes"
    columns = (
        "utilization_percent",
        "memory_used_bytes",
        "processes",
        "machine_utilization_percent",
        "machine_memory_used_bytes",
    )

    def __init__(self, tree: ProcessTree) -> None:
        self._tree = tree
        self._cpus = usable_cores()
        self._cpu_s: dict[RunningProcess, float] = {}
        self._pss = PssMeter()
        self._last_s: float | None = None  # monotonic
        self._last_since_boot_s = processes.since_boot_s()
        self._machine_ticks = processes.core_ticks().get("cpu", [])

    def describe(self) -> Mapping[str, Any]:
        """The job as a single device."""
        name = f"job on {self._cpus} CPUs"
        return {
            "driver": None,
            "devices": [{"index": 0, "name": name, "uuid": None, "memory_total_bytes": None}],
            "cpus": self._cpus,
            "machine_cpus": os.cpu_count(),
            "machine": boot_id(),
            "machine_memory_bytes": processes.memory_in_use()[0],
            "power": None,
        }

    def sample(self) -> Sequence[Sequence[SampleValue]]:
        """One row; utilisation is over the time since the previous row, and unknown in the first."""
        members = self._tree.members()  # takes time, so the clock is read after it, with the CPU times
        now_s = time.monotonic()
        spent_s, pss_bytes, count = self._measure(members)
        utilization = machine = None
        ticks_before, self._machine_ticks = self._machine_ticks, processes.core_ticks().get("cpu", [])
        if self._last_s is not None and now_s > self._last_s:
            utilization = 100 * spent_s / (now_s - self._last_s) / self._cpus
            machine = _machine_percent(ticks_before, self._machine_ticks)
        self._last_s = now_s
        return [(utilization, pss_bytes, count, machine, processes.memory_in_use()[1])]

    def _measure(self, members: Iterable[RunningProcess]) -> tuple[float, int, int]:
        """CPU seconds since the last call, bytes of memory (a shared page once), number of processes."""
        spent_s = 0.0
        resident: dict[RunningProcess, tuple[int, int]] = {}
        cpu_s: dict[RunningProcess, float] = {}
        for process in members:
            if (use := use_of(process)) is not None:
                resident[process] = use.resident
                cpu_s[process] = use.cpu_s
                spent_s += use.cpu_s - self._before(process, use.cpu_s)
        self._cpu_s, self._last_since_boot_s = cpu_s, processes.since_boot_s()
        return spent_s, self._pss.sum_bytes(resident), len(cpu_s)

    def _before(self, process: RunningProcess, now_s: float) -> float:
        """CPU seconds up to the last call: 0 for a younger process; all of them for an older one that is found late."""
        if process in self._cpu_s:
            return self._cpu_s[process]
        return 0.0 if processes.started_s(process) >= self._last_since_boot_s - 0.02 else now_s
