"""A healthy cluster of stand-in programs and real files, into which a test plants a fault."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml

from harness.doctor.checks import examine
from harness.doctor.surroundings import CheckLine, CourseSize, Level, Place, Surroundings, look_around
from harness.site.site import load_site

INSIDE: dict[str, Any] = {
    "modules": {
        name: {"version": "1.0"} for name in ("torch", "accelerate", "transformers", "deepspeed", "megatron.core")
    },
    "cuda": {"platform": "CUDA", "built": "12.6", "count": 4, "error": ""},
}


def inside(**changes: Any) -> str:
    """The body of a container command whose Python finds this."""
    return f"echo '{json.dumps(INSIDE | changes)}'"


PROGRAMS: dict[str, str | None] = {
    "sbatch": "echo 'sbatch: Job 17 to start at 2026-11-24T09:00:00 using 128 processors on nodes node1' >&2",
    "srun": "",
    "sacctmgr": "echo '7-00:00:00||gres/gpu=16'",
    "apptainer": inside(),
    "nsys": "echo 'NVIDIA Nsight Systems version 2024.6.2.0-1'",
}  # fmt: skip
FILES = {"data/alpaca.json": "[]", "training.sif": "hsqs"}
SITE = {
    "name": "test", "description": "x", "partition": "gpu", "account": "demo", "qos": "normal",
    "gpus": {"per_node": 4}, "cpus_per_node": 32, "time": "00:30:00", "sbatch": ["--reservation=course"],
    "container": {"command": "apptainer", "image": "{folder}/training.sif"},
    "network": {"interface": "lo"}, "data": "{folder}/data/alpaca.json", "profiler": "nsys",
}  # fmt: skip
EMPTY: Mapping[str, Any] = MappingProxyType({})


@dataclass
class Cluster:
    """Programs, files, a site and variables, as a user of the cluster sees them."""

    folder: Path
    patch: pytest.MonkeyPatch
    site: dict[str, Any] = field(default_factory=dict)
    course: CourseSize = field(default_factory=CourseSize)

    def plant(
        self,
        programs: Mapping[str, str | None] = EMPTY,
        files: Mapping[str, str | None] = EMPTY,
        site: Mapping[str, Any] = EMPTY,
        variables: Mapping[str, str] = EMPTY,
        course: CourseSize | None = None,
    ) -> Cluster:
        """Add these; None takes a program or a file away. `{folder}` in the site is the cluster's folder."""
        for name, body in programs.items():
            self.file(f"bin/{name}", None if body is None else f"#!/bin/sh\n{body}\n").chmod(0o755)
        for name, text in files.items():
            self.file(name, text)
        self.site |= json.loads(json.dumps(dict(site)).replace("{folder}", str(self.folder)))
        for name, value in variables.items():
            self.patch.setenv(name, value)
        self.course = course or self.course
        return self

    def file(self, name: str, text: str | None) -> Path:
        """Write a file, or take it away; returns it, or its folder."""
        path = self.folder / name
        if text is None:
            path.unlink()
            return path.parent
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def surroundings(self, place: Place) -> Surroundings:
        file = self.file("site.yaml", yaml.safe_dump(self.site))
        return look_around(load_site(str(file)), place, self.course)

    def lines(self) -> list[CheckLine]:
        """What the doctor says of a machine that is login and compute node."""
        return list(examine(self.surroundings("here")))

    def lines_from_login(self) -> list[CheckLine]:
        """What it says from the login node alone."""
        return list(examine(self.surroundings("login")))


def faulty(lines: Iterable[CheckLine]) -> list[CheckLine]:
    """The warnings and problems."""
    return [line for line in lines if line.result.level in (Level.WARNING, Level.PROBLEM)]
