"""The tables of the job's time: its parts, which add up to it, and the imports in it."""

from __future__ import annotations

from typing import Any

from harness.analysis.labels import short_place
from harness.analysis.summary import JobImport, JobTimePart, Summary
from harness.common.format import apart, duration, percent
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
)


def _facts(s: Summary) -> list[str]:
    return [f"  {name}: {text}" for name, text in facts(s.job_time)] if s.job_time else []


TABLES: tuple[TableOf[Any], ...] = (JOB_PARTS, IMPORTS)
