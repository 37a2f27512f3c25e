"""Data workers ignore the SIGTERM of a batch system and end when their training ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

SCRIPT = """
import os, signal, time
import torch
from torch.utils.data import DataLoader, TensorDataset
from exercises.utils.loaders import _outlive_sigterm

def main():
    loader = DataLoader(TensorDataset(torch.ones(400, 2)), num_workers=2, worker_init_fn=_outlive_sigterm,
                        persistent_workers=True)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    for worker in batches._workers:
        if not os.fork():  # a batch system is not their parent
            os.kill(worker.pid, signal.SIGTERM)
            os._exit(0)
        os.wait()
    time.sleep(0.3)
    for _ in range(100):
        next(batches)
    print(all(worker.is_alive() for worker in batches._workers), flush=True)
    raise RuntimeError("the training fails")

main()
"""


@pytest.mark.train
def test_workers_outlive_a_batch_systems_sigterm_and_a_training_that_fails_does_not_hang() -> None:
    root = Path(__file__).resolve().parents[2]
    argv = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(argv, cwd=root, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == ["True"], done.stderr
    assert done.returncode == 1
    assert "the training fails" in done.stderr
