"""Without a GPU: CPU time, memory (PSS) and energy (RAPL) of the job's processes and of the whole machine."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from harness.common.programs import usable_cores
from harness.monitor.source import MonitorError, SampleValue, boot_id

# The kernel walks all pages of a process for its PSS: 13 ms a GiB of 4-KiB pages were measured. Reading may take this
# share of one core; between two readings of a process, its PSS changes as its RSS does.
_SHARE = 1 / 100
# An unused share may be made up for: so all processes of a small job are read in each sample.
_BURST_S = 1.0
# A process that begins or ends changes the PSS of others: a fork that of its parent. Then they are read in advance.
_AHEAD_S = 10.0
_PSS = re.compile(rb"^Pss: +(\d+) kB", re.MULTILINE)


class PssMeter:
    """Sums the PSS of processes, with a bounded cost at each call."""

    def __init__(self) -> None:
        self._offsets: dict[psutil.Process, float] = {}  # last read PSS less the estimate of that moment
        self._next_s = 0.0

    def sum_bytes(self, resident: Mapping[psutil.Process, tuple[int, int]]) -> int:
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

    def _read(self, process: psutil.Process, estimate: float) -> None:
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


POWERCAP = Path("/sys/class/powercap")


class _Package:
    """One counter in microjoules, which starts again from 0 at a maximum that the kernel gives."""

    def __init__(self, folder: Path) -> None:
        self._counter = folder / "energy_uj"
        self._range_uj = int((folder / "max_energy_range_uj").read_text())
        self._last_uj = int(self._counter.read_text())
        self._total_uj = self._last_uj  # as the counter says: so a monitor that is started again goes on from it

    def advance(self) -> int:
        """Microjoules since the counter last began at 0 before this object was made."""
        now_uj = int(self._counter.read_text())
        step_uj = now_uj - self._last_uj
        self._total_uj += step_uj if step_uj >= 0 else step_uj + self._range_uj
        self._last_uj = now_uj
        return self._total_uj


@dataclass
class Rapl:
    """The sum of all packages. The energy is the machine's, not the job's."""

    packages: list[_Package]

    def energy_joules(self) -> float | None:
        """Joules since some moment before the start, or None if a counter cannot be read any more."""
        try:
            return sum(package.advance() for package in self.packages) / 1e6
        except (OSError, ValueError):
            return None


def open_rapl(powercap: Path = POWERCAP) -> Rapl | None:
    """The machine's packages; None if there are none or only root may read them.

    Only the top level counts (`intel-rapl:0`, on AMD too): cores and DRAM are parts of it, and it is a part of `psys`.
    """
    packages = []
    for folder in sorted(powercap.glob("intel-rapl:[0-9]*")):
        try:
            if folder.name.count(":") == 1 and (folder / "name").read_text().startswith("package"):
                packages.append(_Package(folder))
        except (OSError, ValueError):
            continue
    return Rapl(packages) if packages else None


# A scan for new processes reads the whole process table. It may take this share of one core: the longer a scan takes,
# the rarer it is, so that the monitor costs no more on a login node with thousands of processes.
_SCAN_SHARE = 1 / 250
_LONGEST_BETWEEN_SCANS_S = 10.0


def find_processes(pids: Sequence[int], flag: str = "--pid") -> list[psutil.Process]:
    """Processes with these ids, which `flag` gave. Raises MonitorError: one of them does not exist."""
    found = []
    for pid in pids:
        try:
            found.append(psutil.Process(pid))
        except (psutil.NoSuchProcess, psutil.AccessDenied, OverflowError, ValueError) as error:
            raise MonitorError(f"{flag} {pid}: there is no such process") from error
    return found


def is_alive(process: psutil.Process) -> bool:
    """Whether it still runs: it has not ended, is not a zombie, and its id is not another process's now."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class ProcessTree:
    """The job's processes: all below the roots and, on request, the roots; never this process, nor those left out."""

    def __init__(self, roots: Sequence[psutil.Process], with_roots: bool, left_out: Iterable[int] = ()) -> None:
        self._roots = roots
        self._left_out = {os.getpid(), *left_out}
        self._with_roots = with_roots
        self._members: set[psutil.Process] = set()
        self._next_scan_s = 0.0

    @property
    def root_pids(self) -> list[int]:
        return [root.pid for root in self._roots]

    def members(self) -> set[psutil.Process]:
        """The processes found by the last scan. New ones may appear late on machines with a long process table."""
        if time.monotonic() >= self._next_scan_s:
            before_s = time.process_time()  # CPU time, so that the job's load does not make the scans rarer
            self._members = self._scan()
            cost_s = time.process_time() - before_s
            self._next_scan_s = time.monotonic() + min(cost_s / _SCAN_SHARE, _LONGEST_BETWEEN_SCANS_S)
        return self._members

    def _scan(self) -> set[psutil.Process]:
        found: set[psutil.Process] = set(self._roots) if self._with_roots else set()
        for root in self._roots:
            try:
                found.update(root.children(recursive=True))
            except psutil.NoSuchProcess:
                continue  # it has ended; its children are below another root or are no longer the job's
        return {process for process in found if process.pid not in self._left_out}


