"""The arms of a comparison: the numbers of their runs, whether measured now or stored, and the hardware and
software with which they were measured. Knows no run on disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from harness.analysis.statistics import Sample
from harness.analysis.summary import RankTraining, Summary
from harness.compare.environment import NO_PACKAGES, PACKAGE, facts_of, used_packages

Key = dict[str, str]
"""What it is about, in words → what it was. Only what a run recorded."""
_OTHERS = "other packages"  # of a run that did not record its whole environment


class WholeKey(Key):
    """The key of a run that recorded its whole environment: it has the packages that the run used. packages: all that
    are installed."""

    def __init__(self, found: Key, packages: Key) -> None:
        super().__init__(found)
        self.packages = packages


class RunFacts(NamedTuple):
    """What is known of one run. values: of each fact; a run may have several of one, as nodes. made_ns: when it was
    asked for."""

    values: Mapping[str, Sequence[str]]
    made_ns: int | None = None


class Arm(NamedTuple):
    """One arm. runs: the number of each run. steps: of an arm of one run its steps, if they may judge it. facts: of
    each run, or none."""

    name: str
    runs: Sequence[Sample]
    steps: Sequence[float] = ()
    facts: Sequence[RunFacts] = ()


def key_of(summary: Summary) -> Key:
    """The hardware and software of a run, as far as it recorded them."""
    found: dict[str, str | None] = {
        "devices": _devices(summary),
        "nodes": str(len(summary.hosts)) if summary.hosts else None,
        "ranks": str(summary.world_size) if summary.world_size else None,
        "profiler": ", ".join(sorted({source.tool for source in summary.sources})) or "none",
        "container image": str((summary.run or {}).get("image") or ""),
        "model": _same(t.model for t in summary.training),
        "sequence length": _same(str(t.seq_length) for t in summary.training if t.seq_length),
        "host processor": _same(t.host_cpu for t in summary.training),
        **_versions(summary.training),
    }
    key = {name: value for name, value in found.items() if value}
    if not summary.environments:
        return key
    facts = facts_of(summary)
    packages = {name[len(PACKAGE) :]: version for name, version in facts.items() if name.startswith(PACKAGE)}
    others = {name: facts[name] for name in NO_PACKAGES if name in facts}
    used = {name: packages[name] for name in packages.keys() & used_packages([summary])}
    return WholeKey({name: value for name, value in key.items() if name not in packages} | others | used, packages)


def differences(a: Sequence[Key], b: Sequence[Key]) -> dict[str, tuple[str, str]]:
    """What differs between any two of the runs: its name → each side's values. What a run did not record does not
    differ, nor does a package that no run used."""
    names = dict.fromkeys(name for key in (*a, *b) for name in key)
    packages = _packages([*a, *b])
    of_each = {name: (_values(a, name, packages), _values(b, name, packages)) for name in names}
    return {
        name: (" or ".join(in_a), " or ".join(in_b))
        for name, (in_a, in_b) in of_each.items()
        if len({*in_a, *in_b}) > 1
    }


def unrecorded(a: Sequence[Key], b: Sequence[Key]) -> list[str]:
    """What some of the runs recorded and others did not; packages of a whole environment in one word."""
    every = [*a, *b]
    names = dict.fromkeys(name for key in every for name in key)
    packages = _packages(every)
    missing = [name for name in names if any(_value(key, name, packages) is None for key in every)]
    return list(dict.fromkeys(_OTHERS if name in packages else name for name in missing))


def _packages(keys: Sequence[Key]) -> set[str]:
    return {name for key in keys if isinstance(key, WholeKey) for name in key.packages}


def _value(key: Key, name: str, packages: set[str]) -> str | None:
    """None: the run did not record it."""
    if isinstance(key, WholeKey) and name in packages:
        return key.packages.get(name, "none")
    return key.get(name)


def _values(keys: Sequence[Key], name: str, packages: set[str]) -> list[str]:
    return sorted({value for key in keys if (value := _value(key, name, packages)) is not None})


def _devices(summary: Summary) -> str | None:
    names = [t.device_name for t in summary.training if t.device_name] or [d.name for d in summary.devices if d.name]
    counted = Counter(names)
    return ", ".join(f"{count} × {name}" for name, count in sorted(counted.items())) or None


def _versions(training: Sequence[RankTraining]) -> Key:
    """Of each package, as the ranks have it."""
    names = dict.fromkeys(name for t in training for name in t.versions)
    return {name: _same(t.versions.get(name) for t in training) or "" for name in names}


def _same(values: Iterable[str | None]) -> str | None:
    return ", ".join(sorted({value for value in values if value})) or None
