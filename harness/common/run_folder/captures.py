"""Recordings that are asked for while a training runs: the files by which it is asked, and where it leaves them.

`slurm.sh capture` writes, the training's first rank looks. Where nsys records, every nsys first says that it is ready.
Standard library only.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from harness.common.run_folder.run_files import CAPTURES

FOLDER = CAPTURES.name.partition("/")[0]
STEPS = 5
MOST_STEPS = 1000  # a trace of more is hard to read, and to write


@dataclass(frozen=True)
class CaptureRequest:
    """A recording of `steps` steps, as many as `stop` leaves it. number: the run's first has 1; reports: those that
    nsys writes of it, 0 if torch.profiler records."""

    number: int
    steps: int
    reports: int = 0


def folder_of(run: Path, number: int) -> Path:
    """Where the recording of this number is: `rank<R>.json.gz`, one for each rank; of nsys, as in the run's own."""
    return run / FOLDER / str(number)


def request_file(run: Path) -> Path:
    """What was asked for last."""
    return run / FOLDER / "asked.json"


def stop_file(run: Path, number: int) -> Path:
    """Its presence ends the recording of this number after the step that runs."""
    return run / FOLDER / f"{number}.stop"


def given_up_file(run: Path, number: int) -> Path:
    """Its presence says that nothing of this number will be recorded: `stop` came before every nsys was ready."""
    return run / FOLDER / f"{number}.given-up"


def answer_file(run: Path, number: int, report: str, what: Literal["ready", "done"]) -> Path:
    """What the nsys that writes `report` says: it waits for the first step; all is written."""
    return run / FOLDER / f"{number}.{report}.{what}"


def is_ready(run: Path, request: CaptureRequest) -> bool:
    """Whether the recording may begin: every nsys waits for it."""
    return len(list((run / FOLDER).glob(f"{request.number}.*.ready"))) >= request.reports


def as_text(request: CaptureRequest) -> str:
    """The request file's content."""
    return json.dumps(asdict(request))


def read_request(run: Path) -> CaptureRequest | None:
    """What was asked for last; None: nothing, or nothing that can be read."""
    try:
        found = json.loads(request_file(run).read_text(encoding="utf-8"))
        asked = CaptureRequest(int(found["number"]), int(found["steps"]), int(found.get("reports", 0)))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return asked if asked.number >= 1 and 1 <= asked.steps <= MOST_STEPS else None
