"""Names the launch tests share."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from harness.experiment.exercises import DDP, AnyExperiment, Experiment
from harness.launch.exercises.base import launch_of
from harness.run import Run, Stage
from harness.run.record import RunRecord
from harness.site.site import load_site

ROOT = Path(__file__).resolve().parents[2]
SITES = sorted(file.stem for file in (ROOT / "configs/sites").glob("*.yaml"))

Harness = Callable[..., "subprocess.CompletedProcess[str]"]


def site_file(folder: Path, **fields: object) -> str:
    """The path of a new file of a site x with these fields."""
    path = folder / "site.yaml"
    path.write_text(json.dumps({"name": "x", "description": "x"} | fields), encoding="utf-8")
    return str(path)


def exported(script: str) -> list[str]:
    """The variables that a script exports, as NAME=VALUE, quoted as they are there."""
    lines = re.findall(r"^export (.*)$", script.replace(" \\\n ", ""), re.MULTILINE)
    word = re.compile(r"""\w+=(?:"[^"]*"|'[^']*'|[^\s"'])*""")
    return [found for line in lines for found in word.findall(line)]


def anywhere(script: str) -> str:
    """The script of a checkout at /checkout. The path of this checkout may be quoted; /checkout is not."""
    quoted = re.sub(f"'{re.escape(str(ROOT))}([^'\n]*)'", r"/checkout\1", script)
    return quoted.replace(str(ROOT), "/checkout")


def with_whole_paths(asked: Experiment) -> Experiment:
    return launch_of(asked).with_whole_paths(asked)


def a_run(
    root: Path, job_id: str, expects: list[str] | None = None, nodes: int = 1, asked: AnyExperiment | None = None
) -> Run:
    """A run that was published and never started, of exercise 1 if nothing else was asked for."""
    asked = asked or DDP(nodes=nodes, gpus_per_node=1)
    record = RunRecord(
        job_id=job_id, backend="local", experiment=asked, site=load_site("local"),
        job={"experiment": asked.model_dump(), "expects": expects or []}, command=["slurm.sh"],
        git={}, versions={}, user="someone", submit_host=socket.gethostname(), created_ns=time.time_ns(),
    )  # fmt: skip
    with Stage(root / asked.folder) as stage:
        Run(stage.path).write_record(record)
        return stage.publish(f"tiny-llama-{job_id}-n1", job_id)


def kept_by(run: Run, pid: int) -> None:
    """The files that submitit writes when it starts the controller `pid`."""
    run.controller_dir.mkdir(parents=True)
    (run.controller_dir / f"{pid}_submitted.pkl").touch()
