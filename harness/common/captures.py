"""Recordings that are asked for while a training runs: the files by which it is asked, and where it leaves them.

`slurm.sh capture` writes, the training's first rank looks. Standard library only.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

FOLDER = "captures"
STEPS = 5
MOST_STEPS = 1000  # a trace of more is hard to read, and to write


@dataclass(frozen=True)
class Asked:
    """A recording of `steps` steps, as many as `stop` leaves it. number: the run's first has 1."""

    number: int
    steps: int


def folder_of(run: Path, number: int) -> Path:
    """Where the recording of this number is: `rank<R>.json.gz`, one for each rank."""
    return run / FOLDER / str(number)


def request_file(run: Path) -> Path:
    """What was asked for last."""
    return run / FOLDER / "asked.json"


def stop_file(run: Path, number: int) -> Path:
    """Its presence ends the recording of this number after the step that runs."""
    return run / FOLDER / f"{number}.stop"


def as_text(asked: Asked) -> str:
    """The request file's content."""
    return json.dumps(asdict(asked))


def read_request(run: Path) -> Asked | None:
    """What was asked for last; None: nothing, or nothing that can be read."""
    try:
        found = json.loads(request_file(run).read_text(encoding="utf-8"))
        asked = Asked(int(found["number"]), int(found["steps"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return asked if asked.number >= 1 and 1 <= asked.steps <= MOST_STEPS else None
