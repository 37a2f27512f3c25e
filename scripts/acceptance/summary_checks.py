"""Checks that hold for any report, on its summary as plain JSON: independent of the code that made it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numbers_text import first, ms, percent
from results import Result

UNCLASSIFIED_MOST = 0.01
KNOWN_LAUNCHES_LEAST = 0.99
PRECISION_LEAST = 0.95
CLOCKS_APART_MOST = 0.05

Summary = dict[str, Any]


def check_summary(result: Result, name: str, summary: Summary) -> None:
    """All checks that hold for any run."""
    _conservation(result, name, summary)
    _kinds(result, name, summary)
    _launches(result, name, summary)
    _idle(result, name, summary)
    _clocks(result, name, summary)
    _quality(result, name, summary)


def remainder(split: dict[str, Any]) -> int | None:
    """Difference between a window and the sum of its parts, in nanoseconds; None if a part was withheld."""
    parts = [split[key] for key in ("compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns")]
    return None if None in parts else int(split["window_ns"]) - sum(map(int, parts))


def _conservation(result: Result, name: str, summary: Summary) -> None:
    """window = compute + exposed communication + exposed copies + idle, for each device and each of its steps."""
    splits = [split for device in summary["devices"] for split in (device, *device["steps"])]
    rests = [remainder(split) for split in splits]
    wrong = [rest for rest in rests if rest]
    withheld = sum(rest is None for rest in rests)
    said = f"{len(rests)} splits, of devices and of their steps"
    said += f", off by {', '.join(f'{rest} ns' for rest in wrong[:5])}" if wrong else ", each to the nanosecond"
    said += f"; {withheld} withheld" if withheld else ""
    result.check(f"{name}: conservation", bool(rests) and not wrong and withheld < len(rests), said)


def _kinds(result: Result, name: str, summary: Summary) -> None:
    """At most 1 % of the time is of unknown kind, and the check names its kernels."""
    total = sum(kind["duration_ns"] for kind in summary["kinds"])
    other = sum(kind["duration_ns"] for kind in summary["kinds"] if kind["kind"] == "other")
    share = other / total if total else 0.0
    listed = [f"{k['name'][:80]} ({percent(k['share'])})" for k in summary["unclassified"][:5]]
    said = f"{percent(share)} unclassified" + (f": {'; '.join(listed)}" if listed else "")
    result.check(f"{name}: kinds of work", bool(total) and share <= UNCLASSIFIED_MOST, said)


def _launches(result: Result, name: str, summary: Summary) -> None:
    kernels = sum(part["kernels"] for part in summary["launches"])
    if not kernels:
        result.lacks(f"{name}: launches", "no kernels: a CPU's operators have no launches")
        return
    known = sum(part["with_known_launch"] for part in summary["launches"])
    said = f"{known} of {kernels} kernels have a known launch"
    result.check(f"{name}: launches", known >= KNOWN_LAUNCHES_LEAST * kernels, said)


def _idle(result: Result, name: str, summary: Summary) -> None:
    """The causes add up to the idle time; a reader judges which they are."""
    idle = sum(device["idle_ns"] or 0 for device in summary["devices"])
    causes = summary["idle_causes"]
    explained = sum(cause["duration_ns"] for cause in causes)
    listed = ", ".join(f"{cause['cause']} {ms(cause['duration_ns'])}" for cause in causes) or "none"
    result.check(f"{name}: idle causes", idle == explained, f"{ms(idle)} idle: {listed}")


def _clocks(result: Result, name: str, summary: Summary) -> None:
    """Compare a step in the trace with the training's own clock."""
    traced = (summary["steps"]["duration"] or {}).get("median_ns")
    timed = first(summary["training"]).get("median_step_ns")
    if traced and timed:
        apart = abs(traced - timed) / timed
        said = f"{ms(traced)} in the trace, {ms(timed)} by the training's clock"
        result.check(f"{name}: two clocks", apart <= CLOCKS_APART_MOST, said)


def _quality(result: Result, name: str, summary: Summary) -> None:
    quality = summary["quality"]
    findings = [f"{f['what']} ({f['evidence']})" for f in quality["problems"] if f["severity"] != "good"]
    withheld = [f"{w['field']} withheld: {w['reason']}" for w in quality["withheld"]]
    said = "; ".join([quality["verdict"], *findings, *withheld])
    result.check(f"{name}: verdict on the recording", quality["verdict"] == "good", said)


def precisions(summary: Summary) -> dict[str, int]:
    """Time of matrix products and attention by precision, nanoseconds; `unknown` where it is not recorded."""
    found: dict[str, int] = {}
    for kind in summary["kinds"]:
        if kind["kind"] in ("gemm", "attention"):
            name = kind["precision"] or "unknown"
            found[name] = found.get(name, 0) + kind["duration_ns"]
    return found


def check_precision(result: Result, name: str, summary: Summary, wanted: str) -> None:
    """Nearly all products of a known precision ran in the requested one. The names of cuDNN's attention do not tell."""
    found = precisions(summary)
    total = sum(found.values())
    known = total - found.get("unknown", 0)
    said = ", ".join(f"{precision} {percent(ns / total)}" for precision, ns in _largest(found)) or "no product"
    held = 2 * known > total and found.get(wanted, 0) >= PRECISION_LEAST * known
    result.check(f"{name}: precision {wanted}", held, said)


def _largest(found: dict[str, int]) -> Iterator[tuple[str, int]]:
    yield from sorted(found.items(), key=lambda item: -item[1])
