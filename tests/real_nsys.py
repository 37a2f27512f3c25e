"""The real nsys that `scripts/test` fetches: the newest of Debian's that runs here, and Debian 12's.

A test has the newest. What differs between versions, or may, is tested with both: `EACH_NSYS`, or
`EACH_NSYS_AT_LENGTH`, whose older one is left out unless all tests run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

NEWEST, OLDER = "nsys", "nsys-bookworm"  # folders of the environment


@cache
def _found(name: str) -> tuple[Path, str] | None:
    """The folder and version of one that is here; the newest may be one on PATH."""
    places = [str(Path(sys.prefix) / name)]
    if name == NEWEST:
        places = [*os.environ["PATH"].split(os.pathsep), *places]
    nsys = shutil.which("nsys", path=os.pathsep.join(places))
    if nsys is None:
        return None
    said = subprocess.run([nsys, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"version (\d+\.\d+)", said)
    return Path(nsys).parent, version[1] if version else "unknown"


def folder(name: str) -> Path:
    """The folder of one, for a PATH; skips where it is not here."""
    found, newest = _found(name), _found(NEWEST)
    if found is None:
        pytest.skip(f"{name} is not here, and scripts/fetch-nsys can fetch it only as root on Debian")
    if name != NEWEST and newest is not None and newest[1] == found[1]:
        pytest.skip(f"the newest nsys that runs here is {found[1]} too")
    return found[0]


def _each(*older_marks: pytest.MarkDecorator) -> pytest.MarkDecorator:
    ids = {name: found[1] if (found := _found(name)) else name for name in (NEWEST, OLDER)}
    older = pytest.param(OLDER, id=f"{ids[OLDER]}-of-debian-12", marks=older_marks)
    return pytest.mark.parametrize(
        "nsys_folder", [pytest.param(NEWEST, id=ids[NEWEST]), older], indirect=True
    )


EACH_NSYS = _each()
EACH_NSYS_AT_LENGTH = _each(pytest.mark.long)
