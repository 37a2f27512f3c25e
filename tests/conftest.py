"""What every folder's tests may ask for: the real nsys, which `scripts/test` fetches."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("unhurried", deadline=None)  # a busy machine fails no property
settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def nsys_folder() -> Path:
    """The folder of a real nsys, to be put on a PATH; skips where there is none."""
    places = [*os.environ["PATH"].split(os.pathsep), str(Path(sys.prefix) / "nsys")]
    found = shutil.which("nsys", path=os.pathsep.join(places))
    if found is None:
        pytest.skip("nsys is not here, and scripts/fetch-nsys can fetch it only as root on Debian")
    return Path(found).parent
