"""Step 2: the monitor on NVML beside nvidia-smi, in the same seconds over the same load, and what it costs.

Both are started for it; the load is loops.py's. The monitor's own CPU time is the kernel's account of its process.
"""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from numbers_text import mean, percent
from place import ROOT, Place, has_gpu, nvidia_smi, require_packages, require_success
from results import Result

HZ = 2
GPU_LOAD_S, CPU_LOAD_S = 15, 6
LOOPS = ROOT / "scripts" / "acceptance" / "loops.py"
MOST_CPU_SHARE = 0.02  # of one core: the most that the monitor may use
SETTLE_S = 2.0  # at both ends of the load, whose samples are left out


class Pair(NamedTuple):
    """One quantity as both tools name it, with the allowed difference of the means: a share, and a least value."""

    ours: str
    theirs: str
    unit: str
    share: float
    least: float
    factor: float = 1.0  # theirs × factor = ours


PAIRS = (
    Pair("utilization_percent", "utilization.gpu", "%", 0.1, 5.0),
    Pair("power_watts", "power.draw", "W", 0.1, 10.0),
    Pair("memory_used_bytes", "memory.used", "B", 0.1, 6e8, factor=2**20),
    Pair("sm_clock_mhz", "clocks.sm", "MHz", 0.05, 30.0),
    Pair("temperature_celsius", "temperature.gpu", "°C", 0.1, 3.0),
)
THROTTLING = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")  # the newer name, the older one
FIELDS = [pair.theirs for pair in PAIRS]


def monitor(place: Place, result: Result) -> None:
    """Record a load with both tools and compare their means."""
    require_packages("psutil", "torch")
    folder = place.work / "monitor"
    for old in folder.glob("*"):
        old.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    program = nvidia_smi()
    load_s = GPU_LOAD_S if has_gpu() else CPU_LOAD_S
    fields = _fields(place, program)
    with _monitor(place, folder, result), _smi(place, program, fields, folder / "nvidia-smi.csv"):
        argv: list[str | Path] = [place.python, LOOPS, "load", "--folder", folder, "--seconds", str(load_s)]
        load = place.run(argv, place.seconds_for(load_s + 60), place.out / "acceptance.log")
    begin_s, end_s = map(float, require_success(load, "the load").stdout.split()[-2:])
    begin_s, end_s = begin_s + SETTLE_S, end_s - SETTLE_S / 2
    ours = _our_samples(folder / "samples.csv", begin_s, end_s)
    result.numbers["samples_in_the_load"] = len(next(iter(ours.values()), []))
    if program is None:
        result.lacks("beside nvidia-smi", "nvidia-smi" if has_gpu() else "GPU (NVML)")
        used = mean(ours.get("utilization_percent", []))
        result.seen("the job's CPUs under load", "no sample" if used is None else f"{used:.0f} % on average")
        return
    _compare(result, ours, _their_samples(folder / "nvidia-smi.csv", fields, begin_s, end_s))
    _energy(result, ours)


@contextmanager
def _monitor(place: Place, folder: Path, result: Result) -> Iterator[None]:
    """Start the monitor as the job's script does; measure its cost at the end."""
    argv = [place.python, "-m", "harness.monitor", "record", "--out", folder, "--hz", str(HZ)]
    begin_s = time.monotonic()
    process = subprocess.Popen([str(word) for word in argv], env=place.environment(), cwd=ROOT)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    share = (usage.ru_utime + usage.ru_stime) / (time.monotonic() - begin_s)
    result.numbers["monitor_cpu_share_of_one_core"] = share
    result.numbers["monitor_peak_memory_bytes"] = usage.ru_maxrss * 1024
    said = f"{percent(share)} of one core at {HZ} samples/s, starting included, beside a load"
    result.check(f"the monitor takes at most {percent(MOST_CPU_SHARE)} of a core", share <= MOST_CPU_SHARE, said)


def _fields(place: Place, program: str | None) -> list[str]:
    """The names that this nvidia-smi knows: one unknown name makes it refuse the whole query."""
    for throttling in THROTTLING:
        argv = [program or "", f"--query-gpu={throttling}", "--format=csv,noheader", "-i", "0"]
        if program and place.run(argv, 30).code == 0:
            return [*FIELDS, throttling]
    return FIELDS


