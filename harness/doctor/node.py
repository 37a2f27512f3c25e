"""A compute node's part of `doctor --in-job`: look, and write what was found into the folder that all nodes share."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from pydantic import BaseModel

from harness.common.bounded_read import read_bounded_text
from harness.doctor.checks import examine
from harness.doctor.result import CheckLine
from harness.doctor.surroundings import Course, look_around
from harness.experiment.exercises import AnyExperiment
from harness.run import write_atomically
from harness.site.site import Site


class NodeRequest(BaseModel):
    """What every node is asked."""

    site: Site
    nodes: int
    course: Course
    own: AnyExperiment | None = None
    paths: list[str] = []


class Report(BaseModel):
    """What one node found."""

    node: int
    host: str
    lines: list[CheckLine]
    looking_at: str = ""  # the check that it has begun; empty when it is through


def asked_file(folder: Path) -> Path:
    """The question, in the folder of the job."""
    return folder / "asked.json"


def report_file(folder: Path, node: int) -> Path:
    """A node's answer."""
    return folder / f"node{node}.json"


def draft_file(folder: Path, node: int) -> Path:
    """A node's answer so far, for the case that a check hangs."""
    return folder / f"node{node}.draft.json"


def main(argv: list[str]) -> int:
    """`FOLDER`: answer for this node."""
    folder = Path(argv[0])
    asked = NodeRequest.model_validate_json(read_bounded_text(asked_file(folder)))
    around = look_around(asked.site, "node", asked.course, asked.nodes, own=asked.own, paths=asked.paths)
    node = int(os.environ.get("SLURM_NODEID", "0"))
    report = Report(node=node, host=socket.gethostname().split(".")[0], lines=[])

    def begin(check: str) -> None:
        report.looking_at = check
        write_atomically(draft_file(folder, node), report.model_dump_json())

    for line in examine(around, begin=begin):
        report.lines.append(line)
    report.looking_at = ""
    write_atomically(report_file(folder, node), report.model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
