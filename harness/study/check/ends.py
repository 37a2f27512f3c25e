"""The two environments of a check as things that differ between them, and an environment with some of them as B has
them. Makes Python environments; launches nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.analysis.summary import RunEnvironment
from harness.common.errors import RequestError
from harness.run import runs_root
from harness.study.check.package_environments import made, mixed
from harness.study.check.package_groups import PackageGroup, closure, differing
from harness.study.check.packages import Installed, installed, requirements_of
from harness.study.check.series import CheckArm
from harness.study.check.treatment import ArmEnvironment, words_of_variables


class Thing(NamedTuple):
    """One thing that differs. field: of an environment. key: the variable's or the module's name; of packages their
    group's number."""

    label: str
    field: str
    key: str | int = ""


class Packages(NamedTuple):
    """Two Python environments. groups: of packages that differ, in the order in which they can be switched."""

    a: Installed
    b: Installed
    groups: list[PackageGroup]


class Ends(NamedTuple):
    """Both environments. things: packages first."""

    a: ArmEnvironment
    b: ArmEnvironment
    packages: Packages | None
    things: list[Thing]

    def with_some(self, chosen: Sequence[int]) -> ArmEnvironment:
        """A with these things as B has them. Raises RequestError, WorkError: its packages cannot be put together."""
        things = [self.things[each] for each in chosen]
        changes = {thing.field: getattr(self.b, thing.field) for thing in things if thing.field not in _IN_PARTS}
        names = {field: {thing.key for thing in things if thing.field == field} for field in _IN_PARTS}
        variables = dict(self.a.variables) | {n: t for n, t in self.b.variables.items() if n in names["variables"]}
        changes |= {"variables": variables, "modules": self._modules(names["modules"])}
        if self.packages is not None and names["python"]:
            groups = [group for number, group in enumerate(self.packages.groups) if number in names["python"]]
            changes["python"] = mixed(self.packages.a, self.packages.b, groups, environments_root())
        return self.a._replace(what=", ".join(thing.label for thing in things), **changes)

    def needs(self, thing: int) -> list[int]:
        """It and the earlier things without which it cannot run."""
        if self.packages is None or self.things[thing].field != "python":
            return [thing]
        return [self.packages.groups.index(group) for group in closure(self.packages.groups, thing)]

    def _modules(self, of_b: set[str | int]) -> tuple[str, ...]:
        a, b = _by_name(self.a.modules), _by_name(self.b.modules)
        kept = {name: module for name, module in a.items() if name not in of_b}
        return tuple((kept | {name: module for name, module in b.items() if name in of_b}).values())


_IN_PARTS = ("python", "variables", "modules")


def environments_root() -> Path:
    """The folder of the Python environments that checks make, which are kept for the next one."""
    return runs_root() / "environments"


def ends_of(a: ArmEnvironment, b: ArmEnvironment) -> Ends:
    """What differs between the environments of the two arms. Raises RequestError: a Python cannot be asked."""
    packages = None
    if a.python is not None and b.python is not None and a.python != b.python:
        of_a, of_b = installed(a.python), installed(b.python)
        packages = Packages(of_a, of_b, differing(of_a, of_b))
    groups = [Thing(each.label, "python", number) for number, each in enumerate(packages.groups if packages else [])]
    return Ends(a, b, packages, [*groups, *_others(a, b)])


def environments_of(a: CheckArm, b: CheckArm) -> tuple[ArmEnvironment, ArmEnvironment]:
    """The environments in which the runs of two arms were made, as far as they differ. A Python whose packages are not
    those of its runs any more is made again. Raises RequestError: a run did not record its environment, or its Python
    is not here. WorkError: it cannot be made."""
    recorded = [_recorded(arm) for arm in (a, b)]
    is_other = len({tuple(sorted(each.packages.items())) for each in recorded}) > 1
    pythons = [_python_of(each) for each in recorded] if is_other else [None, None]
    variables: list[dict[str, str | None]] = [{}, {}]
    for name in dict.fromkeys([*recorded[0].variables, *recorded[1].variables]):
        texts = [each.variables.get(name) for each in recorded]
        if texts[0] != texts[1]:
            variables[0][name], variables[1][name] = texts
    modules = [tuple(each.modules) if recorded[0].modules != recorded[1].modules else () for each in recorded]
    one, other = (
        ArmEnvironment(arm.arguments, variables[i], pythons[i], modules=modules[i]) for i, arm in enumerate((a, b))
    )
    return one, other


def _recorded(arm: CheckArm) -> RunEnvironment:
    for run in arm.runs:
        if not run.summary.environments:
            raise RequestError(f"--which: {run.name} did not record its environment: give --python or --requirements")
    return arm.runs[0].summary.environments[0]


def _python_of(environment: RunEnvironment) -> str:
    python = environment.system.get("executable", "")
    if not Path(python).is_file():
        raise RequestError(f"--which: {python or 'the Python of a run'} is not here: give --python or --requirements")
    now = {name: package.version for name, package in installed(python).packages.items()}
    if now.items() <= environment.packages.items():  # a run also sees packages of PYTHONPATH
        return python
    return made(requirements_of(environment.packages), environments_root(), python)


def _others(a: ArmEnvironment, b: ArmEnvironment) -> Iterator[Thing]:
    for name in dict.fromkeys([*a.variables, *b.variables]):
        if name not in a.variables:
            yield Thing(words_of_variables({name: b.variables[name]}), "variables", name)
        elif a.variables[name] != b.variables.get(name):
            before, after = (each.variables.get(name) for each in (a, b))
            yield Thing(f"{name} {before or 'unset'} → {after or 'unset'}", "variables", name)
    modules = _by_name(a.modules), _by_name(b.modules)
    for name in dict.fromkeys([*modules[0], *modules[1]]):
        of_a, of_b = (each.get(name, "no module") for each in modules)
        if of_a != of_b:
            yield Thing(f"{of_a} → {of_b}", "modules", name)
    for field in ("image", "nodelist"):
        before, after = getattr(a, field), getattr(b, field)
        if before != after:
            yield Thing(f"{before} → {after}", field)


def _by_name(modules: Sequence[str]) -> dict[str, str]:
    return {module.partition("/")[0]: module for module in modules}
