"""A compute node's part of `doctor --in-job`: look, and write what was found into the folder that all nodes share."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from pydantic import BaseModel

from harness.doctor.checks import examine
from harness.doctor.result import Line
from harness.doctor.surroundings import Course, look_around
from harness.run import write_atomically
from harness.site.site import Site


class Asked(BaseModel):
    """What every node is asked."""

    site: Site
    nodes: int
    course: Course


class Report(BaseModel):
    """What one node found."""

    node: int
    host: str
    lines: list[Line]


def asked_file(folder: Path) -> Path:
    """The question, in the folder of the job."""
    return folder / "asked.json"


def report_file(folder: Path, node: int) -> Path:
    """A node's answer."""
    return folder / f"node{node}.json"


def main(argv: list[str]) -> int:
    """`FOLDER`: answer for this node."""
    folder = Path(argv[0])
    asked = Asked.model_validate_json(asked_file(folder).read_text(encoding="utf-8"))
    around = look_around(asked.site, "node", asked.course, asked.nodes)
    node = int(os.environ.get("SLURM_NODEID", "0"))
    report = Report(node=node, host=socket.gethostname().split(".")[0], lines=list(examine(around)))
    write_atomically(report_file(folder, node), report.model_dump_json(indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
