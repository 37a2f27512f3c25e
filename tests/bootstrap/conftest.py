"""Checkouts to start slurm.sh in. uv is on PATH for all tests but those of pip, which takes seconds."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bootstrap.bootstrap_checkout import HOSTILE, Checkout, make_checkout, wheel

TOOLS = "bash sh cat env grep install ls mkdir readlink rm sed sleep sort tail uname xargs"


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
    if not (found := str(ours) if ours.exists() else shutil.which("uv")):
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
    assert checkout.run("status").said["alpha"]
    return checkout


@pytest.fixture
def bare(checkout: Checkout, tmp_path: Path, uv_folder: Path) -> Checkout:
    """A machine that has only the shell's tools and uv: neither Slurm nor, but for HARNESS_PYTHON, a Python."""
    (folder := tmp_path / "bin").mkdir()
    (folder / "uv").symlink_to(uv_folder / "uv")
    for tool in TOOLS.split():
        (folder / tool).symlink_to(str(shutil.which(tool)))
    return Checkout(checkout.root, {**checkout.environment, "PATH": str(folder)})


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A folder that every user reaches; pytest's own are closed to others."""
    place = Path(tempfile.mkdtemp(prefix="bootstrap-"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)
