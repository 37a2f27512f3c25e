"""A training of the user's own: whether its script, its data and its Python are there, as seen from this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from harness.common.printable import printable
from harness.common.secrets import masked_words
from harness.doctor.result import IN_JOB, Result, ok, problem, unseen
from harness.doctor.surroundings import Surroundings
from harness.experiment.own import Own
from harness.launch.exercises.own_missing import program_missing, python_missing
from harness.launch.training_python import ask_python

_MOST_PATHS = 20


def is_own(around: Surroundings) -> bool:
    """Whether the doctor was asked about a training of the user's own."""
    return isinstance(around.own, Own)


def script(around: Surroundings) -> Iterator[Result]:
    """The words after `--`: the script, the module or the program."""
    asked, job = around.own, around.job
    if not isinstance(asked, Own) or job is None:
        return
    shared = "use a folder that all nodes share"
    wrong = [*program_missing(asked, job.site, around.environ)]
    yield from (problem("script", why, f"ls {asked.start_in}   # {shared}") for why in wrong)
    if not wrong:
        where = f" is in {asked.start_in}" if _lies_there(asked) else " is started as it is"
        yield ok("script", printable(asked.program) + where)


def _lies_there(asked: Own) -> bool:
    return asked.form == "script" or Path(asked.start_in, asked.program).is_file()


def training_python(around: Surroundings) -> Iterator[Result]:
    """The Python that trains, where it is one of the user's own."""
    asked, job = around.own, around.job
    if not isinstance(asked, Own) or asked.python is None or job is None:
        return
    wrong = [*python_missing(job.experiment, job.site)] if isinstance(job.experiment, Own) else []
    found = ask_python(asked.python)
    remedy = "python3 -m venv ~/venv   # then --python ~/venv/bin/python"
    if not isinstance(found, str):
        remedy = f"{asked.python} -m pip install torch   # or another Python: --python PATH"
    yield from (problem("the training's Python", why, remedy) for why in wrong)
    if not wrong and not isinstance(found, str):
        has = ", ".join(f"{name} {version}" for name, version in found.versions.items())
        yield ok("the training's Python", f"{asked.python}: {has}")


def paths_of(asked: Own) -> list[str]:
    """The files and folders among the script's arguments that are there now."""
    words = [
        word.rpartition("=")[2] if word.startswith("-") else word for word in masked_words(asked.arguments)
    ]
    places = [Path(asked.start_in, word) for word in words if word and not word.startswith("-")]
    return [str(place) for place in dict.fromkeys(places) if _is_there(place)][:_MOST_PATHS]


def _is_there(place: Path) -> bool:
    try:
        return place.exists()
    except (OSError, ValueError):
        return False


def data(around: Surroundings) -> Iterator[Result]:
    """The files and folders that the script's arguments name on the login node."""
    if around.place == "login" and around.paths:
        yield unseen(
            "data", f"whether the nodes see {_named(around.paths)} cannot be known from here: {IN_JOB}"
        )
        return
    lost = [path for path in around.paths if not os.access(path, os.R_OK)]
    for path in lost:
        what = (
            "cannot be read" if _is_there(Path(path)) else "is not seen here, and is there on the login node"
        )
        yield problem("data", f"{path} {what}", "df -h   # which folders do all nodes share?")
    if around.paths and not lost:
        yield ok("data", f"{_named(around.paths)} can be read")


def _named(paths: tuple[str, ...]) -> str:
    return ", ".join(map(printable, paths))
