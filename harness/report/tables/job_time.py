"""Where the job's time went: its parts as tables, and in words the largest outside of the steps with what shortens
them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.analysis.labels import short_place
from harness.analysis.summary import JobImport, JobTime, JobTimePart, Summary
from harness.common.display.format import apart, duration, percent
from harness.common.run_folder import job_parts as parts
from harness.report.tables.table import Column, File, TableOf, plain

SECTION = "job-time"
LARGE = 1 / 3  # of the elapsed time: from there a report's first screen tells what is outside of the steps
LONG_NS = 10_000_000_000  # and from there
_TOLD = 0.05  # of the time outside of the steps, from which a part is told
_MOST = 3  # parts in a sentence
_MINUTE_NS = 60_000_000_000

DOING = {
    parts.PROLOG: "until Slurm had prepared the nodes",
    parts.START: "until the first node began",
    parts.LAUNCH: "starting container, launcher and Python",
    parts.IMPORTS: "importing packages",
    parts.MEETING: "until all ranks had met",
    parts.MODEL: "making the model and loading its weights",
    parts.DATA: "reading data before the first step",
    parts.OTHER: "other code before the first step",
    parts.FIRST_STEP: "more in the first step than in others",
    parts.EVALUATION: "evaluating",
    parts.CHECKPOINTS: "writing checkpoints",
    parts.TRACES: "profiling and writing traces",
    parts.TAIL: "after the last step",
    parts.STUCK: "stuck",
    parts.ENDING: "ending launcher, profiler and monitor",
    parts.CONVERSION: "converting reports and drawing plots",
}
_CURES = {
    parts.LAUNCH: "keep the container's image and the Python environment on a disk of the node",
    parts.IMPORTS: "import less before the first step, or from a disk of the node or an image",
    parts.MODEL: "load weights by memory mapping from a near disk, and make the model on its device",
    parts.DATA: "prepare the data once and keep it, and let workers read it",
    parts.OTHER: "do this once, before the job, and keep its result",
    parts.EVALUATION: "evaluate less often, or on fewer batches",
    parts.CHECKPOINTS: "write checkpoints less often, or in the background (torch.distributed.checkpoint.async_save)",
    parts.TRACES: "record fewer steps, or use --profiler none where no trace is needed",
    parts.TAIL: "let the job end with its training, and do the rest in a job without GPUs",
    parts.ENDING: "use --profiler none where no trace is needed",
    parts.CONVERSION: "convert the reports after the job",
}
_COMPILED = "keep compiled kernels from one job to the next (TORCHINDUCTOR_CACHE_DIR, TRITON_CACHE_DIR)"
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


def time_words(ns: float) -> str:
    """A time of a job: under a minute with three digits, else in minutes or hours.

    >>> time_words(41_230_000_000), time_words(190_000_000_000), time_words(3_700_000_000_000)
    ('41.2 s', '3 min 10 s', '1 h 1 min')
    """
    if ns < _MINUTE_NS:
        return duration(ns)
    minutes, seconds = divmod(round(ns / 1e9), 60)
    hours, rest = divmod(minutes, 60)
    return f"{hours:,} h {rest} min" if hours else f"{minutes} min {seconds} s"


def outside_ns(job_time: JobTime) -> int:
    return job_time.elapsed_ns - sum(part.duration_ns for part in job_time.parts if part.part == parts.STEPS)


def is_large(job_time: JobTime) -> bool:
    """Whether a report's first screen tells it."""
    outside = outside_ns(job_time)
    return outside >= max(LARGE * job_time.elapsed_ns, LONG_NS)


def largest(job_time: JobTime) -> list[JobTimePart]:
    """The parts outside of the steps that are worth telling, the largest first."""
    least = _TOLD * outside_ns(job_time)
    told = [part for part in job_time.parts if part.part != parts.STEPS and part.duration_ns >= least]
    return sorted(told, key=lambda part: -part.duration_ns)


def sentence(job_time: JobTime) -> str:
    """How much is outside of the steps, of what it consists and what shortens the largest part that can be."""
    outside = outside_ns(job_time)
    share = percent(outside / job_time.elapsed_ns)
    told = ", ".join(map(part_words, largest(job_time)[:_MOST]))
    start = f"{time_words(outside)} of {time_words(job_time.elapsed_ns)} ({share}) are outside of the steps"
    change = next(filter(None, map(cure, largest(job_time))), "")
    return f"{start}{f': {told}' if told else ''}.{f' Try: {change}.' if change else ''}"


def part_words(part: JobTimePart) -> str:
    """A part with its time, what it is, its rank and its line."""
    doing = DOING.get(part.part, part.part)
    if part.part == parts.IMPORTS and part.what:
        doing = f"{doing} ({part.what} first of all)"
    if part.part == parts.FIRST_STEP and part.what:
        doing = f"{doing} ({part.what})"
    who = []
    if part.rank is not None and part.part == parts.MEETING:
        who.append(f"rank {part.rank} came last")
    elif part.rank is not None:
        who.append(f"rank {part.rank}")
    if part.where is not None:
        who.append(short_place(part.where))
    about = f" [{', '.join(who)}]" if who else ""
    return f"{time_words(part.duration_ns)} {doing}{about}"


def cure(part: JobTimePart) -> str:
    """What shortens a part; empty: nothing that a user can do."""
    if part.part == parts.FIRST_STEP:
        return _COMPILED if part.what else ""
    if part.part == parts.MEETING:
        return "" if part.rank is None else f"look at what rank {part.rank} does before it meets the others"
    return _CURES.get(part.part, "")


def short_words(job_time: JobTime, width: int) -> str:
    """The sentence in one line: as many parts as fit."""
    line = f"{time_words(outside_ns(job_time))} of {time_words(job_time.elapsed_ns)} outside of the steps"
    for i, part in enumerate(largest(job_time)):
        more = f"{': ' if i == 0 else ', '}{part.part} {time_words(part.duration_ns)}"
        if len(line) + len(more) > width:
            break
        line += more
    return line


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
