"""What a mystery keeps in its run: the answers in the order given, and after its end the faults, to be seen."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from harness.common.faults import FaultLine
from harness.common.mystery import hidden_folder, is_mystery
from harness.common.run_files import ANSWERS, INJECTED, REVEALED
from harness.common.run_store import UnreadFileError
from harness.experiment.training import Mystery, Training
from harness.run.files import disk_error, typed, write_atomically


class MysteryAnswer(BaseModel):
    """What a student says. ranks: None: all. phase, ms, step: None: not said. ms: in a step that it hits. step: the one
    in which a rank hangs or dies."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    cause: str
    ms: float | None = None
    ranks: tuple[int, ...] | None = None
    phase: str | None = None
    every: int = 1
    step: int | None = None


class AnswerLine(BaseModel):
    """A line of an answers file; a board needs no other file. answer: None: here the mystery was revealed.
    please_do_not_look: the faults; none: a line of an earlier version."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    unix_ns: int
    student: str
    run: str
    exercise: int
    world_size: int
    mystery: Mystery
    please_do_not_look: tuple[str, ...] = ()
    answer: MysteryAnswer | None = None


def answers_file(run: Path) -> Path:
    return ANSWERS.path(run)


def add_answer(run: Path, line: AnswerLine) -> None:
    """Append a line: what is there stays. Raises DiskError."""
    path = answers_file(run)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, f"{line.model_dump_json()}\n".encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise disk_error(path, error) from None


def read_answers(path: Path) -> list[AnswerLine]:
    """Every line of an answers file that is one, oldest first; none where there is no file. Raises WorkError: it cannot
    be read."""
    try:
        lines = list(ANSWERS.objects(path))
    except UnreadFileError as error:
        if error.is_missing:
            return []
        raise
    found: list[AnswerLine] = []
    for line in lines:
        with suppress(ValueError):
            found.append(AnswerLine.model_validate(line))
    return found


def before_reveal(lines: list[AnswerLine]) -> list[AnswerLine]:
    """The answers that count: those before the mystery was revealed."""
    return list(takewhile(lambda line: line.answer is not None, lines))


class MysterySolution(BaseModel):
    """The file that ends a mystery."""

    faults: tuple[str, ...]
    without: str | None = None  # the name of the run without the faults


REVEALED_FILE = typed(REVEALED, MysterySolution)


def revealed_file(run: Path) -> Path:
    return REVEALED.path(run)


def read_revealed(run: Path) -> MysterySolution | None:
    """The end of a mystery; None before it."""
    return REVEALED_FILE.known(revealed_file(run))


def write_revealed(run: Path, revealed: MysterySolution) -> None:
    """End the mystery. Raises DiskError."""
    write_atomically(revealed_file(run), REVEALED_FILE.encode(revealed))


def is_hidden(run: Path, experiment: object) -> bool:
    """Whether the run is a mystery that was not revealed. experiment: as far as its record can be read."""
    recorded = isinstance(experiment, Training) and experiment.mystery is not None
    return (recorded or is_mystery(run)) and read_revealed(run) is None


def show_records(run: Path) -> None:
    """Move what was injected from the hidden folder to faults/. Raises DiskError."""
    for path in sorted(hidden_folder(run).glob("rank*.jsonl")):
        shown = INJECTED.path(run).with_name(path.name)
        try:
            shown.parent.mkdir(exist_ok=True)
            path.replace(shown)
        except OSError as error:
            raise disk_error(shown, error) from None


def injected(run: Path) -> list[FaultLine]:
    """What was injected, after it was revealed."""
    shape = {name: type(value) for name, value in asdict(FaultLine(0, "", 0, 0, 0)).items()}
    found: list[FaultLine] = []
    for path in INJECTED.paths(run):
        lines = INJECTED.known_objects(path)
        found += [FaultLine(**line) for line in lines if {k: type(v) for k, v in line.items()} == shape]
    return found