class ProcessSource:
    """The job as one device. 100 % is all CPUs that this process may use."""

    kind = "processes"
    columns = (
        "utilization_percent",
        "memory_used_bytes",
        "processes",
        "machine_utilization_percent",
        "machine_memory_used_bytes",
        "power_watts",
        "energy_joules",
    )

    def __init__(self, tree: ProcessTree, rapl: Rapl | None) -> None:
        self._tree = tree
        self._rapl = rapl
        self._cpus = usable_cores()
        self._cpu_s: dict[psutil.Process, float] = {}
        self._pss = PssMeter()
        self._last: tuple[float, float | None] | None = None  # monotonic seconds, joules
        self._last_unix_s = time.time()
        psutil.cpu_percent(interval=None)  # the first value has no meaning: discard it now

    def describe(self) -> Mapping[str, Any]:
        """The job as a single device."""
        name = f"job on {self._cpus} CPUs"
        return {
            "driver": None,
            "devices": [{"index": 0, "name": name, "uuid": None, "memory_total_bytes": None}],
            "cpus": self._cpus,
            "machine_cpus": psutil.cpu_count(),
            "machine": boot_id(),
            "machine_memory_bytes": psutil.virtual_memory().total,
            "power": "RAPL, the machine's CPU packages" if self._rapl else None,
        }

    def sample(self) -> Sequence[Sequence[SampleValue]]:
        """One row; utilisation and power are over the time since the previous row, and unknown in the first."""
        processes = self._tree.members()  # takes time, so the clock is read after it, with the CPU times
        now_s, joules = time.monotonic(), self._rapl.energy_joules() if self._rapl else None
        spent_s, pss_bytes, count = self._measure(processes)
        utilization = watts = machine = None
        machine_now = psutil.cpu_percent(interval=None)
        if self._last and (elapsed_s := now_s - self._last[0]) > 0:
            utilization, machine = 100 * spent_s / elapsed_s / self._cpus, machine_now
            if joules is not None and self._last[1] is not None:
                watts = (joules - self._last[1]) / elapsed_s
        self._last = (now_s, joules)
        memory = psutil.virtual_memory()
        return [(utilization, pss_bytes, count, machine, memory.total - memory.available, watts, joules)]

    def _measure(self, processes: Iterable[psutil.Process]) -> tuple[float, int, int]:
        """CPU seconds since the last call, bytes of memory (a shared page once), number of processes."""
        spent_s = 0.0
        resident: dict[psutil.Process, tuple[int, int]] = {}
        cpu_s: dict[psutil.Process, float] = {}
        for process in processes:
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    memory = process.memory_info()
                    resident[process] = memory.rss, getattr(memory, "shared", 0)  # Linux only
                    cpu_s[process] = times.user + times.system
                    spent_s += cpu_s[process] - self._before(process, cpu_s[process])
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        self._cpu_s, self._last_unix_s = cpu_s, time.time()
        return spent_s, self._pss.sum_bytes(resident), len(cpu_s)

    def _before(self, process: psutil.Process, now_s: float) -> float:
        """CPU seconds up to the last call: 0 for a younger process; all of them for an older one that is found late."""
        if process in self._cpu_s:
            return self._cpu_s[process]
        return 0.0 if process.create_time() >= self._last_unix_s - 0.02 else now_s
