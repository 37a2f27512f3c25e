"""The two-node Slurm of tests/slurm, for jobs in containers."""

from __future__ import annotations

from tests.slurm.conftest import slurm, slurm_sh

__all__ = ["slurm", "slurm_sh"]
