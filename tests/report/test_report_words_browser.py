"""The words of a page in a real browser: their meanings with the pointer, the keyboard and a click, and on paper."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.report.conftest import Made

pytest.importorskip("websocket", reason="pip install websocket-client: it speaks with the browser")
from chromium import Browser, Chromium

BOX = "document.getElementById('word-meaning')"
FIRST = "document.querySelector('#verdict a.word, section a.word')"
SHOWN = f"{BOX}.hidden ? '' : {BOX}.textContent"


@pytest.fixture(scope="module")
def browser(chromium: Chromium, made: Made) -> Iterator[Browser]:
    """The page, opened and drawn, in a window that has the focus."""
    with chromium.page() as browser:
        browser.call("Emulation.setFocusEmulationEnabled", enabled=True)
        browser.open(made.page)
        browser.wait("document.body.dataset.plots === 'ready'")
        yield browser


@pytest.fixture(autouse=True)
def fresh(browser: Browser) -> None:
    """No word is shown; the first one is in the window."""
    browser.key("Escape")
    browser.evaluate(f"document.activeElement.blur(); {FIRST}.scrollIntoView({{behavior: 'instant', block: 'center'}})")
    browser.mouse("mouseMoved", 2, 2)
    browser.wait(f"{BOX}.hidden")


def place(browser: Browser, element: str) -> tuple[float, float]:
    x, y = browser.evaluate(f"(({{left, top}}) => [left + 3, top + 3])({element}.getBoundingClientRect())")
    return x, y


def meaning(browser: Browser, link: str = FIRST) -> str:
    """A word and its meaning, as the list at the page's end has them."""
    found = f"document.getElementById({link}.hash.slice(1))"
    return str(
        browser.evaluate(f"{found}.querySelector('dt').textContent + ': ' + {found}.querySelector('dd').textContent")
    )


def test_the_pointer_shows_a_meaning_inside_the_window_and_a_click_keeps_it(browser: Browser) -> None:
    browser.mouse("mouseMoved", *place(browser, FIRST))
    browser.wait(f"!{BOX}.hidden")
    assert browser.evaluate(SHOWN) == meaning(browser)
    left, top, right, bottom = browser.evaluate(
        f"(b => [b.left, b.top, b.right, b.bottom])({BOX}.getBoundingClientRect())"
    )
    assert left >= 0 and top >= 0 and right <= 1280 and bottom <= 900
    browser.mouse("mouseMoved", 2, 2)
    browser.wait(f"{BOX}.hidden")
    x, y = place(browser, FIRST)
    for kind in ("mousePressed", "mouseReleased"):
        browser.mouse(kind, x, y, button="left", clickCount=1)
    browser.mouse("mouseMoved", 2, 2)
    assert browser.evaluate(SHOWN) == meaning(browser)
    assert browser.evaluate("location.hash") == "" and not browser.evaluate(
        "document.querySelector('#words details').open"
    )
    for kind in ("mousePressed", "mouseReleased"):
        browser.mouse(kind, 2, 2, button="left", clickCount=1)
    assert browser.evaluate(f"{BOX}.hidden")


def test_the_keyboard_reaches_a_word_and_escape_hides_its_meaning(browser: Browser) -> None:
    browser.evaluate("document.querySelector('nav a:last-of-type').focus()")
    for _ in range(12):
        browser.key("Tab")
        if browser.evaluate("document.activeElement.className") == "word":
            break
    assert browser.evaluate(SHOWN) == meaning(browser, "document.activeElement")
    described = "document.activeElement.getAttribute('aria-describedby')"
    assert browser.evaluate(f"document.getElementById({described}).getAttribute('role')") == "tooltip"
    browser.key("Escape")
    assert browser.evaluate(f"{BOX}.hidden") and browser.evaluate(described) is None


def test_words_lead_to_their_meanings_without_a_script_and_on_paper_too(browser: Browser) -> None:
    assert browser.evaluate("document.querySelectorAll('summary a').length") == 0, "a title only opens its section"
    assert browser.evaluate(
        "[...document.querySelectorAll('a.word')].every(a => document.getElementById(a.hash.slice(1)))"
    )
    browser.call("Emulation.setEmulatedMedia", media="print")
    try:
        browser.wait("document.querySelector('#words details').open")
        assert "underline" not in browser.evaluate(f"getComputedStyle({FIRST}).textDecorationLine")
        assert browser.evaluate(f"getComputedStyle({BOX}).display") == "none"
    finally:
        browser.call("Emulation.setEmulatedMedia", media="")
    assert browser.problems == []
