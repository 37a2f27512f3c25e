"""Where the job's time went: its parts as tables, with what is said of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.analysis.labels import short_place
from harness.analysis.summary import JobImport, JobTime, JobTimePart, Summary
from harness.common.display.format import apart, percent
from harness.explain.job_time import outside_ns, sentence, time_words
from harness.report.tables.table import Column, File, TableOf, plain

SECTION = "job-time"
IMPORTS = TableOf[JobImport](
    caption="Imports of half a second or longer, each without those in it that are listed too",
    rows=lambda s: s.job_time.imports if s.job_time else [],
    columns=(
        Column("package", "package"),
        Column("time", "duration_ns"),
        Column("slowest rank", "rank"),
        Column("line", lambda p: short_place(p.where) if p.where else "–", apart, page=60),
    ),
    section=SECTION,
    file=File("job_imports", lambda s: map(plain, s.job_time.imports) if s.job_time else []),
)


def facts(job_time: JobTime) -> Iterator[tuple[str, str]]:
    """What is said beside the parts: queue and cost."""
    if job_time.queue_ns is not None:
        yield "queue, before it", time_words(job_time.queue_ns)
    yield "useful", f"{percent(job_time.useful_share)} of the job's time are steps (goodput)"
    outside = outside_ns(job_time) / job_time.elapsed_ns
    if job_time.gpu_time_ns is not None:
        hours = job_time.gpu_time_ns / 3.6e12
        yield "GPU hours", f"{hours:.3g}, of them {outside * hours:.3g} outside of the steps"
    if job_time.energy_joules is not None:
        yield "energy", f"{job_time.energy_joules / 3.6e6:.3g} kWh of the GPUs in the whole job"


def _caption(s: Summary) -> str:
    if s.job_time is None:
        return ""
    whole = time_words(s.job_time.elapsed_ns)
    return f"Where the job's {whole} went; at each moment the job is where the rank is that is furthest behind"


JOB_PARTS = TableOf[JobTimePart](
    caption=_caption,
    rows=lambda s: s.job_time.parts if s.job_time else [],
    columns=(
        Column("part", "part"),
        Column("time", "duration_ns"),
        Column("share of the job", "share"),
        Column("slowest rank", "rank"),
        Column("its time", "rank_ns"),
        Column("what", "what"),
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
