"""The images are built elsewhere, so here their definitions are compared with the pins, the sites and the docs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.waiting import limit_s

ROOT = Path(__file__).parents[2]
CONTAINERS = ROOT / "containers"
DEFINITIONS = sorted(CONTAINERS.glob("*.def"))
README = (CONTAINERS / "README.md").read_text(encoding="utf-8")


def requirements(part: str) -> list[Requirement]:
    script = "import sys, pins; print(*pins.requirements(sys.stdin.read(), sys.argv[1]), sep='\\n')"
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    command = [sys.executable, "-c", script, part]
    done = subprocess.run(
        command,
        input=text,
        cwd=ROOT / "scripts/bootstrap",
        capture_output=True,
        text=True,
        check=True,
        timeout=limit_s(),
    )
    return [Requirement(line) for line in done.stdout.splitlines()]


def section(definition: Path, name: str) -> list[str]:
    """The lines of one section, without comments."""
    found = re.search(rf"^%{name}\n(.*?)(?=^%|\Z)", definition.read_text(encoding="utf-8"), re.M | re.S)
    lines = [line.strip() for line in (found[1] if found else "").splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def arguments(definition: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in section(definition, "arguments"))


def imports(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CONTAINERS / "imports.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit_s())


def test_there_is_one_image_for_each_use() -> None:
    assert [path.stem for path in DEFINITIONS] == ["nemo", "nsys2prv", "training"]


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda path: path.stem)
class TestEachDefinition:
    def test_says_what_it_is_built_from(self, definition: Path) -> None:
        base = re.search(r"^From: (\S.*)$", definition.read_text(encoding="utf-8"), re.M)
        assert base
        assert re.search(r":(\{\{ \w+ \}\}|\d)", base[1]), "an image without a version changes under our feet"
        assert "latest" not in base[1]

    def test_declares_the_arguments_it_uses(self, definition: Path) -> None:
        used = set(re.findall(r"\{\{ (\w+) \}\}", definition.read_text(encoding="utf-8")))
        assert used == set(arguments(definition))

    def test_copies_files_that_exist(self, definition: Path) -> None:
        sources = [line.split()[0] for line in section(definition, "files")]
        assert sources
        assert [source for source in sources if not (ROOT / source).is_file()] == []

    def test_installs_nothing_of_an_unknown_version(self, definition: Path) -> None:
        installs = [line for line in section(definition, "post") if "pip install" in line]
        assert all("==" in line or "--constraint constraints.txt" in line for line in installs)

    def test_tests_what_it_installed(self, definition: Path) -> None:
        assert any("imports.py" in line for line in section(definition, "test"))

    def test_has_its_versions_in_the_readme(self, definition: Path) -> None:
        row = next(line for line in README.splitlines() if line.startswith(f"| `{definition.name}`"))
        versions = [value for value in arguments(definition).values() if re.fullmatch(r"[\d.]+", value)]
        assert versions
        assert [version for version in versions if version not in row] == []


def test_the_constraints_are_what_pyproject_asks_for() -> None:
    lines = (CONTAINERS / "constraints.txt").read_text(encoding="utf-8").splitlines()
    fixed = dict(line.split("==") for line in lines if not line.startswith("#"))
    asked = [*requirements("launcher"), *requirements("train")]
    missing = [str(r) for r in asked if not r.specifier.contains(fixed.get(canonicalize_name(r.name), "0"))]
    assert missing == []


def test_every_site_s_image_is_one_that_can_be_built() -> None:
    images = {
        found[1]
        for path in (ROOT / "configs" / "sites").glob("*.yaml")
        if (found := re.search(r"^\s+image: \S*?([\w-]+\.sif)", path.read_text(encoding="utf-8"), re.M))
    }
    assert images
    assert [image for image in images if image not in README] == []


def test_the_readme_names_the_pinned_pytorch() -> None:
    (torch,) = (r for r in requirements("train") if r.name == "torch")
    assert f"PyTorch {str(torch.specifier).removeprefix('==')}" in README


def test_the_import_test_passes_for_what_is_here() -> None:
    done = imports("msgspec>=0.18", "pyyaml>=6", "nvidia-ml-py")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["msgspec", "pyyaml", "nvidia-ml-py"]
    assert "yaml" in done.stdout


@pytest.mark.parametrize("asked", ["msgspec==0.0.1", "no-such-package", "no-such-package==1.0"])
def test_the_import_test_fails_for_what_is_not(asked: str) -> None:
    done = imports(asked)
    assert done.returncode == 1
    assert asked in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.train
@pytest.mark.long
def test_the_training_image_s_test_passes_with_the_pins(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the training extra is not installed")
    listed = tmp_path / "requirements.txt"
    asked = [*requirements("launcher"), *requirements("train")]
    listed.write_text("\n".join(map(str, asked)))
    done = imports("--requirements", str(listed))
    assert done.returncode == 0, done.stderr
    assert len([line for line in done.stdout.splitlines() if ": " in line]) >= len(asked)
