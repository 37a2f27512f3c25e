"""What step inventory says is missing, with the needs of what is missing, and a command that works without network."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import step_inventory
from step_inventory import INSTALL, NEEDS, lacking


def installed(folder: Path, name: str, *needs: str) -> None:
    """The description of a package, as pip leaves it."""
    about = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    about.mkdir(parents=True)
    lines = [f"Requires-Dist: {need}" for need in needs]
    (about / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0", *lines, ""]))


def test_what_an_installed_package_needs_is_named_when_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, "outer-part", "inner_part[fast]>=2", "forgotten==3.1", "other; extra == 'x'")
    installed(tmp_path, "inner-part", "outer-part", "deep_one (>=1)")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert lacking(["outer-part>=1", "outer_part"]) == ["forgotten==3.1", "deep_one (>=1)"]


def test_the_needs_of_a_missing_package_are_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(step_inventory.NEEDS, "not-here-at-all", ("nor-this-one", "pytest"))
    assert lacking(["not-here-at-all==1"]) == ["not-here-at-all==1", "nor-this-one"]


@pytest.mark.parametrize("package", NEEDS)
def test_the_needs_listed_for_a_package_are_its_real_needs(package: str) -> None:
    try:
        needed = metadata.requires(package) or []
    except metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed here")
    names = {step_inventory._name(text).replace("_", "-") for text in needed if ";" not in text}
    assert {name.replace("_", "-") for name in NEEDS[package]} <= names


def test_the_command_works_without_network_though_a_need_is_not_among_the_wheels(tmp_path: Path) -> None:
    (tmp_path / "WHEELS").mkdir()
    about = "shipped-1.0.dist-info"
    with zipfile.ZipFile(tmp_path / "WHEELS" / "shipped-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("shipped.py", "here = True\n")
        wheel.writestr(
            f"{about}/METADATA", "Metadata-Version: 2.1\nName: shipped\nVersion: 1.0\nRequires-Dist: torch\n"
        )
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False).returncode:
        pytest.skip("this Python has no pip")
    command = INSTALL.replace("python3", sys.executable, 1)
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "FOLDER" / "shipped.py").exists()
