"""What two environments differ in, as groups to switch from one to the other: with each prefix of their list the
requirements are satisfied as far as in the two. Makes no environment."""

from __future__ import annotations

import filecmp
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness.common.display.printable import printable
from harness.study.check.packages import Installed, Package, normal_name

if TYPE_CHECKING:
    from packaging.requirements import Requirement

# No package has these names: a normalised name has no capital.
PYTHON, UNOWNED = "Python", "Files of no package"
_NAMED = 6  # of a long list
_OF_UV = "_virtualenv."  # what uv and virtualenv put into each environment


class Member(NamedTuple):
    """What is switched: a package, PYTHON or UNOWNED, with its version in A and in B; None: it has none there."""

    name: str
    a: str | None
    b: str | None
    label: str


class PackageGroup(NamedTuple):
    """Members that are switched together. needs: the names of all that must be switched for it, and its own."""

    members: tuple[Member, ...]
    needs: frozenset[str]
    label: str

    @property
    def names(self) -> frozenset[str]:
        return frozenset(member.name for member in self.members)


def differing(a: Installed, b: Installed) -> list[PackageGroup]:
    """What differs. If two are in different groups and one needs the other, the needed one is first."""
    if _abi(a) != _abi(b):
        return [_everything(a, b)]
    members = {member.name: member for member in _members(a, b)}
    needs = _needs(a, b, set(members))
    reached = {name: _reached(name, needs) for name in needs}
    found = {frozenset(each for each in reached[name] if name in reached[each]) for name in needs}
    # What needs another reaches all that this one reaches, and itself.
    order = sorted(found, key=lambda names: (len(reached[min(names)]), min(names)))
    return [_group([members[name] for name in sorted(names)], reached[min(names)]) for names in order]


def closure(groups: Sequence[PackageGroup], index: int) -> list[PackageGroup]:
    """The group and those that it needs, in their order: all that must be switched to try this one on A."""
    return [group for group in groups if group.names <= groups[index].needs]


def _abi(environment: Installed) -> tuple[str, ...]:
    """What compiled packages are made for."""
    return (environment.implementation, environment.platform, *environment.version.split(".")[:2])


def _everything(a: Installed, b: Installed) -> PackageGroup:
    names = sorted({*a.packages, *b.packages})
    members = (_python(a, b), _unowned(a, b), *(_package(name, a.packages, b.packages) for name in names))
    label = f"{_python(a, b).label} and all packages"
    return PackageGroup(members, frozenset(member.name for member in members), label)


def _group(members: Sequence[Member], needs: set[str]) -> PackageGroup:
    return PackageGroup(tuple(members), frozenset(needs), _some([member.label for member in members]))


def _some(words: Sequence[str]) -> str:
    more = len(words) - _NAMED
    return ", ".join(words[:_NAMED]) + (f" and {more} more" if more > 0 else "")


# ---- What differs


def _members(a: Installed, b: Installed) -> Iterator[Member]:
    names = {name for name in {*a.packages, *b.packages} if _differs(a.packages.get(name), b.packages.get(name))}
    yield from (_package(name, a.packages, b.packages) for name in names)
    if (a.version, a.base) != (b.version, b.base):
        yield _python(a, b)
    if _other_files(a, b) or any(_is_unlisted(name, a, b) for name in names):
        yield _unowned(a, b)


def _differs(one: Package | None, other: Package | None) -> bool:
    if one is None or other is None:
        return True
    return (one.version, one.requires, _code(one)) != (other.version, other.requires, _code(other))


def _code(package: Package) -> dict[str, str] | None:
    """What a wheel brought, without what the installer noted of itself and compiled."""
    if package.files is None:
        return None
    return {path: checksum for path, checksum in package.files.items() if checksum and ".dist-info/" not in path}


def _is_unlisted(name: str, *environments: Installed) -> bool:
    """Whether its files cannot be told from those of no package."""
    found = [each.packages[name] for each in environments if name in each.packages]
    return any(package.files is None for package in found)


def _other_files(a: Installed, b: Installed) -> list[str]:
    paths = {path for path in {*a.unowned, *b.unowned} if not path.startswith(_OF_UV)}
    return sorted(path for path in paths if not _is_same(path, a.unowned.get(path), b.unowned.get(path)))


