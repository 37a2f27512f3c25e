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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.common.run_files import MONITORS
from tests.gpu.beside_smi import (
    PAIRS,
    THROTTLING,
    Pair,
    Samples,
    agree,
    clock_limits,
    joules,
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


class Cost:
    """What the monitor took, starting included, beside a load."""

    cpu_share = 0.0  # of one core
    peak_memory_bytes = 0


@pytest.fixture(scope="module")
def cost() -> Cost:
    return Cost()


@pytest.fixture(scope="module")
def samples(work: Work, cost: Cost) -> Samples:
    needs("psutil", "torch")
    folder = work.folder / "monitor"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    program = nvidia_smi()
    fields = smi_fields(work, program) if program else []
    load_s = GPU_LOAD_S if has_gpu() else CPU_LOAD_S
    with monitor(work, folder, cost), smi(work, program, fields, folder / "nvidia-smi.csv"):
        argv: list[str | Path] = [sys.executable, LOOPS, "load", "--folder", folder, "--seconds", str(load_s)]
        begin_s, end_s = map(float, work.succeeds(argv, load_s + 60).split()[-2:])
    times = (begin_s + SETTLE_S, end_s - SETTLE_S / 2)
    theirs = their_samples(folder / "nvidia-smi.csv", fields, *times) if program else {}
    return Samples(our_samples(MONITORS.path(folder, "here") / "samples.csv", *times), theirs)


@pytest.fixture
def beside(gpu: None, samples: Samples) -> Samples:
    if nvidia_smi() is None:
        pytest.skip("nvidia-smi is not on PATH")
    return samples


@contextmanager
def monitor(work: Work, folder: Path, cost: Cost) -> Iterator[None]:
    """Start the monitor as the job's script does; measure its cost at the end."""
    argv = [sys.executable, "-m", "harness.heartbeats.node", f"--run={folder}", "--node=0", "--name=here"]
    argv += [f"--below={os.getpid()}", f"--hz={HZ}"]
    begin_s = time.monotonic()
    process = subprocess.Popen(argv, env=work.environment, cwd=ROOT)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    cost.cpu_share = (usage.ru_utime + usage.ru_stime) / (time.monotonic() - begin_s)
    cost.peak_memory_bytes = usage.ru_maxrss * 1024


def smi_fields(work: Work, program: str) -> list[str]:
    """The names that this nvidia-smi knows: one unknown name makes it refuse the whole query."""
    fields = [pair.theirs for pair in PAIRS]
    for throttling in THROTTLING:
        if work.run([program, f"--query-gpu={throttling}", "--format=csv,noheader", "-i", "0"], 30).code == 0:
            return [*fields, throttling]
    return fields


@contextmanager
def smi(work: Work, program: str | None, fields: list[str], path: Path) -> Iterator[None]:
    """Call nvidia-smi repeatedly meanwhile; each answer is a line of `path`, with the time before it."""
    if program is None:
        yield
        return
    over = threading.Event()
    argv = [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits", "-i", "0"]

    def ask() -> None:
        with path.open("w", encoding="utf-8") as file:
            while not over.wait(1 / HZ):
                file.write(f"{time.time()},{work.run(argv, 30).stdout.strip()}\n")

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=limit_s())


def test_the_monitor_takes_little_of_a_core(samples: Samples, cost: Cost, record_property: Any) -> None:
    record_property("monitor", {"cpu_share": cost.cpu_share, "peak_memory_bytes": cost.peak_memory_bytes, "hz": HZ})
    assert samples.ours["unix_ns"], "a sample in the load"
    if has_gpu():  # beside a load of all cores
        assert cost.cpu_share <= MOST_CPU_SHARE


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
    counted, integrated = joules(beside.ours)
    record_property("joules", [counted, integrated])
    assert counted == pytest.approx(integrated, rel=0.1)
