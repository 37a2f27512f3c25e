"""Starts a script with the observer beside it, or without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.waiting import limit_s

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "harness" / "observe" / "site"
WINDOW = {"skip": 2, "wait": 0, "warmup": 1, "active": 4}
MODEL = """
import os, sys, torch
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters())

def step(i):
    loss = (model(torch.randn(16, 64)) ** 2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item().hex()
"""


class Started:
    """A run of a script: what it printed, and what the observer left."""

    def __init__(self, run: Path, done: subprocess.CompletedProcess[str]) -> None:
        self.run, self.code, self.out, self.err = run, done.returncode, done.stdout, done.stderr

    def events(self, rank: int = 0) -> list[dict[str, Any]]:
        """The lines of a rank's metrics."""
        text = (self.run / "metrics" / f"rank{rank}.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]

    def steps(self, rank: int = 0) -> list[dict[str, Any]]:
        """Its steps."""
        return [event for event in self.events(rank) if event["event"] == "step"]

    def last(self, name: str, rank: int = 0) -> dict[str, Any]:
        """Its last event of a name."""
        return [event for event in self.events(rank) if event["event"] == name][-1]

    @property
    def said(self) -> list[str]:
        """What the observer said."""
        return [line for line in self.err.splitlines() if line.startswith("observer")]


def start(
    folder: Path,
    text: str,
    *arguments: str,
    observed: bool = True,
    path: str = "",
    profiler: str = "torch",
    **settings: Any,
) -> Started:
    """Run `text` as a script of `folder`; `path`: of other folders on PYTHONPATH."""
    run = folder / "run"
    run.mkdir(exist_ok=True)
    script = folder / "script.py"
    script.write_text(text, encoding="utf-8")
    asked = {"profiler": profiler, "window": WINDOW, **settings}
    (run / "observe.json").write_text(json.dumps(asked), encoding="utf-8")
    environ = {name: word for name, word in os.environ.items() if name not in ("PYTHONPATH", "RANK")}
    environ["OMP_NUM_THREADS"] = "1"
    if observed:
        environ["HARNESS_OBSERVE"] = str(run / "observe.json")
    environ["PYTHONPATH"] = ":".join(filter(None, [str(SITE) if observed else "", path]))
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        env=environ,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=limit_s(),
    )
    return Started(run, done)
