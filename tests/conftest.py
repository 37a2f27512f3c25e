"""What every folder's tests may ask for: the real nsys, which `scripts/test` fetches."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("unhurried", deadline=None)  # no property fails because the machine is busy
settings.load_profile("unhurried")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="also what is marked long")


@pytest.fixture(scope="session")
def nsys_folder() -> Path:
    """The folder of a real nsys, for a PATH; skips on a machine without nsys."""
    places = [*os.environ["PATH"].split(os.pathsep), str(Path(sys.prefix) / "nsys")]
    found = shutil.which("nsys", path=os.pathsep.join(places))
    if found is None:
        pytest.skip("nsys is not here, and scripts/fetch-nsys can fetch it only as root on Debian")
    return Path(found).parent
