"""Recordings of others with their authors' own answers, in `shared/gallery` beside the checkout. Tests that read them
skip where they are absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_FOLDER = Path(os.environ.get("HARNESS_TEST_GALLERY", Path(__file__).parents[2] / "shared" / "gallery"))


def gallery(name: str) -> Path:
    """A file or folder of the gallery, or a skipped test."""
    if not (_FOLDER / name).exists():
        pytest.skip(f"{name} is not in {_FOLDER}; HARNESS_TEST_GALLERY names another folder")
    return _FOLDER / name