def _is_same(path: str, one: str | None, other: str | None) -> bool:
    if one is None or other is None:
        return False
    first, second = Path(one, path), Path(other, path)
    try:
        return first.samefile(second) or filecmp.cmp(first, second, shallow=False)
    except OSError:  # of another user, or a link to nowhere: no training reads it
        return True


def _package(name: str, a: Mapping[str, Package], b: Mapping[str, Package]) -> Member:
    before, after = (packages[name].version if name in packages else None for packages in (a, b))
    if before is None:
        label = f"added: {name} {after}"
    elif after is None:
        label = f"removed: {name} {before}"
    elif before == after:
        label = f"{name} {before} with other files"
    else:
        label = f"{name} {before} → {after}"
    return Member(name, before, after, printable(label))


def _python(a: Installed, b: Installed) -> Member:
    places = ("", "") if a.version != b.version else (f" ({a.base})", f" ({b.base})")
    label = f"Python {a.version}{places[0]} → {b.version}{places[1]}"
    return Member(PYTHON, a.version, b.version, printable(label))


def _unowned(a: Installed, b: Installed) -> Member:
    return Member(UNOWNED, None, None, printable(f"files of no package: {_some(_other_files(a, b))}"))


# ---- What needs what


def _needs(a: Installed, b: Installed, names: set[str]) -> dict[str, set[str]]:
    """By name: what must be switched no later, besides what that needs itself."""
    needs: dict[str, set[str]] = {name: set() for name in names}
    of_a, of_b = _requirements(a), _requirements(b)
    for name in names:
        needs[name] |= _only_here(of_b.get(name, []), b, a) & names
        for other in _only_here(of_a.get(name, []), a, b) & names:
            needs[other].add(name)
        if name != UNOWNED and _is_unlisted(name, a, b):
            needs[name].add(UNOWNED)
            needs[UNOWNED].add(name)
    _add_takeovers(a, b, needs)
    return needs


def _requirements(environment: Installed) -> dict[str, list[Requirement]]:
    """What each package requires there, also for the extras that others require of it: PyTorch requires
    cuda-toolkit[cublas]. What cannot be read is left out."""
    read = {name: list(_read(package.requires)) for name, package in environment.packages.items()}
    extras = defaultdict(set, {name: {""} for name in read})
    for each in (each for found in read.values() for each in found if _counts(each, environment, {""})):
        extras[normal_name(each.name)] |= each.extras
    return {name: [each for each in found if _counts(each, environment, extras[name])] for name, found in read.items()}


def _read(lines: Iterable[str]) -> Iterator[Requirement]:
    from packaging.requirements import InvalidRequirement, Requirement

    for line in lines:
        with suppress(InvalidRequirement):
            yield Requirement(line)


def _counts(requirement: Requirement, environment: Installed, extras: Iterable[str]) -> bool:
    from packaging.markers import UndefinedComparison, UndefinedEnvironmentName

    marker = requirement.marker
    try:
        return marker is None or any(marker.evaluate({**environment.markers, "extra": each}) for each in extras)
    except (UndefinedComparison, UndefinedEnvironmentName):
        return False


def _only_here(requirements: Iterable[Requirement], here: Installed, there: Installed) -> set[str]:
    """Of which packages one environment satisfies what is required, and the other does not."""
    return {normal_name(each.name) for each in requirements if _satisfies(here, each) and not _satisfies(there, each)}


def _satisfies(environment: Installed, requirement: Requirement) -> bool:
    from packaging.version import InvalidVersion

    package = environment.packages.get(normal_name(requirement.name))
    try:
        return package is not None and requirement.specifier.contains(package.version, prereleases=True)
    except InvalidVersion:
        return False


def _add_takeovers(a: Installed, b: Installed, needs: dict[str, set[str]]) -> None:
    """A file that one package has in A and another one brings in B is there only once: the one that has it is switched
    no later than the one that brings it."""
    before = {name: (a.packages[name].files or {}) for name in needs if name in a.packages}
    owners = {path: name for name, files in before.items() for path in files}
    for name in needs.keys() & b.packages.keys():
        for path, checksum in (b.packages[name].files or {}).items():
            owner = owners.get(path, name)
            if path not in before.get(name, {}) and owner != name and before[owner][path] != checksum:
                needs[name].add(owner)


def _reached(name: str, needs: Mapping[str, set[str]]) -> set[str]:
    found, left = {name}, [name]
    while left:
        new = needs[left.pop()] - found
        found |= new
        left.extend(new)
    return found
