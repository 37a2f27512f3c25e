"""The wheel: built from the repository's files, installed where there is no checkout, and used as its command.

The environment has only what the wheel declares and its needs: linked from the tests' own environment, so that
nothing is fetched.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.synthetic.job import write_traces

ROOT = Path(__file__).parents[2]
SOURCES = ("harness", "configs", "templates", "pyproject.toml", "README.md", "LICENSE")


def run(*argv: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300, **options)
    assert isinstance(done.stdout, str)
    return done


def tracked() -> list[str]:
    listed = run("git", "ls-files", "-co", "--exclude-standard", "-z", *SOURCES, cwd=ROOT)
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, as setuptools leaves its own folders where it builds."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in tracked():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name)
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index")
    built = run(*pip, "-w", out, ".", cwd=source)
    assert built.returncode == 0, built.stdout[-3000:] + built.stderr[-3000:]
    (made,) = out.iterdir()
    return made


def needed(requirements: list[str], have: dict[str, Distribution]) -> dict[str, Distribution]:
    """The distributions that the requirements name, and all that these need in turn."""
    for requirement in map(Requirement, requirements):
        if requirement.name in have or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        have[requirement.name] = found = distribution(requirement.name)
        needed(found.requires or [], have)
    return have


def declared(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    return [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]


def link(found: Distribution, packages: Path) -> None:
    """The files of a distribution in the tests' environment, relative to another environment."""
    tops = {file.parts[0] for file in found.files or []} - {"..", "__pycache__"}
    for top in tops:
        if not (packages / top).exists():
            (packages / top).symlink_to(Path(str(found.locate_file(top))).resolve())


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel, and an empty folder to work in."""

    venv: Path
    folder: Path

    def __call__(self, *words: str | Path, program: str = "training-traces") -> subprocess.CompletedProcess[str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HARNESS_", "PYTHON"))}
        return run(self.venv / "bin" / program, *words, cwd=self.folder, env=kept)

    def files(self) -> list[str]:
        """The files in the folder and in the installed package, without compiled Python."""
        places = (self.folder, *self.venv.glob("lib/python3*/site-packages/harness"))
        return sorted(str(f) for place in places for f in place.rglob("*") if "__pycache__" not in f.parts)


@pytest.fixture(scope="module")
def venv(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("fresh") / "venv"
    assert run(sys.executable, "-m", "venv", "--without-pip", place).returncode == 0
    (packages,) = place.glob("lib/python3*/site-packages")
    for found in needed([*declared(wheel), "pip"], {}).values():
        link(found, packages)
    done = run(place / "bin" / "python", "-m", "pip", "install", "--no-deps", "--no-index", wheel)
    assert done.returncode == 0, done.stderr
    return place


@pytest.fixture
def installed(venv: Path, tmp_path: Path) -> Installed:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    return Installed(venv, folder)


@pytest.fixture
def traces(tmp_path: Path) -> list[Path]:
    return write_traces(tmp_path / "traces", ranks=2)


def test_the_wheel_carries_every_file_of_the_package_and_its_data(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        carried = {name for name in archive.namelist() if ".dist-info/" not in name}
    files = (name for name in tracked() if "/" in name)
    assert carried == {name if name.startswith("harness/") else f"harness/{name}" for name in files}


def test_the_installed_package_is_neither_the_checkouts_nor_does_it_see_what_is_not_declared(
    installed: Installed,
) -> None:
    code = "import harness, importlib.util as u; print(harness.__file__, u.find_spec('torch'), u.find_spec('pytest'))"
    said = installed("-c", code, program="python").stdout.split()
    assert said[1:] == ["None", "None"]
    assert Path(said[0]).is_relative_to(installed.venv)
    assert ROOT not in Path(said[0]).parents


def test_it_reports_a_trace_and_writes_the_page(installed: Installed, traces: list[Path]) -> None:
    done = installed("report", traces[0].parent, "--full", "--html", "page.html")
    assert done.returncode == 0, done.stderr
    assert "of 1.00 ms a step" in done.stdout
    assert "gemm bf16" in done.stdout, "the rules of configs/kernels.yaml are applied"
    page = (installed.folder / "page.html").read_text()
    assert "plotly" in page
    assert len(page) > 1_000_000, "Plotly and our own scripts are inside"
    assert installed("export", "csv", traces[0].parent, "-o", "tables").returncode == 0
    assert installed("export", "png", traces[0].parent, "-o", "pictures").returncode == 0
    assert (installed.folder / "tables" / "kernels.csv").is_file()
    assert list((installed.folder / "pictures").glob("*.png"))


def test_it_compares_and_exports(installed: Installed, traces: list[Path]) -> None:
    first, second = traces
    compared = installed("compare", first, second, "--html", "compare.html")
    assert (compared.returncode, compared.stderr.count("Traceback")) == (0, 0), compared.stderr
    assert "Step time, mean over ranks" in compared.stdout
    assert installed("export", "perfetto", first, second, "--out", "merged").returncode == 0
    paraver = installed("export", "paraver", first, second, "--out", "merged")
    assert paraver.returncode == 0, paraver.stderr
    assert {p.name for p in installed.folder.glob("merged*")} >= {"merged.prv", "merged.pcf", "merged.row"}
    (views,) = (line.split(": ", 1)[1] for line in paraver.stdout.splitlines() if "views" in line)
    assert list(Path(views).parent.glob("*.cfg")), "the views are where it says"


def test_its_help_lists_what_works_there(installed: Installed) -> None:
    done = installed("--help")
    assert done.returncode == 0, done.stderr
    assert all(f"  {name} " in done.stdout for name in ("report", "compare", "export"))
    assert "  run " not in done.stdout
    assert "training-traces report" in installed("report", "--help").stdout


@pytest.mark.parametrize("words", [["-e", "1"], ["-e", "1", "--dry-run"], ["run", "last"], ["lesson", "1a"]])
def test_a_launch_says_that_it_needs_the_checkout(installed: Installed, words: list[str]) -> None:
    before = installed.files()
    done = installed(*words)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"training-traces: {words[0]}: launching needs the checkout")
    assert installed.files() == before


def test_parquet_without_pyarrow_is_refused_before_anything_is_written(
    installed: Installed, traces: list[Path]
) -> None:
    before = installed.files()
    done = installed("export", "parquet", *traces, "-o", "tables")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("training-traces: export parquet needs pyarrow: run `pip install pyarrow`")
    assert installed.files() == before


@pytest.mark.parametrize(
    ("words", "named"), [(["report", "nowhere"], "there is no path 'nowhere'"), (["repor"], "report")]
)
def test_an_error_has_no_advice_that_only_a_checkout_can_follow(
    installed: Installed, words: list[str], named: str
) -> None:
    done = installed(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert named in done.stderr
    assert not {"slurm.sh", "lesson", "rerun"} & set(done.stderr.replace(",", " ").split())


def test_runs_are_found_by_name_where_harness_runs_or_the_folder_says(installed: Installed, traces: list[Path]) -> None:
    run = installed.folder / "exercises" / "exercise_1_DDP" / "profiler" / "a-run"
    (run / "torch").mkdir(parents=True)
    for trace in traces:
        (run / "torch" / f"{trace.name}.gz").write_bytes(gzip.compress(trace.read_bytes()))
    (run / "run.json").write_text("{}")
    for token in ("last", "a-run", str(run)):
        done = installed("report", token, "--no-html")
        assert done.returncode == 0, done.stderr
        assert "of 1.00 ms a step" in done.stdout
