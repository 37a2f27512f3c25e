"""The tables of the job's time: its parts, which add up to it, and the imports in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.analysis.labels import short_place
from harness.analysis.metric_values import Facts
from harness.analysis.metrics import Metric
from harness.analysis.summary import JobImport, JobTimePart, Summary
from harness.common.format import apart, duration, percent
from harness.common.job_time import PARTS
from harness.explain.job_time import facts, sentence, time_words
from harness.report.tables.table import Column, File, TableOf, plain

SECTION = "job-time"
IMPORTS = TableOf[JobImport](
    caption="Imports of half a second or longer, each without those in it that are listed too",
    rows=lambda s: s.job_time.imports if s.job_time else [],
    columns=(
        Column("package", lambda p: p.package),
        Column("time", lambda p: duration(p.duration_ns)),
        Column("slowest rank", lambda p: str(p.rank)),
        Column("line", lambda p: short_place(p.where) if p.where else "–", apart, page=60),
    ),
    section=SECTION,
    file=File("job_imports", lambda s: map(plain, s.job_time.imports) if s.job_time else []),
)


def _caption(s: Summary) -> str:
    if s.job_time is None:
        return ""
    whole = time_words(s.job_time.elapsed_ns)
    return f"Where the job's {whole} went; at each moment the job is where the rank is that is furthest behind"


def part_metric(part: str) -> str:
    """The name of a part's time for compare and --fail-if."""
    return f"job_{part.removeprefix('job ').replace(' ', '_')}_ns"


def _part_ns(part: str) -> Callable[[Facts], float | None]:
    def of(facts: Facts) -> float | None:
        job_time = facts.summary.job_time
        return None if job_time is None else sum(x.duration_ns for x in job_time.parts if x.part == part)

    return of


JOB_PARTS = TableOf[JobTimePart](
    caption=_caption,
    rows=lambda s: s.job_time.parts if s.job_time else [],
    columns=(
        Column("part", lambda p: p.part),
        Column("time", lambda p: duration(p.duration_ns)),
        Column("share of the job", lambda p: percent(p.share)),
        Column("slowest rank", lambda p: "–" if p.rank is None else str(p.rank)),
        Column("its time", lambda p: duration(p.rank_ns)),
        Column("what", lambda p: p.what or "–"),
        Column("line", lambda p: short_place(p.where) if p.where else "–", apart, page=60),
    ),
    section=SECTION,
    spare=("what", "its time", "slowest rank"),
    advice=lambda s: [f"  {sentence(s.job_time)}", *_facts(s)] if s.job_time else [],
    file=File("job_time", lambda s: map(plain, s.job_time.parts) if s.job_time else []),
    metrics=(
        Metric(
            "job_elapsed_ns",
            lambda facts: facts.summary.job_time.elapsed_ns if facts.summary.job_time else None,
            "`job_time.elapsed_ns`.",
            "the job's elapsed time",
            "more",
        ),
        Metric(
            "useful_share",
            lambda facts: facts.summary.job_time.useful_share if facts.summary.job_time else None,
            "`job_time.useful_share`.",
            "  steps, share of it",
            "less",
        ),
        *(
            Metric(
                part_metric(part),
                _part_ns(part),
                f"`duration_ns` of the part `{part}` of `job_time.parts`; 0 if it has none.",
                f"  {part}",
                "more",
            )
            for part in PARTS
        ),
    ),
)


def _facts(s: Summary) -> list[str]:
    return [f"  {name}: {text}" for name, text in facts(s.job_time)] if s.job_time else []


TABLES: tuple[TableOf[Any], ...] = (JOB_PARTS, IMPORTS)
