"""The flags of `check` that say what A and B have of their own, as one treatment of one launch."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Annotated, NamedTuple

import typer

from harness.common.display.text import how_many
from harness.common.errors import RequestError
from harness.common.paths import expanded
from harness.common.system.training_python import active_python
from harness.experiment.exercises import OwnTraining
from harness.launch.backends.registry import backend_of
from harness.study.check.ends import environments_root
from harness.study.check.package_environments import made
from harness.study.check.series import ArmLaunch
from harness.study.check.treatment import (
    AS_IT_IS,
    MACHINE,
    SOFTWARE,
    ArmEnvironment,
    Treatment,
    variables_of,
    whole_image,
    whole_python,
    words_of,
    words_of_variables,
)

Two = tuple[str, str]
Revisions = Annotated[Two | None, typer.Option("--rev", metavar="A B", help="two revisions of the git repository here")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="B has this variable; several are one change")
]
Unsets = Annotated[list[str] | None, typer.Option("--unset", metavar="NAME", help="B lacks this variable of the shell")]
Pythons = Annotated[Two | None, typer.Option("--python", metavar="A B", help="two Pythons, or folders of environments")]
Requirements = Annotated[
    Two | None,
    typer.Option("--requirements", metavar="A B", help="two files, of which uv makes environments that are kept"),
]
Images = Annotated[Two | None, typer.Option("--image", metavar="A B", help="two container images")]
Nodes = Annotated[Two | None, typer.Option("--nodes", metavar="A B", help="two nodes, in one allocation")]
Modules = Annotated[Two | None, typer.Option("--modules", metavar="A B", help="two modules in place of the site's")]


class TreatmentFlags(NamedTuple):
    """As typed."""

    revisions: Two | None
    sets: list[str]
    unset: list[str]
    pythons: Two | None
    requirements: Two | None
    images: Two | None
    nodes: Two | None
    modules: Two | None

    @property
    def words(self) -> list[str]:
        """The flags again, to repeat."""
        pairs = {
            "--rev": self.revisions, "--python": self.pythons, "--requirements": self.requirements,
            "--image": self.images, "--nodes": self.nodes, "--modules": self.modules,
        }  # fmt: skip
        found = [word for flag, pair in pairs.items() if pair for word in (flag, *pair)]
        found += [word for text in self.sets for word in ("--set", text)]
        return found + [word for name in self.unset for word in ("--unset", name)]

    @property
    def first(self) -> str:
        """The flag to name in a sentence; empty: none was given."""
        return next(iter(self.words), "")

    @property
    def takes(self) -> str:
        """What the first flag takes, for a sentence."""
        own = {"--rev": "two revisions", "--set": "NAME=VALUE", "--unset": "the name of a variable"}
        return f"{own.get(self.first, 'that of A and that of B')}, then one launch in quotes"

    @property
    def example(self) -> str:
        """The first flag as it is typed."""
        own = {"--rev": "main HEAD", "--set": "NCCL_ALGO=Ring", "--unset": "NCCL_ALGO"}
        return f"{self.first} {own.get(self.first, 'OLD NEW')} 'run -g 2 -- train.py'"


def treatment_of(flags: TreatmentFlags, base: ArmLaunch) -> Treatment:
    """The environments of both arms; those of `--requirements` are made. Raises RequestError: a value is wrong, the
    launch cannot have it, or A and B would be equal. WorkError: an environment cannot be made."""
    _refuse_misfits(flags, base)
    pythons = _pythons(flags, base)
    images = flags.images and (whole_image(flags.images[0]), whole_image(flags.images[1]))
    arms = [
        ArmEnvironment(
            python=pythons[arm] if pythons else None,
            image=images[arm] if images else None,
            nodelist=",".join(words_of(flags.nodes[arm], "--nodes")) if flags.nodes else None,
            modules=words_of(flags.modules[arm], "--modules") if flags.modules else (),
        )
        for arm in (0, 1)
    ]
    variables = variables_of(flags.sets, flags.unset)
    arms[1] = arms[1]._replace(variables=variables)
    is_same = arms[0] == arms[1]._replace(variables=arms[0].variables)
    if is_same and not flags.revisions and not _changed(variables, base, os.environ):
        raise RequestError(f"{flags.first}: A and B would be the same, so there is nothing to compare")
    a, b = (arm._replace(what=_what(flags, number, arm)) for number, arm in enumerate(arms))
    software = flags.pythons or flags.requirements or flags.images or flags.modules
    may_differ = frozenset([*variables, *[SOFTWARE] * bool(software), *[MACHINE] * bool(flags.nodes)])
    return Treatment(a, b, flags.words, may_differ)


def _refuse_misfits(flags: TreatmentFlags, base: ArmLaunch) -> None:
    is_own = isinstance(base.experiment, OwnTraining) and base.experiment.form != "command"
    of_python = "--python" if flags.pythons else "--requirements" if flags.requirements else ""
    if of_python and not is_own:
        raise RequestError(f"{of_python} takes a script or a module of your own, as in 'run -g 2 -- train.py'")
    if flags.pythons and flags.requirements:
        raise RequestError("--python and --requirements both name the Python of A and B: give one of them")
    if of_python and flags.images:
        raise RequestError(f"--image and {of_python}: a training runs in an image or with a Python: give one of them")
    if flags.nodes and backend_of(base.site).RUNS_HERE:
        raise RequestError(f"--nodes: site {base.site.name} is this machine alone: name one with Slurm with --site")
    for names in flags.nodes or ():
        if len(words_of(names, "--nodes")) != base.experiment.nodes:
            raise RequestError(f"--nodes {names}: the launch takes {how_many(base.experiment.nodes, 'node')} (-n)")


def _pythons(flags: TreatmentFlags, base: ArmLaunch) -> Two | None:
    if flags.pythons:
        return whole_python(flags.pythons[0]), whole_python(flags.pythons[1])
    if not flags.requirements:
        return None
    python = getattr(base.experiment, "python", None) or active_python(os.environ) or sys.executable
    print(f"environments: {environments_root()}", file=sys.stderr)
    a, b = (made(expanded(file), environments_root(), python) for file in flags.requirements)
    return a, b


def _changed(variables: Mapping[str, str | None], base: ArmLaunch, environ: Mapping[str, str]) -> bool:
    """Whether B's variables are not those that A has anyway."""
    known = {**environ, **base.site.env}
    return any(known.get(name) != text for name, text in variables.items())


def _what(flags: TreatmentFlags, arm: int, environment: ArmEnvironment) -> str:
    named = [flags.requirements or flags.pythons, flags.images, flags.nodes, flags.modules]
    words = [pair[arm] for pair in named if pair]
    words += [words_of_variables(environment.variables)] if environment.variables else []
    return ", ".join(words) or AS_IT_IS
