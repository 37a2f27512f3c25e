"""The recording: what it writes, when it ends, and which samples remain when it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from harness.common.processes import TICK_NS, Resident, RunningProcess, process_of, since_boot_s
from harness.monitor import processes
from harness.monitor import record as recorder
from harness.monitor.amd import AmdSource
from harness.monitor.network import NodePorts
from harness.monitor.nvml import NvmlSource
from harness.monitor.record import SampleFile
from harness.monitor.samples import COLUMNS, LEADING_COLUMNS, NodeSamples, read
from harness.monitor.source import MonitorError
from harness.monitor.summary import summarize
from tests.waiting import limit_s, wait_until

Start = Callable[..., "subprocess.Popen[str]"]
WORKLOAD = "import time; block = bytearray(64 * 2**20); print('ready', flush=True); time.sleep(60)"
BUSY = "print('ready', flush=True)\nwhile True: pass"


def wait_for_samples(folder: Path, count: int) -> list[str]:
    """The lines after the header, once there are `count`."""
    path = folder / "samples.csv"

    def lines() -> list[str]:
        return path.read_text().splitlines()[1:] if path.exists() else []

    wait_until(lambda: len(lines()) >= count, f"{count} samples in {path}", lines)
    return lines()


def start_workload(start: Start, code: str = WORKLOAD) -> subprocess.Popen[str]:
    process = start("-c", code, program=(sys.executable,))
    assert process.stdout and process.stdout.readline() == "ready\n"
    return process


@pytest.fixture
def recording(tmp_path: Path, start: Start) -> NodeSamples:
    """A busy process and its 64 MiB sibling, watched from their parent, until TERM."""
    workloads = [start_workload(start), start_workload(start, BUSY)]
    monitor = start("record", "--out", tmp_path / "m", "--hz", "10", "--name", "node7")
    wait_for_samples(tmp_path / "m", 6)
    monitor.terminate()
    assert monitor.wait(limit_s()) == 0
    assert all(workload.poll() is None for workload in workloads)
    return read(tmp_path / "m")


def test_sees_memory_and_cpu_of_the_parents_other_descendants(recording: NodeSamples) -> None:
    assert (recording.source, recording.host) == ("processes", "node7")
    numbers = summarize(recording).devices[0]
    assert numbers.peak_memory_bytes and numbers.peak_memory_bytes > 64 * 2**20
    # How much of a core the busy one gets depends on what else runs here.
    assert numbers.mean_utilization_percent and 0 < numbers.mean_utilization_percent <= 110
    assert min(count for _, count in recording.devices[0].points("processes")) >= 2


def test_the_watcher_is_not_among_the_watched(tmp_path: Path, start: Start) -> None:
    workload = start_workload(start)
    monitor = start("record", "--out", tmp_path, "--hz", "10", "--pid", workload.pid)
    wait_for_samples(tmp_path, 3)
    monitor.terminate()
    monitor.wait(limit_s())
    assert {count for _, count in read(tmp_path).devices[0].points("processes")} == {1.0}


class ScanClock:
    """A scan of the process table that costs CPU time, on a machine where everything takes ten times as long."""

    def __init__(self, cost_s: float) -> None:
        self.now_s, self.cpu_s, self.cost_s, self.scans_s = 0.0, 0.0, cost_s, list[float]()

    def monotonic(self) -> float:
        return self.now_s

    def process_time(self) -> float:
        return self.cpu_s

    def scan(self) -> set[RunningProcess]:
        self.scans_s.append(self.now_s)
        self.cpu_s += self.cost_s
        self.now_s += 10 * self.cost_s
        return set()


@pytest.mark.parametrize(("cost_s", "between_s"), [(0.002, 1), (0.02, 5), (1.0, 20)])
def test_the_dearer_a_look_for_new_processes_the_rarer_and_load_does_not_count(
    monkeypatch: pytest.MonkeyPatch, cost_s: float, between_s: float
) -> None:
    clock = ScanClock(cost_s)
    monkeypatch.setattr(processes, "time", clock)
    tree = processes.ProcessTree([], with_roots=True)
    monkeypatch.setattr(tree, "_scan", clock.scan)
    for _ in range(600):
        tree.members()
        clock.now_s += 0.1
    gaps = {round(later - earlier, 1) for earlier, later in pairwise(clock.scans_s)}
    assert gaps and max(gaps) <= between_s + 0.6
    assert min(gaps) >= between_s / 2


def test_utilization_is_unknown_in_the_first_sample_rather_than_zero(recording: NodeSamples) -> None:
    device = recording.devices[0]
    assert len(device.points("utilization_percent")) == len(device.unix_ns) - 1


def test_killed_outright_it_loses_no_written_sample(tmp_path: Path, start: Start) -> None:
    monitor = start("record", "--out", tmp_path, "--hz", "10")
    before = wait_for_samples(tmp_path, 4)
    monitor.kill()
    monitor.wait(limit_s())
    recording = read(tmp_path)
    assert recording.damaged_rows == 0
    assert len(recording.devices[0].unix_ns) >= len(before)


def test_ends_when_the_watched_training_is_killed_even_before_it_is_reaped(tmp_path: Path, start: Start) -> None:
    workload = start_workload(start)
    monitor = start("record", "--out", tmp_path, "--hz", "10", "--pid", workload.pid)
    wait_for_samples(tmp_path, 1)
    os.kill(workload.pid, signal.SIGKILL)  # from now on a zombie: its parent does not wait for it
    assert monitor.wait(limit_s()) == 0


def test_ends_when_its_parent_is_killed(tmp_path: Path, start: Start) -> None:
    command = f"'{sys.executable}' -m harness.monitor record --out '{tmp_path}' --hz 10 & echo $!; wait"
    shell = start("-c", command, program=("bash",))
    assert shell.stdout
    monitor = int(shell.stdout.readline())
    wait_for_samples(tmp_path, 1)
    shell.kill()
    try:
        wait_until(lambda: not Path(f"/proc/{monitor}").exists(), "the end of a monitor whose parent was killed")
    finally:
        with suppress(ProcessLookupError):
            os.kill(monitor, signal.SIGKILL)


def test_the_time_limits_warning_does_not_end_it(tmp_path: Path, start: Start) -> None:
    monitor = start("record", "--out", tmp_path, "--hz", "10")
    count = len(wait_for_samples(tmp_path, 1))
    monitor.send_signal(signal.SIGUSR1)
    wait_for_samples(tmp_path, count + 3)
    assert monitor.poll() is None


def test_a_second_monitor_on_the_same_folder_is_refused(tmp_path: Path, start: Start) -> None:
    start("record", "--out", tmp_path, "--hz", "10")
    wait_for_samples(tmp_path, 1)
    second = start("record", "--out", tmp_path)
    _, errors = second.communicate(timeout=limit_s())
    assert second.returncode == 2
    assert "another monitor is writing" in errors


def test_a_restarted_monitor_goes_on_after_a_line_that_was_cut_off(tmp_path: Path, start: Start) -> None:
    monitor = start("record", "--out", tmp_path, "--hz", "10")
    wait_for_samples(tmp_path, 2)
    monitor.kill()
    monitor.wait(limit_s())
    whole = len(read(tmp_path).devices[0].unix_ns)
    with (tmp_path / "samples.csv").open("a") as samples:
        samples.write("17000,0,12.")
    start("record", "--out", tmp_path, "--hz", "10")
    wait_for_samples(tmp_path, whole + 3)
    recording = read(tmp_path)
    assert recording.damaged_rows == 1
    assert len(recording.devices[0].unix_ns) >= whole + 2


def test_a_line_that_was_cut_off_costs_no_sample_but_its_own(
    tmp_path: Path, write_samples: Callable[..., Path]
) -> None:
    folder = write_samples(["power_watts"], [[1.0], [2.0]])
    with (folder / "samples.csv").open("a") as samples:
        samples.write("17000,0")
    SampleFile(folder / "samples.csv", ["power_watts"]).append(2 * 10**18, [0], [[3.0]])
    recording = read(folder)
    assert recording.damaged_rows == 1
    assert [watts for _, watts in recording.devices[0].points("power_watts")] == [1.0, 2.0, 3.0]


class Numbered(NamedTuple):
    """Stands in for a process that only has its id."""

    pid: int


def worked(monkeypatch: pytest.MonkeyPatch, cpu_s: Callable[[], float], age_s: float) -> RunningProcess:
    """A process of this age, which has used this CPU time."""
    use = lambda _process: processes.ProcessUse(cpu_s(), Resident(1, 0))  # noqa: E731
    monkeypatch.setattr(processes, "use_of", use)
    return RunningProcess(-1, round((since_boot_s() - age_s) * 1e9 / TICK_NS))


@pytest.mark.parametrize(("age_s", "spent_s"), [(0.0, 5.0), (3600.0, 0.0)])
def test_of_a_new_process_only_the_work_since_the_last_sample_counts(
    monkeypatch: pytest.MonkeyPatch, age_s: float, spent_s: float
) -> None:
    """All work of a young process is new; when an old process that was found late worked is not known."""
    found: set[Any] = set()
    source = processes.ProcessSource(processes.ProcessTree([], with_roots=False), None)
    source._measure(found)
    found.add(worked(monkeypatch, lambda: 5.0, age_s))
    assert source._measure(found) == (spent_s, 1, 1)
    assert source._measure(found) == (0.0, 1, 1)


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
    source = processes.ProcessSource(processes.ProcessTree([parent], with_roots=True), None)
    column = source.columns.index("memory_used_bytes")
    for _ in range(20):  # a fast monitor cannot read in each sample what is shared
        (row,) = source.sample()
        assert row[source.columns.index("processes")] == 2
        assert 256 * 2**20 < int(row[column] or 0) < 320 * 2**20


def test_what_is_shared_is_read_so_often_that_it_takes_a_hundredth_of_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """600 processes of 50 ms each, sampled each second: 36 s of an hour, in which each has its turn."""
    spent_s, now_s = 0.0, 0.0

    def read_pss(_pid: int) -> int:
        nonlocal spent_s
        spent_s += 0.05
        return 1

    clock = SimpleNamespace(monotonic=lambda: now_s, thread_time=lambda: spent_s)
    monkeypatch.setattr(processes, "time", clock)
    monkeypatch.setattr(processes, "read_pss", read_pss)
    job: dict[Any, tuple[int, int]] = {Numbered(pid): (2, 1) for pid in range(600)}
    meter = processes.PssMeter()
    for second in range(3600):
        now_s = float(second)
        job_bytes = meter.sum_bytes(job)
    assert 35 < spent_s < 37
    assert job_bytes == 600


def test_looking_for_processes_takes_time_that_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """One busy core stays one busy core, however long the scan of the process table takes."""
    now_s = [100.0]
    clocks = SimpleNamespace(monotonic=lambda: now_s[0], time=time.time, thread_time=time.thread_time)
    clocks.process_time = time.process_time
    monkeypatch.setattr(processes, "time", clocks)

    busy = worked(monkeypatch, lambda: now_s[0], 3600.0)  # all the time

    class SlowTree(processes.ProcessTree):
        def members(self) -> set[RunningProcess]:
            now_s[0] += searching_s
            return {busy}

    searching_s = 0.0
    source = processes.ProcessSource(SlowTree([], with_roots=False), None)
    cpu_before = [now_s[0]]
    monkeypatch.setattr(source, "_before", lambda process, cpu_s: cpu_before[0])
    source.sample()
    now_s[0], searching_s = now_s[0] + 1.0, 4.0
    (utilization, *_), *_ = source.sample()
    assert utilization == pytest.approx(100 / source._cpus)


def test_a_folder_with_another_kind_of_samples_is_refused(tmp_path: Path) -> None:
    SampleFile(tmp_path / "samples.csv", ["power_watts"])
    with pytest.raises(MonitorError, match="another kind of device"):
        SampleFile(tmp_path / "samples.csv", ["processes"])


class Clock(recorder.Stopper):
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
    monkeypatch.setattr(recorder, "time", clock)

    def take() -> None:
        clock.taken_s.append(clock.now_s)
        clock.now_s += cost_s

    recorder._sample_on_schedule(take, 100.0, 1.0, clock, lambda: len(clock.taken_s) < 5)
    assert clock.taken_s == expected_s


@pytest.mark.parametrize("hz", ["0", "11", "-1", "nan", "inf"])
def test_a_rate_out_of_range_is_one_sentence_and_leaves_nothing(tmp_path: Path, start: Start, hz: str) -> None:
    monitor = start("record", "--out", tmp_path / "m", "--hz", hz)
    _, errors = monitor.communicate(timeout=limit_s())
    assert monitor.returncode == 2
    assert errors.startswith(f"monitor: --hz {hz}: allowed is") and errors.count("\n") == 1
    assert not (tmp_path / "m").exists()


def test_a_process_that_is_not_there_is_named(tmp_path: Path, start: Start) -> None:
    monitor = start("record", "--out", tmp_path / "m", "--pid", 2**22 + 1)
    _, errors = monitor.communicate(timeout=limit_s())
    assert (monitor.returncode, errors) == (2, f"monitor: --pid {2**22 + 1}: there is no such process\n")


def test_a_full_disk_is_one_sentence(tmp_path: Path, start: Start) -> None:
    (tmp_path / "samples.csv").symlink_to("/dev/full")
    monitor = start("record", "--out", tmp_path)
    _, errors = monitor.communicate(timeout=limit_s())
    assert (monitor.returncode, errors) == (1, "monitor: the samples: No space left on device\n")


def test_recording_loads_nothing_heavy_and_nothing_of_the_rest_of_the_project() -> None:
    code = "import sys, harness.monitor.__main__, harness.monitor.record; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=limit_s()
    ).stdout.split()
    assert not {"numpy", "matplotlib", "torch", "pydantic"} & set(loaded)
    ours = {name for name in loaded if name.startswith("harness.")}
    assert ours and all(name.startswith(("harness.monitor", "harness.common")) for name in ours)


def test_every_column_of_the_files_is_defined_and_no_definition_outlives_its_column() -> None:
    sources = (NvmlSource.columns, AmdSource.columns, processes.ProcessSource.columns, NodePorts.columns)
    assert {*LEADING_COLUMNS, *(name for columns in sources for name in columns)} == {*COLUMNS}
