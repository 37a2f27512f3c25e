"""The page at work in a real browser: no error, no request, and every way to move in the timeline."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.report.conftest import ALL_DRAWN, UNFOLD, Made
from tests.synthetic.job import STEPS

pytest.importorskip("websocket", reason="pip install websocket-client: it speaks with the browser")
from chromium import Browser, Chromium


@pytest.fixture(scope="module")
def browser(chromium: Chromium, made: Made) -> Iterator[Browser]:
    """The page, opened and drawn."""
    with chromium.page() as browser:
        browser.open(made.page)
        browser.wait("document.body.dataset.timeline === 'ready'")
        browser.wait("document.body.dataset.plots === 'ready'")
        yield browser


@pytest.fixture(autouse=True)
def fresh(browser: Browser) -> None:
    """Everything is shown, nothing is chosen, the pointer is elsewhere; the canvas is in the middle of the window."""
    browser.evaluate(
        "Timeline.canvas.scrollIntoView({behavior: 'instant', block: 'center'});"
        "Timeline.choose(null); Timeline.fitAll(); Timeline.canvas.focus({preventScroll: true}); Timeline.draw()"
    )


def place(browser: Browser, script: str) -> tuple[float, float]:
    """A place on the canvas, in the window's coordinates. `script` gives [x, y] on the canvas."""
    box = browser.evaluate("(({left, top}) => [left, top])(Timeline.canvas.getBoundingClientRect())")
    x, y = browser.evaluate(script)
    return box[0] + x, box[1] + y


def span(browser: Browser) -> float:
    return float(browser.evaluate("Timeline.view.to - Timeline.view.from"))


def event_place(browser: Browser, group: str, index: int) -> tuple[float, float]:
    """The middle of the n-th interval of the first lane of a group."""
    return place(
        browser,
        f"(() => {{ const row = Timeline.rows.find(r => r.lane && r.lane.group === '{group}');"
        f"const x = Timeline.x((row.lane.start[{index}] + row.lane.end[{index}]) / 2);"
        "return [x, Timeline.RULER + row.y - Timeline.view.scroll + row.height / 2]; })()",
    )


def test_the_page_draws_every_plot_without_an_error_a_request_or_a_name_that_runs(browser: Browser, made: Made) -> None:
    assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    browser.evaluate(UNFOLD)
    browser.wait(ALL_DRAWN)
    wanted = browser.evaluate("document.querySelectorAll('[data-figure]').length")
    assert wanted >= 4
    assert browser.evaluate("document.querySelectorAll('.plot .main-svg').length") >= wanted
    assert browser.problems == []
    assert [r for r in browser.requests if not r.startswith(("data:", "blob:"))] == [made.page.as_uri()]
    assert browser.evaluate("typeof window.hacked") == "undefined"
    assert browser.evaluate("Timeline.texts.some((text) => text.startsWith('evil</script>'))")


def hold(browser: Browser, key: str, until: str) -> None:
    """A key is pressed until it has its effect; after its release nothing moves."""
    event = "document.dispatchEvent(new KeyboardEvent('{}', {{key: '{}', bubbles: true}}))"
    two_frames = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    browser.evaluate(event.format("keydown", key))
    browser.wait(until)
    browser.evaluate(f"{event.format('keyup', key)}; {two_frames}.then(() => 0)")
    stands = browser.evaluate("[Timeline.view.from, Timeline.view.to]")
    assert browser.evaluate(f"{two_frames}.then(() => [Timeline.view.from, Timeline.view.to])") == stands


