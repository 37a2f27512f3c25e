"""A step of several runs in parts that add up, and a sentence about the part that makes the difference. Knows no
plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from harness.analysis.compare import Comparison
from harness.analysis.metrics import step_durations_ns, tokens_per_step
from harness.analysis.summary import Device, Summary
from harness.format.device_time import with_known
from harness.format.format import rate
from harness.format.labels import are_cpus, cause_word
from harness.report.window import NOT_KNOWN, OVERLAPPED, PARTS

_WORTH_SAYING = 0.1  # of the difference


@dataclass(frozen=True)
class StepParts:
    """One run's step in parts, in the order of PARTS; milliseconds, together as long as `step_ns`."""

    index: int  # of the run; 0 is the base
    label: str
    parts: dict[str, float]
    cpu: bool = False
    withheld: frozenset[str] = frozenset()  # parts of which something was withheld

    @property
    def whole(self) -> float:
        return sum(self.parts.values())


def steps_in_parts(
    labels: Sequence[str], summaries: Sequence[Summary], pairs: Sequence[Comparison]
) -> list[StepParts]:
    """The parts of every run with a trace: per step, or per 1,000 tokens if the runs' steps differ in size."""
    per_token = is_per_token(summaries, pairs)
    return [
        StepParts(
            i,
            label,
            _parts(s, (tokens_per_step(s) or 0) / 1000 if per_token else 1.0),
            are_cpus(s.devices),
            _withheld(s.devices),
        )
        for i, (label, s) in enumerate(zip(labels, summaries, strict=True))
        if any(d.window_ns for d in s.devices)
    ]


def is_per_token(summaries: Sequence[Summary], pairs: Sequence[Comparison]) -> bool:
    """Whether the runs' steps differ in size and every run's tokens per step are known."""
    return any(p.normalisation == "per token" for p in pairs) and all(map(tokens_per_step, summaries))


def explained(found: Sequence[StepParts], index: int, per_token: bool) -> str:
    """The parts that make the difference between the base and another run; empty if no part is large, or if a
    withheld part can be the cause."""
    by_index = {run.index: run for run in found}
    if 0 not in by_index or index not in by_index:
        return ""
    base, other = by_index[0], by_index[index]
    if base.withheld or other.withheld:
        return ""
    whole = other.whole - base.whole
    changes = {name: other.parts[name] - base.parts[name] for name in PARTS}
    large = [name for name in changes if abs(changes[name]) > _WORTH_SAYING * abs(whole)]
    if not large:
        return ""
    large.sort(key=lambda name: -abs(changes[name]))
    text = ", ".join(f"{signed(changes[name])} ms {_words(name, other.cpu)}" for name in large[:3])
    unit = "1,000 tokens" if per_token else "step"
    return f"The difference, {signed(whole)} ms per {unit}, is mostly {text}."


def _words(name: str, cpu: bool) -> str:
    """A part's name inside a sentence."""
    cause = name.removeprefix("idle: ")
    return f"idle ({cause_word(cause, cpu)})" if cause != name else name


def signed(value: float) -> str:
    return f"{'−' if value < 0 else '+'}{rate(abs(value))}"


def _parts(s: Summary, tokens: float) -> dict[str, float]:
    window = sum(d.window_ns for d in s.devices)
    step_ns = median(step_durations_ns(s) or [window / len(s.devices)])
    return {
        name: sum(map(part.ns, s.devices)) / window * step_ns / 1e6 / tokens for name, part in PARTS.items()
    }


def _withheld(devices: Sequence[Device]) -> frozenset[str]:
    """Parts that a device withholds. Without its communication, the part of compute that hides it is withheld too."""
    found: set[str] = set()
    if len(with_known(devices, "exposed_communication_ns")) < len(devices):
        found |= {"compute", OVERLAPPED, "exposed communication", NOT_KNOWN}
    if len(with_known(devices, "idle_ns")) < len(devices):
        found |= {name for name in PARTS if name.startswith("idle")} | {NOT_KNOWN}
    return frozenset(found)
