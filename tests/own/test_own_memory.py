"""`--memory` of a training that keeps memory: the line is in the answer, and the training computes the same."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.common.run_folder.profile_window import MEMORY, MEMORY_STEPS
from tests.waiting import limit_s

pytestmark = pytest.mark.train

STEPS = 80
WORD = [sys.executable, "-I", "-m", "harness"]
KEPT_BYTES = 4 * 64 * 4096
LOADED_BYTES = 4 * 1 << 16
TRAINING = f"""
import torch
from torch.utils.data import DataLoader, Dataset

class Samples(Dataset):
    seen = []
    def __len__(self):
        return {STEPS}
    def __getitem__(self, index):
        self.seen.append(torch.zeros(1 << 16))  # the worker keeps
        return torch.rand(64, 8)

def main():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 4096), torch.nn.Linear(4096, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    outputs = []
    for (batch,) in DataLoader(Samples(), num_workers=1, batch_size=1):
        hidden = model[0](batch)
        loss = model[1](hidden).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        outputs.append(hidden.detach())  # the rank keeps
        print(loss.item())

if __name__ == "__main__":
    main()
"""


def line_of(comment: str) -> int:
    return next(number for number, line in enumerate(TRAINING.splitlines(), 1) if line.endswith(comment))


def trained(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    outer = ("SLURM", "HARNESS", "SCRATCH", "PYTHONPATH", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER")
    environ = {name: text for name, text in os.environ.items() if not name.startswith(outer)}
    (folder / "train.py").write_text(TRAINING, encoding="utf-8")
    return subprocess.run(
        argv,
        cwd=folder,
        env={**environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "HARNESS_RUNS": str(folder / "runs")},
        capture_output=True,
        text=True,
        check=True,
        timeout=limit_s(300),
    )


def read(folder: Path, name: str) -> Any:
    (path,) = (folder / "runs/own/profiler").glob(f"*/{name}")
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()] if name.endswith("l") else json.loads(text)


@pytest.mark.parametrize("words", [["observe", "--memory", "--", sys.executable], ["run", "--memory", "-g", "1", "--"]])
def test_who_keeps_memory_is_in_the_answer_and_the_training_is_the_same(tmp_path: Path, words: list[str]) -> None:
    told = trained(tmp_path, *WORD, *words, "train.py")
    said = told.stdout + told.stderr
    assert re.search(r"\nMemory of the host grows by [\d.]+ MB a step \(.* to .*\) on rank 0 since step \d+; at ", said)
    assert (
        f"\n  where:   memory: 1.05 MB a step at train.py:{line_of('rank keeps')} in `main`: `outputs` keeps ten"
        in said
    )
    growth = next(each for each in read(tmp_path, "summary.json")["memory_growth"] if each["of"] == "host")
    assert growth["low"] <= growth["per_step"] <= growth["high"]
    (keeper,) = growth["keepers"]
    assert (keeper["kind"], keeper["ranks"]) == ("tensor", [0])
    assert keeper["bytes_per_step"] == pytest.approx(KEPT_BYTES, rel=0.05)
    loads = max(read(tmp_path, "kept/rank0-worker0.json")["growing"], key=lambda each: each["bytes_per_step"])
    assert loads["where"][1] == line_of("worker keeps")
    assert loads["bytes_per_step"] == pytest.approx(LOADED_BYTES, rel=0.05)
    steps = [line for line in read(tmp_path, "metrics/rank0.jsonl") if line["event"] == "step"]
    in_order = [line["step"] for line in steps if line["phase"] == MEMORY]
    assert (len(steps), in_order[: MEMORY_STEPS - 2]) == (STEPS, list(range(2, MEMORY_STEPS)))
    assert sum(line["phase"] == "active" for line in steps) >= 5
    if words[0] == "observe":
        assert told.stdout == trained(tmp_path, sys.executable, "train.py").stdout
