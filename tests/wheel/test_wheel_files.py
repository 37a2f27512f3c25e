"""What is built: the wheel's and the sdist's files, their size, and the metadata that an index shows."""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from pathlib import Path

from readme_renderer import markdown

from harness.cli.commands import COMMANDS
from tests.wheel.conftest import FOLDERS, LEFT, tracked
from tests.wheel.wheel_shared import ROOT, metadata, run

MOST_BYTES = 3_000_000
PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]
PICTURE_OF_README = "docs/pictures/page.png"


def checksums(wheel: Path) -> dict[str, int]:
    with zipfile.ZipFile(wheel) as archive:
        return {entry.filename: entry.CRC for entry in archive.infolist()}


def test_the_wheel_has_every_file_of_the_package_the_exercises_and_their_documents(wheel: Path) -> None:
    carried = {name for name in checksums(wheel) if ".dist-info/" not in name}
    files = {name for name in tracked() if "/" in name and not name.startswith(("docs/development/", "scripts/"))}
    assert carried == {f"harness/files/{name}" for name in files - {PICTURE_OF_README}} | {"harness/__init__.py"}
    assert all(any(name.startswith(f"harness/files/{folder}/") for name in carried) for folder in FOLDERS[:-1])
    assert wheel.stat().st_size <= MOST_BYTES


def test_the_sdist_builds_the_wheel_that_the_repository_builds(wheel: Path, built: Path, source: Path) -> None:
    direct = built / "direct"
    done = run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", direct, source)
    assert done.returncode == 0, done.stderr[-3000:]
    (other,) = direct.iterdir()
    assert checksums(other) == checksums(wheel)


def test_what_runs_and_python_leave_in_the_folders_is_in_neither(source: Path, wheel: Path, built: Path) -> None:
    assert all((source / name).is_file() for name in LEFT)
    (packed,) = built.glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        inside = [*checksums(wheel), *archive.getnames()]
    assert [name for name in inside if name.endswith(LEFT)] == []


def test_its_metadata_is_valid_and_names_each_python_that_it_supports(wheel: Path) -> None:
    found = metadata(wheel)
    assert found.name == "training-traces"
    assert found.license_expression == "Apache-2.0 AND CC-BY-4.0"
    named = [c.rpartition(" :: ")[2] for c in found.classifiers or [] if re.search(r":: 3\.\d+$", c)]
    assert named == PYTHONS
    assert found.requires_python is not None
    assert str(found.requires_python) == f">={PYTHONS[0]}"
    assert {"train", "fp8"} <= set(found.provides_extra or [])
    assert f'version = "{found.version}"' in (ROOT / "pyproject.toml").read_text()
    assert wheel.name.split("-")[1] == str(found.version)


def test_its_long_description_renders_and_has_no_link_that_only_a_checkout_resolves(wheel: Path) -> None:
    text = metadata(wheel).description
    assert text is not None
    rendered = markdown.render(text)
    assert rendered is not None
    links = re.findall(r'(?:href|src)="([^"]*)"', rendered)
    assert [each for each in links if not each.startswith(("https://", "#"))] == []
    assert "<pre" in rendered
    assert "<table" in rendered
    assert set(re.findall(r"training-traces (\w+)", text)) <= {*COMMANDS, "help"}
