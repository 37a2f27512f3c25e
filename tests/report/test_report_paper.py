"""The page as Chromium prints it: every plot drawn, light, and nothing cut at the right."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from matplotlib.image import imread

from harness.common.display.palette import COMMUNICATION

pytest.importorskip("websocket", reason="pip install websocket-client: it speaks with the browser")
from chromium import find_chromium

from tests.report.conftest import Made
from tests.waiting import limit_s

Picture = npt.NDArray[np.int16]
MARGIN_PT = 30  # of the 34 points of margin: what is closer to the edge is cut or almost cut
BACKWARD = "#d3bfe4"  # the timeline's colour of backward passes, which no plot has


def print_page(page: Path, folder: Path) -> Path:
    """The PDF that a headless Chromium prints as soon as the page is loaded."""
    program = find_chromium()
    if program is None or shutil.which("pdftoppm") is None:
        pytest.skip("Chromium or poppler-utils is not installed: nothing can be printed and looked at")
    target = folder / "page.pdf"
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'chromium'}"]
    address = f"{page.as_uri()}#theme=dark"
    subprocess.run(
        [program, *options, "--no-pdf-header-footer", f"--print-to-pdf={target}", address],
        check=True,
        capture_output=True,
        timeout=limit_s(120),
    )
    return target


def pictures(pdf: Path) -> list[Picture]:
    """Every page as rows, columns, colours; 72 points an inch."""
    subprocess.run(["pdftoppm", "-png", "-r", "72", str(pdf), str(pdf.parent / "sheet")], check=True, timeout=limit_s())
    return [(255 * imread(path)[..., :3]).round().astype(np.int16) for path in sorted(pdf.parent.glob("sheet*.png"))]


def test_a_dark_page_is_printed_light_with_its_plots_and_its_timeline(made: Made, tmp_path: Path) -> None:
    sheets = pictures(print_page(made.page, tmp_path))
    for sheet in sheets:
        assert (sheet.max(axis=-1) < 80).mean() < 0.06, "a black area"
        assert np.median(sheet) == 255
        assert (sheet[:, -MARGIN_PT:] > 250).all(), "something is cut at the right"
    for color in (COMMUNICATION, BACKWARD):
        wanted = [int(color[at : at + 2], 16) for at in (1, 3, 5)]
        assert sum((np.abs(sheet - wanted).max(axis=-1) <= 6).sum() for sheet in sheets) > 40, color
