"""The two-node Slurm of tests/slurm, for jobs in containers."""

from __future__ import annotations

from tests.slurm.conftest import slurm as slurm
from tests.slurm.conftest import slurm_sh as slurm_sh