def test_keys_zoom_and_move_and_the_wheel_with_ctrl_zooms_at_the_pointer(browser: Browser) -> None:
    before = span(browser)
    hold(browser, "w", f"Timeline.view.to - Timeline.view.from < {0.9 * before}")
    closer = span(browser)
    start = browser.evaluate("Timeline.view.from")
    hold(browser, "d", f"Timeline.view.from > {start}")
    assert span(browser) == pytest.approx(closer, rel=1e-6)
    browser.key("0")
    assert span(browser) == pytest.approx(before)
    x, y = place(browser, "[700, Timeline.RULER + 60]")
    # the scale is that of the last frame: what the key 0 asked for is drawn first
    before, at = span(browser), browser.evaluate("Timeline.draw(); Timeline.time(700)")
    browser.mouse("mouseWheel", x, y, deltaX=0, deltaY=-300, modifiers=2)
    browser.wait(f"Timeline.view.to - Timeline.view.from < {0.9 * before}")
    browser.evaluate("Timeline.draw()")
    assert browser.evaluate("Timeline.time(700)") == pytest.approx(at, abs=before / 500)


def test_the_pointer_shows_what_is_under_it(browser: Browser) -> None:
    x, y = event_place(browser, "stream", 1)
    browser.mouse("mouseMoved", x, y)
    browser.wait("!Timeline.tooltip.hidden")
    said = browser.evaluate("Timeline.tooltip.innerText")
    assert "ampere_bf16" in said and "50.0 µs · gemm · stream 7" in said and "into step 0" in said
    browser.mouse("mouseMoved", *place(browser, "[40, Timeline.RULER + 60]"))
    browser.wait("Timeline.tooltip.hidden")


def test_a_click_keeps_the_event_and_arrows_walk_on(browser: Browser) -> None:
    x, y = event_place(browser, "stream", 1)
    for kind in ("mousePressed", "mouseReleased"):
        browser.mouse(kind, x, y, button="left", clickCount=1)
    assert browser.evaluate("Timeline.chosen.i") == 1
    browser.key("ArrowRight")
    assert browser.evaluate("Timeline.chosen.i") == 2
    assert "ampere_bf16" in browser.evaluate("document.getElementById('timeline-said').innerText")
    browser.key("f")
    assert span(browser) == pytest.approx(1.8 * 50_000)


def test_a_drag_adds_up_a_stretch(browser: Browser) -> None:
    browser.evaluate("Timeline.showStep(0); Timeline.draw()")
    y = 60
    left, right = (place(browser, f"[Timeline.x({t}), Timeline.RULER + {y}]") for t in (200_000, 800_000))
    browser.mouse("mousePressed", *left, button="left", clickCount=1)
    for share in (0.3, 0.7, 1.0):
        browser.mouse("mouseMoved", left[0] + share * (right[0] - left[0]), left[1], button="left")
    browser.mouse("mouseReleased", *right, button="left", clickCount=1)
    said = browser.evaluate("document.getElementById('timeline-said').innerText")
    assert "rank 0" in said and "gemm 5" in said  # ten products of 50 µs, cut at whole pixels


def test_totals_of_a_stretch_are_exact_and_crowded_columns_sum_to_what_they_hide(browser: Browser) -> None:
    totals: Any = browser.evaluate(
        "Timeline.totals(225000, 800000).map(([strip, parts]) => [strip.rank, Object.fromEntries(parts)])"
    )
    # 200 to 250 µs is the first product: half of it is before the stretch.
    assert dict(totals)[0]["gemm"] == 25_000 + 9 * 50_000
    assert "communication" not in dict(totals)[0]
    sums = browser.evaluate(
        "(() => { Timeline.go(-2e8, 4e8); Timeline.view.from = -2e8; Timeline.view.to = 4e8; Timeline.draw();"
        "const lane = Timeline.rows.find((r) => r.lane && r.lane.group === 'stream').lane; let sum = 0;"
        "const column = Timeline.column; Timeline.column = (l, i, j) => { const c = column(l, i, j);"
        "if (l === lane) sum += c[1]; return c; };"
        "Timeline.draw(); Timeline.column = column;"
        "let whole = 0; for (let i = 0; i < lane.n; i++) whole += lane.end[i] - lane.start[i];"
        "return [sum, whole]; })()"
    )
    assert sums[0] == sums[1] > 0