@contextmanager
def _smi(place: Place, program: str | None, fields: list[str], path: Path) -> Iterator[None]:
    """Ask nvidia-smi repeatedly meanwhile; each answer is a line of `path`, with the time before it."""
    if program is None:
        yield
        return
    over = threading.Event()
    argv = [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits", "-i", "0"]

    def ask() -> None:
        with path.open("w", encoding="utf-8") as file:
            while not over.wait(1 / HZ):
                asked_s = time.time()
                file.write(f"{asked_s},{place.run(argv, 30).stdout.strip()}\n")

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _our_samples(path: Path, begin_s: float, end_s: float) -> dict[str, list[float]]:
    """Columns of device 0 between two times of the wall clock, without missing values."""
    with path.open(encoding="ascii") as file:
        rows = [row for row in csv.DictReader(file) if begin_s <= int(row["unix_ns"]) / 1e9 <= end_s]
    first = min((row["device"] for row in rows), default="0")
    rows = [row for row in rows if row["device"] == first]
    names = rows[0].keys() if rows else ()
    return {name: [float(row[name]) for row in rows if row[name]] for name in names}


def _their_samples(path: Path, fields: list[str], begin_s: float, end_s: float) -> dict[str, list[str]]:
    """nvidia-smi's columns between two times of the wall clock."""
    lines = [line.split(",") for line in path.read_text(encoding="utf-8").splitlines()]
    rows = [row[1:] for row in lines if len(row) == len(fields) + 1 and begin_s <= float(row[0]) <= end_s]
    return {name: [row[i].strip() for row in rows] for i, name in enumerate(fields)}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _compare(result: Result, ours: dict[str, list[float]], theirs: dict[str, list[str]]) -> None:
    for pair in PAIRS:
        said = [n * pair.factor for text in theirs.get(pair.theirs, []) if (n := _number(text)) is not None]
        mine, other = mean(ours.get(pair.ours, [])), mean(said)
        if mine is None or other is None:
            result.check(pair.ours, False, f"ours {_shown(mine, pair)}, nvidia-smi's {_shown(other, pair)}")
            continue
        result.numbers[pair.ours] = {"ours": mine, "nvidia_smi": other}
        close = abs(mine - other) <= max(pair.share * abs(other), pair.least)
        result.check(pair.ours, close, f"ours {_shown(mine, pair)}, nvidia-smi's {_shown(other, pair)}")
    _clock_limits(result, ours, theirs)


def _clock_limits(result: Result, ours: dict[str, list[float]], theirs: dict[str, list[str]]) -> None:
    """Whether both tools saw the same reasons for lower clocks, each in at least one sample."""
    mine = {int(value) for value in ours.get("clock_limits", [])}
    other = {int(text, 16) for name in THROTTLING for text in theirs.get(name, []) if text.startswith("0x")}
    said = f"ours {_bits(mine)}, nvidia-smi's {_bits(other)}"
    result.check("clock_limits", mine == other, said) if mine and other else result.seen("clock_limits", said)


def _bits(values: set[int]) -> str:
    return ", ".join(f"0x{value:x}" for value in sorted(values)) or "none"


def _shown(value: float | None, pair: Pair) -> str:
    return "none" if value is None else f"{value:.5g} {pair.unit}"


def _energy(result: Result, ours: dict[str, list[float]]) -> None:
    """Compare the energy counter with power × time over the same samples."""
    joules, watts = ours.get("energy_joules", []), ours.get("power_watts", [])
    stamps = ours.get("unix_ns", [])
    seconds = (stamps[-1] - stamps[0]) / 1e9 if len(stamps) > 1 else 0.0
    power = mean(watts)
    if len(joules) < 2 or not seconds or power is None:
        result.check("energy_joules", False, "the counter gave no value")
        return
    counted, integrated = joules[-1] - joules[0], power * seconds
    close = abs(counted - integrated) <= 0.1 * integrated
    said = f"the counter {counted:.5g} J, power × time {integrated:.5g} J, over {seconds:.1f} s"
    result.check("energy_joules", close, said)
