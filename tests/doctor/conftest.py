"""A healthy cluster for each test: stand-ins for Slurm, nsys and the container; real files and variables."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.doctor.healthy import FILES, PROGRAMS, SITE, Cluster

OURS = ("SBATCH_", "SLURM_", "NCCL_", "TORCH_", "OMP_", "CUDA_", "PYTHONHOME", "LD_PRELOAD")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    for name in [name for name in os.environ if name.startswith(OURS)]:
        monkeypatch.delenv(name)
    variables = {"PATH": f"{tmp_path}/bin", "HARNESS_RUNS": f"{tmp_path}/runs", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    return Cluster(tmp_path, monkeypatch).plant(PROGRAMS, FILES, SITE, variables)
