"""The recording: what it writes, when it ends, and which samples remain when it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.common.system.processes import TICK_NS, RunningProcess, process_of, since_boot_s
from harness.monitor import processes
from harness.monitor import record as recording
from harness.monitor.amd import AmdSource
from harness.monitor.network import NodePorts
from harness.monitor.nvml import NvmlSource
from harness.monitor.record import SampleFile
from harness.monitor.samples import COLUMNS, LEADING_COLUMNS, read
from harness.monitor.source import MonitorError
from harness.monitor.summary import summarize
from tests.monitor.conftest import BUSY, Start, Write, recorder, samples_of, start_workload, wait_for_samples
from tests.waiting import limit_s

NO_PROCESS = 2**22 + 1
HERE = RunningProcess(os.getpid(), 0)


def test_sees_memory_and_cpu_of_what_a_process_has_started(tmp_path: Path, start: Start) -> None:
    """A busy process and its 64 MiB sibling; utilisation is unknown in the first sample rather than zero."""
    workloads = [start_workload(start), start_workload(start, BUSY)]
    monitor = recorder(start, tmp_path)
    wait_for_samples(tmp_path, 6)
    monitor.send_signal(signal.SIGUSR1)  # the time limit's warning does not end it
    wait_for_samples(tmp_path, 9)
    monitor.terminate()
    assert monitor.wait(limit_s()) == 0
    assert all(workload.poll() is None for workload in workloads)
    found = read(samples_of(tmp_path))
    (device,), numbers = found.devices, summarize(found).devices[0]
    assert (found.source, found.host) == ("processes", "node7")
    assert numbers.peak_memory_bytes and numbers.peak_memory_bytes > 64 * 2**20
    # How much of a core the busy one gets depends on what else runs here.
    assert numbers.mean_utilization_percent and 0 < numbers.mean_utilization_percent <= 110
    assert min(count for _, count in device.points("processes")) >= 2
    assert len(device.points("utilization_percent")) == len(device.unix_ns) - 1


def test_ends_when_the_watched_training_is_killed_even_before_it_is_reaped(tmp_path: Path, start: Start) -> None:
    workload = start_workload(start)
    monitor = recorder(start, tmp_path, "--pid", workload.pid)
    wait_for_samples(tmp_path, 1)
    os.kill(workload.pid, signal.SIGKILL)  # from now on a zombie: its parent does not wait for it
    assert monitor.wait(limit_s()) == 0
    assert {count for _, count in read(samples_of(tmp_path)).devices[0].points("processes")} == {1.0}


RATE = "allowed is 0.01 to 10 samples per second"
REFUSALS: dict[tuple[str | int, ...], str] = {
    **{("--below", os.getpid(), "--hz", hz): f"--hz {hz}: {RATE}" for hz in ("0", "11", "nan", "inf")},
    **{(flag, NO_PROCESS): f"{flag} {NO_PROCESS}: there is no such process" for flag in ("--pid", "--below")},
}


@pytest.mark.parametrize(("words", "sentence"), REFUSALS.items(), ids=REFUSALS.values())
def test_a_wrong_request_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, start: Start, words: tuple[str | int, ...], sentence: str
) -> None:
    monitor = recorder(start, tmp_path / "run", *words)
    _, errors = monitor.communicate(timeout=limit_s())
    assert (monitor.returncode, errors) == (2, f"monitor: {sentence}\n")
    assert not (tmp_path / "run").exists()


def test_a_folder_is_of_one_monitor_and_one_kind_of_device_and_a_full_disk_is_said(
    tmp_path: Path, start: Start
) -> None:
    file = SampleFile(tmp_path / "samples.csv", ["power_watts"])
    with pytest.raises(MonitorError, match="another monitor is writing"):
        SampleFile(tmp_path / "samples.csv", ["power_watts"])
    del file
    with pytest.raises(MonitorError, match="another kind of device"):
        SampleFile(tmp_path / "samples.csv", ["processes"])
    samples_of(tmp_path).mkdir(parents=True)
    (samples_of(tmp_path) / "samples.csv").symlink_to("/dev/full")
    monitor = recorder(start, tmp_path)
    _, errors = monitor.communicate(timeout=limit_s())
    assert (monitor.returncode, errors) == (1, "monitor: the samples: No space left on device\n")


def test_a_line_that_was_cut_off_costs_no_sample_but_its_own(write_samples: Write) -> None:
    folder = write_samples(["power_watts"], [[1.0], [2.0]])
    with (folder / "samples.csv").open("a") as samples:
        samples.write("17000,0")
    SampleFile(folder / "samples.csv", ["power_watts"]).append(2 * 10**18, [0], [[3.0]])
    found = read(folder)
    assert found.damaged_rows == 1
    assert [watts for _, watts in found.devices[0].points("power_watts")] == [1.0, 2.0, 3.0]


# ---- what it costs, and what counts


@pytest.mark.parametrize(("cost_s", "between_s"), [(0.002, 1), (0.02, 5), (1.0, 20)])
def test_the_dearer_a_look_for_new_processes_the_rarer_and_load_does_not_count(
    monkeypatch: pytest.MonkeyPatch, cost_s: float, between_s: float
) -> None:
    """On a machine where everything takes ten times as long."""
    clock, scans_s = SimpleNamespace(now_s=0.0), list[float]()
    clock.monotonic, clock.process_time = lambda: clock.now_s, lambda: len(scans_s) * cost_s
    monkeypatch.setattr(processes, "time", clock)
    tree = processes.ProcessTree(HERE, with_root=True)

    def scan() -> set[RunningProcess]:
        scans_s.append(clock.now_s)
        clock.now_s += 10 * cost_s
        return set()

    monkeypatch.setattr(tree, "_scan", scan)
    for _ in range(600):
        tree.members()
        clock.now_s += 0.1
    gaps = {round(later - earlier, 1) for earlier, later in pairwise(scans_s)}
    assert gaps and between_s / 2 <= min(gaps) <= max(gaps) <= between_s + 0.6


def test_what_is_shared_is_read_so_often_that_it_takes_a_hundredth_of_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """60 processes of 50 ms each, sampled each second: 36 s of an hour, in which each has its turn."""
    clock = SimpleNamespace(spent_s=0.0, now_s=0.0)
    clock.monotonic, clock.thread_time = lambda: clock.now_s, lambda: clock.spent_s

    def read_pss(_pid: int) -> int:
        clock.spent_s += 0.05
        return 1

    monkeypatch.setattr(processes, "time", clock)
    monkeypatch.setattr(processes, "read_pss", read_pss)
    job: dict[Any, tuple[int, int]] = {RunningProcess(pid, 0): (2, 1) for pid in range(60)}
    meter = processes.PssMeter()
    for second in range(3600):
        clock.now_s = float(second)
        job_bytes = meter.sum_bytes(job)
    assert 35 < clock.spent_s < 37
    assert job_bytes == 60


def worked(monkeypatch: pytest.MonkeyPatch, cpu_s: Callable[[], float], age_s: float) -> RunningProcess:
    """A process of this age, which has used this CPU time."""
    use = lambda _process: processes.ProcessUse(cpu_s(), (1, 0))  # noqa: E731
    monkeypatch.setattr(processes, "use_of", use)
    return RunningProcess(-1, round((since_boot_s() - age_s) * 1e9 / TICK_NS))


@pytest.mark.parametrize(("age_s", "spent_s"), [(0.0, 5.0), (3600.0, 0.0)])
def test_of_a_new_process_only_the_work_since_the_last_sample_counts(
    monkeypatch: pytest.MonkeyPatch, age_s: float, spent_s: float
) -> None:
    """All work of a young process is new; when an old process that was found late worked is not known."""
    found: set[Any] = set()
    source = processes.ProcessSource(processes.ProcessTree(HERE, with_root=False))
    source._measure(found)
    found.add(worked(monkeypatch, lambda: 5.0, age_s))
    assert source._measure(found) == (spent_s, 1, 1)
    assert source._measure(found) == (0.0, 1, 1)


def test_looking_for_processes_takes_time_that_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """One busy core stays one busy core, however long the scan of the process table takes."""
    clock = SimpleNamespace(now_s=100.0, thread_time=time.thread_time, process_time=time.process_time)
    clock.monotonic = lambda: clock.now_s
    monkeypatch.setattr(processes, "time", clock)
    tree = processes.ProcessTree(HERE, with_root=False)
    busy = worked(monkeypatch, lambda: clock.now_s, 3600.0)  # all the time
    source = processes.ProcessSource(tree)
    for scan_s in (0.0, 5.0):

        def members(took_s: float = scan_s) -> set[RunningProcess]:
            clock.now_s += took_s
            return {busy}

        monkeypatch.setattr(tree, "members", members)
        (utilization, *_), *_ = source.sample()
    assert utilization == pytest.approx(100 / source._cpus)


SHARING = """
import mmap, os, time
block = mmap.mmap(-1, 256 * 2**20)
touched, parent = mmap.mmap(-1, 1), os.getpid()
child = os.fork()
for start in range(0, len(block), mmap.PAGESIZE):
    block[start] = 1
