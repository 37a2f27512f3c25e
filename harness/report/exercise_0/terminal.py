"""What a run of exercise 0 measured, as a person reads it in a terminal."""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap

from harness.common.display.format import binary_size, percent, rate
from harness.common.display.printable import printable
from harness.common.errors import WorkError
from harness.common.paths import COMMAND
from harness.common.run_folder.run_files import VERDICT
from harness.common.run_folder.submission import edit_of
from harness.report.exercise_0.results import NO_LINE, LinkVerdict, MeasuredCollective, read_results, read_verdict
from harness.run import Run

WIDTH = 79  # of everything but the plot's path and the messages of other programs
_HEAD = ("collective", "scope", "ranks", "largest", "bus GB/s", "of link", "α", "limit")
_WIDTHS = (14, 5, 5, 9, 8, 7, 8, 7)
_LEGEND = (
    "bus GB/s: bus bandwidth of the largest message. α: time of an empty message. limit: bus bandwidth of an "
    "infinitely long message, from 1/β of the line time = α + β·bytes. The run's own tables also give 1/β as algorithm "
    "bandwidth."
)


def is_comm_run(path: Path) -> bool:
    """True for the directory of a run of exercise 0, which has measurements and no traces."""
    return Run(path).collectives.parent.is_dir() and Run(path).is_run


def render_comm(run_dir: Path, verdict_was_shown: bool = False) -> str:
    """What a run of exercise 0 measured, or why it is missing. verdict_was_shown: its output, which ends so, was."""
    try:
        verdict, missing = read_verdict(run_dir), f"the run ended before its verdict ({COMMAND} logs RUN)"
    except WorkError as error:
        verdict, missing = None, str(error)
    shown = verdict_was_shown and VERDICT.path(run_dir).is_file()
    edited = _edited(Run(run_dir))
    if verdict is not None and verdict.lines:  # a test in place of the collectives
        lines = edited if shown else [*edited, *verdict.lines, "", *_verdict(verdict)]
        return "".join(f"{printable(line)}\n" for line in lines)
    first = [] if shown else [*(_verdict(verdict) if verdict else [f"No verdict: {missing}"]), ""]
    return "\n".join(map(printable, [*edited, *first, *_collectives(run_dir)])) + "\n"


def _edited(run: Run) -> list[str]:
    record = run.known_record
    edit = edit_of(record.edited) if record else None
    return [edit.sentence] if record and edit else []


def _verdict(verdict: LinkVerdict) -> list[str]:
    texts = (f"  {f.level}: {f.message}" for f in verdict.findings)
    findings = [line for text in texts for line in wrap(text, WIDTH, subsequent_indent="    ")]
    return [*wrap(verdict.verdict, WIDTH), *findings]


def _collectives(run_dir: Path) -> list[str]:
    try:
        measured = read_results(run_dir)
    except WorkError as error:
        return [f"No collective can be shown: {error}"]
    if measured is None or not measured.results:
        why = f": {measured.reason}" if measured is not None and measured.reason else ""
        return [f"No collective was measured{why}"]
    legend = _LEGEND + ("" if all(r.line for r in measured.results if r.points) else " " + NO_LINE)
    plot = f"plot: {run_dir / 'comm' / 'collectives.png'}"
    lines = [_columns(_HEAD), *map(_row, measured.results), *wrap(legend, WIDTH - 2), plot]
    ranks = f"{measured.world_size} ranks" if measured.world_size else None
    where = ", ".join(filter(None, (ranks, measured.backend, measured.device_name)))
    return [f"Collectives: {where}", *(f"  {line}" for line in lines)]


def _row(result: MeasuredCollective) -> str:
    place = (result.collective, result.scope, str(result.ranks))
    if not result.points:
        return _columns(place) + "  " + (result.reason or "not measured")
    last, line = result.points[-1], result.line
    endless = line.endless_bus_gb_per_s(result.collective, result.ranks) if line else None
    wrong = "" if all(p.correct for p in result.points) else "  WRONG RESULTS"
    measured = (binary_size(last.message_bytes), rate(last.busbw_gbytes_per_s), percent(last.share_of_link))
    return _columns((*place, *measured, result.alpha_text(), rate(endless))) + wrong


def _columns(cells: tuple[str, ...]) -> str:
    """Two names on the left, the rest on the right of their columns."""
    pairs = zip(cells, "<<>>>>>>", _WIDTHS, strict=False)
    return "  ".join(f"{cell:{side}{width}}" for cell, side, width in pairs)
