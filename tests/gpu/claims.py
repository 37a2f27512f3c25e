"""What holds for any report, on its summary as plain JSON: independent of the code that made it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.gpu.machine import has_gpu

Summary = dict[str, Any]
Claim = Callable[[Summary], None]


def conservation(summary: Summary) -> None:
    """window = compute + exposed communication + exposed copies + idle, for each device and each of its steps."""
    splits = [split for device in summary["devices"] for split in (device, *device["steps"])]
    remainders = [remainder(split) for split in splits]
    assert any(rest is not None for rest in remainders), "every split is withheld"
    wrong = [f"{rest} ns" for rest in remainders if rest]
    assert not wrong, f"off by {', '.join(wrong[:5])}"


def remainder(split: dict[str, Any]) -> int | None:
    """Difference between a window and the sum of its parts, in nanoseconds; None if a part was withheld."""
    parts = [split[key] for key in ("compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns")]
    return None if None in parts else int(split["window_ns"]) - sum(map(int, parts))


def kinds_of_work(summary: Summary) -> None:
    """At most 1 % of the time is of unknown kind, and the failure names its kernels."""
    total = sum(kind["duration_ns"] for kind in summary["kinds"])
    other = sum(kind["duration_ns"] for kind in summary["kinds"] if kind["kind"] == "other")
    assert total > 0
    assert other <= 0.01 * total, [kernel["name"] for kernel in summary["unclassified"][:5]]


def launches(summary: Summary) -> None:
    """At least 99 % of the kernels have a known launch."""
    kernels = sum(part["kernels"] for part in summary["launches"])
    if not kernels:
        pytest.skip("no kernels: a CPU's operators have no launches")
    known = sum(part["with_known_launch"] for part in summary["launches"])
    assert known >= 0.99 * kernels, f"{known} of {kernels} kernels have a known launch"


def idle_causes(summary: Summary) -> None:
    """The causes add up to the idle time."""
    idle = sum(device["idle_ns"] or 0 for device in summary["devices"])
    assert sum(cause["duration_ns"] for cause in summary["idle_causes"]) == idle


def two_clocks(summary: Summary) -> None:
    """A step in the trace is within 5 % of the training's own clock."""
    if not has_gpu():
        pytest.skip("on a CPU, other programs may run between the readings of the two clocks")
    clocks_agree(summary)


def clocks_agree(summary: Summary) -> None:
    """The same, on whatever device."""
    traced = (summary["steps"]["duration"] or {}).get("median_ns")
    timed = (summary["training"] or [{}])[0].get("median_step_ns")
    if not traced or not timed:
        pytest.skip("the recording has one clock only")
    assert traced == pytest.approx(timed, rel=0.05)


def recording(summary: Summary) -> None:
    """The recording is good, in the report's own judgement."""
    if not has_gpu():
        pytest.skip("what a CPU records depends on what else this machine does")
    quality = summary["quality"]
    assert quality["verdict"] == "good", (quality["problems"], quality["withheld"])


CLAIMS: tuple[Claim, ...] = (conservation, kinds_of_work, launches, idle_causes, two_clocks, recording)
of_each_report = pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.__name__)


def precisions(summary: Summary) -> dict[str, int]:
    """Time of matrix products and attention by precision, nanoseconds; `unknown` where it is not recorded."""
    times: dict[str, int] = {}
    for kind in summary["kinds"]:
        if kind["kind"] in ("gemm", "attention"):
            name = kind["precision"] or "unknown"
            times[name] = times.get(name, 0) + kind["duration_ns"]
    return times


def ran_in(summary: Summary, precision: str) -> None:
    """Nearly all products of a known precision ran in this one. The names of cuDNN's attention do not tell."""
    times = precisions(summary)
    known = sum(times.values()) - times.get("unknown", 0)
    assert 2 * known > sum(times.values()), times
    assert times.get(precision, 0) >= 0.95 * known, times


def is_the_truth(summary: Summary, truth: dict[str, Any]) -> None:
    """Every number of each device is what tests/gpu/truth.py counts in the same file, to the nanosecond."""
    devices = {str(device["device"]): device for device in summary["devices"]}
    for number, expected in truth["devices"].items():
        assert {key: devices.get(number, {}).get(key) for key in expected} == expected
