"""What the report's page costs: making it, its first paint, and frames while its timeline zooms and moves.

    python benchmarks/bench_page.py [--kernels 100000] [--seconds 4] [TRACE…]

Without traces it writes an nsys export of so many kernels. Chromium draws without a GPU, in software, as on the
weakest laptop; frames are those that were presented, `draw` is one frame's own work. Aim: first paint within 2 s,
more than 30 frames per second."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from chromium import Browser, Chromium, find_chromium
from generate_nsys_sqlite import generate

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness.measure.request import ReportRequest, measure_request
from harness.report.page.compose import write_page

# Back and forth between everything and one step's thousandth, as a hand on W and S does, and sideways on A and D.
_MOVE = """(async (seconds) => {
  Timeline.canvas.scrollIntoView();
  Timeline.fitAll();
  const draws = [], began = performance.now(), gaps = [];
  let last = began, frames = 0;
  const draw = Timeline.draw;
  Timeline.draw = () => { const t = performance.now(); draw(); draws.push(performance.now() - t); };
  while (performance.now() - began < 1000 * seconds) {
    const passed = (performance.now() - began) / 1000;
    if (MODE === "zoom") Timeline.zoom(passed % 2 < 1 ? 1.08 : 1 / 1.08, 500);
    else Timeline.pan(passed % 2 < 1 ? 0.03 : -0.03);
    const now = await new Promise((resolve) => requestAnimationFrame(resolve));
    gaps.push(now - last);
    last = now;
    frames++;
  }
  Timeline.draw = draw;
  const at = (values, share) => values.sort((a, b) => a - b)[Math.floor(share * (values.length - 1))];
  return {frames: frames / seconds, draw: at(draws, 0.5), draw95: at(draws, 0.95), gap95: at(gaps, 0.95)};
})(SECONDS)"""


def make(traces: list[Path], page: Path) -> None:
    """Measure the traces and write their page, telling what each takes."""
    start = time.perf_counter()
    (summary, *_), page_data = measure_request(ReportRequest([str(trace) for trace in traces], page=True))
    measured = time.perf_counter()
    write_page(None, summary, page, page_data=page_data)
    written = time.perf_counter()
    kernels = sum(d.kernels for d in summary.devices)
    print(f"{kernels:,} kernels: measured in {measured - start:.2f} s, page written in {written - measured:.2f} s")
    print(f"the page: {page.stat().st_size / 1e6:.2f} MB")


def moving(browser: Browser, mode: str, seconds: float) -> dict[str, Any]:
    """Frames per second and milliseconds per draw while the view moves."""
    script = _MOVE.replace("MODE", repr(mode)).replace("SECONDS", str(seconds))
    return dict(browser.evaluate(script))


def look(page: Path, seconds: float) -> None:
    """Open the page and move about in it."""
    program = find_chromium()
    if program is None:
        raise SystemExit("Chromium is not installed: nothing to look with")
    with Chromium(program) as chromium, chromium.page() as browser:
        browser.open(page)
        browser.wait("document.body.dataset.timeline === 'ready'")
        ready_ms = browser.evaluate("performance.now()")
        paint_ms = browser.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        shown = browser.evaluate("Timeline.strips.flatMap(s => s.lanes).reduce((n, lane) => n + lane.n, 0)")
        browser.wait("!document.querySelector('[data-figure]') || document.body.dataset.plots === 'ready'")
        print(f"first paint {paint_ms:.0f} ms, timeline of {shown:,} intervals within {ready_ms:.0f} ms")
        for mode in ("zoom", "pan"):
            r = moving(browser, mode, seconds)
            print(
                f"{mode}: {r['frames']:.0f} frames/s (95 % of frames within {r['gap95']:.0f} ms); "
                f"a draw takes {r['draw']:.1f} ms, 95 % within {r['draw95']:.1f} ms"
            )
        if browser.problems:
            print("console:", *browser.problems, sep="\n  ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, nargs="*", metavar="TRACE")
    parser.add_argument("--kernels", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        traces = list(options.traces)
        if not traces:
            traces = [Path(folder) / "made.sqlite"]
            generate(traces[0], options.kernels, devices=2)
        page = Path(folder) / "report.html"
        make(traces, page)
        look(page, options.seconds)


if __name__ == "__main__":
    main()
