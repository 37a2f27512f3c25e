"""Exercise 0's answer for a terminal: the verdict over all nodes, and what each collective's link gives."""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap

from harness.common.errors import WorkError
from harness.common.paths import PROGRAM
from harness.format.format import duration, percent, rate
from harness.report.exercise_0.results import Measured, Result, read_measured, read_verdict
from harness.run import Run
from harness.traces.vocabulary import printable

WIDTH = 79  # of everything but the path of the plot and what a program said
_HEAD = ("collective", "scope", "ranks", "largest", "bus GB/s", "of link", "α", "endless")
_WIDTHS = (14, 5, 5, 9, 8, 7, 8, 7)
_LEGEND = (
    "bus GB/s: bus bandwidth of the largest message. α: time of an empty message. endless: bus bandwidth of an "
    "endless message, 1/β of the line time = α + β·bytes (the run's own tables give 1/β as algorithm bandwidth too)."
)
_NO_LINE = "Without α: too few message sizes were measured for a line."


def is_comm_run(path: Path) -> bool:
    """True for the directory of a run of exercise 0, which has measurements and no traces."""
    return Run(path).collectives.parent.is_dir() and Run(path).is_run


def render_comm(run_dir: Path, verdict_was_shown: bool = False) -> str:
    """The essence of a run of exercise 0; what is missing or damaged is said. `verdict_was_shown`: its own output
    was, and that ends with the verdict."""
    shown = verdict_was_shown and Run(run_dir).verdict.is_file()
    verdict = [] if shown else [*_verdict(run_dir), ""]
    return "\n".join(map(printable, [*verdict, *_collectives(run_dir)])) + "\n"


def _verdict(run_dir: Path) -> list[str]:
    try:
        said = read_verdict(run_dir)
    except WorkError as error:
        return [f"No verdict: {error}"]
    if said is None:
        return [f"No verdict: the run ended before it ({PROGRAM} logs RUN)"]
    findings = [line for f in said.findings for line in _wrapped(f"  {f.level}: {f.message}")]
    return [*wrap(said.verdict, WIDTH), *findings]


def _collectives(run_dir: Path) -> list[str]:
    try:
        measured = read_measured(run_dir)
    except WorkError as error:
        return [f"No collective can be shown: {error}"]
    if measured is None or not measured.results:
        why = f": {measured.reason}" if measured is not None and measured.reason else ""
        return [f"No collective was measured{why}"]
    head = "  " + _columns(_HEAD)
    rows = [f"  {_row(result)}" for result in measured.results]
    legend = _LEGEND + ("" if all(r.fit for r in measured.results if r.points) else " " + _NO_LINE)
    plot = f"  plot: {run_dir / 'comm' / 'collectives.png'}"
    return [
        f"Collectives: {_where(measured)}",
        head,
        *rows,
        *(f"  {x}" for x in wrap(legend, WIDTH - 2)),
        plot,
    ]


def _where(measured: Measured) -> str:
    ranks = f"{measured.world_size} ranks" if measured.world_size else None
    return ", ".join(filter(None, (ranks, measured.backend, measured.device_name)))


def _row(result: Result) -> str:
    place = (result.collective, result.scope, str(result.ranks))
    if not result.points:
        return _columns(place) + "  " + (result.reason or "not measured")
    last, fit = result.points[-1], result.fit
    endless = fit.endless_bus_gb_per_s(result.collective, result.ranks) if fit else None
    wrong = "" if all(p.correct for p in result.points) else "  WRONG RESULTS"
    numbers = (
        _size(last.message_bytes),
        rate(last.busbw_gbytes_per_s),
        percent(last.share_of_link),
        duration(fit.alpha_ns) if fit else "–",
        rate(endless),
    )
    return _columns((*place, *numbers)) + wrong


def _columns(cells: tuple[str, ...]) -> str:
    """Two names on the left, the rest on the right of their columns."""
    pairs = zip(cells, _WIDTHS, strict=False)
    return "  ".join(
        f"{cell:<{width}}" if i < 2 else f"{cell:>{width}}" for i, (cell, width) in enumerate(pairs)
    )


def _size(count: float) -> str:
    """A message's size as the benchmark's tables write it.

    >>> _size(1024), _size(16 << 20), _size(1 << 30)
    ('1 KiB', '16 MiB', '1 GiB')
    """
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"


def _wrapped(text: str) -> list[str]:
    return wrap(text, WIDTH, subsequent_indent="    ")
