"""An environment with the wheel and no checkout, and the command that is typed there."""

from __future__ import annotations

import os
import subprocess
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.metadata import Metadata

from tests.waiting import limit_s

ROOT = Path(__file__).parents[2]


def metadata(wheel: Path) -> Metadata:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return Metadata.from_email(archive.read(name), validate=True)


def run(*argv: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=limit_s(300), **options)
    assert isinstance(done.stdout, str)
    return done


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel, and an empty folder to work in. variables: what the shell has besides."""

    venv: Path
    folder: Path
    variables: dict[str, str] = field(default_factory=dict)

    def __call__(self, *words: str | Path, program: str = "training-traces") -> subprocess.CompletedProcess[str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HARNESS_", "PYTHON"))}
        shell = kept | self.variables
        shell["PATH"] = f"{self.venv / 'bin'}{os.pathsep}{shell['PATH']}"  # as where it is activated
        return run(self.venv / "bin" / program, *words, cwd=self.folder, env=shell)

    @property
    def package(self) -> Path:
        (found,) = self.venv.glob("lib/python3*/site-packages/harness")
        return found

    def files(self) -> list[str]:
        """The files in the folder and in the installed package, without compiled Python."""
        places = (self.folder, self.package)
        return sorted(str(f) for place in places for f in place.rglob("*") if "__pycache__" not in f.parts)
