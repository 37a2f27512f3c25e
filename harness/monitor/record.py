"""Samples on a schedule that does not drift, into a file that is only appended to.

The loop ends with a signal, or with the process that it watches. SIGKILL loses at most one sample.
"""

from __future__ import annotations

import fcntl
import math
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness.monitor.amd import open_amd
from harness.monitor.network import NETWORK_FILE, NodePorts
from harness.monitor.nvml import open_nvml
from harness.monitor.processes import ProcessSource, ProcessTree, find_process, is_alive
from harness.monitor.samples import (
    ENDED,
    LEADING_COLUMNS,
    META_FILE,
    META_SCHEMA,
    NOTES,
    SAMPLES_FILE,
    STARTS,
    read_meta,
    replace_json,
)
from harness.monitor.source import MonitorError, SampleSource, SampleValue, boot_id

HZ_RANGE = (0.01, 10.0)  # harness/experiment/base.py has the same range


class SampleClock(NamedTuple):
    """The wall clock when the recording began, plus monotonic time, which all processes of a machine share."""

    began_unix_ns: int
    began_monotonic_ns: int

    def unix_ns(self) -> int:
        return self.began_unix_ns + time.monotonic_ns() - self.began_monotonic_ns


def begin_or_go_on(path: Path, about: dict[str, Any]) -> tuple[dict[str, Any], SampleClock]:
    """The description to write to `path`, `about` and what is there already; and the recording's clock.

    Raises:
        MonitorError: the samples there are of other devices.
    """
    before = _before(path)
    clock = _clock(before)
    own = {
        "started_unix_ns": clock.began_unix_ns,
        "started_monotonic_ns": clock.began_monotonic_ns,
        "boot": boot_id(),
        STARTS: [*before.get(STARTS, []), clock.unix_ns()],
        "devices": _together(path, before.get("devices", []), about["devices"]),
    }
    return {**about, **own}, clock


def _before(path: Path) -> dict[str, Any]:
    """What the monitor that died wrote; empty if there was none, or it died too early."""
    try:
        found = read_meta(path)
    except MonitorError:
        return {}
    starts, devices = found.get(STARTS), found.get("devices")
    if not isinstance(starts, list) or not isinstance(devices, list):
        return {}
    return found if all(isinstance(each, dict) and "index" in each for each in devices) else {}


def _clock(before: dict[str, Any]) -> SampleClock:
    unix_ns, monotonic_ns = before.get("started_unix_ns"), before.get("started_monotonic_ns")
    if isinstance(unix_ns, int) and isinstance(monotonic_ns, int) and before.get("boot") == boot_id():
        return SampleClock(unix_ns, monotonic_ns)
    return SampleClock(time.time_ns(), time.monotonic_ns())


