"""`bash slurm.sh` as a student types it on the tests' cluster, and the run on disk."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.exercises.launching import UNHURRIED
from tests.faults.light_launch import write_customize
from tests.faults.light_train import MARKS
from tests.slurm.slurm_cluster import JOB_S, Slurm

REPOSITORY = Path(__file__).resolve().parents[2]
SITE: dict[str, Any] = {
    "name": "testcluster",
    "description": "the tests' own Slurm: two nodes without GPUs",
    "scheduler": "slurm",
    "device": "cpu",
    "gpus": {"per_node": 1, "request": "none"},
    "partition": "gpu",
    "time": "00:10:00",
    "network": {"interface": "eth0"},
    "env": {"TOKENIZERS_PARALLELISM": "false"},
}
TWO_NODES = ("-e", "1", "-n", "2")
SHORT = (
    *("--skip-steps", "1", "--wait-steps", "1", "--warmup-steps", "1", "--active-steps", "3"),
    *("--seq-length", "64"),
)
# Runs until it is stopped; the profiler records from the third step on. A trace of few steps is written quickly, and a
# stopped job has seconds.
ENDLESS = (
    *("--script", str(UNHURRIED), "--seq-length", "64"),
    *("--skip-steps", "1", "--wait-steps", "0", "--warmup-steps", "1", "--active-steps", "9999"),
)


@dataclass(frozen=True)
class Submitted:
    """A run that was submitted."""

    job_id: str
    path: Path

    @property
    def logs(self) -> Path:
        return self.path.parent.parent / "logs" / self.job_id

    def read(self, name: str) -> Any:
        """One of the run's JSON files."""
        return json.loads((self.path / name).read_text())

    def node_exits(self) -> dict[str, int]:
        """Each node's exit status, by host."""
        said = [json.loads(file.read_text()) for file in (self.path / "node-status").glob("*.json")]
        return {node["host"]: node["exit"] for node in said}

    def events(self, rank: int) -> list[dict[str, Any]]:
        """The metrics of a rank so far, without an incomplete line."""
        path = self.path / "metrics" / f"rank{rank}.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def active_steps(self, rank: int) -> int:
        """The number of profiled steps so far."""
        return sum(event.get("phase") == "active" for event in self.events(rank))


@dataclass(frozen=True)
class SlurmSh:
    """slurm.sh on one cluster; runs go to `runs`, whose name breaks scripts without quotes."""

    slurm: Slurm
    runs: Path

    def site(self, name: str, **changes: Any) -> Path:
        """A site file of this cluster with some fields changed."""
        path = self.runs.parent / f"{name}.yaml"
        path.write_text(yaml.safe_dump({**SITE, **changes}))
        return path

    def light(self, name: str, nodes: int = 2, fault: str = "", **changes: Any) -> tuple[str | Path, ...]:
        """As `site`, with the words for a training that needs no PyTorch, a rank on each node: its metrics, traces and
        exit status come in seconds, where a test is about the job and not about what it trains. fault: what its script
        does first."""
        folder = self.runs.parent / "light"
        write_customize(folder)
        script = folder / f"{name}.py"
        script.write_text(f"import sys\nfrom tests.faults.light_train import main\n\n{fault}\nsys.exit(main())\n")
        counts = {"FAULTS_RANKS": "1", "FAULTS_NODES": str(nodes), MARKS: str(folder)}
        env = {**SITE["env"], "PYTHONPATH": f"{folder}:{REPOSITORY}", **counts}
        return ("--site", self.site(name, env=env, **changes), "--script", script)

    @property
    def env(self) -> dict[str, str]:
        return {"HARNESS_RUNS": str(self.runs), "COLUMNS": "200"}

    def __call__(
        self, *words: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None, seconds: float = JOB_S
    ) -> subprocess.CompletedProcess[str]:
        """slurm.sh with these arguments."""
        argv = ("bash", REPOSITORY / "slurm.sh", *words)
        return self.slurm.run(*argv, check=False, seconds=seconds, env={**self.env, **(env or {})}, cwd=cwd)

    def run(self, *words: str | Path, code: int = 0, **options: Any) -> Submitted:
        """The run that a command with `--json` submits. code: that of the command."""
        done = self(*words, **options)
        assert done.returncode == code, done.stderr
        return submitted(done.stdout)

    def submit(self, site: Path, *words: str) -> Submitted:
        """A run of exercise 1 over both nodes."""
        return self.submit_words("--site", site, *words)

    def submit_words(self, *words: str | Path) -> Submitted:
        """As `submit`, with the words for the site among the others."""
        return self.run(*TWO_NODES, "--json", *words)

    def wait_while_it_runs(self, run: Submitted, condition: Callable[[], object], what: str) -> None:
        """As that of the cluster, for a run's job."""
        self.slurm.wait_while_it_runs(run.job_id, condition, what)

    def newest_log(self) -> str:
        """What the errors' log of the youngest run of exercise 1 has."""
        logs = sorted(self.runs.glob("exercise_1_DDP/logs/*/log.err"), key=lambda log: log.stat().st_mtime_ns)
        return logs[-1].read_text(encoding="utf-8") if logs else ""

    def status(self, run: str) -> dict[str, Any]:
        """What `slurm.sh status RUN --json` says."""
        done = self("status", run, "--json")
        assert done.returncode == 0, done.stderr
        said: dict[str, Any] = json.loads(done.stdout)
        return said


def submitted(printed: str) -> Submitted:
    """The run that `slurm.sh … --json` says it submitted."""
    said = json.loads(printed)
    return Submitted(said["job_id"], Path(said["path"]))
