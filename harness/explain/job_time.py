"""Where the job's time went, in words: its largest parts outside of the steps, and what shortens them."""

from __future__ import annotations

from harness.analysis.labels import short_place
from harness.analysis.summary import JobTime, JobTimePart, Summary
from harness.analysis.summary.problem_texts import NOT_COMPLETED
from harness.common.display.format import duration, percent
from harness.common.run_folder import job_parts as parts
from harness.experiment.own import OwnTraining
from harness.explain.commands import asked_of

LARGE = 1 / 3  # of the elapsed time: from there a report's first screen tells what is outside of the steps
LONG_NS = 10_000_000_000  # and from there
_TOLD = 0.05  # of the time outside of the steps, from which a part is told
_MOST = 3  # parts in a sentence
_SMALLER = 0.5  # of the elapsed time: from there the steps are the smaller part of the job
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
    parts.COMPILATION: "compiling (torch.compile)",
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
    parts.COMPILATION: "keep compiled kernels from one job to the next (TORCHINDUCTOR_CACHE_DIR, TRITON_CACHE_DIR)",
    parts.FIRST_STEP: (
        "see what only the first step does, such as building operators (TORCH_EXTENSIONS_DIR), and keep its result "
        "from one job to the next"
    ),
    parts.EVALUATION: "evaluate less often, or on fewer batches",
    parts.CHECKPOINTS: "write checkpoints less often, or in the background (torch.distributed.checkpoint.async_save)",
    parts.TRACES: "record fewer steps, or use --profiler none where no trace is needed",
    parts.TAIL: "let the job end with its training, and do the rest in a job without GPUs",
    parts.ENDING: "use --profiler none where no trace is needed",
    parts.CONVERSION: "convert the reports after the job",
}
_NO_CHOICE = (parts.PROLOG, parts.START)  # nothing that a user writes shortens them


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


def leads(s: Summary) -> bool:
    """Whether an answer begins with the job: of a training of the user's own, if its steps are the smaller part of it
    and a part that can be avoided costs the job more than the largest loss in its steps."""
    job_time = s.job_time
    if job_time is None or not isinstance(asked_of(s), OwnTraining):
        return False
    outside = outside_ns(job_time)
    if outside < max(_SMALLER * job_time.elapsed_ns, LONG_NS):
        return False
    if any(problem.what == NOT_COMPLETED for problem in s.quality.problems):
        return False  # then its end is no part of a plan
    avoidable = max((part.share for part in largest(job_time) if part.part not in _NO_CHOICE), default=0.0)
    lost = max((found.share for found in s.findings), default=0.0)
    return avoidable > lost * job_time.useful_share


def largest(job_time: JobTime) -> list[JobTimePart]:
    """The parts outside of the steps that are worth telling, the largest first."""
    least = _TOLD * outside_ns(job_time)
    told = [part for part in job_time.parts if part.part != parts.STEPS and part.duration_ns >= least]
    return sorted(told, key=lambda part: -part.duration_ns)


def sentence(job_time: JobTime, most: int = _MOST) -> str:
    """How much is outside of the steps, its largest parts and what shortens the largest that can be."""
    outside = outside_ns(job_time)
    share = percent(outside / job_time.elapsed_ns)
    told = ", ".join(map(part_words, largest(job_time)[:most]))
    start = f"{time_words(outside)} of the job's {time_words(job_time.elapsed_ns)} ({share}) are outside of the steps"
    change = next(filter(None, map(cure, largest(job_time))), "")
    return f"{start}{f': {told}' if told else ''}.{f' Try: {change}.' if change else ''}"


def part_words(part: JobTimePart) -> str:
    """A part with its time, what it is, its rank and its line."""
    doing = DOING.get(part.part, part.part)
    if part.what:
        doing += f" ({part.what} first of all)"
    who = [] if part.rank is None else [f"rank {part.rank}{' came last' * (part.part == parts.MEETING)}"]
    who += [] if part.where is None else [short_place(part.where)]
    about = f" [{', '.join(who)}]" if who else ""
    return f"{time_words(part.duration_ns)} {doing}{about}"


def cure(part: JobTimePart) -> str:
    """What shortens a part; empty: nothing that a user can do."""
    if part.part == parts.MEETING:
        return "" if part.rank is None else f"look at what rank {part.rank} does before it meets the others"
    return _CURES.get(part.part, "")


def short_words(job_time: JobTime) -> str:
    """The sentence in a few words."""
    told = ", ".join(f"{part.part} {time_words(part.duration_ns)}" for part in largest(job_time)[:_MOST])
    outside, whole = time_words(outside_ns(job_time)), time_words(job_time.elapsed_ns)
    return f"{outside} of {whole} outside of the steps{f': {told}' if told else ''}"