def test_the_controls_hide_a_rank_choose_a_step_and_name_the_colours(browser: Browser) -> None:
    def titles() -> list[str]:
        return list(browser.evaluate("Timeline.rows.filter((row) => row.title).map((row) => row.title)"))

    assert [t.split(" · ")[0] for t in titles()] == ["rank 0", "rank 1"]
    click = "document.querySelectorAll('#timeline-ranks button')[0]"
    browser.evaluate(f"{click}.click()")
    assert [t.split(" · ")[0] for t in titles()] == ["rank 1"]
    assert browser.evaluate(f"{click}.getAttribute('aria-pressed')") == "false"
    browser.evaluate(f"{click}.click()")
    assert len(titles()) == 2
    listed = browser.evaluate("[...document.querySelectorAll('#timeline .legend li')].map((item) => item.textContent)")
    drawn = browser.evaluate("Timeline.totals(...Timeline.whole).flatMap(([, parts]) => parts.map(([name]) => name))")
    assert set(listed) == set(drawn) and "idle: garbage collection" not in listed
    assert browser.evaluate("document.getElementById('timeline-steps').options.length") == STEPS + 1
    browser.evaluate(
        "(() => { const steps = document.getElementById('timeline-steps'); steps.value = '2';"
        "steps.dispatchEvent(new Event('change')); })()"
    )
    assert browser.evaluate("Timeline.view.from") == pytest.approx(2_000_000, abs=60_000)
    assert browser.evaluate("Timeline.view.to") == pytest.approx(3_000_000, abs=60_000)
    browser.key("]")
    assert browser.evaluate("Timeline.view.from") == pytest.approx(3_000_000, abs=60_000)


def test_light_and_dark_change_the_plots_too_and_follow_the_system(browser: Browser, made: Made) -> None:
    def ground() -> str:
        return str(browser.evaluate("getComputedStyle(document.body).backgroundColor"))

    def ink() -> str:
        return str(browser.evaluate("getComputedStyle(document.querySelector('.plot text')).fill"))

    light = (ground(), ink())
    browser.evaluate("document.getElementById('theme').click()")
    dark = (ground(), ink())
    browser.evaluate("document.getElementById('theme').click()")
    assert light[0] != dark[0] and light[1] != dark[1]
    assert (ground(), ink()) == light
    browser.open(made.page, dark=True)
    assert browser.evaluate("document.documentElement.dataset.theme") == "dark"
    browser.open(made.page)
    browser.wait("document.body.dataset.timeline === 'ready'")
    assert browser.evaluate("document.documentElement.dataset.theme") == "light"


def test_a_click_on_a_cause_shows_the_first_step_that_it_hits(browser: Browser, made: Made) -> None:
    found = made.summary.findings[0]
    assert found.every == 1, "so it is the first step"
    for link in ("#verdict a[data-at]", "#help a[data-at]"):
        browser.evaluate("Timeline.showStep(2); document.querySelectorAll('#timeline-ranks button')[0].click()")
        browser.evaluate(f"document.querySelector('{link}').click()")
        first, end = browser.evaluate("Timeline.strips[0].steps[0].slice(1)")
        begin, last = browser.evaluate("[Timeline.view.from, Timeline.view.to]")
        assert begin <= first < end <= last < 2 * end - first
        assert browser.evaluate("Timeline.shown.has(0)"), "a hidden rank is shown again"
        assert browser.evaluate("Timeline.said.textContent") == "step 0 of rank 0"
    browser.evaluate("Timeline.toMoment({at: '0', rank: '7'})")
    assert "Rank 7 is not shown here" in browser.evaluate("Timeline.said.textContent")
    browser.evaluate("Timeline.toMoment({at: '999999999999999999999', rank: '1'})")
    assert browser.evaluate("Timeline.said.textContent") == "This step is not shown here."


FOLDS = "[...document.querySelectorAll('details.part')].filter((part) => part.open).length"


