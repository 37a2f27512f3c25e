"""Every command printed on the workshop's slides, as the script it is on the two clusters it was taught on."""

from __future__ import annotations

import os

import pytest
from launch_shared import ROOT, Harness, anywhere

from harness.launch.argv import quote
from harness.launch.submit import this_machine

GOLDEN = ROOT / "tests" / "golden"
SLIDES = (GOLDEN / "slides.txt").read_text().splitlines()


@pytest.mark.parametrize("site", ["leonardo", "marenostrum5"])
@pytest.mark.parametrize("number", range(1, len(SLIDES) + 1))
def test_the_slides_command_is_this_script(harness: Harness, site: str, number: int) -> None:
    """After a deliberate change: HARNESS_WRITE_GOLDEN=1 pytest tests/launch, then read the diff."""
    done = harness(
        "--dry-run", *SLIDES[number - 1].split(),
        HARNESS_SITE=site, HARNESS_RUNS=f"{ROOT}/exercises",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    usual = quote(f"{ROOT}/.venv/harness-python")  # HARNESS_VENV may have put it elsewhere
    text = anywhere(done.stdout.replace(quote(this_machine().python), usual))
    path = GOLDEN / "slides" / f"{site}-{number:02}.sbatch"
    if os.environ.get("HARNESS_WRITE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
