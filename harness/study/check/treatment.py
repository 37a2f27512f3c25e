"""What an arm of a check has of its own beside the launch that both arms share: variables, a Python, an image, nodes,
modules, or the folder of a revision. Starts nothing."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic import ValidationError

from harness.common.errors import RequestError, near_path
from harness.common.paths import expanded
from harness.common.system.training_python import ask_python
from harness.experiment.exercises import OwnTraining
from harness.site.alphabets import NAME_PATTERN, TAKES, WORD_PATTERN
from harness.site.site import Site
from harness.study.check.series import ARMS, ArmLaunch, Launches

AS_IT_IS = "as it is"
SOFTWARE, MACHINE = "software", "machine"
_NONE: Mapping[str, str | None] = MappingProxyType({})
_FLAG_OF = {"env": "--set", "modules": "--modules", "nodelist": "--nodes", "container": "--image"}


class ArmEnvironment(NamedTuple):
    """What one arm has of its own; empty: all is the launch's. variables: None removes one. nodelist: names with
    commas. folder: where the training starts. what: in words."""

    what: str = AS_IT_IS
    variables: Mapping[str, str | None] = _NONE
    python: str | None = None
    image: str | None = None
    nodelist: str | None = None
    modules: tuple[str, ...] = ()
    folder: str | None = None

    def applied(self, launch: ArmLaunch) -> ArmLaunch:
        """The launch with it. Raises RequestError: the launch or its site cannot have it."""
        of_own = {"python": self.python, "start_in": self.folder}
        given: dict[str, str | None] = {name: value for name, value in of_own.items() if value is not None}
        if self.image is not None and isinstance(launch.experiment, OwnTraining):
            given["python"] = None  # else the active environment trains and not the image
        experiment = launch.experiment.model_copy(update=given)
        return launch._replace(experiment=experiment, site=self._site(launch.site))

    def _site(self, site: Site) -> Site:
        changes: dict[str, Any] = {}
        if self.variables:
            kept = {name: text for name, text in site.env.items() if name not in self.variables}
            changes["env"] = kept | {name: text for name, text in self.variables.items() if text is not None}
            changes["setup"] = [*site.setup, *(f"unset {n}" for n, text in self.variables.items() if text is None)]
        if self.modules:
            changes["modules"] = with_modules(site.modules, self.modules)
        if self.nodelist is not None:
            changes["nodelist"] = self.nodelist
        if self.image is not None:
            container = site.container.model_dump() if site.container else {"runtime": _runtime()}
            changes["container"] = container | {"image": self.image}
        try:
            return Site.model_validate(site.model_dump() | changes) if changes else site
        except ValidationError as error:
            raise RequestError("\n".join(_sentences(error))) from None


def _runtime() -> str:
    """What starts an image where the site names nothing."""
    return next((name for name in ("apptainer", "singularity") if shutil.which(name)), "singularity")


def _sentences(error: ValidationError) -> Iterator[str]:
    for each in error.errors():
        where = _FLAG_OF.get(str(each["loc"][0]), str(each["loc"][0]))
        given = "" if each["type"] == "secret" else f" {'='.join(map(str, each['loc'][1:]))}={each['input']}"
        yield f"{where}{given}: {each['msg'].removeprefix('Value error, ')}"


def with_modules(of_site: list[str], own: tuple[str, ...]) -> list[str]:
    """The site's modules with an arm's own in place of those of the same name.

    >>> with_modules(["gcc/12", "cuda/12.1"], ("cuda/12.6", "nccl"))
    ['gcc/12', 'cuda/12.6', 'nccl']
    """
    names = {module.partition("/")[0]: module for module in own}
    kept = [names.pop(module.partition("/")[0], module) for module in of_site]
    return [*kept, *names.values()]


class Treatment(NamedTuple):
    """Two environments of one launch. flags: that ask for them, to repeat. may_differ: in what the runs of A and B
    may differ, since that was asked: SOFTWARE, MACHINE, names of variables."""

    a: ArmEnvironment
    b: ArmEnvironment
    flags: list[str]
    may_differ: frozenset[str] = frozenset()

    def launches(self, base: ArmLaunch) -> Launches:
        """Both arms. Raises RequestError: the launch or its site cannot have an environment."""
        return {arm: environment.applied(base) for arm, environment in zip(ARMS, (self.a, self.b), strict=True)}


def variables_of(sets: list[str], unset: list[str]) -> dict[str, str | None]:
    """Those of `--set NAME=VALUE` and `--unset NAME`. Raises RequestError: a word is no such pair or name, or a
    variable is given twice."""
    found: dict[str, str | None] = {}
    for word, flag in [*((word, "--set") for word in sets), *((word, "--unset") for word in unset)]:
        name, equals, text = word.partition("=")
        if not re.fullmatch(NAME_PATTERN, name) or bool(equals) != (flag == "--set"):
            takes = "NAME=VALUE, as NCCL_ALGO=Ring" if flag == "--set" else "the name of a variable, as NCCL_ALGO"
            raise RequestError(f"{flag} takes {takes}, not {word!r}")
        if name in found:
            raise RequestError(f"{flag} {word}: {name} is given twice")
        found[name] = text if equals else None
    return found


def words_of_variables(variables: Mapping[str, str | None]) -> str:
    """`NCCL_ALGO=Ring, without NCCL_PROTO`."""
    return ", ".join(f"without {name}" if text is None else f"{name}={text}" for name, text in variables.items())


def whole_python(text: str) -> str:
    """The path of a Python that trains; of an environment its folder is taken, too. Raises RequestError: it is none."""
    path = expanded(text).absolute()
    python = path / "bin" / "python" if (path / "bin" / "python").exists() else path
    if isinstance(wrong := ask_python(str(python)), str):
        raise RequestError(f"--python {text}: {wrong}")
    return str(python)


def whole_image(text: str) -> str:
    """The path of an image, or a registry's name as it is. Raises RequestError: there is no such file."""
    path = expanded(text)
    if path.exists():
        return str(path.absolute())
    if "://" in text or ("/" not in text and not text.endswith((".sif", ".sqsh"))) or text.startswith("$"):
        return text
    raise RequestError(f"--image {text}: there is no such file{near_path(path, Path.is_file)}")


def words_of(text: str, flag: str) -> tuple[str, ...]:
    """The names of modules or nodes in one argument, with blanks or commas between them. Raises RequestError: a name
    has signs that none has, or there is none."""
    names = tuple(text.replace(",", " ").split())
    if wrong := next((name for name in names if not re.fullmatch(WORD_PATTERN, name)), None if names else ""):
        raise RequestError(f"{flag} {text}: {wrong!r} is no name: it takes {TAKES[WORD_PATTERN]}")
    if not names:
        raise RequestError(f"{flag}: one of the two is empty: leave the flag out, or name what each arm has")
    return names
