"""Secrets planted in the environment of a command, and a search of every file that it left for them."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from pathlib import Path

NAMES = (
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "WANDB_API_KEY",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "SINGULARITYENV_HF_TOKEN",
    "GITHUB_TOKEN",
    "OPENAI_API_KEY",
    "MLFLOW_TRACKING_PASSWORD",
    "DB_SECRET",
)


def planted(where: str) -> dict[str, str]:
    """Secrets with values of their own for each test: nsys sees the processes of tests that run beside it."""
    return {name: f"planted-{number:02d}-{where}" for number, name in enumerate(NAMES)}


def told(text: str | bytes, secrets: Mapping[str, str]) -> list[str]:
    """The variables whose value a text has."""
    content = text.encode() if isinstance(text, str) else text
    return [name for name, value in secrets.items() if value.encode() in content]


def leaks(folder: Path, secrets: Mapping[str, str]) -> list[str]:
    """`file: variable` of every file below that has a planted value, packed files unpacked.

    Raises:
        AssertionError: there is no file, so that nothing was searched.
    """
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert files, f"{folder} is empty"
    return [f"{path}: {name}" for path in files for name in told(_unpacked(path.read_bytes()), secrets)]


def _unpacked(content: bytes) -> bytes:
    try:
        return gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
    except (OSError, EOFError):  # cut short, as a test may have left it
        return content
