"""The real nsys that `scripts/test` fetches: the newest of Debian's that runs here, and Debian 12's.

A test has Debian 12's, else the newest: 2023.4 lost one in seven recordings of a training
(configs/nsys/README.md). What differs between versions, or may, is tested with both: `EACH_NSYS`, or
`EACH_NSYS_AT_LENGTH`, whose newest is left out unless all tests run.
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
MOST_TRIES = 2  # on two busy cores nsys 2022.4 was seen to lose a whole recording: it may record once more


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


def usual() -> str:
    """The one that a test has which names none."""
    newest, older = _found(NEWEST), _found(OLDER)
    return OLDER if older and (newest is None or newest[1] != older[1]) else NEWEST


def _each(*newest_marks: pytest.MarkDecorator) -> pytest.MarkDecorator:
    ids = {name: found[1] if (found := _found(name)) else name for name in (NEWEST, OLDER)}
    each = [
        pytest.param(NEWEST, id=ids[NEWEST], marks=newest_marks),
        pytest.param(OLDER, id=f"{ids[OLDER]}-of-debian-12"),
    ]
    return pytest.mark.parametrize("nsys_folder", each, indirect=True)


EACH_NSYS = _each()
EACH_NSYS_AT_LENGTH = _each(pytest.mark.long)
