"""The monitor's samples against nvidia-smi's, from files as both write them; no GPU is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.beside_smi import PAIRS, Samples, agree, clock_limits, means, our_samples, their_samples

SECOND = 10**9
OURS = (
    "unix_ns,device,memory_used_bytes,utilization_percent,power_watts,energy_joules,temperature_celsius,sm_clock_mhz,"
    "clock_limits"
)
FIELDS = [*(pair.theirs for pair in PAIRS), "clocks_event_reasons.active"]
(POWER,) = (pair for pair in PAIRS if pair.ours == "power_watts")


def samples(folder: Path, watts: float | None) -> Samples:
    """Twenty samples and answers, each with its time, ten before the load and ten under it; one answer is an error."""
    power = "" if watts is None else str(watts)
    rows = [f"{n * SECOND},0,1000,0,80.0,{n * 80.0},30,345,1" for n in range(10)]
    rows += [f"{n * SECOND},0,{2**30},98,{power},{800 + (n - 10) * (watts or 0)},60,1755,4" for n in range(10, 20)]
    (folder / "samples.csv").write_text("\n".join([OURS, *rows]) + "\n")
    idle, busy = "0, 80.00, 1, 345, 30, 0x0000000000000001", "97, 600.00, 1024, 1755, 60, 0x0000000000000004"
    lines = [f"{n}.5,{idle if n < 10 else busy}" for n in range(20)]
    text = "\n".join([*lines, "19.9,Unable to determine the device handle"]) + "\n"
    (folder / "nvidia-smi.csv").write_text(text)
    ours = our_samples(folder / "samples.csv", 10, 20)
    return Samples(ours, their_samples(folder / "nvidia-smi.csv", FIELDS, 10, 20))


@pytest.mark.parametrize(("watts", "wrong"), [(610.0, []), (0.61, ["power_watts"]), (None, ["power_watts"])])
def test_tools_agree_but_for_a_wrong_unit_or_a_value_that_one_does_not_give(
    tmp_path: Path, watts: float | None, wrong: list[str]
) -> None:
    both = samples(tmp_path, watts)
    assert [pair.ours for pair in PAIRS if not agree(both, pair)] == wrong
    ours, theirs = means(both, POWER)
    assert (ours, theirs) == (watts, 600)
    assert clock_limits(both) == ({4}, {4})
