"""The plots of a page: buttons that stay on the page, one stop of the Tab key, and a narrow window in which nothing
is cut. Every sort of page has its plots from the same code."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("websocket", reason="pip install websocket-client: it speaks with the browser")
from chromium import Browser, Chromium

from harness.analysis.summary import Summary
from harness.explain.answer import Attempt, Diagnosis
from harness.report.page.compose import compose, render_page
from harness.report.page.inputs import Inputs
from tests.report.conftest import ALL_DRAWN, UNFOLD, Made

BUTTONS = ["download plot as a png", "zoom", "pan", "zoom in", "zoom out", "reset axes"]
PHONE = 400


@pytest.fixture(scope="module")
def wide(chromium: Chromium) -> Iterator[Browser]:
    """A window of a desktop's width."""
    with chromium.page(1300) as browser:
        yield browser


@pytest.fixture(scope="module")
def phone(chromium: Chromium) -> Iterator[Browser]:
    """A window of a phone's width."""
    with chromium.page(PHONE) as browser:
        yield browser


def show(browser: Browser, page: Path) -> None:
    """The page with every section open and every plot drawn."""
    browser.open(page)
    browser.wait("document.body.dataset.plots === 'ready'")
    browser.evaluate(UNFOLD)
    browser.wait(ALL_DRAWN)


def test_a_plot_has_these_buttons_and_is_one_stop_of_the_tab_key(wide: Browser, made: Made) -> None:
    show(wide, made.page)
    bars: list[list[str]] = wide.evaluate(
        "[...document.querySelectorAll('div.plot')].map((plot) =>"
        "[...plot.querySelectorAll('.modebar-btn')].map((button) => button.dataset.title.toLowerCase()))"
    )
    assert len(bars) >= 2 and all(titles == BUTTONS for titles in bars), bars
    assert wide.evaluate("document.querySelectorAll('div.plot a[href]').length") == 0
    servers = "[...new Set([...document.querySelectorAll('div.plot')].map((plot) => plot._context.plotlyServerURL))]"
    assert wide.evaluate(servers) == [""]
    wide.evaluate("window.visited = new Set([document.body])")
    stops: list[str] = []
    while not stops or (stops[-1] != "the end" and len(stops) < 200):
        wide.key("Tab")
        # The plot whose element or button has the focus; "" outside of all plots.
        stop = wide.evaluate(
            "(() => { const at = document.activeElement, figure = at.closest('figure');"
            "if (visited.has(at)) return 'the end'; visited.add(at);"
            "return figure && at.closest('div.plot') ? figure.querySelector('div.plot').id : ''; })()"
        )
        stops.append(str(stop))
    plots = wide.evaluate("[...document.querySelectorAll('div.plot')].map((plot) => plot.id)")
    assert [stop for stop in stops if stop] == [*plots, "the end"]


def test_arrows_reach_a_plots_buttons_and_escape_leads_back(wide: Browser, made: Made) -> None:
    show(wide, made.page)
    plot = "document.getElementById('plot-step-time')"
    focused = "document.activeElement.dataset.title || document.activeElement.textContent"
    wide.evaluate(f"{plot}.focus()")
    reached = []
    for _ in BUTTONS:
        wide.key("ArrowRight")
        reached.append(str(wide.evaluate(focused)).lower())
    assert reached == BUTTONS
    before = wide.evaluate(f"{plot}._fullLayout.xaxis.range.map(Number)")
    wide.key("ArrowLeft")
    wide.key("ArrowLeft")
    assert wide.evaluate(focused) == "Zoom in"
    wide.key("Enter")
    wide.wait(f"{plot}._fullLayout.xaxis.range[1] < {before[1]}")
    assert wide.evaluate(focused) == "Zoom in"
    wide.key("Escape")
    assert wide.evaluate(f"document.activeElement === {plot}")


