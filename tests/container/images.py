"""The real Apptainer and the images that it builds: a small Debian, whose Python is not the machine's.

The training packages are bound into it: they are those of the environment in which the tests run.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import limit_s

SUITES = {(3, 11): "bookworm", (3, 13): "trixie"}  # by their Python, which must be able to load our packages
RECIPE = Path(__file__).with_name("root_folder.sh")
PACKAGES = f"{sysconfig.get_path('platlib')}:/opt/packages"
PYTHON = "/usr/bin/python3"  # inside


@cache
def apptainer() -> Path:
    """The program; skips on a machine that has none."""
    places = [*os.environ["PATH"].split(os.pathsep), str(Path(sys.prefix) / "apptainer")]
    found = shutil.which("apptainer", path=os.pathsep.join(places))
    if found is None:
        pytest.skip("Apptainer is not here, and scripts/fetch-apptainer can fetch it only as root on Debian")
    if shutil.which("mksquashfs") is None:
        pytest.skip("mksquashfs is not here: it is in the package squashfs-tools")
    return Path(found)


def _made(name: str, make: Callable[[Path], object]) -> Path:
    """What belongs to a recipe, made once by whichever thread or process comes first."""
    suite = SUITES.get(sys.version_info[:2])
    if suite is None:
        pytest.skip(f"no Debian of these tests has Python {sys.version_info[0]}.{sys.version_info[1]}")
    mark = hashlib.sha256(RECIPE.read_bytes()).hexdigest()[:12]
    folder = Path(sys.prefix) / "apptainer" / f"image-{suite}-{mark}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / name).exists():
            make(folder / f"new-{name}")
            (folder / f"new-{name}").rename(folder / name)
    return folder / name


def root_folder() -> Path:
    """The folder of which the images are built."""

    def unpack(new: Path) -> None:
        subprocess.run(["bash", RECIPE, new, SUITES[sys.version_info[:2]]], check=True, timeout=limit_s(600))

    return _made("root", unpack)


def sif() -> Path:
    """The image as one file."""
    root = root_folder()
    return _made("training.sif", lambda new: build(new, root))


def build(
    image: Path, *words: str | Path, before: Sequence[str] = (), cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """An image that Apptainer builds from a folder or a definition; its error contains what Apptainer said."""
    # The default compression takes twenty seconds longer.
    fast = ("--mksquashfs-args", "-comp zstd -Xcompression-level 1")
    argv = [*before, apptainer(), "build", "--force", *fast, *words[:-1], image, words[-1]]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=cwd, timeout=limit_s(600))
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done


def container(image: Path | None = None, **changes: Any) -> dict[str, Any]:
    """A site's section of this name."""
    plain = {"runtime": "apptainer", "command": str(apptainer()), "image": str(image or sif())}
    return {**plain, "binds": [PACKAGES], **changes}
