"""The environments of runs as facts with names, and what differs in them between two arms. Knows no run on disk.

A fact's name is in words: `package numpy`, `variable NCCL_ALGO`, `module cuda`, `kernel`. In a run that recorded its
whole environment, what is missing was not there; of an older run only the versions that its ranks wrote are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from harness.analysis.summary import RunEnvironment, Summary

Facts = dict[str, str]
PACKAGE, VARIABLE, MODULE = "package ", "variable ", "module "
_ABSENT = {PACKAGE: "not installed", VARIABLE: "not set", MODULE: "not loaded"}
NODE_NAMES = "node names"
NO_PACKAGES = ("python", "cuda", "nccl", "nvidia driver")  # of a rank's versions


class FactDifference(NamedTuple):
    """One fact with the values of both arms. None: no run of that arm recorded it."""

    name: str
    a: str | None
    b: str | None


class EnvironmentDifferences(NamedTuple):
    """differs: facts that both arms recorded, used packages first. one_sided: those that one arm recorded. unused:
    packages that differ, or that one arm lacks, and that no run used."""

    differs: list[FactDifference]
    one_sided: list[FactDifference]
    unused: list[FactDifference]


def compare_environments(a: Sequence[Summary], b: Sequence[Summary]) -> EnvironmentDifferences:
    """What differs between the runs of two arms."""
    runs = [[(facts_of(summary), bool(summary.environments)) for summary in arm] for arm in (a, b)]
    used = used_packages([*a, *b])
    found = EnvironmentDifferences([], [], [])
    for name in sorted(dict.fromkeys(name for arm in runs for facts, _ in arm for name in facts), key=_kind):
        absent = next((word for kind, word in _ABSENT.items() if name.startswith(kind)), None)
        known = [{facts.get(name, absent if whole else None) for facts, whole in arm} - {None} for arm in runs]
        sides = (" or ".join(sorted(map(str, values))) or None for values in known)
        difference = FactDifference(name, *sides)
        if not known[0] or not known[1]:
            found.one_sided.append(difference)
        elif len(known[0] | known[1]) > 1:
            is_unused = name.startswith(PACKAGE) and name[len(PACKAGE) :] not in used
            (found.unused if is_unused else found.differs).append(difference)
    return found


def facts_of(summary: Summary) -> Facts:
    """What a run recorded of its environment; of nodes that differ, each value."""
    values: dict[str, set[str]] = {}
    for name, value in (*_written_by_ranks(summary), *(fact for each in summary.environments for fact in _facts(each))):
        if value:
            values.setdefault(name, set()).add(value)
    return {name: ", ".join(sorted(of_nodes)) for name, of_nodes in values.items()}


def used_packages(summaries: Sequence[Summary]) -> set[str]:
    """The packages that one of the runs used, or may have used: of a training that was killed, all."""
    environments = [each for summary in summaries for each in summary.environments]
    written = {
        name for summary in summaries if not summary.environments for t in summary.training for name in t.versions
    }
    return written.union(*(each.packages if each.used is None else each.used for each in environments))


def _written_by_ranks(summary: Summary) -> Iterator[tuple[str, str | None]]:
    yield NODE_NAMES, ", ".join(sorted(summary.hosts))
    for rank in summary.training:
        yield "host processor", rank.host_cpu
        if not summary.environments:
            yield from ((name if name in NO_PACKAGES else PACKAGE + name, text) for name, text in rank.versions.items())


def _facts(environment: RunEnvironment) -> Iterator[tuple[str, str]]:
    yield from ((PACKAGE + name, version or "no version") for name, version in environment.packages.items())
    yield from ((VARIABLE + name, text) for name, text in environment.variables.items())
    for module in environment.modules:
        name, _, version = module.rpartition("/")
        yield (MODULE + name, version) if name else (MODULE + version, "loaded")
    yield from environment.system.items()


def _kind(name: str) -> int:
    """By which facts are ordered: packages, variables, modules, the rest."""
    return next((place for place, kind in enumerate(_ABSENT) if name.startswith(kind)), len(_ABSENT))
