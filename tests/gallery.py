"""Recordings of others with their authors' own answers, in `shared/gallery` beside the checkout. Tests that read them
skip where they are absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_FOLDER = Path(os.environ.get("HARNESS_TEST_GALLERY", Path(__file__).parents[2] / "shared" / "gallery"))


_NO_TRACES = (".md", ".py")
_EXPORTED = (".nsys-rep", ".qdrep")  # readable after nsys exported them


def gallery_jobs() -> list[Path]:
    """Each job of the gallery that is read without another program: files and folders, pairs one by one; empty where
    it is absent."""
    if not _FOLDER.is_dir():
        return []
    jobs = [path for path in _FOLDER.iterdir() if path.name not in ("labels.json", "pairs", "straggler-analysis")]
    jobs += (_FOLDER / "pairs").glob("*")
    return sorted(path for path in jobs if path.suffix not in (*_NO_TRACES, *_EXPORTED))


def gallery(name: str) -> Path:
    """A file or folder of the gallery, or a skipped test."""
    if not (_FOLDER / name).exists():
        pytest.skip(f"{name} is not in {_FOLDER}; HARNESS_TEST_GALLERY names another folder")
    return _FOLDER / name
