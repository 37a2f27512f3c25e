"""Data workers ignore the SIGTERM of a batch system, end when their training ends, and leave its objects alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import limit_s

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
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


def ended(script: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", script]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=limit_s(), check=False)


@pytest.mark.train
def test_workers_outlive_a_batch_systems_sigterm_and_a_training_that_fails_does_not_hang() -> None:
    done = ended(SCRIPT)
    assert done.stdout.splitlines() == ["True"], done.stderr
    assert done.returncode == 1
    assert "the training fails" in done.stderr


GARBAGE = """
import gc, os
from types import SimpleNamespace
from exercises.utils import loaders

class LikeACudaEvent:
    def __init__(self):
        self.itself = self
    def __del__(self):
        print("ended in", "its process" if os.getpid() == own else "a worker", flush=True)

class Examples:
    def __len__(self):
        return 8
    def __getitem__(self, index):
        gc.collect()
        return index

own = os.getpid()
gc.disable()
LikeACudaEvent()
loader = loaders._loader(SimpleNamespace(micro_batch_size=4, seed=0), Examples(), list, workers=1, pin_memory=False)
assert len(list(loader)) == 2
gc.collect()
"""


@pytest.mark.train
def test_a_worker_does_not_collect_what_it_inherited_as_a_cuda_event_that_would_abort_it() -> None:
    done = ended(GARBAGE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["ended in its process"]
