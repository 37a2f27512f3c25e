"""The pages as Chromium prints them: every plot drawn, light, and nothing cut at the right."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from harness.common.palette import COLLECTIVES, COMMUNICATION, SERIES

pytest.importorskip("websocket", reason="pip install websocket-client: it speaks with the browser")
from chromium import Chromium, find_chromium

from tests.report.conftest import ALL_DRAWN, UNFOLD
from tests.waiting import limit_s

Picture = npt.NDArray[np.int16]
MARGIN_PT = 30  # of the 34 points of margin: a word closer to the edge is cut or almost cut
BACKWARD = "#d3bfe4"  # the timeline's colour of backward passes, which no plot has
COLOURS = {
    "report": (COMMUNICATION, BACKWARD),
    "comparison": (SERIES[0], SERIES[1], BACKWARD),
    "communication tests": COLLECTIVES[:3],
}


def print_page(page: Path, folder: Path, theme: str) -> Path:
    """The PDF that a headless Chromium prints as soon as the page is loaded."""
    program = find_chromium()
    if program is None or shutil.which("pdftoppm") is None:
        pytest.skip("Chromium or poppler-utils is not installed: nothing can be printed and looked at")
    target = folder / "page.pdf"
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'chromium'}"]
    address = f"{page.as_uri()}#theme={theme}"
    subprocess.run(
        [program, *options, "--no-pdf-header-footer", f"--print-to-pdf={target}", address],
        check=True,
        capture_output=True,
        timeout=limit_s(120),
    )
    return target


def pictures(pdf: Path) -> list[Picture]:
    """Every page as rows, columns, colours; 72 points an inch."""
    subprocess.run(["pdftoppm", "-r", "72", str(pdf), str(pdf.parent / "sheet")], check=True, timeout=limit_s())
    return [ppm(path) for path in sorted(pdf.parent.glob("sheet*.ppm"))]


def ppm(path: Path) -> Picture:
    kind, size, most, pixels = path.read_bytes().split(b"\n", 3)
    assert (kind, most) == (b"P6", b"255")
    width, height = map(int, size.split())
    return np.frombuffer(pixels, np.uint8).reshape(height, width, 3).astype(np.int16)


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


def pixels_of(sheets: list[Picture], color: str) -> int:
    wanted = [int(color[at : at + 2], 16) for at in (1, 3, 5)]
    return sum(int((np.abs(sheet - wanted).max(axis=-1) <= 6).sum()) for sheet in sheets)


@pytest.mark.parametrize(
    "sort", [pytest.param(each, marks=() if each == "report" else pytest.mark.long) for each in COLOURS]
)
def test_a_dark_page_is_printed_light_with_every_plot_and_every_column(
    chromium: Chromium, pages: dict[str, Path], sort: str, tmp_path: Path
) -> None:
    pdf = print_page(pages[sort], tmp_path, "dark")
    sheets, said = pictures(pdf), words(pdf)
    for sheet in sheets:
        assert (sheet.max(axis=-1) < 80).mean() < 0.06, "a black area"
        assert np.median(sheet) == 255
    for color in COLOURS[sort]:
        assert pixels_of(sheets, color) > 40, color
    far = [word for word, right, width in said if right > width - MARGIN_PT]
    assert far == []
    missing = set(expected(chromium, pages[sort])) - {word for word, *_ in said}
    assert not missing


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


@pytest.mark.long  # one more window, for what nobody but a reader at a screen sees
def test_after_the_print_the_page_is_as_it_was(chromium: Chromium, pages: dict[str, Path]) -> None:
    state = (
        "[document.documentElement.dataset.theme, document.getElementById('timeline-canvas').width,"
        "document.getElementById('timeline-canvas').height,"
        "[...Plots.drawn].map((plot) => [plot._fullLayout.width, plot._fullLayout.height]),"
        "[...document.querySelectorAll('details')].map((part) => part.open),"
        "document.querySelectorAll('section:not(:has(.part)) figure ul.legend').length, Timeline.ink.card]"
    )
    with chromium.page(1300) as browser:
        browser.open(pages["report"], dark=True)
        browser.wait("document.body.dataset.plots === 'ready' && document.body.dataset.timeline === 'ready'")
        browser.evaluate("Timeline.draw()")
        before: Any = browser.evaluate(state)
        printed = "(() => { const drawn = Plots.width; window.widths = [];"
        printed += "Plots.width = (e) => { widths.push(drawn(e)); return drawn(e); }; })()"
        browser.evaluate(printed)
        browser.call("Page.printToPDF")
        assert 680 in browser.evaluate("widths")
        browser.wait(f"Timeline.draw(), JSON.stringify({state}) === JSON.stringify({json.dumps(before)})")
        browser.evaluate(UNFOLD)
        browser.wait(ALL_DRAWN)
        widths = "[...document.querySelectorAll('div.plot')].map((plot) => plot.layout.width - plot.clientWidth)"
        assert set(browser.evaluate(widths)) == {0}, "a folded plot is not as wide as it was on paper"
        assert browser.problems == []
