"""The tests' clusters, started at their first use; all are always ended.

What needs a Slurm has the session's, `slurm`. The name of a test that needs another says why, or it is long.
tests/conftest.py has these fixtures, so that all folders share one cluster.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.leftovers import remove_at_the_end
from tests.slurm.slurm_cluster import NotPossibleHereError, Slurm, start
from tests.slurm.slurm_sh import SlurmSh


def _serve(*options: str) -> Iterator[Slurm]:
    # Not pytest's own folder: unix sockets allow some hundred characters of path.
    folder = Path(tempfile.mkdtemp(prefix="slurm-test-"))
    remove_at_the_end(folder)
    try:
        slurm, keeper = start(folder / "c", options)
    except NotPossibleHereError as error:
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"no Slurm on this machine: {error}")
    yield slurm
    keeper.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    """Two nodes without accounting, as on a small cluster: sacct knows nothing."""
    yield from _serve()


@pytest.fixture(scope="session")
def slurm_accounting() -> Iterator[Slurm]:
    """Two nodes with slurmdbd: accounts, QOS and sacct."""
    yield from _serve("--accounting")


def _slurm_sh(slurm: Slurm, factory: pytest.TempPathFactory) -> SlurmSh:
    runs = factory.mktemp("slurm-sh") / 'a student\'s "runs"; echo $HOME 50% %j'
    runs.mkdir()
    return SlurmSh(slurm, runs)


@pytest.fixture(scope="session")
def slurm_sh(slurm: Slurm, tmp_path_factory: pytest.TempPathFactory) -> SlurmSh:
    """slurm.sh on the cluster without accounting."""
    return _slurm_sh(slurm, tmp_path_factory)


@pytest.fixture(scope="session")
def slurm_sh_accounting(slurm_accounting: Slurm, tmp_path_factory: pytest.TempPathFactory) -> SlurmSh:
    """slurm.sh on the cluster with accounting."""
    return _slurm_sh(slurm_accounting, tmp_path_factory)


@pytest.fixture(scope="module")
def slurm_sh_uneven(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmSh]:
    """slurm.sh on two nodes of which the second has half of the CPUs, GPUs and memory of the first."""
    yield from (_slurm_sh(slurm, tmp_path_factory) for slurm in _serve("--last", "8:2:4000"))


@pytest.fixture
def slurm_sh_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmSh]:
    """slurm.sh on two nodes for one test, which may lose them."""
    yield from (_slurm_sh(slurm, tmp_path_factory) for slurm in _serve())
