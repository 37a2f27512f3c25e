"""The monitor's samples against nvidia-smi's, from files as both write them; no GPU is asked."""

from __future__ import annotations

from pathlib import Path

import step_monitor
from results import Result

SECOND = 10**9
OURS = (
    "unix_ns,device,memory_used_bytes,utilization_percent,power_watts,energy_joules,temperature_celsius,sm_clock_mhz,"
    "clock_limits"
)
FIELDS = [*step_monitor.FIELDS, "clocks_event_reasons.active"]


def our_file(folder: Path, watts: float) -> Path:
    """Twenty samples of a device: ten before the load and ten under it."""
    path = folder / "samples.csv"
    rows = [f"{n * SECOND},0,1000,0,80.0,{n * 80.0},30,345,1" for n in range(10)]
    rows += [f"{n * SECOND},0,{2**30},98,{watts},{800 + (n - 10) * watts},60,1755,4" for n in range(10, 20)]
    path.write_text("\n".join([OURS, *rows]) + "\n")
    return path


def their_file(folder: Path) -> Path:
    """Answers of nvidia-smi, each with its time; one answer is an error."""
    path = folder / "nvidia-smi.csv"
    idle, busy = "0, 80.00, 1, 345, 30, 0x0000000000000001", "97, 600.00, 1024, 1755, 60, 0x0000000000000004"
    lines = [f"{n}.5,{idle if n < 10 else busy}" for n in range(20)]
    path.write_text("\n".join([*lines, "19.9,Unable to determine the device handle"]) + "\n")
    return path


def compared(folder: Path, watts: float) -> dict[str, tuple[str, str]]:
    ours = step_monitor._our_samples(our_file(folder, watts), 10, 20)
    theirs = step_monitor._their_samples(their_file(folder), FIELDS, 10, 20)
    result = Result("monitor")
    step_monitor._compare(result, ours, theirs)
    step_monitor._energy(result, ours)
    return {check.name: (check.verdict, check.said) for check in result.checks}


def test_two_tools_that_agree_are_found_to_agree(tmp_path: Path) -> None:
    results = compared(tmp_path, watts=610.0)
    names = [pair.ours for pair in step_monitor.PAIRS]
    assert {results[name][0] for name in [*names, "energy_joules"]} == {"pass"}
    assert results["memory_used_bytes"][1] == "ours 1.0737e+09 B, nvidia-smi's 1.0737e+09 B"
    assert results["energy_joules"][1].startswith("the counter 5490 J, power × time 5490 J")
    assert results["clock_limits"] == ("pass", "ours 0x4, nvidia-smi's 0x4")


def test_a_wrong_unit_is_found(tmp_path: Path) -> None:
    results = compared(tmp_path, watts=0.61)
    assert results["power_watts"] == ("fail", "ours 0.61 W, nvidia-smi's 600 W")
    assert results["sm_clock_mhz"][0] == "pass"


def test_a_value_that_a_device_does_not_give_is_not_taken_for_zero(tmp_path: Path) -> None:
    path = our_file(tmp_path, 600.0)
    path.write_text(path.read_text().replace(",600.0,", ",,"))
    result = Result("monitor")
    ours = step_monitor._our_samples(path, 10, 20)
    step_monitor._compare(result, ours, step_monitor._their_samples(their_file(tmp_path), FIELDS, 10, 20))
    (power,) = (check for check in result.checks if check.name == "power_watts")
    assert (power.verdict, power.said) == ("fail", "ours none, nvidia-smi's 600 W")
