"""What a mystery keeps in its run: the answer, and after its end the faults, to be seen."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from harness.common.faults.fault import FaultLine
from harness.common.faults.mystery import hidden_folder, is_mystery
from harness.common.run_folder.run_files import ANSWER, INJECTED, REVEALED
from harness.experiment.training import Training
from harness.run.files import disk_error, typed, write_atomically


class MysteryAnswer(BaseModel):
    """What a student says. ranks: None: all."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    cause: str
    ranks: tuple[int, ...] | None = None

    def __str__(self) -> str:
        if self.ranks is None:
            return f"{self.cause} on all ranks"
        return f"{self.cause} on rank{'s' * (len(self.ranks) > 1)} {', '.join(map(str, self.ranks))}"


ANSWER_FILE = typed(ANSWER, MysteryAnswer)


def read_answer(run: Path) -> MysteryAnswer | None:
    """The answer to a mystery; None before it."""
    return ANSWER_FILE.known(ANSWER.path(run))


def write_answer(run: Path, answer: MysteryAnswer) -> None:
    """Keep the answer. Raises DiskError."""
    write_atomically(ANSWER.path(run), ANSWER_FILE.encode(answer))


class MysterySolution(BaseModel):
    """The file that ends a mystery."""

    faults: tuple[str, ...]


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
