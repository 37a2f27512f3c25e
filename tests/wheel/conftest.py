"""The wheel, built from a copy of the repository's files, and environments that have it and no checkout.

Nothing is fetched: an environment has only what the wheel declares and its needs, linked from the tests' own.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.synthetic.job import write_traces
from tests.wheel.wheel_shared import ROOT, Installed, metadata, run

FOLDERS = ("harness", "configs", "templates", "exercises", "containers", "docs", "scripts/wheel")
SOURCES = (*FOLDERS, "pyproject.toml", "README.md", "LICENSE", "LICENSE-docs")
# What runs, a course and Python leave in the folders.
LEFT = (
    "exercises/exercise_1_DDP/profiler/run/run.json", "exercises/exercise_1_DDP/logs/1/log.out",
    "exercises/.local/1/x.pkl", "exercises/series/a/plan.json", "configs/course.env",
    "harness/cli/__pycache__/main.cpython-311.pyc",
)  # fmt: skip


def tracked() -> list[str]:
    listed = run("git", "ls-files", "-co", "--exclude-standard", "-z", *SOURCES, cwd=ROOT)
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, as setuptools leaves its own folders where it builds."""
    place = tmp_path_factory.mktemp("source")
    for name in tracked():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, place / name)
    for name in LEFT:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("left there")
    return place


@pytest.fixture(scope="session")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the sdist and the wheel that is built from it."""
    out = tmp_path_factory.mktemp("built")
    done = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, source)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return out


@pytest.fixture(scope="session")
def wheel(built: Path) -> Path:
    (made,) = built.glob("*.whl")
    return made


def needed(requirements: Iterable[Requirement], have: dict[str, Distribution]) -> dict[str, Distribution]:
    """The distributions that the requirements name, and all that these need in turn."""
    for requirement in requirements:
        if requirement.name in have or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        have[requirement.name] = found = distribution(requirement.name)
        needed(map(Requirement, found.requires or []), have)
    return have


def link(found: Distribution, packages: Path) -> None:
    """The files of a distribution in the tests' environment, relative to another environment."""
    tops = {file.parts[0] for file in found.files or []} - {"..", "__pycache__"}
    for top in tops:
        if not (packages / top).exists():
            (packages / top).symlink_to(Path(str(found.locate_file(top))).resolve())


def made(wheel: Path, place: Path, *, trains: bool) -> Path:
    """A fresh environment after `pip install WHEEL`. trains: with the tests' own packages behind its own, instead of
    the gigabyte of the extra `train`."""
    assert run(sys.executable, "-m", "venv", "--without-pip", place).returncode == 0
    (packages,) = place.glob("lib/python3*/site-packages")
    for found in needed([*(metadata(wheel).requires_dist or []), Requirement("pip")], {}).values():
        link(found, packages)
    if trains:
        (packages / "tests_own.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    quicker = ["--no-compile"] if trains else []
    done = run(place / "bin" / "python", "-m", "pip", "install", "--no-index", *quicker, wheel)
    assert done.returncode == 0, done.stderr
    return place


@pytest.fixture(scope="session")
def venv(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(wheel, tmp_path_factory.mktemp("fresh") / "venv", trains=False)


@pytest.fixture(scope="session")
def training_venv(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(wheel, tmp_path_factory.mktemp("trains") / "venv", trains=True)


@pytest.fixture(scope="session")
def without_git(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PATH with the programs of the system but git's and Slurm's."""
    place = tmp_path_factory.mktemp("programs")
    for folder in (Path("/usr/bin"), Path("/bin")):
        for each in folder.iterdir():
            link = place / each.name
            if not each.name.startswith(("git", "sbatch", "python")) and not link.is_symlink():
                link.symlink_to(each)
    return place


@pytest.fixture
def installed(venv: Path, without_git: Path, tmp_path: Path) -> Installed:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    return Installed(venv, folder, {"PATH": str(without_git)})


@pytest.fixture
def trainer(training_venv: Path, without_git: Path, tmp_path: Path) -> Installed:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    return Installed(training_venv, folder, {"PATH": str(without_git)})


@pytest.fixture
def traces(tmp_path: Path) -> list[Path]:
    return write_traces(tmp_path / "traces", ranks=2)
