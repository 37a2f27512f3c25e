"""What a mystery keeps in its run: the answers in the order given, and after its end the secret itself."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from harness.common.bounded_read import read_bounded_text, why_unread
from harness.common.errors import WorkError
from harness.common.faults import FaultLine
from harness.common.mystery import Secret, sealed_file, unseal
from harness.experiment.training import Mystery, Training
from harness.run.files import disk_error, read_json_lines, write_atomically


class Answer(BaseModel):
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
    """A line of an answers file; a board needs no other file. answer: None: here the mystery was revealed."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    unix_ns: int
    student: str
    run: str
    exercise: int
    world_size: int
    mystery: Mystery
    answer: Answer | None = None


def answers_file(run: Path) -> Path:
    return run / "mystery-answers.jsonl"


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
        lines = list(read_json_lines(path))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise WorkError(f"{path} cannot be read: {why_unread(error)}") from None
    found: list[AnswerLine] = []
    for line in lines:
        with suppress(ValueError):
            found.append(AnswerLine.model_validate(line))
    return found


def before_reveal(lines: list[AnswerLine]) -> list[AnswerLine]:
    """The answers that count: those before the mystery was revealed."""
    return list(takewhile(lambda line: line.answer is not None, lines))


class Revealed(BaseModel):
    """The file that ends a mystery: only who can open the secret can write it."""

    faults: tuple[str, ...]
    salt: str
    without: str | None = None  # the name of the run without the faults


def revealed_file(run: Path) -> Path:
    return run / "mystery-revealed.json"


def read_revealed(run: Path) -> Revealed | None:
    """The end of a mystery; None before it."""
    try:
        return Revealed.model_validate_json(read_bounded_text(revealed_file(run)))
    except (OSError, ValueError):
        return None


def write_revealed(run: Path, revealed: Revealed) -> None:
    """End the mystery. Raises DiskError."""
    write_atomically(revealed_file(run), revealed.model_dump_json(indent=1) + "\n")


def is_hidden(run: Path, asked: object) -> bool:
    """Whether the run is a mystery that was not revealed. asked: its experiment, as far as its record can be read."""
    committed = {asked.mystery.commitment} if isinstance(asked, Training) and asked.mystery else set()
    if sealed_file(run).is_file():
        try:
            committed.add(Secret.open(read_bounded_text(sealed_file(run))).commitment)
        except (OSError, ValueError):
            committed.add("")  # it was changed: no secret has this commitment
    revealed = read_revealed(run)
    told = Secret(revealed.faults, revealed.salt).commitment if revealed else None
    return bool(committed - {told})


def unseal_records(run: Path) -> None:
    """Write faults/rank<R>.jsonl from its sealed lines. Raises DiskError."""
    for path in sorted((run / "faults").glob("rank*.sealed")):
        try:
            lines = unseal(read_bounded_text(path)).decode()
        except (OSError, ValueError):  # cut short, as where the disk was full
            continue
        write_atomically(path.with_suffix(".jsonl"), lines)


def injected(run: Path) -> list[FaultLine]:
    """What was injected, after it was revealed."""
    shape = {name: type(value) for name, value in asdict(FaultLine(0, "", 0, 0, 0)).items()}
    found: list[FaultLine] = []
    for path in sorted((run / "faults").glob("rank*.jsonl")):
        with suppress(OSError, ValueError):  # a file that is none
            lines = read_json_lines(path)
            found += [FaultLine(**line) for line in lines if {k: type(v) for k, v in line.items()} == shape]
    return found
