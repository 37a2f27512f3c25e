"""What a node of a run writes of itself, `node-status/<N>.json`: of a launch as of an observed command. It is read as
`NodeStatus` of harness/run/record.py. Light: it imports no pydantic."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from harness.common.run_folder.run_files import NODE_STATUS
from harness.run.files import write_atomically


class NodeStatusFile:
    """The status of a node that begins now. commands: as they were started, without secrets; left_out: a sentence for
    each option that its nsys does not know."""

    def __init__(self, run: Path, number: int, environ: Mapping[str, str] = os.environ) -> None:
        self.path, self._number = NODE_STATUS.path(run, number), number
        self.host = socket.gethostname().partition(".")[0]
        self.started_ns = time.time_ns()
        self.commands: list[list[str]] = []
        self.left_out: list[str] = []
        # Where Slurm knows the network, the switches above this node, as root.leaf07.node0412.
        self._topology = environ.get("SLURM_TOPOLOGY_ADDR", "")
        self._topology_pattern = environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", "")

    def write(self, code: int | None) -> None:
        """Write all of it or none. code: the commands' exit status; None: they run. Raises DiskError."""
        status = {
            "node": self._number,
            "host": self.host,
            "exit": code,
            "started_ns": self.started_ns,
            "ended_ns": None if code is None else time.time_ns(),
            "topology": self._topology,
            "topology_pattern": self._topology_pattern,
            "commands": self.commands,
            "left_out": self.left_out,
        }
        write_atomically(self.path, json.dumps(status) + "\n")
