"""The bootstrap reads dependency lists without a TOML parser, and reads them as one would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bootstrap.bootstrap_checkout import ROOT
from tests.waiting import limit_s

tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no TOML parser to compare with")

READ = "import sys, pins; print(*pins.requirements(sys.stdin.read(), sys.argv[1]), sep='\\n')"


@pytest.mark.parametrize("part", ["launcher", "train", "test"])
def test_every_list_is_read_as_a_parser_reads_it(part: str) -> None:
    text = Path(ROOT, "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    wanted = project["dependencies"] if part == "launcher" else project["optional-dependencies"][part]
    command = [sys.executable, "-c", READ, part]
    read = subprocess.run(
        command,
        input=text,
        cwd=ROOT / "scripts" / "bootstrap",
        capture_output=True,
        text=True,
        check=True,
        timeout=limit_s(),
    ).stdout
    assert wanted
    assert read.splitlines() == wanted
