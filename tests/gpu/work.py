"""The launches, loops and reports of the GPU tests, each made once: a later start takes it from the folder."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.gpu.machine import Ended, has_gpu, run
from tests.gpu.scrub import clean_text, secrets

# What the harness and its exercises import; of the frameworks only the one that every exercise has.
LAUNCHER = ("pydantic", "typer", "yaml", "jinja2", "submitit", "numpy", "msgspec", "isal", "plotly", "matplotlib")
TRAINING = ("torch", "accelerate", "transformers", "tokenizers", "tqdm", "regex", "psutil", *LAUNCHER)
LOOPS = Path(__file__).with_name("loops.py")
WINDOW = ("--skip-steps", "6", "--wait-steps", "1", "--warmup-steps", "2", "--active-steps", "5")
# The accumulation's own window: 16 batches, so that one optimizer step is recorded.
LONG = ("--skip-steps", "15", "--wait-steps", "0", "--warmup-steps", "1", "--active-steps", "16")
BF16 = ("--profiler", "torch", "--mixed-precision")
# All but `fp32` in bf16, so that each differs from `bf16` in one thing.
EXERCISE_1 = {
    "fp32": ("--profiler", "torch", *WINDOW),
    "bf16": (*BF16, *WINDOW),
    "bf16-gas16": (*BF16, *LONG, "--gradient-accumulation-steps", "16"),
    "slow-data": (*BF16, *WINDOW, "--slow-dataloading"),
    "checkpointing": (*BF16, *WINDOW, "--activation-checkpointing"),
}


class Run(NamedTuple):
    """A completed run."""

    name: str
    path: Path
    summary: dict[str, Any]

    @property
    def trace(self) -> Path:
        """Rank 0's Kineto trace."""
        return self.path / "torch" / "rank0.json.gz"


class Recorded(NamedTuple):
    """A loop's trace, its two step times by its own clock in ns, and the product's report of it."""

    trace: Path
    unrecorded_ns: float
    recorded_ns: float
    summary: dict[str, Any]


def needs(*modules: str) -> None:
    """Skip the test if one of these cannot be imported here."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        pytest.skip(f"the packages {', '.join(missing)} are missing (docs/development/gpu.md says how to bring them)")


@dataclass(frozen=True)
class Work:
    """`folder`: runs and traces, which stay on the machine. `out`: what is taken home, without the machine's names."""

    folder: Path
    out: Path

    @property
    def environment(self) -> dict[str, str]:
        """The environment of all programs: runs go into the folder."""
        ours = {"HARNESS_RUNS": str(self.folder / "runs"), "PYTHONUNBUFFERED": "1", "COLUMNS": "120"}
        return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | ours

    def run(self, argv: Sequence[str | Path], seconds: float) -> Ended:
        """Run a program to its end, or to the end of its time."""
        ended = run(argv, seconds, self.environment)
        text = f"$ {' '.join(map(str, argv))}\n{ended.stdout}{ended.stderr}\n"
        with (self.out / "log.txt").open("a", encoding="utf-8") as file:
            file.write(clean_text(text, secrets()))
        return ended

    def succeeds(self, argv: Sequence[str | Path], seconds: float) -> str:
        """The output of a program; the test fails if the program does."""
        ended = self.run(argv, seconds)
        if ended.code != 0:
            pytest.fail(f"{' '.join(map(str, argv[1:]))}: {ended.why}", pytrace=False)
        return ended.stdout

    def harness(self, words: Sequence[str | Path], seconds: float = 60) -> str:
        """The output of a command of the harness."""
        return self.succeeds([sys.executable, "-I", "-m", "harness", *words], seconds)

    def exercise_1(self, name: str) -> Run:
        """A run of EXERCISE_1."""
        return self.launched(name, "-e", "1", *EXERCISE_1[name])

    def launched(self, name: str, *words: str, seconds: float = 80) -> Run:
        """The run of this name: the completed one, else a new one with the model that suits this machine.

        seconds: the most with a GPU, whose time is lent; the tests' cores have several other tests at once.
        """
        needs(*TRAINING)
        sizes = ("--model", "llama-3.2-1b", "--random-weights") if has_gpu() else ("--model", "tiny-llama")
        if (known := self._find(name)) is None:
            argv = [sys.executable, "-I", "-m", "harness", *words, *sizes, "--site", "local", "-g", "1", "--json"]
            ended = self.run(argv, seconds if has_gpu() else 4 * seconds)
            last = ([line for line in ended.stdout.splitlines() if line.startswith("{")] or ["{}"])[-1]
            job: dict[str, Any] = json.loads(last)
            if ended.code != 0 or job.get("state") != "completed":
                pytest.fail(f"{name}: {ended.why}", pytrace=False)
            self._runs_file.write_text(json.dumps({**self._runs(), name: job["path"]}), encoding="utf-8")
            known = self._find(name)
        assert known is not None, f"{name} has no summary.json"
        return known

    def all_runs(self) -> list[Run]:
        """Every completed run, in the order in which they ran."""
        return [found for name in self._runs() if (found := self._find(name)) is not None]

    def recorded(self, case: str, seconds: float = 45) -> Recorded:
        """Run a loop of loops.py, or take its earlier trace, and report it."""
        needs("torch", *LAUNCHER)
        folder = self.folder / "loops" / case
        trace, times = folder / "rank0.json.gz", folder / "times.json"
        if not times.is_file():
            out = self.succeeds([sys.executable, LOOPS, case, "--folder", folder], seconds)
            times.write_text(out.splitlines()[-1], encoding="utf-8")
        clock = json.loads(times.read_text(encoding="utf-8"))
        return Recorded(trace, clock["unrecorded_ns"], clock["recorded_ns"], self.report(trace))

    def report(self, trace: Path, *options: str) -> dict[str, Any]:
        """The summary of a trace, by `slurm.sh report`."""
        summary: dict[str, Any] = json.loads(self.harness(["report", trace, "--json", "--no-html", *options]))
        return summary

    @property
    def _runs_file(self) -> Path:
        return self.folder / "runs.json"

    def _runs(self) -> dict[str, str]:
        runs: dict[str, str] = json.loads(self._runs_file.read_text()) if self._runs_file.exists() else {}
        return runs

    def _find(self, name: str) -> Run | None:
        path = Path(self._runs().get(name, "/nowhere"))
        summary = path / "summary.json"
        return Run(name, path, json.loads(summary.read_text(encoding="utf-8"))) if summary.is_file() else None


def figures(summary: dict[str, Any]) -> dict[str, Any]:
    """The numbers of one run that are taken home."""
    job, rank = summary.get("efficiency") or {}, (summary.get("training") or [{}])[0]
    of_job = ("step_ns", "tokens_per_s", "peak_flops_per_s", "peak_source", "mfu", "hfu")
    of_rank = ("peak_memory_bytes", "device_name", "dtype", "first_loss", "last_loss", "versions")
    return {key: job.get(key) for key in of_job} | {key: rank.get(key) for key in of_rank}
