"""The pages as Chromium prints them: every plot drawn, light, and nothing cut at the right."""

from __future__ import annotations

import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from matplotlib.image import imread

from harness.common.display.palette import COMMUNICATION

pytest.importorskip("websocket", reason="pip install websocket-client: it speaks with the browser")
from chromium import Chromium, find_chromium

from tests.report.conftest import ALL_DRAWN, UNFOLD, Made
from tests.waiting import limit_s

Picture = npt.NDArray[np.int16]
MARGIN_PT = 30  # of the 34 points of margin: a word closer to the edge is cut or almost cut
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


def words(pdf: Path) -> list[tuple[str, float, float]]:
    """Every word, its right edge, and its page's width, in points."""
    said = subprocess.run(
        ["pdftotext", "-bbox", str(pdf), "-"], check=True, capture_output=True, text=True, timeout=limit_s()
    )
    found: list[tuple[str, float, float]] = []
    width = 0.0
    for line in said.stdout.splitlines():
        if page := re.search(r'<page width="([\d.]+)"', line):
            width = float(page[1])
        elif word := re.search(r'xMax="([\d.]+)".*>(.*)</word>', line):
            found.append((unescape(word[2]), float(word[1]), width))
    return found


def test_a_dark_page_is_printed_light_with_every_plot_and_every_column(
    chromium: Chromium, made: Made, tmp_path: Path
) -> None:
    pdf = print_page(made.page, tmp_path)
    sheets, said = pictures(pdf), words(pdf)
    for sheet in sheets:
        assert (sheet.max(axis=-1) < 80).mean() < 0.06, "a black area"
        assert np.median(sheet) == 255
    for color in (COMMUNICATION, BACKWARD):
        wanted = [int(color[at : at + 2], 16) for at in (1, 3, 5)]
        assert sum((np.abs(sheet - wanted).max(axis=-1) <= 6).sum() for sheet in sheets) > 40, color
    assert [word for word, right, width in said if right > width - MARGIN_PT] == []
    assert set(expected(chromium, made.page)) <= {word for word, *_ in said}


def expected(chromium: Chromium, page: Path) -> list[str]:
    """The words that must be on paper: heads of tables, captions, and the titles of the plots' axes."""
    with chromium.page() as browser:
        browser.open(page)
        browser.wait("document.body.dataset.plots === 'ready'")
        browser.evaluate(UNFOLD)
        browser.wait(ALL_DRAWN)
        found: list[str] = browser.evaluate(
            "[...document.querySelectorAll('main .scroll th, main p.caption, figcaption, .xtitle, .ytitle')]"
            ".filter((e) => !e.closest('.numbers')).flatMap((e) => e.textContent.split(/\\s+/)).filter(Boolean)"
        )
    assert len(found) > 20
    return found