def test_what_is_below_the_timeline_is_folded_and_opens_by_click_key_link_and_address(
    browser: Browser, made: Made
) -> None:
    browser.open(made.page)
    browser.wait("document.body.dataset.plots === 'ready'")
    assert browser.evaluate(FOLDS) == 0
    below = "[...document.querySelectorAll('#timeline ~ section')]"
    assert browser.evaluate(
        f"{below}.length >= 4 && {below}.every((s) => s.querySelector('details.part > summary > h2'))"
    )
    plot = "document.querySelector('#kernels .main-svg')"
    assert browser.evaluate(plot) is None
    x, y = browser.evaluate(
        "(() => { const name = document.querySelector('#kernels summary');"
        "name.scrollIntoView({behavior: 'instant', block: 'center'});"
        "const box = name.getBoundingClientRect(); return [box.left + 60, box.top + box.height / 2]; })()"
    )
    for kind in ("mousePressed", "mouseReleased"):
        browser.mouse(kind, x, y, button="left", clickCount=1)
    browser.wait("document.querySelector('#kernels details').open")
    browser.wait(f"{plot} !== null")
    assert browser.evaluate("document.getElementById('plot-kinds').layout.width") > 400
    browser.evaluate("document.querySelector('#collectives summary').focus()")
    browser.key("Enter")
    browser.wait("document.querySelector('#collectives details').open")
    assert browser.evaluate(FOLDS) == 2
    link = "document.querySelector('nav a[href=\"#host\"]')"
    for _ in range(2):  # also if the address is the section's already
        browser.evaluate(f"{link}.click()")
        assert browser.evaluate("document.querySelector('#host details').open")
        browser.evaluate("document.querySelector('#host details').open = false")
    browser.evaluate("location.hash = '#run'")
    browser.wait("document.querySelector('#run details').open")
    browser.call("Page.navigate", url="about:blank")
    browser.call("Page.navigate", url=f"{made.page.as_uri()}#kernels")
    browser.wait("document.body?.dataset.plots === 'ready'")
    assert browser.evaluate("document.querySelector('#kernels details').open")
    assert browser.evaluate("document.querySelector('#kernels').getBoundingClientRect().top") < 900


INJECTED = """(async () => {
  const script = Object.assign(document.createElement("script"), {textContent: "window.injected = 1"});
  document.body.append(script);
  document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='window.injected = 1'>");
  const image = new Promise((done) => {
    const image = Object.assign(new Image(), {onload: () => done("loaded"), onerror: () => done("refused")});
    image.src = "ADDRESS/x.png";
  });
  const sent = await fetch("ADDRESS").then(() => "sent", () => "refused");
  return [typeof window.injected, sent, await image];
})()"""


def test_a_name_that_slipped_through_would_still_run_and_send_nothing(
    browser: Browser, made: Made, tmp_path: Path
) -> None:
    """The page with an attack written into it as HTML, as if no name had been escaped."""
    asked: list[str] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

    with ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:  # a socket may be opened ahead of need
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        attack = (
            f"<base href='{address}/'><script>window.injected = 1</script><script src='{address}/s.js'></script>"
            f"<img src='{address}/i.png' onerror='window.injected = 1'><iframe src='{address}/f'></iframe>"
        )
        page = tmp_path / "attacked.html"
        page.write_text(made.page.read_text().replace("<main>", f"<main>{attack}", 1))
        try:
            browser.open(page)
            browser.wait("document.body.dataset.timeline === 'ready' && document.body.dataset.plots === 'ready'")
            assert browser.evaluate(INJECTED.replace("ADDRESS", address)) == ["undefined", "refused", "refused"]
            assert browser.evaluate("document.baseURI").startswith("file:")
            assert asked == []
        finally:
            server.shutdown()
            browser.open(made.page)
            browser.wait("document.body.dataset.timeline === 'ready'")
            browser.problems.clear()
