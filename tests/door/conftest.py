"""Checkouts to start the door in: a fresh one for each test, and a warm one that tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.door.door_checkout import HOSTILE, Checkout, make_checkout, wheel


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has everything the small checkouts ask for."""
    folder = tmp_path_factory.mktemp("wheels")
    for name in ("door-alpha", "door-beta", "door-torch"):
        wheel(folder, name)
    return folder


@pytest.fixture
def checkout(tmp_path: Path, wheels: Path) -> Checkout:
    """A new checkout without an environment, in a folder with a hostile name."""
    return make_checkout(tmp_path / HOSTILE, wheels)


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> Checkout:
    """A checkout whose .venv stands; tests that share it must not change it."""
    checkout = make_checkout(tmp_path_factory.mktemp("warm") / HOSTILE, wheels)
    first = checkout.run("status")
    assert first.code == 0, first.stderr
    return checkout
