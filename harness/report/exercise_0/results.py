"""The results of the communication tests: read, and as a person reads them in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from harness.common.alpha_beta import bus_factor
from harness.common.errors import WorkError
from harness.common.format import binary_size, duration, percent, rate
from harness.common.paths import PROGRAM
from harness.common.printable import printable
from harness.common.run_files import COLLECTIVES, VERDICT
from harness.common.run_store import Content, RunFile, UnreadFileError
from harness.common.submission import edit_of
from harness.report.exercise_0 import ring_or_tree
from harness.report.tables.table import table as columns_of
from harness.run import Run, typed

_Count = Annotated[int, Field(ge=0, lt=1 << 63)]
WIDTH = 79  # of everything but the plot's path and the messages of other programs
_HEAD = ("collective", "scope", "ranks", "largest", "bus GB/s", "of link", "α", "limit")
_WIDTHS = (14, 5, 5, 9, 8, 7, 8, 7)
_LEGEND = (
    "bus GB/s: bus bandwidth of the largest message. α: time of an empty message. limit: bus bandwidth of an "
    "infinitely long message, from 1/β of the line time = α + β·bytes. The run's own tables also give 1/β as algorithm "
    "bandwidth."
)
_NO_LINE = "Without α: too few message sizes were measured for a line."


class _FilePart(BaseModel):
    """The fields that the report shows; the files have more."""

    model_config = ConfigDict(extra="ignore", defer_build=True)


class MessagePoint(_FilePart):
    """One message size."""

    message_bytes: _Count
    time_ns: float
    busbw_gbytes_per_s: float
    correct: bool
    share_of_link: float | None = None


class Fit(_FilePart):
    """time_ns = alpha_ns + beta_ns_per_byte · bytes."""

    alpha_ns: float
    beta_ns_per_byte: float

    def endless_gb_per_s(self) -> float | None:
        """1/β, the algorithm bandwidth (bytes over time) of an infinitely long message; None if β is zero."""
        return 1 / self.beta_ns_per_byte if self.beta_ns_per_byte > 0 else None

    def endless_bus_gb_per_s(self, kind: str, ranks: int) -> float | None:
        """The same as bus bandwidth, to compare it with a measured one."""
        endless, factor = self.endless_gb_per_s(), bus_factor(kind, ranks)
        return None if endless is None or factor is None else endless * factor

    def half_bytes(self) -> float | None:
        """The message size at which the line reaches half of that bandwidth: α/β."""
        return self.alpha_ns / self.beta_ns_per_byte if self.beta_ns_per_byte > 0 else None


class MeasuredCollective(_FilePart):
    """One collective in one scope. reason: why points are missing. fit: None for too few message sizes."""

    collective: str
    scope: str  # intra | inter | world
    ranks: _Count
    points: list[MessagePoint] = []
    fit: Fit | None = None
    reason: str | None = None
    run: str = ""  # the job id of the run that measured it; not in the file


class CollectiveResults(_FilePart):
    """collectives.json."""

    world_size: _Count | None = None
    backend: str | None = None
    device_name: str | None = None
    reason: str | None = None  # why nothing was measured
    results: list[MeasuredCollective]


class VerdictProblem(_FilePart):
    """One problem or remark of the verdict."""

    level: str
    message: str


class LinkVerdict(_FilePart):
    """verdict.json."""

    verdict: str
    findings: list[VerdictProblem]
    lines: list[str] = []  # of a test other than the collectives: its table


COLLECTIVES_FILE = typed(COLLECTIVES, CollectiveResults)
VERDICT_FILE = typed(VERDICT, LinkVerdict)


def read_results(run_dir: Path) -> CollectiveResults | None:
    """The measured collectives; None: the run left no such file. Raises WorkError: the file is damaged."""
    return _read(COLLECTIVES_FILE, run_dir)


def read_verdict(run_dir: Path) -> LinkVerdict | None:
    """The verdict over all nodes; None: the run left no such file. Raises WorkError: the file is damaged."""
    return _read(VERDICT_FILE, run_dir)


def _read(run_file: RunFile[Content], run_dir: Path) -> Content | None:
    path = run_file.path(run_dir)
    try:
        return run_file.read(path)
    except UnreadFileError as error:
        if error.is_missing:
            return None
        raise WorkError(f"{path} {'is damaged' if error.is_damaged else 'cannot be read'} ({error.reason})") from None


def is_comm_run(path: Path) -> bool:
    """True for the directory of a run of exercise 0, which has measurements and no traces."""
    return Run(path).collectives.parent.is_dir() and Run(path).is_run


def render_comm(run_dir: Path, verdict_was_shown: bool = False) -> str:
    """What a run of exercise 0 measured, or why it is missing. verdict_was_shown: its output, which ends so, was."""
    try:
        verdict, missing = read_verdict(run_dir), f"the run ended before its verdict ({PROGRAM} logs RUN)"
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
    return [edit.sentence(record.job_id)] if record and edit else []


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
    legend = _LEGEND + ("" if all(r.fit for r in measured.results if r.points) else " " + _NO_LINE)
    plot = f"plot: {run_dir / 'comm' / 'collectives.png'}"
    lines = [_columns(_HEAD), *map(_row, measured.results), *wrap(legend, WIDTH - 2), plot]
    ranks = f"{measured.world_size} ranks" if measured.world_size else None
    where = ", ".join(filter(None, (ranks, measured.backend, measured.device_name)))
    return [f"Collectives: {where}", *(f"  {line}" for line in lines), *_ring_or_tree(measured.results)]


def _ring_or_tree(results: Sequence[MeasuredCollective]) -> list[str]:
    shown = ring_or_tree.rows(results)
    said = (f"  {line}" for line in wrap(ring_or_tree.answers(results), WIDTH - 2))
    lines = [*columns_of(ring_or_tree.HEAD, shown), *said]
    return ["", ring_or_tree.TITLE, *lines] if shown else []


def _row(result: MeasuredCollective) -> str:
    place = (result.collective, result.scope, str(result.ranks))
    if not result.points:
        return _columns(place) + "  " + (result.reason or "not measured")
    last, fit = result.points[-1], result.fit
    endless = fit.endless_bus_gb_per_s(result.collective, result.ranks) if fit else None
    wrong = "" if all(p.correct for p in result.points) else "  WRONG RESULTS"
    measured = (binary_size(last.message_bytes), rate(last.busbw_gbytes_per_s), percent(last.share_of_link))
    return _columns((*place, *measured, duration(fit.alpha_ns if fit else None), rate(endless))) + wrong


def _columns(cells: tuple[str, ...]) -> str:
    """Two names on the left, the rest on the right of their columns."""
    pairs = zip(cells, "<<>>>>>>", _WIDTHS, strict=False)
    return "  ".join(f"{cell:{side}{width}}" for cell, side, width in pairs)
