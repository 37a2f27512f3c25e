"""Checkouts to start slurm.sh in: fresh ones for each test, and a warm one that tests share. pip takes some seconds for an
environment, uv a tenth of one: so uv is on PATH for all tests but those of pip itself."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bootstrap.bootstrap_checkout import HOSTILE, Checkout, make_checkout, wheel

TOOLS = (
    "bash", "sh", "cat", "env", "grep", "install", "ls", "mkdir", "mv", "readlink", "rm", "sed", "sleep", "sort", "tail",
    "uname", "xargs",
)  # fmt: skip


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has everything the small checkouts ask for."""
    folder = tmp_path_factory.mktemp("my wheels")
    for name in ("tiny-alpha", "tiny-beta", "tiny-torch"):
        wheel(folder, name)
    return folder


@pytest.fixture(scope="session")
def uv_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the real uv and nothing else, for a PATH."""
    folder = tmp_path_factory.mktemp("uv")
    ours = Path(sys.prefix) / "bin" / "uv"
    found = ours if ours.exists() else shutil.which("uv")
    if found is None:
        pytest.skip("there is no uv here: bash slurm.sh --install test brings it")
    (folder / "uv").symlink_to(found)
    return folder


@pytest.fixture
def checkout(tmp_path: Path, wheels: Path, uv_folder: Path) -> Checkout:
    """A new checkout without an environment, in a folder with a hostile name."""
    return make_checkout(tmp_path / HOSTILE, wheels, uv_folder)


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory, wheels: Path, uv_folder: Path) -> Checkout:
    """A checkout whose .venv stands; tests that share it must not change it."""
    checkout = make_checkout(tmp_path_factory.mktemp("warm") / HOSTILE, wheels, uv_folder)
    first = checkout.run("status")
    assert first.code == 0, first.stderr
    return checkout


@pytest.fixture
def bare(checkout: Checkout, uv_folder: Path) -> Checkout:
    """A machine that has only the shell's tools and uv: neither Slurm nor, but for HARNESS_PYTHON, a Python."""
    folder = checkout.root.parent / "bin"
    folder.mkdir()
    for tool in TOOLS:
        where = shutil.which(tool)
        assert where, tool
        (folder / tool).symlink_to(where)
    (folder / "uv").symlink_to(uv_folder / "uv")
    return Checkout(checkout.root, {**checkout.environment, "PATH": str(folder)})


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A folder that every user reaches; pytest's own are closed to others."""
    place = Path(tempfile.mkdtemp(prefix="bootstrap-"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)