if child:
    while not touched[0]:
        time.sleep(0.01)
    print("ready", flush=True)
    time.sleep(60)
touched[0] = 1
while os.getppid() == parent:
    time.sleep(0.1)
"""


@pytest.mark.parametrize("readable", [True, False])
def test_memory_that_two_processes_share_counts_once(
    start: Start, monkeypatch: pytest.MonkeyPatch, readable: bool
) -> None:
    """Also where the kernel does not say what is shared with whom."""
    if not readable:
        monkeypatch.setattr(processes, "read_pss", lambda pid: None)
    parent = process_of(start_workload(start, SHARING).pid)
    assert parent is not None
    source = processes.ProcessSource(processes.ProcessTree(parent, with_root=True))
    for _ in range(20):  # a fast monitor cannot read in each sample what is shared
        row = dict(zip(source.columns, source.sample()[0], strict=True))
        assert row["processes"] == 2
        assert 256 * 2**20 < int(row["memory_used_bytes"] or 0) < 320 * 2**20


class Clock(recording.Stopper):
    """Stands in for `time` and for the sleep of the schedule; signals never come."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.taken_s: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def wait_until(self, moment_s: float) -> bool:
        self.now_s = max(self.now_s, moment_s)
        return False


@pytest.mark.parametrize(
    ("cost_s", "expected_s"),
    [
        (0.3, [100, 101, 102, 103, 104]),  # sleeping one second each time would give 105.2
        (1.5, [100, 102, 104, 106, 108]),  # slower than the rate: whole ticks are left out
    ],
)
def test_the_schedule_does_not_drift(monkeypatch: pytest.MonkeyPatch, cost_s: float, expected_s: list[float]) -> None:
    clock = Clock()
    monkeypatch.setattr(recording, "time", clock)

    def take() -> None:
        clock.taken_s.append(clock.now_s)
        clock.now_s += cost_s

    recording._sample_on_schedule(take, 100.0, 1.0, clock, lambda: len(clock.taken_s) < 5)
    assert clock.taken_s == expected_s


def test_recording_loads_nothing_heavy_and_nothing_of_the_rest_of_the_project() -> None:
    code = "import sys, harness.monitor.record; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=limit_s()
    ).stdout.split()
    assert not {"numpy", "matplotlib", "torch", "pydantic"} & set(loaded)
    ours = {name for name in loaded if name.startswith("harness.")}
    assert ours and all(name.startswith(("harness.monitor", "harness.common")) for name in ours)


def test_every_column_of_the_files_is_defined_and_no_definition_outlives_its_column() -> None:
    sources = (NvmlSource.columns, AmdSource.columns, processes.ProcessSource.columns, NodePorts.columns)
    assert {*LEADING_COLUMNS, *(name for columns in sources for name in columns)} == {*COLUMNS}
