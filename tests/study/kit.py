"""What tests of this folder do in several files: ask a command, and put completed runs on disk."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from harness.cli.command import read_launch
from harness.cli.launch.launch import request_of
from harness.common.faults.mystery import checksum, hidden_file, hidden_text
from harness.common.paths import ROOT
from harness.common.system.users import this_user
from harness.experiment.exercises import DDP, Experiment
from harness.experiment.training import Mystery
from harness.run import Run, Stage
from harness.run.record import RunRecord, State, Status
from harness.site.site import Site, load_site


class Said(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def words(self) -> str:
        """What it printed, with one blank between two words."""
        return " ".join(f"{self.out} {self.err}".split())


Say = Callable[..., Said]


def page_of(exercise: str) -> str:
    """The pages of an exercise, one after the other; 4: of the faults."""
    pages = sorted((ROOT / "exercises").glob(f"exercise_{exercise}_*/*.md")) or [ROOT / "docs" / "faults.md"]
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


def completed(
    root: Path, job_id: str, experiment: Experiment, site: Site | None = None, state: State = "completed", **more: Any
) -> Run:
    """A run as it lies on disk after this end, without a trace. more: fields of its record."""
    record = RunRecord.model_validate(
        {
            "job_id": job_id, "backend": "local", "experiment": experiment.model_dump(),
            "site": (site or load_site("local")).model_dump(), "job": {}, "command": [], "git": {}, "versions": {},
            "user": this_user(), "submit_host": "x", "created_ns": time.time_ns(), **more,
        }
    )  # fmt: skip
    with Stage(root / experiment.folder) as stage:
        Run(stage.path).write_record(record)
        run = stage.publish(f"run-{job_id}", job_id)
    run.write_status(Status(state=state))
    return run


def a_mystery(root: Path, job_id: str, faults: tuple[str, ...]) -> Run:
    """A completed mystery of two ranks, with its faults where a launch puts them."""
    hidden = Mystery(level=1, commitment=checksum(faults), faults=faults)
    run = completed(root, job_id, DDP(gpus_per_node=2, mystery=hidden))
    hidden_file(run.path).parent.mkdir()
    hidden_file(run.path).write_text(hidden_text(faults))
    return Run(run.path)


def asked_at(*words: str) -> tuple[Experiment, Site]:
    """What the words of a launch ask for, and where."""
    experiment, choice = request_of(read_launch([*words]))
    return experiment, choice.site