def _together(path: Path, before: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The devices of both, by index: one that was lost meanwhile keeps its samples, and its name and UUID."""
    devices = {device["index"]: device for device in before}
    for device in now:
        known = devices.setdefault(device["index"], device)
        if known.get("uuid") is None:
            devices[device["index"]] = device
        elif device.get("uuid") is not None and known["uuid"] != device["uuid"]:
            raise MonitorError(
                f"{path.parent} has samples of another device {device['index']} ({known.get('uuid')}, not "
                f"{device.get('uuid')})"
            )
    return [devices[index] for index in sorted(devices)]


class Stopper:
    """Sleeps until a given time or until a signal."""

    def __init__(self) -> None:
        """TERM, INT and HUP end the recording. USR1 warns the job of its time limit: the monitor ignores it."""
        self._read_fd, write_fd = os.pipe()
        os.set_blocking(write_fd, False)
        signal.set_wakeup_fd(write_fd)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    def wait_until(self, moment_s: float) -> bool:
        """Whether a signal came before `moment_s` on the monotonic clock."""
        ready, _, _ = select.select([self._read_fd], [], [], max(0.0, moment_s - time.monotonic()))
        return bool(ready)


class SampleFile:
    """An append-only CSV, one write per sample: the cost does not grow with the number of samples."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        """Raises MonitorError: another monitor is writing to `path`, or one with other columns has written to it."""
        self._file = path.open("ab", buffering=0)
        try:
            fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise MonitorError(f"another monitor is writing to {path}") from error
        except OSError:
            pass  # a file system without locks: the caller must start only one monitor per folder
        header = ",".join((*LEADING_COLUMNS, *columns)) + "\n"
        if path.stat().st_size == 0:
            self._file.write(header.encode())
            return
        with path.open("rb") as before:
            if before.readline().decode(errors="replace") != header:
                raise MonitorError(f"{path} has samples of another kind of device")
            before.seek(-1, os.SEEK_END)
            if before.read() != b"\n":  # the last monitor was killed within a line
                self._file.write(b"\n")

    def append(self, unix_ns: int, devices: Iterable[int], sample_values: Sequence[Sequence[SampleValue]]) -> None:
        """One line per device, all in one write."""
        pairs = zip(devices, sample_values, strict=True)
        lines = (f"{unix_ns},{device}," + ",".join(map(_cell, row)) + "\n" for device, row in pairs)
        self._file.write("".join(lines).encode())


def _cell(sample_value: SampleValue) -> str:
    if sample_value is None:
        return ""
    return str(sample_value) if isinstance(sample_value, int) else f"{sample_value:.3f}"


def _open_source(tree: ProcessTree) -> tuple[SampleSource, list[str]]:
    """The job's GPUs, else its processes; and why a GPU of the node is not sampled as the job sees it."""
    notes: list[str] = []
    for find in (open_nvml, open_amd):
        source, said = find()
        notes += said
        if source is not None:
            return source, list(said)
    return ProcessSource(tree), notes


def record(out: Path, hz: float, name: str, *, pid: int | None = None, below: int | None = None) -> None:
    """Sample this node into `out` until a signal comes or the watched process has ended: `pid` with its descendants, or
    `below`, of which only the descendants are sampled. name: of the node. A folder with samples of the same devices
    gets more of them.

    Raises:
        MonitorError: the request is wrong.
        OSError: the folder cannot be written.
    """
    low, high = HZ_RANGE
    if not low <= hz <= high:
        raise MonitorError(f"--hz {hz:g}: allowed is {low:g} to {high:g} samples per second")
    period_s = 1 / hz
    stopper = Stopper()
    if below is None:
        assert pid is not None
        tree = ProcessTree(find_process(pid, "--pid"), with_root=True)
    else:  # between it and this process stands whoever starts this one again
        tree = ProcessTree(find_process(below, "--below"), with_root=False, left_out=(os.getppid(),))
    source, notes = _open_source(tree)
    out.mkdir(parents=True, exist_ok=True)
    samples = SampleFile(out / SAMPLES_FILE, source.columns)
    network = NodePorts()
    traffic = SampleFile(out / NETWORK_FILE, network.columns)
    about: dict[str, Any] = {
        "schema": META_SCHEMA,
        "host": name,
        "source": source.kind,
        **source.describe(),
        NOTES: notes,
        "period_ns": round(period_s * 1e9),
        "monitor_pid": os.getpid(),
        "nics": network.describe(),
    }
    indices = [int(device["index"]) for device in about["devices"]]
    meta, clock = begin_or_go_on(out / META_FILE, about)
    replace_json(out / META_FILE, meta)

    def take() -> None:
        samples.append(clock.unix_ns(), indices, source.sample())
        traffic.append(clock.unix_ns(), range(len(network.nics)), network.sample())

    _sample_on_schedule(take, time.monotonic(), period_s, stopper, lambda: is_alive(tree.root))
    replace_json(out / META_FILE, {**meta, ENDED: clock.unix_ns()})


def _sample_on_schedule(
    take: Callable[[], None], start_s: float, period_s: float, stopper: Stopper, going_on: Callable[[], bool]
) -> None:
    """Call `take` at start + k · period; ticks that a slow machine missed are left out."""
    tick = 0
    while going_on():
        take()
        tick = max(tick + 1, math.ceil((time.monotonic() - start_s) / period_s))
        if stopper.wait_until(start_s + tick * period_s):
            if time.monotonic() > start_s + (tick - 0.5) * period_s:
                take()  # the end of the run, unless the time is too short for a rate
            return