# Words on more than one line, outside of the timeline and the plots: letters and digits that belong together.
CUT_WORDS = """(() => {
  const cut = [], range = document.createRange();
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const node = texts.currentNode;
    if (node.parentElement.closest("script, style, svg, canvas, noscript")) continue;
    for (const word of node.data.matchAll(/[\\p{L}\\p{N}]+/gu)) {
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1) cut.push(word[0]);
    }
  }
  return cut;
})()"""


def test_on_a_phone_no_word_title_or_command_is_cut_and_legends_are_below(phone: Browser, made: Made) -> None:
    show(phone, made.page)
    phone.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert phone.evaluate("document.documentElement.scrollWidth") <= PHONE
    assert phone.evaluate(CUT_WORDS) == []
    assert (
        phone.evaluate(CUT_WORDS.replace("/[\\p{L}\\p{N}]+/gu", "/.+/g").replace("body", "querySelector('main')")) != []
    )
    boxes = "[...document.querySelectorAll('p code')].map((c) => [c.scrollWidth - c.clientWidth, c.tabIndex])"
    assert all((stop == 0) == (over > 0) for over, stop in phone.evaluate(boxes))
    commands = "[...document.querySelectorAll('code')].filter((code) => code.getClientRects().length > 1)"
    assert phone.evaluate(f"{commands}.length") == 0
    assert phone.evaluate("document.querySelectorAll('div.plot g.legend').length") == 0
    legends: list[Any] = phone.evaluate(
        "[...document.querySelectorAll('figure ul.legend')].map((list) => ["
        "list.getBoundingClientRect().top - list.previousElementSibling.getBoundingClientRect().bottom,"
        "list.scrollWidth - list.clientWidth, list.children.length])"
    )
    assert legends
    for below, cut, names in legends:
        assert below >= 0 and cut <= 0 and names >= 2
    outside = phone.evaluate(
        "[...document.querySelectorAll('div.plot')].flatMap((plot) => { const box = plot.getBoundingClientRect();"
        "return [...plot.querySelectorAll('.xtitle, .ytitle, .ytick text, .bartext')].filter((text) => {"
        "const at = text.getBoundingClientRect(); return at.left < box.left - 1 || at.right > box.right + 1 ||"
        "at.top < box.top - 1 || at.bottom > box.bottom + 1; }).map((text) => plot.id + ': ' + text.textContent); })"
    )
    assert outside == []


def test_on_a_phone_a_table_that_goes_on_scrolls_and_is_a_stop_of_the_tab_key(phone: Browser, made: Made) -> None:
    show(phone, made.page)
    tables: list[list[int]] = phone.evaluate(
        "[...document.querySelectorAll('.scroll')].filter((t) => !t.closest('.numbers'))"
        ".map((t) => [t.scrollWidth - t.clientWidth, t.tabIndex])"
    )
    assert {over > 0 for over, _ in tables} == {True, False}
    assert all((stop == 0) == (over > 0) for over, stop in tables)


def test_on_a_phone_a_long_command_has_one_line_that_scrolls_in_its_box(phone: Browser, tmp_path: Path) -> None:
    command = "bash slurm.sh -e 3 -- --model tiny-mistral-deep --micro-batch-size 2 --tp 1 --global-batch-size 16"
    page = tmp_path / "report.html"
    page.write_text(
        render_page(
            dataclasses.replace(compose(Summary(), Inputs()), said=Diagnosis(["…"], attempt=Attempt("…", command)))
        )
    )
    phone.open(page)
    assert phone.evaluate("document.getElementById('command').textContent") == command
    code = "document.getElementById('command')"
    phone.evaluate(f"window.range = document.createRange(), range.selectNodeContents({code})")
    assert phone.evaluate("range.getClientRects().length") == 1
    assert phone.evaluate(f"{code}.scrollWidth > {code}.clientWidth + 100 && {code}.tabIndex === 0")
    assert phone.evaluate("document.documentElement.scrollWidth") <= PHONE
    phone.evaluate(f"{code}.scrollLeft = 1e4")
    assert phone.evaluate(f"{code}.scrollLeft") > 100
