"""The monitor on NVML beside nvidia-smi, in the same seconds over the same load, and what it costs.

Both are started for it; the load is loops.py's. The monitor's own CPU time is the kernel's account of its process.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import pytest

from harness.common.run_folder.run_files import MONITORS
from tests.gpu.beside_smi import (
    PAIRS,
    THROTTLING,
    Pair,
    Samples,
    agree,
    clock_limits,
    means,
    our_samples,
    their_samples,
)
from tests.gpu.machine import ROOT, has_gpu, nvidia_smi
from tests.gpu.work import LOOPS, Work, needs
from tests.waiting import limit_s

pytestmark = pytest.mark.gpu
HZ = 2
GPU_LOAD_S, CPU_LOAD_S = 15, 6
MOST_CPU_SHARE = 0.02  # of one core: the most that the monitor may use
SETTLE_S = 2.0  # at both ends of the load, whose samples are left out


class Measured(NamedTuple):
    """The samples of both tools in the load, and what the monitor took, starting included."""

    samples: Samples
    cpu_share: float  # of one core
    peak_memory_bytes: int


@pytest.fixture(scope="module")
def measured(work: Work) -> Measured:
    """The monitor is started as the job's script does it."""
    needs("psutil", "torch")
    folder = work.folder / "monitor"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    fields, over = smi_fields(work), threading.Event()
    asking = threading.Thread(target=ask, args=(work, fields, folder / "nvidia-smi.csv", over))
    begin_s = time.monotonic()
    argv = [sys.executable, "-m", "harness.heartbeats.node", f"--run={folder}", "--node=0", "--name=here"]
    argv += [f"--below={os.getpid()}", f"--hz={HZ}"]
    monitor = subprocess.Popen(argv, env=work.environment, cwd=ROOT)
    asking.start()
    try:
        load_s = GPU_LOAD_S if has_gpu() else CPU_LOAD_S
        load: list[str | Path] = [sys.executable, LOOPS, "load", "--folder", folder, "--seconds", str(load_s)]
        first_s, last_s = map(float, work.succeeds(load, load_s + 60).split()[-2:])
    finally:
        over.set()
        monitor.send_signal(signal.SIGTERM)
        _, status, usage = os.wait4(monitor.pid, 0)
        monitor.returncode = os.waitstatus_to_exitcode(status)
        took_s = time.monotonic() - begin_s
        asking.join(timeout=limit_s())
    times = (first_s + SETTLE_S, last_s - SETTLE_S / 2)
    theirs = their_samples(folder / "nvidia-smi.csv", fields, *times)
    samples = Samples(our_samples(MONITORS.path(folder, "here") / "samples.csv", *times), theirs)
    return Measured(samples, (usage.ru_utime + usage.ru_stime) / took_s, usage.ru_maxrss * 1024)


@pytest.fixture
def beside(gpu: None, measured: Measured) -> Samples:
    if nvidia_smi() is None:
        pytest.skip("nvidia-smi is not on PATH")
    return measured.samples


def smi_fields(work: Work) -> list[str]:
    """What this nvidia-smi is asked for, nothing without one: an unknown name makes it refuse the whole query."""
    program = nvidia_smi()
    if program is None:
        return []
    asked = ("--format=csv,noheader", "-i", "0")
    known = [name for name in THROTTLING if work.run([program, f"--query-gpu={name}", *asked], 30).code == 0]
    return [*(pair.theirs for pair in PAIRS), *known[:1]]


def ask(work: Work, fields: list[str], path: Path, over: threading.Event) -> None:
    """Call nvidia-smi repeatedly until it is over; each answer is a line of `path`, with the time before it."""
    argv = [nvidia_smi() or "", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits", "-i", "0"]
    with path.open("w", encoding="utf-8") as file:
        while fields and not over.wait(1 / HZ):
            file.write(f"{time.time()},{work.run(argv, 30).stdout.strip()}\n")


def test_the_monitor_takes_little_of_a_core(measured: Measured, record_property: Any) -> None:
    took = {"cpu_share": measured.cpu_share, "peak_memory_bytes": measured.peak_memory_bytes, "hz": HZ}
    record_property("monitor", took)
    assert measured.samples.ours["unix_ns"], "a sample in the load"
    if has_gpu():  # beside a load of all cores
        assert measured.cpu_share <= MOST_CPU_SHARE


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.ours)
def test_it_agrees_with_nvidia_smi(beside: Samples, pair: Pair, record_property: Any) -> None:
    record_property("ours_and_nvidia_smi", means(beside, pair))
    assert agree(beside, pair), means(beside, pair)


def test_it_sees_the_same_limits_of_the_clocks(beside: Samples, record_property: Any) -> None:
    ours, theirs = clock_limits(beside)
    record_property("ours_and_nvidia_smi", [sorted(ours), sorted(theirs)])
    if not ours or not theirs:
        pytest.skip("one of the two gives no reasons")
    assert ours == theirs


def test_the_energy_counter_is_power_times_time(beside: Samples, record_property: Any) -> None:
    counter, watts, stamps = (beside.ours[name] for name in ("energy_joules", "power_watts", "unix_ns"))
    counted, integrated = counter[-1] - counter[0], fmean(watts) * (stamps[-1] - stamps[0]) / 1e9
    record_property("joules", [counted, integrated])
    assert counted == pytest.approx(integrated, rel=0.1)
