"""A small checkout: the real bootstrap, a stand-in for the harness, and wheels of its own for the real pip."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.waiting import limit_s

ROOT = Path(__file__).parents[2]
NOBODY = 65534
HOSTILE = """a folder's "name"; echo foo $(echo bar) `x` & *"""

PYPROJECT = """\
[project]
name = "harness"
dependencies = [
  "tiny-alpha>=1",
]

[project.optional-dependencies]
train = [
  "tiny-torch==1.0",
]

[tool.ruff]
line-length = 110
"""

# Prints its arguments; before a training on this machine it asks for the training packages.
STAND_IN = """\
import json, os, sys
from importlib.util import find_spec
has = {name: find_spec(f"tiny_{name}") is not None for name in ("alpha", "beta", "torch")}
if "--train" in sys.argv and not has["torch"] or "--never" in sys.argv:
    sys.exit(88)
print(json.dumps({"arguments": sys.argv[1:], "cwd": os.getcwd(), "prefix": sys.prefix, "path": sys.path, **has,
                  "parent": os.getppid(),
                  "environment": {k: v for k, v in os.environ.items() if k.startswith("HARNESS_")}}))
sys.exit(7 if "--fail" in sys.argv else 0)
"""


@dataclass(frozen=True)
class Answer:
    """The result of one start of slurm.sh."""

    code: int
    stdout: str
    stderr: str

    @property
    def said(self) -> dict[str, Any]:
        """What the stand-in wrote; an error for a start that did not reach it."""
        assert self.stdout, self.stderr
        answer: dict[str, Any] = json.loads(self.stdout)
        return answer


@dataclass(frozen=True)
class Checkout:
    """A folder with slurm.sh in it, the environment it is started in, and by whom; None: by the tests' own user."""

    root: Path
    environment: Mapping[str, str]
    user: int | None = None

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    def command(self, *arguments: str) -> list[str]:
        return ["/bin/bash", str(self.root / "slurm.sh"), *arguments]

    def env(self, **changes: str) -> dict[str, str]:
        return {**self.environment, **changes}

    def run(self, *arguments: str, cwd: Path | str | None = None, **changes: str) -> Answer:
        user: dict[str, Any] = {} if self.user is None else {"user": self.user, "group": self.user, "extra_groups": []}
        done = subprocess.run(
            self.command(*arguments), cwd=cwd or self.root.parent, env=self.env(**changes), capture_output=True,
            text=True, check=False, stdin=subprocess.DEVNULL, timeout=limit_s(300), **user,
        )  # fmt: skip
        return Answer(done.returncode, done.stdout, done.stderr)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start it in a process group of its own and go on."""
        return subprocess.Popen(
            self.command(*arguments), env=self.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def with_uv(self, text: str) -> Checkout:
        """This checkout where uv is a script of bash with this text."""
        folder = self.root.parent / "stub"
        folder.mkdir()
        (folder / "uv").write_text(f"#!/usr/bin/env bash\n{text}\n")
        (folder / "uv").chmod(0o755)
        return replace(self, environment=self.env(PATH=f"{folder}:{self.environment['PATH']}"))

    def depend_on(self, *more: str) -> None:
        lines = "".join(f'  "{requirement}",\n' for requirement in ("tiny-alpha>=1", *more))
        text = PYPROJECT.replace('  "tiny-alpha>=1",\n', lines)
        (self.root / "pyproject.toml").write_text(text)


def wheel(folder: Path, name: str, version: str = "1.0") -> None:
    """The smallest wheel that pip takes."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{module}.py", "")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


def make_checkout(root: Path, wheels: Path, uv_folder: Path | None = None) -> Checkout:
    """The real slurm.sh at `root`, a stand-in behind it. Its packages come with pip, or with the uv of `uv_folder`."""
    (root / "harness").mkdir(parents=True)
    (root / "harness" / "__init__.py").touch()
    (root / "harness" / "__main__.py").write_text(STAND_IN)
    (root / "pyproject.toml").write_text(PYPROJECT)
    shutil.copy(ROOT / "slurm.sh", root)
    shutil.copytree(ROOT / "configs" / "sites", root / "configs" / "sites")
    left_out = ("HARNESS_", "SLURM_", "PIP_", "UV_", "VIRTUAL", "CONDA")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(left_out)}
    environment |= {
        "HARNESS_PYTHON": sys.executable,
        "HARNESS_PIP_ARGS": f"--no-index --find-links '{wheels}'",
        "PIP_CONFIG_FILE": os.devnull,
        "UV_HTTP_RETRIES": "0",
    }
    if uv_folder is not None:
        environment["PATH"] = f"{uv_folder}:{environment['PATH']}"
    return Checkout(root, environment)
