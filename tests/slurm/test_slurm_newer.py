"""All other tests of this folder on the Slurm of each newer Debian: with its daemons and its commands, not installed.

By hand, and for other tests: `bash scripts/fetch-slurm FOLDER SUITE`, then pytest with `PATH=FOLDER/bin:$PATH`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.slurm.slurm_sh import REPOSITORY
from tests.waiting import limit_s

pytestmark = [pytest.mark.slurm, pytest.mark.long]


@pytest.fixture(params=["trixie", "forky"])
def newer_path(request: pytest.FixtureRequest) -> Iterator[str]:
    """A PATH on which the Slurm of a suite is first."""
    with tempfile.TemporaryDirectory(prefix="newer-slurm-") as folder:
        words = ["bash", str(REPOSITORY / "scripts" / "fetch-slurm"), folder, request.param]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=limit_s(3600))
        if done.returncode:
            pytest.skip(done.stderr.strip().splitlines()[-1])
        yield f"{folder}/bin{os.pathsep}{os.environ['PATH']}"


def test_every_other_test_passes_on_it(newer_path: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": newer_path}
    own, newer = (
        subprocess.run(
            ["slurmctld", "-V"], env=each, capture_output=True, text=True, check=True, timeout=limit_s(3600)
        ).stdout
        for each in ({**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin"}, environment)
    )
    assert newer != own
    said = tmp_path / "said.xml"
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "slurm", f"--junitxml={said}"]
    done = subprocess.run(
        [*words, str(Path(__file__).parent), f"--ignore={__file__}"],
        env=environment,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=limit_s(3600),
    )
    assert done.returncode == 0, f"{newer}{done.stdout}{done.stderr}"
    suites = list(ElementTree.parse(said).getroot().iter("testsuite"))
    assert sum(int(suite.get("tests", 0)) for suite in suites) > 40
    assert sum(int(suite.get("skipped", 0)) for suite in suites) == 0, done.stdout
