"""Toy wheels and environments for the tests of packages: uv installs them from a folder, never from the network."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.waiting import limit_s


def uv() -> str:
    """The uv of this machine; without one the test skips."""
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        pytest.skip("there is no uv here: bash slurm.sh --install test brings it")
    return found


def said(*argv: str | Path) -> str:
    """What a program printed; it ends well."""
    done = subprocess.run([*map(str, argv)], check=False, capture_output=True, text=True, timeout=limit_s())
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def wheel(folder: Path, name: str, version: str, *requires: str, files: Mapping[str, str] | None = None) -> None:
    """A wheel with these files; without any: a module that knows its version."""
    stem = f"{name.replace('-', '_')}-{version}"
    texts = dict(files or {f"{name.replace('-', '_')}.py": f"VERSION = {version!r}\n"})
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {each}" for each in requires)]
    texts[f"{stem}.dist-info/METADATA"] = "\n".join(["Metadata-Version: 2.1", *lines, ""])
    texts[f"{stem}.dist-info/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    rows = [f"{path},sha256={_checksum(text)},{len(text)}" for path, text in texts.items()]
    texts[f"{stem}.dist-info/RECORD"] = "\n".join([*rows, f"{stem}.dist-info/RECORD,,", ""])
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
        for path, text in texts.items():
            archive.writestr(path, text)


def _checksum(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


def environment(folder: Path, wheels: Path, wanted: Sequence[str], *options: str, base: str = sys.executable) -> str:
    """The Python of a new environment with these packages, as they are: what they require is not looked at."""
    said(uv(), "venv", "--quiet", *options, "--python", base, folder)
    python = str(folder / "bin" / "python")
    how = ["--quiet", "--offline", "--no-index", "--no-deps", "--find-links", str(wheels), "--python", python]
    if wanted:
        said(uv(), "pip", "install", *how, *wanted)
    return python


def site_of(python: str) -> Path:
    """The folder of packages of an environment."""
    return next(Path(python).parents[1].glob("lib/python3*/site-packages"))


def state_of(*folders: Path) -> dict[str, object]:
    """Every file below, with its content and its time; every link, with where it leads."""
    found: dict[str, object] = {}
    for path in (each for folder in folders for each in folder.rglob("*")):
        if path.is_symlink():
            found[str(path)] = path.readlink()
        else:
            found[str(path)] = (path.stat().st_mtime_ns, path.read_bytes()) if path.is_file() else None
    return found
