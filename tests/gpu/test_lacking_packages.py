"""What test_gpu_inventory.py says is missing, with the needs of what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu import test_gpu_inventory as inventory
from tests.gpu.test_gpu_inventory import lacking


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
    monkeypatch.setitem(inventory.NEEDS, "not-here-at-all", ("nor-this-one", "pytest"))
    assert lacking(["not-here-at-all==1"]) == ["not-here-at-all==1", "nor-this-one"]
